"""Demonstrations with branches: at an expert's states the policy tries other turns, and a thought tells the rest."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from recipe_runs import files, job_of, restored, saved

from hone.core.errors import ConfigError, DataError
from hone.recipes.registry import load_recipe
from hone.run.job import TrainingJob
from hone.run.loop import train
from hone.text.games import doors, grid
from hone.text.games.doors import door_questions
from hone.text.games.grid import lake_maps
from hone.text.tasks.collection import FOLDER, read_collection
from hone.text.tasks.dataset import Example

ALPHABETS = {"grid:LakeWalk": grid.ALPHABET, "doors:DoorMaze": doors.ALPHABET}
LAKE, DOORS = ALPHABETS


def tables(world: str, place: Path, **changes: Any) -> dict[str, Any]:
    """Two rows in each of two steps, a world in threads, a model that knows nothing."""
    rows = [one.row() for one in (lake_maps(4, seed=1) if world == LAKE else door_questions(0, seed=1)[:4])]
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    shape = {"hidden_size": 16, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 8, "intermediate_size": 24}
    made = {
        "recipe": "collect", "name": "collect", "steps": 2, "run": {"threads": 1},
        "model": {"new": shape | {"max_positions": 96, "alphabet": ALPHABETS[world]}},
        "task": {
            "source": f"dialogue:hone.text.games.{world}", "rows": str(place / "rows.jsonl"), "turns": 10,
        },
        "rollout": {"prompts_per_step": 2, "max_tokens": 3, "stop": ["."]},
        "collect": {"branch": 3},
    }  # fmt: skip
    for table, keys in changes.items():
        made[table] = made[table] | keys
    return made


def run(job: TrainingJob[Any], folder: Path, *, steps: int = 2, first: int = 1) -> list[Example]:
    def told(step: int, episodes: Any, credits: Any, metrics: Any) -> None:
        assert all(np.isfinite(value) for value in {**metrics, **job.recipe.source.metrics()}.values())
        job.write_episodes(folder, step, episodes)

    train(job.recipe, steps=steps, callback=told, first_step=first)
    return list(read_collection(str(folder)).rows)


def texts(example: Example, job: TrainingJob[Any]) -> list[str]:
    decode = job.recipe.learner.policy.tokenizer.decode
    return [decode(one.tokens.tokens) for one in example.answers if one.tokens is not None]


@pytest.mark.parametrize("world", ALPHABETS)
def test_branches_begin_with_the_experts_turns_and_go_on_with_the_policys(world: str, tmp_path: Path) -> None:
    job = job_of("collect", tables(world, tmp_path))
    found = run(job, tmp_path / "run")
    assert len(found) == 4
    for example in found:
        way = example.columns["expert"]
        assert isinstance(way, list)
        expert, *branches = example.answers
        assert len(branches) == 3 * len(way) and expert.score == 1.0
        said = texts(example, job)
        assert expert.tokens is not None and np.isnan(expert.tokens.logp).all() and not expert.tokens.truncated
        assert all(one.tokens is not None and np.isfinite(one.tokens.logp).any() for one in branches)
        walked = said[0]
        for number, branch in enumerate(said[1:]):
            state = number // 3
            begun = walked[: _place_of_turn(example, state, walked)]
            assert branch.startswith(begun)
            logp = example.answers[1 + number].tokens.logp  # type: ignore[union-attr]
            assert int(np.isnan(logp).sum()) == 2 * state, "an expert's turn is a letter and its end"
            assert np.isfinite(logp[2 * state :]).all() and len(logp) > 2 * state


def _place_of_turn(example: Example, turn: int, walked: str) -> int:
    """Characters of the expert's dialogue before one of its turns: each turn and answer is five characters."""
    return len(str(example.prompt)) + 5 * turn


def test_the_worlds_last_word_is_kept(tmp_path: Path) -> None:
    job = job_of("collect", tables(DOORS, tmp_path))
    for example in run(job, tmp_path / "run"):
        expert = texts(example, job)[0]
        assert expert == f"{example.prompt}{example.columns['expert'][0]}{str(example.columns['goal']).zfill(2)}\n"  # type: ignore[index]


def test_a_resumed_collection_is_the_same(tmp_path: Path) -> None:
    made = tables(LAKE, tmp_path)
    run(job_of("collect", made), tmp_path / "straight")
    halfway = job_of("collect", made)
    run(halfway, tmp_path / "resumed", steps=1)
    saved(halfway, tmp_path / "checkpoint")
    run(restored(job_of("collect", made), tmp_path / "checkpoint"), tmp_path / "resumed", first=2)
    assert files(tmp_path / "resumed") == files(tmp_path / "straight")
    assert len(files(tmp_path / "straight" / FOLDER)) == 2


THOUGHTS = """
def told(state, tried, expert, holes):
    return "|".join(turn.strip(".") or "?" for turn, _ in tried)[:2] + " "

def never(state):
    return None

def fails(tried):
    raise KeyError("no thought")
"""


def test_a_thought_stands_before_the_experts_turn_at_each_state(tmp_path: Path) -> None:
    (tmp_path / "thoughts.py").write_text(THOUGHTS, encoding="utf-8")
    use = {"collect": {"branch": 3, "reflect": f"{tmp_path}/thoughts.py:told"}}
    job = job_of("collect", tables(LAKE, tmp_path, **use))
    found = run(job, tmp_path / "run")
    questions = {str(example.prompt): example for example in found}
    walked = 0
    for example in [one for one in found if " after " not in one.id]:
        way, answers = example.columns["expert"], texts(example, job)
        assert isinstance(way, list)
        for state, turn in enumerate(way):
            begun = answers[0][: _place_of_turn(example, state, answers[0])]
            reflected = questions[begun]
            own = [one for one in reflected.answers if one.score == 1.0 and one.content != answers[0][len(begun) :]]
            thought = next(str(one.content) for one in own if str(one.content).endswith(f" {turn}"))
            assert len(thought) <= len(turn) + 3
            walked += 1
    assert walked == sum(len(one.columns["expert"]) for one in found if " after " not in one.id)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "message"), [("fails", "no thought"), ("missing", "has no 'missing'")])
def test_a_function_that_fails_is_named(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "thoughts.py").write_text(THOUGHTS, encoding="utf-8")
    job = job_of("collect", tables(DOORS, tmp_path, collect={"reflect": f"{tmp_path}/thoughts.py:{name}"}))
    with pytest.raises(Exception, match=message):
        run(job, tmp_path / "run", steps=1)


def test_states_of_which_nothing_is_thought_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "thoughts.py").write_text(THOUGHTS, encoding="utf-8")
    made = tables(DOORS, tmp_path, collect={"reflect": {"use": f"{tmp_path}/thoughts.py:never"}})
    assert [len(one.answers) for one in run(job_of("collect", made), tmp_path / "run")] == [4] * 4


@pytest.mark.parametrize(
    ("world", "changes", "message"),
    [
        (DOORS, {"collect": {"continue_from": "steps"}}, "collect.continue_from and collect.branch exclude each other"),
        (DOORS, {"collect": {"branch": 0, "reflect": "x.py:f"}}, "collect.branch = 0 makes none"),
        (DOORS, {"rollout": {"samples_per_prompt": 4}}, "rollout.samples_per_prompt: with collect.branch"),
        (
            DOORS,
            {"task": {"source": "rows.jsonl", "rows": None, "turns": 8}},
            "collect.branch = 3: for dialogues",
        ),
    ],
)
def test_settings_that_cannot_be_met_are_refused(
    world: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    made = tables(world, tmp_path, **changes)
    if "rewards" not in made and changes.get("task"):
        made["rewards"] = {"functions": [{"use": "exact_match"}]}
    with pytest.raises(ValidationError, match=message):
        load_recipe("collect").config.model_validate(made)


def test_rows_without_a_demonstration_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"collect.expert = 'way': .* has no such column"):
        job_of("collect", tables(DOORS, tmp_path, collect={"expert": "way"}))
    made = tables(DOORS, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    rows[1]["expert"], rows[3]["expert"] = [], ["a.", 3]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with pytest.raises(DataError, match=r"2 rows have none: row 2 .* has \[\]; row 4 .* has \['a.', 3\]"):
        job_of("collect", made)
    entry = load_recipe("collect")
    missing = tables(DOORS, tmp_path, collect={"reflect": "nowhere.py:told"})
    with pytest.raises(ConfigError, match=r"reflecting function 'nowhere.py:told': no such file"):
        entry.config.model_validate(missing).open()
