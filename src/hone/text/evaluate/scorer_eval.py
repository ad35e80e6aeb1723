"""Evaluation of a scorer on held-out answers: whether it tells good from bad, is calibrated, prefers long answers, and
whether selecting by it beats the vote. `text/scorers/scorer_job.py` reads the data.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.core.conversation import text_after_prompt
from hone.core.credit import Metrics
from hone.core.episodes import Episodes
from hone.core.ragged import Ints
from hone.credit.grouping import episode_ends
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
from hone.estimators.means import Estimate, mean_interval, paired_difference
from hone.models.language.scalar_head import TokenScorer
from hone.rewards.functions import extract_answer
from hone.run.store.records import CalibrationBin, CalibrationRecord, SelectionRow
from hone.text.search.estimates import best_of, pass_at, vote

# ----------------------------------------------------------------------------------------------------- scorer selection

Floats = NDArray[np.float64]
HeldOutKind: TypeAlias = Literal["pairs", "outcomes", "steps"]
SELECTION_POOL: Final = 64
"""Most answers of a question that are selected among."""
MIN_POOL: Final = 4
"""Fewer answers of a question show no curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutScores:
    """Numbers that a scorer gave to held-out answers, beside what is known of them."""

    kind: HeldOutKind
    logits: Floats
    """`[n]` of each labelled token: an answer's last, or a step's."""
    labels: Floats
    """`[n]` of the same; of a pair's answer its score."""
    values: Floats
    """`[E]` score of each answer: that of its last token, or of its weakest step."""
    truth: Floats
    """`[E]` the answer's own label."""
    lengths: Ints
    """`[E]` tokens of each answer."""
    group: Ints
    """`[E]` answers of one example, within which pairs are compared."""
    prompt: Ints
    """`[E]` number of the question; answers to one question are selected among."""
    final_answers: Sequence[str]
    """`[E]` what is voted on."""


def _selection_curve(held_out: HeldOutScores) -> tuple[list[SelectionRow], list[str]]:
    """Truth of the answer selected from n = 1, 2, 4, ... answers to a question, and warnings where selecting by the
    scorer is no better than a vote, or gets worse with n. Empty without `MIN_POOL` answers to a question."""
    pools = _group_members(held_out.prompt)
    sizes = np.array([len(pool) for pool in pools])
    size = min(SELECTION_POOL, int(np.median(sizes))) if len(sizes) else 0
    if size < MIN_POOL or held_out.kind == "pairs":
        return [], []
    rows = np.array([pool[:size] for pool in pools if len(pool) >= size])
    values, truth = held_out.values[rows], held_out.truth[rows]
    answers = [[held_out.final_answers[int(place)] for place in row] for row in rows]
    counts = [2**power for power in range(size.bit_length()) if 2**power < size] + [size]
    best = [best_of(values, truth, count) for count in counts]
    votes = [vote(answers, truth, count) for count in counts]
    weights = probabilities(values)
    points = [
        SelectionRow(
            n=count,
            best=chosen.mean,
            low=chosen.low,
            high=chosen.high,
            vote=float(votes[place].mean()),
            weighted_vote=float(vote(answers, truth, count, weights=weights).mean()),
            oracle=float(pass_at(truth, count).mean()),
        )
        for place, count in enumerate(counts)
        for chosen in [mean_interval(best[place])]
    ]
    return points, _selection_warnings(points, best, votes)


def _selection_warnings(points: Sequence[SelectionRow], best: list[Floats], votes: list[Floats]) -> list[str]:
    last, warnings = points[-1], list[str]()
    if paired_difference(votes[-1], best[-1]).high < 0:
        warnings.append(
            f"selecting by this scorer is worse than a vote: of {last.n} answers the best-scored one is worth "
            f"{last.best:.3f}, the most frequent {last.vote:.3f}, a vote weighted by the scorer "
            f"{last.weighted_vote:.3f}"
        )
    top = int(np.argmax([point.best for point in points]))
    if top < len(points) - 1 and paired_difference(best[top], best[-1]).high < 0:
        warnings.append(
            f"selecting by this scorer gets worse with more answers: best of {points[top].n} is worth "
            f"{points[top].best:.3f}, best of {last.n} {last.best:.3f}: the maximum finds its errors; a vote "
            f"weighted by the scorer is worth {last.weighted_vote:.3f}"
        )
    return warnings


def _group_members(group: Ints) -> list[Ints]:
    """Places of the members of each group, groups in ascending order."""
    order = np.argsort(group, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(group[order])) + 1) if len(order) else []


# ---------------------------------------------------------------------------------------------------------- scorer eval

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
    selection: Sequence[SelectionRow] = ()
    warnings: Sequence[str] = ()

    def metrics(self) -> Metrics:
        """Metrics of the evaluation, `eval/...`; figures that do not exist are left out."""
        accuracy, last = self.accuracy, self.selection[-1:]
        metrics = {
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
            metrics |= {"eval/best_of_n": point.best, "eval/vote": point.vote}
            metrics |= {"eval/weighted_vote": point.weighted_vote, "eval/pass_at_n": point.oracle}
        return {name: value for name, value in metrics.items() if not math.isnan(value)}


def evaluate_scores(held_out: HeldOutScores) -> ScorerReport:
    """All figures of a scorer, with warnings about those that make it unfit for use. Raises ValueError without data."""
    report = _pair_figures(held_out) if held_out.kind == "pairs" else _label_figures(held_out)
    selection, notes = _selection_curve(held_out)
    return replace(report, selection=selection, warnings=[*_quality_warnings(report), *notes])


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
        for members in _group_members(group)
        for first in members
        for second in members
        if scores[first] > scores[second]
    ]
    places = np.array(pairs, np.int64).reshape(-1, 2)
    return places[:, 0], places[:, 1]


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
        bins=tuple(CalibrationBin(**asdict(one)) for one in found.table),
        figures={name.removeprefix("eval/"): value for name, value in found.metrics().items()},
        selection=tuple(found.selection),
        warnings=tuple(found.warnings),
    )


# -------------------------------------------------------------------------------------------------------- scorer scores
def held_out_scores(
    scorer: TokenScorer, episodes: Episodes, *, kind: HeldOutKind, answer_pattern: str, micro_batch_tokens: int
) -> HeldOutScores:
    """Ask the scorer about every labelled token of the answers: the last one, or the last of each step."""
    marks = ~np.isnan(episodes.reward) if kind == "steps" else episode_ends(episodes)
    owner = episodes.owner[marks]
    logits = labelled_scores(scorer, episodes.keep_decisions(marks), micro_batch_tokens=micro_batch_tokens)
    weakest = np.full(len(episodes), np.inf)
    np.minimum.at(weakest, owner, logits)
    labels = (episodes.reward[marks] if kind == "steps" else episodes.score).astype(np.float64)
    read = (scorer.tokenizer.decode, answer_pattern)
    return _beside_labels(episodes, read, kind=kind, logits=logits, labels=labels, values=weakest)


def scores_of_answers(
    values: NDArray[np.float64], episodes: Episodes, *, decode: Callable[[NDArray[np.int32]], str], answer_pattern: str
) -> HeldOutScores:
    """Logits `[E]` of whole answers, beside their labels."""
    read = (decode, answer_pattern)
    return _beside_labels(episodes, read, kind="outcomes", logits=values, labels=episodes.score, values=values)


def _beside_labels(
    episodes: Episodes,
    read: tuple[Callable[[NDArray[np.int32]], str], str],
    *,
    kind: HeldOutKind,
    logits: Floats,
    labels: Floats,
    values: Floats,
) -> HeldOutScores:
    """A scorer's numbers with what the answers themselves show; `read`: decoder, and pattern of the final answer."""
    decode, pattern = read
    # `[E]` number of each answer's question: answers with the same tokens before them have the same.
    seen, numbers = episodes.transcript, dict[bytes, int]()
    starts, ends = seen.offsets[:-1], seen.offsets[:-1] + _prompt_lengths(episodes)
    keys = [seen.tokens[start:end].tobytes() for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    return HeldOutScores(
        kind=kind,
        logits=logits,
        labels=labels,
        values=values,
        truth=episodes.score,
        lengths=np.diff(episodes.transcript.offsets) - _prompt_lengths(episodes),
        group=episodes.group,
        prompt=np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64),
        final_answers=[extract_answer(text, pattern) for text, _ in text_after_prompt(episodes, decode)],
    )


def labelled_scores(scorer: TokenScorer, episodes: Episodes, *, micro_batch_tokens: int) -> NDArray[np.float64]:
    """`[N]` number of the scorer at the token of every decision."""
    seen = episodes.transcript
    places = np.split(seen.at - seen.offsets[:-1][episodes.owner], episodes.offsets[1:-1])
    sequences = np.split(seen.tokens, seen.offsets[1:-1])
    return scorer.model.score_tokens(sequences, places, micro_batch_tokens=micro_batch_tokens)


def _prompt_lengths(episodes: Episodes) -> Ints:
    """`[E]` tokens before the first decision of each answer."""
    seen = episodes.transcript
    return seen.at[episodes.offsets[:-1]] - seen.offsets[:-1]
