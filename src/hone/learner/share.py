"""What a learner knows about other ranks: its share of a batch, while all ranks carry out the same update.

Outside of such an update there is no share, and a learner computes alone: an evaluation in the driver must not wait for
processes that were never asked.
"""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hone.core.episodes import Episodes
from hone.core.ragged import Ints
from hone.core.reduction import Reduction
from hone.core.state import State

# -------------------------------------------------------------------------------------------------------- micro batches


UNBOUNDED: Final = 1 << 62
"""Tokens of a micro-batch, where it is as large as the minibatch."""


def split_by_token_budget(sizes: Ints, budget_tokens: int) -> list[Ints]:
    """Split row numbers into pieces of at most `budget_tokens`, grouped by size; a row above the budget is a piece.

    `sizes` `[rows]` tokens. Everything fits: one piece in the given order. No rows: no pieces.
    """
    if not len(sizes):
        return []
    if int(sizes.sum()) <= budget_tokens:
        return [np.arange(len(sizes), dtype=np.int64)]
    order = np.argsort(sizes, kind="stable")
    pieces: list[Ints] = []
    start, filled = 0, 0
    for position, size in enumerate(sizes[order].tolist()):
        if filled and filled + size > budget_tokens:
            pieces.append(order[start:position])
            start, filled = position, 0
        filled += size
    return [*pieces, order[start:]]


# ------------------------------------------------------------------------------------------------------------------ cut


ATTENTION_TOKENS: Final = 4096
"""Length at which attention costs a row as much as the rest of a layer."""


def _cut(sizes: Ints, ranks: int, budget_tokens: int) -> list[list[Ints]]:
    """Micro-batches of each rank as row numbers: every row stands in exactly one, and all ranks have equally many.

    `sizes` `[rows]` tokens. The longest rows are placed first, each on the rank with the least work so far (Graham,
    1969), where a row of s tokens costs s (1 + s / 4096). A micro-batch has at most `budget_tokens`, or one row. A rank
    with too few of them divides its own further; an empty one stands where it has no rows left to divide.
    """
    rows_of = _places(sizes, ranks)
    pieces_of = [[own[piece] for piece in split_by_token_budget(sizes[own], budget_tokens)] for own in rows_of]
    most = max(map(len, pieces_of))
    return [_divided(pieces, sizes, most) for pieces in pieces_of]


def _places(sizes: Ints, ranks: int) -> list[Ints]:
    """Rows of each rank, in the order of the batch."""
    if not len(sizes) or (sizes == sizes[0]).all():
        return [np.arange(rank, len(sizes), ranks, dtype=np.int64) for rank in range(ranks)]
    costs = (sizes * (ATTENTION_TOKENS + sizes)).tolist()
    loads = [(0, rank) for rank in range(ranks)]
    rank_of = np.zeros(len(sizes), np.int64)
    for row in np.argsort(-sizes, kind="stable").tolist():
        load, rank = loads[0]
        heapq.heapreplace(loads, (load + costs[row], rank))
        rank_of[row] = rank
    return [np.flatnonzero(rank_of == rank) for rank in range(ranks)]


def _divided(pieces: list[Ints], sizes: Ints, count: int) -> list[Ints]:
    """`pieces` as `count` micro-batches: the largest one with several rows is halved as long as there are too few."""
    while len(pieces) < count:
        several = [number for number, piece in enumerate(pieces) if len(piece) > 1]
        if not several:
            return [*pieces, *[np.zeros(0, np.int64)] * (count - len(pieces))]
        largest = max(several, key=lambda number: int(sizes[pieces[number]].sum()))
        piece = pieces[largest]
        pieces = [*pieces[:largest], piece[0::2], piece[1::2], *pieces[largest + 1 :]]
    return pieces


# ---------------------------------------------------------------------------------------------------------------- share


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
        parts = _cut(sizes, self.shares, budget_tokens)
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


# ------------------------------------------------------------------------------------------------------ parameter store


class ParameterStore(Protocol):
    """Parameters of a network, the part of them that this process steps, and the gradient of that part.

    Loss weights are fixed over the whole batch, so gradients of several ranks are summed, not averaged.
    """

    @property
    def parameters(self) -> Sequence[nn.Parameter]:
        """Trained parameters of the network, for forward and backward passes."""
        ...

    @property
    def owned(self) -> Sequence[Tensor]:
        """Tensors that this process steps, in place."""
        ...

    @property
    def gradients(self) -> Sequence[Tensor]:
        """Gradient of each tensor of `owned`, summed over all ranks."""
        ...

    def collect_gradients(self) -> AbstractContextManager[None]:
        """Context of the backward passes of one step; afterwards `gradients` is the sum of theirs, and no other."""
        ...

    def reduce(self, share: BatchShare) -> None:
        """Sum `gradients` over the ranks of `share`, unless the backward passes did."""
        ...

    def gradient_norm(self) -> Tensor:
        """L2 norm `[]` of the whole gradient, the same on all ranks."""
        ...

    def dot(self, one: Tensor, other: Tensor) -> Tensor:
        """Product `[]` of two vectors, each shaped like all of `owned` one after another, over the whole network."""
        ...

    @property
    def step_multiple(self) -> int:
        """Elements of a tensor, or more: an optimizer's kernel is given multiples of it."""
        ...

    @property
    def shapes(self) -> Mapping[str, torch.Size]:
        """Shape of each whole parameter by name, in the order of the network."""
        ...

    def by_name(self, values: Sequence[Tensor]) -> dict[str, Tensor]:
        """Values shaped like `owned` (moments) -> those of whole parameters by name, in the order of the network. All
        ranks call it; those that save nothing get empty values."""
        ...

    def shards(self, named: Mapping[str, Tensor]) -> list[Tensor]:
        """Inverse of `by_name`: the part of this process, shaped like `owned`."""
        ...


# --------------------------------------------------------------------------------------------------------- ranked build
# The build of a job whose learner is spread over ranks: which networks are cut, and which parameters are stepped.
#
# Without such a build every network is its own, and one process holds all of it.


P = TypeVar("P", bound=nn.Module)
Question: TypeAlias = Callable[[Episodes], NDArray[Any]]
"""Episodes -> a column of numbers, from networks."""


class RankedBuild(Protocol[P]):
    """Ranks that a job is being built for, and the kind of network that is cut over them."""

    def trained(self, policy: P) -> P:
        """The policy that is stepped in place of `policy`: its twin with parameters cut over the ranks."""
        ...

    def share_out(self, network: P) -> P:
        """`network` itself, cut over the ranks in place: no rank has it whole, and all of them ask it together."""
        ...

    def parameter_store(self, network: nn.Module) -> ParameterStore | None:
        """The parameters of a network that was cut; None for any other, which every rank holds whole."""
        ...

    def question(self, ask: Question) -> Question:
        """`ask` of networks that were cut, for the driver: all ranks answer it together."""
        ...


_BUILD: Final[ContextVar[RankedBuild[Any] | None]] = ContextVar("_BUILD", default=None)


def trained_policy(policy: P) -> P:
    """The policy that a learner steps: `policy` itself, or its sharded twin in a build for several ranks."""
    build = _BUILD.get()
    return policy if build is None else build.trained(policy)


def shared_network(network: P) -> P:
    """A network beside the policy (a critic, a frozen reference): cut over the ranks in a build for several of them."""
    build = _BUILD.get()
    return network if build is None else build.share_out(network)


def shared_question(ask: Question) -> Question:
    """A question to networks of `shared_network`, which the driver may ask outside of an update."""
    build = _BUILD.get()
    return ask if build is None else build.question(ask)


def sharded_store(network: nn.Module) -> ParameterStore | None:
    """The parameter store of a network that is cut over ranks; None for one that this process holds whole."""
    build = _BUILD.get()
    return None if build is None else build.parameter_store(network)


@contextmanager
def building_for(build: RankedBuild[Any]) -> Iterator[None]:
    """Context in which a job is built for the ranks of `build`."""
    token = _BUILD.set(build)
    try:
        yield
    finally:
        _BUILD.reset(token)


# ---------------------------------------------------------------------------------------------------- shared statistics


class SharedStatistics(nn.Module, ABC):
    """A policy into which its source and its credit put statistics; a language model has none.

    Ranks take them up from rank 0 before an update: the buffers of the module, and `statistics`.
    """

    @abstractmethod
    def statistics(self) -> State:
        """What the source has put into the policy, such as the mean and scale of observations; {} if nothing."""

    @abstractmethod
    def take_statistics(self, given: State) -> None:
        """Take up another policy's `statistics()`."""
