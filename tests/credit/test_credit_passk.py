"""Pass@k, the expected maximum of k, maximum likelihood: by hand, by all subsets, and by enumeration."""

import itertools
import math
import statistics
from fractions import Fraction

import numpy as np
import pytest
from credit_batches import Batch, answers, any_scores, binary_scores, by_group, nan, of
from hypothesis import given
from hypothesis import strategies as st

from hone.core.credit import NO_VALUES
from hone.core.errors import ConfigError, UserCodeError
from hone.credit.group import group_relative, leave_one_out
from hone.credit.passk import best_of_group, max_rl, pass_at_k, pkpo

ZERO, SMALL = "reward/zero_variance_groups", "reward/groups_too_small"


def group_by_group(batch: Batch, judge) -> list[float]:
    """`judge` gives a group's advantages from its scores; missing scores get 0."""
    groups = {group: iter(judge(scores)) for group, scores in by_group(batch).items()}
    return [0.0 if math.isnan(score) else next(groups[group]) for group, score in batch]


# -------------------------------------------------------------------------------------------- best of the group


def test_best_of_group_by_hand() -> None:
    """Best 4, second 1; scores 4, 1, 1 have the sample deviation sqrt(3)."""
    episodes = answers([1, 4, 1, nan])
    assert best_of_group(episodes, NO_VALUES, scale="none").advantage.tolist() == [0, 3, 0, 0]
    np.testing.assert_allclose(best_of_group(episodes, NO_VALUES).advantage[1], 3 / (math.sqrt(3) + 1e-6), rtol=1e-6)
    assert not best_of_group(answers([2, 2, 1]), NO_VALUES).advantage.any()  # two equal best


@given(any_scores)
def test_best_of_group_is_pkpo_of_the_whole_group(batch: Batch) -> None:
    def judge(scores: list[float]) -> list[float]:
        if len(scores) < 2:
            return [0.0] * len(scores)
        found = pkpo(answers(scores), NO_VALUES, k=len(scores)).advantage / len(scores)
        return found.tolist()

    found = best_of_group(of(batch), NO_VALUES, scale="none").advantage
    np.testing.assert_allclose(found, group_by_group(batch, judge), atol=1e-6)


# -------------------------------------------------------------------------------------------- pass@k training


def subsets_of(count: int, k: int) -> list[tuple[int, ...]]:
    return list(itertools.combinations(range(count), k))


def slow_pass_at_k(scores: list[float], k: int) -> list[float]:
    """Every subset of k answers is judged by whether one of it is right, and standardised among all subsets;
    an answer's advantage is the mean of its subsets'."""
    if len(scores) < max(k, 2) or len(set(scores)) == 1:
        return [0.0] * len(scores)
    subsets = subsets_of(len(scores), k)
    passed = [float(any(scores[i] for i in subset)) for subset in subsets]
    mean, deviation = statistics.fmean(passed), statistics.pstdev(passed)
    return [
        statistics.fmean(
            [(one - mean) / (deviation + 1e-6) for one, subset in zip(passed, subsets, strict=True) if i in subset]
        )
        for i in range(len(scores))
    ]


def test_pass_at_k_by_hand() -> None:
    """Four answers, one right, k = 2: P = 1 - 3/6 = 1/2, s = 1/2; right 1, wrong (1/2 - C(2,1)/C(3,1)) / s = -1/3."""
    found = pass_at_k(answers([0, 1, 0, 0]), NO_VALUES, k=2).advantage
    np.testing.assert_allclose(found, np.array([-1 / 3, 1, -1 / 3, -1 / 3]), rtol=1e-5)


@given(binary_scores, st.integers(1, 4))
def test_pass_at_k_is_the_mean_over_subsets(batch: Batch, k: int) -> None:
    credits = pass_at_k(of(batch), NO_VALUES, k=k)
    np.testing.assert_allclose(credits.advantage, group_by_group(batch, lambda s: slow_pass_at_k(s, k)), atol=1e-4)
    sizes = [len(scores) for scores in by_group(batch).values()]
    if k > 2:
        assert credits.metrics[SMALL] == pytest.approx(sum(s < k for s in sizes) / len(sizes) if sizes else 0)


@given(binary_scores)
def test_pass_at_one_is_grpo_with_the_deviation_of_a_population(batch: Batch) -> None:
    found = pass_at_k(of(batch), NO_VALUES, k=1).advantage
    np.testing.assert_allclose(found, group_relative(of(batch), NO_VALUES, ddof=0).advantage, atol=1e-6)


def test_scores_that_it_is_not_defined_on_are_refused_by_name() -> None:
    with pytest.raises(
        UserCodeError, match=r"pass_at_k needs scores of 0 or 1: 1 of 3 .* 0\.5 of episode 1 in group 7"
    ):
        pass_at_k(answers([1, 0.5, nan], [7, 7, 7]), NO_VALUES, k=1)
    with pytest.raises(UserCodeError, match=r"max_rl needs scores of at least 0: 1 of 2 .* -1 of episode 0"):
        max_rl(answers([-1, 0.5]), NO_VALUES)
    with pytest.raises(ConfigError, match="k = 0"):
        pass_at_k(answers([1, 0]), NO_VALUES, k=0)
    with pytest.raises(ConfigError, match="k = 1"):
        pkpo(answers([1, 0]), NO_VALUES, k=1)


# -------------------------------------------------------------------------------------------- PKPO


def slow_pkpo(scores: list[float], k: int, baseline: str) -> list[float]:
    count, whole = len(scores), subsets_of(len(scores), k)
    if count < 2 or count < k + (baseline == "leave_one_out"):
        return [0.0] * count

    def best(subset: tuple[int, ...]) -> float:
        return max(scores[j] for j in subset)

    found: list[float] = []
    for i in range(count):
        own = [subset for subset in whole if i in subset]
        if baseline == "minus_one":
            gain = sum(best(subset) - best(tuple(j for j in subset if j != i)) for subset in own)
            found.append(count * gain / len(whole))
        else:
            others = statistics.fmean([best(subset) for subset in whole if i not in subset])
            found.append(count * sum(map(best, own)) / len(whole) - k * others)
    return found


def test_pkpo_by_hand() -> None:
    """Scores 0, 1, 3, k = 2. The pairs gain: 3 over 1 by 2, 3 over 0 by 3, 1 over 0 by 1; x 3 / C(3,2)."""
    assert pkpo(answers([0, 1, 3]), NO_VALUES, k=2).advantage.tolist() == pytest.approx([0, 1, 5])


@given(any_scores, st.integers(1, 4), st.sampled_from(["minus_one", "leave_one_out"]))
def test_pkpo_is_the_sum_over_subsets(batch: Batch, k: int, baseline) -> None:
    k = max(k, 2) if baseline == "minus_one" else k
    found = pkpo(of(batch), NO_VALUES, k=k, baseline=baseline).advantage
    expected = group_by_group(batch, lambda scores: slow_pkpo(scores, k, baseline))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def sums_before(values: list[int]) -> list[int]:
    """Sum of the entries before each."""
    return [0, *itertools.accumulate(values)]


@pytest.mark.parametrize(("count", "k"), [(2048, 2), (2048, 64), (2048, 1024), (2048, 2047), (1100, 550)])
def test_pkpo_of_a_large_group_is_the_exact_sum(count: int, k: int) -> None:
    """C(2048, 1024) has 616 digits and is no double; here the sums over subsets are taken in whole numbers.

    minus_one: i gains R_i - R_j in the C(j, k-2) subsets in which it is best and j (from 0) second best.
    leave_one_out: i's best subsets, those in which a higher j is best, and k times the mean over the others' subsets.
    """
    scores = [float((7919 * one) % 100003) for one in range(count)]
    order = sorted(range(count), key=lambda one: scores[one])
    ranked, whole, fewer = [int(scores[one]) for one in order], math.comb(count, k), math.comb(count - 1, k)
    c2 = [math.comb(rank, k - 2) for rank in range(count)]
    c1 = [math.comb(rank, k - 1) for rank in range(count)]
    shared = [math.comb(rank - 1, k - 2) if rank else 0 for rank in range(count)]
    worth = np.array(ranked, dtype=object)
    below, weighted = sums_before(c2), sums_before(list(worth * c2))
    lower, above = sums_before(list(worth * c1)), sums_before(list(worth * shared)[::-1])[::-1]
    higher = sums_before(list(worth[1:] * c1[:-1])[::-1])[::-1]
    minus, leave = [0.0] * count, [0.0] * count
    for rank, answer in enumerate(order):
        minus[answer] = count * (ranked[rank] * below[rank] - weighted[rank]) / whole
        own, others = ranked[rank] * c1[rank] + above[rank + 1], lower[rank] + higher[rank]
        leave[answer] = float(Fraction(count * own, whole) - Fraction(k * others, fewer))
    episodes = answers(scores)
    size = max(scores)
    np.testing.assert_allclose(pkpo(episodes, NO_VALUES, k=k).advantage, minus, rtol=2e-6, atol=1e-7 * size)
    found = pkpo(episodes, NO_VALUES, k=k, baseline="leave_one_out").advantage
    np.testing.assert_allclose(found, leave, rtol=2e-6, atol=1e-7 * size)


@given(any_scores)
def test_pkpo_of_one_is_leave_one_out(batch: Batch) -> None:
    found = pkpo(of(batch), NO_VALUES, k=1, baseline="leave_one_out").advantage
    np.testing.assert_allclose(found, leave_one_out(of(batch), NO_VALUES).advantage, atol=1e-5)


# -------------------------------------------------------------------------------------------- by enumeration

CHANCES = np.array([0.5, 0.3, 0.2])  # a softmax policy over three answers
WORTH = np.array([0.0, 1.0, 0.4])


def expected_gradient(credit, samples: int, worth: np.ndarray) -> np.ndarray:
    """E[(1/N) sum A_i grad log pi(answer i)] with respect to the logits, over all samples of N answers."""
    total = np.zeros(3)
    for chosen in itertools.product(range(3), repeat=samples):
        found = credit(answers([float(worth[c]) for c in chosen])).advantage.astype(np.float64)
        slopes = np.eye(3)[list(chosen)] - CHANCES
        total += np.prod(CHANCES[list(chosen)]) * (found @ slopes) / samples
    return total


def gradient(objective) -> np.ndarray:
    """Central differences of objective(chances) with respect to the logits."""
    logits, step, found = np.log(CHANCES), 1e-5, np.zeros(3)
    for i in range(3):
        values = []
        for sign in (1, -1):
            moved = np.exp(logits + sign * step * np.eye(3)[i])
            values.append(objective(moved / moved.sum()))
        found[i] = (values[0] - values[1]) / (2 * step)
    return found


def expected_best(k: int, chances: np.ndarray) -> float:
    return sum(
        float(np.prod(chances[list(chosen)]) * WORTH[list(chosen)].max())
        for chosen in itertools.product(range(3), repeat=k)
    )


@pytest.mark.parametrize(
    ("k", "samples", "baseline"),
    [
        *[(2, 2, "minus_one"), (2, 4, "minus_one"), (3, 4, "minus_one")],
        *[(1, 3, "leave_one_out"), (2, 3, "leave_one_out"), (2, 4, "leave_one_out")],
    ],
)
def test_pkpo_is_unbiased(k: int, samples: int, baseline) -> None:
    found = expected_gradient(lambda e: pkpo(e, NO_VALUES, k=k, baseline=baseline), samples, WORTH)
    np.testing.assert_allclose(found, gradient(lambda chances: expected_best(k, chances)), atol=2e-7)


@pytest.mark.parametrize("samples", [2, 3, 5])
@pytest.mark.parametrize(("order", "terms"), [("n_minus_one", -1), ("n", 0)])
def test_max_rl_has_the_order_that_it_says(samples: int, order, terms: int) -> None:
    """And not the other one: the gradients of N - 1 and N terms differ."""
    right = np.array([0.0, 1.0, 1.0])

    def likelihood(chances: np.ndarray, count: int) -> float:
        return -sum((1 - chances @ right) ** m / m for m in range(1, count + 1))

    found = expected_gradient(lambda e: max_rl(e, NO_VALUES, order=order, epsilon=0.0), samples, right)
    meant = gradient(lambda chances: likelihood(chances, samples + terms))
    other = gradient(lambda chances: likelihood(chances, samples - 1 - terms))
    np.testing.assert_allclose(found, meant, atol=1e-7)
    assert np.abs(found - other).max() > 1e-3


# -------------------------------------------------------------------------------------------- MaxRL


def test_max_rl_by_hand() -> None:
    """One of four right: mean 1/4, A = 3 and -1. A group of failures: 0, or -1 for order N."""
    episodes = answers([0, 1, 0, 0, 0, 0, 1, 0, nan], [0, 0, 0, 0, 1, 1, 2, 3, 1])
    short = max_rl(episodes, NO_VALUES, epsilon=0.0)
    assert short.advantage.tolist() == [-1, 3, -1, -1, 0, 0, 0, 0, 0]
    assert short.metrics[ZERO] == 3 / 4
    whole = max_rl(episodes, NO_VALUES, order="n", epsilon=0.0)
    assert whole.advantage.tolist() == [-1, 3, -1, -1, -1, -1, 0, -1, 0]
    assert whole.metrics[ZERO] == 3 / 4


@given(st.lists(st.integers(0, 4), min_size=2, max_size=6))
def test_max_rl_is_the_centred_score_over_the_mean(scores: list[int]) -> None:
    found = max_rl(answers([float(score) for score in scores]), NO_VALUES).advantage
    mean = statistics.fmean(scores)
    same = len(set(scores)) == 1
    np.testing.assert_allclose(found, [0.0 if same else (s - mean) / (mean + 1e-6) for s in scores], rtol=1e-5)
    doubled = max_rl(answers([2.0 * score for score in scores]), NO_VALUES, epsilon=0.0).advantage
    np.testing.assert_allclose(doubled, max_rl(answers([float(s) for s in scores]), NO_VALUES, epsilon=0.0).advantage)
