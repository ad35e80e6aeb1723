"""Credit for novelty: lanes, running returns and the stream that goes on through ends, against slow loops."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_credit_potential import lived

from hone.core.credit import Credits
from hone.core.errors import DataError
from hone.credit.moments import NoveltyValues, environment_offsets, non_episodic_gae, running_returns, with_novelty
from hone.credit.returns import gae


def test_lanes_begin_with_the_oldest_episodes() -> None:
    """Two environments: 3 + 1 decisions of the first, 2 + 2 of the second; numbers 4 and 1 are from before."""
    episodes = replace(
        lived([0] * 8, [0] * 4, [3, 1, 2, 2], terminated=[True, False, True, False]), group=np.array([4, 5, 1, 6])
    )
    assert environment_offsets(episodes, 2).tolist() == [0, 4, 8]
    assert environment_offsets(episodes.take(np.array([0, 2])), 2).tolist() == [
        0,
        3,
        5,
    ]  # each its own, or a few were lost


@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    discount=st.floats(0, 1),
    seed=st.integers(0, 100),
)
def test_running_returns_are_the_filter(lengths: list[int], discount: float, seed: int) -> None:
    draws = np.random.default_rng(seed)
    lanes = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    reward, before = draws.random(int(lanes[-1])), draws.random(len(lengths))
    slow: list[float] = []
    for lane, running in enumerate(before):
        now = float(running)
        for paid in reward[lanes[lane] : lanes[lane + 1]]:
            now = discount * now + paid
            slow.append(now)
    np.testing.assert_allclose(running_returns(reward, lanes, before, discount=discount), slow, atol=1e-12)


def test_novelty_goes_on_through_an_end_by_hand() -> None:
    """One environment, an episode of 2 that ended and a piece of 1; lambda 0: one-step errors."""
    episodes = lived([0, 1, 2], [7, 8], [2, 1], terminated=[True, False])
    values = NoveltyValues(
        value=np.zeros(3, np.float32), final=np.zeros(2, np.float32),
        novelty=np.array([1, 2, 4], np.float32), novelty_final=np.array([100, 8], np.float32),
    )  # fmt: skip
    lanes = np.array([0, 3])
    advantage, target = non_episodic_gae(
        episodes, np.ones(3), values, environment_offsets=lanes, discount=0.5, gae_lambda=0.0
    )
    assert advantage.tolist() == [1.0, 1.0, 1.0]  # 1 + .5*2 - 1; 1 + .5*4 - 2, not 0 and not 100; 1 + .5*8 - 4
    assert target.tolist() == [2.0, 3.0, 5.0]
    with pytest.raises(DataError, match="2 rewards"):
        non_episodic_gae(episodes, np.ones(2), values, environment_offsets=lanes, discount=0.5, gae_lambda=0.0)


def test_without_ends_it_is_gae() -> None:
    episodes = replace(lived([0] * 7, [0, 0], [3, 4], terminated=[False, False]), reward=np.arange(7, dtype=np.float32))
    value, final = np.linspace(0, 1, 7, dtype=np.float32), np.array([2, 3], np.float32)
    values = NoveltyValues(value=value, final=final, novelty=value, novelty_final=final)
    plain = gae(episodes, values, discount=0.9, gae_lambda=0.7)
    advantage, target = non_episodic_gae(
        episodes, episodes.reward, values, environment_offsets=episodes.offsets, discount=0.9, gae_lambda=0.7
    )
    np.testing.assert_allclose(advantage, plain.advantage, rtol=1e-5)
    assert plain.target is not None
    np.testing.assert_allclose(target, plain.target, rtol=1e-5)


def test_both_are_added_by_weight() -> None:
    credits = Credits(advantage=np.array([1.0, 2.0], np.float32), target=np.zeros(2, np.float32), metrics={"a": 1.0})
    both = with_novelty(
        credits, np.array([10.0, 20.0]), np.array([3.0, 4.0]), extrinsic_weight=2.0, intrinsic_weight=0.5
    )
    assert both.advantage.tolist() == [7.0, 14.0]
    assert both.novelty_target.tolist() == [3.0, 4.0]
    assert both.metrics == {"a": 1.0}
