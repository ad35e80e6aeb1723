"""Group-relative credit: values worked out by hand, a slow version, and what must not change it."""

import itertools
import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.core.credit import NO_VALUES
from hone.core.episodes import Episodes, Status
from hone.core.ragged import offsets_of
from hone.credit.group import Scale, group_relative, leave_one_out

ZERO = "reward/zero_variance_groups"


def answers(
    scores: list[float], groups: list[int], *, lengths: list[int] | None = None, missing: list[int] | None = None
) -> Episodes:
    lengths = lengths or [1] * len(scores)
    status = np.zeros(len(scores), dtype=np.uint8)
    status[missing or []] = Status.TIMEOUT
    score = np.array(scores, dtype=np.float64)
    score[missing or []] = np.nan
    total = sum(lengths)
    return Episodes(
        offsets=offsets_of(np.array(lengths)),
        seen=np.zeros((total, 1)),
        chosen=np.zeros(total),
        logp=np.zeros(total, np.float32),
        version=np.zeros(total, np.int32),
        reward=np.zeros(total, np.float32),
        group=np.array(groups, dtype=np.int64),
        terminated=np.ones(len(scores), np.bool_),
        truncated=np.zeros(len(scores), np.bool_),
        final=None,
        score=score,
        status=status,
    )


def slow(scores: list[float], groups: list[int], *, scale: Scale, epsilon: float = 1e-6) -> list[float]:
    """One answer at a time, by the statistics module; NaN scores are missing."""
    of: dict[int, list[float]] = {}
    for score, group in zip(scores, groups, strict=True):
        if not math.isnan(score):
            of.setdefault(group, []).append(score)
    centred = [score - statistics.fmean(of[group]) for group in of for score in of[group]]
    spread = statistics.stdev(centred) if len(centred) > 1 else 1.0
    found: list[float] = []
    for score, group in zip(scores, groups, strict=True):
        own = of.get(group, [])
        if math.isnan(score) or len(own) < 2 or len(set(own)) == 1:
            found.append(0.0)
            continue
        divisor = {"group": statistics.stdev(own) + epsilon, "batch": spread + epsilon, "none": 1.0}[scale]
        found.append((score - statistics.fmean(own)) / divisor)
    return found


def advantage(episodes: Episodes, scale: Scale = "group") -> list[float]:
    return group_relative(episodes, NO_VALUES, scale=scale).advantage.tolist()


def test_by_hand() -> None:
    """Scores 1, 0, 0, 1: mean 1/2, sample deviation sqrt(1/3)."""
    credits = group_relative(answers([1, 0, 0, 1], [5, 5, 5, 5]), NO_VALUES)
    half = 0.5 / (math.sqrt(1 / 3) + 1e-6)
    np.testing.assert_allclose(credits.advantage, [half, -half, -half, half], rtol=1e-6)
    assert credits.metrics == {ZERO: 0.0}
    assert credits.advantage.dtype == np.float32


def test_without_scaling_by_hand() -> None:
    assert advantage(answers([3, 0, 0, 10, 20], [0, 0, 0, 1, 1]), "none") == [2, -1, -1, -5, 5]


def test_scaled_by_the_batch_by_hand() -> None:
    """Centred scores 1, -1, 2, -2: their sample deviation is sqrt(10/3)."""
    found = advantage(answers([2, 0, 5, 1], [0, 0, 1, 1]), "batch")
    np.testing.assert_allclose(found, np.array([1, -1, 2, -2]) / (math.sqrt(10 / 3) + 1e-6), rtol=1e-6)


def test_every_decision_of_an_answer_gets_its_answers_credit() -> None:
    found = advantage(answers([1, 3], [0, 0], lengths=[3, 2]), "none")
    assert found == [-1, -1, -1, 1, 1]


def test_single_and_equal_scores_say_nothing_and_are_counted() -> None:
    episodes = answers([7, 1, 1, 0.1, 0.1, 0.1, 0, 1], [0, 1, 1, 2, 2, 2, 3, 3])
    for scale in ("group", "batch", "none"):
        credits = group_relative(episodes, NO_VALUES, scale=scale)
        assert credits.advantage[:6].tolist() == [0] * 6
        assert (np.abs(credits.advantage[6:]) > 0.4).all()
        assert credits.metrics[ZERO] == 3 / 4
    alone = leave_one_out(episodes, NO_VALUES)
    assert alone.advantage.tolist() == [0] * 6 + [-1, 1]
    assert alone.metrics[ZERO] == 3 / 4


def test_missing_scores_leave_the_statistics() -> None:
    """The third answer of the first group timed out; the second group lost all but one."""
    episodes = answers([1, 0, 9, 5, 6], [0, 0, 0, 1, 1], missing=[2, 3])
    for credits in (group_relative(episodes, NO_VALUES, scale="none"), leave_one_out(episodes, NO_VALUES)):
        assert np.isfinite(credits.advantage).all()
        assert credits.advantage[2:].tolist() == [0, 0, 0]
        assert credits.metrics[ZERO] == 1 / 2
    assert advantage(episodes, "none")[:2] == [0.5, -0.5]


def test_nothing_scored_is_no_fault() -> None:
    episodes = answers([1, 2], [0, 0], missing=[0, 1])
    for scale in ("group", "batch", "none"):
        credits = group_relative(episodes, NO_VALUES, scale=scale)
        assert credits.advantage.tolist() == [0, 0]
        assert credits.metrics[ZERO] == 0
    assert leave_one_out(episodes, NO_VALUES).advantage.tolist() == [0, 0]


def test_a_penalty_elsewhere_silences_no_group() -> None:
    """One answer's -1e6 is its own group's affair."""
    found = advantage(answers([0, 1, -1e6, 0], [0, 0, 1, 1]))
    np.testing.assert_allclose(found[:2], [-math.sqrt(0.5), math.sqrt(0.5)], rtol=1e-5)


batches = st.lists(
    st.tuples(st.integers(0, 3), st.one_of(st.integers(-8, 8).map(lambda k: k / 4), st.just(float("nan")))),
    min_size=1,
    max_size=14,
)


@given(batches, st.sampled_from(["group", "batch", "none"]))
def test_the_slow_version_agrees(batch: list[tuple[int, float]], scale: Scale) -> None:
    groups, scores = [group for group, _ in batch], [score for _, score in batch]
    missing = [place for place, score in enumerate(scores) if math.isnan(score)]
    found = advantage(answers(scores, groups, missing=missing), scale)
    np.testing.assert_allclose(found, slow(scores, groups, scale=scale), rtol=1e-5, atol=1e-6)


@given(batches, st.sampled_from(["group", "batch", "none"]), st.integers(-50, 50))
def test_a_shift_of_all_scores_changes_nothing(batch: list[tuple[int, float]], scale: Scale, shift: int) -> None:
    groups, scores = [group for group, _ in batch], [score for _, score in batch]
    missing = [place for place, score in enumerate(scores) if math.isnan(score)]
    found = advantage(answers(scores, groups, missing=missing), scale)
    moved = advantage(answers([score + shift for score in scores], groups, missing=missing), scale)
    np.testing.assert_allclose(moved, found, rtol=1e-5, atol=1e-6)


@given(batches, st.sampled_from([0.5, 2.0, 64.0]))
def test_scores_in_another_unit_change_nothing_but_the_epsilon(batch: list[tuple[int, float]], unit: float) -> None:
    groups, scores = [group for group, _ in batch], [score for _, score in batch]
    missing = [place for place, score in enumerate(scores) if math.isnan(score)]
    found = advantage(answers(scores, groups, missing=missing))
    other = advantage(answers([score * unit for score in scores], groups, missing=missing))
    np.testing.assert_allclose(other, found, rtol=1e-4, atol=1e-6)
    plain = advantage(answers(scores, groups, missing=missing), "none")
    np.testing.assert_allclose(
        advantage(answers([score * unit for score in scores], groups, missing=missing), "none"),
        np.array(plain) * unit,
        rtol=1e-6,
    )


@given(batches, st.randoms(use_true_random=False))
def test_the_order_of_answers_does_not_matter(batch: list[tuple[int, float]], rng: object) -> None:
    order = list(range(len(batch)))
    rng.shuffle(order)  # type: ignore[attr-defined]
    groups, scores = [group for group, _ in batch], [score for _, score in batch]
    missing = [place for place, score in enumerate(scores) if math.isnan(score)]
    episodes = answers(scores, groups, missing=missing)
    for credit in (group_relative, leave_one_out):
        found = credit(episodes, NO_VALUES).advantage
        shuffled = credit(episodes.take(np.array(order)), NO_VALUES).advantage
        np.testing.assert_allclose(shuffled, found[order], rtol=1e-5, atol=1e-7)


@given(st.lists(st.integers(-8, 8), min_size=2, max_size=8))
def test_leave_one_out_is_the_score_minus_that_of_the_others(scores: list[int]) -> None:
    """And so K / (K - 1) times the centred score."""
    found = leave_one_out(answers([float(score) for score in scores], [0] * len(scores)), NO_VALUES).advantage
    others = [score - (sum(scores) - score) / (len(scores) - 1) for score in scores]
    np.testing.assert_allclose(found, others, atol=1e-5)
    k = len(scores)
    np.testing.assert_allclose(found, k / (k - 1) * (np.array(scores) - np.mean(scores)), atol=1e-5)


@pytest.mark.parametrize("rates", [(0.2, 0.5), (0.9, 0.05)])
def test_leave_one_out_is_unbiased_by_enumeration(rates: tuple[float, float]) -> None:
    """Two answers that are right with `rates`, K = 2: E[A grad log pi] = grad E[R], over all choices and outcomes."""
    p = 0.3  # pi(first answer); theta = logit p, d log pi(first) = 1 - p, d log pi(second) = -p
    total = 0.0
    for first, second, one, other in itertools.product((0, 1), repeat=4):
        chance, slopes = 1.0, [(1 - p, -p)[choice] for choice in (first, second)]
        for choice, right in ((first, one), (second, other)):
            chance *= (p, 1 - p)[choice] * (rates[choice] if right else 1 - rates[choice])
        found = leave_one_out(answers([float(one), float(other)], [0, 0]), NO_VALUES).advantage
        total += chance * float(found @ np.array(slopes)) / 2
    assert total == pytest.approx(p * (1 - p) * (rates[0] - rates[1]), abs=1e-7)
