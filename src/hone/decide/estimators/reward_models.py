"""Cross-fitted models of the reward: each row is predicted by a model that was fitted on other units.

A model has a common part, fitted on all rows, and a part of each action, fitted on what the common part leaves over. An
action without rows is predicted by the common part alone.
"""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from hone.core.decisions import Floats, Ints
from hone.core.errors import DataError
from hone.core.random import permutation
from hone.decide.estimators.terms import LoggedFeedback

_NEWTON_STEPS = 30
_NEWTON_TOLERANCE = 1e-10
_LARGEST_LOGIT = 30.0

RewardModelKind = Literal["ridge", "logistic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardModelSettings:
    """Form of a reward model and of its cross-fitting."""

    kind: RewardModelKind = "ridge"
    """`ridge`: least squares; `logistic`: for rewards within 0 and 1."""
    penalty: float = 1.0
    """Weight of the squared coefficients, the common intercept aside: as much as this many rows of unit features."""
    folds: int = 5
    """Parts that the units are divided into; at least 2."""


def cross_fitted_rewards(
    logged: LoggedFeedback, settings: RewardModelSettings, *, seed: int = 0, row_weight: Floats | None = None
) -> Floats:
    """Predicted rewards `[n, K]` of all actions, each row by the model of the other folds.

    `row_weight` `[n]` weighs the rows of the fit (MRDR), None: all alike. Folds divide units, not rows. Raises
    DataError for fewer than 2 units, or rewards outside 0 and 1 with `logistic`.
    """
    units = int(logged.unit.max()) + 1 if len(logged) else 0
    if units < 2:
        raise DataError(f"a cross-fitted reward model needs at least 2 units, the log has {units}: use ips or snips")
    if settings.kind == "logistic" and not ((logged.reward >= 0) & (logged.reward <= 1)).all():
        row = int(np.flatnonzero(~((logged.reward >= 0) & (logged.reward <= 1)))[0])
        raise DataError(f"row {row}: reward {logged.reward[row]:g} is not within 0 and 1: use the reward model `ridge`")
    weight = np.ones(len(logged)) if row_weight is None else row_weight
    features = np.column_stack([np.ones(len(logged)), logged.contexts])
    fold = permutation(seed, "off-policy folds", count=units)[logged.unit] % settings.folds
    actions = logged.target_logp.shape[1]
    if settings.kind == "ridge":
        return _ridge_predictions(features, logged, weight, fold, settings, actions)
    return _logistic_predictions(features, logged, weight, fold, settings, actions)


def ridge_fit(features: Floats, reward: Floats, weight: Floats, penalty: Floats) -> Floats:
    """Coefficients `[f]` that minimise sum w (r - x b)^2 + sum penalty b^2, for features `[n, f]`, penalties `[f]`."""
    weighted = features * weight[:, None]
    return _solved(weighted.T @ features + np.diag(penalty), weighted.T @ reward)


def logistic_fit(features: Floats, reward: Floats, weight: Floats, penalty: Floats, offset: Floats) -> Floats:
    """Coefficients `[f]` that minimise the weighted cross-entropy of sigmoid(offset + x b) plus sum penalty b^2 / 2, by
    Newton's method with halved steps. Rewards `[n]` lie within 0 and 1, `offset` `[n]`."""
    coefficients = np.zeros(features.shape[1])
    cost = _logistic_cost(features, reward, weight, penalty, offset, coefficients)
    for _ in range(_NEWTON_STEPS):
        mean = _sigmoid(offset + features @ coefficients)
        slope = features.T @ (weight * (mean - reward)) + penalty * coefficients
        curvature = (features * (weight * mean * (1 - mean))[:, None]).T @ features + np.diag(penalty)
        step = _solved(curvature + 1e-12 * np.eye(len(penalty)), slope)
        size, lower = 1.0, cost
        while size > 1e-6:
            lower = _logistic_cost(features, reward, weight, penalty, offset, coefficients - size * step)
            if lower <= cost:
                break
            size /= 2
        coefficients, gain, cost = coefficients - size * step, cost - lower, lower
        if gain <= _NEWTON_TOLERANCE * (1 + abs(cost)):
            break
    return coefficients


def _ridge_predictions(
    features: Floats, logged: LoggedFeedback, weight: Floats, fold: Ints, settings: RewardModelSettings, actions: int
) -> Floats:
    """Sums over each fold and action give every fold's model without a second pass over the rows."""
    grams, sides = _ridge_sums(features, logged, weight, fold, settings.folds, actions)
    coefficients = _ridge_coefficients(grams, sides, settings.penalty)
    predicted = np.empty((len(logged), actions))
    for number in range(settings.folds):
        held = np.flatnonzero(fold == number)
        predicted[held] = features[held] @ coefficients[number].T
    return predicted


def _ridge_coefficients(grams: Floats, sides: Floats, penalty: float) -> Floats:
    """Coefficients `[folds, K, f]` of each fold's model, from the sums of the other folds; feature 0 is a constant."""
    folds, actions, size = sides.shape
    shrunk = np.full(size, penalty)
    common_penalty = shrunk.copy()
    common_penalty[0] = 1e-9
    made = np.empty((folds, actions, size))
    for number in range(folds):
        used = [other for other in range(folds) if other != number]
        gram, side = grams[used].sum(axis=0), sides[used].sum(axis=0)
        common = _solved(gram.sum(axis=0) + np.diag(common_penalty), side.sum(axis=0))
        made[number] = common + _solved(gram + np.diag(shrunk), (side - gram @ common)[..., None])[..., 0]
    return made


def _ridge_sums(
    features: Floats, logged: LoggedFeedback, weight: Floats, fold: Ints, folds: int, actions: int
) -> tuple[Floats, Floats]:
    """Sums of w x x' `[folds, K, f, f]` and of w x r `[folds, K, f]`."""
    size = features.shape[1]
    grams, sides = np.zeros((folds * actions, size, size)), np.zeros((folds * actions, size))
    cell = fold * actions + logged.action
    order = np.argsort(cell, kind="stable")
    ends = np.searchsorted(cell[order], np.arange(folds * actions + 1))
    for number in np.flatnonzero(np.diff(ends)):
        rows = order[ends[number] : ends[number + 1]]
        weighted = features[rows] * weight[rows, None]
        grams[number], sides[number] = weighted.T @ features[rows], weighted.T @ logged.reward[rows]
    return grams.reshape(folds, actions, size, size), sides.reshape(folds, actions, size)


def _logistic_predictions(
    features: Floats, logged: LoggedFeedback, weight: Floats, fold: Ints, settings: RewardModelSettings, actions: int
) -> Floats:
    shrunk = np.full(features.shape[1], settings.penalty)
    common_penalty = shrunk.copy()
    common_penalty[0] = 1e-9
    predicted = np.empty((len(logged), actions))
    for number in range(settings.folds):
        held, used = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
        common = logistic_fit(features[used], logged.reward[used], weight[used], common_penalty, np.zeros(len(used)))
        for action in range(actions):
            own, rows = common, used[logged.action[used] == action]
            if len(rows):
                offset = features[rows] @ common
                own = common + logistic_fit(features[rows], logged.reward[rows], weight[rows], shrunk, offset)
            predicted[held, action] = _sigmoid(features[held] @ own)
    return predicted


def _solved(matrix: Floats, right: Floats) -> Floats:
    """Solution of each linear system; symmetric, positive definite matrices `[..., f, f]`."""
    return np.asarray(np.linalg.solve(matrix, right), np.float64)


def _sigmoid(logits: Floats) -> Floats:
    return 1.0 / (1.0 + np.exp(-np.clip(logits, -_LARGEST_LOGIT, _LARGEST_LOGIT)))


def _logistic_cost(
    features: Floats, reward: Floats, weight: Floats, penalty: Floats, offset: Floats, coefficients: Floats
) -> float:
    logits = offset + features @ coefficients
    losses = np.logaddexp(0.0, logits) - reward * logits
    return float((weight * losses).sum() + 0.5 * (penalty * coefficients**2).sum())


@dataclass
class StreamedRewardModel:
    """Cross-fitted ridge model of a stream; a bucket's fold is its number modulo the folds."""

    actions: int
    settings: RewardModelSettings
    grams: Floats = field(default_factory=lambda: np.zeros(0))
    sides: Floats = field(default_factory=lambda: np.zeros(0))
    coefficients: Floats = field(default_factory=lambda: np.zeros(0))

    def observe(self, logged: LoggedFeedback) -> None:
        """Add rows to the sums; `logged.unit` holds buckets."""
        fold = logged.unit % self.settings.folds
        weight = np.ones(len(logged))
        grams, sides = _ridge_sums(_with_constant(logged), logged, weight, fold, self.settings.folds, self.actions)
        self.grams = self.grams + grams if self.grams.size else grams
        self.sides = self.sides + sides if self.sides.size else sides

    def fit(self) -> None:
        """Solve for every fold's coefficients."""
        self.coefficients = _ridge_coefficients(self.grams, self.sides, self.settings.penalty)

    def predict(self, logged: LoggedFeedback) -> Floats:
        """Predicted rewards `[n, K]`, each row by the model of the other folds."""
        fold, features = logged.unit % self.settings.folds, _with_constant(logged)
        predicted = np.empty((len(logged), self.actions))
        for number in range(self.settings.folds):
            held = np.flatnonzero(fold == number)
            predicted[held] = features[held] @ self.coefficients[number].T
        return predicted


def _with_constant(logged: LoggedFeedback) -> Floats:
    return np.column_stack([np.ones(len(logged)), logged.contexts])
