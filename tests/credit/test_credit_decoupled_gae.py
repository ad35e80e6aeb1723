"""Advantages and targets with lambdas of their own: by hand, against a slow recursion, and over tool output."""

import numpy as np
import pytest
from credit_batches import answers, nan
from hypothesis import given
from hypothesis import strategies as st

from hone.core.credit import NO_VALUES, Credits, Values
from hone.core.episodes import Episodes, Transcript
from hone.core.errors import ConfigError
from hone.core.ragged import offsets_of
from hone.credit.returns import decoupled_gae, explained_variance, gae, length_adaptive_lambda


def guessed(episodes: Episodes, seed: int = 0) -> Values:
    rng = np.random.default_rng(seed)
    values, ends = rng.normal(size=episodes.decisions), rng.normal(size=len(episodes))
    return Values(value=values.astype(np.float32), final=ends.astype(np.float32))


def slow(episodes: Episodes, values: Values, discount: float, decay: list[float]) -> np.ndarray:
    """One decision after another, from each episode's end."""
    found = np.zeros(episodes.decisions)
    for e in range(len(episodes)):
        following, after = 0.0, 0.0 if episodes.terminated[e] else float(values.final[e])
        for t in reversed(range(int(episodes.offsets[e]), int(episodes.offsets[e + 1]))):
            following = (
                float(episodes.reward[t]) + discount * after - float(values.value[t]) + discount * decay[e] * following
            )
            found[t], after = following, float(values.value[t])
    return found


def test_by_hand() -> None:
    """Two decisions with values 0.5 and 0.75, score 1 at the end; policy's lambda 0.5, the critic's 1."""
    episodes = answers([1.0], lengths=[2])
    values = Values(value=np.array([0.5, 0.75], np.float32), final=np.zeros(1, np.float32))
    credits = decoupled_gae(episodes, values, policy_lambda=0.5, critic_lambda=1.0)
    np.testing.assert_allclose(credits.advantage, [0.25 + 0.5 * 0.25, 0.25])
    assert credits.target is not None
    np.testing.assert_allclose(credits.target, [1.0, 1.0])


def test_rewards_per_step_and_at_the_end_both_count() -> None:
    episodes = answers([3.0], lengths=[3], rewards=[1.0, 0.0, 2.0])
    zero = Values(value=np.zeros(3, np.float32), final=np.zeros(1, np.float32))
    credits = decoupled_gae(episodes, zero, policy_lambda=1.0)
    np.testing.assert_allclose(credits.advantage, [3.0, 2.0, 2.0])


@given(
    st.lists(st.tuples(st.integers(1, 9), st.booleans(), st.booleans()), min_size=1, max_size=6),
    st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.one_of(st.none(), st.floats(0.05, 2.0)),
)  # fmt: skip
def test_it_is_two_recursions(
    rows: list[tuple[int, bool, bool]], discount: float, ours: float, critics: float, scale: float | None
) -> None:
    scores = [nan if missing else float(place) for place, (_, _, missing) in enumerate(rows)]
    episodes = answers(scores, lengths=[size for size, _, _ in rows], truncated=[cut for _, cut, _ in rows])
    values = guessed(episodes)
    credits = decoupled_gae(
        episodes, values, discount=discount, policy_lambda=ours, critic_lambda=critics, length_scale=scale
    )
    decay = [ours if scale is None else max(0.0, 1.0 - 1.0 / (scale * size)) for size, _, _ in rows]
    kept = np.repeat(episodes.scored, episodes.lengths)
    np.testing.assert_allclose(credits.advantage, np.where(kept, slow(episodes, values, discount, decay), 0), atol=1e-5)
    target = values.value + np.where(kept, slow(episodes, values, discount, [critics] * len(rows)), 0)
    assert credits.target is not None
    np.testing.assert_allclose(credits.target, target, atol=1e-5)


def test_with_one_lambda_it_is_gae() -> None:
    episodes = answers([1.0, 0.0, 2.0], lengths=[3, 1, 4], truncated=[False, True, False])
    values = guessed(episodes)
    ours = decoupled_gae(episodes, values, discount=0.9, policy_lambda=0.7, critic_lambda=0.7)
    theirs = gae(episodes, values, discount=0.9, gae_lambda=0.7)
    np.testing.assert_allclose(ours.advantage, theirs.advantage, atol=1e-6)
    assert ours.target is not None and theirs.target is not None
    np.testing.assert_allclose(ours.target, theirs.target, atol=1e-6)


def with_tool_output(gap: int) -> Episodes:
    """Two answers of three decisions; the environment writes `gap` tokens before the last decision of each."""
    length = 2 + 3 + gap
    at = np.array([2, 3, 4 + gap], np.int64)
    episodes = answers([1.0, 2.0], lengths=[3, 3])
    columns = {**episodes.columns(), "seen": Transcript(
        tokens=np.arange(2 * length, dtype=np.int32), offsets=offsets_of(np.array([length, length])),
        at=np.concatenate([at, at + length]),
    )}  # fmt: skip
    return Episodes.from_columns(episodes.offsets, columns)


@pytest.mark.parametrize("gap", [0, 1, 1000])
def test_tool_output_changes_no_advantage(gap: int) -> None:
    """No reward is diluted by tokens that the environment wrote, and nothing is bootstrapped from one of them."""
    values = Values(value=np.array([0.1, 0.4, 0.7, 0.2, 0.3, 0.9], np.float32), final=np.zeros(2, np.float32))
    found = decoupled_gae(with_tool_output(gap), values, discount=0.9, policy_lambda=0.8)
    expected = decoupled_gae(with_tool_output(0), values, discount=0.9, policy_lambda=0.8)
    assert found.advantage.tolist() == expected.advantage.tolist()
    assert found.target is not None and expected.target is not None
    assert found.target.tolist() == expected.target.tolist()


def test_lambda_grows_with_the_answer() -> None:
    np.testing.assert_allclose(length_adaptive_lambda(np.array([10, 20, 40, 200]), 0.05), [0.0, 0.0, 0.5, 0.9])
    assert length_adaptive_lambda(np.array([0]), 0.05).tolist() == [0.0]


def test_explained_variance() -> None:
    returns = np.array([0.0, 1.0, 2.0])
    assert explained_variance(returns, returns) == 1.0
    assert explained_variance(returns + 5.0, returns) == 1.0, "a constant error is no lack of variance"
    assert explained_variance(np.zeros(3), returns) == 0.0
    assert explained_variance(-returns, returns) == -3.0
    assert explained_variance(np.zeros(3), np.ones(3)) is None


def told(credits: Credits) -> dict[str, float]:
    return dict(credits.metrics)


def test_the_critic_is_judged_by_the_returns_of_scored_answers() -> None:
    episodes = answers([0.0, 1.0, nan], lengths=[1, 1, 1])
    values = Values(value=np.array([0.0, 1.0, 9.0], np.float32), final=np.zeros(3, np.float32))
    assert told(decoupled_gae(episodes, values)) == {"critic/explained_variance": 1.0}
    equal = answers([1.0, 1.0], lengths=[1, 1])
    assert told(decoupled_gae(equal, Values(value=np.ones(2, np.float32), final=np.zeros(2, np.float32)))) == {}


def test_refusals() -> None:
    episodes = answers([1.0])
    with pytest.raises(ConfigError, match="decoupled_gae needs a critic"):
        decoupled_gae(episodes, NO_VALUES)
    with pytest.raises(ConfigError, match=r"critic_lambda = 1.5; it must be in \[0, 1\]"):
        decoupled_gae(episodes, guessed(episodes), critic_lambda=1.5)


@pytest.mark.parametrize("name", ["policy_lambda", "critic_lambda"])
def test_a_lambda_beyond_its_range_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f"decoupled_gae: {name} = 1.5; it must be in"):
        decoupled_gae(answers([1.0]), guessed(answers([1.0])), **{name: 1.5})


def test_the_critic_explains_returns_by_hand() -> None:
    """Returns 0, 1, 2 (lambda 1) predicted as 1, 1, 1 and as 0, 0.5, 2: 0 and 1 - Var(0, 0.5, 0) / Var(0, 1, 2)."""
    episodes = answers([0.0, 1.0, 2.0])
    flat = Values(value=np.ones(3, np.float32), final=np.zeros(3, np.float32))
    near = Values(value=np.array([0.0, 0.5, 2.0], np.float32), final=np.zeros(3, np.float32))
    told = [decoupled_gae(episodes, values).metrics["critic/explained_variance"] for values in (flat, near)]
    assert told == [pytest.approx(0.0), pytest.approx(1 - (1 / 18) / (2 / 3))]


def test_what_counts_as_no_variance_grows_with_the_square_of_the_returns() -> None:
    large = 1e6 + np.array([0.0, 1.0])
    assert explained_variance(large, large) is None  # a variance of 0.25 among returns of a million is rounding
    assert explained_variance(large[:1], large[:1]) is None
    half = np.array([0.0, 1e-5])
    assert explained_variance(half, half) == 1.0
    assert explained_variance(half / 100, half / 100) is None
    below_one = np.array([0.0, 2.5e-6])
    assert explained_variance(below_one, below_one) == 1.0  # 1.6e-12, of returns that count as at least 1
    wide = np.array([0.0, 3e-3, 1e3, 1e3])[2:] + np.array([0.0, 3e-3])
    assert explained_variance(wide, wide) == 1.0  # 2.25e-6 of 1e-6: 1e-12 times the square, not the cube


def test_types_are_those_of_the_loss() -> None:
    episodes = answers([1.0, 0.0], lengths=[2, 1])
    found = decoupled_gae(episodes, guessed(episodes))
    assert found.advantage.dtype == np.float32
    assert found.target is not None and found.target.dtype == np.float32


def test_an_answer_of_one_token_has_the_smallest_lambda() -> None:
    np.testing.assert_allclose(length_adaptive_lambda(np.array([0, 1, 2, 4]), 1.0), [0.0, 0.0, 0.5, 0.75])
