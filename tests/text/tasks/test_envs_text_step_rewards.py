"""Scores of steps: where steps end, in tokens of any length, and what a reward is paid for."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.core.conversation import TranscriptBuilder
from hone.core.generation import Completion, Request, SamplingParams
from hone.core.judging import ScorerInput
from hone.core.state import State
from hone.lab.tasks.chain_of_sums import right_steps
from hone.rewards.scorer import reward_batch
from hone.rewards.scores import RewardScores, combine_results, result_from_value
from hone.text.tasks.token_places import step_ends
from hone.text.tasks.world import Prompt, TextWorld

PIECES = ["a", "bc", ";", ";;", "a;", ";b", "\n", "x\n", "", "\n\n"]


def decode(tokens: np.ndarray) -> str:
    return "".join(PIECES[token] for token in tokens.tolist())


@given(st.lists(st.integers(0, len(PIECES) - 1), min_size=1, max_size=20), st.sampled_from([";", "\n", "\n\n", "a;"]))
def test_a_step_ends_at_the_first_token_that_completes_its_separator(tokens: list[int], separator: str) -> None:
    array = np.array(tokens, np.int32)
    steps = len(decode(array).split(separator))
    expected = [
        next(place for place in range(len(tokens)) if decode(array[: place + 1]).count(separator) > step)
        for step in range(steps - 1)
    ]
    assert step_ends(array, decode, separator, steps).tolist() == [*expected, len(tokens) - 1]


@dataclass
class OneAnswer:
    """Session that always says the same tokens."""

    tokens: list[int]
    waiting: list[Request] = field(default_factory=list[Request])

    def submit(self, requests: Sequence[Request], *, round: int = 0) -> None:
        self.waiting.extend(requests)

    def next_completion(
        self, request_ids: Collection[str] | None = None, *, wake: Callable[[], bool] | None = None
    ) -> Completion | None:
        if not self.waiting:
            return None
        said = np.array(self.tokens, np.int32)
        return Completion(
            request_id=self.waiting.pop(0).id, sample_index=0, tokens=said, logp=np.zeros(len(said), np.float32),
            sampled_logp=np.zeros(len(said), np.float32), version=np.zeros(len(said), np.int32),
            finish_reason="eos", turn=0,
        )  # fmt: skip

    def cancel(self, request_ids: Collection[str] | None = None) -> None:
        self.waiting.clear()

    def reset_stats(self) -> None: ...


@dataclass
class StepScorer:
    """Scores step k of each answer with k + 1, or the answer as a whole with 9."""

    whole: bool
    asked: list[int] = field(default_factory=list[int])

    def submit(self, answers: Sequence[ScorerInput]) -> Sequence[ScorerInput]:
        self.asked += [one.turns for one in answers]
        return answers

    def gather(self, tickets: Sequence[Sequence[ScorerInput]]) -> RewardScores:
        found = [9.0 if self.whole else [k + 1.0 for k in range(one.turns)] for ticket in tickets for one in ticket]
        return combine_results({"steps": [result_from_value(one) for one in found]}, [1.0])

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None: ...


@pytest.mark.parametrize(("whole", "reward"), [(False, [0.0, 1.0, 0.0, 2.0, 3.0]), (True, [0.0, 0.0, 0.0, 0.0, 9.0])])
def test_steps_are_paid_where_they_end_and_answers_at_their_last_token(whole: bool, reward: list[float]) -> None:
    """`a`, `a;`, `bc`, `;`, and an end of text that says nothing: two steps and an empty one."""
    scorer = StepScorer(whole)
    world = TextWorld(
        prompts=[Prompt(id="p", content="p", tokens=np.zeros(2, np.int32), columns={})], scorer=scorer, decode=decode,
        sampling=SamplingParams(max_tokens=5), prompts_per_step=1, samples=1, seed=0, step_end=";",
    )  # fmt: skip
    episodes = world.rollout(OneAnswer([0, 4, 1, 2, 8]))
    assert scorer.asked == [3]
    assert episodes.reward.tolist() == reward
    assert episodes.score.tolist() == [sum(reward)]


def answer(text: str, steps: int | None) -> ScorerInput:
    return ScorerInput(
        prompt="9+3-7\n", text=text, columns={}, messages=(), steps=steps, id="q1",
        transcript=TranscriptBuilder(np.zeros(1, np.int32)),
    )  # fmt: skip


def test_a_list_of_another_length_is_named_with_what_divides_an_answer() -> None:
    batch = reward_batch([answer("9+3=12;", 2)])
    assert batch.wrong_turns(0, result_from_value([1.0, 0.0])) == ""
    assert batch.wrong_turns(0, result_from_value([1.0])) == (
        "gave 1 step scores [1.0] to an answer to prompt 'q1' of 2 steps (rewards.step_end divides it; the last one "
        "may be empty)"
    )
    assert "of 1 turns" in reward_batch([answer("9", None)]).wrong_turns(0, result_from_value([1.0, 0.0]))


@pytest.mark.parametrize(
    ("text", "scores"),
    [
        ("9+3=12;12-7=5;", [1.0, 1.0, 0.0]),
        ("9+3=12;12-7=6;", [1.0, 0.0, 0.0]),
        ("9+3=13;12-7=5;", [0.0, 0.0, 0.0]),
        ("9+3=12;12-7=5", [1.0, 1.0]),
        ("9+3=12;;12-7=5;", [1.0, 0.0, 1.0, 0.0]),
        ("", [0.0]),
    ],
)
def test_steps_of_a_chain_are_scored_one_by_one(text: str, scores: list[float]) -> None:
    assert right_steps(["9+3-7\n"], [text]) == [scores]
    assert len(text.split(";")) == len(scores)
