"""Scored answers laid out as episodes: tokens, labels at the ends of steps, answers that do not fit."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hone.core.errors import DataError
from hone.models.language.tokenizers import (
    DEFAULT_CHAT_TEMPLATE,
    ROLE_TOKENS,
    Tokenizer,
    byte_tokenizer,
    character_tokenizer,
    vocabulary_hash,
)
from hone.text.answer_data import AnswerKind, AnswersConfig, AnswerTaskConfig, encode_answers, read_answers
from hone.text.tasks.dataset import ExampleDataset
from hone.text.tasks.token_places import text_ends

CHARACTERS = character_tokenizer(["0123456789+-=;ab \n"])


def task_of(folder: Path, *rows: object, **settings: object) -> AnswerTaskConfig:
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return AnswerTaskConfig(source=str(folder / "data.jsonl"), **settings)


def laid_out(task: AnswerTaskConfig, kind: AnswerKind, tokenizer: Tokenizer = CHARACTERS, context: int = 100):
    examples = read_answers(task, kind)
    log, notes = encode_answers(examples, task, tokenizer, context=context, kind=kind)
    return log, notes, examples


def text_of(log, tokenizer: Tokenizer, place: int) -> str:
    episodes = log.episodes
    return tokenizer.decode(episodes.chosen[episodes.offsets[place] : episodes.offsets[place + 1]], special=True)


def test_a_pair_is_two_episodes_of_one_group(tmp_path: Path) -> None:
    rows = [
        {"id": "x", "prompt": "1+1=", "chosen": "2", "rejected": "30"},
        {"id": "y", "prompt": "a", "chosen": "b", "rejected": "a"},
    ]
    log, notes, _ = laid_out(task_of(tmp_path, *rows, template="{prompt} "), "preference")
    episodes = log.episodes
    assert episodes.group.tolist() == [0, 0, 1, 1]
    assert episodes.score.tolist() == [1, 0, 1, 0]
    assert [text_of(log, CHARACTERS, place) for place in range(4)] == ["2<eos>", "30<eos>", "b<eos>", "a<eos>"]
    assert CHARACTERS.decode(episodes.transcript.tokens[: episodes.transcript.at[0]]) == "1+1= "
    assert episodes.reward.tolist() == [0, 1, 0, 0, 0, 0, 1, 0, 0]
    assert (log.ids, notes) == (("x", "y"), [])


def test_conversations_go_through_the_chat_template(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(chat_template=DEFAULT_CHAT_TEMPLATE, chat_tokens=ROLE_TOKENS)
    user = {"role": "user", "content": "2+2?"}
    row = {
        "chosen": [user, {"role": "assistant", "content": "4"}],
        "rejected": [user, {"role": "assistant", "content": "5"}],
    }
    log, _, _ = laid_out(task_of(tmp_path, row), "preference", tokenizer)
    assert [text_of(log, tokenizer, place) for place in range(2)] == ["4<eos>", "5<eos>"]
    asked = log.episodes.transcript.tokens[: log.episodes.transcript.at[0]]
    assert asked.tolist() == tokenizer.apply_chat([user]).tolist()


@pytest.mark.parametrize(
    ("steps", "separator", "text", "ends"),
    [
        (["9+3=12", "12-7=5"], "\n", "9+3=12\n12-7=5<eos>", [6, 13]),  # the last label stands at the end of sequence
        (["9+3=12;", "12-7=5;"], ";", "9+3=12;12-7=5;<eos>", [6, 13, 14]),  # and at the end of its own step
        (["12"], ";", "12<eos>", [2]),
    ],
)
def test_labels_stand_at_the_ends_of_steps(
    tmp_path: Path, steps: list[str], separator: str, text: str, ends: list[int]
) -> None:
    labels = [0.25, 0.75][-len(steps) :]
    task = task_of(
        tmp_path, {"prompt": "a", "completions": steps, "labels": labels}, answers=AnswersConfig(separator=separator)
    )
    for tokenizer in (CHARACTERS, byte_tokenizer()):
        log, _, _ = laid_out(task, "stepwise", tokenizer)
        assert text_of(log, tokenizer, 0) == text
        labelled = {int(n): float(log.episodes.reward[n]) for n in np.flatnonzero(~np.isnan(log.episodes.reward))}
        expected = [*labels, *[labels[-1]] * (len(ends) - len(labels))]
        assert labelled == dict(zip(ends, expected, strict=True))
        assert log.episodes.score.tolist() == [0.75]


@given(pieces=st.lists(st.text("aé€😀\n ", min_size=1, max_size=4), min_size=1, max_size=5))
def test_ends_of_text_by_bisection_are_those_of_a_scan(pieces: list[str]) -> None:
    tokenizer = byte_tokenizer()  # a character is up to four tokens: no token of it but the last completes it
    text = "".join(pieces)
    tokens = np.append(tokenizer.encode(text), tokenizer.eos_id)
    ends = np.cumsum([len(piece) for piece in pieces]).tolist()
    scan = [len(text[:end].encode()) - 1 for end in ends]
    assert text_ends(tokens, tokenizer.decode, text, ends) == scan


def test_answers_that_do_not_fit_are_told_the_longest_first(tmp_path: Path) -> None:
    rows = [
        {"id": "short", "prompt": "a", "chosen": "b", "rejected": "a"},
        {"id": "long", "prompt": "1+1+1+1=", "chosen": "4", "rejected": "5"},
        {"id": "longest", "prompt": "1+1+1+1+1=", "chosen": "5", "rejected": "1000000000"},
    ]
    task = task_of(tmp_path, *rows)
    with pytest.raises(DataError, match=r"2 of 3 examples .* longest \(21 tokens\), long \(10 tokens\)"):
        laid_out(task, "preference", context=9)
    log, notes, _ = laid_out(task.model_copy(update={"on_long_prompt": "drop"}), "preference", context=9)
    assert log.ids == ("short",)  # a pair is dropped as a whole
    assert "2 examples dropped" in notes[0]
    log, notes, _ = laid_out(task.model_copy(update={"on_long_prompt": "truncate"}), "preference", context=9)
    assert log.ids == ("short", "long")
    assert CHARACTERS.decode(log.episodes.transcript.tokens[6:13]) == "+1+1+1="
    assert "1 prompts lost their beginnings, 1 examples dropped" in notes[0]


def test_generated_tasks_have_no_scored_answers() -> None:
    with pytest.raises(DataError, match="has questions and no scored answers"):
        read_answers(AnswerTaskConfig(source="reasoning_gym:chain_sum"), "preference")


def test_outcomes_are_read_from_labelled_answers(tmp_path: Path) -> None:
    task = task_of(tmp_path, {"prompt": "a", "completion": "b", "label": False})
    log, _, examples = laid_out(task, "outcome")
    assert log.episodes.score.tolist() == [0.0]
    assert isinstance(examples, ExampleDataset)


def test_keys_without_an_effect_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"answers.max_per_prompt, answers.min_score: for collected answers, not"):
        AnswerTaskConfig(source="data.jsonl", answers=AnswersConfig(min_score=1.0, max_per_prompt=2))
    for source in ("stage:answers", str(tmp_path)):
        with pytest.raises(ValidationError, match=r"answers.separator: for a file of steps"):
            AnswerTaskConfig(source=source, answers=AnswersConfig(separator=";"))


def test_settings_of_prompts_that_collected_answers_do_not_take_are_named(tmp_path: Path) -> None:
    row = {"prompt": "1+1=", "chosen": "2", "rejected": "30"}
    task = task_of(tmp_path, row, tools={"use": ["hone:calculator"]})
    collected = replace(read_answers(task, "preference"), vocabulary=vocabulary_hash(CHARACTERS))
    _, notes = encode_answers(collected, task, CHARACTERS, context=100, kind="preference")
    assert len(notes) == 1
    assert "task.tools is not used here, but where they are collected" in notes[0]
    assert encode_answers(collected, task_of(tmp_path, row), CHARACTERS, context=100, kind="preference")[1] == []
