"""Searches at test time after training: the plans of `[evaluation.search]` on the policy of a finished run."""

from pathlib import Path
from typing import TYPE_CHECKING

from hone.core.clock import SystemClock
from hone.core.errors import HoneError
from hone.report.run_page import write_report
from hone.store.folder import open_run
from hone.store.search import write_search

if TYPE_CHECKING:
    from hone.train.runner.display import ProgressDisplay


def write_searches(run: Path, *, device: str, progress: "ProgressDisplay") -> None:
    """Run the searches of a finished run's config, if it has any; saved, told, and shown in its report. A search that
    fails is told: the run itself is complete."""
    from hone.evaluate.checkpoint import search_run  # noqa: PLC0415 - torch: not needed to refuse a config

    log = open_run(run, clock=SystemClock()).log
    try:
        found = search_run(run, device=device)
    except HoneError as fault:
        progress.note(f"no search: {fault}")
        log(f"no search: {fault}", level="WARNING")
        return
    if found is None:
        return
    write_search(run, found)
    for note in found.notes:
        progress.note(note)
        log(note, level="WARNING")
    write_report(run)
