"""A sweep on disk: `sweep.json` in its folder, with the plan, the trials, and every judgement so far.

Belongs here: the records and their file. `hone.evaluate.sweep` fills them, `hone.run.report.sweep_page` shows them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue

from hone.run.store.durable import read_json_object, replace_file, to_json
from hone.run.store.records import Number, parse_record, record_json

SWEEP = "sweep.json"
SEARCH_RUNS = "search"
"""Folder of the runs that choose the winner."""
FRESH_RUNS = "fresh"
"""Folder of the finalists' runs on fresh seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTrialRecord:
    """A trial: settings that were tried, in a batch of trials that are compared with each other."""

    number: int
    batch: int
    settings: Mapping[str, JsonValue]

    @property
    def folder(self) -> str:
        """Name of its folder."""
        return f"trial_{self.number:03d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialScore:
    """Score of a trial over its seeds, with its 95% interval; a reason in place of a score where a run failed."""

    trial: int
    mean: Number
    """Interquartile mean over the seeds."""
    low: Number
    high: Number
    worst: Number
    """Score of the worst seed."""
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RungRecord:
    """Judgement of a batch's trials after `steps` steps, and the trials that go on."""

    batch: int
    steps: int
    scores: tuple[TrialScore, ...]
    kept: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRecord:
    """A sweep so far."""

    plan: Mapping[str, JsonValue]
    """What decides its trials and runs; a resume must have the same."""
    trials: tuple[SweepTrialRecord, ...] = ()
    rungs: tuple[RungRecord, ...] = ()
    finished_runs: Mapping[str, int] = field(default_factory=dict[str, int])
    """Run's folder within the sweep's -> the steps after which its command ended well."""
    finalists: tuple[int, ...] = ()
    """Trials that were trained again on fresh seeds, the winner first."""
    fresh: tuple[TrialScore, ...] = ()
    """Their scores on the fresh seeds."""
    metric: str = ""
    """Meaning of the score, in words."""

    def seeds(self, name: str) -> tuple[int, ...]:
        """The plan's `seeds` or `fresh_seeds`."""
        given = self.plan.get(name)
        return tuple(one for one in given if isinstance(one, int)) if isinstance(given, list) else ()


def read_sweep(folder: Path) -> SweepRecord | None:
    """Read the record; None without one. Raises DataError for a damaged file."""
    path = folder / SWEEP
    return parse_record(SweepRecord, read_json_object(path), path) if path.exists() else None


class SweepJournal:
    """The record of a sweep in its folder, written down at every change."""

    def __init__(self, folder: Path, record: SweepRecord) -> None:
        self.folder = folder
        self.record = record

    def write(self, record: SweepRecord) -> None:
        """Replace the record, in the file as well. Raises ResourceError."""
        self.record = record
        replace_file(self.folder / SWEEP, to_json(record_json(record), indent=1))
