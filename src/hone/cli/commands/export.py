"""`hone export`: the model of a run or checkpoint, in a folder of its own."""

from pathlib import Path

from hone.cli.commands.evaluate import find_policy
from hone.cli.options import CommandCall
from hone.cli.terminal.screen import standard_screen


def run(call: CommandCall) -> int:
    """Write the folder; returns the exit code."""
    from hone.text.evaluate.open_policy import export_policy  # noqa: PLC0415 - torch takes seconds, and help should not

    policy, _ = find_policy(call.text("checkpoint"), Path(call.text("runs")))
    standard_screen().line(export_policy(policy, Path(call.text("folder")), adapter=call.switch("adapter")))
    return 0
