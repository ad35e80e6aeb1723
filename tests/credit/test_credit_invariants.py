"""What holds of every credit that compares answers, and how long a many decisions take."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from counted_calls import count_calls
from credit_batches import Batch, answers, any_scores, binary_scores, by_group, column, nan, of
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from plain_episodes import plain_episodes

from hone.core.credit import NO_VALUES, Credits, Values
from hone.core.episodes import Episodes
from hone.core.ragged import offsets_of
from hone.credit.group import (
    batch_relative,
    gdpo,
    group_policy_gradient,
    group_relative,
    leave_one_out,
    length_baseline,
)
from hone.credit.grouping import CreditFunction, episode_ends
from hone.credit.kl_reward import AdaptiveKlController, KlRewardCredit, distillation_credit
from hone.credit.passk import best_of_group, max_rl, pass_at_k, pkpo
from hone.credit.reinforce import (
    optimal_token_baseline,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    remax,
    whitened,
)
from hone.credit.returns import (
    discounted_returns,
    gae,
    n_step,
    one_step_target,
    reward_as_advantage,
    td_lambda,
    v_trace,
)
from hone.credit.shaping import (
    cosine_reward,
    length_rank_reward,
    length_scaled_reward,
    overlong_filtered,
    overlong_penalty,
    with_shaped_scores,
)
from hone.credit.turns import prime, step_group_relative

ZERO = "reward/zero_variance_groups"
few = examples(25)  # of each of some twenty credits


def zeros(episodes: Episodes) -> np.ndarray:
    return np.zeros(episodes.decisions)


PER_GROUP: dict[str, CreditFunction] = {
    "group_relative": group_relative,
    "group_relative, ddof 0": partial(group_relative, ddof=0),
    "group_relative, none": partial(group_relative, scale="none"),
    "leave_one_out": leave_one_out,
    "length_baseline": length_baseline,
    "best_of_group": best_of_group,
    "pass_at_k": partial(pass_at_k, k=2),
    "pkpo": partial(pkpo, k=2),
    "pkpo, leave_one_out": partial(pkpo, k=2, baseline="leave_one_out"),
    "max_rl": max_rl,
    "max_rl, n": partial(max_rl, order="n"),
    "optimal_token_baseline": partial(optimal_token_baseline, collision=zeros),
    "step_relative": partial(step_group_relative, step_ends=episode_ends),
}
"""An answer's credit depends on the scores of its own group alone."""

PER_BATCH: dict[str, CreditFunction] = {
    "group_relative, batch": partial(group_relative, scale="batch"),
    "group_relative, centred_batch": partial(group_relative, scale="centred_batch"),
    "group_relative, centred_group": partial(group_relative, scale="centred_group"),
    "batch_relative": batch_relative,
    "group_policy_gradient": group_policy_gradient,
    "reinforce_plus_plus": reinforce_plus_plus,
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
    "prime": partial(prime, implicit=zeros),
    "whitened": partial(whitened, credit=leave_one_out),
    "shaped": partial(
        with_shaped_scores, credit=leave_one_out, shapings=[partial(overlong_penalty, max_tokens=4, buffer_tokens=2)]
    ),
    "KlInReward": KlRewardCredit(leave_one_out, reference=zeros, controller=AdaptiveKlController()),
}
EVERY = {**PER_GROUP, **PER_BATCH}
SHIFTED = [name for name in EVERY if not name.startswith(("max_rl", "pass_at_k"))]
"""Adding a number to all scores changes nothing. The others are defined for 0 and 1 only, or scaled by the mean."""
SUMMED = [name for name in PER_GROUP if name not in {"best_of_group", "pkpo", "max_rl, n"}]
"""The advantages of a group's answers, one decision each, sum to 0."""


@pytest.mark.parametrize("name", EVERY)
@few
@given(binary_scores, st.randoms(use_true_random=False), st.lists(st.integers(1, 3), min_size=14, max_size=14))
def test_the_order_of_answers_does_not_matter(name: str, batch: Batch, rng, lengths: list[int]) -> None:
    order = list(range(len(batch)))
    rng.shuffle(order)
    episodes = of(batch, lengths=lengths[: len(batch)])
    found = EVERY[name](episodes, NO_VALUES).advantage
    shuffled = EVERY[name](episodes.take(np.array(order)), NO_VALUES).advantage
    where = np.concatenate([np.arange(episodes.offsets[e], episodes.offsets[e + 1]) for e in order])
    if name == "best_of_group" or name.startswith("pkpo"):  # equal scores may trade places
        assert sorted(np.round(shuffled, 4)) == sorted(np.round(found[where], 4))
    else:
        np.testing.assert_allclose(shuffled, found[where], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", EVERY)
@few
@given(binary_scores)
def test_a_missing_score_is_as_if_it_were_not_there(name: str, batch: Batch) -> None:
    """The others' credit is that of a batch without it, and its own is 0."""
    episodes = of(batch)
    heard = np.flatnonzero(episodes.scored)
    found = EVERY[name](episodes, NO_VALUES)
    alone = EVERY[name](episodes.take(heard), NO_VALUES)
    assert not found.advantage[~episodes.scored].any()
    np.testing.assert_allclose(found.advantage[heard], alone.advantage, atol=1e-6)
    assert found.advantage.dtype == np.float32
    if ZERO in found.metrics:
        assert found.metrics[ZERO] == pytest.approx(alone.metrics[ZERO])


@pytest.mark.parametrize("name", [name for name in EVERY if name != "max_rl, n"])
@few
@given(binary_scores)
def test_groups_that_say_nothing_get_nothing_and_are_counted(name: str, batch: Batch) -> None:
    groups = by_group(batch)
    credits = EVERY[name](of(batch), NO_VALUES)
    dead = [group not in groups or len(set(groups[group])) < 2 for group, _ in batch]
    if name not in {"batch_relative", "reinforce_plus_plus", "prime", "whitened"}:  # they look beyond the group
        assert not credits.advantage[np.array(dead)].any()
    if name not in {"reinforce_plus_plus", "prime"}:
        silent = sum(len(set(scores)) < 2 for scores in groups.values())
        assert credits.metrics[ZERO] == pytest.approx(silent / len(groups) if groups else 0.0)


@pytest.mark.parametrize("name", SHIFTED)
@few
@given(any_scores, st.integers(-20, 20))
def test_a_shift_of_all_scores_changes_nothing(name: str, batch: Batch, shift: int) -> None:
    found = EVERY[name](of(batch), NO_VALUES).advantage
    moved = EVERY[name](of([(group, score + shift) for group, score in batch]), NO_VALUES).advantage
    np.testing.assert_allclose(moved, found, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", PER_GROUP)
@few
@given(binary_scores)
def test_a_group_is_judged_by_itself(name: str, batch: Batch) -> None:
    episodes = of(batch)
    together = PER_GROUP[name](episodes, NO_VALUES).advantage
    for group in np.unique(episodes.group):
        own = np.flatnonzero(episodes.group == group)
        np.testing.assert_allclose(PER_GROUP[name](episodes.take(own), NO_VALUES).advantage, together[own], atol=1e-6)


@pytest.mark.parametrize("name", SUMMED)
@few
@given(binary_scores)
def test_what_one_answer_gains_the_others_lose(name: str, batch: Batch) -> None:
    """One decision each, of one probability: the token baseline's weights are equal, too."""
    episodes = of(batch, logp=[math.log(0.25)] * len(batch))
    found = PER_GROUP[name](episodes, NO_VALUES).advantage
    np.testing.assert_allclose(np.bincount(episodes.group, weights=found, minlength=1), 0, atol=1e-4)


@pytest.mark.parametrize("name", EVERY)
def test_nothing_at_all_is_no_fault(name: str) -> None:
    for empty in (answers([]), answers([nan, nan]), answers([1.0, nan], lengths=[0, 2])):
        assert not EVERY[name](empty, NO_VALUES).advantage.any()


# -------------------------------------------------------------------------------------------- many decisions

DECISIONS = 100_000


def many(length: int) -> Episodes:
    """Answers of one length in groups of 8, right half of the time; one in fifty without a score."""
    rng = np.random.default_rng(0)
    count = DECISIONS // length
    score = rng.integers(0, 2, count).astype(np.float64)
    score[rng.random(count) < 0.02] = np.nan
    offsets = offsets_of(np.full(count, length))
    reward = np.zeros(DECISIONS, np.float32)
    reward[offsets[1:] - 1] = np.nan_to_num(score)
    return plain_episodes(
        offsets,
        logp=-rng.random(DECISIONS).astype(np.float32),
        reward=reward,
        group=np.arange(count) // 8,
        score=score,
        status=np.isnan(score).astype(np.uint8),
        components=np.stack([score, rng.normal(size=count)], axis=1),
        baseline=np.zeros(count),
    )


COLUMN = column(np.linspace(-1, -0.5, DECISIONS).tolist())
CRITIC: dict[str, Callable[[Episodes, Values], Credits]] = {
    "gae": partial(gae, discount=0.99, gae_lambda=0.95),
    "td_lambda": partial(td_lambda, discount=0.99, trace_lambda=0.95),
    "n_step": partial(n_step, discount=0.99, steps=5),
    "v_trace": partial(v_trace, current=COLUMN, discount=0.99),
    "returns": partial(discounted_returns, discount=0.99),
    "one_step": partial(one_step_target, discount=0.99),
    "as_paid": reward_as_advantage,
    "remax": remax,
    "gdpo": gdpo,
    "distilled": partial(distillation_credit, teacher=COLUMN),
    "optimal_token_baseline, varied": partial(optimal_token_baseline, collision=COLUMN),
    "length shaping": partial(
        with_shaped_scores,
        credit=leave_one_out,
        shapings=[
            partial(cosine_reward, max_tokens=5000),
            partial(length_rank_reward, weight=0.1),
            partial(length_scaled_reward, weight=0.1),
        ],
    ),
    "without_truncated": partial(overlong_filtered, credit=group_relative),
}


@pytest.mark.parametrize("length", [10, 1000])
def test_work_does_not_grow_with_the_number_of_decisions(length: int) -> None:
    """Passes over columns, not over decisions, episodes or groups: ten thousand episodes cost what ten do."""
    episodes = many(length)
    values = Values(value=np.zeros(DECISIONS, np.float32), final=np.zeros(len(episodes), np.float32))
    slow: list[str] = []
    for name, credit in {**EVERY, **CRITIC}.items():
        credit(episodes, values)  # compiles and imports what it needs
        credits, calls = count_calls(credit, episodes, values)
        assert credits.advantage.shape == (DECISIONS,)
        slow += [f"{name}: {calls} calls"] if calls > 1000 else []
    assert slow == []


def test_groups_of_many_sizes_take_a_pass_for_each_size() -> None:
    """Missing scores make sizes unequal: one pass per distinct size, not per group."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 65, 8000)
    groups = np.repeat(np.arange(len(sizes)), sizes)
    episodes = answers(rng.random(len(groups)).tolist(), groups.tolist())
    assert count_calls(pkpo, episodes, NO_VALUES, k=4)[1] < 10_000
