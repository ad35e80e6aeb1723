"""Self-correction: turns and their scores, the pay of both stages by hand and slowly, what is told, its state."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_episodes import plain_episodes

from hone.core.credit import NO_VALUES
from hone.core.episodes import Episodes, ScoreStatus, Transcript
from hone.core.ragged import offsets_of
from hone.credit.self_correction import SelfCorrectionCredit, answer_turns, correction_metrics, standardised_turns

Pair = tuple[int, float, float | None, bool]
"""Group, first and second score (None: the first answer was cut), and whether the score is missing."""


def conversations(pairs: list[Pair], *, gap: int = 2) -> Episodes:
    """Answers of two tokens and of one token, with `gap` tokens of the environment between them."""
    tokens, at, lengths, reward = 0, list[int](), list[int](), list[float]()
    starts = [0]
    for _, first, second, missing in pairs:
        at += [tokens + 1, tokens + 2]
        reward += [0.0, 0.0 if missing else first]
        tokens += 3
        lengths.append(2)
        if second is not None:
            at.append(tokens + gap)
            reward.append(0.0 if missing else second - first)
            tokens += gap + 1
            lengths[-1] += 1
        starts.append(tokens)
    missed = np.array([missing for *_, missing in pairs])
    last = np.array([first if second is None else second for _, first, second, _ in pairs])
    return plain_episodes(
        offsets_of(np.array(lengths)),
        seen=Transcript(tokens=np.zeros(tokens, np.int32), offsets=np.array(starts), at=np.array(at)),
        chosen=np.zeros(len(at), np.int32),
        logp=np.full(len(at), -1.0, np.float32),
        reward=np.array(reward, np.float32),
        group=np.array([group for group, *_ in pairs]),
        score=np.where(missed, np.nan, last),
        status=np.where(missed, ScoreStatus.TIMEOUT, ScoreStatus.SCORED).astype(np.uint8),
    )


def credit(steps: int = 1, kl: float = 0.5, progress: float = 2.0) -> SelfCorrectionCredit:
    return SelfCorrectionCredit(
        first_stage_steps=steps,
        first_stage_kl=kl,
        progress_weight=progress,
        reference=lambda episodes: np.full(episodes.decisions, -1.25),
    )


PAIRS: list[Pair] = [(0, 0.0, 1.0, False), (0, 1.0, 1.0, False), (0, 1.0, None, False), (0, 9.0, 9.0, True)]


def test_turns_and_their_scores() -> None:
    turns = answer_turns(conversations(PAIRS))
    assert turns.offsets.tolist() == [0, 2, 3, 5, 6, 8, 10, 11]
    assert turns.second.tolist() == [False, True, False, True, False, False, True]
    np.testing.assert_array_equal(turns.first_score, [0.0, 1.0, 1.0, np.nan])
    np.testing.assert_array_equal(turns.second_score, [1.0, 1.0, np.nan, np.nan])


def test_both_stages_by_hand() -> None:
    """Log-ratios are 0.25 nats at each token: 0.5 of it holds each token of a first answer in stage 1."""
    rule, episodes = credit(), conversations([(0, 0.0, 1.0, False), (0, 1.0, 1.0, False), (0, 1.0, 0.0, False)])
    first = rule(episodes, NO_VALUES)
    pay = np.array([1.0, 1.0, 0.0])
    normal = (pay - pay.mean()) / pay.std(ddof=1)
    expected = [[-0.125, -0.125, one] for one in normal]
    np.testing.assert_allclose(first.advantage, np.ravel(expected), atol=1e-5)
    assert first.metrics["correction/stage"] == 1.0
    assert first.metrics["correction/first_kl_nats"] == pytest.approx(0.5)
    second = rule(episodes, NO_VALUES)
    ours = np.array([0.0, 1.0, 1.0])
    expected = [[a, a, 3 * b] for a, b in zip((ours - ours.mean()) / ours.std(ddof=1), normal, strict=True)]
    np.testing.assert_allclose(second.advantage, np.ravel(expected), atol=1e-5)
    assert second.metrics["correction/stage"] == 2.0
    assert second.metrics["correction/wrong_to_right"] == pytest.approx(1 / 3)
    assert second.metrics["correction/right_to_wrong"] == pytest.approx(1 / 3)


any_pair = st.tuples(
    st.integers(0, 2), st.integers(0, 4).map(float), st.one_of(st.none(), st.integers(0, 4).map(float)), st.booleans()
)


@given(st.lists(any_pair, min_size=1, max_size=12), st.sampled_from([0, 5]))
def test_each_answer_is_compared_with_those_of_its_turn(pairs: list[Pair], steps: int) -> None:
    """One answer at a time, against lists of the others."""
    found = credit(steps)(conversations(pairs), NO_VALUES).advantage
    expected: list[float] = []
    for group, first, second, missing in pairs:
        others = [(a, b) for g, a, b, gone in pairs if g == group and not gone]
        held = -0.125 if steps and not missing else 0.0
        own = 0.0 if missing or steps else compared(first, [a for a, _ in others])
        expected += [own + held] * 2
        if second is not None:
            rest = [b for _, b in others if b is not None]
            expected.append(0.0 if missing else compared(second, rest) * (1.0 if steps else 3.0))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_taking_the_first_score_off_changes_no_expected_gradient() -> None:
    """s2 + w (s2 - s1) and (1 + w) s2, by enumeration of both outcomes of a second answer after each first one: the
    gradient of log p of an outcome is (1 - p) or -p."""
    weight, chance = 2.0, {0.0: 0.3, 1.0: 0.6}
    for first, p in chance.items():
        whole = p * (1 - p) * (1 + weight * (1 - first)) + (1 - p) * -p * (0 + weight * (0 - first))
        assert whole == pytest.approx((1 + weight) * p * (1 - p))


def compared(pay: float, others: list[float]) -> float:
    values = np.array(others)
    return 0.0 if len(values) < 2 or values.std() == 0 else (pay - values.mean()) / (values.std(ddof=1) + 1e-6)


def test_tool_output_changes_no_advantage() -> None:
    expected = credit()(conversations(PAIRS, gap=1), NO_VALUES).advantage
    assert credit()(conversations(PAIRS, gap=1000), NO_VALUES).advantage.tolist() == expected.tolist()


def test_without_pay_there_is_no_advantage() -> None:
    paid, group = np.array([np.nan, 1.0]), np.zeros(2, np.int64)
    assert standardised_turns(paid, group, second=np.array([False, True])).tolist() == [0.0, 0.0]
    assert correction_metrics(np.array([np.nan]), np.array([1.0]), 1.0) == {}


def test_the_stage_is_part_of_a_run() -> None:
    rule, other = credit(steps=2), credit(steps=2)
    rule(conversations(PAIRS), NO_VALUES)
    other.restore(rule.state())
    assert other(conversations(PAIRS), NO_VALUES).metrics["correction/stage"] == 1.0
    assert other(conversations(PAIRS), NO_VALUES).metrics["correction/stage"] == 2.0


def test_metrics_by_hand() -> None:
    """Four with both scores: wrong to right, right to wrong, right twice, wrong twice and again; one has no second."""
    first, second = np.array([0.0, 1.0, 1.0, 0.25, 0.25, 1.0]), np.array([1.0, 0.5, 2.0, 0.0, 0.5, np.nan])
    assert correction_metrics(first, second, 1.0) == {
        "correction/first_score": 0.5,
        "correction/second_score": 0.8,
        "correction/wrong_to_right": 0.2,
        "correction/right_to_wrong": 0.2,
    }
    # Right is what reaches the least score of a right answer, not what lies above it.
    assert correction_metrics(first, second, 0.5)["correction/wrong_to_right"] == 0.4
    assert correction_metrics(first, np.full(6, np.nan), 1.0) == {}


def test_the_metrics_of_a_batch_are_those_of_its_scores() -> None:
    episodes = conversations([(0, 0.0, 1.0, False), (0, 0.25, 1.0, False), (0, 1.0, 0.5, False)])
    found = credit()(episodes, NO_VALUES)
    assert found.metrics["correction/first_score"] == pytest.approx(1.25 / 3)
    assert found.metrics["correction/second_score"] == pytest.approx(2.5 / 3)
    assert found.metrics["correction/wrong_to_right"] == pytest.approx(2 / 3)
    assert found.metrics["correction/right_to_wrong"] == pytest.approx(1 / 3)
    assert found.advantage.dtype == np.float32


def test_groups_and_answers_are_kept_apart() -> None:
    """Pay (0, 1) of first answers in groups 0 and 1, and of second ones: -+ 0.5 / (0.7071 + epsilon) each."""
    paid = np.array([0.0, 4.0, 1.0, 5.0, 2.0, 6.0, 4.0, 8.0])
    group = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    second = np.array([False, True] * 4)
    found = standardised_turns(paid, group, second=second, epsilon=0.5)
    one, two = 0.5 / (np.sqrt(0.5) + 0.5), 1.0 / (np.sqrt(2.0) + 0.5)
    np.testing.assert_allclose(found, [-one, -one, one, one, -two, -two, two, two])
    even = standardised_turns(np.array([3.0, 3.0, 7.0]), np.array([0, 0, 1]), second=np.zeros(3, np.bool_))
    assert even.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("name", "of"), [("reference", "the reference's"), ("current", "the policy's")])
def test_a_column_of_another_length_is_named(name: str, of: str) -> None:
    columns = {"reference": lambda one: np.zeros(one.decisions), "current": lambda one: np.zeros(one.decisions)}
    columns[name] = lambda _: np.zeros(3)
    rule = SelfCorrectionCredit(first_stage_steps=1, first_stage_kl=0.5, progress_weight=1.0, **columns)
    with pytest.raises(Exception, match=rf"(?<!X){of} log-probability(?!X)"):
        rule(conversations(PAIRS), NO_VALUES)
