"""Passes over the model that read prompts beside the running rows."""

from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from hone.engine.samples import Fill, Sample
from hone.engine.table import Table
from hone.engine.work import DRAW, Draws, Pass

_Number = TypeVar("_Number", bound=np.generic)

_NONE: Final = np.zeros(0, np.int32)
no_copies: Final = (_NONE, _NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Tokens `start:stop` of a text that one pass reads."""

    fill: Fill
    start: int
    stop: int
    drawing: list[Sample]
    """Samples that draw after the last token."""

    @property
    def first_draw(self) -> int:
        """The first of its tokens after which something is drawn or scored; `stop` if there is none."""
        return self.stop if self.fill.given is None else max(self.start, self.fill.first_draw)

    @property
    def draws(self) -> int:
        return len(self.drawing) if self.fill.given is None else max(0, self.stop - self.first_draw)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One pass, and whom its draws belong to: the rows first, then each chunk's."""

    work: Pass
    rows: int
    chunks: list[Chunk]
    sources: NDArray[np.int32]
    """Pages to be copied before the pass, `[k]`."""
    targets: NDArray[np.int32]

    def asked_by(self, table: Table, draws: NDArray[np.int64]) -> list[str]:
        """Ids of the requests that asked for these draws, before `table` changes; each once."""
        owners = list(table.samples[: self.rows])
        for chunk in self.chunks:
            owners += chunk.drawing or [chunk.fill.members[0]] * chunk.draws
        return list(dict.fromkeys(owners[draw].request.id for draw in draws.tolist()))


def mixed(table: Table, chunks: list[Chunk]) -> Pass:
    """The table's rows, and behind them the tokens of `chunks`."""
    rows = table.work()
    n, lengths = len(table), [chunk.stop - chunk.start for chunk in chunks]
    pages = np.zeros((n + len(chunks), table.pages.shape[1]), np.int32)
    pages[:n] = rows.pages
    for place, chunk in enumerate(chunks, start=n):
        pages[place, : len(chunk.fill.pages)] = chunk.fill.pages
    numbers = np.repeat(np.arange(n, n + len(chunks), dtype=np.int32), lengths)
    return Pass(
        tokens=np.concatenate([rows.tokens, *(chunk.fill.text[chunk.start : chunk.stop] for chunk in chunks)]),
        positions=np.concatenate(
            [rows.positions, *(np.arange(chunk.start, chunk.stop, dtype=np.int32) for chunk in chunks)]
        ),
        sequence=np.concatenate([rows.sequence, numbers]),
        pages=pages,
        draws=_draws(rows.draws, n, chunks),
    )


def _draws(rows: Draws, tokens: int, chunks: list[Chunk]) -> Draws:
    at: list[NDArray[np.int32]] = [rows.at]
    given: list[NDArray[np.int32]] = [rows.given]
    uniform: list[float] = []
    owners: list[Sample] = []
    for chunk in chunks:
        fill, count = chunk.fill, chunk.draws
        if fill.given is None:
            at.append(np.full(count, tokens + chunk.stop - chunk.start - 1, np.int32))
            given.append(np.full(count, DRAW, np.int32))
            uniform.extend(float(sample.stream(len(sample.tokens) + 1)[-1]) for sample in chunk.drawing)
        else:
            first = tokens + chunk.first_draw - chunk.start
            at.append(np.arange(first, first + count, dtype=np.int32))
            begin = chunk.first_draw - fill.first_draw
            given.append(fill.given[begin : begin + count])
            uniform.extend([0.0] * count)
        owners.append(fill.members[0])
        tokens += chunk.stop - chunk.start
    asked, counts = [one.request.sampling for one in owners], [chunk.draws for chunk in chunks]  # one request a text
    return Draws(
        at=np.concatenate(at),
        given=np.concatenate(given),
        uniform=np.concatenate([rows.uniform, np.array(uniform, np.float64)]),
        temperature=_with(rows.temperature, [one.temperature for one in asked], counts),
        top_k=_with(rows.top_k, [one.top_k for one in asked], counts),
        top_p=_with(rows.top_p, [one.top_p for one in asked], counts),
        min_p=_with(rows.min_p, [one.min_p for one in asked], counts),
        greedy=_with(rows.greedy, [one.greedy for one in asked], counts),
    )


def _with(rows: NDArray[_Number], values: list[float], counts: list[int]) -> NDArray[_Number]:
    """The rows' settings, and behind them each of `values` as often as its text draws."""
    return np.concatenate([rows, np.repeat(np.array(values, rows.dtype), counts)])
