"""What is true of a finite Markov decision process: values, best policies, visits. Exact up to rounding.

Belongs here: dynamic programming. With a discount of 1 the worth is the total reward: defined where a policy ends, or
is paid nothing for ever after. Best policies are then right if no reward is negative, or if whoever never ends loses
for ever (Bertsekas & Tsitsiklis, 1991); other tables can have worths that no policy attains.
"""

from dataclasses import dataclass

import numpy as np

from hone.core.errors import DataError
from hone.core.ragged import Ints
from hone.envs.finite.linear import solve_linear
from hone.envs.finite.model import FiniteMdp, Flags, Floats, TabularPolicy, policy_probabilities

IMPROVEMENT_TOLERANCE = 1e-10
"""An action replaces another only if it is better by this much, relative to the largest value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MdpSolution:
    """A best policy and what it is worth."""

    value: Floats
    """`[S]`."""
    q: Floats
    """`[S, A]` of each action, and the best from then on; -inf where it cannot be taken."""
    policy: Ints
    """`[S]` the first of the best actions; 0 in terminal states."""
    iterations: int
    error_bound: float
    """No state's value is further from the truth than this (policy iteration: the Bellman residual that is left)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FiniteHorizonSolution:
    """The best that can be done in so many steps."""

    value: Floats
    """`[S]` with all steps to go."""
    policy: Ints
    """`[H, S]` what to do after t steps."""


def evaluate_policy(mdp: FiniteMdp, policy: TabularPolicy) -> Floats:
    """v = r_pi + discount * P_pi v, by one linear solve -> `[S]`.

    Raises DataError where the total is not defined: discount 1, and a state from which the policy never ends and is
    paid all the same.
    """
    weight = _weights(mdp, policy)
    paid = mdp.sum_by_pair(weight * mdp.reward).sum(axis=1)
    known = _zero_value_states(mdp, weight, (mdp.sum_by_pair(weight * np.abs(mdp.reward)) != 0).any(axis=1))
    return solve_linear(_edges(mdp, weight), paid, known)


def occupancy(mdp: FiniteMdp, policy: TabularPolicy) -> Floats:
    """d(s, a) = sum over t of discount^t P(s_t = s, a_t = a), episodes begun at `start` -> `[S, A]`.

    Sums to 1 / (1 - discount) if nothing ends; `(d * paid).sum()` is the policy's worth. Raises DataError for discount
    1 and a policy that may never end.
    """
    weight = _weights(mdp, policy)
    source, target, rate = _edges(mdp, weight)
    visits = solve_linear(
        (target, source, rate), mdp.start_distribution, np.zeros(mdp.states, np.bool_) | _uncounted_states(mdp, weight)
    )
    return visits[:, None] * policy_probabilities(mdp, policy)


def value_iteration(mdp: FiniteMdp, *, tolerance: float = 1e-10, max_iterations: int = 1_000_000) -> MdpSolution:
    """Apply the Bellman operator until no state is further than `tolerance` from the truth.

    ||v_k - v*|| <= discount / (1 - discount) * ||v_k - v_{k-1}|| (Puterman, 1994, theorem 6.3.1). Raises DataError for
    discount 1, where nothing bounds the distance, and when `most` iterations were not enough.
    """
    if mdp.discount == 1:
        raise DataError("value iteration has no stopping bound with discount 1: use policy_iteration, or a horizon")
    value, factor, bound = np.zeros(mdp.states), mdp.discount / (1 - mdp.discount), np.inf
    for iteration in range(1, max_iterations + 1):
        after = mdp.greedy_values(mdp.backup(value))
        bound = factor * float(np.abs(after - value).max())
        value = after
        if bound <= tolerance:
            q = mdp.backup(value)
            return MdpSolution(value=value, q=q, policy=q.argmax(axis=1), iterations=iteration, error_bound=bound)
    raise DataError(
        f"value iteration: {max_iterations} iterations left a bound of {bound:.3g}, more than {tolerance:.3g}"
    )


def policy_iteration(mdp: FiniteMdp) -> MdpSolution:
    """Evaluate exactly, improve greedily, until nothing improves (Howard, 1960).

    Begins with a policy that makes for an end, so that with discount 1 everything on the way is defined. Raises
    DataError where the best total is not finite.
    """
    policy = ending_policy(mdp)
    rows = np.arange(mdp.states)
    for iteration in range(1, 10 * mdp.states * mdp.actions + 2):
        value = evaluate_policy(mdp, policy)
        q = mdp.backup(value)
        held = np.where(mdp.terminal, 0.0, q[rows, policy])
        better = mdp.greedy_values(q) > held + IMPROVEMENT_TOLERANCE * max(1.0, float(np.abs(value).max()))
        if not better.any():
            best = np.isclose(q, mdp.greedy_values(q)[:, None], rtol=1e-12, atol=IMPROVEMENT_TOLERANCE).argmax(axis=1)
            if mdp.discount == 1:
                best = policy  # among equals, the first may be one that never ends
            return MdpSolution(
                value=value,
                q=q,
                policy=best,
                iterations=iteration,
                error_bound=float(np.abs(mdp.greedy_values(q) - value).max()),
            )
        policy = np.where(better, q.argmax(axis=1), policy)
    raise DataError("policy iteration went in circles: the rewards are too far apart for float64")


def bellman_residual(mdp: FiniteMdp, value: Floats) -> Floats:
    """max over a of q(s, a) - v(s) -> `[S]`; 0 everywhere for the best value alone (discount below 1)."""
    return mdp.greedy_values(mdp.backup(value)) - value


def backward_induction(mdp: FiniteMdp, horizon: int) -> FiniteHorizonSolution:
    """Backward induction: the best policy when `horizon` steps are left; it may look at the clock."""
    value, policy = np.zeros(mdp.states), np.zeros((horizon, mdp.states), dtype=np.int64)
    for step in reversed(range(horizon)):
        q = mdp.backup(value)
        value, policy[step] = mdp.greedy_values(q), q.argmax(axis=1)
    return FiniteHorizonSolution(value=value, policy=policy)


def finite_horizon_value(mdp: FiniteMdp, policy: TabularPolicy, horizon: int) -> Floats:
    """What a policy that does not look at the clock is paid in `horizon` steps -> `[S]`."""
    table, value = policy_probabilities(mdp, policy), np.zeros(mdp.states)
    for _ in range(horizon):
        value = (table * np.where(table > 0, mdp.backup(value), 0.0)).sum(axis=1)
    return value


def start_value(mdp: FiniteMdp, value: Floats) -> float:
    """Mean of a value `[S]` over where episodes begin."""
    return float(mdp.start_distribution @ value)


def can_end(mdp: FiniteMdp, taken: Flags | None = None) -> Flags:
    """`[S]` from where an end can be reached, by the outcomes `taken` `[K]` (None: any)."""
    taken = np.ones(len(mdp.next_state), dtype=np.bool_) if taken is None else taken
    state = mdp.pair_of_outcome // mdp.actions
    reached = mdp.terminal.copy()
    reached[state[taken & mdp.terminates]] = True
    source, target = state[taken & ~mdp.terminates], mdp.next_state[taken & ~mdp.terminates]
    while True:
        more = source[reached[target] & ~reached[source]]
        if len(more) == 0:
            return reached
        reached[more] = True


def ending_policy(mdp: FiniteMdp) -> Ints:
    """`[S]` in each state an action that may bring the end nearer; any action where no end can be reached."""
    policy = mdp.available.argmax(axis=1)
    state, action = np.divmod(mdp.pair_of_outcome, mdp.actions)
    near = mdp.terminal.copy()
    while True:
        useful = ~near[state] & (mdp.terminates | near[mdp.next_state])
        if not useful.any():
            return policy
        policy[state[useful]] = action[useful]
        near[state[useful]] = True


def _weights(mdp: FiniteMdp, policy: TabularPolicy) -> Floats:
    """`[K]` probability of each outcome given its state."""
    return policy_probabilities(mdp, policy).reshape(-1)[mdp.pair_of_outcome] * mdp.probability


def _edges(mdp: FiniteMdp, weight: Floats) -> tuple[Ints, Ints, Floats]:
    """From, to, and discounted probability of what goes on."""
    goes_on = ~mdp.terminates & (weight > 0)
    return (mdp.pair_of_outcome // mdp.actions)[goes_on], mdp.next_state[goes_on], mdp.discount * weight[goes_on]


def _zero_value_states(mdp: FiniteMdp, weight: Floats, is_paid: Flags) -> Flags:
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


def _uncounted_states(mdp: FiniteMdp, weight: Floats) -> Flags:
    """`[S]` states whose visits are not counted: with discount 1, those that never end; none may be visited."""
    if mdp.discount < 1:
        return np.zeros(mdp.states, dtype=np.bool_)
    endless = ~can_end(mdp, weight > 0)
    seen = mdp.start_distribution > 0
    source, target, _ = _edges(mdp, weight)
    while (more := target[seen[source] & ~seen[target]]).size:
        seen[more] = True
    if (seen & endless).any():
        raise DataError(
            f"discount 1: the policy may come to state {np.flatnonzero(seen & endless)[0]} and stay for ever, so its "
            "visits are not finite; use a discount below 1"
        )
    return endless
