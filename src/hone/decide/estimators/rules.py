"""Rules by which an off-policy estimate is refused, or called weak.

A rule looks at the log, at the weights or at the terms of an estimate, and gives a reason with figures and a remedy.
The verdict is the worst of the reasons' verdicts; without a reason it is `ok`.

    propensities   a logged probability is 0, above 1 or NaN                                      refuse
    rewards        a known reward is NaN or infinite                                              refuse
    not finite     a context, a weight, a contribution, the value or its interval is not finite   refuse
    target         the target's probabilities of a row do not add up to 1                         refuse
    duplicates     an id occurs twice                                                             refuse
    schemas        contexts of several schemas                                                    refuse
    open windows   rewards that may still arrive: above 10% of the rows, above 1%                 refuse, weak
    support        the target takes actions that the log never shows: above 5%, above 1%          refuse, weak
    calibration    weights, or ratios to a model of the log's policy, with a mean above 1: the
                   propensities are not the executed actions'                                     refuse
    sample size    effective sample size below 50, below 200                                      refuse, weak
    largest weight one row has above 10% of all weight                                            weak
    events         fewer than 50 rows differ from the most frequent reward                        weak
    tail           one unit has above 95% of the variance                                         refuse
                   one unit has above 15% of it, or few units have half of it                     weak
    clipping       what the clipped weights leave out is above a quarter of a standard error      weak
    drift          the halves of the log differ at 0.1%, at 1%                                    refuse, weak
    model          the estimate stands on the reward model alone                                  weak

Support is exact where the behaviour policy's whole distribution is known; where its probabilities of the executed
actions are not the logged ones, the estimate is weak. Elsewhere support is tested: importance weights have the mean 1
over every group of contexts, less the target's probability of actions that are never logged there. The groups are the
whole log, those of the target's most probable action, of the version that decided, and eight parts of each feature. An
action that the log never executes, in all contexts or in a part where it would be expected seven times, has no support
there: that is seen without noise.

The tail rule asks whether a normal interval can hold its level. With U units, S_u their contributions around the mean,
the share of one unit is max S_u^2 / sum S_u^2. A share of at most 0.08 (500 / U)^0.3 (0.02 at least) passes: under a
Pareto tail of index a it falls with U^(2/a - 1), so that indices below 2.9 do not pass however large the log is. Above
it, half of the variance must stand on 16 (U / 500)^0.3 units or more. A tail on both sides of the mean passes up to a
share of 30%, as large values on both sides leave the interval its level. A value that is too rare to be in the log at
all shows in no rule: where the range of the rewards is known, the bound of Bernstein holds for any distribution.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from hone.core.decisions import LOGP_TOLERANCE, Bools, DecisionTable, Floats, Ints, Verdict
from hone.decide.estimators.propensities import behaviour_ratios
from hone.decide.estimators.terms import LoggedFeedback, effective_sample_size, standard_error, unit_deviations

_SUM_TOLERANCE = 1e-3
"""Distance from 1 of a distribution's sum, and in nats of equal log-probabilities."""
_SMALLEST_GROUP = 30
"""Contexts below which a group is not tested for support."""
_SHOWN = 3
_EXPECTED = 7.0
"""Expected executions of an action in a part of a feature: none by chance in a thousandth of the cases."""
_PARTS = 8
_PART_EDGES = (0.05, 0.10, 0.25, 0.5, 0.75, 0.90, 0.95)
_MOST_FEATURES = 16
"""Features whose parts are looked at."""
_MISCALIBRATED = (
    "the logged probabilities are not those of the executed actions; log the probability after every wrapper"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalRules:
    """Bounds of the rules."""

    open_refuse: float = 0.10
    open_weak: float = 0.01
    """Shares of rows whose reward may still arrive."""
    unsupported_refuse: float = 0.05
    unsupported_weak: float = 0.01
    """Shares of the target's choices that the log cannot show."""
    support_deviations: float = 3.0
    """Standard errors from 1 at which the mean weight of the log is not 1 by chance."""
    ratio_deviations: float = 4.0
    """The same of the mean ratio to a model of the log's policy, which varies little."""
    group_deviations: float = 4.5
    """The same for a group of contexts: there are many, and their errors are less normal."""
    miscalibrated_refuse: float = 0.02
    """Excess of the mean weight over 1."""
    ess_refuse: float = 50.0
    ess_weak: float = 200.0
    """Effective sample sizes."""
    largest_share_weak: float = 0.10
    """Share of one row in all weight."""
    events_weak: int = 50
    """Rows that differ from the most frequent reward."""
    drift_refuse: float = 0.001
    drift_weak: float = 0.01
    """Two-sided p-values of equal halves."""
    unit_share_refuse: float = 0.95
    unit_share_weak: float = 0.15
    """Shares of one unit in the variance."""
    unit_share_two_sided: float = 0.30
    """The same where large values lie on both sides of the mean:"""
    lesser_side: float = 0.30
    """the lesser side has this part of the three quarters of the variance that the largest values hold."""
    unit_share_pass: float = 0.08
    """The same of 500 units, that passes without a look at the others; it falls with U^-0.3 down to 0.02."""
    half_variance_units: float = 16.0
    """Units of 500 that hold half of the variance, at least; it grows with U^0.3."""
    clipped_weak: float = 0.25
    """Standard errors that clipped weights leave out."""

    def open_windows(self, unknown: float) -> "list[VerdictReason]":
        """A reason against a log in which the share `unknown` of the rewards is not final."""
        if unknown <= self.open_weak:
            return []
        verdict: Verdict = "refuse" if unknown > self.open_refuse else "weak"
        words = f"{unknown:.1%} of the rewards may still arrive: wait for their windows, or end the log earlier"
        return [VerdictReason(rule="open windows", verdict=verdict, words=words)]

    def support(self, lost: float, where: str) -> "list[VerdictReason]":
        """A reason against a log that cannot show the share `lost` of the target's choices; `where` says so."""
        if lost <= self.unsupported_weak:
            return []
        verdict: Verdict = "refuse" if lost > self.unsupported_refuse else "weak"
        words = f"{where}; add exploration (a floor) to the policy that logs"
        return [VerdictReason(rule="support", verdict=verdict, words=words)]

    def rewards(self, reward: Floats) -> "list[VerdictReason]":
        """A reason against rewards `[n]` that are nearly all the same."""
        _, counts = np.unique(reward, return_counts=True)
        events = len(reward) - int(counts.max()) if len(reward) else 0
        if events >= self.events_weak:
            return []
        words = f"{events} rows differ from the most frequent reward: too few for an interval to hold its level"
        return [VerdictReason(rule="events", verdict="weak", words=words)]

    def tails(self, influence: Floats, unit: Ints) -> "list[VerdictReason]":
        """A reason against contributions `[n]` with a tail that a normal interval does not allow for."""
        sums = unit_deviations(influence, unit)
        largest = float(np.abs(sums).max(initial=0.0))
        if len(sums) < 2 or not 0 < largest < math.inf:
            return []
        units, order = len(sums), np.argsort(-np.abs(sums), kind="stable")
        shares = (sums[order] / largest) ** 2
        shares /= shares.sum()
        share, held = float(shares[0]), shares.cumsum()
        half, most = (int(np.searchsorted(held, part)) + 1 for part in (0.5, 0.75))
        above = float(shares[:most][sums[order[:most]] > 0].sum() / held[min(most, units) - 1])
        passing = max(0.02, self.unit_share_pass * (500 / units) ** 0.3)
        needed = self.half_variance_units * (units / 500) ** 0.3
        light = share <= passing or (share <= self.unit_share_weak and half >= needed)
        two_sided = share <= self.unit_share_two_sided and half >= 5 and min(above, 1 - above) >= self.lesser_side
        if light or two_sided:
            return []
        verdict: Verdict = "refuse" if share > self.unit_share_refuse else "weak"
        words = (
            f"one unit has {share:.0%} of the variance, and {half} of {units} have half of it: the next large value "
            "may move the estimate out of its interval; log more, bound the reward, or use bernstein with a known range"
        )
        return [VerdictReason(rule="tail", verdict=verdict, words=words)]

    def clipping(self, left_out: float, error: float) -> "list[VerdictReason]":
        """A reason against clipped weights that leave `left_out` of the value out, beside the standard error."""
        if not abs(left_out) > self.clipped_weak * error:
            return []
        words = (
            f"the clipped weights leave {left_out:.3g} of the value out, and its standard error is {error:.3g}: use dr"
        )
        return [VerdictReason(rule="clipping", verdict="weak", words=words)]

    def drift(self, before: float, after: float, spread: float) -> "list[VerdictReason]":
        """A reason against halves of the values `before` and `after`; `spread`: standard error of their difference."""
        if not 0 < spread < math.inf:
            return []
        p_value = 2 * (1 - NormalDist().cdf(abs(before - after) / spread))
        if p_value >= self.drift_weak:
            return []
        words = (
            f"the value is {before:.4g} in the first half of the log and {after:.4g} in the second "
            f"(p = {p_value:.1g}): estimate from the newer part"
        )
        verdict: Verdict = "refuse" if p_value < self.drift_refuse else "weak"
        return [VerdictReason(rule="drift", verdict=verdict, words=words)]

    def halves(self, influence: Floats, unit: Ints) -> "list[VerdictReason]":
        """A reason against a log whose first and second half (rows in the order of time) differ in the estimated value.

        z = (v1 - v2) / sqrt(se1^2 + se2^2), two-sided.
        """
        half = len(influence) // 2
        first, second = slice(0, half), slice(half, None)
        errors = [standard_error(influence[part], _renumbered(unit[part])) for part in (first, second)]
        spread = math.hypot(*errors)
        before, after = (float(influence[part].mean()) if half else 0.0 for part in (first, second))
        return self.drift(before, after, spread)

    def audit_table(self, table: DecisionTable) -> "list[VerdictReason]":
        """Reasons against a log itself, whatever the target: propensities, rewards, duplicates, schemas, windows."""
        reasons = _bad_rows(table)
        seen: set[str] = set()
        twice = [name for name in table.ids if name in seen or seen.add(name)]
        if twice:
            reasons.append(
                _refused("duplicates", f"{len(twice)} ids occur twice, first {twice[0]!r}: each decision is one row")
            )
        kinds = sorted(set(table.schemas))
        if len(kinds) > 1:
            counts = ", ".join(f"{kind or 'none'} ({table.schemas.count(kind)} rows)" for kind in kinds[:_SHOWN])
            reasons.append(
                _refused("schemas", f"contexts have {len(kinds)} schemas, {counts}: estimate the rows of one schema")
            )
        unknown = float(np.mean(~table.known)) if len(table) else 0.0
        return [*reasons, *self.open_windows(unknown)]

    def audit_weights(
        self, logged: LoggedFeedback, *, version: Ints | None = None
    ) -> "tuple[list[VerdictReason], float]":
        """Reasons against the weights, and the overlap: the share of the target's choices that the log can show.

        `version` `[n]`: number of the version that decided. An overlap of a known behaviour policy counts contexts in
        which the target takes an action that the behaviour policy never takes.
        """
        weight = logged.weight
        reasons = [*_faults_of_rows(logged, weight), *_disagreement(logged)]
        support, overlap = _support(logged, weight, self, version)
        reasons += [*support, *_calibration(logged, self, version)]
        row = int(weight.argmax())
        summary = WeightSummary(
            n=len(weight),
            mean=float(weight.mean()),
            error=standard_error(weight, logged.unit),
            ess=effective_sample_size(weight),
            largest=float(weight[row]),
            largest_row=row,
        )
        return [*reasons, *summary.reasons(self)], overlap


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSummary:
    """Figures of n importance weights."""

    n: int
    mean: float
    error: float
    """Standard error of the mean, by unit."""
    ess: float
    """Effective sample size."""
    largest: float
    largest_row: int | None = None
    """Number of the row with the largest weight; None: not known."""
    rows: str = "rows"
    """Noun of the n: rows or episodes."""

    def reasons(self, rules: RefusalRules) -> "list[VerdictReason]":
        """Reasons against weights by their summary: calibration, sample size, largest weight."""
        reasons: list[VerdictReason] = []
        excess = self.mean - 1
        if excess > rules.miscalibrated_refuse and excess > rules.support_deviations * self.error:
            words = f"the mean weight is {self.mean:.3f} +- {self.error:.3f}, expected 1: {_MISCALIBRATED}"
            reasons.append(_refused("calibration", words))
        if self.ess < rules.ess_weak:
            verdict: Verdict = "refuse" if self.ess < rules.ess_refuse else "weak"
            size = f"effective sample size {self.ess:.0f} of {self.n} {self.rows}"
            words = f"{size}: log more, or a policy nearer to the target"
            reasons.append(VerdictReason(rule="sample size", verdict=verdict, words=words))
        total = self.mean * self.n
        share = self.largest / total if total > 0 else 0.0
        if share > rules.largest_share_weak:
            row = f"one of the {self.rows}" if self.largest_row is None else f"row {self.largest_row}"
            words = f"{row} has {share:.0%} of all weight ({self.largest:.3g}): one outcome would decide"
            reasons.append(VerdictReason(rule="largest weight", verdict="weak", words=words))
        return reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictReason:
    """A rule that an estimate did not pass."""

    rule: str
    verdict: Verdict
    words: str
    """The figures and the remedy, in one sentence."""


def worst_verdict(reasons: Sequence[VerdictReason]) -> Verdict:
    """The worst verdict of the reasons; `ok` without one."""
    verdicts = {reason.verdict for reason in reasons}
    return "refuse" if "refuse" in verdicts else "weak" if "weak" in verdicts else "ok"


def usable_rows(table: DecisionTable) -> Bools:
    """Rows `[n]` that an estimator can read: a known finite reward and a propensity above 0 and at most 1."""
    with np.errstate(invalid="ignore"):
        return table.known & np.isfinite(table.reward) & np.isfinite(table.logp) & (table.logp <= LOGP_TOLERANCE)


# --------------------------------------------------------------------------------------------------- support


def _support(
    logged: LoggedFeedback, weight: Floats, rules: RefusalRules, version: Ints | None
) -> tuple[list[VerdictReason], float]:
    if logged.behaviour_logp is not None:
        lost_mass = np.where(logged.behaviour_logp == -np.inf, logged.target, 0.0).sum(axis=1)
        without = lost_mass > LOGP_TOLERANCE
        lost = float(without.mean())
        where = (
            f"{lost:.1%} of the contexts have no support: the target takes actions that the log's policy never takes"
        )
    else:
        whole, best = np.zeros(len(weight), np.int64), logged.target_logp.argmax(axis=1)
        parts = _parts(logged.contexts)
        lost = _lost_share(weight, whole, logged.unit, rules.unsupported_weak, rules.support_deviations)
        for group in (best, *parts) if version is None else (best, version, *parts):
            share = _lost_share(weight, group, logged.unit, rules.unsupported_weak, rules.group_deviations)
            lost = max(lost, share)
        lost = max(lost, _never_executed(logged, parts))
        where = (
            f"about {lost:.1%} of the target's choices have no support in the log: it never or hardly takes them there"
        )
    return rules.support(lost, where), 1 - lost


def _lost_share(weight: Floats, group: Ints, unit: Ints, least: float, deviations: float) -> float:
    """Sum over groups of contexts of their share times 1 - mean weight, where that is above 0 by more than chance.

    A group's error is at least that of as many rows of the whole log: a few large weights that are absent by chance
    would lower the group's mean and its own spread together.
    """
    overall = standard_error(weight, unit) * math.sqrt(len(weight))
    numbers, place, counts = np.unique(group, return_inverse=True, return_counts=True)
    lost = 0.0
    for number in range(len(numbers)):
        if counts[number] < _SMALLEST_GROUP:
            continue
        rows = np.flatnonzero(place == number)
        missing = 1 - float(weight[rows].mean())
        own = standard_error(weight[rows], _renumbered(unit[rows]))
        error = max(own, overall / math.sqrt(len(rows)))
        if missing > max(least, deviations * error):
            lost += missing * len(rows) / len(weight)
    return lost


def _parts(contexts: Floats) -> list[Ints]:
    """Part of each row in each of the first 16 features `[n]`, 0 to 7: between the quantiles 5, 10, 25, 50, 75, 90 and
    95%, or the value's number where a feature has at most 8 values."""
    made: list[Ints] = []
    for values in contexts.T[:_MOST_FEATURES]:
        if np.isfinite(values).all() and values.min(initial=0.0) < values.max(initial=0.0):
            own = np.unique(values) if len(np.unique(values[:1000])) <= _PARTS else values
            edges = np.array(own[1:].tolist() if len(own) <= _PARTS else np.quantile(values, _PART_EDGES).tolist())
            made.append(np.asarray(np.searchsorted(edges, values, side="right"), np.int64))
    return made


def _never_executed(logged: LoggedFeedback, parts: Sequence[Ints]) -> float:
    """Mean probability of the target for actions that the log never executes where they are asked for.

    Everywhere, or in a part of a feature in which seven executions are expected, by the action's share in the log and
    by the least probability that it was logged with.
    """
    n, actions = logged.target_logp.shape
    counts = np.bincount(logged.action, minlength=actions)
    least = np.ones(actions)
    np.minimum.at(least, logged.action, np.exp(np.minimum(logged.logp, 0.0)))
    rate = np.minimum(counts / n, least)
    without = np.broadcast_to(counts == 0, (n, actions)).copy()
    for part in parts:
        cells = np.bincount(part * actions + logged.action, minlength=_PARTS * actions).reshape(_PARTS, actions)
        bare = (cells == 0) & (np.bincount(part, minlength=_PARTS)[:, None] * rate >= _EXPECTED)
        if bare.any():
            without |= bare[part]
    return float((logged.target * without).sum(axis=1).mean())


def _calibration(logged: LoggedFeedback, rules: RefusalRules, version: Ints | None) -> list[VerdictReason]:
    """A reason against propensities that are too small beside a model of the log's policy: in the whole log, or in one
    version's rows."""
    ratios = behaviour_ratios(logged)
    if ratios is None or not np.isfinite(ratios).all():
        return []
    groups = [("", np.arange(len(ratios)), rules.ratio_deviations)]
    if version is not None:
        numbers = np.unique(version)
        rows = [(number, np.flatnonzero(version == number)) for number in numbers] if len(numbers) > 1 else []
        groups += [(f" of version {number}", one, rules.group_deviations) for number, one in rows]
    for name, rows, deviations in groups:
        excess = float(ratios[rows].mean()) - 1
        error = standard_error(ratios[rows], _renumbered(logged.unit[rows]))
        if excess > rules.miscalibrated_refuse and excess > deviations * error:
            words = (
                f"a model of the executed actions{name} gives them {1 + excess:.3f} +- {error:.3f} times their logged "
                f"probabilities, at most 1 expected: {_MISCALIBRATED}"
            )
            return [_refused("calibration", words)]
    return []


def _faults_of_rows(logged: LoggedFeedback, weight: Floats) -> list[VerdictReason]:
    """Reasons against rows that no estimator can read."""
    reasons: list[VerdictReason] = []
    for name, bad in (
        ("contexts", ~np.isfinite(logged.contexts).all(axis=1)),
        ("rewards", ~np.isfinite(logged.reward)),
        ("weights", ~np.isfinite(weight)),
    ):
        if bad.any():
            words = (
                f"the {name} of {int(bad.sum())} rows are not finite, first of row {int(bad.argmax())}: leave them out"
            )
            reasons.append(_refused("not finite", words))
    for rule, whose, logp in (
        ("target", "the target's probabilities", logged.target_logp),
        ("propensities", "the behaviour policy's probabilities", logged.behaviour_logp),
    ):
        if logp is not None:
            sums = np.exp(logp).sum(axis=1)
            wrong = ~(np.abs(sums - 1) <= _SUM_TOLERANCE)
            if wrong.any():
                row = int(wrong.argmax())
                many = int(wrong.sum())
                words = f"{whose} of {many} rows are no distribution; those of row {row} add up to {sums[row]:g}"
                reasons.append(_refused(rule, words))
    return reasons


def _disagreement(logged: LoggedFeedback) -> list[VerdictReason]:
    """A reason against logged probabilities that are not those of the behaviour policy, where it is known."""
    if logged.behaviour_logp is None:
        return []
    known = logged.behaviour_logp[np.arange(len(logged)), logged.action]
    apart = ~(np.abs(known - logged.logp) <= _SUM_TOLERANCE)
    if not apart.any():
        return []
    row = int(apart.argmax())
    words = (
        f"{int(apart.sum())} rows have another probability than the log's policy gives their action, first row {row}: "
        f"{math.exp(logged.logp[row]):.4g} and {math.exp(known[row]):.4g}: it is another policy, or {_MISCALIBRATED}"
    )
    return [VerdictReason(rule="calibration", verdict="weak", words=words)]


def _renumbered(unit: Ints) -> Ints:
    return np.unique(unit, return_inverse=True)[1].astype(np.int64)


def _bad_rows(table: DecisionTable) -> list[VerdictReason]:
    reasons: list[VerdictReason] = []
    with np.errstate(invalid="ignore", over="ignore"):
        probability = np.exp(table.logp)
        faults = (
            ("propensities", "have probability 0", table.logp == -np.inf, probability, "an executed action has p > 0"),
            (
                "propensities",
                "have a probability above 1",
                table.logp > LOGP_TOLERANCE,
                probability,
                "a density is no p",
            ),
            ("propensities", "have no probability", np.isnan(table.logp), probability, "log the executed action's p"),
            (
                "rewards",
                "have no finite reward",
                table.known & ~np.isfinite(table.reward),
                table.reward,
                "mark it open",
            ),
        )
    for rule, words, bad, values, remedy in faults:
        if bad.any():
            rows = np.flatnonzero(bad)
            shown = ", ".join(f"{table.ids[row]!r} ({values[row]:g})" for row in rows[:_SHOWN])
            reasons.append(_refused(rule, f"{len(rows)} rows {words}: {shown}; {remedy}"))
    return reasons


def _refused(rule: str, words: str) -> VerdictReason:
    return VerdictReason(rule=rule, verdict="refuse", words=words)
