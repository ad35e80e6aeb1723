"""Models of the rewards of a bandit's actions: what a policy's rule explores with, and what learns from rewards.

Conjugate posteriors of arms without contexts, and plain means of their rewards.

Thompson sampling acts on a draw from a posterior (Thompson, 1933); UCB1 on counts and means (Auer et al., 2002).

Linear models of rewards with Gaussian posteriors, updated in closed form (ridge regression).

With noise of variance s^2 and a prior N(0, 1 / lambda) of each coefficient, the posterior of theta after rows (x, r, w)
is N(A^-1 b, A^-1) with A = lambda I + sum w x x' / s^2 and b = sum w x r / s^2. A^-1 is kept, and one row changes it by
a matrix of rank one (Sherman & Morrison, 1950):

    A^-1 <- A^-1 - u u' v / (1 + v x'u),   u = A^-1 x,   v = w / s^2

Larger batches are solved anew, and so is a table after `REFRESH` rows, which bounds the rounding.
"""

import math
from abc import abstractmethod
from typing import Final, NamedTuple

import numpy as np

from hone.core.decisions import ActionSet, Floats, Ints
from hone.core.errors import ConfigError, DataError
from hone.decide.bandits.policy import PolicyContents, Saveable


class _RewardEstimate(NamedTuple):
    """Expected rewards and the uncertainty about them."""

    mean: Floats
    """`[..., K]`."""
    variance: Floats
    """`[..., K]` posterior variance of the expected reward (not of a single reward)."""


class BanditModel(Saveable):
    """Belief about the rewards of actions, given contexts of d numbers. Learns in closed form, in place."""

    @property
    @abstractmethod
    def observed(self) -> float:
        """Rows learnt; models that forget, or count weights, may tell what is left of them."""

    @abstractmethod
    def estimate(self, context: Floats, actions: ActionSet) -> _RewardEstimate:
        """Expected rewards `[K]` for features `[d]`."""

    @abstractmethod
    def estimate_rows(self, contexts: Floats, actions: ActionSet) -> _RewardEstimate:
        """Expected rewards `[n, K]` for features `[n, d]`."""

    @abstractmethod
    def mean(self, context: Floats, actions: ActionSet) -> Floats:
        """The expected rewards `[K]` alone, at less cost than `estimate`."""

    @abstractmethod
    def mean_rows(self, contexts: Floats, actions: ActionSet) -> Floats:
        """The expected rewards `[n, K]` alone, for features `[n, d]`."""

    @abstractmethod
    def observe(self, contexts: Floats, chosen: Ints, rewards: Floats, weights: Floats, actions: ActionSet) -> None:
        """Learn from decisions in their order: features `[n, d]`, actions `[n]`, rewards `[n]`, weights `[n]`.

        A model with a discount g weighs a row by g^(rows learnt after it), so that batches make no difference. Raises
        DataError for rewards that the model has no room for; then nothing was learnt.
        """

    @abstractmethod
    def load_contents(self, contents: PolicyContents) -> None:
        """Take up the arrays of another model of this kind and size, in place. Raises DataError for others."""


def _check_observations(contexts: Floats, chosen: Ints, rewards: Floats, weights: Floats, count: int) -> None:
    """Raise DataError for actions that do not exist, and for features, rewards and weights that are no numbers."""
    if len(chosen) == 1 and 0 <= chosen[0] < count and weights[0] >= 0.0:
        numbers = float(contexts.sum()) + float(rewards[0]) + float(weights[0])
        if math.isfinite(numbers):
            return  # the usual case of a service, which learns one row at a time
    if not np.isfinite(contexts).all():
        row, feature = (int(place) for place in np.argwhere(~np.isfinite(contexts))[0])
        raise DataError(f"feature {feature} of decision {row} is {contexts[row, feature]}; leave such rows out")
    wrong = np.flatnonzero((chosen < 0) | (chosen >= count))
    if len(wrong):
        raise DataError(f"action {chosen[wrong[0]]} of decision {wrong[0]}: there are {count} actions, from 0")
    wrong = np.flatnonzero(~np.isfinite(rewards))
    if len(wrong):
        raise DataError(f"reward {rewards[wrong[0]]} of decision {wrong[0]} is not finite; leave such rows out")
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0.0)))
    if len(wrong):
        raise DataError(f"weight {weights[wrong[0]]} of decision {wrong[0]} is not a number of at least 0")


def _weights_by_age(weights: Floats, discount: float) -> Floats:
    """Weights `[n]` of rows in the order of their decisions, each times discount^(rows after it)."""
    return weights if discount == 1.0 else weights * discount ** np.arange(len(weights) - 1, -1, -1, dtype=np.float64)


def _require_action_count(actions: ActionSet, count: int) -> None:
    """Raise DataError for an action set of another size than the model's."""
    if len(actions) != count:
        raise DataError(
            f"{len(actions)} actions, and the model has learnt about {count}: a model with one table an action cannot "
            "tell what others are worth; use action features (joint_linear) where the actions change"
        )


def reward_model(contents: PolicyContents) -> BanditModel:
    """The part `model` of a policy's contents. Raises DataError where it is absent or something else."""
    part = contents.parts.get("model")
    if not isinstance(part, BanditModel):
        raise DataError(f"part 'model' is {'absent' if part is None else part.kind}, not a model of rewards")
    return part


# -------------------------------------------------------------------------------------------------------- linear models


REFRESH: Final = 4096
"""Rows of a table after which its inverse is computed anew."""


class _RidgeTables:
    """K ridge regressions on d features each, updated together."""

    def __init__(self, count: int, features: int, *, noise: float, prior_precision: float, discount: float) -> None:
        if noise <= 0 or prior_precision <= 0 or not 0 < discount <= 1:
            raise ConfigError(
                "noise and prior_precision must be above 0 and discount above 0 and at most 1, "
                f"got {noise}, {prior_precision} and {discount}"
            )
        self.noise, self.prior_precision, self.discount = float(noise), float(prior_precision), float(discount)
        self.precision = np.repeat(np.eye(features)[None] * prior_precision, count, axis=0)
        """`[K, d, d]` A."""
        self.information = np.zeros((count, features))
        """`[K, d]` b."""
        self.inverse = np.repeat(np.eye(features)[None] / prior_precision, count, axis=0)
        """`[K, d, d]` A^-1."""
        self.coefficients = np.zeros((count, features))
        """`[K, d]` A^-1 b."""
        self.counts = np.zeros(count)
        """`[K]` rows observed."""

    def observe(self, x: Floats, table: Ints, rewards: Floats, weights: Floats) -> None:
        """Learn rows `[n, d]` into the tables `[n]`; with a discount, what was known before is n decisions older."""
        scaled = _weights_by_age(weights, self.discount) / self.noise**2
        if self.discount == 1.0 and len(x) <= x.shape[1]:
            for row in range(len(x)):
                self._observe_one(x[row], int(table[row]), float(rewards[row]), float(scaled[row]))
            return
        self._forget(len(x))
        changed = np.unique(table)
        for k in changed:
            mine = table == k
            weighted = x[mine] * scaled[mine, None]
            self.precision[k] += weighted.T @ x[mine]
            self.information[k] += weighted.T @ rewards[mine]
            self.counts[k] += mine.sum()
        self._solve(changed if self.discount == 1.0 else np.arange(len(self.counts)))

    def _observe_one(self, x: Floats, k: int, reward: float, weight: float) -> None:
        inverse, precision, information = self.inverse[k], self.precision[k], self.information[k]
        step = inverse @ x
        # np.dot of a column and a row is three times as fast as np.outer.
        precision += np.dot(x[:, None], (weight * x)[None])
        information += (weight * reward) * x
        inverse -= np.dot(step[:, None], (step * (weight / (1.0 + weight * float(x @ step))))[None])
        self.counts[k] += 1
        if self.counts[k] % REFRESH == 0:
            self._solve(np.array([k]))
        else:
            self.coefficients[k] = inverse @ information

    def _forget(self, rows: int) -> None:
        """Move all sums towards the prior: A <- g A + (1 - g) lambda I and b <- g b with g = discount^rows."""
        kept = self.discount**rows
        if kept < 1.0:
            self.precision *= kept
            self.precision += (1.0 - kept) * self.prior_precision * np.eye(self.precision.shape[1])
            self.information *= kept

    def _solve(self, tables: Ints) -> None:
        """Compute the inverses and coefficients of some tables from their sums."""
        precision: Floats = self.precision[tables]
        inverse = np.linalg.inv(precision)
        inverse = (inverse + np.swapaxes(inverse, 1, 2)) / 2
        self.inverse[tables] = inverse
        self.coefficients[tables] = np.einsum("kij,kj->ki", inverse, self.information[tables])

    def replace_sums(self, precision: Floats, information: Floats) -> None:
        """Take A `[K, d, d]` and b `[K, d]` as they are. Raises DataError for other shapes."""
        if precision.shape != self.precision.shape or information.shape != self.information.shape:
            raise DataError(
                f"sums of shapes {precision.shape} and {information.shape}, not {self.precision.shape} and "
                f"{self.information.shape}"
            )
        self.precision, self.information = precision.copy(), information.copy()
        self._solve(np.arange(len(self.counts)))

    def contents(self) -> PolicyContents:
        settings = {"noise": self.noise, "prior_precision": self.prior_precision, "discount": self.discount}
        arrays = {
            "precision": self.precision, "information": self.information, "inverse": self.inverse,
            "coefficients": self.coefficients, "counts": self.counts,
        }  # fmt: skip
        return PolicyContents(settings=settings, arrays=arrays)

    @classmethod
    def from_contents(cls, contents: PolicyContents) -> "_RidgeTables":
        count, features = contents.array("information", None, None).shape
        tables = cls(
            count, features, noise=contents.number("noise"), prior_precision=contents.number("prior_precision"),
            discount=contents.number("discount"),
        )  # fmt: skip
        tables.load_contents(contents)
        return tables

    def load_contents(self, contents: PolicyContents) -> None:
        """Take up the arrays of `contents`, of tables of this size. Raises DataError for others; then nothing is
        loaded."""
        count, features = self.information.shape
        information = contents.array("information", count, features)
        precision = contents.array("precision", count, features, features)
        inverse = contents.array("inverse", count, features, features)
        coefficients, counts = contents.array("coefficients", count, features), contents.array("counts", count)
        self.information, self.precision, self.inverse = information, precision, inverse
        self.coefficients, self.counts = coefficients, counts


class LinearGaussianPosterior(BanditModel):
    """Arms with reward x . theta_k plus Gaussian noise, each arm with its own theta_k (Agrawal & Goyal, 2013).

    `noise` 1 and `prior_precision` as ridge parameter make it the model of LinUCB (Li et al., 2010). `intercept` adds a
    feature that is always 1, for rewards that are not 0 where all features are. `discount` below 1 forgets: a row's
    weight falls by this factor with each later decision, and the posterior returns to the prior.
    """

    kind = "linear_gaussian"

    def __init__(
        self,
        arms: int,
        features: int,
        *,
        noise: float = 1.0,
        prior_precision: float = 1.0,
        discount: float = 1.0,
        intercept: bool = False,
    ) -> None:
        size = features + intercept
        self.tables = _RidgeTables(arms, size, noise=noise, prior_precision=prior_precision, discount=discount)
        self.intercept = bool(intercept)

    @property
    def observed(self) -> float:
        return float(self.tables.counts.sum())

    def estimate(self, context: Floats, actions: ActionSet) -> _RewardEstimate:
        tables, x = self.tables, self._inputs(context, actions)
        arms, features = tables.information.shape
        step = (tables.inverse.reshape(-1, features) @ x).reshape(arms, features)
        return _RewardEstimate(tables.coefficients @ x, step @ x)

    def estimate_rows(self, contexts: Floats, actions: ActionSet) -> _RewardEstimate:
        x = self._inputs(contexts, actions)
        variance = [np.einsum("nd,nd->n", x @ inverse, x) for inverse in self.tables.inverse]
        return _RewardEstimate(x @ self.tables.coefficients.T, np.stack(variance, axis=1))

    def mean(self, context: Floats, actions: ActionSet) -> Floats:
        return self.tables.coefficients @ self._inputs(context, actions)

    def mean_rows(self, contexts: Floats, actions: ActionSet) -> Floats:
        return self._inputs(contexts, actions) @ self.tables.coefficients.T

    def observe(self, contexts: Floats, chosen: Ints, rewards: Floats, weights: Floats, actions: ActionSet) -> None:
        x = self._inputs(contexts, actions)
        _check_observations(x, chosen, rewards, weights, len(actions))
        self.tables.observe(x, chosen, rewards, weights)

    def draw(self, context: Floats, draws: np.random.Generator) -> Floats:
        """Plausible rewards `[n, K]` for contexts `[n, d]`, an independent draw of all theta for each."""
        arms, features = self.tables.information.shape
        # With A = L L', theta = A^-1 b + L'^-1 z has covariance A^-1.
        lower = np.linalg.cholesky(self.tables.precision)
        spread = np.linalg.solve(np.swapaxes(lower, 1, 2), np.eye(features))
        noise = draws.standard_normal((len(context), arms, features))
        theta = self.tables.coefficients + np.einsum("kij,nkj->nki", spread, noise)
        return np.einsum("nd,nkd->nk", _with_constant(context) if self.intercept else context, theta)

    def _inputs(self, contexts: Floats, actions: ActionSet) -> Floats:
        """Features `[..., d]` of the tables. Raises DataError for another number of arms or features than its own."""
        arms, features = self.tables.information.shape
        _require_action_count(actions, arms)
        if contexts.shape[-1] + self.intercept != features:
            raise DataError(
                f"a context of {contexts.shape[-1]} features; the model has learnt from {features - self.intercept}"
            )
        return _with_constant(contexts) if self.intercept else contexts

    def contents(self) -> PolicyContents:
        tables = self.tables.contents()
        return PolicyContents(settings={**tables.settings, "intercept": self.intercept}, arrays=tables.arrays)

    def load_contents(self, contents: PolicyContents) -> None:
        self.tables.load_contents(contents)

    @classmethod
    def from_contents(cls, contents: PolicyContents) -> "LinearGaussianPosterior":
        tables, intercept = _RidgeTables.from_contents(contents), contents.flag("intercept")
        arms, size = tables.information.shape
        model = cls(arms, size - intercept, intercept=intercept)
        model.tables = tables
        return model


class JointLinearPosterior(BanditModel):
    """Actions with features: reward phi(x, a) . theta plus Gaussian noise, one theta for all actions.

    phi is the constant 1, the context x, the action's features a, and their products x_i a_j, so that what is learnt
    of one action holds for others, and for those that nobody has tried. For contexts `[d]` and actions `[f]` it has
    (1 + d) (1 + f) entries.
    """

    kind = "joint_linear"

    def __init__(
        self,
        features: int,
        action_features: int,
        *,
        noise: float = 1.0,
        prior_precision: float = 1.0,
        discount: float = 1.0,
    ) -> None:
        self.features, self.action_features = features, action_features
        size = (1 + features) * (1 + action_features)
        self.tables = _RidgeTables(1, size, noise=noise, prior_precision=prior_precision, discount=discount)

    @property
    def observed(self) -> float:
        return float(self.tables.counts.sum())

    def estimate(self, context: Floats, actions: ActionSet) -> _RewardEstimate:
        phi = _joint(context[None], self._action_rows(actions, context))
        return self._of_features(phi)

    def estimate_rows(self, contexts: Floats, actions: ActionSet) -> _RewardEstimate:
        rows = self._action_rows(actions, contexts)
        estimates = [self._of_features(_joint(contexts, np.broadcast_to(a, (len(contexts), len(a))))) for a in rows]
        mean, variance = (np.stack(parts, axis=1) for parts in zip(*estimates, strict=True))
        return _RewardEstimate(mean, variance)

    def mean(self, context: Floats, actions: ActionSet) -> Floats:
        return _joint(context[None], self._action_rows(actions, context)) @ self.tables.coefficients[0]

    def mean_rows(self, contexts: Floats, actions: ActionSet) -> Floats:
        theta = self.tables.coefficients[0].reshape(1 + self.features, 1 + self.action_features)
        return _with_constant(contexts) @ theta @ _with_constant(self._action_rows(actions, contexts)).T

    def observe(self, contexts: Floats, chosen: Ints, rewards: Floats, weights: Floats, actions: ActionSet) -> None:
        rows = self._action_rows(actions, contexts)
        _check_observations(contexts, chosen, rewards, weights, len(actions))
        self.tables.observe(_joint(contexts, rows[chosen]), np.zeros(len(chosen), np.int64), rewards, weights)

    def _of_features(self, phi: Floats) -> _RewardEstimate:
        variance = np.einsum("nd,nd->n", phi @ self.tables.inverse[0], phi)
        return _RewardEstimate(phi @ self.tables.coefficients[0], variance)

    def _action_rows(self, actions: ActionSet, contexts: Floats) -> Floats:
        """Features `[K, f]` of the actions."""
        if actions.features is None or actions.features.shape[1] != self.action_features:
            size = "no features" if actions.features is None else f"{actions.features.shape[1]} features"
            raise DataError(f"the actions have {size}, and the model has learnt from {self.action_features}")
        if contexts.shape[-1] != self.features:
            raise DataError(f"a context of {contexts.shape[-1]} features; the model has learnt from {self.features}")
        return actions.features

    def contents(self) -> PolicyContents:
        tables = self.tables.contents()
        settings = {**tables.settings, "features": self.features, "action_features": self.action_features}
        return PolicyContents(settings=settings, arrays=tables.arrays)

    def load_contents(self, contents: PolicyContents) -> None:
        self.tables.load_contents(contents)

    @classmethod
    def from_contents(cls, contents: PolicyContents) -> "JointLinearPosterior":
        model = cls(int(contents.number("features")), int(contents.number("action_features")))
        tables = _RidgeTables.from_contents(contents)
        if tables.information.shape != model.tables.information.shape:
            raise DataError(
                f"tables of {tables.information.shape[1]} features, the settings ask for "
                f"{model.tables.information.shape[1]}"
            )
        model.tables = tables
        return model


def _with_constant(rows: Floats) -> Floats:
    """Rows `[..., d]` with a first feature of 1 -> `[..., 1 + d]`."""
    extended = np.ones((*rows.shape[:-1], 1 + rows.shape[-1]))
    extended[..., 1:] = rows
    return extended


def _joint(contexts: Floats, actions: Floats) -> Floats:
    """Joint features `[n, (1 + d) (1 + f)]` of contexts `[n or 1, d]` and action features `[n or 1, f]`."""
    products = _with_constant(contexts)[:, :, None] * _with_constant(actions)[:, None, :]
    return products.reshape(len(products), (1 + contexts.shape[1]) * (1 + actions.shape[1]))


# ----------------------------------------------------------------------------------------------------------- posteriors


class _WithoutContexts(BanditModel):
    """Belief that is the same in every context."""

    def estimate_rows(self, contexts: Floats, actions: ActionSet) -> _RewardEstimate:
        one = self.estimate(contexts, actions)
        return _RewardEstimate(*(np.broadcast_to(part, (len(contexts), len(part))) for part in one))

    def mean(self, context: Floats, actions: ActionSet) -> Floats:
        return self.estimate(context, actions).mean

    def mean_rows(self, contexts: Floats, actions: ActionSet) -> Floats:
        return self.estimate_rows(contexts, actions).mean


class BetaBernoulliPosterior(_WithoutContexts):
    """Arms with rewards 0 or 1, each with a Beta(`alpha`, `beta`) posterior of its rate; contexts are ignored.

    `discount` below 1 forgets: the counts beyond the prior fall by this factor with each decision.
    """

    kind = "beta_bernoulli"

    def __init__(self, arms: int, *, alpha: float = 1.0, beta: float = 1.0, discount: float = 1.0) -> None:
        if alpha <= 0 or beta <= 0 or not 0 < discount <= 1:
            raise ConfigError(
                f"alpha and beta must be above 0 and discount above 0 and at most 1, got {alpha}, {beta} and {discount}"
            )
        self.prior_alpha, self.prior_beta, self.discount = float(alpha), float(beta), float(discount)
        self.alpha = np.full(arms, self.prior_alpha)
        self.beta = np.full(arms, self.prior_beta)

    @property
    def observed(self) -> float:
        return float(self.alpha.sum() + self.beta.sum()) - len(self.alpha) * (self.prior_alpha + self.prior_beta)

    def estimate(self, context: Floats, actions: ActionSet) -> _RewardEstimate:
        del context
        _require_action_count(actions, len(self.alpha))
        total = self.alpha + self.beta
        rate = self.alpha / total
        return _RewardEstimate(rate, rate * (1.0 - rate) / (total + 1.0))

    def observe(self, contexts: Floats, chosen: Ints, rewards: Floats, weights: Floats, actions: ActionSet) -> None:
        del contexts
        _require_action_count(actions, len(self.alpha))
        _check_observations(np.zeros((0, 0)), chosen, rewards, weights, len(actions))
        wrong = np.flatnonzero((rewards != 0.0) & (rewards != 1.0))
        if len(wrong):
            raise DataError(
                f"reward {rewards[wrong[0]]} of decision {wrong[0]}: a Beta-Bernoulli bandit learns from 0 and 1 only; "
                'use model.kind = "linear" for other rewards'
            )
        if self.discount < 1.0:
            kept = self.discount ** len(chosen)
            self.alpha = self.prior_alpha + kept * (self.alpha - self.prior_alpha)
            self.beta = self.prior_beta + kept * (self.beta - self.prior_beta)
        weights = _weights_by_age(weights, self.discount)
        self.alpha += np.bincount(chosen, weights=weights * rewards, minlength=len(self.alpha))
        self.beta += np.bincount(chosen, weights=weights * (1.0 - rewards), minlength=len(self.beta))

    def draw(self, context: Floats, draws: np.random.Generator) -> Floats:
        """Plausible rates `[n, K]` for contexts `[n, d]`, an independent draw for each."""
        return draws.beta(self.alpha, self.beta, size=(len(context), len(self.alpha)))

    def contents(self) -> PolicyContents:
        settings = {"alpha": self.prior_alpha, "beta": self.prior_beta, "discount": self.discount}
        return PolicyContents(settings=settings, arrays={"alpha": self.alpha, "beta": self.beta})

    def load_contents(self, contents: PolicyContents) -> None:
        alpha = contents.array("alpha", len(self.alpha))
        self.alpha, self.beta = alpha, contents.array("beta", len(self.beta))

    @classmethod
    def from_contents(cls, contents: PolicyContents) -> "BetaBernoulliPosterior":
        model = cls(
            len(contents.array("alpha", None)), alpha=contents.number("alpha"), beta=contents.number("beta"),
            discount=contents.number("discount"),
        )  # fmt: skip
        model.load_contents(contents)
        return model


class GaussianPosterior(_WithoutContexts):
    """Arms with normal rewards of known `noise`, each with a normal posterior of its mean; contexts are ignored."""

    kind = "gaussian"

    def __init__(self, arms: int, *, noise: float = 1.0, prior_precision: float = 1.0, discount: float = 1.0) -> None:
        self.tables = _RidgeTables(arms, 1, noise=noise, prior_precision=prior_precision, discount=discount)

    @property
    def observed(self) -> float:
        return float(self.tables.counts.sum())

    def estimate(self, context: Floats, actions: ActionSet) -> _RewardEstimate:
        del context
        _require_action_count(actions, len(self.tables.counts))
        return _RewardEstimate(self.tables.coefficients[:, 0], self.tables.inverse[:, 0, 0])

    def observe(self, contexts: Floats, chosen: Ints, rewards: Floats, weights: Floats, actions: ActionSet) -> None:
        del contexts
        _require_action_count(actions, len(self.tables.counts))
        _check_observations(np.zeros((0, 0)), chosen, rewards, weights, len(actions))
        self.tables.observe(np.ones((len(chosen), 1)), chosen, rewards, weights)

    def contents(self) -> PolicyContents:
        return self.tables.contents()

    def load_contents(self, contents: PolicyContents) -> None:
        self.tables.load_contents(contents)

    @classmethod
    def from_contents(cls, contents: PolicyContents) -> "GaussianPosterior":
        tables = _RidgeTables.from_contents(contents)
        if tables.information.shape[1] != 1:
            raise DataError(f"tables of {tables.information.shape[1]} features, and arms without contexts have 1")
        model = cls(len(tables.counts))
        model.tables = tables
        return model


class ArmMeans(_WithoutContexts):
    """Weighted count and mean of each arm's rewards; contexts are ignored. The variance is 1 / count.

    An arm without rewards has mean 0 and an infinite variance, so that UCB1 tries it first.
    """

    kind = "arm_means"

    def __init__(self, arms: int, *, discount: float = 1.0) -> None:
        if not 0 < discount <= 1:
            raise ConfigError(f"discount must be above 0 and at most 1, got {discount}")
        self.discount = float(discount)
        self.count, self.total = np.zeros(arms), np.zeros(arms)

    @property
    def observed(self) -> float:
        return float(self.count.sum())

    def estimate(self, context: Floats, actions: ActionSet) -> _RewardEstimate:
        del context
        _require_action_count(actions, len(self.count))
        tried = self.count > 0
        mean = np.divide(self.total, self.count, out=np.zeros(len(tried)), where=tried)
        return _RewardEstimate(mean, np.divide(1.0, self.count, out=np.full(len(tried), np.inf), where=tried))

    def observe(self, contexts: Floats, chosen: Ints, rewards: Floats, weights: Floats, actions: ActionSet) -> None:
        del contexts
        _require_action_count(actions, len(self.count))
        _check_observations(np.zeros((0, 0)), chosen, rewards, weights, len(actions))
        kept, weights = self.discount ** len(chosen), _weights_by_age(weights, self.discount)
        self.count = kept * self.count + np.bincount(chosen, weights=weights, minlength=len(self.count))
        self.total = kept * self.total + np.bincount(chosen, weights=weights * rewards, minlength=len(self.total))

    def contents(self) -> PolicyContents:
        return PolicyContents(settings={"discount": self.discount}, arrays={"count": self.count, "total": self.total})

    def load_contents(self, contents: PolicyContents) -> None:
        count = contents.array("count", len(self.count))
        self.count, self.total = count, contents.array("total", len(self.total))

    @classmethod
    def from_contents(cls, contents: PolicyContents) -> "ArmMeans":
        model = cls(len(contents.array("count", None)), discount=contents.number("discount"))
        model.load_contents(contents)
        return model
