"""KL in the reward: estimators, its price, and what the credit behind it sees."""

import json
import math
from functools import partial

import numpy as np
import pytest
from credit_batches import answers, column, nan
from hypothesis import given
from hypothesis import strategies as st

from hone.core.credit import NO_VALUES, Credits
from hone.core.episodes import Episodes
from hone.core.errors import DataError
from hone.credit.group import leave_one_out
from hone.credit.kl_reward import (
    AdaptiveKlController,
    FixedKlController,
    KlEstimate,
    KlRewardCredit,
    distillation_credit,
    k1,
    k2,
    k3,
)
from hone.credit.returns import discounted_returns, reward_as_advantage


def test_estimators_by_hand() -> None:
    gap = np.array([0.0, 1.0, -2.0])
    assert k1(gap).tolist() == [0, 1, -2]
    assert k2(gap).tolist() == [0, 0.5, 2]
    np.testing.assert_allclose(k3(gap), [0, math.exp(-1), math.exp(2) - 3])
    assert np.isfinite(k3(np.array([-1e4]))).all()


@given(st.lists(st.floats(0.05, 1), min_size=3, max_size=3), st.lists(st.floats(0.05, 1), min_size=3, max_size=3))
def test_k1_and_k3_are_unbiased_by_enumeration(first: list[float], second: list[float]) -> None:
    p, q = np.array(first) / sum(first), np.array(second) / sum(second)
    gap, exact = np.log(p / q), float(p @ np.log(p / q))
    assert float(p @ k1(gap)) == pytest.approx(exact)
    assert float(p @ k3(gap)) == pytest.approx(exact)
    assert (k3(gap) >= 0).all()
    assert (k2(gap) >= 0).all()


def seen_by(behind: list[Episodes]):
    def credit(episodes: Episodes, values: object) -> Credits:
        behind.append(episodes)
        return reward_as_advantage(episodes, NO_VALUES)

    return credit


def test_the_price_is_paid_decision_by_decision_by_hand() -> None:
    """Gaps 1 and 2 at 1/10 a nat, score 1: rewards -0.1 and 0.8, score 0.7. The second answer has no score."""
    episodes = answers([1, nan], lengths=[2, 1], logp=[-1, -1, -1])
    behind: list[Episodes] = []
    priced = KlRewardCredit(seen_by(behind), reference=column([-2, -3, -5]), controller=FixedKlController(0.1))
    credits = priced(episodes, NO_VALUES)
    np.testing.assert_allclose(credits.advantage, [-0.1, 0.8, 0], rtol=1e-6)
    np.testing.assert_allclose(behind[0].score, [0.7, nan])
    assert credits.metrics["reward/kl_nats"] == pytest.approx((3 + 4) / 2)
    assert credits.metrics["reward/kl_coef"] == 0.1
    assert episodes.reward.tolist() == [0, 1, 0]  # what came in is as it was


def test_a_group_compares_what_is_left_after_the_price() -> None:
    """RLOO: its R holds the sequence's KL."""
    episodes = answers([1, 1], lengths=[1, 2])
    priced = KlRewardCredit(leave_one_out, reference=column([0, -1, -1]), controller=FixedKlController(0.5))
    np.testing.assert_allclose(priced(episodes, NO_VALUES).advantage, [1, -1, -1], rtol=1e-6)


def test_return_and_score_agree() -> None:
    rng = np.random.default_rng(0)
    episodes = answers([1, 0, 3], lengths=[3, 1, 2], logp=(-rng.random(6)).tolist())
    behind: list[Episodes] = []
    KlRewardCredit(
        seen_by(behind), reference=column((-rng.random(6)).tolist()), controller=FixedKlController(0.2), estimator=k3
    )(episodes, NO_VALUES)
    first = discounted_returns(behind[0], NO_VALUES, discount=1.0).advantage[behind[0].offsets[:-1]]
    np.testing.assert_allclose(first, behind[0].score, atol=1e-6)


# -------------------------------------------------------------------------------------------- controllers


def far(nats: float, *, episodes: int = 100) -> KlEstimate:
    return KlEstimate(episode_nats=nats, decision_nats=nats / 10, episodes=episodes)


def test_the_adaptive_price_by_hand() -> None:
    """Target 6: 6.6 is 10 % too far, and 100 episodes of a horizon of 1000 move the price by a tenth of that."""
    price = AdaptiveKlController(weight=0.2, target=6.0, horizon=1000.0)
    price.observe(far(6.6))
    assert price.weight == pytest.approx(0.2 * 1.01)
    price = AdaptiveKlController(weight=0.2, target=6.0, horizon=1000.0)
    price.observe(far(1e9))
    assert price.weight == pytest.approx(0.2 * 1.02)  # clipped to a fifth
    price.observe(far(-5.0))
    assert price.weight == pytest.approx(0.2 * 1.02 * 0.98)
    per_decision = AdaptiveKlController(weight=0.2, target=0.66, horizon=1000.0, unit="decision")
    per_decision.observe(far(6.6))
    assert per_decision.weight == pytest.approx(0.2)


def test_the_adaptive_price_finds_its_target() -> None:
    """A policy whose distance is 1 / price settles at a price of 1/target."""
    price = AdaptiveKlController(weight=3.0, target=4.0, horizon=100.0)
    for _ in range(400):
        price.observe(far(1 / price.weight, episodes=10))
    assert 1 / price.weight == pytest.approx(4.0, rel=1e-3)


def test_a_batch_is_paid_for_before_its_distance_is_heard_of() -> None:
    price = AdaptiveKlController(weight=1.0, target=1.0, horizon=1.0)
    priced = KlRewardCredit(reward_as_advantage, reference=column([-10.0]), controller=price)
    told = priced(answers([0.0]), NO_VALUES).metrics
    assert told["reward/kl_coef"] == 1.0
    assert price.weight == pytest.approx(1.2)


def test_the_price_is_saved_and_taken_up() -> None:
    old = KlRewardCredit(
        reward_as_advantage,
        reference=column([-10.0]),
        controller=AdaptiveKlController(weight=1.0, target=1.0, horizon=3.0),
    )
    old(answers([0.0]), NO_VALUES)
    saved = json.loads(json.dumps(old.state()))
    new = KlRewardCredit(
        reward_as_advantage,
        reference=column([-10.0]),
        controller=AdaptiveKlController(weight=9.0, target=1.0, horizon=3.0),
    )
    new.restore(saved)
    assert new.controller.weight == old.controller.weight
    with pytest.raises(DataError, match="no number 'weight'"):
        new.restore({})
    fixed = FixedKlController(0.1)
    fixed.restore(fixed.state())
    assert fixed.weight == 0.1


def test_a_distance_that_nobody_knows_is_refused() -> None:
    episodes = answers([1], logp=[nan])
    with pytest.raises(DataError, match="policy's log-probability is not finite"):
        KlRewardCredit(reward_as_advantage, reference=column([0.0]), controller=FixedKlController(0.1))(
            episodes, NO_VALUES
        )


# -------------------------------------------------------------------------------------------- distillation


def test_distilled_by_hand() -> None:
    credits = distillation_credit(
        answers([nan], lengths=[2], logp=[-1, -2]), NO_VALUES, teacher=column([-3, -1]), weight=0.5
    )
    assert credits.advantage.tolist() == [-1, 0.5]
    assert credits.metrics == {"distill/kl_nats": 1.0}


def test_distillation_descends_the_reverse_kl_by_enumeration() -> None:
    """E[A grad log pi] = -grad KL(pi || teacher) with respect to the logits."""
    p, teacher = np.array([0.5, 0.3, 0.2]), np.array([0.1, 0.3, 0.6])
    found = np.zeros(3)
    for choice in range(3):
        credit = partial(distillation_credit, teacher=column([math.log(teacher[choice])]))
        episodes = answers([0.0], logp=[math.log(p[choice])])
        found += p[choice] * credit(episodes, NO_VALUES).advantage[0] * (np.eye(3)[choice] - p)
    gap = np.log(p / teacher)
    np.testing.assert_allclose(found, -p * (gap - p @ gap), atol=1e-6)
