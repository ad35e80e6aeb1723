"""Tasks of reasoning-gym in several attempts."""

import pytest

from hone.core.dialogue import PolicyTurn
from hone.core.errors import ConfigError
from hone.text.adapters.reasoning_gym_steps import ReasoningGymSteps
from hone.text.tasks.reasoning_gym import reasoning_gym_examples

SUMS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def test_attempts_go_on_until_one_is_right() -> None:
    world = ReasoningGymSteps("chain_sum", config=SUMS, attempts=3, pattern=r"answer is (-?\d+)")
    (asked,) = world.begin({"seed": 7}, 0).messages
    question = str(asked["content"]).partition(": ")[2].rstrip("\n =")
    left, sign, right = question.split()
    value = int(left) + int(right) * (1 if sign == "+" else -1)
    tried = world.answer(PolicyTurn(text=f"answer is {value + 1}"))
    assert not tried.done
    assert tried.messages[0]["content"] == "That scores 0.00 of 1. Attempts left: 2.\n"
    found = world.answer(PolicyTurn(text=f"answer is 0. No, the answer is {value}"))
    assert (found.done, found.reward) == (True, 1.0)
    assert found.facts == {"attempts": 2.0, "first_score": 0.0}


def test_the_last_attempt_pays_its_own_score() -> None:
    world = ReasoningGymSteps("chain_sum", config=SUMS, attempts=2, pattern=r"\d+")
    world.begin({"seed": 3}, 0)
    assert world.answer(PolicyTurn(text="no number")).reward == 0
    last = world.answer(PolicyTurn(text="999"))
    assert last.done
    assert last.reward is not None
    assert last.reward < 1


def test_items_of_a_dataset_keep_their_question() -> None:
    (example,) = reasoning_gym_examples("chain_sum", size=1, seed=0, config=SUMS)
    world = ReasoningGymSteps("chain_sum", config=SUMS)
    assert world.begin(example.columns, 0).messages == ()
    assert world.answer(PolicyTurn(text=f" {example.columns['answer']}\n")).reward == 1.0


def test_samples_of_a_row_share_its_item() -> None:
    texts = [
        str(ReasoningGymSteps("chain_sum").begin({"seed": row}, sample).messages) for row in (0, 1) for sample in (0, 1)
    ]
    assert texts[0] == texts[1] != texts[2] == texts[3]


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        ReasoningGymSteps("chain_sum", config={"terms": 2}, attempts=0, pattern="(").begin({}, 0)
    words = "\n".join(refused.value.messages)
    assert len(refused.value.messages) == 3
    assert "attempts = 0" in words
    assert "pattern = '('" in words
    assert "unknown key terms" in words
    with pytest.raises(ConfigError, match="did you mean chain_sum"):
        ReasoningGymSteps("chain_sums").begin({}, 0)
