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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hone.core.errors import DataError
from hone.core.strict_json import Json
from hone.run.store.durable import from_json, to_json, writing
from hone.run.store.metrics import repair_last_line, truncate_after

HISTOGRAMS: Final = "histograms.jsonl"
BUCKETS: Final = 32
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


def histograms(columns: Sequence[NDArray[np.generic]]) -> list[Histogram | None]:
    """Histogram of each of many columns `[n]`, as `histogram` makes it, in a few passes over all of them together."""
    sizes = np.array([len(column) for column in columns])
    filled = np.flatnonzero(sizes)
    made: list[Histogram | None] = [None] * len(columns)
    if not len(filled):
        return made
    sizes = sizes[filled]
    known = np.concatenate([columns[place] for place in filled.tolist()], dtype=np.float64)
    starts = np.cumsum(sizes) - sizes
    low, high = np.minimum.reduceat(known, starts), np.maximum.reduceat(known, starts)
    with np.errstate(invalid="ignore", over="ignore"):
        width = (high - low) / BUCKETS
        known -= np.repeat(low, sizes)
        known /= np.repeat(np.where(width > 0, width, 1.0), sizes)  # a column of one value is in the first bucket
        known[~np.isfinite(known)] = 0.0
    bucket = np.minimum(known.astype(np.int64), BUCKETS - 1) + np.repeat(BUCKETS * np.arange(len(filled)), sizes)
    counts = np.bincount(bucket, minlength=BUCKETS * len(filled)).reshape(-1, BUCKETS)
    for row, place in enumerate(filled.tolist()):
        plain = math.isfinite(width[row]) and (width[row] > 0 or low[row] == high[row])
        made[place] = Histogram(float(low[row]), float(high[row]), counts[row]) if plain else histogram(columns[place])
    return made


@dataclass(slots=True, kw_only=True)
class HistogramLog:
    """The histograms of a run that is under way: lines wait until they are written together, because a line by itself
    costs several times the time."""

    path: Path
    _waiting: list[tuple[int, Mapping[str, NDArray[np.generic]]]] = field(
        default_factory=list[tuple[int, Mapping[str, NDArray[np.generic]]]]
    )

    def append(self, step: int, values: Mapping[str, NDArray[np.generic]]) -> None:
        """Add a line with the histogram of each of `values` `[n]`, of which it keeps copies."""
        self._waiting.append((step, {name: column.copy() for name, column in values.items()}))

    def write(self) -> None:
        """Write the lines that wait. Raises ResourceError, and then keeps them."""
        if not self._waiting:
            return
        lines: list[dict[str, Json]] = [{"step": step} for step, _ in self._waiting]
        for name in dict.fromkeys(name for _, values in self._waiting for name in values):
            places = [place for place, (_, values) in enumerate(self._waiting) if name in values]
            made = histograms([self._waiting[place][1][name] for place in places])
            for place, one in zip(places, made, strict=True):
                if one is not None:
                    lines[place][name] = [one.low, one.high, one.counts.tolist()]
        data = b"".join(map(to_json, lines))
        with writing(self.path, len(data)), self.path.open("ab") as file:
            file.write(data)
            file.flush()
        self._waiting.clear()

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
