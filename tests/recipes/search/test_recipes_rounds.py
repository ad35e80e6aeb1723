"""Expert iteration and distillation of the best of n: rounds on the one loop, resumed bit for bit, that learn."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from recipe_runs import files, job_of, lay_out, restored, saved, settings

from hone.core.episodes import Episodes
from hone.core.errors import DataError
from hone.core.state import substate
from hone.learner.round_source import RoundLearner, RoundSource
from hone.recipes.registry import load_recipe
from hone.run.job import TrainingJob
from hone.run.loop import train

RECIPES = ("expert_iteration", "best_of_n_distillation")
ROUND = {"collect_steps": 2, "learn_steps": 3, "batch": 8}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    lay_out(tmp_path, monkeypatch)
    return tmp_path


def tables(name: str, *, steps: int, rollout: dict[str, Any] | None = None, **algorithm: Any) -> dict[str, Any]:
    made = settings("grpo", steps=steps, full=False, rollout=rollout or {})
    return made | {"recipe": name, "name": name, "learner": {"lr": 0.02}, "algorithm": ROUND | algorithm}


def told(job: TrainingJob[Any], *, steps: int, first: int = 1) -> list[dict[str, float]]:
    """All figures of each step."""
    found: list[dict[str, float]] = []

    def report(step: int, episodes: Episodes, credits: Any, metrics: Any) -> None:
        found.append({**metrics, **job.recipe.source.metrics()})
        assert all(np.isfinite(value) for value in found[-1].values())

    train(job.recipe, steps=steps, callback=report, first_step=first)
    return found


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("restart", [True, False])
def test_a_run_that_is_resumed_anywhere_is_the_same_run(name: str, restart: bool, place: Path) -> None:
    """In the middle of gathering and of learning, and at both seams; two rounds."""
    made = tables(name, steps=10, restart=restart)
    straight = job_of(name, made)
    figures = told(straight, steps=10)
    saved(straight, place / "straight")
    for stop in (1, 2, 4, 5, 7, 9):
        halfway = job_of(name, made)
        told(halfway, steps=stop)
        saved(halfway, place / f"halfway {stop}")
        resumed = restored(job_of(name, made), place / f"halfway {stop}")
        rest = told(resumed, steps=10, first=stop + 1)
        assert [without_times(one) for one in rest] == [without_times(one) for one in figures[stop:]]
        saved(resumed, place / f"resumed {stop}")
        assert files(place / f"resumed {stop}") == files(place / "straight")


def without_times(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if not name.startswith("time/")}


@pytest.mark.parametrize("name", RECIPES)
def test_it_learns(name: str, place: Path) -> None:
    """Four questions with one right letter of five each."""
    job = job_of(name, tables(name, steps=40, collect_steps=2, learn_steps=8))
    scores = [figure["reward/mean"] for figure in told(job, steps=40) if "reward/mean" in figure]
    assert len(scores) == 8
    assert np.mean(scores[-2:]) - np.mean(scores[:2]) > 0.25


def test_gathering_learns_nothing_and_learning_samples_nothing(place: Path) -> None:
    job = job_of("expert_iteration", tables("expert_iteration", steps=5))
    policy, prints = job.recipe.learner.policy, list[str]()
    figures: list[dict[str, float]] = []

    def report(step: int, episodes: Episodes, credits: Any, metrics: Any) -> None:
        prints.append(policy.fingerprint())
        figures.append({**metrics, **job.recipe.source.metrics()})

    before = policy.fingerprint()
    train(job.recipe, steps=5, callback=report)
    assert prints[:2] == [before, before]
    assert len({before, *prints}) == 4
    assert ["rollout/tokens" in figure for figure in figures] == [True, True, False, False, False]
    assert ["policy/loss" in figure for figure in figures] == [False, False, True, True, True]
    assert [figure.get("rounds/round") for figure in figures] == [None, None, 1.0, None, None]
    assert figures[2]["rounds/answers"] == 64
    (note,) = job.pop_notices()
    assert note.startswith("round 1: ") and "of 4 problems are unsolved" in note


def test_a_round_starts_from_the_first_policy_with_a_new_optimizer(place: Path) -> None:
    """The second round equals a run of its own from the first policy on the same selection."""
    job = job_of("expert_iteration", tables("expert_iteration", steps=10))
    source, learner = job.recipe.source, job.recipe.learner
    assert isinstance(source, RoundSource) and isinstance(learner, RoundLearner)
    batches: list[Episodes] = []
    credit = job.recipe.credit

    def report(step: int, episodes: Episodes, credits: Any, metrics: Any) -> None:
        if step > 7:
            batches.append(episodes)

    train(job.recipe, steps=10, callback=report)
    fresh = job_of("expert_iteration", tables("expert_iteration", steps=10)).recipe.learner
    assert isinstance(fresh, RoundLearner)
    for episodes in batches:
        fresh.learner.update(episodes, credit(episodes, fresh.values(episodes)))
    assert fresh.policy.fingerprint() == learner.policy.fingerprint()
    assert fresh.learner.updates == learner.learner.updates == 3


def test_another_first_policy_is_refused_at_a_resume(place: Path) -> None:
    made = tables("expert_iteration", steps=10)
    job = job_of("expert_iteration", made)
    told(job, steps=3)
    saved(job, place / "saved")
    other = job_of("expert_iteration", made | {"seed": 1})
    with pytest.raises(DataError, match=r"the first policy \(model.path\) is not what this run was started with"):
        restored(other, place / "saved")
    assert "first" in substate({"learner": job.recipe.learner.state()}, "learner")


def test_a_round_without_a_right_answer_is_told(place: Path) -> None:
    job = job_of("expert_iteration", tables("expert_iteration", steps=5, min_score=2.0))
    with pytest.raises(DataError, match=r"none of 64 answers to 4 problems has a score of at least 2 .*best score 1"):
        told(job, steps=5)


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("expert_iteration", {"steps": 9}, r"steps = 9 ends within a round .*= 5 steps; set steps = 5 or 10"),
        ("expert_iteration", {"learner": {"lr": 0.1, "minibatches": 3}}, r"algorithm.batch = 8 cannot be cut"),
        ("expert_iteration", {"algorithm": {"learn_steps": 1}}, r"algorithm.collect_steps\n  Field required"),
        ("best_of_n_distillation", {"rollout": {"prompts_per_step": 4, "samples_per_prompt": 1, "max_tokens": 2}},
         r"rollout.samples_per_prompt must be at least 2"),
        ("best_of_n_distillation", {"rollout": {"prompts_per_step": 4, "max_tokens": 2, "max_staleness": 1}},
         r"rollout.max_staleness = 1: the policy does not change"),
    ],
)  # fmt: skip
def test_configs_that_cannot_be_meant_are_refused(name: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        load_recipe(name).config.model_validate(tables(name, steps=10) | changes)
