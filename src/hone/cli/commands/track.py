"""`hone track`: send the folder of a run to a tracker, by the code that follows a running one."""

from pathlib import Path

from hone.cli.commands.show import find_run
from hone.cli.options import CommandCall
from hone.cli.terminal.screen import standard_screen
from hone.core.errors import ConfigError, did_you_mean
from hone.run.job import TrackConfig
from hone.run.tracking import check_trackers, send_run

_NAMES = ("hone", "trl", "verl")


def run(call: CommandCall) -> int:
    """Send what the tracker lacks; returns the exit code."""
    if (names := call.text("names")) not in _NAMES:
        raise ConfigError(f"--names {names} is not known{did_you_mean(names, _NAMES)}; known: {', '.join(_NAMES)}")
    asked = {"to": call.text("to"), "project": call.text("project"), "place": call.text("place"), "names": names}
    config = TrackConfig.model_validate(asked)
    check_trackers([config])
    folder = find_run(call.text("run"), Path(call.text("runs"))).path
    last_step = send_run(folder, config)
    standard_screen().line(f"{config.to} has the metrics of {folder} up to step {last_step}")
    return 0
