"""Imitation of collected dialogues: the environment's tokens, hindsight by a user's function, and what is refused."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from hone.core.credit import Credits, Metrics
from hone.core.dialogue import PolicyTurn
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError, DataError, UserCodeError
from hone.core.random import generator
from hone.models.language.tokenizers import (
    DEFAULT_CHAT_TEMPLATE,
    ROLE_TOKENS,
    Tokenizer,
    character_tokenizer,
    vocabulary_hash,
)
from hone.recipes.registry import load_recipe
from hone.run.loop import train
from hone.text.answer_data import AnswerTaskConfig, read_answers
from hone.text.experience import TokenWeights, UserFunction, experience_episodes
from hone.text.games.doors import ALPHABET, LETTERS, DoorMaze, DoorQuestion, door_questions
from hone.text.tasks.collection import FOLDER, CollectedAnswer, collection_bytes

MODEL = {
    "hidden_size": 32, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 16, "intermediate_size": 48,
    "max_positions": 32, "alphabet": ALPHABET,
}  # fmt: skip
HINDSIGHT = UserFunction(use="hone.text.games.doors:goal_of")


def opened_doors(questions: Sequence[DoorQuestion], tokenizer: Tokenizer, *, seed: int = 0) -> list[CollectedAnswer]:
    """Dialogues of a player who opens any door, as a collection has them, the world's last word included."""
    rows: list[CollectedAnswer] = []
    for place, question in enumerate(questions):
        world, row = DoorMaze(), question.row()
        world.begin(row, 0)
        door = LETTERS[int(generator(seed, "player", place).integers(len(LETTERS)))] + "."
        heard = world.answer(PolicyTurn(text=door))
        told = str(heard.messages[0]["content"])
        asked, said, answered = (tokenizer.encode(text) for text in (question.text, door, told))
        at = list(range(len(asked), len(asked) + len(said)))
        rows.append(
            CollectedAnswer(
                id=str(row["id"]), prompt=json.dumps(question.text), columns=json.dumps({"start": question.start}),
                group=place, sample=0, completion=door + told, tokens=[*asked, *said, *answered], at=at,
                logp=[-1.0] * len(at), version=[0] * len(at), score=heard.reward, status="scored", rewards={},
                truncated=False, labels=None, steps=None,
            )
        )  # fmt: skip
    return rows


def collected(folder: Path, rows: Sequence[CollectedAnswer], tokenizer: Tokenizer) -> str:
    (folder / FOLDER).mkdir(parents=True)
    (folder / FOLDER / "step_00000001.parquet").write_bytes(
        collection_bytes(rows, vocabulary=vocabulary_hash(tokenizer))
    )
    return str(folder)


@pytest.fixture
def tokenizer() -> Tokenizer:
    return character_tokenizer([ALPHABET])


@pytest.fixture
def source(tmp_path: Path, tokenizer: Tokenizer) -> str:
    return collected(tmp_path / "doors", opened_doors(door_questions(0, seed=1)[:200], tokenizer), tokenizer)


def laid_out(source: str, tokenizer: Tokenizer, *, relabel: UserFunction | None = None, **learn: float) -> Any:
    task = AnswerTaskConfig(source=source)
    return experience_episodes(
        read_answers(task, "experience"), task, tokenizer, context=32, learn=TokenWeights(**learn), relabel=relabel
    )


def test_hindsight_makes_every_dialogue_a_demonstration_of_its_own_question(source: str, tokenizer: Tokenizer) -> None:
    episodes, (told, *_) = laid_out(source, tokenizer, relabel=HINDSIGHT)
    right = {(one.text, one.door) for one in door_questions(0, seed=0)}
    seen = episodes.transcript
    for place in range(len(episodes)):
        text = tokenizer.decode(seen.tokens[seen.offsets[place] : seen.offsets[place + 1]])
        assert (text[:6], text[6:8]) in right
        own = slice(episodes.offsets[place], episodes.offsets[place + 1])
        assert tokenizer.decode(episodes.chosen[own]) == text[6:8]
        assert np.isnan(episodes.logp[own]).all()
    assert len(episodes) < 200  # equal dialogues are learnt once
    assert f"{len(episodes)} dialogues answer the question" in told
    assert f"0 of 200 were given none, {200 - len(episodes)} repeat another" in told


def test_wrong_doors_are_not_imitated_and_the_world_is_learnt_from_them(source: str, tokenizer: Tokenizer) -> None:
    imitated, _ = laid_out(source, tokenizer)
    both, (told,) = laid_out(source, tokenizer, policy=1.0, world=0.3)
    right = {(one.text, one.door) for one in door_questions(0, seed=0)}
    assert 0 < len(imitated) < 60 and imitated.decisions == 2 * len(imitated)
    assert len(both) == 200 and both.decisions == 3 * 200 + imitated.decisions
    assert set(both.reward.tolist()) == {1.0, float(np.float32(0.3))}
    seen = imitated.transcript
    for place in range(len(imitated)):
        text = tokenizer.decode(seen.tokens[seen.offsets[place] : seen.offsets[place + 1]])
        assert (text[:6], text[6:8]) in right
    assert f"600 of them the environment's; {len(imitated)} of 200 dialogues are imitated" in told


def test_a_conversations_last_question_is_rewritten(tmp_path: Path) -> None:
    tokenizer = character_tokenizer([ALPHABET + "system"], chat_template=DEFAULT_CHAT_TEMPLATE, chat_tokens=ROLE_TOKENS)
    messages = [{"role": "system", "content": "system"}, {"role": "user", "content": "01>02:"}]
    begun, said = tokenizer.apply_chat(messages), tokenizer.encode("a.")
    tail = tokenizer.continue_chat(messages, [{"role": "user", "content": "07\n"}], answer=said)
    row = opened_doors(door_questions(0, seed=1)[:1], tokenizer)[0]
    changed = replace(
        row, prompt=json.dumps(messages), tokens=[*begun, *said, *tail], score=0.0, columns="{}",
        at=list(range(len(begun), len(begun) + 2)),
    )  # fmt: skip
    (tmp_path / "goal.py").write_text('def goal_of(turns):\n    return f"01>{turns[0][1][0]}"\n', encoding="utf-8")
    source = collected(tmp_path / "run", [changed], tokenizer)
    episodes, _ = laid_out(source, tokenizer, relabel=UserFunction(use=f"{tmp_path}/goal.py:goal_of"))
    asked = tokenizer.apply_chat([messages[0], {"role": "user", "content": "01>a"}])
    assert episodes.transcript.tokens.tolist() == [*asked, *said, *tail]
    assert episodes.chosen.tolist() == said.tolist()


FAULTS = """
def nothing(prompt):
    return None

def number(prompt):
    return 7

def fails(prompt):
    raise ValueError(prompt)

def unknown(prompt):
    return "ZZ"
"""


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("nothing", DataError, "gave no question to any of 200 dialogues"),
        ("number", UserCodeError, "returned int 7 for example 0, not text"),
        ("fails", UserCodeError, r"relabelling function .* failed with ValueError"),
        ("unknown", DataError, "no token for 'Z'"),
        ("missing", UserCodeError, "has no 'missing'"),
    ],
)
def test_a_function_that_cannot_be_used_is_named(
    source: str, tokenizer: Tokenizer, tmp_path: Path, name: str, error: type[Exception], message: str
) -> None:
    (tmp_path / "goal.py").write_text(FAULTS, encoding="utf-8")
    with pytest.raises(error, match=message):
        laid_out(source, tokenizer, relabel=UserFunction(use=f"{tmp_path}/goal.py:{name}"))


def test_dialogues_with_nothing_to_learn_are_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    rows = [row for row in opened_doors(door_questions(0, seed=1)[:20], tokenizer) if row.score == 0.0]
    wrong = collected(tmp_path / "wrong", rows, tokenizer)
    with pytest.raises(DataError, match=r"none of \d+ dialogues has a score of at least .* = 0.5"):
        laid_out(wrong, tokenizer)
    silent = [replace(row, tokens=list(row.tokens)[:-3]) for row in rows]
    with pytest.raises(DataError, match="the environment says nothing after the policy's first turn"):
        laid_out(collected(tmp_path / "silent", silent, tokenizer), tokenizer, policy=0.0, world=1.0)


def tables(source: str, **changes: Any) -> dict[str, Any]:
    return {
        "recipe": "sft", "name": "sft", "steps": 3, "batch": 16, "model": {"new": MODEL}, "task": {"source": source},
        "learner": {"lr": 3e-3}, "run": {"threads": 1}, **changes,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learn": {"policy": 0.0}}, "learn.policy = 0 and learn.world = 0 leave nothing to learn"),
        ({"learn": {"world": 0.3}, "task": {"source": "rows.jsonl"}}, "learn.world = 0.3: for collected dialogues"),
        ({"relabel": "x.py:f", "task": {"source": "rows.jsonl"}}, "relabel: for collected dialogues"),
        ({"learn": {"world": -1.0}}, "greater than or equal to 0"),
    ],
)
def test_settings_that_cannot_be_met_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        load_recipe("sft").config.model_validate(tables("stage:collect", **changes))


def test_a_function_whose_file_is_missing_is_found_before_any_work(source: str) -> None:
    entry = load_recipe("sft")
    with pytest.raises(ConfigError, match=r"relabelling function 'nowhere.py:goal_of': no such file"):
        entry.config.model_validate(tables(source, relabel="nowhere.py:goal_of")).open()


def test_a_run_learns_its_hindsight(source: str) -> None:
    entry = load_recipe("sft")
    job = entry.build(entry.config.model_validate(tables(source, steps=60, relabel="hone.text.games.doors:goal_of")))
    losses: list[float] = []

    def told(step: int, episodes: Episodes, credits: Credits, metrics: Metrics) -> None:
        losses.append(metrics["policy/loss"])

    train(job.recipe, steps=60, callback=told)
    assert losses[-1] < 0.7 * losses[0]
    assert any("dialogues answer the question" in note for note in job.warnings)
