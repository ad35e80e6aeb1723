"""`hone serve FILE.toml`: the decisions, or the fleet, of a service file over HTTP, or its plan."""

import contextlib
import tomllib
from functools import partial
from pathlib import Path
from typing import Final

from hone.cli.options import SERVING, CommandCall, parse_number
from hone.cli.terminal.screen import standard_screen
from hone.core.clock import SystemClock
from hone.core.errors import ConfigError, ResourceError, run_all_checks

_PACKAGES: Final = ("starlette", "uvicorn", "orjson")
_OWN: Final = ("host", "port", "dry_run")
"""Options of `hone serve` that a service file has, too; the others are for language models."""


def serve_file(call: CommandCall) -> int:
    """Serve the decisions of a service file, or print its plan; returns the exit code."""
    # raise ConfigError for options of language models
    others = [option for option in SERVING if option.flag.removeprefix("--").replace("-", "_") not in _OWN]
    flags = [
        option.flag
        for option in others
        if (call.switch if not option.metavar else call.text)(option.flag.removeprefix("--").replace("-", "_"))
        != (option.default if option.metavar else False)
    ]
    if flags:
        raise ConfigError(f"{', '.join(flags)}: for language models; a service file has its own settings")
    path, screen, is_fleet = Path(call.text("checkpoint")), standard_screen(), False
    with contextlib.suppress(OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):  # told by who serves it
        is_fleet = "fleet" in tomllib.loads(path.read_text(encoding="utf-8"))
    if call.switch("dry_run") and is_fleet:
        from hone.decide.fleet.http_app import fleet_plan_lines  # noqa: PLC0415 - see --help

        for line in fleet_plan_lines(path):
            screen.line(line)
        return 0
    if call.switch("dry_run"):
        from hone.cli.commands.retrain import check_retraining  # noqa: PLC0415 - see --help
        from hone.decide.gateway.plan import plan_lines  # noqa: PLC0415 - as above

        plan = partial(plan_lines, path, clock=SystemClock())
        checked = run_all_checks({"plan": plan, "retraining": partial(check_retraining, path)})
        for line in (*checked["plan"], *checked["retraining"]):
            screen.line(line)
        return 0
    try:
        from hone.decide.fleet.http_app import serve_fleet  # noqa: PLC0415 - as above
        from hone.decide.gateway.run_service import GatewayPlace, serve_gateway  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        if error.name not in _PACKAGES:
            raise
        raise ResourceError(f"serving decisions needs {error.name}: pip install 'hone-rl[decide]'") from None
    place = GatewayPlace(host=call.text("host"), port=int(parse_number(call.text("port"), "--port", least=0)))
    (serve_fleet if is_fleet else serve_gateway)(path, place, clock=SystemClock(), tell=screen.line)
    return 0
