"""Levels of normalisation: baseline and deviation over group or batch, ddof, epsilon, whitening; by hand and slowly."""

import math
import statistics

import numpy as np
import pytest
from credit_batches import Batch, answers, any_scores, nan, of
from hypothesis import given
from hypothesis import strategies as st

from hone.core.credit import NO_VALUES
from hone.credit.group import batch_relative, gdpo, group_relative, leave_one_out
from hone.credit.passk import best_of_group
from hone.credit.reinforce import (
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    whitened,
    whitened_answers,
    whitened_rewards,
)

CENTERS = ("group", "leave_one_out", "batch", "none")
SCALES = ("group", "centred_group", "batch", "centred_batch", "none")


def deviation(values: list[float], ddof: int) -> float:
    if len(values) <= ddof:
        return 0.0
    mean = statistics.fmean(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - ddof))


def equal(values: list[float]) -> bool:
    return len(set(values)) <= 1


def slow_baseline(batch: Batch, index: int, center: str) -> float:
    """Baseline of a score; its own where no other answer is there to be compared with."""
    group, score = batch[index]
    others = [
        other for place, (number, other) in enumerate(batch)
        if number == group and place != index and not math.isnan(other)
    ]  # fmt: skip
    return {
        "group": lambda: statistics.fmean([*others, score]),
        "leave_one_out": lambda: statistics.fmean(others or [score]),
        "batch": lambda: statistics.fmean(other for _, other in batch if not math.isnan(other)),
        "none": lambda: 0.0,
    }[center]()


def slow(batch: Batch, center: str, scale: str, ddof: int, epsilon: float) -> list[float]:
    heard = [score for _, score in batch if not math.isnan(score)]
    above = [
        score - slow_baseline(batch, index, center)
        for index, (_, score) in enumerate(batch)
        if not math.isnan(score)
    ]  # fmt: skip
    found: list[float] = []
    for index, (group, score) in enumerate(batch):
        mates = [other for number, other in batch if number == group and not math.isnan(other)]
        dead = equal(mates) and (center in ("group", "leave_one_out") or scale == "group")
        if math.isnan(score) or dead:
            found.append(0.0)
            continue
        divisor = 1.0
        if scale == "group":
            divisor = deviation(mates, ddof) + epsilon
        elif scale == "centred_group" and len(mates) > ddof:
            squares = sum(
                (other - slow_baseline(batch, number, center)) ** 2
                for number, (own, other) in enumerate(batch)
                if own == group and not math.isnan(other)
            )
            divisor = math.sqrt(squares / (len(mates) - ddof)) + epsilon
        elif scale in ("batch", "centred_batch") and len(heard) > ddof:
            divisor = deviation(heard if scale == "batch" else above, ddof) + epsilon
        advantage = (score - slow_baseline(batch, index, center)) / divisor
        found.append(0.0 if center == "batch" and equal(heard) else advantage)
    return found


@pytest.mark.parametrize("center", CENTERS)
@pytest.mark.parametrize("scale", SCALES)
@given(any_scores, st.sampled_from([0, 1]), st.sampled_from([1e-6, 1e-4, 0.5]))
def test_every_level_slowly(center, scale, batch: Batch, ddof, epsilon: float) -> None:
    found = group_relative(of(batch), NO_VALUES, center=center, scale=scale, ddof=ddof, epsilon=epsilon).advantage
    np.testing.assert_allclose(found, slow(batch, center, scale, ddof, epsilon), rtol=2e-6, atol=1e-6)


def test_levels_by_hand() -> None:
    """Scores 1, 0, 1/2 and 2, 1. verl 0.9.1's `grpo` and `rloo` give the first two rows.

    Of all five the mean is 0.9 and the sample deviation sqrt(0.55). AReaL divides by the deviation of the centred
    scores in the third row, sqrt(1/4) instead: a documented difference.
    """
    episodes = answers([1.0, 0.0, 0.5, 2.0, 1.0], [0, 0, 0, 1, 1])
    rows = {
        ("group", "group"): [0.999998, -0.999998, 0.0, 0.707105781, -0.707105781],
        ("leave_one_out", "none"): [0.75, -0.75, 0.0, 1.0, -1.0],
        ("group", "batch"): [value / math.sqrt(0.55) for value in (0.5, -0.5, 0.0, 0.5, -0.5)],
        ("batch", "batch"): [value / math.sqrt(0.55) for value in (0.1, -0.9, -0.4, 1.1, 0.1)],
        ("batch", "group"): [0.2, -1.8, -0.8, 1.1 / math.sqrt(0.5), 0.1 / math.sqrt(0.5)],
        ("none", "none"): [1.0, 0.0, 0.5, 2.0, 1.0],
        # About the baseline (AReaL): of the second group, sqrt((1 + 1) / 1) about 1 and 2, sqrt(1.21 + 0.01) about 0.9.
        ("group", "centred_group"): [0.999998, -0.999998, 0.0, 0.707105781, -0.707105781],
        ("leave_one_out", "centred_group"): [1.0, -1.0, 0.0, math.sqrt(0.5), -math.sqrt(0.5)],
        ("batch", "centred_group"): [
            *(value / math.sqrt((0.01 + 0.81 + 0.16) / 2) for value in (0.1, -0.9, -0.4)),
            *(value / math.sqrt(1.22) for value in (1.1, 0.1)),
        ],
    }
    for (center, scale), expected in rows.items():
        found = group_relative(episodes, NO_VALUES, center=center, scale=scale).advantage  # type: ignore[arg-type]
        np.testing.assert_allclose(found, expected, rtol=5e-6, atol=1e-7, err_msg=f"{center} {scale}")


def test_equal_scores_under_a_deviation_about_the_batch_mean() -> None:
    """Group 1 has the scores 1, 1 and the batch the mean 1/2: about it the deviation is sqrt(1/2), and A = sqrt(1/2).
    About its own mean it is 0, and the group gets 0. AReaL's Normalization (mean "batch", std "group") gives the first.
    """
    episodes = answers([0.0, 0.0, 1.0, 1.0], [0, 0, 1, 1])
    found = group_relative(episodes, NO_VALUES, center="batch", scale="centred_group").advantage
    np.testing.assert_allclose(found, np.array([-1, -1, 1, 1]) * math.sqrt(0.5), rtol=5e-6)
    assert not group_relative(episodes, NO_VALUES, center="batch", scale="group").advantage.any()


@given(any_scores)
def test_levels_that_are_estimators_of_their_own(batch: Batch) -> None:
    episodes = of(batch)
    for options, other in (
        ({"center": "leave_one_out", "scale": "none"}, leave_one_out(episodes, NO_VALUES)),
        ({"center": "batch", "scale": "batch"}, batch_relative(episodes, NO_VALUES)),
    ):
        found = group_relative(episodes, NO_VALUES, **options).advantage
        np.testing.assert_allclose(found, other.advantage, rtol=1e-5, atol=1e-6)


def test_no_epsilon_and_no_difference_is_no_fault() -> None:
    """Deviations of 0 divide nothing, and no warning is raised."""
    episodes = answers([2.0, 2.0, nan, 1.0], [0, 0, 0, 1], lengths=[2, 1, 1, 0])
    for center in CENTERS:
        for scale in SCALES:
            found = group_relative(episodes, NO_VALUES, center=center, scale=scale, epsilon=0.0).advantage  # type: ignore[arg-type]
            assert np.isfinite(found).all()
    assert not best_of_group(episodes, NO_VALUES, epsilon=0.0).advantage.any()
    pair = answers([1.0, 1.0], components=[[1.0], [1.0]])
    assert not gdpo(pair, NO_VALUES, epsilon=0.0).advantage.any()


# ------------------------------------------------------------------------------------------------ whitening


@given(any_scores, st.sampled_from([0, 1]), st.integers(0, 99))
def test_whitening_counts_answers_or_decisions(batch: Batch, ddof, seed: int) -> None:
    """Mean 0 and deviation std / (std + epsilon), each answer counted once, or once for each of its decisions."""
    lengths = np.random.default_rng(seed).integers(0, 4, len(batch)).tolist()
    episodes = of(batch, lengths=lengths)
    plain = group_relative(episodes, NO_VALUES, center="none", scale="none").advantage
    owner = np.repeat(np.arange(len(batch)), lengths)
    scored = episodes.scored[owner]
    for wrap, weight in ((whitened_answers, 1.0 / np.maximum(np.array(lengths), 1)[owner]), (whitened, 1.0)):
        credit = wrap(
            episodes,
            NO_VALUES,
            credit=lambda e, v: group_relative(e, v, center="none", scale="none"),
            ddof=ddof,
            epsilon=0.25,
        )
        assert not credit.advantage[~scored].any()
        counts = np.where(scored, weight, 0.0)
        total = counts.sum()
        values = plain[scored]
        if total < 2 - 1e-9 or equal(values.tolist()):
            assert not credit.advantage.any()
            continue
        mean = float((counts * plain).sum() / total)
        std = math.sqrt(float((counts * (plain - mean) ** 2).sum() / (total - ddof)))
        np.testing.assert_allclose(credit.advantage[scored], (values - mean) / (std + 0.25), rtol=1e-4, atol=1e-5)


def test_whitening_over_answers_is_trl_s() -> None:
    """`normalize_advantages` of TRL 1.16's RLOO: (A - mean) / (std + 1e-4), ddof 1; A = 3/4, -3/4, 0, 1, -1."""
    episodes = answers([1.0, 0.0, 0.5, 2.0, 1.0], [0, 0, 0, 1, 1], lengths=[2, 1, 3, 2, 2])
    found = whitened_answers(episodes, NO_VALUES, credit=leave_one_out).advantage
    std = math.sqrt((2 * 0.75**2 + 2) / 4)
    expected = [value / (std + 1e-4) for value in (0.75, -0.75, 0.0, 1.0, -1.0)]
    np.testing.assert_allclose(found, np.repeat(expected, [2, 1, 3, 2, 2]), rtol=1e-6, atol=1e-7)


def test_reinforce_plus_plus_baseline_is_verl_s() -> None:
    """Answers of 2, 1, 3, 2, 2 tokens in verl 0.9.1, which takes 1e-8 into the root and not beside it."""
    episodes = answers([1.0, 0.0, 0.5, 2.0, 1.0], [0, 0, 0, 1, 1], lengths=[2, 1, 3, 2, 2])
    found = reinforce_plus_plus_baseline(episodes, NO_VALUES).advantage
    expected = [1.027872407, -1.256288497, -0.114208045, 1.027872407, -1.256288497]
    np.testing.assert_allclose(found, np.repeat(expected, [2, 1, 3, 2, 2]), rtol=1e-6)


def test_rewards_are_whitened_as_in_trl() -> None:
    """Rewards 0, 2, 0, 1: mean 3/4, sample deviation sqrt(11/12). Without a shift the mean comes back (PPO of TRL)."""
    episodes = answers([2.0, 1.0, nan], lengths=[2, 2, 1])
    seen: list[np.ndarray] = []

    def note(episodes_, values):
        seen.append(episodes_.reward)
        return reinforce_plus_plus(episodes_, values)

    whitened_rewards(episodes, NO_VALUES, credit=note)
    whitened_rewards(episodes, NO_VALUES, credit=note, shift=True)
    scaled = [(value - 0.75) / math.sqrt(11 / 12) for value in (0.0, 2.0, 0.0, 1.0)]
    np.testing.assert_allclose(seen[0], [*(value + 0.75 for value in scaled), 0.0], rtol=1e-6)
    np.testing.assert_allclose(seen[1], [*scaled, 0.0], rtol=1e-6)
    same = answers([0.0, 0.0], lengths=[2, 2])
    assert not whitened_rewards(same, NO_VALUES, credit=reinforce_plus_plus).advantage.any()


@given(st.floats(0.1, 10), st.floats(-3, 3))
def test_whitened_rewards_do_not_feel_their_scale(factor: float, shift: float) -> None:
    base = np.array([0.0, 0.0, 1.0, 0.0, -2.0, 0.5])
    found = [
        whitened_rewards(
            answers([1.0, -1.5], lengths=[3, 3], rewards=(row).tolist()),
            NO_VALUES,
            credit=reinforce_plus_plus,
            shift=True,
        ).advantage
        for row in (base, factor * base + shift)
    ]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-3, atol=1e-3)


def test_gdpo_over_decisions_by_hand() -> None:
    """One component, scores 1 and 0 of one group: z = +-1/sqrt 2 (ddof 1). With 3 and 1 tokens the mean over tokens is
    z / 2 and the population's deviation 3/4 z 2 ...: standardised, 1/sqrt 3 and -sqrt 3 with ddof 0.
    """
    pair = answers([1.0, 0.0], lengths=[3, 1], components=[[1.0], [0.0]])
    found = gdpo(pair, NO_VALUES, ddof=0, epsilon=0.0, over="decisions").advantage
    root = math.sqrt(3.0)
    np.testing.assert_allclose(found, [1 / root, 1 / root, 1 / root, -root], rtol=1e-6)
    np.testing.assert_allclose(gdpo(pair, NO_VALUES, ddof=0, epsilon=0.0).advantage, [1, 1, 1, -1], rtol=1e-6)
