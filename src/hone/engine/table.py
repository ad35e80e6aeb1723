"""The running samples: rows 0..n-1 of a few arrays that a runner reads in place; a step costs a few slices."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from hone.engine.samples import LikeliestRow, SampleState
from hone.engine.work import DRAW, ForwardBatch, SamplerInput, SamplerOutput

_WIDTH: Final = 64
"""Tokens that a row has room for at first; doubled when one needs more."""


class RunningBatch:
    """State of the samples in up to `slots` rows, each of up to `most_pages` pages."""

    def __init__(self, *, slots: int, most_pages: int, page_tokens: int) -> None:
        self.samples: list[SampleState] = []
        self._page_tokens = page_tokens
        self.slots = slots
        # Columns of one kind are in one array, so that a row is written and moved in few operations.
        self._ints = np.zeros((5, slots), np.int32)
        self._longs = np.zeros((3, slots), np.int64)
        self._reals = np.ones((3, slots), np.float32)
        self._flags = np.zeros((4, slots), np.bool_)
        self.last_token, self.position, self.page_count, self._top_k, self._top_logprobs = self._ints
        """`token`: drawn last, and not in the pages yet; `position`: where it goes."""
        self.drawn_tokens, self.max_tokens, self.order = self._longs
        self._temperature, self._top_p, self._min_p = self._reals
        self.stale, self.has_stop_strings, self.truncates, self._greedy = self._flags
        self.pages = np.zeros((slots, most_pages), np.int32)
        self._rows = np.arange(slots, dtype=np.int32)
        self._draw = np.full(slots, DRAW, np.int32)
        self._allocate(_WIDTH)

    def __len__(self) -> int:
        return len(self.samples)

    def insert(self, samples: list[SampleState], pages: list[list[int]], text_tokens: int) -> None:
        """Give the next rows to `samples` of one request. Each has drawn the same number of tokens, at least one; its
        `pages` hold the `text_tokens` before the last."""
        first, count = len(self.samples), len(samples[0].tokens)
        while count >= self._width:
            self._widen(2 * self._width)
        rows, sampling = slice(first, first + len(samples)), samples[0].request.sampling
        self.samples += samples
        self._tokens[rows, :count] = [sample.tokens for sample in samples]
        for row, sample in enumerate(samples, start=first):
            self._logp[:, row, :count] = sample.logp
        self.last_token[rows] = self._tokens[rows, count - 1]
        self._ints[1:, rows] = _column(np.int32, text_tokens, len(pages[0]), sampling.top_k, sampling.top_logprobs)
        self._longs[:2, rows] = _column(np.int64, count, sampling.max_tokens)
        self.order[rows] = [sample.order for sample in samples]
        self._reals[:, rows] = _column(np.float32, sampling.temperature, sampling.top_p, sampling.min_p)
        self._flags[1:, rows] = _column(np.bool_, bool(sampling.stop), sampling.truncates, sampling.greedy)
        self.stale[rows] = [sample.stale for sample in samples]
        self.pages[rows, : len(pages[0])] = pages
        need = min(self._width, sampling.max_tokens)
        self._uniform[rows, :need] = [sample.stream(need) for sample in samples]

    def remove(self, rows: list[int]) -> list[tuple[SampleState, list[int]]]:
        """Remove the samples of `rows`, with their tokens and pages; the last rows move into their places."""
        counts = self.drawn_tokens[rows].tolist()
        tokens, logp = self._tokens[rows, : max(counts)], self._logp[:, rows, : max(counts)]
        pages, held = self.pages[rows].tolist(), self.page_count[rows].tolist()
        out: list[tuple[SampleState, list[int]]] = []
        for place, (row, count) in enumerate(zip(rows, counts, strict=True)):
            sample = self.samples[row]
            sample.tokens, sample.logp = tokens[place, :count], logp[:, place, :count]
            out.append((sample, pages[place][: held[place]]))
        gone, left = set(rows), len(self.samples) - len(rows)
        empty = [row for row in rows if row < left]
        if empty:
            last = [row for row in range(left, len(self.samples)) if row not in gone]
            for columns in (self._ints, self._longs, self._reals, self._flags, self._logp):
                columns[:, empty] = columns[:, last]
            for column in (self.pages, self._uniform, self._tokens):
                column[empty] = column[last]
            for row, other in zip(empty, last, strict=True):
                self.samples[row] = self.samples[other]
        del self.samples[left:]
        return out

    def short_of_pages(self) -> NDArray[np.int64]:
        """Rows whose next token has no page."""
        count = len(self.samples)
        return np.flatnonzero(self.position[:count] >= self.page_count[:count] * self._page_tokens)

    def add_page(self, row: int, page: int) -> None:
        """Append a page to a row."""
        self.pages[row, self.page_count[row]] = page
        self.page_count[row] += 1

    def forward_batch(self) -> ForwardBatch:
        """One token for every row; arrays that stay valid until the table changes."""
        n = len(self.samples)
        rows, top = self._rows[:n], self._top_logprobs[:n]
        return ForwardBatch(
            tokens=self.last_token[:n],
            positions=self.position[:n],
            sequence=rows,
            pages=self.pages[:n],
            draws=SamplerInput(
                token_index=rows,
                forced_token=self._draw[:n],
                uniform=self._uniform.reshape(-1)[self._starts[:n] + self.drawn_tokens[:n]],
                temperature=self._temperature[:n],
                top_k=self._top_k[:n],
                top_p=self._top_p[:n],
                min_p=self._min_p[:n],
                greedy=self._greedy[:n],
                top_logprobs=top if top.any() else None,
            ),
        )

    def record(self, drawn: SamplerOutput) -> None:
        """Record the tokens sampled for rows 0..n-1; `drawn` may hold more."""
        n = len(self.samples)
        at = self._starts[:n] + self.drawn_tokens[:n]
        tokens = drawn.token[:n]
        self._tokens.reshape(-1)[at] = tokens
        both = self._logp.reshape(2, -1)
        both[0, at] = drawn.logp[:n]
        both[1, at] = drawn.sampled_logp[:n]
        self.last_token[:n] = tokens
        self.position[:n] += 1
        self.drawn_tokens[:n] += 1
        if drawn.sampling_mask_bits is not None:
            for row in np.flatnonzero(self.truncates[:n]).tolist():
                self.samples[row].sampling_mask.append(mask_token_ids(drawn.sampling_mask_bits[row]))
        if drawn.top_tokens is not None:
            for row in np.flatnonzero(self._top_logprobs[:n]).tolist():
                self.samples[row].likeliest.append(likeliest_row(drawn, row, int(self._top_logprobs[row])))
        if n and int(self.drawn_tokens[:n].max()) >= self._width:
            self._widen(2 * self._width)

    def at_token_limit(self) -> NDArray[np.bool_]:
        """`[n]` whether each row has drawn as many tokens as it may."""
        n = len(self.samples)
        return self.drawn_tokens[:n] >= self.max_tokens[:n]

    def last_tokens(self, row: int, count: int) -> NDArray[np.int32]:
        """The last `count` tokens (or all of them) that `row` has drawn."""
        end = int(self.drawn_tokens[row])
        return self._tokens[row, max(0, end - count) : end]

    def _widen(self, width: int) -> None:
        tokens, logp = self._tokens, self._logp
        old = tokens.shape[1]
        self._allocate(width)
        self._tokens[:, :old], self._logp[:, :, :old] = tokens, logp
        for row, sample in enumerate(self.samples):
            self._uniform[row] = sample.stream(width)

    def _allocate(self, width: int) -> None:
        self._width = width
        self._uniform = np.zeros((self.slots, width), np.float64)
        self._tokens = np.zeros((self.slots, width), np.int32)
        self._logp = np.zeros((2, self.slots, width), np.float32)
        self._starts = np.arange(self.slots, dtype=np.int64) * width


def _column(kind: type[np.generic], *values: float) -> NDArray[np.generic]:
    """`[k, 1]`: one value for all rows of each of k columns."""
    return np.array(values, kind)[:, None]


def likeliest_row(drawn: SamplerOutput, row: int, count: int) -> LikeliestRow:
    """The `count` likeliest tokens that a pass reported for one of its draws; fewer where the vocabulary ends."""
    assert drawn.top_tokens is not None and drawn.top_logp is not None
    return drawn.top_tokens[row, :count].copy(), drawn.top_logp[row, :count].copy()


def mask_token_ids(bits: NDArray[np.uint8]) -> NDArray[np.int32]:
    """`[ceil(vocab / 8)]` little-endian bits -> the ids whose bit is set, ascending."""
    return np.flatnonzero(np.unpackbits(bits, bitorder="little")).astype(np.int32)
