"""What is true of a finite Markov decision process: values, best policies, visits. Exact up to rounding.

Belongs here: dynamic programming. With a discount of 1 the worth is the total reward: defined where a policy ends, or
is paid nothing for ever after. Best policies are then right if no reward is negative, or if whoever never ends loses
for ever (Bertsekas & Tsitsiklis, 1991); other tables can have worths that no policy attains.
"""

from dataclasses import dataclass

import numpy as np

from hone.core.errors import DataError
from hone.core.ragged import Ints
from hone.envs.finite.linear import solve
from hone.envs.finite.model import Finite, Flags, Floats, Policy, probabilities

STRICTLY = 1e-10
"""An action replaces another only if it is better by this much, relative to the largest value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """A best policy and what it is worth."""

    value: Floats
    """`[S]`."""
    q: Floats
    """`[S, A]` of each action, and the best from then on; -inf where it cannot be taken."""
    policy: Ints
    """`[S]` the first of the best actions; 0 in terminal states."""
    iterations: int
    bound: float
    """No state's value is further from the truth than this (policy iteration: the Bellman residual that is left)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """The best that can be done in so many steps."""

    value: Floats
    """`[S]` with all steps to go."""
    policy: Ints
    """`[H, S]` what to do after t steps."""


def evaluate(mdp: Finite, policy: Policy) -> Floats:
    """v = r_pi + discount * P_pi v, by one linear solve -> `[S]`.

    Raises DataError where the total is not defined: discount 1, and a state from which the policy never ends and is
    paid all the same.
    """
    weight = _weights(mdp, policy)
    paid = mdp.of_pairs(weight * mdp.reward).sum(axis=1)
    known = _worthless(mdp, weight, (mdp.of_pairs(weight * np.abs(mdp.reward)) != 0).any(axis=1))
    return solve(_edges(mdp, weight), paid, known)


def occupancy(mdp: Finite, policy: Policy) -> Floats:
    """d(s, a) = sum over t of discount^t P(s_t = s, a_t = a), episodes begun at `start` -> `[S, A]`.

    Sums to 1 / (1 - discount) if nothing ends; `(d * paid).sum()` is the policy's worth. Raises DataError for discount
    1 and a policy that may never end.
    """
    weight = _weights(mdp, policy)
    source, target, rate = _edges(mdp, weight)
    visits = solve((target, source, rate), mdp.start, np.zeros(mdp.states, np.bool_) | _unseen(mdp, weight))
    return visits[:, None] * probabilities(mdp, policy)


def value_iteration(mdp: Finite, *, tolerance: float = 1e-10, most: int = 1_000_000) -> Solution:
    """Apply the Bellman operator until no state is further than `tolerance` from the truth.

    ||v_k - v*|| <= discount / (1 - discount) * ||v_k - v_{k-1}|| (Puterman, 1994, theorem 6.3.1). Raises DataError for
    discount 1, where nothing bounds the distance, and when `most` iterations were not enough.
    """
    if mdp.discount == 1:
        raise DataError("value iteration has no stopping bound with discount 1: use policy_iteration, or a horizon")
    value, factor, bound = np.zeros(mdp.states), mdp.discount / (1 - mdp.discount), np.inf
    for iteration in range(1, most + 1):
        after = mdp.best(mdp.backup(value))
        bound = factor * float(np.abs(after - value).max())
        value = after
        if bound <= tolerance:
            q = mdp.backup(value)
            return Solution(value=value, q=q, policy=q.argmax(axis=1), iterations=iteration, bound=bound)
    raise DataError(f"value iteration: {most} iterations left a bound of {bound:.3g}, more than {tolerance:.3g}")


def policy_iteration(mdp: Finite) -> Solution:
    """Evaluate exactly, improve greedily, until nothing improves (Howard, 1960).

    Begins with a policy that makes for an end, so that with discount 1 everything on the way is defined. Raises
    DataError where the best total is not finite.
    """
    policy = ending_policy(mdp)
    rows = np.arange(mdp.states)
    for iteration in range(1, 10 * mdp.states * mdp.actions + 2):
        value = evaluate(mdp, policy)
        q = mdp.backup(value)
        held = np.where(mdp.terminal, 0.0, q[rows, policy])
        better = mdp.best(q) > held + STRICTLY * max(1.0, float(np.abs(value).max()))
        if not better.any():
            best = np.isclose(q, mdp.best(q)[:, None], rtol=1e-12, atol=STRICTLY).argmax(axis=1)
            if mdp.discount == 1:
                best = policy  # among equals, the first may be one that never ends
            return Solution(
                value=value, q=q, policy=best, iterations=iteration, bound=float(np.abs(mdp.best(q) - value).max())
            )
        policy = np.where(better, q.argmax(axis=1), policy)
    raise DataError("policy iteration went in circles: the rewards are too far apart for float64")


def bellman_residual(mdp: Finite, value: Floats) -> Floats:
    """max over a of q(s, a) - v(s) -> `[S]`; 0 everywhere for the best value alone (discount below 1)."""
    return mdp.best(mdp.backup(value)) - value


def backward(mdp: Finite, horizon: int) -> Horizon:
    """Backward induction: the best policy when `horizon` steps are left; it may look at the clock."""
    value, policy = np.zeros(mdp.states), np.zeros((horizon, mdp.states), dtype=np.int64)
    for step in reversed(range(horizon)):
        q = mdp.backup(value)
        value, policy[step] = mdp.best(q), q.argmax(axis=1)
    return Horizon(value=value, policy=policy)


def within(mdp: Finite, policy: Policy, horizon: int) -> Floats:
    """What a policy that does not look at the clock is paid in `horizon` steps -> `[S]`."""
    table, value = probabilities(mdp, policy), np.zeros(mdp.states)
    for _ in range(horizon):
        value = (table * np.where(table > 0, mdp.backup(value), 0.0)).sum(axis=1)
    return value


def worth(mdp: Finite, value: Floats) -> float:
    """Mean of a value `[S]` over where episodes begin."""
    return float(mdp.start @ value)


def can_end(mdp: Finite, taken: Flags | None = None) -> Flags:
    """`[S]` from where an end can be reached, by the outcomes `taken` `[K]` (None: any)."""
    taken = np.ones(len(mdp.after), dtype=np.bool_) if taken is None else taken
    state = mdp.owner // mdp.actions
    reached = mdp.terminal.copy()
    reached[state[taken & mdp.ends]] = True
    source, target = state[taken & ~mdp.ends], mdp.after[taken & ~mdp.ends]
    while True:
        more = source[reached[target] & ~reached[source]]
        if len(more) == 0:
            return reached
        reached[more] = True


def ending_policy(mdp: Finite) -> Ints:
    """`[S]` in each state an action that may bring the end nearer; any action where no end can be reached."""
    policy = mdp.legal.argmax(axis=1)
    state, action = np.divmod(mdp.owner, mdp.actions)
    near = mdp.terminal.copy()
    while True:
        useful = ~near[state] & (mdp.ends | near[mdp.after])
        if not useful.any():
            return policy
        policy[state[useful]] = action[useful]
        near[state[useful]] = True


def _weights(mdp: Finite, policy: Policy) -> Floats:
    """`[K]` probability of each outcome given its state."""
    return probabilities(mdp, policy).reshape(-1)[mdp.owner] * mdp.probability


def _edges(mdp: Finite, weight: Floats) -> tuple[Ints, Ints, Floats]:
    """From, to, and discounted probability of what goes on."""
    goes_on = ~mdp.ends & (weight > 0)
    return (mdp.owner // mdp.actions)[goes_on], mdp.after[goes_on], mdp.discount * weight[goes_on]


def _worthless(mdp: Finite, weight: Floats, is_paid: Flags) -> Flags:
    """`[S]` states that are worth 0 because nothing is paid there and nothing ends; only with discount 1."""
    if mdp.discount < 1:
        return np.zeros(mdp.states, dtype=np.bool_)
    endless = ~can_end(mdp, weight > 0)
    unbounded = np.flatnonzero(endless & is_paid)
    if len(unbounded):
        raise DataError(
            f"discount 1: from state {unbounded[0]} the policy never ends and is paid all the same, so its total is "
            "not defined; use a discount below 1, or a horizon"
        )
    return endless


def _unseen(mdp: Finite, weight: Floats) -> Flags:
    """`[S]` states whose visits are not counted: with discount 1, those that never end; none may be visited."""
    if mdp.discount < 1:
        return np.zeros(mdp.states, dtype=np.bool_)
    endless = ~can_end(mdp, weight > 0)
    seen = mdp.start > 0
    source, target, _ = _edges(mdp, weight)
    while (more := target[seen[source] & ~seen[target]]).size:
        seen[more] = True
    if (seen & endless).any():
        raise DataError(
            f"discount 1: the policy may come to state {np.flatnonzero(seen & endless)[0]} and stay for ever, so its "
            "visits are not finite; use a discount below 1"
        )
    return endless
