"""Evaluation of a scorer on held-out answers: whether it tells good from bad, is calibrated, prefers long answers, and
whether selecting by it beats the vote.

Belongs here: figures of numbers and labels. `text/scorers/scorer_job.py` reads the data and asks the scorer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hone.core.credit import Metrics
from hone.core.ragged import Ints
from hone.estimators.calibration import (
    ReliabilityBin,
    area_interval,
    cross_entropy,
    expected_calibration_error,
    fitted_temperature,
    probabilities,
    rank_correlation,
    reliability_table,
)
from hone.estimators.means import Estimate, mean_interval
from hone.run.store.records import CalibrationBin, CalibrationRecord, SelectionRow
from hone.text.evaluate.scorer_selection import HeldOutScores, SelectionPoint, group_members, selection_curve

Floats = NDArray[np.float64]
LENGTH_GAP: Final = 0.2
"""Difference between the two shares, or correlations, beyond which the scorer's taste for length is worth a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerReport:
    """Figures of a scorer on held-out answers."""

    kind: str
    accuracy: Estimate
    """Share of pairs, or of labelled tokens, that it gets right."""
    base_rate: float
    """Share that the more frequent label alone gets right; 0.5 for pairs."""
    area: Estimate
    """AUC with its interval; for pairs of their answers' labels. NaN where all labels are alike."""
    table: Sequence[ReliabilityBin]
    ece: float
    """Expected calibration error at temperature 1."""
    fitted_ece: float
    """The same at a temperature fitted on the other half of the held-out data."""
    temperature: float
    """Fitted on all held-out data."""
    cross_entropy: float
    """Nats."""
    length_bias: float
    """How much more the scorer prefers long answers than the labels do: of pairs, the difference of two shares; else of
    two rank correlations. NaN where the lengths are alike."""
    selection: Sequence[SelectionPoint] = ()
    warnings: Sequence[str] = ()

    def metrics(self) -> Metrics:
        """Metrics of the evaluation, `eval/...`; figures that do not exist are left out."""
        accuracy, last = self.accuracy, self.selection[-1:]
        found = {
            "eval/score": accuracy.mean,
            "eval/low": accuracy.low,
            "eval/high": accuracy.high,
            "eval/answered": float(accuracy.n),
            "eval/base_rate": self.base_rate,
            "eval/auc": self.area.mean,
            "eval/ece": self.ece,
            "eval/ece_fitted": self.fitted_ece,
            "eval/temperature": self.temperature,
            "eval/cross_entropy_nats": self.cross_entropy,
            "eval/length_bias": self.length_bias,
        }
        for point in last:
            found |= {"eval/best_of_n": point.best.mean, "eval/vote": point.vote}
            found |= {"eval/weighted_vote": point.weighted_vote, "eval/pass_at_n": point.oracle}
        return {name: value for name, value in found.items() if not math.isnan(value)}


def evaluate_scores(held_out: HeldOutScores) -> ScorerReport:
    """All figures of a scorer, with warnings about those that make it unfit for use. Raises ValueError without data."""
    found = _pair_figures(held_out) if held_out.kind == "pairs" else _label_figures(held_out)
    selection, notes = selection_curve(held_out)
    return replace(found, selection=selection, warnings=[*_quality_warnings(found), *notes])


def _pair_figures(held_out: HeldOutScores) -> ScorerReport:
    better, worse = preferred_pairs(held_out.truth, held_out.group)
    margins = held_out.values[better] - held_out.values[worse]
    right, sure = 0.5 * (1 + np.sign(margins)), np.abs(margins)
    # A pair has no first answer: how sure the scorer is, whichever it prefers, against how often it is right.
    table = reliability_table(probabilities(sure), right)
    longer = np.sign(held_out.lengths[better] - held_out.lengths[worse]) * 1.0
    chosen, apart = longer * np.sign(margins), longer != 0
    gap = float((chosen[apart].mean() - longer[apart].mean()) / 2) if apart.any() else math.nan
    values = np.concatenate([held_out.values[better], held_out.values[worse]])
    return ScorerReport(
        kind=held_out.kind,
        accuracy=mean_interval(right),
        base_rate=0.5,
        area=area_interval(values, np.repeat([1.0, 0.0], len(better))),
        table=table,
        ece=expected_calibration_error(table),
        fitted_ece=_fitted_error(sure, right),
        temperature=fitted_temperature(margins, np.ones(len(margins))),
        cross_entropy=cross_entropy(margins, np.ones(len(margins))),
        length_bias=gap,
    )


def _label_figures(held_out: HeldOutScores) -> ScorerReport:
    logits, labels = held_out.logits, held_out.labels
    good = labels > 0.5
    table = reliability_table(probabilities(logits), labels)
    lengths = held_out.lengths.astype(np.float64)
    own, wanted = (rank_correlation(lengths, column) for column in (held_out.values, held_out.truth))
    return ScorerReport(
        kind=held_out.kind,
        accuracy=mean_interval(((logits > 0) == good).astype(np.float64)),
        base_rate=float(max(good.mean(), 1 - good.mean())),
        area=area_interval(logits, labels),
        table=table,
        ece=expected_calibration_error(table),
        fitted_ece=_fitted_error(logits, labels),
        temperature=fitted_temperature(logits, labels),
        cross_entropy=cross_entropy(logits, labels),
        length_bias=own - wanted,
    )


def _fitted_error(logits: Floats, labels: Floats) -> float:
    """ECE of each half of the data at the temperature of the other half; NaN below two values."""
    half = np.arange(len(logits)) % 2 == 0
    if half.all():
        return math.nan
    predicted = np.zeros(len(logits))
    for part in (half, ~half):
        predicted[part] = probabilities(logits[part] / fitted_temperature(logits[~part], labels[~part]))
    return expected_calibration_error(reliability_table(predicted, labels))


def preferred_pairs(scores: Floats, group: Ints) -> tuple[Ints, Ints]:
    """Places `[p]` of the better and of the worse answer of every pair within a group whose scores differ."""
    pairs = [
        (int(first), int(second))
        for members in group_members(group)
        for first in members
        for second in members
        if scores[first] > scores[second]
    ]
    found = np.array(pairs, np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _quality_warnings(found: ScorerReport) -> list[str]:
    judged = found.accuracy if found.kind == "pairs" else found.area
    what = "held-out pair accuracy" if found.kind == "pairs" else "held-out AUC"
    lines: list[str] = []
    if math.isnan(judged.mean):
        lines.append("all held-out labels are alike: nothing can be said of what the scorer has learnt")
    elif judged.low <= 0.5:
        lines.append(
            f"{what} {judged.mean:.3f} (95% interval {judged.low:.3f} to {judged.high:.3f}, n = {judged.n}) is no "
            "better than chance: do not train or select by this scorer"
        )
    if not math.isnan(found.length_bias) and abs(found.length_bias) > LENGTH_GAP:
        more = "more" if found.length_bias > 0 else "less"
        lines.append(f"the scorer prefers long answers {more} than the labels do: length bias {found.length_bias:+.2f}")
    return lines


def scorer_record(found: ScorerReport, *, step: int | None = None) -> CalibrationRecord:
    """The report for the run's folder."""
    return CalibrationRecord(
        step=step,
        kind=found.kind,
        bins=tuple(
            CalibrationBin(low=one.low, high=one.high, predicted=one.predicted, observed=one.observed, n=one.n)
            for one in found.table
        ),
        figures={name.removeprefix("eval/"): value for name, value in found.metrics().items()},
        selection=tuple(
            SelectionRow(
                n=point.n,
                best=point.best.mean,
                low=point.best.low,
                high=point.best.high,
                vote=point.vote,
                weighted_vote=point.weighted_vote,
                oracle=point.oracle,
            )
            for point in found.selection
        ),
        warnings=tuple(found.warnings),
    )
