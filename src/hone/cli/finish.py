"""What follows a finished run: pictures of its policy, and the searches of `[evaluation.search]`.

The run itself is complete then: what fails here is told, and no more.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hone.core.clock import SystemClock
from hone.core.errors import HoneError
from hone.run.job import RunConfig
from hone.run.report.run_page import write_report
from hone.run.store.folder import RunFolder, open_run
from hone.run.store.search import SEARCH, write_search

if TYPE_CHECKING:
    from hone.run.display import ProgressDisplay


def finish_run(folder: RunFolder, config: RunConfig, *, progress: "ProgressDisplay") -> None:
    """Add pictures of the policy and searches to a finished run."""
    from hone.evaluate.pictures import write_policy_pictures  # noqa: PLC0415 - torch: not needed to refuse a config

    try:
        if write_policy_pictures(folder.path):
            write_report(folder.path)
    except HoneError as fault:
        folder.log(f"no picture of the policy: {fault}", level="WARNING")
    _write_searches(folder, config, progress=progress)


def write_stage_searches(folder: Path, stages: Sequence[RunConfig], *, progress: "ProgressDisplay") -> None:
    """Run the searches of the finished stages of a pipeline, as `_write_searches`, and bring its report up to date."""
    searched = [config for config in stages if config.has_search()]
    for config in searched:
        _write_searches(open_run(folder / config.name, clock=SystemClock()), config, progress=progress)
    if any((folder / config.name / SEARCH).exists() for config in searched):
        write_report(folder)


def _write_searches(folder: RunFolder, config: RunConfig, *, progress: "ProgressDisplay") -> None:
    """Run the searches of a finished run's config, if it has any; saved, told, and shown in its report."""
    if not config.has_search():
        return
    from hone.evaluate.checkpoint import search_run  # noqa: PLC0415 - as above

    try:
        found = search_run(folder.path, device=config.run.device)
    except HoneError as fault:
        progress.note(f"no search: {fault}")
        folder.log(f"no search: {fault}", level="WARNING")
        return
    if found is None:
        return
    write_search(folder.path, found)
    for note in found.notes:
        progress.note(note)
        folder.log(note, level="WARNING")
    write_report(folder.path)
