"""Histograms of a run, `histograms.jsonl`: one line for each line of metrics, of that line's last step.

A line has `step` and, for each of `NAMES` that the step has, `[low, high, counts]`: 32 buckets of equal width from the
least to the largest finite value, counted from the least (Sturges' range; the last bucket holds its upper edge). Equal
values are one bucket: `low == high`, and the first of the counts is their number.

| name | of | values |
|---|---|---|
| `reward` | episodes that ended and were scored | score |
| `length` | episodes | decisions, of language models tokens |
| `advantage` | decisions | advantage |
| `ratio` | decisions that the learner saw | probability ratio of its last pass to the loss's denominator |
| `entropy` | the same | nats; only where the loss needs entropies |
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hone.core.clock import Clock
from hone.core.errors import DataError
from hone.core.strict_json import Json
from hone.run.store.durable import from_json, to_json, writing
from hone.run.store.metrics import repair_last_line, truncate_after

HISTOGRAMS: Final = "histograms.jsonl"
BUCKETS: Final = 32
EVERY_S: Final = 1.0
MOST_WAITING: Final = 256
"""Seconds between two writes, and lines that wait for one, at most."""
NAMES: Final = ("reward", "length", "advantage", "ratio", "entropy")


class Histogram(NamedTuple):
    """Counts `[32]` of values between `low` and `high`."""

    low: float
    high: float
    counts: NDArray[np.int64]

    @property
    def edges(self) -> NDArray[np.float64]:
        """`[33]` edges of the buckets."""
        return np.linspace(self.low, self.high, BUCKETS + 1)


def histogram(values: NDArray[np.generic]) -> Histogram | None:
    """Histogram of the finite ones of `values` `[n]`; None without any."""
    known = values.astype(np.float64)
    if not len(known):
        return None
    low, high = float(np.minimum.reduce(known)), float(np.maximum.reduce(known))
    if not math.isfinite(high - low):  # ends that are finite and too far apart have an infinite width
        known = known[np.isfinite(known)]
        if not len(known):
            return None
        low, high = float(known.min()), float(known.max())
    width = (high - low) / BUCKETS
    if not (width > 0 and math.isfinite(width)):
        places = np.zeros(len(known), np.int64)
    else:
        known -= low
        known /= width
        places = np.minimum(known.astype(np.int64), BUCKETS - 1)
    return Histogram(low, high, np.bincount(places, minlength=BUCKETS))


@dataclass(slots=True, kw_only=True)
class HistogramLog:
    """The histograms of a run that is under way, written once a second at most: a line by itself costs twice the
    time."""

    path: Path
    clock: Clock
    _waiting: list[tuple[int, Mapping[str, NDArray[np.generic]]]] = field(
        default_factory=list[tuple[int, Mapping[str, NDArray[np.generic]]]]
    )
    _written_s: float = -math.inf

    def append(self, step: int, values: Mapping[str, NDArray[np.generic]]) -> None:
        """Add a line with the histogram of each of `values` `[n]`, of which it keeps copies. Raises ResourceError."""
        self._waiting.append((step, {name: column.copy() for name, column in values.items()}))
        if self.clock.monotonic_s() - self._written_s >= EVERY_S or len(self._waiting) >= MOST_WAITING:
            self.write()

    def write(self) -> None:
        """Write the lines that wait. Raises ResourceError, and then keeps them."""
        if not self._waiting:
            return
        lines: list[bytes] = []
        for step, values in self._waiting:
            line: dict[str, Json] = {"step": step}
            for name, column in values.items():
                if (made := histogram(column)) is not None:
                    line[name] = [made.low, made.high, made.counts.tolist()]
            lines.append(to_json(line))
        data = b"".join(lines)
        with writing(self.path, len(data)), self.path.open("ab") as file:
            file.write(data)
            file.flush()
        self._waiting.clear()
        self._written_s = self.clock.monotonic_s()

    def cut_after(self, step: int) -> None:
        """Take the lines of later steps than `step` away, and an incomplete last one. Raises ResourceError."""
        if self.path.exists():
            repair_last_line(self.path)
            truncate_after(self.path, step)


def read_histograms(run: Path) -> Mapping[str, tuple[NDArray[np.int64], list[Histogram]]]:
    """Read a run's histograms: name -> steps `[n]` and as many histograms. Damaged lines are left out; empty for a run
    of an earlier version."""
    result: dict[str, tuple[list[int], list[Histogram]]] = {}
    for line in _lines(run / HISTOGRAMS):
        match line:
            case {"step": int(step), **rest}:
                for name, entry in rest.items():
                    match entry:
                        case [int() | float() as low, int() | float() as high, list(counts)]:
                            steps, own = result.setdefault(name, ([], []))
                            steps.append(step)
                            own.append(Histogram(float(low), float(high), np.array(counts, np.int64)))
                        case _:
                            continue
            case _:
                continue
    return {name: (np.array(steps, np.int64), own) for name, (steps, own) in result.items()}


def _lines(path: Path) -> Iterator[Json]:
    if not path.exists():
        return
    data = path.read_bytes()
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].split(b"\n")[:-1], start=1):
        try:
            yield from_json(line, f"{path}:{number}")
        except DataError:
            continue
