"""Verdicts put together, and the budget that stops a run: worked out by hand, and by property."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.core.episodes import ScoreStatus
from hone.core.errors import DataError, UserCodeError
from hone.rewards.score_watch import UnscoredBudget
from hone.rewards.scores import RewardScores, combine_results, failed_result, result_from_value


def scores_of(*values: float | None) -> RewardScores:
    return combine_results({"f": [result_from_value(value) for value in values]}, [1.0])


def test_a_weighted_sum_by_hand() -> None:
    scores = combine_results(
        {"f": [result_from_value(1.0), result_from_value(0.5)], "g": [result_from_value(2.0), result_from_value(-1.0)]},
        [1.0, 0.25],
    )
    assert scores.score.tolist() == [1.5, 0.25]
    assert scores.functions["g"].tolist() == [2.0, -1.0]
    assert scores.status.tolist() == [ScoreStatus.SCORED] * 2


def test_none_is_left_out_and_a_failure_is_not() -> None:
    scores = combine_results(
        {
            "f": [
                result_from_value(None),
                result_from_value(math.nan),
                result_from_value(None),
                failed_result(ScoreStatus.TIMEOUT, "slow"),
                result_from_value(1.0),
            ],
            "g": [
                result_from_value(2.0),
                result_from_value(2.0),
                result_from_value(None),
                result_from_value(2.0),
                failed_result(ScoreStatus.ERROR, "KeyError"),
            ],
        },
        [1.0, 0.5],
    )
    assert scores.status.tolist() == [
        ScoreStatus.SCORED,
        ScoreStatus.UNSCORABLE,
        ScoreStatus.UNSCORABLE,
        ScoreStatus.TIMEOUT,
        ScoreStatus.ERROR,
    ]
    assert scores.score[0] == 1.0
    assert np.isnan(scores.score[1:]).all()
    assert scores.reasons[3] == "f: slow"
    assert scores.reasons[4] == "g: KeyError"


def test_an_infinite_sum_is_no_score() -> None:
    assert scores_of(1e308).status.tolist() == [ScoreStatus.SCORED]
    doubled = combine_results({"f": [result_from_value(1e308)], "g": [result_from_value(1e308)]}, [1.0, 1.0])
    assert doubled.status.tolist() == [ScoreStatus.UNSCORABLE]


@given(st.lists(st.one_of(st.none(), st.floats()), max_size=20))
def test_missing_is_nan_and_never_a_zero(values: list[float | None]) -> None:
    scores = scores_of(*values)
    finite = np.array([value is not None and math.isfinite(value) for value in values], dtype=bool)
    assert (np.isfinite(scores.score) == finite).all()
    assert ((scores.status == ScoreStatus.SCORED) == finite).all()
    assert all(reason for reason, good in zip(scores.reasons, finite, strict=True) if not good)


def test_the_budget_counts_the_last_answers_only() -> None:
    budget = UnscoredBudget(allowed=0.05, window=200, max_unscored_batches=3)
    budget.observe(scores_of(*[None] * 10 + [1.0] * 190))  # 10 of 200 = 5%: still allowed
    budget.observe(scores_of(*[1.0] * 10))  # pushes the ten out
    budget.observe(scores_of(*[None] * 10 + [1.0] * 100))
    with pytest.raises(
        UserCodeError, match=r"11 of the last 200 answers have no score \(5.5%, allowed 5.0%\)"
    ) as caught:
        budget.observe(scores_of(None))
    assert str(caught.value).count("for example unscorable: the function returned None") == 3
    assert caught.value.exit_code == 4


def test_a_short_run_is_not_judged_by_its_share() -> None:
    budget = UnscoredBudget(window=200)
    budget.observe(scores_of(None, 1.0))
    budget.observe(scores_of(None, 1.0))


def test_nothing_to_learn_from() -> None:
    budget = UnscoredBudget(max_unscored_batches=3, window=1000)
    for values in ([None], [math.nan, None], [1.0], [None], [None]):
        budget.observe(scores_of(*values))
    with pytest.raises(UserCodeError, match="nothing to learn from"):
        budget.observe(scores_of(None))


def test_a_resumed_budget_stops_at_the_same_answer() -> None:
    whole, first = UnscoredBudget(window=20, allowed=0.2), UnscoredBudget(window=20, allowed=0.2)
    early = scores_of(*[None] * 4 + [1.0] * 16)
    whole.observe(early)
    first.observe(early)
    second = UnscoredBudget(window=20, allowed=0.2)
    second.restore(first.state())
    late = scores_of(*[None] * 5)
    with pytest.raises(UserCodeError) as one:
        whole.observe(late)
    with pytest.raises(UserCodeError) as other:
        second.observe(late)
    assert str(one.value) == str(other.value)
    with pytest.raises(DataError, match="missing, examples and barren"):
        second.restore({"missing": 3})


def test_one_function_that_scored_everything_is_the_general_case() -> None:
    """The short cut against the sum of verdicts, which an answer without a score asks for."""
    column = [result_from_value(0.1 * i, reason="why" * (i % 2), seconds=0.01 * i) for i in range(7)]
    short = combine_results({"f": column}, [0.3], tracebacks=["once"])
    long = combine_results({"f": [*column, result_from_value(None)]}, [0.3], tracebacks=["once"])
    assert np.array_equal(short.score, long.score[:-1]) and np.array_equal(short.status, long.status[:-1])
    assert short.reasons == long.reasons[:-1] and np.array_equal(short.seconds, long.seconds[:-1])
    assert np.array_equal(short.functions["f"], long.functions["f"][:-1]) and short.tracebacks == long.tracebacks
    assert short.status.dtype == long.status.dtype and short.score.dtype == long.score.dtype
    assert combine_results({"f": [result_from_value(1e308)]}, [10.0]).status.tolist() == [ScoreStatus.UNSCORABLE], (
        "a sum that is no number is no score"
    )


finite = st.floats(-1e6, 1e6)


@given(
    st.integers(1, 5).flatmap(
        lambda turns: st.lists(
            st.tuples(finite, st.one_of(st.none(), finite, st.lists(finite, min_size=turns, max_size=turns))),
            min_size=1,
            max_size=4,
        )
    )
)
def test_turn_scores_add_up_to_the_weighted_score(members: list[tuple[float, float | list[float] | None]]) -> None:
    results = {str(place): [result_from_value(value)] for place, (_, value) in enumerate(members)}
    scores = combine_results(results, [weight for weight, _ in members])
    lists = [(weight, value) for weight, value in members if isinstance(value, list)]
    if not lists:
        assert scores.turn_scores == {}
        return
    turns = [sum(weight * value[turn] for weight, value in lists) for turn in range(len(lists[0][1]))]
    turns[-1] += sum(weight * value for weight, value in members if isinstance(value, float))
    assert scores.turn_scores[0] == pytest.approx(turns, abs=1e-3)
    assert sum(scores.turn_scores[0]) == pytest.approx(scores.score[0], abs=1e-3)
