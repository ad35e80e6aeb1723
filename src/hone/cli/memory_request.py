"""What a command line asks about a run's memory, checked."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from hone.cli.options import CommandCall, parse_number
from hone.core.errors import ConfigError, ErrorCollector


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRequest:
    """Questions of `hone plan` about memory."""

    device: str = ""
    """Device of another machine, by name or file; empty: the run's own."""
    own_device: str = ""
    """`cpu` or `cuda`, given in place of `run.device`."""
    closed: bool = False
    """From the config alone."""
    longest_tokens: int | None = None
    model: str = ""
    """A model in place of the config's."""
    solve: bool = False
    exact: bool = False
    """The step's tensors are counted, too."""
    file: str = ""
    overrides: tuple[str, ...] = ()

    def command(self, settings: Sequence[str]) -> str:
        """The `hone train` of this command line with `settings`, which replace what was given for the same keys."""
        keys = {setting.partition("=")[0] for setting in settings}
        kept = [one for one in self.overrides if one.removeprefix("--").partition("=")[0] not in keys]
        model = [f"model.path={self.model}"] if self.model else []
        return shlex.join(["hone", "train", self.file, *kept, *model, *settings])


def memory_request(call: CommandCall) -> MemoryRequest:
    """The request of a command line. Raises ConfigError with all contradictions at once."""
    device = call.text("device")
    own = device.partition(":")[0] in ("", "cpu", "cuda")
    if call.command != "plan":
        return MemoryRequest(own_device=device)
    faults = ErrorCollector(ConfigError)
    longest = call.text("longest_text")
    if longest and not call.switch("memory"):
        faults.add(f"--longest-text {longest} is for --memory; without it the data are read, and say how long they are")
    if device and call.switch("calibrate"):
        faults.add(f"--calibrate measures the CPU of this machine; leave --device {device} out")
    model = call.text("model")
    if model and not call.switch("memory"):
        faults.add(f"--model {model} is for --memory; set model.path in the config to train it")
    faults.raise_if_any()
    return MemoryRequest(
        device="" if own else device,
        own_device=device if own else "",
        closed=call.switch("memory"),
        longest_tokens=int(parse_number(longest, "--longest-text", least=1)) if longest else None,
        model=model,
        solve=call.switch("solve"),
        exact=call.switch("exact"),
        file=call.text("file"),
        overrides=call.overrides,
    )
