"""What is said of a scorer on held-out answers: by hand, and the warnings that each fault brings."""

import re

import numpy as np
import pytest

from hone.text.evaluate.scorer_eval import HeldOutScores, evaluate_scores, preferred_pairs, scorer_record


def pairs(margins: np.ndarray, lengths: np.ndarray) -> HeldOutScores:
    """Pairs whose chosen answer scores `margins` more; lengths `[2 n]` of chosen and rejected in turns."""
    count = len(margins)
    values = np.stack([margins, np.zeros(count)], axis=1).reshape(-1)
    truth = np.tile([1.0, 0.0], count)
    return HeldOutScores(
        kind="pairs", logits=values, labels=truth, values=values, truth=truth, lengths=lengths,
        group=np.repeat(np.arange(count), 2), prompt=np.repeat(np.arange(count), 2), final_answers=[""] * 2 * count,
    )  # fmt: skip


def outcomes(values: np.ndarray, truth: np.ndarray, answers: list[str], size: int) -> HeldOutScores:
    prompt = np.repeat(np.arange(len(values) // size), size)
    return HeldOutScores(
        kind="outcomes", logits=values, labels=truth, values=values, truth=truth,
        lengths=np.arange(len(values)) % 3 + 1, group=np.arange(len(values)), prompt=prompt, final_answers=answers,
    )  # fmt: skip


def test_pairs_by_hand() -> None:
    found = evaluate_scores(pairs(np.array([2.0, 1.0, -1.0, 0.0]), np.array([3, 1, 1, 3, 2, 2, 5, 4])))
    assert found.accuracy.mean == pytest.approx(2.5 / 4)
    assert found.cross_entropy == pytest.approx(np.mean(np.log1p(np.exp([-2.0, -1.0, 1.0, 0.0]))))
    # of the three pairs of two lengths the longer is preferred in pairs 0 and 3, and scores more in pair 0 alone
    assert found.length_bias == pytest.approx(((1 - 1 + 0) / 3 - (1 - 1 + 1) / 3) / 2)
    assert found.base_rate == 0.5
    assert list(found.selection) == []


def test_a_group_of_any_size_has_all_its_pairs() -> None:
    better, worse = preferred_pairs(np.array([3.0, 1.0, 1.0, 2.0]), np.array([0, 0, 0, 1]))
    assert sorted(zip(better.tolist(), worse.tolist(), strict=True)) == [(0, 1), (0, 2)]


def test_an_accuracy_whose_interval_holds_a_half_is_told() -> None:
    draws = np.random.default_rng(0)
    lengths = np.full(80, 4)
    (line,) = evaluate_scores(pairs(draws.choice([-1.0, 1.0], 40), lengths)).warnings
    assert re.search(r"held-out pair accuracy 0\.\d+ \(95% interval .*no better than chance", line)
    assert evaluate_scores(pairs(np.ones(40), lengths)).warnings == []


def test_a_taste_for_length_is_told() -> None:
    lengths = np.tile([2, 6, 6, 2], 20)  # the chosen answer is as often the shorter one as the longer
    margins = np.where(lengths[::2] > lengths[1::2], 1.0, -0.5) + 0.1
    lines = evaluate_scores(pairs(margins, lengths)).warnings
    assert any("prefers long answers more than the labels do: length bias +0.50" in line for line in lines)


def test_labels_that_are_all_alike_say_nothing() -> None:
    found = evaluate_scores(outcomes(np.arange(6.0), np.ones(6), ["1"] * 6, 6))
    assert "all held-out labels are alike" in found.warnings[0]
    assert "eval/auc" not in found.metrics()


def test_selecting_by_a_bad_scorer_is_told_and_a_good_one_is_not() -> None:
    """60 questions of 16 answers, 60% right: a scorer of wrong ones loses to the vote and falls with n."""
    draws = np.random.default_rng(0)
    truth = (draws.random(960) < 0.6).astype(np.float64)
    answers = ["7" if good else str(draws.integers(0, 5)) for good in truth]
    bad = evaluate_scores(outcomes(-truth + 0.1 * draws.normal(size=960), truth, answers, 16))
    assert [point.n for point in bad.selection] == [1, 2, 4, 8, 16]
    assert any("worse than a vote: of 16 answers" in line for line in bad.warnings)
    assert any("gets worse with more answers: best of 1" in line for line in bad.warnings)
    good = evaluate_scores(outcomes(truth - 0.5 + 0.1 * draws.normal(size=960), truth, answers, 16))
    assert good.warnings == []
    assert good.selection[-1].best == pytest.approx(good.selection[-1].oracle)
    assert good.selection[0].best == pytest.approx(truth.mean())
    record = scorer_record(good, step=3)
    assert [row.n for row in record.selection] == [1, 2, 4, 8, 16]
    assert record.figures["best_of_n"] == pytest.approx(good.selection[-1].best)
