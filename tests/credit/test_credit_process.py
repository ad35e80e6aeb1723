"""Process rewards: steps, their normalisation, and rewards that a policy implies."""

import math
import statistics
from dataclasses import replace
from functools import partial

import numpy as np
from credit_batches import Batch, answers, any_scores, by_group, column, nan, of
from hypothesis import given
from hypothesis import strategies as st

from hone.core.credit import NO_VALUES
from hone.core.episodes import Episodes, Transcript
from hone.credit.group import leave_one_out
from hone.credit.grouping import delimiter_ends, episode_ends, turn_ends
from hone.credit.turns import implicit_reward, prime, step_group_relative

ZERO = "reward/zero_variance_groups"
lengths_of = st.lists(st.integers(0, 4), min_size=14, max_size=14)


def marked(flags: list[bool]):
    return lambda _: np.array(flags, dtype=np.bool_)


# -------------------------------------------------------------------------------------------- marks


def test_where_steps_end() -> None:
    episodes = answers([1, 1, 0], lengths=[4, 0, 2])
    assert np.flatnonzero(episode_ends(episodes)).tolist() == [3, 5]
    chosen = replace(episodes, chosen=np.array([7, 9, 7, 8, 7, 1]))
    assert np.flatnonzero(delimiter_ends(chosen, tokens=[7])).tolist() == [0, 2, 3, 4, 5]
    seen = Transcript(
        tokens=np.zeros(30, np.int32), offsets=np.array([0, 20, 20, 30]), at=np.array([3, 4, 9, 10, 20, 21])
    )
    talked = replace(episodes, seen=seen)
    assert np.flatnonzero(turn_ends(talked)).tolist() == [1, 3, 5]


# -------------------------------------------------------------------------------------------- normalised steps


def test_steps_by_hand() -> None:
    """Steps of 2 + 1 decisions pay 1 and 3, an answer of one step pays 2: mean 2, sample deviation 1."""
    episodes = answers([4, 2], lengths=[3, 2], rewards=[0, 1, 3, 0, 2])
    credits = step_group_relative(
        episodes, NO_VALUES, step_ends=marked([False, True, False, False, False]), epsilon=0.0
    )
    np.testing.assert_allclose(credits.advantage, [0, 0, 1, 0, 0], atol=1e-6)
    assert credits.metrics == {ZERO: 0.0, "credit/steps": 3.0}


def slow_steps(episodes: Episodes, ends: np.ndarray) -> np.ndarray:
    steps: dict[int, list[tuple[int, int, float]]] = {}
    for e in np.flatnonzero(episodes.scored):
        paid = 0.0
        for t in range(int(episodes.offsets[e]), int(episodes.offsets[e + 1])):
            paid += float(episodes.reward[t])
            if ends[t] or t == episodes.offsets[e + 1] - 1:
                steps.setdefault(int(episodes.group[e]), []).append((int(episodes.offsets[e]), t, paid))
                paid = 0.0
    found = np.zeros(episodes.decisions)
    for group in steps.values():
        pays = [paid for _, _, paid in group]
        if len(set(pays)) < 2:
            continue
        for start, end, paid in group:
            found[start : end + 1] += (paid - statistics.fmean(pays)) / (statistics.stdev(pays) + 1e-6)
    return found


@given(any_scores, lengths_of, st.integers(0, 99))
def test_steps_agree_with_loops(batch: Batch, lengths: list[int], seed: int) -> None:
    """Every step's normalised reward reaches the decisions up to its end."""
    rng = np.random.default_rng(seed)
    total = sum(lengths[: len(batch)])
    episodes = of(batch, lengths=lengths[: len(batch)], rewards=rng.integers(-3, 4, total).astype(float).tolist())
    ends = rng.random(total) < 0.4
    found = step_group_relative(episodes, NO_VALUES, step_ends=marked(ends.tolist())).advantage
    np.testing.assert_allclose(found, slow_steps(episodes, ends), atol=1e-5)


# -------------------------------------------------------------------------------------------- implicit rewards


def test_implied_reward_by_hand() -> None:
    episodes = answers([1], lengths=[2])
    found = implicit_reward(episodes, policy=column([-1, -2]), reference=column([-3, -1]), beta=0.5)
    assert found.tolist() == [1, -0.5]


def slow_prime(batch: Batch, lengths: list[int], reward: list[float], weights: tuple[float, float]) -> np.ndarray:
    starts = np.cumsum([0, *lengths]).tolist()
    groups = by_group(batch)
    found, used = np.zeros(starts[-1]), np.zeros(starts[-1], dtype=bool)

    def mean(e: int) -> float:
        return statistics.fmean(reward[starts[e] : starts[e + 1]]) if lengths[e] else 0.0

    for e, (group, score) in enumerate(batch):
        own = groups.get(group, [])
        if math.isnan(score) or len(own) < 2:
            continue
        k = len(own)
        everyone = sum(mean(o) for o, (g, s) in enumerate(batch) if g == group and not math.isnan(s))
        tokens = [weights[0] * (r * k / (k - 1) - everyone / (k - 1)) for r in reward[starts[e] : starts[e + 1]]]
        if tokens:
            tokens[-1] += weights[1] * (score - (sum(own) - score) / (k - 1))
        for t in range(len(tokens)):
            found[starts[e] + t] = sum(tokens[t:])
            used[starts[e] + t] = True
    kept = found[used].tolist()
    spread = statistics.stdev(kept) if len(kept) > 1 else 0.0
    whole = spread > 1e-6 * max(map(abs, kept), default=0.0)
    found[used] = [(value - statistics.fmean(kept)) / (spread + 1e-8) if whole else 0.0 for value in kept]
    return found


@given(any_scores, lengths_of, st.integers(0, 99), st.sampled_from([(1.0, 1.0), (5.0, 0.5), (0.0, 1.0)]))
def test_prime_agrees_with_loops(batch: Batch, lengths: list[int], seed: int, weights: tuple[float, float]) -> None:
    lengths = lengths[: len(batch)]
    reward = np.random.default_rng(seed).normal(size=sum(lengths)).tolist()
    credits = prime(
        of(batch, lengths=lengths),
        NO_VALUES,
        implicit=column(reward),
        implicit_weight=weights[0],
        outcome_weight=weights[1],
    )
    np.testing.assert_allclose(credits.advantage, slow_prime(batch, lengths, reward, weights), atol=1e-4)


def test_prime_without_implicit_rewards_is_whitened_leave_one_out() -> None:
    episodes = answers([1, 0, 0, nan, 1], [0, 0, 0, 0, 1], lengths=[2, 3, 1, 2, 2])
    credits = prime(episodes, NO_VALUES, implicit=column([0.0] * 10))
    plain = leave_one_out(episodes, NO_VALUES).advantage[:6]
    np.testing.assert_allclose(credits.advantage[:6], (plain - plain.mean()) / plain.std(ddof=1), rtol=1e-5)
    assert credits.advantage[6:].tolist() == [0] * 4
    assert credits.metrics == {ZERO: 0.5}


def test_scores_may_be_equal_where_the_implicit_rewards_differ() -> None:
    implied = partial(implicit_reward, policy=column([0.0, -1, -2]), reference=column([-1.0, -1, -1]), beta=1.0)
    found = prime(answers([1, 1], lengths=[1, 2]), NO_VALUES, implicit=implied).advantage
    assert found[0] > 0 > found[1]
