"""Recipes on a log: a resumed run is the uninterrupted one, bitwise; losses are cut without a change; policies load."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from control_runs import StepRecorder, write_short_log
from recipe_runs import files, restored, saved

from hone.certify.check import build_certificate
from hone.certify.job import job_gradient_probes
from hone.control.logs.parquet import read_log
from hone.control.networks.checkpoint import load_policy
from hone.control.offline import encode_transitions
from hone.control.rows import transition_rows
from hone.core.credit import Credits
from hone.core.errors import ConfigError
from hone.learner.gradient import GradientLearner
from hone.recipes.registry import load_recipe
from hone.run.job import TrainingJob
from hone.run.loop import train

WORLDS = {"choices": "CartPole-v1", "box": "Pendulum-v1"}
CASES = [
    ("cql", "choices"),
    ("cql", "box"),
    ("iql", "choices"),
    ("iql", "box"),
    ("bcq", "choices"),
    ("bcq", "box"),
    ("bear", "box"),
    ("td3_bc", "box"),
]
SMALLER = {
    "cql": {"samples": 3},
    "bcq": {"samples": 5, "proposals": 3},
    "bear": {"samples": 5, "proposals": 3, "matched": 3},
}


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("logs")
    return {kind: write_short_log(folder, name) for kind, name in WORLDS.items()}


def job_of(recipe: str, kind: str, logs: dict[str, str], *, steps: int = 8, **more: Any) -> TrainingJob[Any]:
    entry = load_recipe(recipe)
    tables = {
        "recipe": recipe, "name": "x", "seed": 3, "steps": steps, "log": logs[kind],
        "network": {"hidden": [16], "activation": "relu"}, "batch": 32,
        "learner": {"lr": 1e-3, "updates_per_iteration": 2, "max_grad_norm": None, "lr_decay": "linear"},
        "env": {"id": WORLDS[kind]}, "evaluation": {"episodes": 2},
        "algorithm": SMALLER.get(recipe, {}),
    }  # fmt: skip
    return entry.build(entry.config.model_validate(tables | more))


@pytest.mark.parametrize(("recipe", "kind"), CASES)
def test_a_resumed_run_is_the_uninterrupted_one(
    recipe: str, kind: str, logs: dict[str, str], tmp_path: Path
) -> None:  # fmt: skip
    straight, whole = job_of(recipe, kind, logs), StepRecorder()
    train(straight.recipe, steps=8, callback=whole)
    first, begun = job_of(recipe, kind, logs), StepRecorder()
    train(first.recipe, steps=5, callback=begun)
    saved(first, tmp_path / "half")
    second = restored(job_of(recipe, kind, logs), tmp_path / "half")
    train(second.recipe, steps=8, callback=begun, first_step=6)
    assert begun.lines == whole.lines
    saved(straight, tmp_path / "one")
    saved(second, tmp_path / "two")
    assert files(tmp_path / "one") == files(tmp_path / "two")
    assert straight.evaluate is not None
    assert second.evaluate is not None
    assert straight.evaluate().metrics == second.evaluate().metrics


@pytest.mark.parametrize(("recipe", "kind"), CASES)
def test_no_loss_depends_on_how_a_batch_is_cut(recipe: str, kind: str, logs: dict[str, str]) -> None:
    entry, job = load_recipe(recipe), job_of(recipe, kind, logs)
    config = entry.config.model_validate({"recipe": recipe, "name": "x", "steps": 1, "log": logs[kind]})
    found = job_gradient_probes(job, config, own_credit=True)
    learner = job.recipe.learner
    assert isinstance(learner, GradientLearner)
    assert [trial.name for trial in found] == [phase.name for phase in learner.phases]
    checks = build_certificate(found, recipe=recipe, config_hash="").checks
    assert [check.name for check in checks if not check.passed] == []


@pytest.mark.parametrize(("recipe", "kind"), CASES)
def test_a_saved_policy_decides_as_the_trained_one(
    recipe: str, kind: str, logs: dict[str, str], tmp_path: Path
) -> None:
    job = job_of(recipe, kind, logs)
    policy = train(job.recipe, steps=2, callback=StepRecorder())
    job.save_policy(tmp_path / "policy")
    acting, other = policy.numpy_policy(), load_policy(tmp_path / "policy").numpy_policy()
    log = read_log(Path(logs[kind]))
    seen = log.episodes.observations[:6]
    np.testing.assert_array_equal(acting.best(seen), other.best(seen))
    noise = acting.noise(np.random.default_rng(0), (6,))
    chosen, logp = acting.decide(seen, noise)
    again, same = other.decide(seen, noise)
    np.testing.assert_array_equal(chosen, again)
    np.testing.assert_array_equal(logp, same)
    assert all(log.action_space.contains(one) for one in np.asarray(chosen, log.episodes.chosen.dtype))


def test_rows_are_what_the_log_says(logs: dict[str, str]) -> None:
    log = read_log(Path(logs["box"]))
    job = job_of("iql", "box", logs)
    policy = job.recipe.learner.policy
    steps = log.episodes.transitions()
    credits = Credits(advantage=steps.reward, discount=np.full(len(steps), 0.9, np.float32))
    rows = transition_rows(encode_transitions(steps, policy.spaces), credits, np.zeros((len(steps), 1), np.float32))
    assert rows.seen.mean(dim=0).abs().max() < 1e-4
    assert (rows.seen.std(dim=0) - 1).abs().max() < 1e-2
    np.testing.assert_allclose(
        rows.chosen.numpy() * 2.0, log.episodes.chosen.astype(np.float32), atol=1e-6
    )  # Pendulum's box is [-2, 2]
    assert torch.equal(rows.seen[1:][log.episodes.owner[1:] == log.episodes.owner[:-1]],
                       rows.next_seen[:-1][log.episodes.owner[1:] == log.episodes.owner[:-1]])  # fmt: skip
    pieces, order = rows.take(np.arange(5, 9)), np.array([5, 8, 7, 6])
    assert pieces.seen.data_ptr() == rows.seen[5:].data_ptr(), "rows that stand together are not copied"
    assert torch.equal(rows.take(order).seen, rows.seen[torch.from_numpy(order)])
    assert torch.equal(pieces.reward, rows.reward[5:9])


def test_a_box_recipe_refuses_finite_actions(logs: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="BEAR needs a box of actions"):
        job_of("bear", "choices", logs)
