"""What a discriminator's logit pays: three forms by hand, their signs, and that a limit of time is no end."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_episodes import plain_episodes

from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.core.errors import DataError
from hone.credit.returns import gae
from hone.credit.shaping import log_odds_reward, negative_reward, positive_reward, with_imitation_reward

FORMS = (positive_reward, negative_reward, log_odds_reward)


def steps(*, terminated: list[bool], truncated: list[bool]) -> Episodes:
    """Episodes of one decision each; the world pays 100."""
    count = len(terminated)
    return plain_episodes(
        np.arange(count + 1),
        reward=np.full(count, 100.0, np.float32),
        terminated=np.array(terminated),
        truncated=np.array(truncated),
        final=np.zeros((count, 1), np.float32),
        score=np.full(count, 100.0),
    )


def test_the_forms_by_hand() -> None:
    """D = 1/4, 1/2, 3/4: l = -log 3, 0, log 3."""
    logit = np.array([-math.log(3.0), 0.0, math.log(3.0)])
    np.testing.assert_allclose(positive_reward(logit), [-math.log(3 / 4), math.log(2), -math.log(1 / 4)])  # -log(1 - D)
    np.testing.assert_allclose(negative_reward(logit), [math.log(1 / 4), -math.log(2), math.log(3 / 4)])  # log D
    np.testing.assert_allclose(log_odds_reward(logit), [-math.log(3), 0, math.log(3)])


@given(st.lists(st.floats(-700, 700), min_size=2, max_size=9))
def test_the_forms_rise_together_and_differ_in_sign(values: list[float]) -> None:
    logit = np.sort(np.array(values))
    assert (positive_reward(logit) >= 0).all() and (negative_reward(logit) <= 0).all()
    for form in FORMS:
        paid = form(logit)
        assert np.isfinite(paid).all() and (np.diff(paid) >= 0).all()
    np.testing.assert_allclose(positive_reward(logit) + negative_reward(logit), log_odds_reward(logit), atol=1e-9)


def test_a_limit_of_time_is_no_end() -> None:
    """Paid 2 a step, discount 1/2, V = 3 before and 8 after: 2 - 3 where the world ended, 2 + 8 / 2 - 3 elsewhere."""
    episodes = steps(terminated=[True, False, False], truncated=[False, True, False])
    values = Values(value=np.full(3, 3.0, np.float32), final=np.full(3, 8.0, np.float32))

    def credit(told: Episodes, expected: Values) -> Credits:
        return gae(told, expected, discount=0.5, gae_lambda=1.0)

    credits = with_imitation_reward(episodes, values, imitation_reward=lambda _: np.full(3, 2.0), credit=credit)
    assert credits.advantage.tolist() == [-1, 3, 3]
    assert credits.target is not None and credits.target.tolist() == [2, 6, 6]
    assert credits.metrics["imitation/reward_mean"] == 2


def test_what_the_world_pays_is_kept_from_the_credit() -> None:
    episodes = steps(terminated=[True, True], truncated=[False, False])
    heard: list[Episodes] = []

    def credit(told: Episodes, values: Values) -> Credits:
        heard.append(told)
        return Credits(advantage=told.reward)

    empty = Values(value=np.zeros(0, np.float32), final=np.zeros(0, np.float32))
    credits = with_imitation_reward(episodes, empty, imitation_reward=lambda _: np.array([0.5, -0.25]), credit=credit)
    assert credits.advantage.tolist() == [0.5, -0.25] and heard[0].score.tolist() == [100, 100]
    assert episodes.reward.tolist() == [100, 100]
    for wrong in (np.zeros(3), np.array([0.0, np.nan])):
        with pytest.raises(DataError, match="likeness"):
            with_imitation_reward(episodes, empty, imitation_reward=lambda _, wrong=wrong: wrong, credit=credit)
