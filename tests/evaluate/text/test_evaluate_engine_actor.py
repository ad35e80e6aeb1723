"""Answers on their way to the reward functions."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hone.core.conversation import Message
from hone.core.episodes import ScoreStatus
from hone.core.errors import UserCodeError
from hone.core.judging import ScorerInput
from hone.evaluate.text.engine_actor import RewardPoolScorer, reward_pool_scorer
from hone.rewards.config import RewardFunction, RewardsConfig
from hone.rewards.jobs import FunctionSignature, RewardBatch
from hone.rewards.scores import RewardScores

COUNTS = """
def company(completions):
    return [float(len(completions))] * len(completions)
"""


def test_a_function_of_groups_sees_all_answers_to_a_prompt_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "counts.py").write_text(COUNTS)
    use = f"{tmp_path / 'counts.py'}:company"
    config = RewardsConfig(functions=[RewardFunction(use=use, unit="group")], workers=2)
    judge = reward_pool_scorer(config)
    try:
        tickets = [
            judge.submit(
                [
                    ScorerInput(
                        prompt=f"question {count}",
                        text=str(number),
                        columns={},
                        messages=(),
                        tokens=np.zeros(1, np.int32),
                    )
                    for number in range(count)
                ]
            )
            for count in (4, 2, 3)
        ]
        assert judge.gather(tickets).score.tolist() == [4.0] * 4 + [2.0] * 2 + [3.0] * 3
    finally:
        judge.pool.close()


CONVERSATION = """
def written(completions, messages, tokens):
    return [float(len(one) * 100 + sum(ids)) for one, ids in zip(messages, tokens, strict=True)]

def last_word(completion, messages):
    assert messages[-1] == {"role": "assistant", "content": completion}
    return float(len(messages))

def anything(completions, **columns):
    return [float(len(columns)) for _ in completions]

def turns(completions, messages):
    return [[float(one["content"]) for one in each if one["role"] == "assistant"] for each in messages]

def turn_of_each(completion, messages):
    return {"score": (1, 2.5), "reason": "by turn"}

def whole(completions):
    return [10.0] * len(completions)

def three(completions):
    return [[1.0, 2.0, 3.0] for _ in completions]

def words(completions):
    return [[1.0, "good"] for _ in completions]
"""


def scorer_of(folder: Path, *names: str, **settings: object) -> RewardPoolScorer:
    (folder / "rewards.py").write_text(CONVERSATION)
    functions = [{"use": f"{folder / 'rewards.py'}:{name}", **settings} for name in names]
    return reward_pool_scorer(RewardsConfig.model_validate({"functions": functions, "workers": 1}))


def conversation(*answers: str, **columns: object) -> ScorerInput:
    """Answers with a reply of the environment after each but the last; token 7 for each message."""
    messages: list[Message] = []
    for answer in answers:
        messages += [{"role": "assistant", "content": answer}, {"role": "tool", "content": "next"}]
    return ScorerInput(
        prompt="?",
        text=answers[-1],
        columns=columns,
        messages=tuple(messages[:-1]),
        tokens=np.full(len(messages), 7, np.int32),
        id="question 3",
    )


def scores_of(scorer: RewardPoolScorer, *answers: ScorerInput) -> RewardScores:
    try:
        scorer.check(answers[0].columns.keys())
        return scorer.gather([scorer.submit(answers)])
    finally:
        scorer.pool.close()


def test_functions_that_name_messages_and_tokens_get_the_conversation(tmp_path: Path) -> None:
    scorer = scorer_of(tmp_path, "written", "anything")
    scores = scores_of(scorer, conversation("a", "b", mine=1), conversation("c", mine=2))
    assert scores.functions["written"].tolist() == [3 * 100 + 4 * 7, 1 * 100 + 2 * 7]
    assert scores.functions["anything"].tolist() == [2.0, 2.0], "the prompts and the dataset's column, as ever"
    assert scores.turn_scores == {}


def test_a_function_of_one_answer_gets_its_own_conversation(tmp_path: Path) -> None:
    scores = scores_of(scorer_of(tmp_path, "last_word"), conversation("a", "b", "c"), conversation("d"))
    assert scores.score.tolist() == [5.0, 1.0]


def test_a_datasets_own_column_goes_before_the_conversation(tmp_path: Path) -> None:
    own = [{"role": "assistant", "content": "a"}]
    assert scores_of(scorer_of(tmp_path, "last_word"), conversation("b", "a", messages=own)).score.tolist() == [1.0]


def test_only_named_parts_of_the_conversation_are_sent(tmp_path: Path) -> None:
    batch = RewardBatch(prompts=["?"], completions=["a"], columns={"mine": [1]}, conversation={"tokens": [[7]]})
    plain = FunctionSignature(
        form="batch", columns=frozenset({"mine"}), required_columns=frozenset(), takes_any_column=True
    )
    assert batch.columns_for(plain) == {"mine": [1]}
    assert batch.columns_for(replace(plain, columns=frozenset({"tokens"}))) == {"mine": [1], "tokens": [[7]]}


def test_turn_scores_add_up_to_the_score_and_a_whole_score_counts_for_the_last_turn(tmp_path: Path) -> None:
    scorer = scorer_of(tmp_path, "turns", "whole", weight=0.5)
    scores = scores_of(scorer, conversation("1", "2", "4"), conversation("8"))
    assert scores.functions["turns"].tolist() == [7.0, 8.0]
    assert scores.score.tolist() == [8.5, 9.0]
    assert scores.turn_scores == {0: [0.5, 1.0, 7.0], 1: [9.0]}


def test_turn_scores_of_one_answer_may_have_a_reason(tmp_path: Path) -> None:
    scores = scores_of(scorer_of(tmp_path, "turn_of_each"), conversation("1", "2"))
    assert (scores.score.tolist(), scores.reasons, scores.turn_scores) == ([3.5], ("by turn",), {0: [1.0, 2.5]})


def test_a_turn_score_that_is_not_finite_makes_the_answer_missing(tmp_path: Path) -> None:
    scores = scores_of(scorer_of(tmp_path, "turns"), conversation("1", "nan"), conversation("2", "3"))
    assert scores.status.tolist() == [ScoreStatus.UNSCORABLE, ScoreStatus.SCORED]
    assert scores.reasons[0] == "the function returned [1.0, nan]"
    assert scores.turn_scores == {1: [2.0, 3.0]}


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("three", r"gave 3 turn scores \[1.0, 2.0, 3.0\] to an answer to prompt 'question 3' of 2 turns"),
        ("words", r"returned a list \(\[1.0, 'good'\]\) where a number or None is expected"),
    ],
)
def test_turn_scores_that_do_not_fit_stop_the_run(tmp_path: Path, name: str, fault: str) -> None:
    with pytest.raises(UserCodeError, match=fault):
        scores_of(scorer_of(tmp_path, name), conversation("1", "2"))


def test_a_bound_holds_for_the_sum_of_the_turns(tmp_path: Path) -> None:
    with pytest.raises(UserCodeError, match="gave 7, outside its bounds"):
        scores_of(scorer_of(tmp_path, "turns", bounds=[0.0, 5.0]), conversation("1", "2", "4"))
