"""Rules that explore: epsilon-greedy, Boltzmann, SquareCB, upper confidence bounds, a target rate, Thompson sampling.

Probability that each arm is the best of independent posteriors: what Thompson sampling is the draw of.

With F(x) the product of the arms' distribution functions F_k,

    P_k = integral of F(x) f_k(x) / F_k(x) dx

For normal scores whose widths are alike this is a sum over an even grid. The integrand is analytic and falls to 0 at
both ends, so the error falls exponentially with the grid's step: at 0.7 standard deviations of the narrowest arm, and
4.2 of them beyond the outermost arm, it is below 1e-4 (1.2e-5 against adaptive integration of ten arms). Many contexts
are summed at once.

Where an arm is much narrower than another an even grid is too long, and for Beta rates it is the wrong one. There
P(k is best) is the integral of dF(x), shared among the arms by d log F_k / d log F. On a grid x_0 < x_1 < ... it is

    P_k = sum_i (F(x_i+1) - F(x_i)) * (log F_k(x_i+1) - log F_k(x_i)) / (log F(x_i+1) - log F(x_i))

whose sum over k is the mass of F between the grid's ends, and whose error is second order in the grid's step. The grid
merges `POINTS` points around each arm, so that a very narrow arm has as many as a wide one: a uniform grid would miss
it. Against adaptive integration the probabilities of ten arms are right to 3e-4 and those of two to 1e-3.

Optimism under uncertainty: policies that take the action with the greatest upper confidence bound.

They are deterministic: all mass is on one action, so that a log of theirs supports no estimate of another policy. A
served one is wrapped in an `EpsilonFloor`.

Thompson sampling as a distribution: the probability that each arm is the best under the posterior.

An arm is pulled as often as it is believed to be the best (Thompson, 1933). The probabilities come from quadrature,
and the policy draws from them, so that its log-probabilities are those that it decided by.
"""

import math
from functools import lru_cache
from typing import Final

import numpy as np

from hone.core.decisions import ActionSet, Floats, Ints
from hone.core.errors import ConfigError, DataError
from hone.decide.bandits.models import ArmMeans, BanditModel, BetaBernoulliPosterior, reward_model
from hone.decide.bandits.policy import (
    BanditPolicy,
    PolicyContents,
    PolicyDistribution,
    best_action,
    log_mass,
    point_mass,
)


class EpsilonGreedyPolicy(BanditPolicy):
    """Epsilon-greedy: with probability `epsilon` a uniform action, else the one with the greatest expected reward."""

    kind = "epsilon_greedy"

    def __init__(self, model: BanditModel, epsilon: float) -> None:
        if not 0 <= epsilon <= 1:
            raise ConfigError(f"epsilon must be from 0 to 1, got {epsilon}")
        self.model, self.epsilon = model, float(epsilon)

    def distribution(self, context: Floats, actions: ActionSet) -> PolicyDistribution:
        mean = self.model.mean(context, actions)
        mass = np.full(len(mean), self.epsilon / len(mean))
        mass[best_action(mean)] += 1.0 - self.epsilon
        return PolicyDistribution(log_mass(mass), mean)

    def distribution_rows(self, contexts: Floats, actions: ActionSet) -> PolicyDistribution:
        mean = self.model.mean_rows(contexts, actions)
        mass = np.full(mean.shape, self.epsilon / mean.shape[1])
        mass[np.arange(len(mean)), mean.argmax(axis=1)] += 1.0 - self.epsilon
        return PolicyDistribution(log_mass(mass), mean)

    def contents(self) -> PolicyContents:
        return PolicyContents(settings={"epsilon": self.epsilon}, parts={"model": self.model})

    @classmethod
    def from_contents(cls, contents: PolicyContents) -> "EpsilonGreedyPolicy":
        return cls(reward_model(contents), contents.number("epsilon"))


class BoltzmannPolicy(BanditPolicy):
    """Boltzmann exploration: probabilities proportional to exp(expected reward / `temperature`)."""

    kind = "boltzmann"

    def __init__(self, model: BanditModel, temperature: float) -> None:
        if temperature <= 0:
            raise ConfigError(f"temperature must be above 0, got {temperature}")
        self.model, self.temperature = model, float(temperature)

    def distribution(self, context: Floats, actions: ActionSet) -> PolicyDistribution:
        return self._softmax(self.model.mean(context, actions))

    def distribution_rows(self, contexts: Floats, actions: ActionSet) -> PolicyDistribution:
        return self._softmax(self.model.mean_rows(contexts, actions))

    def _softmax(self, mean: Floats) -> PolicyDistribution:
        logits = (mean - mean.max(axis=-1, keepdims=True)) / self.temperature
        return PolicyDistribution(logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True)), mean)

    def contents(self) -> PolicyContents:
        return PolicyContents(settings={"temperature": self.temperature}, parts={"model": self.model})

    @classmethod
    def from_contents(cls, contents: PolicyContents) -> "BoltzmannPolicy":
        return cls(reward_model(contents), contents.number("temperature"))


class SquareCbPolicy(BanditPolicy):
    """SquareCB, inverse gap weighting (Foster & Rakhlin, 2020).

    p_k = 1 / (K + gamma (best - mean_k)), and the best has the rest. gamma = gamma_scale t^gamma_exponent grows with
    the t rows that the model has learnt, so that exploration fades. No probability is ever 0, and actions that are
    nearly as good get most of the exploration.
    """

    kind = "squarecb"

    def __init__(self, model: BanditModel, gamma_scale: float = 10.0, gamma_exponent: float = 0.5) -> None:
        if gamma_scale <= 0 or gamma_exponent < 0:
            raise ConfigError(
                f"gamma_scale must be above 0 and gamma_exponent at least 0, got {gamma_scale} and {gamma_exponent}"
            )
        self.model, self.gamma_scale, self.gamma_exponent = model, float(gamma_scale), float(gamma_exponent)

    def distribution(self, context: Floats, actions: ActionSet) -> PolicyDistribution:
        return self._weighted(self.model.mean(context, actions)[None], rows=False)

    def distribution_rows(self, contexts: Floats, actions: ActionSet) -> PolicyDistribution:
        return self._weighted(self.model.mean_rows(contexts, actions), rows=True)

    def _weighted(self, mean: Floats, *, rows: bool) -> PolicyDistribution:
        gamma = self.gamma_scale * max(self.model.observed, 1.0) ** self.gamma_exponent
        best = mean.argmax(axis=1)
        mass = 1.0 / (mean.shape[1] + gamma * (mean.max(axis=1, keepdims=True) - mean))
        places = np.arange(len(mean))
        mass[places, best] += 1.0 - mass.sum(axis=1)
        logp = np.log(mass)
        return PolicyDistribution(logp, mean) if rows else PolicyDistribution(logp[0], mean[0])

    def contents(self) -> PolicyContents:
        settings = {"gamma_scale": self.gamma_scale, "gamma_exponent": self.gamma_exponent}
        return PolicyContents(settings=settings, parts={"model": self.model})

    @classmethod
    def from_contents(cls, contents: PolicyContents) -> "SquareCbPolicy":
        return cls(reward_model(contents), contents.number("gamma_scale"), contents.number("gamma_exponent"))


# ---------------------------------------------------------------------------------------------- upper confidence bounds


class LinUcbPolicy(BanditPolicy):
    """LinUCB: the action with the greatest x . theta_k + alpha sqrt(x' A_k^-1 x) (Li et al., 2010).

    The first of equals is taken. With a `LinearGaussianPosterior` of noise 1 it is the disjoint form, with a
    `JointLinearPosterior` the shared one.
    """

    kind = "linucb"

    def __init__(self, model: BanditModel, alpha: float) -> None:
        if alpha < 0:
            raise ConfigError(f"alpha must be at least 0, got {alpha}")
        self.model, self.alpha = model, float(alpha)

    def distribution(self, context: Floats, actions: ActionSet) -> PolicyDistribution:
        mean, variance = self.model.estimate(context, actions)
        bound = np.sqrt(variance)
        bound *= self.alpha
        bound += mean
        return PolicyDistribution(point_mass(best_action(bound), len(bound)), mean)

    def distribution_rows(self, contexts: Floats, actions: ActionSet) -> PolicyDistribution:
        mean, variance = self.model.estimate_rows(contexts, actions)
        bound = mean + self.alpha * np.sqrt(variance)
        logp = np.full(mean.shape, -np.inf)
        logp[np.arange(len(mean)), bound.argmax(axis=1)] = 0.0
        return PolicyDistribution(logp, mean)

    def contents(self) -> PolicyContents:
        return PolicyContents(settings={"alpha": self.alpha}, parts={"model": self.model})

    @classmethod
    def from_contents(cls, contents: PolicyContents) -> "LinUcbPolicy":
        return cls(reward_model(contents), contents.number("alpha"))


class Ucb1Policy(BanditPolicy):
    """UCB1: the arm with the greatest mean + width sqrt(2 ln t / n_k) after t pulls, n_k of them of arm k.

    For rewards in [0, 1] `width` is 1 (Auer et al., 2002). Arms that were never pulled come first. It ignores contexts.
    """

    kind = "ucb1"

    def __init__(self, model: ArmMeans, width: float = 1.0) -> None:
        if width < 0:
            raise ConfigError(f"width must be at least 0, got {width}")
        self.model, self.width = model, float(width)

    def distribution(self, context: Floats, actions: ActionSet) -> PolicyDistribution:
        mean, inverse_count = self.model.estimate(context, actions)
        width = self.width * math.sqrt(2.0 * math.log(max(self.model.observed, math.e)))
        bound = mean + width * np.sqrt(inverse_count)
        bound[self.model.count == 0] = np.inf
        return PolicyDistribution(point_mass(best_action(bound), len(bound)), mean)

    def distribution_rows(self, contexts: Floats, actions: ActionSet) -> PolicyDistribution:
        return self.distribution(contexts, actions).repeated(len(contexts))

    def contents(self) -> PolicyContents:
        return PolicyContents(settings={"width": self.width}, parts={"model": self.model})

    @classmethod
    def from_contents(cls, contents: PolicyContents) -> "Ucb1Policy":
        model = reward_model(contents)
        if not isinstance(model, ArmMeans):
            raise DataError(f"UCB1 needs a model of the kind {ArmMeans.kind}, not {model.kind}")
        return cls(model, contents.number("width"))


# --------------------------------------------------------------------------------------------------------- target rate


class TargetRatePolicy(BanditPolicy):
    """Dynamic difficulty: a policy over K levels with p_k proportional to exp(-(chance_k - target)^2 / (2 spread^2)).

    A level is an opponent with a rating, so that a player's chance to pass it is that of a game between the two:
    chance_k = 1 / (1 + exp(-(m - m_k) / sqrt(s^2 + s_k^2 + 2 beta^2))) for a player with the rating (m, s), the first
    two features of the context, and levels with ratings (m_k, s_k). Scores are the chances. Raises ConfigError for
    levels that are none, a target outside of (0, 1), and a spread or beta that is not above 0.
    """

    kind = "target_rate"

    def __init__(self, levels: Floats, *, target: float = 0.65, spread: float = 0.03, beta: float = 25 / 6) -> None:
        if levels.ndim != 2 or levels.shape[1] != 2 or not len(levels) or not np.isfinite(levels).all():
            raise ConfigError(f"levels must be [K, 2], a mean and a deviation each, got shape {levels.shape}")
        if not (0 < target < 1 and spread > 0 and beta > 0):
            raise ConfigError(
                f"target must be between 0 and 1, spread and beta above 0, got {target:g}, {spread:g} and {beta:g}"
            )
        self.levels = levels
        self.target, self.spread, self.beta = float(target), float(spread), float(beta)

    def distribution(self, context: Floats, actions: ActionSet) -> PolicyDistribution:
        """Raises DataError for another number of actions than of levels, and for a context without a rating."""
        logp, chances = self.distribution_rows(context[None], actions)
        return PolicyDistribution(logp[0], None if chances is None else chances[0])

    def distribution_rows(self, contexts: Floats, actions: ActionSet) -> PolicyDistribution:
        if len(actions) != len(self.levels) or contexts.shape[1] < 2:
            raise DataError(
                f"{len(actions)} actions and {contexts.shape[1]} features; this policy has {len(self.levels)} levels, "
                "and the first two features are the mean and the deviation of the player's rating"
            )
        variance = contexts[:, 1:2] ** 2 + self.levels[:, 1] ** 2 + 2 * self.beta**2
        chances = 1 / (1 + np.exp(np.minimum((self.levels[:, 0] - contexts[:, :1]) / np.sqrt(variance), 700.0)))
        logits = -0.5 * ((chances - self.target) / self.spread) ** 2
        logits -= logits.max(axis=1, keepdims=True)
        return PolicyDistribution(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)), chances)

    def contents(self) -> PolicyContents:
        settings = {"target": self.target, "spread": self.spread, "beta": self.beta}
        return PolicyContents(settings=settings, arrays={"levels": self.levels})

    @classmethod
    def from_contents(cls, contents: PolicyContents) -> "TargetRatePolicy":
        return cls(
            contents.array("levels", None, 2), target=contents.number("target"), spread=contents.number("spread"),
            beta=contents.number("beta"),
        )  # fmt: skip


# ----------------------------------------------------------------------------------------------------------- quadrature


POINTS: Final = 41
"""Grid points around each arm."""
LARGEST_ERROR: Final = 1e-2
"""Distance of the probabilities' sum from 1 beyond which they are refused."""
_STEPS: Final = np.linspace(-5.0, 5.0, POINTS)
"""Grid points of one arm, in standard deviations."""
_EVEN_SIZES: Final = np.array([12.0, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256])
"""Points of an even grid; a row takes the smallest that is fine enough."""
_EVEN_STEP: Final = 0.7
"""Step of an even grid, in standard deviations of the narrowest arm."""
_EVEN_REACH: Final = 4.2
"""Standard deviations of each arm that an even grid covers."""
_AT_ONCE: Final = 1 << 17
"""Grid points of rows that are summed at once: they fit into a processor's cache."""
_DEEPEST: Final = 7.0
"""Standard deviations below an arm's mean at which the best arm is not: the mass there is below 1e-11."""
_MILLS: Final = (
    0.3199959049620152, 0.32018025583531246, 0.28434870747713015, 0.24408142381768186,
    0.03907351691155613, 0.26599574420623917, -0.3068923509550098, 0.08653148144189315,
)  # fmt: skip
"""Coefficients of Mills' ratio (1 - Phi(x)) / phi(x), x >= 0, as a polynomial in t = 1 / (1 + 0.32 x) without constant;
fitted to a relative error of 4.4e-7 over all x >= 0."""
_MILLS_SCALE: Final = 0.32
_DENSITY_AT_0: Final = 0.3989422804014327
"""1 / sqrt(2 pi)."""
_LEGENDRE: Final = np.polynomial.legendre.leggauss(3)
_BETA_STEPS: Final = np.linspace(0.0, 1.0, POINTS // 2 + 1)
_TAIL_NATS: Final = 25.0
"""nats by which a Beta's density falls between its mode and the grid's ends, in its slowest tail."""


def normal_cdf(z: Floats) -> Floats:
    """Distribution function of the standard normal by a rational approximation; relative error below 1e-6 at any z."""
    return _normal(z)[0]


def _normal(z: Floats) -> tuple[Floats, Floats]:
    """Distribution function and density of the standard normal."""
    density = np.abs(z)
    t = density * _MILLS_SCALE
    t += 1.0
    np.divide(1.0, t, out=t)
    mills = np.full_like(t, _MILLS[-1])
    for coefficient in _MILLS[-2::-1]:
        mills *= t
        mills += coefficient
    mills *= t
    density *= density
    density *= -0.5
    np.exp(density, out=density)
    density *= _DENSITY_AT_0
    mills *= density
    return np.where(z > 0.0, 1.0 - mills, mills), density


def normal_best(mean: Floats, variance: Floats) -> Floats:
    """Probability `[K]` that each of K independent normal scores is the greatest.

    Raises DataError where they do not sum to 1 within `LARGEST_ERROR`, as for scores that are not finite.
    """
    return normal_best_rows(mean[None], variance[None])[0]


def normal_best_rows(mean: Floats, variance: Floats) -> Floats:
    """Probabilities `[n, K]` for means and variances `[n, K]`: `normal_best` of each row, to the bit."""
    if not len(mean):
        return np.zeros(mean.shape)
    mean = mean - mean.max(axis=1, keepdims=True)
    spread = np.sqrt(variance)
    least = 1e-9 * spread.max(axis=1, keepdims=True) + 1e-12 * (1.0 - mean.min(axis=1, keepdims=True))
    spread = np.maximum(spread, least)
    low, high = (mean - _EVEN_REACH * spread).max(axis=1), mean + _EVEN_REACH * spread
    narrowest = np.where(high > low[:, None], spread, np.inf).min(axis=1)  # of the arms that may be the best
    grids = np.stack([low, high.max(axis=1)])
    needed: Floats = (grids[1] - grids[0]) / (_EVEN_STEP * narrowest) + 1.0
    size: Ints = np.digitize(needed, _EVEN_SIZES, right=True)
    best = np.empty_like(mean)
    for place in np.unique(size):
        rows = np.flatnonzero(size == place)
        if place == len(_EVEN_SIZES):  # a narrow arm, or numbers that are not finite
            best[rows] = [_merged_best(one, other) for one, other in zip(mean[rows], spread[rows], strict=True)]
            continue
        points = int(_EVEN_SIZES[place])
        step = max(1, _AT_ONCE // (points * mean.shape[1]))
        for begin in range(0, len(rows), step):
            some = rows[begin : begin + step]
            best[some] = _even_best(mean[some], spread[some], grids[:, some], points)
    return best


def _even_best(mean: Floats, spread: Floats, ends: Floats, points: int) -> Floats:
    """Probabilities `[n, K]` on even grids between `ends` `[2, n]`."""
    width = ends[1] - ends[0]
    grid = ends[0][:, None] + width[:, None] * np.linspace(0.0, 1.0, points)
    z = grid[:, None, :] - mean[:, :, None]
    z /= spread[:, :, None]
    below, rate = _normal(z)
    rate /= below
    rate *= below.prod(axis=1)[:, None, :]
    probabilities = rate.sum(axis=2)
    probabilities *= width[:, None] / (points - 1) / spread
    total = probabilities.sum(axis=1, keepdims=True)
    _check_total(float(total.flat[np.abs(total - 1.0).argmax()]), mean.shape[1])
    return probabilities / total


def _merged_best(mean: Floats, spread: Floats) -> Floats:
    """Probabilities `[K]` on the merged grid, for means below 0 and standard deviations."""
    grid = (mean[:, None] + spread[:, None] * _STEPS).ravel()
    grid.sort()
    grid = grid[grid.searchsorted((mean - _DEEPEST * spread).max()) :]
    z = grid - mean[:, None]
    z /= spread[:, None]
    return _shared_mass(np.log(normal_cdf(z)))


def beta_best(alpha: Floats, beta: Floats) -> Floats:
    """Probability `[K]` that each of K independent Beta(alpha_k, beta_k) rates is the greatest.

    In the log-odds u the density of a Beta is exp(alpha u - (alpha + beta) log(1 + e^u)), smooth and with one mode for
    all parameters; its distribution function is integrated on the merged grid. Raises DataError as `normal_best`.
    """
    return _beta_best(alpha.tobytes(), beta.tobytes())


@lru_cache(maxsize=256)
def _beta_best(alpha_bytes: bytes, beta_bytes: bytes) -> Floats:
    """The probabilities by the bits of the parameters: they change when something is learnt, not with a context."""
    alpha, beta = (np.frombuffer(values)[:, None] for values in (alpha_bytes, beta_bytes))
    mode, spread = np.log(alpha / beta), np.sqrt((alpha + beta) / (alpha * beta))
    below, above = (5.0 * spread * _BETA_STEPS + _TAIL_NATS / tail * _BETA_STEPS**3 for tail in (alpha, beta))
    grid = np.unique(np.concatenate([mode - below, mode + above]))
    half = np.diff(grid) / 2
    nodes, weights = _LEGENDRE
    points = (half[:, None] * nodes + (grid[:-1] + half)[:, None]).ravel()
    density = alpha * (points - mode) - (alpha + beta) * (np.logaddexp(0.0, points) - np.logaddexp(0.0, mode))
    mass = (np.exp(density).reshape(len(alpha), -1, len(nodes)) @ weights) * half
    below_each = mass.cumsum(axis=1)
    probabilities = _shared_mass(np.log(np.maximum(below_each / below_each[:, -1:], 1e-300)))
    probabilities.flags.writeable = False
    return probabilities


def _shared_mass(log_cdf: Floats) -> Floats:
    """Probabilities `[K]` from the logarithms of the arms' distribution functions on a grid `[K, G]`."""
    log_all = log_cdf.sum(axis=0)
    mass, rise = np.diff(np.exp(log_all)), np.diff(log_all)
    shares = np.divide(mass, rise, out=np.zeros_like(mass), where=rise > 0.0)
    probabilities = np.diff(log_cdf, axis=1) @ shares
    total = float(probabilities.sum())
    _check_total(total, len(probabilities))
    return np.maximum(probabilities, 0.0) / total


def _check_total(total: float, arms: int) -> None:
    if not abs(total - 1.0) <= LARGEST_ERROR:
        raise DataError(
            f"the probabilities of Thompson sampling sum to {total} over {arms} arms: the posterior "
            "holds numbers that are not finite: look at its means and variances"
        )


# ------------------------------------------------------------------------------------------------------------- thompson


class GaussianThompsonPolicy(BanditPolicy):
    """Thompson sampling where each arm's expected reward has a normal posterior, as in linear and Gaussian models.

    The arms' posteriors are taken as independent. They are in models with a table for each arm; with a
    `JointLinearPosterior` the policy draws each arm's reward on its own.
    """

    kind = "thompson_gaussian"

    def __init__(self, model: BanditModel) -> None:
        self.model = model

    def distribution(self, context: Floats, actions: ActionSet) -> PolicyDistribution:
        mean, variance = self.model.estimate(context, actions)
        return PolicyDistribution(log_mass(normal_best(mean, variance)), mean)

    def distribution_rows(self, contexts: Floats, actions: ActionSet) -> PolicyDistribution:
        mean, variance = self.model.estimate_rows(contexts, actions)
        return PolicyDistribution(log_mass(normal_best_rows(mean, variance)), mean)

    def contents(self) -> PolicyContents:
        return PolicyContents(parts={"model": self.model})

    @classmethod
    def from_contents(cls, contents: PolicyContents) -> "GaussianThompsonPolicy":
        return cls(reward_model(contents))


class BetaThompsonPolicy(BanditPolicy):
    """Thompson sampling where each arm's rate has a Beta posterior; contexts are ignored."""

    kind = "thompson_beta"

    def __init__(self, model: BetaBernoulliPosterior) -> None:
        self.model = model

    def distribution(self, context: Floats, actions: ActionSet) -> PolicyDistribution:
        mean = self.model.mean(context, actions)
        return PolicyDistribution(log_mass(beta_best(self.model.alpha, self.model.beta)), mean)

    def distribution_rows(self, contexts: Floats, actions: ActionSet) -> PolicyDistribution:
        return self.distribution(contexts, actions).repeated(len(contexts))

    def contents(self) -> PolicyContents:
        return PolicyContents(parts={"model": self.model})

    @classmethod
    def from_contents(cls, contents: PolicyContents) -> "BetaThompsonPolicy":
        model = reward_model(contents)
        if not isinstance(model, BetaBernoulliPosterior):
            raise DataError(f"it needs a model of the kind {BetaBernoulliPosterior.kind}, not {model.kind}")
        return cls(model)


def thompson_policy(model: BanditModel) -> BanditPolicy:
    """Thompson sampling over a posterior, Beta or normal."""
    return BetaThompsonPolicy(model) if isinstance(model, BetaBernoulliPosterior) else GaussianThompsonPolicy(model)
