"""Input of a report: the files of a run's folder, read as far as possible.

Belongs here: reading. A damaged file removes its own section only and becomes a line under "Problems", because a
broken run needs a report most.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hone.core.config import ConfigSetting
from hone.core.errors import DataError
from hone.run.report.timeline import is_loop_part
from hone.run.store.animation import EpisodeRecording, read_episode
from hone.run.store.evaluations import (
    PIPELINE,
    SIDE_BY_SIDE,
    EvaluationScore,
    PairedDifference,
    PipelineRecord,
    SideBySide,
    read_evaluations,
)
from hone.run.store.manifest import Manifest, read_config, read_manifest
from hone.run.store.metrics import CLOCK_PREFIX, MetricColumns, read_metrics
from hone.run.store.records import (
    CALIBRATION,
    LEARNING,
    MEMORY,
    SEARCH,
    SPEED,
    CalibrationRecord,
    GradientCertificate,
    MatmulRate,
    MemoryUse,
    PerturbedScore,
    PolicyMap,
    SearchRecord,
    read_certificate,
    read_map,
    read_robustness,
)
from hone.run.store.rollouts import SampleRow, read_samples, rollout_files, rollout_kind
from hone.run.store.survivorship import SURVIVORSHIP, Survivorship

T = TypeVar("T")
SHOWN_ANSWERS = 64
"""Answers that a report shows at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """Files of one run; `problems` names those that could not be read."""

    name: str
    manifest: Manifest | None
    config: Mapping[str, ConfigSetting]
    metrics: MetricColumns
    samples: tuple[SampleRow, ...]
    log: tuple[str, ...]
    evaluations: tuple[EvaluationScore, ...]
    paired: tuple[PairedDifference, ...]
    side_by_side: tuple[SideBySide, ...]
    certificate: GradientCertificate | None = None
    matmul: MatmulRate | None = None
    memory: MemoryUse | None = None
    survivorship: Survivorship | None = None
    episode: tuple[EpisodeRecording, bytes | None] | None = None
    """An episode of the policy, and its animation."""
    map: PolicyMap | None = None
    robustness: tuple[PerturbedScore, ...] = ()
    search: SearchRecord | None = None
    """Accuracy of searches by tokens."""
    calibration: CalibrationRecord | None = None
    """A scorer on held-out answers."""
    findings: tuple[str, ...] = ()
    """Sentences about steps that taught nothing."""
    problems: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        """Last step of the metrics, 0 without any."""
        return int(self.metrics.steps[-1]) if len(self.metrics.steps) else 0

    def wall_s(self) -> float:
        """Seconds of all steps: the sum of `time/step_s`, or else of the parts."""
        values = self.metrics.values
        if "time/step_s" in values:
            return float(np.nansum(values["time/step_s"]))
        return sum(float(np.nansum(seconds)) for name, seconds in values.items() if is_loop_part(name))

    def curves(self) -> tuple[dict[str, NDArray[np.float64]], dict[str, float]]:
        """Metrics that vary, in reading order, and the constant ones with their value; times are left out."""
        moving: dict[str, NDArray[np.float64]] = {}
        constant: dict[str, float] = {}
        for name in sorted(self.metrics.values, key=_reading_order):
            values = self.metrics.values[name]
            known = values[np.isfinite(values)]
            if name.startswith(CLOCK_PREFIX) or not len(known) or (_STOPS in name and not known.any()):
                continue
            if len(known) > 1 and known.min() == known.max():
                constant[name] = float(known[0])
            else:
                moving[name] = values
        return moving, constant


_STOPS = "stops/"
"""Reasons of the ends of dialogues; those that never occurred have no curve."""
_ORDER = ("reward", "score", "return", "eval", "loss", "episodes", "completion", "completions", "length", "tokens")
_ORDER_THEN = (
    "policy",
    "entropy",
    "kl",
    "clip",
    "value",
    "critic",
    "actor",
    "mismatch",
    "staleness",
    "learner",
    "optim",
)


def _reading_order(name: str) -> tuple[int, str, int, str]:
    prefix = name.split("/", 1)[0]
    order = (*_ORDER, *_ORDER_THEN)
    # Within a group, the mean comes before its spread.
    return (order.index(prefix) if prefix in order else len(order), prefix, 0 if name.endswith("/mean") else 1, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """A pipeline with its stages, or a single run as its only stage; `own` is the data of the folder itself."""

    name: str
    pipeline: PipelineRecord | None
    folder_data: RunData
    stages: tuple[RunData, ...]


def read_report_data(folder: Path) -> ReportData:
    """Read the folder of a run or a pipeline. Raises DataError only if `folder` is neither."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: there is no run to report")
    pipeline = PIPELINE.read(folder)
    own = _read_run(folder, needs_run=pipeline is None)
    if pipeline is None:
        return ReportData(name=folder.resolve().name, pipeline=None, folder_data=own, stages=(own,))
    stages = tuple(_read_run(folder / name, needs_run=True) for name in pipeline.stages)
    return ReportData(name=pipeline.name, pipeline=pipeline, folder_data=own, stages=stages)


@dataclass(slots=True)
class _TolerantReader:
    """Collects the errors of unreadable files."""

    problems: list[str] = field(default_factory=list[str])

    def read(self, work: Callable[[], T], otherwise: T) -> T:
        """Result of `work`, or `otherwise` after an error, which is recorded."""
        try:
            return work()
        except DataError as error:
            self.problems.append(str(error))
            return otherwise


def _read_run(folder: Path, *, needs_run: bool) -> RunData:
    reader = _TolerantReader()
    is_run = needs_run or (folder / "manifest.json").exists()
    no_metrics = MetricColumns(np.zeros(0, dtype=np.int64), {})
    metrics = reader.read(lambda: read_metrics(folder / "metrics.jsonl"), no_metrics)
    reader.problems += metrics.faults
    evaluations, paired = reader.read(lambda: read_evaluations(folder), ([], []))
    return RunData(
        name=folder.resolve().name,
        manifest=reader.read(lambda: read_manifest(folder / "manifest.json"), None) if is_run else None,
        config=reader.read(lambda: read_config(folder / "config.json"), {}) if is_run else {},
        metrics=metrics,
        samples=tuple(reader.read(lambda: _last_samples(folder), [])),
        log=tuple(_log(folder / "log.txt")),
        evaluations=tuple(evaluations),
        paired=tuple(paired),
        side_by_side=tuple(reader.read(lambda: SIDE_BY_SIDE.read(folder) or [], [])),
        certificate=reader.read(lambda: read_certificate(folder), None),
        matmul=reader.read(lambda: SPEED.read(folder), None),
        memory=reader.read(lambda: MEMORY.read(folder), None),
        survivorship=reader.read(lambda: SURVIVORSHIP.read(folder), None),
        episode=reader.read(lambda: read_episode(folder), None),
        map=reader.read(lambda: read_map(folder), None),
        robustness=tuple(reader.read(lambda: read_robustness(folder), [])),
        search=reader.read(lambda: SEARCH.read(folder), None),
        calibration=reader.read(lambda: CALIBRATION.read(folder), None),
        findings=tuple(reader.read(lambda: LEARNING.read(folder) or [], [])),
        problems=tuple(reader.problems),
    )


def _last_samples(folder: Path) -> list[SampleRow]:
    """The first answers of the newest file of rollouts; none of a run whose rollouts are episodes."""
    files = list(rollout_files(folder).values())
    return read_samples(files[-1])[:SHOWN_ANSWERS] if files and rollout_kind(files[-1]) == "answers" else []


def _log(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
