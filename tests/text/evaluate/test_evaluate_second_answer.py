"""Two answers to a prompt with a nudge between them: tokens, scores of both, room, and how an evaluation tells it."""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recipe_runs import job_of, lay_out, settings

from hone.core.episodes import ScoreStatus
from hone.core.errors import DataError
from hone.core.generation import Completion, Request, SamplingParams
from hone.core.judging import ScorerInput
from hone.core.state import State
from hone.models.language.tokenizers import DEFAULT_CHAT_TEMPLATE, ROLE_TOKENS, character_tokenizer
from hone.rewards.scorer import EachAnswerScorer
from hone.rewards.scores import RewardScores, combine_results, failed_result, result_from_value
from hone.text.evaluate.dialogues import SecondAnswer
from hone.text.tasks.conversation import ConversationLimits
from hone.text.tasks.dataset import Example, build_examples
from hone.text.tasks.task import TaskConfig
from hone.text.tasks.world import Prompt, TextWorld

TOKENS = character_tokenizer(["abcde?"])
CHAT = character_tokenizer(["abcde?"], chat_template=DEFAULT_CHAT_TEMPLATE, chat_tokens=ROLE_TOKENS)


@dataclass
class TwoLetters:
    """Session that says `a`, and `b` where it is asked again; sample 2 is cut by the limit."""

    asked: list[Request] = field(default_factory=list[Request])
    waiting: list[tuple[Request, int]] = field(default_factory=list[tuple[Request, int]])

    def submit(self, requests: Sequence[Request], *, round: int = 0) -> None:
        self.asked.extend(requests)
        self.waiting += [(one, one.first_sample + k) for one in requests for k in range(one.samples)]

    def next_completion(
        self, request_ids: Collection[str] | None = None, *, wake: Callable[[], bool] | None = None
    ) -> Completion | None:
        if not self.waiting:
            return None
        request, sample = self.waiting.pop(0)
        said = np.append(TOKENS.encode("b" if request.turn else "a"), TOKENS.eos_id).astype(np.int32)
        zeros = np.zeros(len(said), np.float32)
        return Completion(
            request_id=request.id, sample_index=sample, tokens=said, logp=zeros, sampled_logp=zeros,
            version=np.zeros(len(said), np.int32), finish_reason="length" if sample == 2 else "eos", turn=request.turn,
        )  # fmt: skip

    def cancel(self, request_ids: Collection[str] | None = None) -> None:
        self.waiting = [one for one in self.waiting if request_ids is not None and one[0].id not in request_ids]

    def reset_stats(self) -> None: ...


@dataclass
class LetterScorer:
    """`a` is worth 0.25, `b` 1; an answer to a prompt that begins with `e` fails the second time."""

    heard: list[tuple[str, int, int]] = field(default_factory=list[tuple[str, int, int]])

    def submit(self, answers: Sequence[ScorerInput]) -> Sequence[ScorerInput]:
        self.heard += [(one.text, len(one.messages), len(one.tokens)) for one in answers]
        return answers

    def gather(self, tickets: Sequence[Sequence[ScorerInput]]) -> RewardScores:
        answers = [one for ticket in tickets for one in ticket]
        results = [
            failed_result(ScoreStatus.TIMEOUT, "late")
            if one.text == "b" and str(one.prompt).startswith("e")
            else result_from_value(0.25 if one.text == "a" else 1.0)
            for one in answers
        ]
        return combine_results({"letter": results}, [1.0])

    def state(self) -> State:
        return {"heard": len(self.heard)}

    def restore(self, state: State) -> None: ...


def world(prompts: list[str], scorer: LetterScorer, samples: int = 1) -> TextWorld:
    asked = [Prompt(id=text, content=text, tokens=TOKENS.encode(text), columns={}) for text in prompts]
    return TextWorld(
        prompts=asked, scorer=EachAnswerScorer(scorer), decode=TOKENS.decode, sampling=SamplingParams(max_tokens=2),
        prompts_per_step=len(asked), samples=samples, seed=0, shuffle=False,
        environment=SecondAnswer("??").environment(TOKENS, asked), limits=ConversationLimits(context=64),
    )  # fmt: skip


def test_both_answers_are_scored_and_their_scores_add_up() -> None:
    scorer, session = LetterScorer(), TwoLetters()
    episodes = world(["cd"], scorer).rollout(session)
    assert TOKENS.decode(episodes.transcript.tokens, special=True).startswith("cda")
    assert TOKENS.decode(session.asked[1].prompt) == "cda??"
    assert scorer.heard == [("a", 1, 4), ("b", 3, 8)], "each as if the conversation had ended with it"
    assert episodes.lengths.tolist() == [4]
    assert episodes.reward.tolist() == [0.0, 0.25, 0.0, 0.75]
    assert episodes.score.tolist() == [1.0]
    assert episodes.components is not None and episodes.components.tolist() == [[1.0]]


def test_a_first_answer_that_a_limit_cut_has_no_second() -> None:
    episodes = world(["cd"], LetterScorer(), samples=3).rollout(TwoLetters())
    assert episodes.lengths.tolist() == [4, 4, 2]
    assert episodes.score.tolist() == [1.0, 1.0, 0.25]


def test_an_answer_without_a_score_takes_the_pair_with_it() -> None:
    episodes = world(["ed", "cd"], LetterScorer()).rollout(TwoLetters())
    assert episodes.status.tolist() == [ScoreStatus.TIMEOUT, ScoreStatus.SCORED]
    assert np.isnan(episodes.score[0]) and not episodes.reward[:4].any()
    assert EachAnswerScorer(LetterScorer()).state() == {"heard": 0}


def test_in_a_chat_the_nudge_is_a_message() -> None:
    history = [{"role": "user", "content": "ab"}]
    prompt = Prompt(id="p", content=history, tokens=CHAT.apply_chat(history), columns={})
    environment = SecondAnswer("cd").environment(CHAT, [prompt])
    two = TextWorld(
        prompts=[prompt], scorer=EachAnswerScorer(LetterScorer()), decode=CHAT.decode,
        sampling=SamplingParams(max_tokens=2), prompts_per_step=1, samples=1, seed=0, environment=environment,
    )  # fmt: skip
    episodes = two.rollout(TwoLetters())
    whole = [*history, {"role": "assistant", "content": "a"}, {"role": "user", "content": "cd"}]
    begun = CHAT.apply_chat(whole)
    assert episodes.transcript.tokens[: len(begun)].tolist() == begun.tolist()
    assert SecondAnswer("cd").tokens_between(CHAT, is_chat=True) > 2


def test_room_is_left_for_the_row_whose_template_writes_most_between_two_answers() -> None:
    padding = "message['content'] ~ ('a' * (more or 0) if message['role'] == 'user' else '') ~"
    template = str(CHAT.chat_template).replace("message['content'] ~", padding)
    tokenizer, task = replace(CHAT, chat_template=template), TaskConfig(source="x.jsonl")
    columns = [{"chat_template_kwargs": {"more": more}} for more in (0, 3, 1)]
    drafts = [
        Example(id=str(n), prompt="ab", completion=None, columns=one, row=n, source="x")
        for n, one in enumerate(columns)
    ]
    examples = build_examples(drafts, source="x.jsonl")
    plain = SecondAnswer("cd").tokens_between(tokenizer, is_chat=True)
    assert SecondAnswer("cd").further_tokens(task, examples, tokenizer, 5) == plain + 3 + 5
    without = TaskConfig(source="x.jsonl", chat=False)
    assert SecondAnswer("cd").further_tokens(without, examples, tokenizer, 5) == 2 + 5


def test_a_nudge_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(DataError, match=r"algorithm.correction.nudge: the tokenizer has no token for 'x', 'y', 'z'"):
        SecondAnswer("xyz").tokens_between(TOKENS, is_chat=False)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    lay_out(tmp_path, monkeypatch)
    return tmp_path


def corrected(**changes: Any) -> dict[str, Any]:
    rewards = {"functions": [{"use": "x:right"}]}
    held_out = {"task": {"source": "letters.jsonl"}, "rewards": rewards, "max_tokens": 3, "stop": list("abcde")}
    return settings("self_correction", steps=3, full=False, **changes) | {"evaluation": held_out}


def test_an_evaluation_answers_twice_and_tells_both(place: Path) -> None:
    job = job_of("self_correction", corrected())
    assert job.evaluate is not None
    found = job.evaluate()
    assert {"eval/score", "eval/first_score", "eval/wrong_to_right", "eval/right_to_wrong"} <= set(found.metrics)
    assert [[speaker for speaker, _ in answer.turns] for answer in found.answers] == [
        ["policy", "environment", "policy"]
    ] * 4


def test_prompts_that_leave_no_room_for_two_answers_are_refused(place: Path) -> None:
    """The context holds 16 tokens: a prompt, two answers of seven, and the nudge."""
    (place / "long.jsonl").write_text(json.dumps({"prompt": "abcd", "answer": "b"}) + "\n", encoding="utf-8")
    tables = corrected(rollout={"max_tokens": 7}) | {"task": {"source": "long.jsonl"}}
    with pytest.raises(DataError, match="long"):
        job_of("self_correction", tables)
    job_of("grpo", settings("grpo", steps=1, rollout={"max_tokens": 7}) | {"task": {"source": "long.jsonl"}})
