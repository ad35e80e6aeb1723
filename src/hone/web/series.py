"""Parts of columns for the browser: at most a bucket a pixel, with the least, the greatest and the mean.

Belongs here: which rows a request covers, their buckets, and the bytes of an answer. A mean hides a spike and a sample
may miss it; the least and the greatest of a bucket cannot. Rows fewer than the pixels are sent as they are.
"""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hone.run.store.metrics import STEP
from hone.web.columns import BLOCK, BlockSummary, RunColumns

MOST_PIXELS: Final = 4000
WALL: Final = "time/at_s"
_STEP_SECONDS: Final = "time/step_s"
_AMOUNTS: Final = ("rollout/tokens", "episodes/decisions")
"""Metrics whose sum over the steps is an axis: tokens, or environment steps; the first that a run has."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """Least, greatest and mean of the finite values of each bucket `[B]`; NaN for a bucket without any."""

    least: Floats
    greatest: Floats
    mean: Floats


def bucket_edges(first: int, last: int, pixels: int) -> NDArray[np.int64]:
    """Edges `[B+1]` of at most `pixels` buckets of the rows `first <= row < last`.

    Where a bucket holds a block or more, inner edges lie between blocks.
    """
    rows = last - first
    if rows <= pixels:
        return np.arange(first, last + 1)
    edges = np.linspace(first, last, pixels + 1)
    if rows / pixels >= BLOCK:
        edges[1:-1] = np.round(edges[1:-1] / BLOCK) * BLOCK
    return np.unique(np.clip(np.round(edges), first, last).astype(np.int64))


def bucketed(column: Floats, edges: NDArray[np.int64], blocks: BlockSummary | None = None) -> Buckets:
    """Buckets of `column` `[N]` between `edges` `[B+1]`; `blocks` are used for buckets of whole blocks."""
    if len(edges) < 2:
        return Buckets(least=np.zeros(0), greatest=np.zeros(0), mean=np.zeros(0))
    inner = edges[1:-1]
    whole = (
        blocks is not None
        and len(edges) > 3
        and not (inner % BLOCK).any()
        and int(inner[-1]) // BLOCK <= len(blocks.least)
    )
    if blocks is None or not whole:
        return _from_rows(np.asarray(column[edges[0] : edges[-1]]), edges - edges[0])
    head = _from_rows(np.asarray(column[edges[0] : edges[1]]), np.array([0, edges[1] - edges[0]]))
    tail = _from_rows(np.asarray(column[edges[-2] : edges[-1]]), np.array([0, edges[-1] - edges[-2]]))
    begin, end = int(inner[0]) // BLOCK, int(inner[-1]) // BLOCK
    places = inner[:-1] // BLOCK - begin
    with np.errstate(invalid="ignore", divide="ignore"):
        count = np.add.reduceat(blocks.count[begin:end], places)
        middle = np.add.reduceat(blocks.total[begin:end], places) / np.where(count > 0, count, np.nan)
    least = np.fmin.reduceat(blocks.least[begin:end], places)
    greatest = np.fmax.reduceat(blocks.greatest[begin:end], places)
    return Buckets(
        least=np.concatenate([head.least, least, tail.least]),
        greatest=np.concatenate([head.greatest, greatest, tail.greatest]),
        mean=np.concatenate([head.mean, middle, tail.mean]),
    )


def _from_rows(values: Floats, edges: NDArray[np.int64]) -> Buckets:
    known = np.isfinite(values)
    places = edges[:-1]
    count = np.add.reduceat(known.astype(np.float64), places)
    some = count > 0
    least = np.minimum.reduceat(np.where(known, values, np.inf), places)
    greatest = np.maximum.reduceat(np.where(known, values, -np.inf), places)
    total = np.add.reduceat(np.where(known, values, 0.0), places)
    return Buckets(
        least=np.where(some, least, np.nan),
        greatest=np.where(some, greatest, np.nan),
        mean=total / np.where(some, count, np.nan),
    )


# --------------------------------------------------------------------------------------------------------------- answer


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisColumns:
    """Positions of the last row of each bucket on the axes: steps, seconds since the first line, and amounts."""

    steps: Floats
    seconds: Floats | None
    amount: Floats | None
    amount_name: str


def axis_columns(columns: RunColumns, edges: NDArray[np.int64]) -> AxisColumns:
    """Axes of buckets: wall clock where the run wrote it, else the sum of its step times."""
    rows = edges[1:] - 1
    steps = columns.column(STEP)
    spacing = np.diff(steps, prepend=0.0)
    seconds: Floats | None = None
    if WALL in columns.names:
        at = np.asarray(columns.column(WALL))
        known = np.isfinite(at)
        seconds = np.maximum.accumulate(np.where(known, at, -np.inf))[rows] - at[known][0] if known.any() else None
    elif _STEP_SECONDS in columns.names:
        seconds = np.nancumsum(columns.column(_STEP_SECONDS))[rows]
    name = next((one for one in _AMOUNTS if one in columns.names), "")
    amount = np.cumsum(np.nan_to_num(columns.column(name)) * spacing)[rows] if name else None
    return AxisColumns(steps=np.asarray(steps[rows]), seconds=seconds, amount=amount, amount_name=name)


def series_answer(
    columns: RunColumns, names: Sequence[str], *, first_step: float, last_step: float, pixels: int
) -> bytes:
    """An answer for the browser: length of a header (uint32), the header in JSON, zeros up to a multiple of 8, axes in
    float64, then per metric the mean, and for wider buckets the least and the greatest, in float32; little-endian.

    Unknown metrics are left out; the header names those that follow. Rows of steps from `first_step` to `last_step`.
    """
    pixels = min(max(1, pixels), MOST_PIXELS)
    known = [name for name in dict.fromkeys(names) if name in columns.names]
    steps = columns.column(STEP)
    first, last = (
        int(np.searchsorted(steps, first_step, side="left")),
        int(np.searchsorted(steps, last_step, side="right")),
    )
    edges = bucket_edges(first, last, pixels) if last > first else np.zeros(1, np.int64)
    exact = last - first <= pixels
    axes = axis_columns(columns, edges) if last > first else None
    count = len(edges) - 1
    parts: list[bytes] = []
    listed: list[str] = []
    if axes is not None:
        columns_of = (("steps", axes.steps), ("seconds", axes.seconds), ("amount", axes.amount))
        for name, values in columns_of:
            if values is not None:
                listed.append(name)
                parts.append(values.astype("<f8").tobytes())
        for name in known:
            blocks = None if exact else columns.blocks(name)
            own = bucketed(columns.column(name), edges, blocks)
            for values in (own.mean,) if exact else (own.mean, own.least, own.greatest):
                parts.append(values.astype("<f4").tobytes())
    header = json.dumps(
        {
            "rows": columns.rows,
            "first": float(steps[0]) if columns.rows else 0,
            "last": float(steps[-1]) if columns.rows else 0,
            "count": count,
            "exact": exact,
            "axes": listed,
            "amount": axes.amount_name if axes is not None else "",
            "metrics": known,
            "generation": columns.generation,
        }
    ).encode()
    room = -(4 + len(header)) % 8
    return struct.pack("<I", len(header)) + header + bytes(room) + b"".join(parts)
