"""Answers of an evaluation that are dialogues: one for each question, whatever rows and turns it has."""

import numpy as np
import pytest
from plain_episodes import plain_episodes

from hone.core.conversation import TranscriptBuilder, build_columns
from hone.core.dialogue import STOP_REASONS, DialogueOutcome, StopReason
from hone.core.episodes import Episodes, ScoreStatus
from hone.core.generation import Completion, Request, SamplingParams
from hone.text.evaluate.dialogues import prompt_text
from hone.text.evaluate.text_eval import dialogue_answers
from hone.text.tasks.conversation import Conversation


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def row(prompt: int, *answers: int) -> TranscriptBuilder:
    """A row of answers of one token each, with the environment's token 9 between them."""
    built = TranscriptBuilder(ids(prompt))
    for place, token in enumerate(answers):
        if place:
            built.append_environment(ids(9))
        zeros = np.zeros(1, np.float32)
        built.append_sampled(
            Completion(
                request_id="q", sample_index=0, tokens=ids(token), logp=zeros, sampled_logp=zeros,
                version=np.zeros(1, np.int32), finish_reason="eos",
            )
        )  # fmt: skip
    return built


def talk(stop: StopReason, *rows: TranscriptBuilder, reason: str = "") -> Conversation:
    request = Request(id="q", prompt=ids(1), samples=1, sampling=SamplingParams(max_tokens=1))
    one = Conversation(request, 0, rows[-1] if rows else TranscriptBuilder(ids(1)), earlier=list(rows[:-1]))
    one.messages = [{"role": "assistant", "content": "said"}, {"role": "user", "content": "heard"}] if rows else []
    status = ScoreStatus.ERROR if reason else ScoreStatus.SCORED
    one.stop, one.outcome = stop, DialogueOutcome(stop=stop, status=status, reason=reason)
    return one


def episodes_of(rows: list[TranscriptBuilder], score: list[float]) -> Episodes:
    columns = build_columns(rows)
    return plain_episodes(
        columns.offsets,
        seen=columns.transcript,
        chosen=columns.chosen,
        logp=columns.logp,
        version=columns.version,
        score=np.array(score),
    )


def test_dialogues_without_turns_and_of_several_rows_have_one_answer_each() -> None:
    talks = [
        talk("done", row(1, 2)),
        talk("world_died", reason="begin raised ValueError"),
        talk("turns", row(1, 2), row(3, 4, 5)),
    ]
    talks[2].opening = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "go"}]
    rows = [one for talk in talks if talk.turns for one in talk.rows]
    found = dialogue_answers(
        talks, episodes_of(rows, [1.0, 0.5, 0.5]), ["a", "b", "c"], lambda seen: "".join(map(str, seen.tolist()))
    )
    assert found.prompts == ["a", "b", "system: be brief\nuser: go"]
    assert found.answers == ["2", "", "495"]
    assert found.scores.tolist() == pytest.approx([1.0, np.nan, 0.5], nan_ok=True)
    assert found.lengths.tolist() == [1, 0, 3]
    assert found.stops == ["done", "world_died", "turns"]
    assert found.faults == ["", "begin raised ValueError", ""]
    assert found.turns[0] == (("policy", "said"), ("environment", "heard"))
    assert found.turns[1] == ()
    assert set(found.stops) <= set(STOP_REASONS)


def test_a_prompt_of_one_message_is_its_text() -> None:
    assert prompt_text([{"role": "user", "content": "2+2?"}]) == "2+2?"
    assert prompt_text("2+2?") == "2+2?"
