"""Planning, imitation, many tasks, meta-learning: a resumed run is the uninterrupted one; commands and examples run."""

import copy
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from control_runs import StepRecorder, write_short_log

from hone.cli.main import main
from hone.control.networks.checkpoint import load_policy
from hone.core.errors import ConfigError
from hone.core.state import substate
from hone.recipes.registry import load_recipe
from hone.run.job import TrainingJob
from hone.run.loop import train
from hone.run.store.codec import read_state, write_state

ROOT = Path(__file__).resolve().parents[3]
EXPERT = str(ROOT / "examples/control/cartpole_expert.py") + ":steady"
SMALL = {"hidden": [8], "activation": "relu"}
PLAN = {"kind": "cem", "horizon": 4, "candidates": 8, "elites": 2, "iterations": 2}
PETS: dict[str, Any] = {
    "recipe": "pets",
    "env": {"id": "hone/CartPoleSwingUp-v0", "num_envs": 2, "max_episode_steps": 17},
    "rollout_steps": 5,
    "network": SMALL,
    "learner": {"lr": 1e-3, "updates_per_iteration": 3, "max_grad_norm": None},
    "planning": PLAN,
    "algorithm": {"members": 3, "batch": 4, "warmup": 11, "replay_capacity": 40, "reward": "cartpole_swing_up"},
    "evaluation": {"episodes": 2},
}
MPPI = {"kind": "mppi", "horizon": 4, "candidates": 8, "propagation": "ts_1", "particles": 2}
CONFIGS: dict[str, dict[str, Any]] = {
    "pets": PETS,
    "pets_mppi": {**PETS, "planning": MPPI, "algorithm": {"members": 2, "batch": 4, "warmup": 11}},
    "rl2": {
        "recipe": "rl2",
        "env": {"id": "hone/BanditTrials-v0", "num_envs": 6, "kwargs": {"arms": 3, "pulls": 7}},
        "rollout_steps": 14,
        "network": {"hidden": [8]},
        "learner": {"lr": 1e-2, "minibatches": 2, "epochs": 2},
        "evaluation": {"episodes": 5},
    },
    "reptile": {
        "recipe": "reptile",
        "env": {"id": "hone/SineTrials-v0", "num_envs": 3, "kwargs": {"pulls": 6}},
        "rollout_steps": 6,
        "network": {"hidden": [8]},
        "algorithm": {"inner_steps": 3},
        "evaluation": {"episodes": 2},
    },
    "multitask_ppo": {
        "recipe": "multitask_ppo",
        "tasks": [
            {"id": "CartPole-v1", "num_envs": 2},
            {"id": "CartPole-v1", "num_envs": 1, "kwargs": {"sutton_barto_reward": True}},
        ],
        "rollout_steps": 21,
        "network": {"hidden": [8, 8]},
        "learner": {"lr": 1e-3, "epochs": 2, "minibatches": 3},
        "evaluation": {"episodes": 2},
    },
    "multitask_ppo_box": {
        "recipe": "multitask_ppo",
        "tasks": [
            {"id": "Pendulum-v1", "clip_actions": True},
            {"id": "Pendulum-v1", "clip_actions": True, "kwargs": {"g": 5.0}},
        ],
        "rollout_steps": 90,
        "network": {"hidden": [8]},
        "algorithm": {"tell_trunk": True},
        "learner": {"lr": 1e-3, "epochs": 2},
        "evaluation": {"episodes": 2},
    },
    "dagger": {
        "recipe": "dagger",
        "env": {"id": "CartPole-v1", "num_envs": 2},
        "expert": {"kind": "program", "use": EXPERT},
        "rollout_steps": 20,
        "algorithm": {"beta_decay": 0.6, "batch": 16},
        "network": SMALL,
        "learner": {"lr": 1e-3, "updates_per_iteration": 3},
        "evaluation": {"episodes": 2},
    },
    "sac_shown": {
        "recipe": "sac",
        "env": {"id": "Pendulum-v1"},
        "network": SMALL,
        "learner": {"lr": 1e-3, "updates_per_iteration": 2, "max_grad_norm": None},
        "replay": {"batch": 10, "capacity": 70, "warmup": 30},
        "demonstrations": {"log": "Pendulum-v1", "share": 0.3},
        "evaluation": {"episodes": 2},
    },
    "dqn_shown": {
        "recipe": "dqn",
        "env": {"id": "CartPole-v1"},
        "network": SMALL,
        "learner": {"lr": 1e-3, "updates_per_iteration": 2},
        "replay": {"collect": 8, "batch": 10, "capacity": 70, "warmup": 30},
        "algorithm": {"demonstrations": {"log": "CartPole-v1", "share": 0.25}},
        "evaluation": {"episodes": 2},
    },
}
COMMANDS = ["pets", "rl2", "reptile", "multitask_ppo", "dagger"]


def made(name: str, steps: int, folder: Path, **changes: Any) -> TrainingJob[Any]:
    settings = copy.deepcopy({**CONFIGS[name], "name": "x", "seed": 3, "steps": steps, **changes})
    for table in (settings, settings.get("algorithm", {})):
        if "demonstrations" in table:
            shown = table["demonstrations"]
            shown["log"] = write_short_log(folder, shown["log"])
    entry = load_recipe(settings["recipe"])
    return entry.build(entry.config.model_validate(settings))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_resumed_run_is_the_uninterrupted_one(name: str, tmp_path: Path) -> None:
    straight, whole = made(name, 8, tmp_path), StepRecorder()
    train(straight.recipe, steps=8, callback=whole)

    first, begun = made(name, 8, tmp_path), StepRecorder()
    train(first.recipe, steps=5, callback=begun)
    for folder in ("state", "policy"):
        (tmp_path / folder).mkdir()
    write_state(tmp_path / "state", {"source": first.recipe.source.state(), "learner": first.recipe.learner.state()})
    first.save_policy(tmp_path / "policy")

    second = made(name, 8, tmp_path)
    state = read_state(tmp_path / "state")
    second.load_policy(tmp_path / "policy")
    second.recipe.learner.restore(substate(state, "learner"))
    second.recipe.source.restore(substate(state, "source"))
    train(second.recipe, steps=8, callback=begun, first_step=6)

    assert len(begun.lines) == len(whole.lines) == 8
    for ours, theirs in zip(begun.lines, whole.lines, strict=True):
        assert ours == theirs, f"step {ours[0]}"
    straight.save_policy(tmp_path / "one")
    second.save_policy(tmp_path / "two")
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes(), file.name
    assert straight.evaluate is not None and second.evaluate is not None
    verdict = straight.evaluate().metrics
    assert second.evaluate().metrics == verdict
    assert all(np.isfinite(value) for value in verdict.values())
    for job in (straight, first, second):
        job.close()


@pytest.mark.parametrize("name", ["pets", "rl2", "multitask_ppo", "dagger"])
def test_another_seed_is_another_run(name: str, tmp_path: Path) -> None:
    found: list[Any] = []
    for seed in (3, 3, 4):
        job, diary = made(name, 2, tmp_path, seed=seed), StepRecorder()
        train(job.recipe, steps=2, callback=diary)
        found.append(diary.lines)
        job.close()
    assert found[0] == found[1] != found[2]


def written(settings: dict[str, Any]) -> str:
    """A config as TOML, tables inline."""
    return "".join(f"{key} = {inline(value)}\n" for key, value in settings.items() if value is not None)


def inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {inline(item)}" for key, item in value.items() if item is not None) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(inline(item) for item in value) + "]"
    return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')


@pytest.mark.parametrize("name", COMMANDS)
def test_a_run_is_trained_resumed_judged_and_shown(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = written({**CONFIGS[name], "name": "it", "steps": 3})
    assert tomllib.loads(text)["steps"] == 3
    Path("it.toml").write_text(text, encoding="utf-8")
    assert main(["train", "it.toml", "--dry-run"]) == 0, capsys.readouterr().err
    assert not Path("runs").exists()
    assert main(["train", "it.toml"]) == 0, capsys.readouterr().err
    assert main(["train", "it.toml", "steps=4", "--resume"]) == 0, capsys.readouterr().err
    assert main(["show", "runs/it"]) == 0, capsys.readouterr().err
    capsys.readouterr()
    assert main(["eval", "runs/it", "--problems", "3"]) == 0, capsys.readouterr().err
    assert "eval/score" in capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_a_saved_policy_acts_without_its_recipe(name: str, tmp_path: Path) -> None:
    job = made(name, 2, tmp_path)
    train(job.recipe, steps=2, callback=StepRecorder())
    job.save_policy(tmp_path / "policy")
    policy = load_policy(tmp_path / "policy")
    seen = np.ones((3, policy.spaces.inputs.size), np.float32)
    ours, theirs = job.recipe.learner.policy.numpy_policy().best(seen), policy.numpy_policy().best(seen)
    assert len(ours) == 3
    if name != "reptile":  # which saves where to begin, not where the last task led
        np.testing.assert_array_equal(ours, theirs)
    job.close()


BUILDS: list[tuple[str, dict[str, Any], str]] = [
    ("rl2", {"rollout_steps": 10}, "no whole trials of one length"),
    ("rl2", {"network": {"hidden": [8, 8]}}, "a recurrent policy has one layer"),
    ("rl2", {"env": {"id": "Pendulum-v1"}}, "chooses among finitely many actions"),
    ("pets", {"env": {"id": "CartPole-v1"}}, "needs a box of actions"),
    ("pets", {"algorithm": {"reward": "cartpole"}}, "reward 'cartpole' is not known"),
    ("multitask_ppo", {"tasks": [{"id": "CartPole-v1"}, {"id": "MountainCar-v0"}]}, "boxes of one size"),
    ("dagger", {"expert": {"kind": "program", "use": "experts.py:f"}}, "no such file experts.py"),
    ("dagger", {"env": {"id": "Pendulum-v1", "clip_actions": False}}, "env.clip_actions = false"),
]


@pytest.mark.parametrize(("name", "changes", "said"), BUILDS)
def test_faults_name_the_key(name: str, changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        train(made(name, 1, tmp_path, **changes).recipe, steps=1, callback=StepRecorder())


def test_more_elites_than_candidates_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"planning.elites = 9 of planning.candidates = 8"):
        made("pets", 1, tmp_path, planning={**PLAN, "elites": 9})


def shortened(job: Callable[[], TrainingJob[Any]]) -> None:
    """Two steps of an example."""
    whole = job()
    diary = StepRecorder()
    train(whole.recipe, steps=2, callback=diary)
    assert len(diary.lines) == 2
    whole.close()


@pytest.mark.parametrize(
    "name", ["pets_swing_up", "rl2_bandits", "reptile_sine", "multitask_ppo_cartpoles", "dagger_cartpole"]
)
def test_examples_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    settings = tomllib.loads((ROOT / f"examples/control/{name}.toml").read_text())
    entry = load_recipe(settings["recipe"])
    config = entry.config.model_validate(settings)
    assert config.name == name
    assert list(entry.check(config)) == []
    assert all(config.derive().values())
    shortened(lambda: entry.build(config))


@pytest.mark.slow
def test_a_learnt_world_is_planned_in() -> None:
    """850 steps of the swing-up, where hanging still is paid 3.7 and SAC has paid 0.5 after 2,150."""
    config = {"recipe": "pets", "name": "x", "steps": 14, "env": {"id": "hone/CartPoleSwingUp-v0"}}
    known = {"reward": "cartpole_swing_up"}
    entry = load_recipe("pets")
    job = entry.build(entry.config.model_validate({**config, "algorithm": known, "evaluation": {"episodes": 2}}))
    train(job.recipe, steps=14, callback=StepRecorder())
    assert job.evaluate is not None
    assert job.evaluate().metrics["eval/score"] > 20
