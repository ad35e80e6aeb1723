"""Rows of single decisions, as control networks read them: on-policy steps and transitions."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.core.ragged import Ints, ranges
from hone.core.reduction import ONE_PROCESS, Reduction, total


@dataclass(frozen=True, kw_only=True)
class DecisionRows:
    """Rows of single decisions; every field is a tensor with one entry per decision."""

    weight: Tensor
    """`[n]` in the loss; the same for all of them."""

    def __len__(self) -> int:
        return len(self.weight)

    def sizes(self) -> NDArray[np.int64]:
        return np.broadcast_to(np.int64(1), len(self))

    def take(self, rows: NDArray[np.int64]) -> Self:
        pick = row_picker(rows, self.weight.device)
        columns = {name: pick(column) for name, column in self.columns().items() if name != "weight"}
        return type(self)(weight=self.weight[:1].expand(len(rows)), **columns)

    def columns(self) -> dict[str, Tensor]:
        """The columns that are there, by name."""
        return {name: column for name, column in vars(self).items() if column is not None}

    def weighted(self, reduction: Reduction = ONE_PROCESS) -> Self:
        """Every decision counts the same."""
        share = self.weight.new_full((1,), 1.0 / total(len(self), reduction)).expand(len(self))
        return type(self)(**{**vars(self), "weight": share})

    def tensors(self) -> Self:
        return self


def row_picker(rows: NDArray[np.int64], device: torch.device) -> Callable[[Tensor], Tensor]:
    """Function that gathers `rows` of a column; where they are consecutive, it returns a view."""
    count = len(rows)
    if count and int(rows[-1]) - int(rows[0]) == count - 1 and bool((rows[1:] - rows[:-1] == 1).all()):
        return partial(torch.narrow, dim=0, start=int(rows[0]), length=count)
    return partial(torch.index_select, dim=0, index=torch.from_numpy(rows).to(device))


C = TypeVar("C", bound=DecisionRows)


def split_decision_rows(
    rows: C, order: NDArray[np.int64], minibatches: int, reduction: Reduction = ONE_PROCESS
) -> Iterator[C]:
    """`split_by_rows` for columns: each column is gathered once for all `count` minibatches, which are views of it."""
    size = -(-len(order) // minibatches)
    gathered = rows.take(order)
    parts = {name: column.split(size) for name, column in gathered.columns().items() if name != "weight"}
    for number in range(-(-len(order) // size)):
        columns = {name: part[number] for name, part in parts.items()}
        held = min(size, len(order) - number * size)
        share = rows.weight.new_full((1,), 1.0 / total(held, reduction))
        yield type(rows)(weight=share.expand(held), **columns)


@dataclass(frozen=True, kw_only=True)
class StepRows(DecisionRows):
    """Decisions with what they are credited with: on-policy control, imitation."""

    seen: Tensor
    chosen: Tensor
    logp: Tensor
    """`[n]` nats, under the behaviour policy."""
    advantage: Tensor
    target: Tensor
    """`[n]` for the critic; 0 where nobody asked for one."""
    mask: Tensor | None = None
    """`[n, M]` legal choices; None: all."""


@dataclass(frozen=True, kw_only=True)
class SequenceRows(StepRows):
    """Decisions of sequences, one sequence after another, each with the state of a memory before it. A row is a whole
    sequence; every decision counts the same, and nothing is padded."""

    lengths: Ints
    """`[S]` decisions of each sequence."""
    state: Tensor
    """`[S, H]`"""

    def __len__(self) -> int:
        return len(self.lengths)

    def sizes(self) -> Ints:
        return self.lengths

    def take(self, rows: Ints) -> Self:
        starts = np.cumsum(self.lengths) - self.lengths
        pick = row_picker(ranges(starts[rows], self.lengths[rows]), self.weight.device)
        columns = {name: pick(one) for name, one in self.columns().items() if name not in {"lengths", "state"}}
        own = row_picker(rows, self.weight.device)
        return type(self)(**columns, lengths=self.lengths[rows], state=own(self.state))

    def weighted(self, reduction: Reduction = ONE_PROCESS) -> Self:
        decisions = len(self.weight)
        share = self.weight.new_full((1,), 1.0 / total(decisions, reduction)).expand(decisions)
        return replace(self, weight=share)


@dataclass(frozen=True, kw_only=True)
class TransitionRows(DecisionRows):
    """Decisions with what was seen next: learning from replay and logs."""

    seen: Tensor
    chosen: Tensor
    reward: Tensor
    discount: Tensor
    """`[n]` on the worth of `after`; 0 where the world ended."""
    next_seen: Tensor
    """`[n, *observation]` what was seen next."""
    noise: Tensor
    """`[n, ...]` random numbers of this update; they travel with the row, so that no split can change them."""
    mask: Tensor | None = None
    """`[n, M]` legal choices in `seen`; None: all."""
    next_mask: Tensor | None = None
    """`[n, M]` legal choices in `next_seen`; None: all."""


def step_rows(episodes: Episodes, credits: Credits, *, device: str = "cpu") -> StepRows:
    """On-policy rows; the weight is set by the learner."""
    advantage = as_tensor(credits.advantage, device)
    return StepRows(
        weight=torch.ones_like(advantage),
        seen=as_tensor(episodes.observations, device),
        chosen=as_tensor(episodes.chosen, device),
        logp=as_tensor(episodes.logp, device),
        advantage=advantage,
        target=torch.zeros_like(advantage) if credits.target is None else as_tensor(credits.target, device),
        mask=None if episodes.mask is None else as_tensor(episodes.mask, device),
    )


def transition_rows(
    transitions: Episodes, credits: Credits, noise: NDArray[np.float32], *, device: str = "cpu"
) -> TransitionRows:
    """Rows of single-decision episodes; `credits` from `one_step_target`."""
    assert credits.discount is not None
    assert transitions.final is not None
    reward = as_tensor(credits.advantage, device)
    return TransitionRows(
        weight=torch.ones_like(reward),
        seen=as_tensor(transitions.observations, device),
        chosen=as_tensor(transitions.chosen, device),
        reward=reward,
        discount=as_tensor(credits.discount, device),
        next_seen=as_tensor(transitions.final, device),
        noise=as_tensor(noise, device),
        mask=None if transitions.mask is None else as_tensor(transitions.mask, device),
        next_mask=None if transitions.final_mask is None else as_tensor(transitions.final_mask, device),
    )


def as_tensor(values: NDArray[np.generic], device: str) -> Tensor:
    """The array on a device."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)
