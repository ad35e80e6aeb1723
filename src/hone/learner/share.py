"""What a learner knows about other ranks: its share of a batch, while all ranks carry out the same update.

Outside of such an update there is no share, and a learner computes alone: an evaluation in the driver must not wait for
processes that were never asked.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hone.core.ragged import Ints
from hone.core.reduction import Reduction
from hone.learner.cut import cut
from hone.learner.micro_batches import split_by_token_budget

Answers: TypeAlias = list[NDArray[np.generic]]
"""Columns of answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShare:
    """Share of one rank in every batch, all of whose rows each rank holds."""

    reduction: Reduction
    """Statistics over the ranks."""
    ranks: int
    shares: int
    """Shares that a batch is cut into: `ranks`, or the number of virtual ranks."""
    add: Callable[[Tensor], object]
    """Adds the tensors of all ranks, in place."""

    def assigned(self, sizes: Ints, budget_tokens: int) -> list[list[Ints]]:
        """Micro-batches of each rank, in the order of their passes; an empty one is a pass without rows.

        Rank r has the shares r, R + r, 2R + r, ...: one of each run of R neighbours, so that sums over ranks are the
        lower levels of the tree over all shares.
        """
        parts = cut(sizes, self.shares, budget_tokens)
        rounds = range(self.shares // self.ranks)
        passes = range(len(parts[0]))
        return [
            [parts[turn * self.ranks + rank][number] for number in passes for turn in rounds]
            for rank in range(self.ranks)
        ]

    def micro_batches(self, sizes: Ints, budget_tokens: int) -> Iterator[tuple[Ints, bool]]:
        """Micro-batches of this rank, and whether they count: the others are a row that only fills a pass up."""
        for rows in self.assigned(sizes, budget_tokens)[self.reduction.rank]:
            yield (rows, True) if len(rows) else (np.array([int(sizes.argmin())]), False)


_SHARE: Final[ContextVar[BatchShare | None]] = ContextVar("_SHARE", default=None)


def current_share() -> BatchShare | None:
    """The share of this process in the update that all ranks carry out now; None: it computes alone."""
    return _SHARE.get()


@contextmanager
def sharing(share: BatchShare) -> Iterator[None]:
    """Context of work that all ranks carry out together, with the same calls in the same order."""
    token = _SHARE.set(share)
    try:
        yield
    finally:
        _SHARE.reset(token)


def evaluated_pieces(
    sizes: Ints, budget_tokens: int, ask: Callable[[Ints], Answers], places: Callable[[Ints], Ints]
) -> Iterator[tuple[Ints, Answers]]:
    """Answers of `ask` to the rows of `sizes`, in micro-batches: places of the answers, and one array `[n, ...]` each.

    In an update of several ranks each row is asked by one of them, and all of them get every answer.
    """
    share = current_share()
    if share is None or not len(sizes):
        for piece in split_by_token_budget(sizes, budget_tokens):
            yield places(piece), ask(piece)
        return
    own: list[Answers] = []
    for rows, counts in share.micro_batches(sizes, budget_tokens):
        answers = ask(rows)
        own.append(answers if counts else [answer[:0] for answer in answers])
    columns = [share.reduction.gather(np.concatenate(parts)) for parts in zip(*own, strict=True)]
    for rank, pieces in enumerate(share.assigned(sizes, budget_tokens)):
        yield places(np.concatenate(pieces)), [column[rank] for column in columns]
