"""V-trace: by hand, by its recursion, and what it becomes when nothing has changed."""

import numpy as np
import pytest
from credit_batches import answers, column, nan
from hypothesis import given
from hypothesis import strategies as st

from hone.core.credit import NO_VALUES, Values
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError, DataError
from hone.credit.returns import gae, v_trace


def lived(lengths: list[int], seed: int) -> tuple[Episodes, Values, np.ndarray]:
    rng = np.random.default_rng(seed)
    total = sum(lengths)
    episodes = answers(
        rng.normal(size=len(lengths)).tolist(),
        lengths=lengths,
        rewards=rng.normal(size=total).tolist(),
        logp=(-rng.random(total)).tolist(),
        truncated=(rng.random(len(lengths)) < 0.5).tolist(),
    )
    values = Values(
        value=rng.normal(size=total).astype(np.float32), final=rng.normal(size=len(lengths)).astype(np.float32)
    )
    return episodes, values, episodes.logp + rng.normal(size=total) / 2


def slow(
    episodes: Episodes,
    values: Values,
    now: np.ndarray,
    *,
    discount: float,
    trace_lambda: float,
    ratio_cap: float,
    trace_cap: float,
) -> tuple[np.ndarray, np.ndarray]:
    target, advantage = np.zeros(episodes.decisions), np.zeros(episodes.decisions)
    for e in range(len(episodes)):
        after = following = 0.0 if episodes.terminated[e] else float(values.final[e])
        for t in reversed(range(int(episodes.offsets[e]), int(episodes.offsets[e + 1]))):
            ratio = float(np.exp(now[t] - float(episodes.logp[t])))
            rho, trace, worth = min(ratio_cap, ratio), trace_lambda * min(trace_cap, ratio), float(values.value[t])
            reward = float(episodes.reward[t])
            delta = rho * (reward + discount * after - worth)
            target[t] = worth + delta + discount * trace * (following - after)
            advantage[t] = rho * (reward + discount * following - worth)
            after, following = worth, target[t]
    return target, advantage


@given(
    st.lists(st.integers(0, 7), min_size=1, max_size=6),
    st.integers(0, 99),
    st.sampled_from([(1.0, 1.0), (2.0, 1.0), (3.0, 0.5)]),
    st.floats(0, 1),
)
def test_the_recursion_agrees(lengths: list[int], seed: int, caps: tuple[float, float], decay: float) -> None:
    episodes, values, now = lived(lengths, seed)
    numbers = {"discount": 0.9, "trace_lambda": decay, "ratio_cap": caps[0], "trace_cap": caps[1]}
    credits = v_trace(episodes, values, current=column(now.tolist()), **numbers)
    target, advantage = slow(episodes, values, now, **numbers)
    np.testing.assert_allclose(credits.target, target, atol=1e-5)
    np.testing.assert_allclose(credits.advantage, advantage, atol=1e-5)


def test_by_hand() -> None:
    """Two decisions, then the end; values 1 and 2, rewards 0 and 4; ratios 1/2 and 3 (capped at 1); discount 1.

    delta_2 = 4 - 2 = 2, v_2 = 4; delta_1 = (0 + 2 - 1)/2 = 1/2, v_1 = 1 + 1/2 + 1/2 x 2 = 5/2; A_1 = (4 - 1)/2.
    """
    episodes = answers([4.0], lengths=[2])
    values = Values(value=np.array([1, 2], np.float32), final=np.array([9], np.float32))
    credits = v_trace(episodes, values, current=column([np.log(0.5), np.log(3)]), discount=1.0)
    assert credits.target is not None
    np.testing.assert_allclose(credits.target, [2.5, 4], rtol=1e-6)
    np.testing.assert_allclose(credits.advantage, [1.5, 2], rtol=1e-6)
    assert credits.metrics == {"credit/ratio_capped": 0.5}


@given(st.lists(st.integers(0, 7), min_size=1, max_size=6), st.integers(0, 99), st.floats(0, 1))
def test_with_the_policy_that_acted_the_target_is_that_of_gae(lengths: list[int], seed: int, decay: float) -> None:
    episodes, values, _ = lived(lengths, seed)
    credits = v_trace(episodes, values, current=lambda e: e.logp, discount=0.9, trace_lambda=decay)
    np.testing.assert_allclose(credits.target, gae(episodes, values, discount=0.9, gae_lambda=decay).target, atol=1e-5)
    plain = v_trace(episodes, values, current=lambda e: e.logp, discount=0.9)
    np.testing.assert_allclose(
        plain.advantage, gae(episodes, values, discount=0.9, gae_lambda=1.0).advantage, atol=1e-5
    )


def test_a_decision_that_the_policy_would_not_take_says_nothing() -> None:
    episodes, values, now = lived([3], 0)
    now[1] = -1e9
    credits = v_trace(episodes, values, current=column(now.tolist()), discount=0.9)
    assert abs(credits.advantage[1]) < 1e-7
    assert credits.target is not None
    assert credits.target[1] == pytest.approx(values.value[1], abs=1e-6)


def test_a_failed_reward_teaches_nothing() -> None:
    episodes = answers([1, nan], lengths=[2, 2])
    values = Values(value=np.arange(4, dtype=np.float32), final=np.zeros(2, np.float32))
    credits = v_trace(episodes, values, current=lambda e: e.logp, discount=0.9)
    assert credits.advantage[2:].tolist() == [0, 0]
    assert credits.target is not None
    assert credits.target[2:].tolist() == [2, 3]


def test_what_it_refuses() -> None:
    episodes, values, now = lived([2, 3], 0)
    with pytest.raises(ConfigError, match="needs a critic"):
        v_trace(episodes, NO_VALUES, current=column(now.tolist()), discount=0.9)
    with pytest.raises(ConfigError, match=r"trace_cap = 2\.0 must be in \(0, ratio_cap = 1\.0\]"):
        v_trace(episodes, values, current=column(now.tolist()), discount=0.9, trace_cap=2.0)
    now[3] = nan
    with pytest.raises(
        DataError,
        match=r"current log-probability is not finite for 1 of 5 .* nan at decision 1 of episode 1",
    ):
        v_trace(episodes, values, current=column(now.tolist()), discount=0.9)
    with pytest.raises(DataError, match=r"has shape \[4\], expected \[5\]"):
        v_trace(episodes, values, current=column([0.0] * 4), discount=0.9)
