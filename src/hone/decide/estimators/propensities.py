"""Are logged propensities those of the executed actions? A test by a model of the behaviour policy.

For any distribution nu over the actions that a context offers, chosen before the row's action was drawn,

    E[ nu(a | x) / p(a | x) ] <= 1,     = 1 where p is above 0 on all of nu

so a mean above 1 by more than chance shows propensities p that are too small. The weights of a target policy are one
such ratio, but a noisy one. With a nu near to the behaviour policy itself the ratio hardly varies, and a tenth shows in
a few hundred rows. Here nu is a multinomial model of the executed actions, fitted on other units than the row's.

The mean is at most 1 for right propensities, whatever nu is; how good nu is decides only what the test can find.
"""

import math

import numpy as np

from hone.core.decisions import Bools, Floats, Ints
from hone.core.random import permutation
from hone.decide.estimators.reward_models import logistic_fit
from hone.decide.estimators.terms import LoggedFeedback

_MOST_FEATURES = 12
_MOST_ACTIONS = 12
"""Actions with a model of their own; the others keep their share."""
_FEWEST = 20
"""Rows of an action that a model needs."""
_MOST_ROWS = 4000
"""Rows that a fold's model is fitted on."""
_PENALTY = 1.0


def behaviour_ratios(logged: LoggedFeedback) -> Floats | None:
    """Ratios nu(a|x) / p(a|x) `[n]` of the executed actions, in two folds of units; None: fewer than 4 units, or a
    context that is not finite."""
    units = int(logged.unit.max()) + 1 if len(logged) else 0
    if units < 4 or not np.isfinite(logged.contexts).all():
        return None
    fold = permutation(0, "propensity folds", count=units)[logged.unit] % 2
    features = _features(logged.contexts)
    offered = logged.target_logp > -np.inf if logged.offered is None else logged.offered
    ratios = np.zeros(len(logged))
    for number in (0, 1):
        held, used = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
        if not len(held) or not len(used):
            return None
        nu = _modelled(features, logged.action, offered, used, held)
        with np.errstate(over="ignore"):
            ratios[held] = nu[np.arange(len(held)), logged.action[held]] * np.exp(-logged.logp[held])
    return ratios


def _features(contexts: Floats) -> Floats:
    """Constant and at most 12 features of unit scale `[n, f]`; of more, their first principal components."""
    centred = contexts - contexts.mean(axis=0)
    spread = centred.std(axis=0)
    scaled = centred[:, spread > 0] / spread[spread > 0]
    if scaled.shape[1] > _MOST_FEATURES:
        some = scaled[:: max(1, len(scaled) // _MOST_ROWS)]
        scaled = scaled @ np.linalg.svd(some, full_matrices=False)[2][:_MOST_FEATURES].T
        scaled /= np.maximum(scaled.std(axis=0), 1e-12)
    return np.column_stack([np.ones(len(scaled)), np.clip(scaled, -5.0, 5.0)])


def _modelled(features: Floats, action: Ints, offered: Bools, used: Ints, held: Ints) -> Floats:
    """Distribution over the offered actions of the rows `held` `[h, K]`: one logistic model for each frequent action,
    fitted on the rows `used`, and the share of the others."""
    actions = offered.shape[1]
    counts = np.bincount(action[used], minlength=actions)
    nu = np.tile((counts + 0.5) / (len(used) + 0.5 * actions), (len(held), 1))
    rows = used[:: max(1, math.ceil(len(used) / _MOST_ROWS))]
    penalty = np.full(features.shape[1], _PENALTY)
    for one in np.argsort(-counts, kind="stable")[:_MOST_ACTIONS].tolist():
        mine = (action[rows] == one).astype(np.float64)
        if _FEWEST <= mine.sum() <= len(rows) - _FEWEST:
            fitted = logistic_fit(features[rows], mine, np.ones(len(rows)), penalty, np.zeros(len(rows)))
            nu[:, one] = 1 / (1 + np.exp(-np.clip(features[held] @ fitted, -30.0, 30.0)))
    nu *= offered[held]
    total = nu.sum(axis=1, keepdims=True)
    return np.divide(nu, total, out=np.zeros_like(nu), where=total > 0)
