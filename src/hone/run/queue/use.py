"""What a claim of the queue used beside its slot: core-seconds, tokens, bytes and steps, as whole numbers.

Steps and tokens are those of the run's own metrics behind the checkpoint that it began from: work that is done again
counts again, because somebody's cores did it. Bytes are those by which the run's folder grew. Core time is the kernel's
count for the processes of the run. A training service has totals of its own, in a file that it writes for its
claims; each has what those before it were not charged with, so that they add up whoever was killed meanwhile.
"""

import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

import numpy as np

from hone.run.store.checkpoints import CheckpointFolder
from hone.run.store.durable import replace_file
from hone.run.store.metrics import read_metrics

_TOKENS: Final = ("learner/tokens", "rollout/tokens")
_MICRO: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimUse:
    """An amount of each resource."""

    core_us: int = 0
    """Microseconds of processor time."""
    tokens: int = 0
    """Tokens that the learner read and those that were sampled."""
    bytes: int = 0
    steps: int = 0

    def beyond(self, other: "ClaimUse") -> "ClaimUse":
        """By how much this is more than an earlier count; 0 where it is less."""
        return ClaimUse(
            core_us=max(0, self.core_us - other.core_us),
            tokens=max(0, self.tokens - other.tokens),
            bytes=max(0, self.bytes - other.bytes),
            steps=max(0, self.steps - other.steps),
        )

    @classmethod
    def total(cls, uses: Iterable["ClaimUse"]) -> Self:
        """The sum of some amounts."""
        columns = zip(*((one.core_us, one.tokens, one.bytes, one.steps) for one in uses), strict=True)
        core_us, tokens, size, steps = map(sum, columns) if (columns := list(columns)) else (0, 0, 0, 0)
        return cls(core_us=core_us, tokens=tokens, bytes=size, steps=steps)

    @property
    def text(self) -> str:
        """The amounts with their units."""
        mib = self.bytes / 2**20
        return f"{self.core_us / _MICRO:.1f} core-seconds, {self.steps} steps, {self.tokens} tokens, {mib:.1f} MiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMeter:
    """Counts of one run since a claim of it began."""

    folder: Path
    first_step: int
    """Step of the checkpoint that it began from; 0: it began anew."""
    bytes_before: int
    service: Path | None = None
    """File of `write_service_use`; None: it is no training service."""
    charged: ClaimUse = ClaimUse()
    """What earlier claims of the service were charged with."""

    @classmethod
    def begin(cls, folder: Path, service: Path | None = None, charged: ClaimUse = ClaimUse()) -> Self:
        """A meter at 0 of the run in `folder`, or of a service; neither need be there."""
        if service is not None:
            return cls(folder=folder, first_step=0, bytes_before=0, service=service, charged=charged)
        checkpoints = folder / "checkpoints"
        steps = CheckpointFolder(folder=checkpoints).steps() if checkpoints.is_dir() else []
        return cls(folder=folder, first_step=max(steps, default=0), bytes_before=_bytes_of(folder))

    def use(self, core_us: int = 0, *, pid: int = 0) -> ClaimUse:
        """What was used so far, with the core time that the caller knows; of a run in progress, that of its process
        `pid` and of those it has waited for, where the system tells it."""
        stat = Path(f"/proc/{pid}/stat")
        if pid and sys.platform == "linux" and stat.exists():
            fields = stat.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
            core_us = sum(map(int, fields[11:15])) * _MICRO // os.sysconf("SC_CLK_TCK")
        if self.service is not None:
            totals = {"now": {}, "before": {}}
            if self.service.exists():
                totals = json.loads(self.service.read_text(encoding="utf-8"))
            used = ClaimUse(**totals["now"]).beyond(ClaimUse(**totals["before"])).beyond(self.charged)
            return replace(used, core_us=core_us)
        metrics = read_metrics(self.folder / "metrics.jsonl")
        since = metrics.steps > self.first_step
        spans = np.diff(metrics.steps[since], prepend=self.first_step)  # steps of each line, which has their mean
        means = [np.nan_to_num(metrics.values[name][since]) for name in _TOKENS if name in metrics.values]
        return ClaimUse(
            core_us=core_us,
            tokens=round(float(sum((spans * mean).sum() for mean in means))),
            bytes=max(0, _bytes_of(self.folder) - self.bytes_before),
            steps=int(spans.sum()),
        )


def write_service_use(file: Path, folder: Path, usage: Mapping[tuple[str, str], float]) -> None:
    """Keep the totals of a training service in `folder` for the meters of its claims; those that are written first are
    their zero: it may have served before. `usage`: its amounts by tenant and kind. Raises ResourceError."""
    amounts = dict.fromkeys(("train_tokens", "sampled_tokens", "steps"), 0.0)
    for (_, what), amount in usage.items():
        if what in amounts:
            amounts[what] += amount
    tokens = round(amounts["train_tokens"] + amounts["sampled_tokens"])
    now = {"tokens": tokens, "steps": round(amounts["steps"]), "bytes": _bytes_of(folder)}
    before = json.loads(file.read_text(encoding="utf-8"))["before"] if file.exists() else now
    replace_file(file, json.dumps({"before": before, "now": now}).encode(), sync=False)


def _bytes_of(folder: Path) -> int:
    total = 0
    for place, _, files in os.walk(folder):
        for name in files:
            file = Path(place) / name
            total += file.stat().st_size if file.is_file() else 0
    return total
