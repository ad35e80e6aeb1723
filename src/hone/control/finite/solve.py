"""Exact solutions of finite Markov decision processes: values, optimal policies, occupancies.

Belongs here: dynamic programming. With a discount of 1 the value is the total reward, defined if a policy terminates
or stops receiving rewards. Optimal policies are then correct if no reward is negative, or if every policy that never
terminates has the value -inf (Bertsekas & Tsitsiklis, 1991); in other tables the optimum may not be attained.
"""

from dataclasses import dataclass

import numpy as np

from hone.control.finite.model import FiniteMdp, Flags, Floats, TabularPolicy, policy_probabilities
from hone.core.errors import DataError, ResourceError
from hone.core.ragged import Ints

# --------------------------------------------------------------------------------------------------------------- linear


_DENSE_STATES = 1500
"""Largest number of states for a dense matrix (18 MB), which is as fast as a sparse one."""
_NEEDS_SCIPY = "this needs scipy, which is not installed: pip install 'hone-rl[control]'"


def solve_linear(edges: tuple[Ints, Ints, Floats], right: Floats, known: Flags) -> Floats:
    """Solve x = right + W x, W[i, j] the summed weight of the edges i -> j, with x = 0 in `known` states -> `[S]`.

    Raises ResourceError for more than 1500 states without scipy.
    """
    source, target, weight = edges
    number = np.cumsum(~known) - 1
    inside = ~known[source] & ~known[target]
    rows, columns, weight = number[source[inside]], number[target[inside]], weight[inside]
    count = int(np.count_nonzero(~known))
    answer = np.zeros(len(known))
    if count <= _DENSE_STATES:
        flat = np.bincount(rows * count + columns, weights=weight, minlength=count * count).astype(np.float64)
        answer[~known] = np.linalg.solve(np.eye(count) - flat.reshape(count, count), right[~known])
    elif count:
        try:
            from scipy import sparse  # noqa: PLC0415 - optional, and slow to import
            from scipy.sparse import linalg  # noqa: PLC0415
        except ImportError as missing:
            raise ResourceError(f"{count} states: {_NEEDS_SCIPY}") from missing
        matrix = sparse.coo_matrix((weight, (rows, columns)), shape=(count, count))
        answer[~known] = np.asarray(linalg.spsolve((sparse.eye(count) - matrix).tocsc(), right[~known]), np.float64)
    return answer


# ---------------------------------------------------------------------------------------------------------------- solve


_IMPROVEMENT_TOLERANCE = 1e-10
"""Smallest improvement that changes an action, relative to the largest value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _MdpSolution:
    """Optimal policy and its values."""

    value: Floats
    """`[S]`."""
    q: Floats
    """Optimal action values `[S, A]`; -inf for unavailable actions."""
    policy: Ints
    """First optimal action `[S]`; 0 in terminal states."""
    iterations: int
    error_bound: float
    """Bound on the error of the values (policy iteration: the remaining Bellman residual)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _FiniteHorizonSolution:
    """Optimal policy for a finite horizon."""

    value: Floats
    """Values `[S]` with all steps left."""
    policy: Ints
    """Action `[H, S]` after t steps."""


def evaluate_policy(mdp: FiniteMdp, policy: TabularPolicy) -> Floats:
    """Solve v = r_pi + discount * P_pi v by one linear solve -> `[S]`.

    Raises DataError if the total is undefined: discount 1, and a state from which the policy never terminates but
    receives rewards.
    """
    weight = _weights(mdp, policy)
    paid = mdp.sum_by_pair(weight * mdp.reward).sum(axis=1)
    known = _zero_value_states(mdp, weight, (mdp.sum_by_pair(weight * np.abs(mdp.reward)) != 0).any(axis=1))
    return solve_linear(_edges(mdp, weight), paid, known)


def occupancy(mdp: FiniteMdp, policy: TabularPolicy) -> Floats:
    """Occupancy d(s, a) = sum over t of discount^t P(s_t = s, a_t = a) from the start distribution -> `[S, A]`.

    Sums to 1 / (1 - discount) without terminals; `(d * mdp.expected_reward).sum()` is the policy's value. Raises
    DataError for discount 1 and a policy that may never terminate.
    """
    weight = _weights(mdp, policy)
    source, target, rate = _edges(mdp, weight)
    visits = solve_linear(
        (target, source, rate), mdp.start_distribution, np.zeros(mdp.states, np.bool_) | _uncounted_states(mdp, weight)
    )
    return visits[:, None] * policy_probabilities(mdp, policy)


def value_iteration(mdp: FiniteMdp, *, tolerance: float = 1e-10, max_iterations: int = 1_000_000) -> _MdpSolution:
    """Apply the Bellman operator until the error of every state is below `tolerance`.

    ||v_k - v*|| <= discount / (1 - discount) * ||v_k - v_{k-1}|| (Puterman, 1994, theorem 6.3.1). Raises DataError for
    discount 1, where there is no bound, and if `max_iterations` were not enough.
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
            return _MdpSolution(value=value, q=q, policy=q.argmax(axis=1), iterations=iteration, error_bound=bound)
    raise DataError(
        f"value iteration: {max_iterations} iterations left a bound of {bound:.3g}, more than {tolerance:.3g}"
    )


def policy_iteration(mdp: FiniteMdp) -> _MdpSolution:
    """Alternate exact evaluation and greedy improvement until convergence (Howard, 1960).

    Starts with a policy that heads for termination, so that all values are defined with discount 1. Raises DataError
    if the optimal total is not finite.
    """
    policy = _ending_policy(mdp)
    rows = np.arange(mdp.states)
    for iteration in range(1, 10 * mdp.states * mdp.actions + 2):
        value = evaluate_policy(mdp, policy)
        q = mdp.backup(value)
        held = np.where(mdp.terminal, 0.0, q[rows, policy])
        better = mdp.greedy_values(q) > held + _IMPROVEMENT_TOLERANCE * max(1.0, float(np.abs(value).max()))
        if not better.any():
            best = np.isclose(q, mdp.greedy_values(q)[:, None], rtol=1e-12, atol=_IMPROVEMENT_TOLERANCE).argmax(axis=1)
            if mdp.discount == 1:
                best = policy  # among ties, the first action may never terminate
            return _MdpSolution(
                value=value,
                q=q,
                policy=best,
                iterations=iteration,
                error_bound=float(np.abs(mdp.greedy_values(q) - value).max()),
            )
        policy = np.where(better, q.argmax(axis=1), policy)
    raise DataError("policy iteration did not converge: the rewards differ too much in size for float64")


def bellman_residual(mdp: FiniteMdp, value: Floats) -> Floats:
    """Bellman residual max over a of q(s, a) - v(s) -> `[S]`; 0 only for the optimal values (discount below 1)."""
    return mdp.greedy_values(mdp.backup(value)) - value


def backward_induction(mdp: FiniteMdp, horizon: int) -> _FiniteHorizonSolution:
    """Compute the optimal time-dependent policy for `horizon` steps by backward induction."""
    value, policy = np.zeros(mdp.states), np.zeros((horizon, mdp.states), dtype=np.int64)
    for step in reversed(range(horizon)):
        q = mdp.backup(value)
        value, policy[step] = mdp.greedy_values(q), q.argmax(axis=1)
    return _FiniteHorizonSolution(value=value, policy=policy)


def finite_horizon_value(mdp: FiniteMdp, policy: TabularPolicy, horizon: int) -> Floats:
    """Return of a stationary policy in `horizon` steps -> `[S]`."""
    table, value = policy_probabilities(mdp, policy), np.zeros(mdp.states)
    for _ in range(horizon):
        value = (table * np.where(table > 0, mdp.backup(value), 0.0)).sum(axis=1)
    return value


def start_value(mdp: FiniteMdp, value: Floats) -> float:
    """Mean of values `[S]` over the start distribution."""
    return float(mdp.start_distribution @ value)


def can_end(mdp: FiniteMdp, taken: Flags | None = None) -> Flags:
    """States `[S]` from which termination is reachable by the outcomes `taken` `[K]` (None: any)."""
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


def _ending_policy(mdp: FiniteMdp) -> Ints:
    """Action `[S]` that may lead closer to termination; an arbitrary one if termination is unreachable."""
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
    """Probability of each outcome given its state `[K]`."""
    return policy_probabilities(mdp, policy).reshape(-1)[mdp.pair_of_outcome] * mdp.probability


def _edges(mdp: FiniteMdp, weight: Floats) -> tuple[Ints, Ints, Floats]:
    """State, next state and discounted probability of outcomes that do not terminate."""
    goes_on = ~mdp.terminates & (weight > 0)
    return (mdp.pair_of_outcome // mdp.actions)[goes_on], mdp.next_state[goes_on], mdp.discount * weight[goes_on]


def _zero_value_states(mdp: FiniteMdp, weight: Floats, is_paid: Flags) -> Flags:
    """States `[S]` with value 0 because they have no rewards and never terminate; only with discount 1."""
    if mdp.discount < 1:
        return np.zeros(mdp.states, dtype=np.bool_)
    endless = ~can_end(mdp, weight > 0)
    unbounded = np.flatnonzero(endless & is_paid)
    if len(unbounded):
        raise DataError(
            f"discount 1: from state {unbounded[0]} the policy never terminates but receives rewards, so its total is "
            "not defined; use a discount below 1, or a horizon"
        )
    return endless


def _uncounted_states(mdp: FiniteMdp, weight: Floats) -> Flags:
    """States `[S]` without a finite number of visits: with discount 1, those that never end; must be unvisited."""
    if mdp.discount < 1:
        return np.zeros(mdp.states, dtype=np.bool_)
    endless = ~can_end(mdp, weight > 0)
    seen = mdp.start_distribution > 0
    source, target, _ = _edges(mdp, weight)
    while (more := target[seen[source] & ~seen[target]]).size:
        seen[more] = True
    if (seen & endless).any():
        raise DataError(
            f"discount 1: the policy may reach state {np.flatnonzero(seen & endless)[0]} and never terminate, so its "
            "visits are not finite; use a discount below 1"
        )
    return endless
