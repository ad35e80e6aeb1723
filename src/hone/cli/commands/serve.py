"""`hone serve`: a checkpoint behind OpenAI's protocol, a control policy, the decisions of a service file, or training,
until Ctrl-C or SIGTERM."""

import os
from pathlib import Path

from hone.cli.commands.serve_decisions import serve_file
from hone.cli.commands.serve_training import serve_training_file
from hone.cli.options import SERVING, CommandCall, parse_number
from hone.cli.terminal.screen import standard_screen
from hone.core.errors import ConfigError, ResourceError
from hone.run.saved_config import is_control

KEY_VARIABLE = "HONE_API_KEY"
_PACKAGES = ("starlette", "uvicorn")
_OF_LANGUAGE_MODELS = ("slots", "context", "tool_format", "queue", "per_client", "device", "seed", "strict", "weights")
"""Options that a control policy has no use for."""


def run(call: CommandCall) -> int:
    """Serve a checkpoint, a service file, or a training service; returns the exit code."""
    if call.text("file"):
        if call.text("checkpoint") != "training":
            raise ConfigError(f"{call.text('file')}: a second name is for hone serve training FILE.toml")
        return serve_training_file(call, call.text("file"))
    if call.text("checkpoint").endswith(".toml"):
        return serve_file(call)
    if call.switch("dry_run"):
        raise ConfigError("--dry-run is for service files: hone serve FILE.toml --dry-run")
    from hone.cli.commands.evaluate import find_policy  # noqa: PLC0415 - torch takes seconds, see --help

    policy, owner = find_policy(call.text("checkpoint"), Path(call.text("runs")))
    if call.switch("follow") and owner is None:
        raise ConfigError(f"{policy} is not in a run: --follow takes up the new checkpoints of one")
    try:
        if is_control(policy):
            return _serve_control(call, policy, owner)
        from hone.run.http.requests import read_key  # noqa: PLC0415 - as above
        from hone.text.serving.completions.app import ServingRules  # noqa: PLC0415 - torch takes seconds, see --help
        from hone.text.serving.completions.run_server import ServedSource, ServerPlace, open_served, read_weights, serve  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        if error.name not in _PACKAGES:
            raise
        raise ResourceError(f"hone serve needs {error.name}: pip install 'hone-rl[serve]'") from None
    screen = standard_screen()
    key_file, key = _key(call)
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
        weights=read_weights(call.text("weights")),
        tool_format=call.text("tool_format"),
    )
    serve(open_served(source), place, screen.line)
    return 0


def _serve_control(call: CommandCall, policy: Path, owner: Path | None) -> int:
    """Serve a control policy; returns the exit code."""
    from hone.control.serving import PolicyServerConfig, open_served_policy, serve_policy  # noqa: PLC0415 - as above
    from hone.run.http.requests import read_key  # noqa: PLC0415 - as above

    defaults = {option.flag.lstrip("-").replace("-", "_"): option.default for option in SERVING if option.metavar}
    refused = [name for name in _OF_LANGUAGE_MODELS if call.values[name] not in (defaults.get(name, ""), False)]
    if refused:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in refused)
        raise ConfigError(f"{policy} is a control policy: {flags} is for language models; leave it out")
    key_file, key = _key(call)
    _, _, number = policy.absolute().parent.name.partition("step_")
    served = open_served_policy(
        policy,
        name=call.text("model") or (owner or policy).absolute().name,
        step=int(number) if number.isdecimal() and owner is not None else None,
    )
    config = PolicyServerConfig(
        host=call.text("host"),
        port=int(parse_number(call.text("port"), "--port", least=0)),
        api_key=key if key_file is None else read_key(key_file),
        key_file=key_file,
        most_body_bytes=int(parse_number(call.text("max_body"), "--max-body", least=1024)),
        deadline_s=parse_number(call.text("deadline"), "--deadline", least=0.001, whole=False),
        follow=owner if call.switch("follow") else None,
    )
    serve_policy(served, config, standard_screen().line)
    return 0


def _key(call: CommandCall) -> tuple[Path | None, str]:
    """File of the key, and the key given without one. Raises ConfigError for both."""
    key_file = Path(call.text("api_key_file")) if call.text("api_key_file") else None
    if key_file is not None and call.text("api_key"):
        raise ConfigError("--api-key and --api-key-file exclude each other; give one of them")
    return key_file, call.text("api_key") or os.environ.get(KEY_VARIABLE, "")
