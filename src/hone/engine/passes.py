"""Passes over the model that read prompts beside the running rows."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hone.engine.samples import Fill, Sample
from hone.engine.table import Table
from hone.engine.work import DRAW, Draws, Pass

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
    samples: list[Sample] = []
    for chunk in chunks:
        fill, count = chunk.fill, chunk.draws
        if fill.given is None:
            at.append(np.full(count, tokens + chunk.stop - chunk.start - 1, np.int32))
            given.append(np.full(count, DRAW, np.int32))
            uniform.extend(float(sample.stream(len(sample.tokens) + 1)[-1]) for sample in chunk.drawing)
            samples.extend(chunk.drawing)
        else:
            first = tokens + chunk.first_draw - chunk.start
            at.append(np.arange(first, first + count, dtype=np.int32))
            begin = chunk.first_draw - fill.first_draw
            given.append(fill.given[begin : begin + count])
            uniform.extend([0.0] * count)
            samples.extend([fill.members[0]] * count)
        tokens += chunk.stop - chunk.start
    settings = [sample.request.sampling for sample in samples]
    return Draws(
        at=np.concatenate(at),
        given=np.concatenate(given),
        uniform=np.concatenate([rows.uniform, np.array(uniform, np.float64)]),
        temperature=np.concatenate([rows.temperature, np.array([one.temperature for one in settings], np.float32)]),
        top_k=np.concatenate([rows.top_k, np.array([one.top_k for one in settings], np.int32)]),
        top_p=np.concatenate([rows.top_p, np.array([one.top_p for one in settings], np.float32)]),
        min_p=np.concatenate([rows.min_p, np.array([one.min_p for one in settings], np.float32)]),
        greedy=np.concatenate([rows.greedy, np.array([one.greedy for one in settings], np.bool_)]),
    )
