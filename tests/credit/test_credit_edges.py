"""Credits at their edges: default numbers, bounds that are reached, equal scores with a rounded mean, and nothing."""

from collections.abc import Callable
from dataclasses import replace
from math import e, exp, expm1, sqrt

import numpy as np
import pytest
from credit_batches import answers, column, nan
from test_credit_potential import lived

from hone.core.credit import NO_VALUES, Credits, Values
from hone.core.episodes import Episodes, ScoreStatus, Transcript
from hone.core.errors import ConfigError
from hone.core.ragged import offsets_of
from hone.credit import group, kl_reward, passk, reinforce, returns, shaping
from hone.credit import turns as process
from hone.credit.group import gdpo
from hone.credit.grouping import turn_ends
from hone.credit.kl_reward import AdaptiveKlController, KlEstimate, estimate_kl, k3
from hone.credit.moments import environment_offsets, with_novelty
from hone.credit.potential import with_shaped_rewards
from hone.credit.returns import v_trace
from hone.credit.shaping import with_imitation_reward

UNEVEN = [0.1, 0.1, 0.1]
"""Equal scores whose mean is not exactly 0.1."""
NOTHING = answers([], lengths=[])


def captured(seen: list[tuple[Episodes, Values]]) -> Callable[[Episodes, Values], Credits]:
    def credit(episodes: Episodes, values: Values) -> Credits:
        seen.append((episodes, values))
        return returns.reward_as_advantage(episodes, values)

    return credit


VALUES = Values(value=np.ones(3, np.float32), final=np.ones(2, np.float32))
TWO = answers([1.0, 0.0], lengths=[2, 1])


# ----------------------------------------------------------------------------------------------------- groups


def test_equal_scores_get_exactly_nothing() -> None:
    assert np.mean(UNEVEN) != 0.1
    batch = answers([*UNEVEN, 0.0, 1.0], [0, 0, 0, 1, 1])
    for credit in (group.group_relative, group.group_policy_gradient, group.length_baseline):
        advantage = credit(batch, NO_VALUES).advantage
        assert advantage[:3].tolist() == [0.0, 0.0, 0.0] and (advantage[3:] != 0).all()


def test_a_component_of_equal_scores_adds_exactly_nothing() -> None:
    second, groups = [0.0, 1.0, 4.0, 0.0, 1.0], [0, 0, 0, 1, 1]
    first = [*UNEVEN, 0.5, 0.5]
    both = answers([0.0] * 5, groups, components=[list(pair) for pair in zip(first, second, strict=True)])
    alone = answers([0.0] * 5, groups, components=[[b] for b in second])
    found = gdpo(both, NO_VALUES, weights=[1e12, 1.0]).advantage
    assert (found == gdpo(alone, NO_VALUES).advantage).all()


def test_gdpo_s_weights_are_1_by_default_and_scale_what_epsilon_adds_to() -> None:
    graded = answers([0.0] * 4, [0, 0, 1, 1], components=[[0.0, 1.0], [1.0, 0.0], [0.0, 2.0], [2.0, 0.0]])
    graded = replace(graded, components=np.array([[0.0, 1.0], [1.0, 3.0], [0.0, 2.0], [2.0, 9.0]]))
    explicit = gdpo(graded, NO_VALUES, weights=[1.0, 1.0], epsilon=0.5).advantage
    assert (gdpo(graded, NO_VALUES, epsilon=0.5).advantage == explicit).all()
    assert (gdpo(graded, NO_VALUES, weights=[2.0, 2.0], epsilon=0.5).advantage != explicit).all()


def test_gdpo_normalises_however_small_the_total_is() -> None:
    graded = answers([0.0, 0.0], components=[[0.0], [1.0]])
    tiny = gdpo(graded, NO_VALUES, weights=[1e-13], epsilon=1e-13).advantage
    z = 1e-13 * 0.5 / (sqrt(0.5) + 1e-13)
    assert tiny.tolist() == pytest.approx([-z / (sqrt(2) * z + 1e-13), z / (sqrt(2) * z + 1e-13)], rel=1e-5)


def test_the_share_of_dead_groups_counts_groups_that_there_are() -> None:
    alive = answers([0.0, 1.0], components=[[0.0], [1.0]])
    assert gdpo(alive, NO_VALUES).metrics == group.group_relative(alive, NO_VALUES).metrics
    missing = answers([nan, nan], components=[[nan], [nan]])
    assert gdpo(missing, NO_VALUES).metrics == group.group_relative(missing, NO_VALUES).metrics


def test_two_answers_are_a_batch() -> None:
    two = answers([1.0, 3.0], [0, 1])
    found = group.batch_relative(two, NO_VALUES, epsilon=0.5).advantage
    assert found.tolist() == pytest.approx([-1 / (sqrt(2) + 0.5), 1 / (sqrt(2) + 0.5)])
    small = answers([0.0, 1e-13], [0, 1])
    assert group.batch_relative(small, NO_VALUES, scale="none").advantage.tolist() == pytest.approx(
        [-5e-14, 5e-14], rel=1e-6, abs=0
    )


def test_maximum_likelihood_by_hand() -> None:
    """Mean 1/2 of one group; all right; all wrong; one answer."""
    batch = answers([1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0], [0, 0, 1, 1, 2, 2, 3])
    plain = passk.max_rl(batch, NO_VALUES, epsilon=0.5).advantage.tolist()
    assert plain == [0.5, -0.5, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert passk.max_rl(batch, NO_VALUES, order="n", epsilon=0.5).advantage.tolist()[4:] == [-1.0, -1.0, 0.0]
    uneven = passk.max_rl(answers([*UNEVEN, 0.0, 1.0], [0, 0, 0, 1, 1]), NO_VALUES, epsilon=0.0).advantage
    assert uneven[:3].tolist() == [0.0, 0.0, 0.0]


# ---------------------------------------------------------------------------------------------- KL in the reward


def test_k3_is_bounded_on_both_sides() -> None:
    assert k3(np.array([25.0, -25.0])).tolist() == [expm1(-20.0) + 25.0, expm1(20.0) - 25.0]


def test_the_adaptive_coefficient_has_the_paper_s_numbers() -> None:
    controller = AdaptiveKlController()
    controller.observe(KlEstimate(episode_nats=12.0, decision_nats=0.0, episodes=100))
    assert controller.weight == pytest.approx(0.2 * (1 + 0.2 * 100 / 10_000), rel=1e-12)
    controller = AdaptiveKlController()
    controller.observe(KlEstimate(episode_nats=6.6, decision_nats=0.0, episodes=100))
    assert controller.weight == pytest.approx(0.2 * (1 + 0.1 * 100 / 10_000))


def test_the_two_units_of_a_kl_by_hand() -> None:
    """Nats 1, 3 of one answer and 5 of another: 4 and 5 in sum, 2 and 5 a decision; one without decisions is none."""
    batch = answers([1.0, 0.0, 0.0], lengths=[2, 0, 1])
    found = estimate_kl(batch, np.array([1.0, 3.0, 5.0]))
    assert found == KlEstimate(episode_nats=4.5, decision_nats=3.5, episodes=2)
    nothing = estimate_kl(NOTHING, np.zeros(0))
    assert nothing == KlEstimate(episode_nats=0.0, decision_nats=0.0, episodes=0)
    assert [type(number) for number in (nothing.decision_nats, nothing.episodes)] == [float, int]


@pytest.mark.parametrize(("unit", "nats"), [("episode", 4.5), ("decision", 3.5)])
def test_the_coefficient_follows_the_unit_that_it_is_told(unit: str, nats: float) -> None:
    controller = AdaptiveKlController(weight=1.0, target=4.0, horizon=10.0, unit=unit)  # type: ignore[arg-type]
    batch = answers([1.0, 0.0, 0.0], lengths=[2, 0, 1])
    seen: list[tuple[Episodes, Values]] = []
    kept = kl_reward.KlRewardCredit(
        captured(seen), reference=column([-1.0, -3.0, -5.0]), controller=controller, current=column([0.0] * 3)
    )
    credits = kept(batch, VALUES)
    assert seen[0][1] is VALUES
    assert credits.metrics["reward/kl_nats"] == 4.5
    assert controller.weight == pytest.approx(1 + (nats / 4 - 1) * 2 / 10)
    # The KL of every decision is in its reward, and that of the answer in its score.
    assert seen[0][0].reward.tolist() == [-1.0, 1.0 - 3.0, -5.0]
    assert seen[0][0].score.tolist() == [1.0 - 4.0, 0.0, -5.0]


# ---------------------------------------------------------------------------------------------- whitening


@pytest.mark.parametrize("epsilon", [1e-8, 0.5])
@pytest.mark.parametrize("ddof", [0, 1])
def test_whitening_adds_epsilon_to_the_deviation(epsilon: float, ddof: int) -> None:
    values = np.array([0.0, 3e-8, 6e-8, 1e-7])
    found = reinforce.whiten(values, ddof=ddof, epsilon=epsilon)  # type: ignore[arg-type]
    np.testing.assert_allclose(found, (values - values.mean()) / (values.std(ddof=ddof) + epsilon), rtol=1e-12)
    if epsilon == 1e-8:
        assert (reinforce.whiten(values, ddof=ddof) == found).all()  # type: ignore[arg-type]


def test_standardising_adds_epsilon_and_takes_two_decisions() -> None:
    two = Credits(advantage=np.array([1.0, 3.0], np.float32))
    assert returns.standardised(two).advantage.tolist() == pytest.approx([-1.0, 1.0])
    one = Credits(advantage=np.array([7.0], np.float32))
    assert returns.standardised(one) is one
    small = returns.standardised(Credits(advantage=np.array([0.0, 2e-8], np.float32))).advantage
    assert small.tolist() == pytest.approx([-0.5, 0.5], rel=1e-5)


def test_reinforce_plus_plus_passes_its_numbers_on() -> None:
    batch = answers([0.0, 1.0, 0.0, 3.0], [0, 0, 1, 1], lengths=[1, 3, 2, 1])
    plain = reinforce.reinforce_plus_plus(batch, NO_VALUES).advantage
    assert (plain == reinforce.reinforce_plus_plus(batch, NO_VALUES, discount=1.0).advantage).all()
    for ddof in (0, 1):
        found = reinforce.reinforce_plus_plus_baseline(batch, NO_VALUES, ddof=ddof).advantage  # type: ignore[arg-type]
        assert found.astype(np.float64).std(ddof=ddof) == pytest.approx(1.0, rel=1e-6)


def test_the_optimal_token_baseline_divides_by_weights_and_epsilon() -> None:
    """Two answers of one token with pi = 1/2 and 1/4, collision probabilities 1/2 and 1/4: weights 1/2 and 3/4."""
    batch = answers([1.0, 3.0], logp=[np.log(0.5), np.log(0.25)])
    found = reinforce.optimal_token_baseline(batch, NO_VALUES, collision=column([0.5, 0.25]), epsilon=1.0)
    baseline = (1.0 * 0.5 + 3.0 * 0.75) / (0.5 + 0.75 + 1.0)
    assert found.advantage.tolist() == pytest.approx([1.0 - baseline, 3.0 - baseline])


# ---------------------------------------------------------------------------------------------- process rewards


def test_a_step_s_reward_is_divided_by_deviation_and_epsilon() -> None:
    batch = answers([0.0, 0.0], lengths=[1, 1], rewards=[1.0, 3.0])
    found = process.step_group_relative(batch, NO_VALUES, step_ends=lambda one: np.ones(2, bool), epsilon=0.5)
    assert found.advantage.tolist() == pytest.approx([-1 / (sqrt(2) + 0.5), 1 / (sqrt(2) + 0.5)])


def test_equal_steps_get_exactly_nothing() -> None:
    batch = answers([0.0] * 5, [0, 0, 0, 1, 1], rewards=[*UNEVEN, 0.0, 1.0])
    batch = replace(batch, reward=np.array([*UNEVEN, 0.0, 1.0]))  # float64, so that the mean is not exact
    found = process.step_group_relative(batch, NO_VALUES, step_ends=lambda one: np.ones(5, bool))
    assert found.advantage[:3].tolist() == [0.0, 0.0, 0.0]


def test_process_credits_have_the_paper_s_numbers() -> None:
    found = process.implicit_reward(TWO, policy=column([1.0, 2.0, 3.0]), reference=column([0.0] * 3))
    assert found.tolist() == pytest.approx([0.05, 0.1, 0.15])
    implicit = column([0.3, -0.2, 0.9])
    explicit = process.prime(TWO, NO_VALUES, implicit=implicit, implicit_weight=1.0, outcome_weight=1.0)
    assert (process.prime(TWO, NO_VALUES, implicit=implicit).advantage == explicit.advantage).all()


# ---------------------------------------------------------------------------------------------- scores that are shaped


def test_shaping_hands_on_values_and_counts_nothing_as_0() -> None:
    seen: list[tuple[Episodes, Values]] = []
    shaping.with_shaped_scores(TWO, VALUES, credit=captured(seen), shapings=[])
    assert seen[0][1] is VALUES


def test_bounds_of_scores_are_inside() -> None:
    three = answers([0.5, 0.4, 0.9])
    assert shaping.binarised(three, threshold=0.5).score.tolist() == [1.0, 0.0, 1.0]
    assert shaping.clip_scores(three, low=0.45, high=0.6).score.tolist() == [0.5, 0.45, 0.6]
    assert shaping.clip_scores(three, low=0.5, high=0.5).score.tolist() == [0.5, 0.5, 0.5]


def test_soft_overlong_punishment_begins_at_0_and_ends_at_the_factor() -> None:
    batch = answers([1.0] * 5, lengths=[1, 6, 8, 10, 12])
    found = shaping.overlong_penalty(batch, max_tokens=10, buffer_tokens=4, factor=0.5)
    assert found.score.tolist() == [1.0, 1.0, 0.75, 0.5, 0.5]
    assert shaping.overlong_penalty(batch, max_tokens=8, buffer_tokens=1).score.tolist() == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert shaping.overlong_penalty(batch, max_tokens=8, buffer_tokens=8).score.tolist()[:2] == [0.875, 0.25]
    for buffer in (0, 11):
        with pytest.raises(ConfigError, match="buffer_tokens"):
            shaping.overlong_penalty(batch, max_tokens=10, buffer_tokens=buffer)


def test_a_limit_of_one_token_is_one() -> None:
    assert shaping.cosine_reward(answers([1.0]), max_tokens=1).score.tolist() == [-10.0]
    with pytest.raises(ConfigError, match="max_tokens = 0"):
        shaping.cosine_reward(answers([1.0]), max_tokens=0)


def test_lengths_that_differ_by_one_token_differ() -> None:
    batch = answers([1.0, 1.0], lengths=[1, 2])
    assert shaping.length_rank_reward(batch).score.tolist() == [1.5, 0.5]
    missing = answers([nan, nan], lengths=[1, 2])
    assert np.isnan(shaping.length_rank_reward(missing).score).all()
    scaled = shaping.length_scaled_reward(batch, weight=0.5).score.tolist()
    assert scaled == pytest.approx([1 - 0.5 / (1 + e), 1 - 0.5 / (1 + 1 / e)])
    assert shaping.length_scaled_reward(batch, weight=0.0).score.tolist() == [1.0, 1.0]


def test_what_is_filtered_is_unscorable_to_the_others() -> None:
    seen: list[tuple[Episodes, Values]] = []
    batch = answers([1.0, nan, 0.0], truncated=[True, True, False])
    shaping.overlong_filtered(batch, NO_VALUES, credit=captured(seen), in_statistics=False)
    status = seen[0][0].status
    assert status.dtype == np.uint8
    assert status.tolist() == [ScoreStatus.UNSCORABLE, ScoreStatus.TIMEOUT, ScoreStatus.SCORED]


# ---------------------------------------------------------------------------------------------- imitation and novelty


def test_no_decisions_have_no_mean() -> None:
    credits = with_imitation_reward(NOTHING, NO_VALUES, imitation_reward=column([]), credit=captured([]))
    assert credits.metrics == {}
    still = with_shaped_rewards(NOTHING, NO_VALUES, credit=captured([]), shaping=lambda one: one)
    assert still.metrics == {"reward/shaping_mean": 0.0}
    nothing = v_trace(
        NOTHING, Values(value=np.zeros(0), final=np.zeros(0)), current=column([]), discount=0.9
    )  # fmt: skip
    assert nothing.metrics == {"credit/ratio_capped": 0.0}


def test_the_mean_change_of_a_reward_is_told() -> None:
    changed = with_shaped_rewards(
        TWO, NO_VALUES, credit=captured([]), shaping=lambda one: replace(one, reward=one.reward + np.float32(0.5))
    )
    assert changed.metrics == {"reward/shaping_mean": 0.5}


@pytest.mark.parametrize("seed", range(5))
def test_environments_begin_with_the_smallest_numbers(seed: int) -> None:
    draws = np.random.default_rng(seed)
    count, each = 300, 40
    numbers = np.concatenate([np.sort(draws.permutation(count))[[k]] for k in draws.permutation(count)])
    later = count + draws.permutation(count * (each - 1))
    group_numbers = np.concatenate([[numbers[k], *later[k * (each - 1) : (k + 1) * (each - 1)]] for k in range(count)])
    size = count * each
    episodes = replace(lived([0] * size, [0] * size, [1] * size, terminated=[True] * size), group=group_numbers)
    assert environment_offsets(episodes, count).tolist() == [each * k for k in range(count + 1)]


def test_novelty_keeps_target_and_discount_apart() -> None:
    target, discount = np.array([1.0], np.float32), np.array([0.5], np.float32)
    credits = Credits(advantage=np.array([1.0], np.float32), target=target, discount=discount)
    both = with_novelty(credits, np.array([3.0]), np.array([4.0]), extrinsic_weight=2.0, intrinsic_weight=10.0)
    assert both.advantage.tolist() == [32.0] and both.target is target and both.discount is discount


# ---------------------------------------------------------------------------------------------- ratios and turns


def test_ratios_are_bounded_before_they_are_taken() -> None:
    batch = answers([1.0, 1.0], lengths=[1, 1], rewards=[1e9, 1e9])
    none = Values(value=np.zeros(2, np.float32), final=np.zeros(2, np.float32))
    found = v_trace(batch, none, current=column([30.0, -30.0]), discount=1.0, ratio_cap=1e12)
    assert found.advantage.tolist() == pytest.approx([1e9 * exp(20), 1e9 * exp(-20)], rel=1e-6)
    assert found.metrics == {"credit/ratio_capped": 0.0}
    same = v_trace(batch, none, current=column([0.0, 0.0]), discount=1.0)
    assert same.metrics == {"credit/ratio_capped": 0.0}, "a ratio at the cap is not capped"


def test_one_token_of_tool_output_ends_a_turn() -> None:
    """Prompt, two decisions, one token of a tool, one decision."""
    episodes = answers([1.0], lengths=[3])
    seen = Transcript(
        tokens=np.arange(6, dtype=np.int32), offsets=offsets_of(np.array([6])), at=np.array([1, 2, 4], np.int64)
    )
    assert turn_ends(replace(episodes, seen=seen)).tolist() == [False, True, True]
