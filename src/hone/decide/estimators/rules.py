"""Rules by which an off-policy estimate is refused, or called weak.

A rule looks at the log, at the weights or at the terms of an estimate, and gives a reason with figures and a remedy.
The verdict is the worst of the reasons' verdicts; without a reason it is `ok`.

    propensities   a logged probability is 0, above 1 or NaN                                      refuse
    rewards        a known reward is NaN or infinite                                              refuse
    duplicates     an id occurs twice                                                             refuse
    schemas        contexts of several schemas                                                    refuse
    open windows   rewards that may still arrive: above 10% of the rows, above 1%                 refuse, weak
    support        the target takes actions that the log never shows: above 5%, above 1%          refuse, weak
    calibration    the weights' mean is above 1: the propensities are not the executed actions'   refuse
    sample size    effective sample size below 50, below 200                                      refuse, weak
    largest weight one row has above 10% of all weight                                            weak
    events         fewer than 50 rows differ from the most frequent reward                        weak
    drift          the halves of the log differ at 0.1%, at 1%                                    refuse, weak
    model          the estimate stands on the reward model alone                                  weak

Support is exact where the behaviour policy's whole distribution is known. Elsewhere it is tested: importance weights
have the mean 1 over every group of contexts, less the target's probability of actions that are never logged there. The
groups are the whole log, those of the target's most probable action, and of the version that decided.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from hone.core.decisions import LOGP_TOLERANCE, Bools, DecisionTable, Floats, Ints, Verdict
from hone.decide.estimators.terms import LoggedFeedback, effective_sample_size, standard_error

_SMALLEST_GROUP = 30
"""Contexts below which a group is not tested for support."""
_SHOWN = 3


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
        reasons, overlap = _support(logged, weight, self, version)
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

    def reasons(self, rules: RefusalRules) -> "list[VerdictReason]":
        """Reasons against weights by their summary: calibration, sample size, largest weight."""
        reasons: list[VerdictReason] = []
        excess = self.mean - 1
        if excess > rules.miscalibrated_refuse and excess > rules.support_deviations * self.error:
            words = (
                f"the mean weight is {self.mean:.3f} +- {self.error:.3f}, expected 1: the logged probabilities are "
                "not those of the executed actions; log the probability after every wrapper"
            )
            reasons.append(_refused("calibration", words))
        if self.ess < rules.ess_weak:
            verdict: Verdict = "refuse" if self.ess < rules.ess_refuse else "weak"
            words = f"effective sample size {self.ess:.0f} of {self.n} rows: log more, or a policy nearer to the target"
            reasons.append(VerdictReason(rule="sample size", verdict=verdict, words=words))
        total = self.mean * self.n
        share = self.largest / total if total > 0 else 0.0
        if share > rules.largest_share_weak:
            row = "one row" if self.largest_row is None else f"row {self.largest_row}"
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
        lost = _lost_share(weight, whole, logged.unit, rules.unsupported_weak, rules.support_deviations)
        for group in (best,) if version is None else (best, version):
            share = _lost_share(weight, group, logged.unit, rules.unsupported_weak, rules.group_deviations)
            lost = max(lost, share)
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
