"""Fitted Q evaluation: the action values of a target policy from logged transitions, in tables and linear in features.

Iterates q <- fit of r + g * [not terminated] * sum over a of pi(a|s') q(s', a) until nothing changes (Le, Voloshin and
Yue, 2019; Ernst, Geurts and Wehenkel, 2005, with the target's expectation instead of the maximum).
"""

from dataclasses import dataclass

import numpy as np

from hone.core.decisions import Bools, Floats, Ints
from hone.core.errors import DivergedError

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
class TabularActionValues:
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
) -> TabularActionValues:
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
            return TabularActionValues(q=q.reshape(states, actions), logged=known, reached_unlogged=reached)
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
