"""`hone watch`: the page of runs in the browser, or a run and its alarms as lines."""

from pathlib import Path

from hone.cli.commands.show import RED_ALARM
from hone.cli.options import CommandCall, parse_number
from hone.cli.terminal.screen import standard_screen
from hone.core.clock import SystemClock
from hone.core.errors import ConfigError, DataError, ResourceError

_PACKAGES = ("starlette", "uvicorn")


def run(call: CommandCall) -> int:
    """Serve the page, or print what is asked for; returns the exit code: 7 if `--alarms` finds a red one."""
    try:
        from hone.web import serve  # noqa: PLC0415 - a server's libraries, see --help
        from hone.web.app import WatchParts  # noqa: PLC0415
        from hone.web.columns import cache_root  # noqa: PLC0415
        from hone.web.runs import RunListing  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name not in _PACKAGES:
            raise
        raise ResourceError(f"hone watch needs {error.name}: pip install 'hone-rl[watch]'") from None
    screen, clock = standard_screen(), SystemClock()
    if call.switch("demo"):
        if call.text("runs"):
            raise ConfigError(f"--demo shows recorded runs; leave {call.text('runs')} out")
        root = serve.unpack_demo()
    else:
        root = Path(call.text("runs") or "runs")
    if not root.is_dir():
        raise DataError(f"{root} is not a folder of runs; name one, or look at recorded ones: hone watch --demo")
    listing = RunListing(root, cache_root(), clock)
    if call.text("once") or call.switch("alarms"):
        rows = [serve.find_row(listing, call.text("once"))] if call.text("once") else listing.rows()
        lines = serve.alarm_lines(rows) if call.switch("alarms") else serve.run_lines(listing, rows[0])
        for line in lines:
            screen.line(line)
        red = any(one.raised and one.level == "red" for row in rows for one in row.alarms)
        return RED_ALARM if call.switch("alarms") and red else 0
    place = serve.WatchPlace(
        host=call.text("host"),
        port=int(parse_number(call.text("port"), "--port", least=0)),
        token_file=Path(call.text("token_file")) if call.text("token_file") else None,
        chat=call.switch("chat"),
    )
    service = Path(call.text("service")) if call.text("service") else None
    if service is not None and not service.is_file():
        raise ConfigError(f"--service {service}: there is no such service file")
    parts = WatchParts(listing=listing, clock=clock, service=service, queue=call.text("queue"), chat=place.chat)
    serve.serve(parts, place, screen.line)
    return 0
