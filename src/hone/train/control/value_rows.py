"""Rows of the value-based family: transitions from a memory, with what the slow copy says of what was seen next.

Belongs here: the rows, and the memory that hands them out and hears how wrong the policy was on them. The slow copy
stands still during a turn of the loop, so it is asked once, about all transitions of the turn.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.core.random import generator
from hone.core.state import State
from hone.credit.returns import one_step
from hone.models.control.q_networks import DeepValues
from hone.objectives.terms import Terms
from hone.replay.priority import Priorities, Prioritised
from hone.replay.ring import Ring
from hone.replay.steps import Steps
from hone.train.control.rows import Columns


@dataclass(frozen=True, kw_only=True)
class ValueRows(Columns):
    """Transitions from a memory. The weight holds importance weights; `weighted` divides it by the number of rows."""

    seen: Tensor
    chosen: Tensor
    """`[n]` as the network numbers actions."""
    reward: Tensor
    """`[n]` of all steps that the transition covers, discounted."""
    discount: Tensor
    """`[n]` on the worth of `after`; 0 where the world ended."""
    after: Tensor
    """`[n, *observation]` what was seen next."""
    slow: Tensor
    """`[n, choices, size]` what the slow copy says of `after`."""
    place: Tensor
    """`[n]` among the transitions that the memory handed out."""
    noise: Tensor
    """`[n, 2, noise]` numbers of this update's two draws of the weights, the same in every row; noise is 0 without."""

    def take(self, rows: NDArray[np.int64]) -> Self:
        count = len(rows)
        first = int(rows[0]) if count else 0
        if count and rows[-1] - first == count - 1 and bool((rows[1:] - rows[:-1] == 1).all()):  # a view, no copy
            return type(self)(**{name: column[first : first + count] for name, column in vars(self).items()})
        index = torch.from_numpy(rows).to(self.weight.device)
        return type(self)(**{name: column.index_select(0, index) for name, column in vars(self).items()})

    def weighted(self) -> Self:
        return replace(self, weight=self.weight / len(self))


class Recollection:
    """A memory of transitions, or of steps that make them; what it last handed out, and how wrong the policy was on
    that: priorities are handed back once all of it was heard of."""

    def __init__(self, capacity: int, *, steps: int, discount: float, priorities: Priorities | None) -> None:
        """`steps` > 1: transitions cover so many of them. Without `priorities` all are as likely."""
        self.kept = Ring(capacity) if steps == 1 else Steps(capacity, length=steps, discount=discount)
        self.prioritised = None if priorities is None else Prioritised(self.kept, priorities)
        self.discount = discount
        self._handed: Episodes | None = None
        self._surprise = np.zeros(0, np.float32)
        self._heard = 0

    def __len__(self) -> int:
        return len(self.kept)

    def add(self, episodes: Episodes) -> object:
        return self._memory.add(episodes)

    def sample(self, count: int, draws: np.random.Generator) -> Episodes:
        self._handed = self._memory.sample(count, draws)
        self._surprise, self._heard = np.zeros(count, np.float32), 0
        return self._handed

    def credit(self, episodes: Episodes, values: Values) -> Credits:
        """Rewards and discounts of what was handed out last; other transitions cover one step."""
        if isinstance(self.kept, Steps) and episodes is self._handed:
            return self.kept.credit(episodes, values)
        return one_step(episodes, values, discount=self.discount)

    def importance(self, episodes: Episodes) -> NDArray[np.float32]:
        """`[n]` weights of what was handed out last; of other transitions 1."""
        if self.prioritised is not None and episodes is self._handed:
            return self.prioritised.drawn.weight
        return np.ones(len(episodes), np.float32)

    def hear(self, rows: ValueRows, terms: Terms) -> None:
        """How wrong the policy was on these rows: the absolute error of a value, the KL divergence of a distribution,
        else the loss."""
        if self.prioritised is None:
            return
        told = terms.metrics
        wrong = next((told[name] for name in ("value/error_abs", "value/kl_nats") if name in told), terms.loss)
        self._surprise[rows.place.cpu().numpy()] = wrong.detach().cpu().numpy()
        self._heard += len(rows.place)
        if self._heard == len(self._surprise):
            self.prioritised.learn(self._surprise)
            self._heard = 0

    def state(self) -> State:
        return self._memory.state()

    def restore(self, state: State) -> None:
        self._memory.restore(state)
        self._handed = None

    @property
    def _memory(self) -> Ring | Steps | Prioritised:
        return self.kept if self.prioritised is None else self.prioritised


def priorities_of(exponent: float, correction: float, *, turns: int) -> Priorities:
    """Of a run of so many turns, each of which draws once; in the last the weights undo the bias."""
    return Priorities(exponent=exponent, correction=correction, corrected_after=max(1, turns - 1))


def value_rows(
    policy: DeepValues, recollection: Recollection, seed: int, transitions: Episodes, credits: Credits, *, turn: int
) -> ValueRows:
    """All rows of a turn, with what the slow copy says of what was seen next."""
    assert credits.discount is not None
    assert transitions.final is not None
    device = str(policy.get_buffer("atoms").device)
    count = len(transitions)

    def tensor(values: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(device)

    after = tensor(transitions.final)
    drawn = None
    if policy.noise_size:
        drawn = tensor(generator(seed, "slow weights", turn).standard_normal(policy.noise_size, "float32"))
    return ValueRows(
        weight=tensor(recollection.importance(transitions)),
        seen=tensor(transitions.observations),
        chosen=policy.number(tensor(transitions.chosen)),
        reward=tensor(credits.advantage),
        discount=tensor(credits.discount),
        after=after,
        slow=policy.slow_outcomes(after, drawn),
        place=torch.arange(count, device=device),
        noise=after.new_zeros((count, 2, 0)),
    )


def shaken(policy: DeepValues, rows: ValueRows, number: int, *, seed: int) -> ValueRows:
    """The rows of an update with the numbers of its draws of the weights."""
    drawn = generator(seed, "weights of an update", number).standard_normal((2, policy.noise_size), "float32")
    noise = torch.from_numpy(drawn).to(rows.weight.device)
    return replace(rows, noise=noise.expand(len(rows), *noise.shape))


def drawn(rows: ValueRows, which: int) -> Tensor | None:
    """`[noise]` numbers of one draw of the weights; None: the network has no noise, or acts by its means."""
    return rows.noise[0, which] if rows.noise.shape[2] else None


def of_choice(outcomes: Tensor, number: Tensor) -> Tensor:
    """`[n, choices, size]` at the choices `[n]` -> `[n, size]`."""
    index = number[:, None, None].expand(-1, 1, outcomes.shape[2])
    return outcomes.gather(1, index).squeeze(1)


Choice: TypeAlias = Callable[[DeepValues, ValueRows], Tensor]
"""`[n]` who chooses among what may follow."""


def best_by_slow(policy: DeepValues, rows: ValueRows) -> Tensor:
    """`[n]` the choice that the slow copy thinks best of what was seen next."""
    return policy.table(rows.slow).argmax(dim=1)


@torch.no_grad()
def best_by_now(policy: DeepValues, rows: ValueRows) -> Tensor:
    """`[n]` the choice that the values of now think best of what was seen next (double Q-learning)."""
    return policy.table(policy.outcomes(rows.after, drawn(rows, 1))).argmax(dim=1)
