"""Betting e-process for bounded scores, in its mixture form (Waudby-Smith and Ramdas, 2020; Shafer, 2021).

Null hypothesis: given the past, E[z_t] <= 0, for scores z_t in [-1, 1]. A gambler who stakes the share s of a wealth
of 1 on "z > 0" holds

    W_t(s) = prod_{i <= t} (1 + s z_i)

a nonnegative supermartingale under the null for each s in [0, 1), and so is the mean over K fixed stakes,

    e_t = 1/K sum_k W_t(s_k).

By Ville's inequality P(there is a t with e_t >= 1/alpha) <= alpha: the test may be looked at after every event, through
every stage, and spends alpha once. Nothing is asymptotic; the scores may depend on the past.

Test of the sample ratio that holds at every look: are units assigned in the declared proportions?

A multinomial e-process (Lindon and Malek, "Anytime-valid inference for multinomial count data", 2022): the Bayes factor
of a Dirichlet distribution around the declared shares theta against theta itself. After counts n_1 ... n_A its next
factor, for a unit in arm a, is

    (kappa theta_a + n_a) / ((kappa + n) theta_a)

whose mean under theta is 1. A mismatch has a cause in assignment, logging or joining, never in the policies; estimates
from such data are worth nothing, so a rollout stops.

Difference of two matched arms as one stream of scores for an e-process.

Each exposed unit goes to the new version (arm A = 1) or to the concurrent control slice (A = -1) by a fair coin: equal
slices of a hash. With a value y in [0, 1], more is better, and a centre c that is known before the coin falls,

    z = -A (y - c) / (1 + m/2) - (m/2) / (1 + m/2),      E[z | past] = (E[y | control] - E[y | new] - m) / (2 + m)

so E[z] <= 0 as long as the new version is worse by no more than the tolerance m. The coin makes it hold for *every*
predictable c and for values that drift together; a centre near the value makes z small, which is where the power comes
from. Here c is the running mean of both arms, beginning at 1/2, or a regression of earlier values on covariates that
are known before the coin falls (CUPED: Deng, Xu, Kohavi and Walker, 2013). A covariate that says nothing costs next to
nothing, one that explains the part R^2 of the variance saves that part of the units.

One score a unit: the arm of a unit that returns is known, and no coin falls any more.

Confidence sequences: intervals of a mean that hold at every look at once, for display beside an e-process.

Two kinds. The asymptotic one (Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, 2021) is narrow and holds for large
samples:

    mean +- sd sqrt( 2 (t rho^2 + 1) / (t^2 rho^2) log( sqrt(t rho^2 + 1) / alpha ) )

The empirical Bernstein one (Waudby-Smith and Ramdas, 2020, predictable plug-in) holds from the first event on, for
values in [0, 1]: with l_t = min(1/2, sqrt(2 log(2/alpha) / (v_{t-1} t log(1 + t)))),

    sum l x / sum l  +-  ( log(2/alpha) + sum 4 (x_i - m_{i-1})^2 (-log(1 - l_i) - l_i) / 4 ) / sum l

A rollout acts on neither: the e-process has the power, and these show the size of an effect.

Smallest fall of a mean that an e-process finds by a given number of events: the preview of a rollout's plan.

With n events of matched arms, a fall d of the mean and a standard deviation sd of the value, the log-wealth of stake s
is close to a Brownian motion with drift g = n (s d / 2 - s^2 sd^2 / 2) and variance v = n s^2 sd^2. It reaches
b = log(1/alpha) + cost, the cost of the other stakes, with the probability (Siegmund, 1985)

    Phi((g - b) / sqrt(v)) + exp(2 g b / v) Phi(-(g + b) / sqrt(v))

and the power is that of the best stake. Approximate: within about 5 points of simulated rollouts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_NORMAL = NormalDist()

STAKES: Final = tuple(float(f"{stake:.6g}") for stake in np.geomspace(0.02, 0.9, 8))
"""Eight fixed stakes from .02 (small effects, long rollouts) to .9 (a version that fails at once)."""


DEADLINE_PART: Final = 0.6
"""Part of the wealth that plays for the deadline."""
_BLOCKS: Final = 256
"""Times that its stake is set until the deadline."""
_MOST_STAKE: Final = 0.9
_FIRST_VARIANCE: Final = 0.1
_FIRST_SCORES: Final = 10
"""Variance of a score that is assumed at first, with the weight of this many scores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineBet:
    """Gambler who wants 1/level by a deadline. Immutable: `advance` returns the next one."""

    horizon: int
    """Scores until the deadline; nothing is staked afterwards."""
    level: float
    """alpha of the whole process."""
    log_wealth: float = 0.0
    """nats."""
    seen: int = 0
    squares: float = 0.0
    """Sum of squared scores."""
    stake: float = 0.0
    """Stake in the present block of scores."""

    def advance(self, scores: Floats, mixture: Floats) -> tuple["DeadlineBet", Floats]:
        """Take scores `[n]`, beside the log e-values of the fixed stakes before each of them `[n]` -> the next bet, and
        its log-wealth after each score `[n]`."""
        block, path = max(1, self.horizon // _BLOCKS), np.empty(len(scores))
        wealth, seen, squares, stake = self.log_wealth, self.seen, self.squares, self.stake
        done = 0
        while done < len(scores):
            if seen % block == 0:
                stake = self._stake(wealth, seen, squares, float(mixture[done]))
            end = min(len(scores), done + block - seen % block)
            part = scores[done:end]
            path[done:end] = wealth + np.cumsum(np.log1p(stake * part))
            wealth, squares = float(path[end - 1]), squares + float((part**2).sum())
            seen, done = seen + len(part), end
        return replace(self, log_wealth=wealth, seen=seen, squares=squares, stake=stake), path

    def _stake(self, log_wealth: float, seen: int, squares: float, mixture: float) -> float:
        variance = (squares + _FIRST_SCORES * _FIRST_VARIANCE) / (seen + _FIRST_SCORES)
        left = variance * (self.horizon - seen)
        goal = (1 / self.level - (1 - DEADLINE_PART) * math.exp(min(mixture, 100.0))) / DEADLINE_PART
        held = math.exp(min(log_wealth, 100.0))
        if left <= 0 or held >= goal:
            return 0.0
        share = max(held / goal, 1e-12)
        return min(_MOST_STAKE, _NORMAL.pdf(_NORMAL.inv_cdf(share)) / (share * math.sqrt(left)))


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureProcess:
    """E-process after `count` scores. Immutable: `advance` returns the next one."""

    log_wealth: tuple[float, ...] = (0.0,) * len(STAKES)
    """nats: log-wealth of each stake."""
    count: int = 0
    deadline: DeadlineBet | None = None
    """None: all of the wealth is with the fixed stakes."""

    @property
    def log_e(self) -> float:
        """nats: logarithm of the e-value now."""
        fixed = log_mean_exp(np.array([self.log_wealth]))
        return float(_with_deadline(fixed, None if self.deadline is None else np.array([self.deadline.log_wealth]))[0])

    def advance(self, scores: Floats) -> tuple["MixtureProcess", Floats]:
        """Take scores `[n]` in [-1, 1] -> the next process, and log e after each of them `[n]`. A score of 0 changes no
        wealth, and brings the deadline nearer."""
        if not len(scores):
            return self, np.zeros(0)
        wealth = mixture_wealth(scores, start=np.array(self.log_wealth))
        fixed = log_mean_exp(wealth)
        deadline, path = self.deadline, None
        if deadline is not None:
            first = log_mean_exp(np.array([self.log_wealth]))
            deadline, path = deadline.advance(scores, np.concatenate([first, fixed[:-1]]))
        last = tuple(float(value) for value in wealth[-1])
        following = MixtureProcess(log_wealth=last, count=self.count + len(scores), deadline=deadline)
        return following, _with_deadline(fixed, path)


def _with_deadline(fixed: Floats, deadline: Floats | None) -> Floats:
    """log of the mixture of the fixed stakes' e-values and the deadline's wealth `[n]`, both in nats."""
    if deadline is None:
        return fixed
    return np.logaddexp(math.log(1 - DEADLINE_PART) + fixed, math.log(DEADLINE_PART) + deadline)


def mixture_wealth(scores: Floats, *, start: Floats | float = 0.0) -> Floats:
    """Log-wealth of each stake after each score `[..., n]` -> `[..., n, K]` in nats. Raises ValueError beyond [-1, 1].

    `start` `[K]` is the log-wealth before the first score. Sums run in order, so that batches make no difference.
    """
    if not np.all(np.abs(scores) <= 1):  # NaN too
        worst = scores.ravel()[int(np.argmax(np.nan_to_num(np.abs(scores.ravel()), nan=np.inf)))]
        raise ValueError(f"scores of an e-process lie in [-1, 1], got {worst}; scale them by their bounds")
    steps = np.log1p(scores[..., None] * np.array(STAKES))
    steps[..., 0, :] += start
    return np.cumsum(steps, axis=-2)


def log_mean_exp(values: Floats) -> Floats:
    """log of the mean of exp(values) over the last axis, without overflow."""
    top = values.max(axis=-1)
    return top + np.log(np.exp(values - top[..., None]).mean(axis=-1))


def mixture_paths(scores: Floats) -> Floats:
    """log e after each score of many runs at once `[..., n]` -> `[..., n]` in nats."""
    return log_mean_exp(mixture_wealth(scores))


def shared_log_e(log_e: Sequence[float]) -> float:
    """E-value of several guardrails together, in nats: the mean of their e-values is an e-process.

    It holds for any dependence between them, so alpha is spent once for all.
    """
    if not log_e:
        return 0.0
    return float(log_mean_exp(np.array(log_e, dtype=np.float64)))


def alarm_at(log_e: Floats, alpha: float) -> int | None:
    """Place of the first log e-value `[n]` that reaches log(1/alpha); None: none does."""
    reached = np.flatnonzero(log_e >= -math.log(alpha))
    return int(reached[0]) if len(reached) else None


# --------------------------------------------------------------------------------------------------------- sample ratio


Ints = NDArray[np.int64]

CONCENTRATION: Final = 400.0
"""kappa: with two equal arms it looks for shares around .5 +- .025, and finds larger ones at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRatio:
    """Counts of the arms and the e-value against the declared shares. Immutable: `advance` returns the next one."""

    shares: tuple[float, ...] = (0.5, 0.5)
    counts: tuple[int, ...] = (0, 0)
    log_e: float = 0.0
    """nats."""

    def advance(self, arms: Ints) -> tuple["SampleRatio", Floats]:
        """Take numbers of arms `[n]` -> the next counts, and log e after each `[n]`."""
        if not len(arms):
            return self, np.zeros(0)
        path = self.log_e + ratio_paths(arms, self.shares, self.counts)
        added = np.bincount(arms, minlength=len(self.shares))
        counts = tuple(old + int(new) for old, new in zip(self.counts, added, strict=True))
        return SampleRatio(shares=self.shares, counts=counts, log_e=float(path[-1])), path


def ratio_paths(arms: Ints, shares: tuple[float, ...], counts: tuple[int, ...] | None = None) -> Floats:
    """log e after each assignment of many runs at once: numbers of arms `[..., n]` -> `[..., n]` in nats.

    `counts` came before. Raises ValueError for shares that are no distribution.
    """
    if not math.isclose(sum(shares), 1) or min(shares) <= 0:
        raise ValueError(f"declared shares are positive and sum to 1, got {shares}")
    counts = counts or (0,) * len(shares)
    earlier = np.arange(sum(counts), sum(counts) + arms.shape[-1], dtype=np.float64)
    steps = np.zeros(arms.shape)
    for arm, (share, count) in enumerate(zip(shares, counts, strict=True)):
        here = arms == arm
        before = count + np.cumsum(here, axis=-1) - here
        steps += here * np.log((CONCENTRATION * share + before) / ((CONCENTRATION + earlier) * share))
    return np.cumsum(steps, axis=-1)


# --------------------------------------------------------------------------------------------------------- matched arms


Bools = NDArray[np.bool_]


_REFIT: Final = 50
"""Values after which the regression is fitted again."""
_RIDGE: Final = 20.0
"""Weight of the squared coefficients of covariates of unit variance, in values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeRegression:
    """Ridge regression of values on covariates by its sums. Immutable: `advance` returns the next one."""

    count: int = 0
    products: tuple[float, ...] = ()
    """Upper triangle of the sum of x x', x a constant and the covariates."""
    sides: tuple[float, ...] = ()
    """Sum of x y."""
    coefficients: tuple[float, ...] = ()
    """Fitted at the last multiple of 50 values; empty: not yet."""

    def advance(self, covariates: Floats, values: Floats) -> tuple["OutcomeRegression", Floats]:
        """Take covariates `[n, d]` and values `[n]` -> the next regression, and the prediction of each value by those
        before it `[n]`; NaN: none, as there were too few, or a covariate is not finite."""
        x = np.column_stack([np.ones(len(values)), covariates])
        size = x.shape[1]
        upper = np.triu_indices(size)
        products, sides = np.zeros((size, size)), np.zeros(size)
        if self.sides:
            products[upper], sides = self.products, np.array(self.sides)
        fitted = np.array(self.coefficients) if self.coefficients else None
        predicted, usable = np.full(len(values), np.nan), np.isfinite(x.sum(axis=1))
        count, done = self.count, 0
        while done < len(values):
            end = min(len(values), done + _REFIT - count % _REFIT)
            rows = done + np.flatnonzero(usable[done:end])
            if fitted is not None:
                predicted[rows] = x[rows] @ fitted
            products += np.triu(x[rows].T @ x[rows])
            sides = sides + values[rows] @ x[rows]
            count, done = count + end - done, end
            if count % _REFIT == 0 and products[0, 0] > 0:
                fitted = _ridge_coefficients(products, sides)
        following = OutcomeRegression(
            count=count, products=tuple(products[upper].tolist()), sides=tuple(sides.tolist()),
            coefficients=() if fitted is None else tuple(fitted.tolist()),
        )  # fmt: skip
        return following, predicted


def _ridge_coefficients(products: Floats, sides: Floats) -> Floats:
    """Coefficients `[1 + d]` from the upper triangle of the sums; a covariate that never varies has none."""
    whole, rows = products + np.triu(products, 1).T, products[0, 0]
    mean = whole[0] / rows
    variance = np.maximum(np.diag(whole) / rows - mean**2, 0.0)
    varies = variance > 1e-12 * (1 + mean**2)
    slopes = np.zeros(len(sides))
    if varies.any():
        spread = np.sqrt(variance[varies])
        centred = (whole - rows * np.outer(mean, mean))[np.ix_(varies, varies)] / np.outer(spread, spread)
        side = (sides - mean * sides[0])[varies] / spread
        slopes[varies] = np.linalg.solve(centred + _RIDGE * np.eye(len(side)), side) / spread
    slopes[0] = sides[0] / rows - float(slopes[1:] @ mean[1:])
    return slopes


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedArms:
    """Counts and sums of both arms after some events. Immutable: `advance` returns the next one."""

    tolerance: float = 0.0
    """Largest loss of the mean value that is accepted, in units of the value's range."""
    new_count: int = 0
    new_sum: float = 0.0
    control_count: int = 0
    control_sum: float = 0.0
    regression: OutcomeRegression = field(default_factory=OutcomeRegression)
    """Regression of the values on the units' covariates."""

    @property
    def count(self) -> int:
        """Events of both arms."""
        return self.new_count + self.control_count

    @property
    def new_mean(self) -> float:
        """Mean value of the new version; NaN without events."""
        return self.new_sum / self.new_count if self.new_count else float("nan")

    @property
    def control_mean(self) -> float:
        """Mean value of the control slice; NaN without events."""
        return self.control_sum / self.control_count if self.control_count else float("nan")

    def advance(self, values: Floats, is_new: Bools, covariates: Floats | None = None) -> tuple["MatchedArms", Floats]:
        """Take values `[n]` in [0, 1], their arms `[n]` and covariates `[n, d]`, known before the arm was drawn -> the
        next counts, and the scores `[n]`."""
        regression, predicted = self.regression, None
        if covariates is not None and covariates.shape[1]:
            regression, predicted = regression.advance(covariates, values)
        total = self.new_sum + self.control_sum
        scores = matched_scores(
            values, is_new, count=self.count, total=total, tolerance=self.tolerance, predicted=predicted
        )
        following = MatchedArms(
            tolerance=self.tolerance,
            new_count=self.new_count + int(is_new.sum()),
            new_sum=self.new_sum + float(values[is_new].sum()),
            control_count=self.control_count + int((~is_new).sum()),
            control_sum=self.control_sum + float(values[~is_new].sum()),
            regression=regression,
        )
        return following, scores


def matched_scores(
    values: Floats,
    is_new: Bools,
    *,
    count: int = 0,
    total: float = 0.0,
    tolerance: float = 0.0,
    predicted: Floats | None = None,
) -> Floats:
    """Scores of many runs at once: values in [0, 1] and arms `[..., n]` -> `[..., n]` in [-1, 1].

    `count` events with the sum `total` came before. `predicted` `[..., n]`: centres from covariates, NaN for the
    running mean. Raises ValueError beyond [0, 1], and for a tolerance that is not between 0 and 1.
    """
    if not 0 <= tolerance <= 1:
        raise ValueError(f"the tolerance is a part of the value's range, 0 to 1, got {tolerance}")
    if not np.all((values >= 0) & (values <= 1)):
        raise ValueError("values of matched arms lie in [0, 1]; scale and clip them, and count the clipped ones")
    before = total + np.cumsum(values, axis=-1) - values
    seen = np.arange(count + 1, count + 1 + values.shape[-1], dtype=np.float64)
    centre = (0.5 + before) / seen
    if predicted is not None:
        centre = np.where(np.isnan(predicted), centre, np.clip(predicted, 0.0, 1.0))
    signed = np.where(is_new, centre - values, values - centre)
    return (signed - tolerance / 2) / (1 + tolerance / 2)


def effects_from_scores(scores: Floats, tolerance: float = 0.0) -> Floats:
    """Unbiased estimates, one an event, of the new version's mean minus the control's: -2 A-weighted values `[n]`."""
    return -2 * (scores * (1 + tolerance / 2) + tolerance / 2)


# ------------------------------------------------------------------------------------------------- confidence sequences


TIGHT_AT: Final = 1000
"""Events at which the asymptotic sequence is tightest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceInterval:
    """Interval of a mean at one look."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AsymptoticSequence:
    """Running mean and variance with their confidence sequence. Immutable: `advance` returns the next one."""

    alpha: float = 0.05
    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def advance(self, values: Floats) -> "AsymptoticSequence":
        """Take values `[n]`."""
        return AsymptoticSequence(
            alpha=self.alpha,
            count=self.count + len(values),
            total=self.total + float(values.sum()),
            squares=self.squares + float((values**2).sum()),
        )

    def interval(self) -> SequenceInterval:
        """Interval after the values so far; infinite before the second one."""
        if self.count < 2:
            return SequenceInterval(mean=math.nan, low=-math.inf, high=math.inf)
        mean = self.total / self.count
        variance = max(self.squares / self.count - mean**2, 0.0)
        half = math.sqrt(variance) * asymptotic_width(self.count, self.alpha)
        return SequenceInterval(mean=mean, low=mean - half, high=mean + half)


def asymptotic_width(count: int, alpha: float) -> float:
    """Half width of the asymptotic sequence after `count` values of standard deviation 1."""
    wide = -2 * math.log(alpha)
    rho2 = (wide + math.log(wide + 1)) / TIGHT_AT
    scale = count * rho2 + 1
    return math.sqrt(2 * scale / (count**2 * rho2) * math.log(math.sqrt(scale) / alpha))


@dataclass(frozen=True, slots=True, kw_only=True)
class BernsteinSequence:
    """Empirical Bernstein confidence sequence of values in [0, 1]. Immutable: `advance` returns the next one."""

    alpha: float = 0.05
    count: int = 0
    total: float = 0.0
    deviations: float = 0.0
    """Sum of squared distances from the running mean."""
    weight: float = 0.0
    weighted: float = 0.0
    cost: float = 0.0

    def advance(self, values: Floats) -> "BernsteinSequence":
        """Take values `[n]` in [0, 1]. Raises ValueError beyond."""
        if not len(values):
            return self
        if not np.all((values >= 0) & (values <= 1)):
            raise ValueError("values of an empirical Bernstein sequence lie in [0, 1]; scale them by their bounds")
        place = self.count + 1 + np.arange(len(values))
        total = self.total + np.cumsum(values)
        mean_now = (0.5 + total) / (place + 1)
        mean_before = np.concatenate([[(0.5 + self.total) / (self.count + 1)], mean_now[:-1]])
        deviations = self.deviations + np.cumsum((values - mean_now) ** 2)
        variance_before = (0.25 + np.concatenate([[self.deviations], deviations[:-1]])) / place
        weight = np.minimum(0.5, np.sqrt(2 * math.log(2 / self.alpha) / (variance_before * place * np.log1p(place))))
        cost = (values - mean_before) ** 2 * (-np.log1p(-weight) - weight)
        return BernsteinSequence(
            alpha=self.alpha,
            count=self.count + len(values),
            total=float(total[-1]),
            deviations=float(deviations[-1]),
            weight=self.weight + float(weight.sum()),
            weighted=self.weighted + float((weight * values).sum()),
            cost=self.cost + float(cost.sum()),
        )

    def interval(self) -> SequenceInterval:
        """Interval after the values so far, within [0, 1]."""
        if not self.count:
            return SequenceInterval(mean=0.5, low=0.0, high=1.0)
        mean = self.weighted / self.weight
        half = (math.log(2 / self.alpha) + self.cost) / self.weight
        return SequenceInterval(mean=mean, low=max(0.0, mean - half), high=min(1.0, mean + half))


# ----------------------------------------------------------------------------------------------------------- detectable


_COST = 1.2
"""nats: price of eight stakes instead of the best one; set so that the power of simulated rollouts is met."""


def detection_power(fall: float, *, sd: float, events: int, alpha: float, deadline: int = 0) -> float:
    """Probability that a fall of the mean is found within `events` events of both arms together.

    `deadline`: events of the process with a deadline; 0: fixed stakes alone. At the deadline its gambler wins where a
    test of the level 3/5 alpha would, that is with probability Phi(fall sqrt(events) / (2 sd) - z).
    """
    if fall <= 0 or events < 1 or sd <= 0:
        return alpha if events >= 1 else 0.0
    part = 1 - DEADLINE_PART if deadline else 1.0
    early = max(_crossing(stake, fall, sd, events, alpha * part) for stake in STAKES)
    if not deadline or events < deadline:
        return early
    late = _NORMAL.cdf(fall * math.sqrt(deadline) / (2 * sd) + _NORMAL.inv_cdf(DEADLINE_PART * alpha))
    return max(early, late)


def _crossing(stake: float, fall: float, sd: float, events: int, alpha: float) -> float:
    barrier = -math.log(alpha) + _COST
    drift = events * (stake * fall / 2 - stake**2 * sd**2 / 2)
    spread = math.sqrt(events) * stake * sd
    reflected = 2 * drift * barrier / spread**2
    tail = _NORMAL.cdf(-(drift + barrier) / spread)
    return _NORMAL.cdf((drift - barrier) / spread) + (math.exp(min(reflected, 700)) * tail if tail > 0 else 0.0)


def detectable_fall(
    *, sd: float, events: int, alpha: float, power: float = 0.8, most: float = 1.0, deadline: int = 0
) -> float | None:
    """Smallest fall of the mean that is found with probability `power`; None: not even one of size `most`."""

    def found(fall: float) -> bool:
        return detection_power(fall, sd=sd, events=events, alpha=alpha, deadline=deadline) >= power

    if not found(most):
        return None
    low, high = 0.0, most
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if found(middle) else (middle, high)
    return high


def events_to_detect(
    fall: float, *, sd: float, alpha: float, power: float = 0.8, by_deadline: bool = False
) -> int | None:
    """Events of both arms after which a fall is found with probability `power`, the last of them the deadline if there
    is one; None: more than 1e12."""

    def found(events: int) -> bool:
        deadline = events if by_deadline else 0
        return detection_power(fall, sd=sd, events=events, alpha=alpha, deadline=deadline) >= power

    high = 1
    while not found(high):
        high *= 2
        if high > 10**12:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if found(middle) else (middle, high)
    return high
