"""Finite Markov decision processes as sparse tables: the outcomes of all state-action pairs in arrays.

Belongs here: the table, its validation, and basic operations. Dense arrays are made on demand.
"""

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.core.episodes import MAX_ABS_REWARD
from hone.core.errors import DataError, ErrorCollector
from hone.core.ragged import Ints, owner_of

Floats: TypeAlias = NDArray[np.float64]
Flags: TypeAlias = NDArray[np.bool_]
TabularPolicy: TypeAlias = NDArray[np.integer] | NDArray[np.floating]
"""Action of each state `[S]`, or probabilities `[S, A]`."""

_SUM_TOLERANCE = 1e-9
"""Largest accepted deviation of a row's probabilities from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FiniteMdp:
    """Markov decision process with S states, A actions and K outcomes. Pair (s, a) has the number s * A + a.

    A pair without outcomes is an unavailable action; a state without outcomes is terminal with value 0. Termination is
    part of an outcome, as in Gymnasium's tables: if `terminates` is set, `next_state` is ignored.
    """

    states: int
    actions: int
    offsets: Ints
    """Bounds `[S*A+1]` of the outcomes of each pair."""
    next_state: Ints
    """Next state `[K]`."""
    probability: Floats
    """Probability `[K]` given the pair; a row sums to 1."""
    reward: Floats
    """Reward `[K]`."""
    terminates: Flags
    """True if the outcome terminates the episode `[K]`."""
    start_distribution: Floats
    """Probability `[S]` of starting in a state."""
    discount: float
    """Discount factor in (0, 1]."""
    step_limit: int | None = None
    """Steps after which an episode is truncated; None: never. Used by environments and finite horizons only."""

    @property
    def pair_of_outcome(self) -> Ints:
        """Pair of each outcome `[K]`."""
        return owner_of(self.offsets)

    @property
    def available(self) -> Flags:
        """Available actions `[S, A]`."""
        return (np.diff(self.offsets) > 0).reshape(self.states, self.actions)

    @property
    def terminal(self) -> Flags:
        """Terminal states `[S]`: those without actions."""
        return np.logical_not(self.available.any(axis=1))

    @property
    def expected_reward(self) -> Floats:
        """Expected reward of a pair `[S, A]`; 0 for unavailable actions."""
        return self.sum_by_pair(self.probability * self.reward)

    def sum_by_pair(self, outcomes: Floats) -> Floats:
        """Sum over the outcomes `[K]` of each pair -> `[S, A]`."""
        sums = np.bincount(self.pair_of_outcome, weights=outcomes, minlength=self.states * self.actions)
        return sums.astype(np.float64).reshape(self.states, self.actions)

    def backup(self, value: Floats) -> Floats:
        """q(s, a) = sum over outcomes of p * (r + discount * [not terminated] * value(next state)) -> `[S, A]`.

        -inf for unavailable actions.
        """
        beyond = np.where(self.terminates, 0.0, value[self.next_state])
        q = self.sum_by_pair(self.probability * (self.reward + self.discount * beyond))
        return np.where(self.available, q, -np.inf)

    def greedy_values(self, q: Floats) -> Floats:
        """Maximum over actions of q `[S, A]` -> `[S]`; 0 in terminal states."""
        return np.where(self.terminal, 0.0, q.max(axis=1))

    def dense(self) -> tuple[Floats, Floats]:
        """Transition probabilities `[S, A, S]` (the rest to 1 terminates) and expected rewards `[S, A]`."""
        goes_on = ~self.terminates
        cells = self.pair_of_outcome[goes_on] * self.states + self.next_state[goes_on]
        size = self.states * self.actions * self.states
        flat = np.bincount(cells, weights=self.probability[goes_on], minlength=size).astype(np.float64)
        return flat.reshape(self.states, self.actions, self.states), self.expected_reward

    def with_discount(self, discount: float) -> "FiniteMdp":
        """Copy with another discount factor. Raises DataError outside (0, 1]."""
        return _validated_mdp(replace(self, discount=discount))


@dataclass(frozen=True, slots=True, kw_only=True)
class MdpOutcomes:
    """K outcomes in any order, as input of `make_mdp`."""

    state: Ints
    action: Ints
    next_state: Ints
    probability: Floats
    reward: Floats
    terminates: Flags
    """All `[K]`."""


def make_mdp(
    outcomes: MdpOutcomes, *, states: int, actions: int, start: Floats, discount: float, limit: int | None = None
) -> FiniteMdp:
    """Build the table of outcomes; those of probability 0 are left out. Raises DataError with every error."""
    faults = ErrorCollector(DataError)
    for name, column, count in (
        ("state", outcomes.state, states),
        ("action", outcomes.action, actions),
        ("after", outcomes.next_state, states),
    ):
        outside = np.flatnonzero((column < 0) | (column >= count))
        if len(outside):
            faults.add(f"outcome {outside[0]}: {name} is {column[outside[0]]}, expected 0 .. {count - 1}")
    negative = np.flatnonzero(~(outcomes.probability >= 0))
    if len(negative):
        faults.add(f"outcome {negative[0]}: probability is {outcomes.probability[negative[0]]}, expected at least 0")
    faults.raise_if_any()
    kept = np.flatnonzero(outcomes.probability > 0)
    pair = outcomes.state[kept] * actions + outcomes.action[kept]
    order = kept[np.argsort(pair, kind="stable")]
    return _validated_mdp(
        FiniteMdp(
            states=states,
            actions=actions,
            offsets=np.concatenate([[0], np.cumsum(np.bincount(pair, minlength=states * actions))]).astype(np.int64),
            next_state=outcomes.next_state[order],
            probability=outcomes.probability[order].astype(np.float64),
            reward=outcomes.reward[order].astype(np.float64),
            terminates=outcomes.terminates[order],
            start_distribution=start.astype(np.float64),
            discount=discount,
            step_limit=limit,
        )
    )


def _validated_mdp(mdp: FiniteMdp) -> FiniteMdp:
    """Check and return `mdp`. Raises DataError with every invalid number."""
    faults = ErrorCollector(DataError)
    if not 0 < mdp.discount <= 1:
        faults.add(f"discount is {mdp.discount}, expected more than 0 and at most 1")
    if mdp.step_limit is not None and mdp.step_limit < 1:
        faults.add(f"limit is {mdp.step_limit} steps, expected at least 1")
    if (
        mdp.start_distribution.shape != (mdp.states,)
        or not (mdp.start_distribution >= 0).all()
        or abs(mdp.start_distribution.sum() - 1) > _SUM_TOLERANCE
    ):
        faults.add(
            f"start must be {mdp.states} probabilities that add up to 1; they add up to {mdp.start_distribution.sum()}"
        )
    elif (lost := np.flatnonzero((mdp.start_distribution > 0) & mdp.terminal)).size:
        faults.add(f"state {lost[0]} is a start and has no action")
    sums = mdp.sum_by_pair(mdp.probability)
    wrong = np.argwhere(mdp.available & (np.abs(sums - 1) > _SUM_TOLERANCE))
    if len(wrong):
        state, action = wrong[0]
        faults.add(f"state {state}, action {action}: probabilities add up to {sums[state, action]:.12g}, expected 1")
    if not np.isfinite(mdp.reward).all():
        faults.add(f"outcome {np.flatnonzero(~np.isfinite(mdp.reward))[0]}: the reward is not finite")
    elif (large := np.flatnonzero(np.abs(mdp.reward) > MAX_ABS_REWARD)).size:
        faults.add(
            f"outcome {large[0]}: the reward is {mdp.reward[large[0]]:g}, at most {MAX_ABS_REWARD:g} is possible"
        )
    stuck = np.flatnonzero(~mdp.terminates & mdp.terminal[mdp.next_state])
    if len(stuck):
        pair = int(mdp.pair_of_outcome[stuck[0]])
        faults.add(
            f"state {pair // mdp.actions}, action {pair % mdp.actions}: leads to state {mdp.next_state[stuck[0]]}, "
            "which has no actions, without terminating"
        )
    faults.raise_if_any()
    return mdp


def policy_probabilities(mdp: FiniteMdp, policy: TabularPolicy) -> Floats:
    """Convert a policy to probabilities `[S, A]`; rows of terminal states are 0.

    Raises DataError for an unavailable action, or probabilities that do not sum to 1.
    """
    legal, terminal = mdp.available, mdp.terminal
    if policy.ndim == 1:
        table = np.zeros((mdp.states, mdp.actions))
        table[np.arange(mdp.states), policy.astype(np.int64)] = 1.0
    else:
        table = policy.astype(np.float64)
    if table.shape != (mdp.states, mdp.actions):
        raise DataError(f"the policy is {list(policy.shape)}, expected [{mdp.states}] or [{mdp.states}, {mdp.actions}]")
    table = np.where(terminal[:, None], 0.0, table)
    faults = ErrorCollector(DataError)
    illegal = np.argwhere((table != 0) & ~legal)
    if len(illegal):
        faults.add(f"the policy takes action {illegal[0][1]} in state {illegal[0][0]}, which is unavailable there")
    wrong = np.flatnonzero(~terminal & (np.abs(table.sum(axis=1) - 1) > _SUM_TOLERANCE))
    if len(wrong) or not (table >= 0).all():
        state = int(wrong[0]) if len(wrong) else int(np.argwhere(~(table >= 0))[0][0])
        faults.add(f"the policy's probabilities in state {state} are {table[state].tolist()}")
    faults.raise_if_any()
    return table
