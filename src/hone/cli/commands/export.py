"""`hone export`: the model of a run or checkpoint, in a folder or a GGUF file of its own, and on the Hub; a control
policy as an ONNX file."""

from pathlib import Path
from typing import Final

from hone.cli.commands.evaluate import find_policy
from hone.cli.options import CommandCall
from hone.cli.terminal.screen import standard_screen
from hone.core.errors import ConfigError, HoneError
from hone.process.hub import NAME, push_folder
from hone.run.saved_config import config_tree, is_control, table_of

_TYPES: Final = ("float32", "bfloat16", "float16")


def run(call: CommandCall) -> int:
    """Write the folder or file, and upload it with --push; returns the exit code."""
    name, runs = call.text("push"), Path(call.text("runs"))
    if call.text("onnx"):
        return _export_onnx(call, runs)
    if not call.text("folder"):
        raise ConfigError("hone export: name the new folder, or with --gguf the new file; --onnx FILE needs none")
    if name and not NAME.fullmatch(name):
        raise ConfigError(f"--push {name!r}: expected the name of a model on the Hub, such as org/name")
    if name and call.text("gguf"):
        raise ConfigError("--push uploads a folder for transformers, and --gguf writes a file; leave one of them out")
    from hone.text.evaluate.open_policy import export_policy  # noqa: PLC0415 - torch takes seconds, and help should not

    policy, own = find_policy(call.text("checkpoint"), runs)
    target, screen, adapter, gguf = (
        Path(call.text("folder")),
        standard_screen(),
        call.switch("adapter"),
        call.text("gguf"),
    )
    dtype, reason = call.text("dtype"), ""
    if dtype and dtype not in _TYPES:
        raise ConfigError(f"--dtype {dtype}: no such type of weights; known: {', '.join(_TYPES)}")
    if dtype and (adapter or gguf):
        raise ConfigError("--dtype is for a folder with the whole model; leave it out beside --adapter and --gguf")
    if not dtype and not adapter and not gguf:
        dtype, reason = _first_type(policy, own, runs)
    screen.line(export_policy(policy, target, adapter=adapter, gguf=gguf, dtype=dtype or "float32", reason=reason))
    if name:
        screen.line(f"pushed {target} to {push_folder(target, name)}")
    return 0


def _export_onnx(call: CommandCall, runs: Path) -> int:
    others = [f"--{name}" for name in ("push", "gguf", "adapter", "dtype") if call.values[name]]
    if others or call.text("folder"):
        named = ", ".join(others) or call.text("folder")
        raise ConfigError(f"--onnx writes one file of a control policy; leave {named} out")
    from hone.control.export_onnx import export_onnx  # noqa: PLC0415 - as above

    policy, _ = find_policy(call.text("checkpoint"), runs)
    if not is_control(policy):
        raise ConfigError(
            f"{policy} is a language model, and --onnx is for control policies; export it into a folder, or with --gguf"
        )
    standard_screen().line(export_onnx(policy, Path(call.text("onnx"))).describe())
    return 0


def _first_type(policy: Path, run: Path | None, runs: Path) -> tuple[str, str]:
    """Data type of the model that training began with, as far back as its folders are there, and why it is that one."""
    from hone.models.language.hf_checkpoint import stored_type  # noqa: PLC0415 - as above

    dtype, path = "float32", str(policy)
    try:
        dtype = stored_type(policy)
        while run is not None and isinstance(start := table_of(config_tree(run), "model").get("path"), str):
            path = start
            policy, run = find_policy(path, runs)
            dtype = stored_type(policy)
    except HoneError:  # what is not there any more, or no language model, has no say
        return dtype, f": the type of {path}, where training began, cannot be read; --dtype rounds"
    if policy.suffix == ".gguf":
        return "float32", f": {policy.name} names no type of a folder's; --dtype bfloat16 halves it"
    return dtype, " as the model that training began with"
