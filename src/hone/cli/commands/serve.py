"""`hone serve`: a checkpoint behind OpenAI's protocol, or the decisions of a service file, until Ctrl-C or SIGTERM."""

import os
from pathlib import Path

from hone.cli.commands.serve_decisions import serve_file
from hone.cli.options import CommandCall, parse_number
from hone.cli.terminal.screen import standard_screen
from hone.core.errors import ConfigError, ResourceError

KEY_VARIABLE = "HONE_API_KEY"
_PACKAGES = ("starlette", "uvicorn")


def run(call: CommandCall) -> int:
    """Serve a checkpoint or a service file; returns the exit code."""
    if call.text("checkpoint").endswith(".toml"):
        return serve_file(call)
    if call.switch("dry_run"):
        raise ConfigError("--dry-run is for service files: hone serve FILE.toml --dry-run")
    try:
        from hone.text.serving.completions.app import ServingRules  # noqa: PLC0415 - torch takes seconds, see --help
        from hone.text.serving.completions.run_server import ServedSource, ServerPlace, open_served, read_key, serve  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        if error.name not in _PACKAGES:
            raise
        raise ResourceError(f"hone serve needs {error.name}: pip install 'hone-rl[serve]'") from None
    from hone.cli.commands.evaluate import find_policy  # noqa: PLC0415 - as above

    screen = standard_screen()
    policy, owner = find_policy(call.text("checkpoint"), Path(call.text("runs")))
    if call.switch("follow") and owner is None:
        raise ConfigError(f"{policy} is not in a run: --follow takes up the new checkpoints of one")
    key_file = Path(call.text("api_key_file")) if call.text("api_key_file") else None
    if key_file is not None and call.text("api_key"):
        raise ConfigError("--api-key and --api-key-file exclude each other; give one of them")
    key = call.text("api_key") or os.environ.get(KEY_VARIABLE, "")
    place = ServerPlace(
        host=call.text("host"),
        port=int(parse_number(call.text("port"), "--port", least=0)),
        deadline_s=parse_number(call.text("deadline"), "--deadline", least=0.001, whole=False),
        queue=int(parse_number(call.text("queue"), "--queue", least=0)),
        follow=call.switch("follow"),
        per_client=int(parse_number(call.text("per_client"), "--per-client", least=0)),
        rules=ServingRules(
            api_key=key if key_file is None else read_key(key_file),
            strict=call.switch("strict"),
            most_body_bytes=int(parse_number(call.text("max_body"), "--max-body", least=1024)),
        ),
        key_file=key_file,
    )
    place.check()
    source = ServedSource(
        policy=policy,
        run=owner,
        name=call.text("model") or (owner or policy).absolute().name,
        device=call.text("device"),
        slots=int(parse_number(call.text("slots"), "--slots", least=1)),
        context=int(parse_number(call.text("context"), "--context", least=0)),
        seed=int(parse_number(call.text("seed"), "--seed", least=0)),
        tool_format=call.text("tool_format"),
    )
    serve(open_served(source), place, screen.line)
    return 0
