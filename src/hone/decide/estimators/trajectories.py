"""Estimators of a policy's value from trajectories: importance sampling per decision, and doubly robust.

With rho_t the product of target / behaviour probabilities up to step t, discount g, rewards r_t:

    trajectory-wise      sum over t of g^t rho_T r_t                                    T the last step
    per decision         sum over t of g^t rho_t r_t                                    Precup, Sutton and Singh, 2000
    doubly robust        v(s_0) + sum over t of g^t rho_t (r_t + g v(s_t+1) - q(s_t, a_t))       Jiang and Li, 2016

Each may be self-normalised: rho_t is divided at each t by its mean over the episodes (Thomas and Brunskill, 2016).
An episode that has ended keeps its last rho, with terms of 0.

Fitted Q evaluation: the action values of a target policy from logged transitions, in tables and linear in features.

Iterates q <- fit of r + g * [not terminated] * sum over a of pi(a|s') q(s', a) until nothing changes (Le, Voloshin and
Yue, 2019; Ernst, Geurts and Wehenkel, 2005, with the target's expectation instead of the maximum).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from hone.core.decisions import Bools, Floats, Ints
from hone.core.errors import DivergedError
from hone.decide.estimators.terms import EstimatorTerms


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedTrajectories:
    """E logged episodes of N decisions in total, one after another."""

    offsets: Ints
    """Bounds `[E+1]` of the episodes' decisions; no episode is empty."""
    logp: Floats
    """`[N]` nats: log-probability of each action under the behaviour policy."""
    target_logp: Floats
    """`[N]` nats: the same under the target policy."""
    reward: Floats
    """`[N]`."""
    discount: float
    """Discount factor in (0, 1]."""

    @property
    def episodes(self) -> int:
        """Number of episodes."""
        return len(self.offsets) - 1

    @property
    def weights(self) -> Floats:
        """Product of the target / behaviour probabilities of each whole episode `[E]`."""
        return _ratios(self)[1][:, -1]

    @property
    def returns(self) -> Floats:
        """Discounted sum of each episode's rewards `[E]`."""
        there, _ = _ratios(self)
        return (_discounts(self, there) * _table(self.reward, there)).sum(axis=1)


TrajectoryEstimatorName = Literal["pdis", "wpdis", "tis", "wtis"]


def trajectory_wise(logged: LoggedTrajectories, *, normalised: bool = False) -> EstimatorTerms:
    """Importance sampling by whole trajectories: the discounted return times the product of all ratios."""
    there, ratio = _ratios(logged)
    last = ratio[:, -1:]
    returns = (_discounts(logged, there) * _table(logged.reward, there)).sum(axis=1, keepdims=True)
    return _trajectory_terms(np.zeros(logged.episodes), last * returns, last, normalised=normalised)


def per_decision(logged: LoggedTrajectories, *, normalised: bool = False) -> EstimatorTerms:
    """Per-decision importance sampling: a reward is weighted by the ratios of the actions before it only (Precup,
    Sutton and Singh, 2000)."""
    there, ratio = _ratios(logged)
    paid = _discounts(logged, there) * _table(logged.reward, there)
    return _trajectory_terms(np.zeros(logged.episodes), ratio * paid, ratio, normalised=normalised)


TRAJECTORY_ESTIMATORS: dict[TrajectoryEstimatorName, Callable[[LoggedTrajectories], EstimatorTerms]] = {
    "pdis": per_decision, "wpdis": partial(per_decision, normalised=True),
    "tis": trajectory_wise, "wtis": partial(trajectory_wise, normalised=True),
}  # fmt: skip
"""Estimators that need no model: per decision and by whole trajectories, `w` for self-normalised."""


def doubly_robust_trajectories(
    logged: LoggedTrajectories, *, q: Floats, value: Floats, final_value: Floats, normalised: bool = False
) -> EstimatorTerms:
    """Doubly robust for trajectories (Jiang and Li, 2016); normalised: weighted doubly robust (Thomas and Brunskill).

    `q` `[N]`: model's action value of each decision; `value` `[N]`: its state value under the target, sum over a of
    pi(a) q(s, a); `final_value` `[E]`: state value after each episode's last step, 0 where it terminated.
    """
    there, ratio = _ratios(logged)
    after = np.append(value[1:], 0.0)
    after[logged.offsets[1:] - 1] = final_value
    error = logged.reward + logged.discount * after - q
    corrected = ratio * _discounts(logged, there) * _table(error, there)
    return _trajectory_terms(value[logged.offsets[:-1]], corrected, ratio, normalised=normalised)


def _trajectory_terms(base: Floats, numerator: Floats, ratio: Floats, *, normalised: bool) -> EstimatorTerms:
    return EstimatorTerms(base=base, numerator=numerator, denominator=ratio if normalised else np.ones_like(numerator))


def _ratios(logged: LoggedTrajectories) -> tuple[Bools, Floats]:
    """Mask of the steps that exist `[E, T]`, and rho `[E, T]`, an ended episode's last one repeated."""
    lengths = np.diff(logged.offsets)
    there = np.arange(int(lengths.max())) < lengths[:, None]
    return there, np.exp(_table(logged.target_logp - logged.logp, there).cumsum(axis=1))


def _table(values: Floats, there: Bools) -> Floats:
    """Values `[N]` as `[E, T]`, 0 after an episode's end."""
    table = np.zeros(there.shape)
    table[there] = values
    return table


def _discounts(logged: LoggedTrajectories, there: Bools) -> Floats:
    return logged.discount ** np.arange(there.shape[1], dtype=np.float64)


# ------------------------------------------------------------------------------------------------------------- fitted q


_TOLERANCE = 1e-12
_ITERATIONS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TabularTransitions:
    """N logged transitions between numbered states."""

    state: Ints
    action: Ints
    reward: Floats
    next_state: Ints
    terminated: Bools
    """All `[N]`; the next state of a terminated one is ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _TabularActionValues:
    """Action values by fitted Q evaluation."""

    q: Floats
    """`[S, A]`; 0 for pairs that were never logged."""
    logged: Bools
    """Pairs `[S, A]` that were logged."""
    reached_unlogged: float
    """Mean over the logged transitions of the target's probability of actions that were never logged in their state;
    above 0 the values stand on pairs without data."""


def tabular_fitted_q(
    transitions: TabularTransitions, target: Floats, *, discount: float, tolerance: float = _TOLERANCE
) -> _TabularActionValues:
    """Fitted Q evaluation in a table: the exact values of `target` `[S, A]` in the process of the logged frequencies.

    Raises DivergedError if the values have not settled after 20,000 iterations (discount 1, and a policy that does not
    end there).
    """
    states, actions = target.shape
    pair = transitions.state * actions + transitions.action
    counts = np.bincount(pair, minlength=states * actions)
    share = 1.0 / np.maximum(counts, 1)
    paid = np.bincount(pair, weights=transitions.reward, minlength=states * actions) * share
    goes_on = np.flatnonzero(~transitions.terminated)
    cell, times = np.unique(pair[goes_on] * states + transitions.next_state[goes_on], return_counts=True)
    source, after = np.divmod(cell, states)
    rate = discount * times * share[source]
    q, change = paid, np.inf
    for _ in range(_ITERATIONS):
        value = (target * q.reshape(states, actions)).sum(axis=1)
        improved = paid + np.bincount(source, weights=rate * value[after], minlength=states * actions)
        change = float(np.abs(improved - q).max())
        q = improved
        if change <= tolerance * max(1.0, float(np.abs(q).max())):
            known = (counts > 0).reshape(states, actions)
            unlogged = np.where(known, 0.0, target).sum(axis=1)
            reached = float(np.average(unlogged[transitions.state])) if len(pair) else 0.0
            return _TabularActionValues(q=q.reshape(states, actions), logged=known, reached_unlogged=reached)
    raise DivergedError(f"fitted Q evaluation moved by {change:.2g} after {_ITERATIONS:,} iterations: discount < 1?")


def linear_fitted_q(
    features: Floats,
    next_features: Floats,
    reward: Floats,
    *,
    discount: float,
    penalty: float = 0.0,
    tolerance: float = _TOLERANCE,
) -> Floats:
    """Fitted Q evaluation with q(s, a) = features . w -> w `[f]`.

    `features` `[N, f]` of the logged pairs; `next_features` `[N, f]`: sum over a of pi(a|s') features(s', a), 0 where
    the transition terminated; `penalty`: weight of the squared coefficients in each fit. Raises DivergedError where the
    iteration grows: least squares onto features is no contraction off-policy (Baird, 1995).
    """
    gram = features.T @ features + penalty * np.eye(features.shape[1])
    fit = np.linalg.pinv(gram, hermitian=True) @ features.T
    paid, step = fit @ reward, discount * fit @ next_features
    radius = float(np.abs(np.linalg.eigvals(step)).max(initial=0.0))
    if radius >= 1:
        raise DivergedError(
            f"fitted Q evaluation diverges: its iteration multiplies errors by {radius:.4g}; use a lower discount, a "
            "penalty, or features of fewer pairs"
        )
    weights = paid
    for _ in range(_ITERATIONS):
        improved = paid + step @ weights
        change = float(np.abs(improved - weights).max())
        weights = improved
        if change <= tolerance * max(1.0, float(np.abs(weights).max())):
            break
    return weights
