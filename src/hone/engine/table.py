"""The running samples: rows 0..n-1 of a few arrays that a runner reads in place; a step costs a few slices."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from hone.engine.samples import Sample
from hone.engine.work import DRAW, Drawn, Draws, Pass

_WIDTH: Final = 64
"""Tokens that a row has room for at first; doubled when one needs more."""


class Table:
    """State of the samples in up to `slots` rows, each of up to `most_pages` pages."""

    def __init__(self, *, slots: int, most_pages: int, page_tokens: int) -> None:
        self.samples: list[Sample] = []
        self._page_tokens = page_tokens
        self.slots = slots
        # Columns of one kind stand in one array, so that a row is written and moved in few strokes.
        self._ints = np.zeros((4, slots), np.int32)
        self._longs = np.zeros((3, slots), np.int64)
        self._reals = np.ones((3, slots), np.float32)
        self._flags = np.zeros((4, slots), np.bool_)
        self.token, self.position, self.page_count, self._top_k = self._ints
        """`token`: drawn last, and not in the pages yet; `position`: where it goes."""
        self.drawn, self.limit, self.order = self._longs
        self._temperature, self._top_p, self._min_p = self._reals
        self.stops, self.stale, self.truncates, self._greedy = self._flags
        self.pages = np.zeros((slots, most_pages), np.int32)
        self._rows = np.arange(slots, dtype=np.int32)
        self._draw = np.full(slots, DRAW, np.int32)
        self._allocate(_WIDTH)

    def __len__(self) -> int:
        return len(self.samples)

    def seat(self, sample: Sample, pages: list[int], text_tokens: int) -> None:
        """Give `sample` the next row. It has drawn at least one token; `pages` hold the `text_tokens` before that."""
        row, count = len(self.samples), len(sample.tokens)
        while count >= self._width:
            self._widen(2 * self._width)
        sampling = sample.request.sampling
        self.samples.append(sample)
        self._ints[:, row] = sample.tokens[-1], text_tokens, len(pages), sampling.top_k
        self._longs[:, row] = count, sampling.max_tokens, sample.order
        self._reals[:, row] = sampling.temperature, sampling.top_p, sampling.min_p
        self._flags[:, row] = bool(sampling.stop), sample.stale, sampling.truncates, sampling.greedy
        self.pages[row, : len(pages)] = pages
        self._tokens[row, :count] = sample.tokens
        self._logp[row, :count] = sample.logp
        need = min(self._width, sampling.max_tokens)
        self._uniform[row, :need] = sample.stream(need)

    def unseat(self, row: int) -> tuple[Sample, list[int]]:
        """Take the sample of `row` out, with what it has drawn; the last row moves into its place."""
        sample, count = self.samples[row], int(self.drawn[row])
        pages = self.pages[row, : self.page_count[row]].tolist()
        sample.tokens = self._tokens[row, :count].copy()
        sample.logp = self._logp[row, :count].copy()
        last = len(self.samples) - 1
        if row != last:
            self.samples[row] = self.samples[last]
            for columns in (self._ints, self._longs, self._reals, self._flags):
                columns[:, row] = columns[:, last]
            for column in (self.pages, self._uniform, self._tokens, self._logp):
                column[row] = column[last]
        self.samples.pop()
        return sample, pages

    def short_of_pages(self) -> NDArray[np.int64]:
        """Rows whose next token has no page to go to."""
        count = len(self.samples)
        return np.flatnonzero(self.position[:count] >= self.page_count[:count] * self._page_tokens)

    def add_page(self, row: int, page: int) -> None:
        self.pages[row, self.page_count[row]] = page
        self.page_count[row] += 1

    def work(self) -> Pass:
        """One token for every row; arrays that stay valid until the table changes."""
        n = len(self.samples)
        rows = self._rows[:n]
        return Pass(
            tokens=self.token[:n],
            positions=self.position[:n],
            sequence=rows,
            pages=self.pages[:n],
            draws=Draws(
                at=rows,
                given=self._draw[:n],
                uniform=self._uniform.reshape(-1)[self._starts[:n] + self.drawn[:n]],
                temperature=self._temperature[:n],
                top_k=self._top_k[:n],
                top_p=self._top_p[:n],
                min_p=self._min_p[:n],
                greedy=self._greedy[:n],
            ),
        )

    def record(self, drawn: Drawn) -> None:
        """Take up what was drawn for rows 0..n-1; `drawn` may hold more."""
        n = len(self.samples)
        at = self._starts[:n] + self.drawn[:n]
        tokens = drawn.token[:n]
        self._tokens.reshape(-1)[at] = tokens
        both = self._logp.reshape(-1, 2)
        both[at, 0] = drawn.logp[:n]
        both[at, 1] = drawn.sampled_logp[:n]
        self.token[:n] = tokens
        self.position[:n] += 1
        self.drawn[:n] += 1
        if drawn.kept is not None:
            for row in np.flatnonzero(self.truncates[:n]).tolist():
                self.samples[row].kept.append(kept_ids(drawn.kept[row]))
        if n and int(self.drawn[:n].max()) >= self._width:
            self._widen(2 * self._width)

    def full(self) -> NDArray[np.bool_]:
        """`[n]` whether each row has drawn as many tokens as it may."""
        n = len(self.samples)
        return self.drawn[:n] >= self.limit[:n]

    def last(self, row: int, count: int) -> NDArray[np.int32]:
        """The last `count` tokens (or all of them) that `row` has drawn."""
        end = int(self.drawn[row])
        return self._tokens[row, max(0, end - count) : end]

    def _widen(self, width: int) -> None:
        tokens, logp = self._tokens, self._logp
        old = tokens.shape[1]
        self._allocate(width)
        self._tokens[:, :old], self._logp[:, :old] = tokens, logp
        for row, sample in enumerate(self.samples):
            self._uniform[row] = sample.stream(width)

    def _allocate(self, width: int) -> None:
        self._width = width
        self._uniform = np.zeros((self.slots, width), np.float64)
        self._tokens = np.zeros((self.slots, width), np.int32)
        self._logp = np.zeros((self.slots, width, 2), np.float32)
        self._starts = np.arange(self.slots, dtype=np.int64) * width


def kept_ids(bits: NDArray[np.uint8]) -> NDArray[np.int32]:
    """`[ceil(vocab / 8)]` little-endian bits -> the ids whose bit is set, ascending."""
    return np.flatnonzero(np.unpackbits(bits, bitorder="little")).astype(np.int32)
