"""`hone doctor --cluster [FILE]`: the machines of a Ray cluster, against the plan of a config where one is named."""

import os
from pathlib import Path

from hone.cli.commands.train import opened_runs, planned_runs
from hone.cli.options import CommandCall
from hone.cli.terminal.screen import TerminalScreen
from hone.config.resolve import read_document
from hone.control.environments.ray_blocks import ADDRESS_VARIABLE
from hone.core.errors import ResourceError
from hone.parallel.config import ClusterConfig
from hone.parallel.doctor import inspect_cluster

_FLOAT_BYTES = 4


def check_cluster(call: CommandCall, screen: TerminalScreen) -> int:
    """Print a row for each finding and a line for each fix; returns the exit code, 5 if one failed."""
    config, weights_bytes, file = None, 0, call.text("what")
    if file:
        config, weights_bytes = _plan(file, call.overrides)
    address = os.environ.get(ADDRESS_VARIABLE) or ("auto" if config is None else config.address)
    findings = inspect_cluster(address, Path(call.text("runs")), config=config, weights_bytes=weights_bytes)
    screen.title("cluster")
    screen.rows([(one.subject, one.observed, "" if one.verdict == "ok" else one.verdict) for one in findings])
    screen.line()
    for one in findings:
        if one.fix and one.verdict != "ok":
            screen.line(f"{one.subject}: {one.fix}")
    failed = any(one.verdict == "fail" for one in findings)
    screen.line("a run cannot start there; see the lines marked fail" if failed else "ready")
    return ResourceError.exit_code if failed else 0


def _plan(file: str, overrides: tuple[str, ...]) -> tuple[ClusterConfig | None, int]:
    """The table `[cluster]` of a config, and the bytes of its policy's weights. Raises as `hone plan`."""
    stages = planned_runs(read_document(file, list(overrides)))
    table = stages[0].resolved.config.model_dump(mode="json").get("cluster")
    config = None if table is None else ClusterConfig.model_validate(table)
    with opened_runs(stages[:1], may_exceed=True) as (stage,):
        memory = None if stage.opened is None else stage.opened.memory
        return config, _FLOAT_BYTES * (0 if memory is None else memory.parameters)
