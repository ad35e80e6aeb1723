"""Recipes over several seats: a resumed run is the same run, each learns, and faults come before training."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from control_runs import StepRecorder

from hone.core.errors import ConfigError
from hone.core.state import substate
from hone.recipes.registry import load_recipe
from hone.run.job import EvaluationRequest, TrainingJob
from hone.run.loop import train
from hone.run.store.codec import read_state, write_state

SMALL = {"hidden": [8]}
UNEVEN = {"id": "seat_games:UnevenGame", "num_envs": 4}
TWO_STEP = {"id": "hone.control.seats.matrix_games:TwoStepGame", "num_envs": 8}
PENNIES = {"id": "hone.control.seats.matrix_games:MatchingPenniesGame", "num_envs": 8}
LEARNER = {"lr": 1e-2, "epochs": 2, "minibatches": 2}
ROLLOUT = {"network": SMALL, "rollout_steps": 8, "learner": LEARNER, "evaluation": {"episodes": 4}}
REPLAY = {
    "network": SMALL, "replay": {"collect": 4, "batch": 8, "warmup": 40}, "learner": {"lr": 1e-3},
    "evaluation": {"episodes": 4},
}  # fmt: skip
PAST = {"kind": "past", "every": 1, "latest": 0.3}
RUNS: dict[str, dict[str, Any]] = {
    "shared": {"recipe": "ippo", "env": UNEVEN, **ROLLOUT},
    "independent": {"recipe": "ippo", "env": {**UNEVEN, "sharing": "independent"}, **ROLLOUT},
    "past": {"recipe": "ippo", "env": UNEVEN, "opponents": PAST, **ROLLOUT},
    "a2c": {"recipe": "ia2c", "env": UNEVEN, "opponents": {**PAST, "kind": "pfsp"}, **ROLLOUT},
    "mappo": {"recipe": "mappo", "env": UNEVEN, **ROLLOUT},
    "mappo_groups": {"recipe": "mappo", "env": {**UNEVEN, "sharing": [["a", "c"], ["b"]]}, **ROLLOUT},
    "vdn": {"recipe": "vdn", "env": TWO_STEP, **REPLAY},
    "qmix": {"recipe": "qmix", "env": TWO_STEP, **REPLAY},
}


def config_of(tables: dict[str, Any], steps: int = 6) -> Any:
    return load_recipe(tables["recipe"]).config.model_validate({"name": "x", "seed": 3, "steps": steps, **tables})


def job_of(tables: dict[str, Any], folder: Path, steps: int = 6) -> TrainingJob[Any]:
    job = load_recipe(tables["recipe"]).build(config_of(tables, steps))
    job.open_folder(folder)
    return job


@pytest.mark.parametrize("name", RUNS)
def test_a_resumed_run_is_the_uninterrupted_one(name: str, tmp_path: Path) -> None:
    straight, whole = job_of(RUNS[name], tmp_path / "straight"), StepRecorder()
    train(straight.recipe, steps=6, callback=whole)
    first, begun = job_of(RUNS[name], tmp_path / "cut"), StepRecorder()
    train(first.recipe, steps=4, callback=begun)
    (tmp_path / "state").mkdir()
    write_state(tmp_path / "state", {"source": first.recipe.source.state(), "learner": first.recipe.learner.state()})
    first.save_policy(tmp_path / "policy")
    second, state = job_of(RUNS[name], tmp_path / "cut"), read_state(tmp_path / "state")
    second.load_policy(tmp_path / "policy")
    second.recipe.learner.restore(substate(state, "learner"))
    second.recipe.source.restore(substate(state, "source"))
    train(second.recipe, steps=6, callback=begun, first_step=5)
    assert begun.lines == whole.lines
    for job, folder in ((straight, tmp_path / "one"), (second, tmp_path / "two")):
        job.save_policy(folder)
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes(), file.name
    assert straight.evaluate is not None
    assert second.evaluate is not None
    assert straight.evaluate().metrics == second.evaluate().metrics
    for job in (straight, first, second):
        job.close()


def test_a_run_s_policy_is_evaluated_by_itself(tmp_path: Path) -> None:
    for name in ("past", "qmix", "mappo"):
        job = job_of(RUNS[name], tmp_path, steps=1)
        train(job.recipe, steps=1, callback=StepRecorder())
        job.save_policy(tmp_path / name)
        evaluate = load_recipe(RUNS[name]["recipe"]).evaluate
        assert evaluate is not None
        request = EvaluationRequest(policy=tmp_path / name, episodes=6, seed=5)
        metrics = evaluate(config_of(RUNS[name]), request)
        assert metrics["eval/episodes"] == 6
        assert metrics["eval/low"] <= metrics["eval/score"] <= metrics["eval/high"]
        job.close()


def score_of(tables: dict[str, Any], folder: Path, steps: int) -> float:
    job = job_of(tables, folder, steps)
    train(job.recipe, steps=steps, callback=StepRecorder())
    assert job.evaluate is not None
    score = job.evaluate().metrics["eval/score"]
    job.close()
    return score


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_two_step_game_pays_8_with_a_mixer_and_7_without(seed: int, tmp_path: Path) -> None:
    """Rashid et al., 2018, section 5.1: with random exploration throughout."""
    tables = {"env": TWO_STEP, "exploration": {"start": 1.0, "end": 1.0}, "evaluation": {"episodes": 2}, "seed": seed}
    assert score_of({"recipe": "qmix", **tables}, tmp_path, 300) == 8.0
    assert score_of({"recipe": "vdn", **tables}, tmp_path, 300) == 7.0


@pytest.mark.parametrize("recipe", ["ippo", "mappo"])
def test_seats_that_share_a_policy_learn_to_coordinate(recipe: str, tmp_path: Path) -> None:
    tables = {"recipe": recipe, "env": TWO_STEP, **ROLLOUT, "evaluation": {"episodes": 2}}
    score = score_of(tables, tmp_path, 40)
    assert score >= 7.0


def test_fixed_opponents_are_exploited(tmp_path: Path) -> None:
    (tmp_path / "heads.py").write_text("def play(seen, mask, seat, draws):\n    return 0\n", encoding="utf-8")
    players = [f"{tmp_path / 'heads.py'}:play"]
    tables = {
        "recipe": "ippo", "env": PENNIES, "opponents": {"kind": "fixed", "players": players}, **ROLLOUT,
        "evaluation": {"episodes": 20, "against": players},
    }  # fmt: skip
    assert score_of(tables, tmp_path, 25) == 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env": {**UNEVEN, "sharing": [["a"]]}}, "every seat must be named once; the seats are a, b, c"),
        ({"env": {**UNEVEN, "sharing": "independent"}, "opponents": PAST}, "one policy for every seat"),
        ({"opponents": {**PAST, "gate": {}}}, "the test is for two seats, and seat_games:UnevenGame has 3"),
        ({"algorithm": {"max_staleness": 1}}, "collecting ahead is for one agent"),
        ({"evaluation": {"nash_conv": True}}, "evaluation.nash_conv needs a game of OpenSpiel"),
        ({"evaluation": {"against": ["nobody", "mcts:1"]}}, "player 'nobody'"),
        ({"opponents": {"kind": "fixed", "players": ["mcts:5"]}}, "tree search needs a game of OpenSpiel"),
    ],
)
def test_what_does_not_go_together_is_told_before_the_run(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_recipe("ippo").check(config_of({**RUNS["shared"], **changes}))


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as told:
        load_recipe("ippo").check(
            config_of({**RUNS["shared"], "env": {**UNEVEN, "sharing": [["a"]]}, "algorithm": {"max_staleness": 1}})
        )
    assert len(told.value.messages) == 2


def test_a_team_needs_seats_that_move_at_once() -> None:
    with pytest.raises(ConfigError, match="seats take turns"):
        load_recipe("qmix").check(config_of({**RUNS["qmix"], "env": UNEVEN}))


def test_the_learner_s_data_are_its_own_decisions(tmp_path: Path) -> None:
    job = job_of(RUNS["past"], tmp_path)
    seen: list[Any] = []
    train(job.recipe, steps=5, callback=lambda step, episodes, credits, metrics: seen.append(episodes))
    assert all((episodes.played_by == -1).all() for episodes in seen)
    assert all(np.isfinite(episodes.logp).all() for episodes in seen)
    assert len(list((tmp_path / "opponents").iterdir())) == 5
    job.close()
