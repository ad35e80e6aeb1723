"""Bandit recipes: they find the best arm, log real probabilities, resume exactly, and learn from a frozen log."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from control_runs import StepRecorder

from hone.core.credit import Credits, Metrics
from hone.core.decisions import ActionSet, DecisionTable
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError
from hone.core.state import substate
from hone.decide.bandits.policy import numbered_actions
from hone.decide.bandits.saving import open_decision_policy, policy_hash
from hone.decide.joins.parquet import freeze_view
from hone.decide.joins.view import DecisionView, JoinConfig, ViewCounts
from hone.recipes.registry import load_recipe
from hone.run.job import TrainingJob
from hone.run.loop import train
from hone.run.store.codec import read_state, write_state

RECIPES = {
    "boltzmann": {"algorithm": {"temperature": 0.2}},
    "epsilon_greedy": {},
    "linucb": {},
    "squarecb": {},
    "thompson": {"model": {"kind": "linear"}},
}
"""Recipe -> what differs from its defaults."""
LINEAR = {"arms": {"kind": "linear", "arms": 4, "features": 3}}
BEST = np.array([[1.0, -1.0, 0.5], [0.0, 1.0, 0.0], [-1.0, 0.0, 1.0], [0.5, 0.5, 0.5]])
"""Weights of the arms' expected rewards in the logged world."""


def job(recipe: str, *, steps: int, **settings: Any) -> TrainingJob[Any]:
    entry = load_recipe(recipe)
    config = {"recipe": recipe, "name": "x", "seed": 101, "steps": steps, **RECIPES[recipe], **settings}
    return entry.build(entry.config.model_validate(config))


def logged_view(rows: int, *, features: bool = False) -> DecisionView:
    """Decisions of a uniform policy, with rewards linear in the context plus 0.3."""
    rng = np.random.default_rng(7)
    contexts, executed = rng.normal(size=(rows, 3)), rng.integers(0, 4, rows)
    reward = 0.3 + (contexts * BEST[executed]).sum(axis=1) + 0.1 * rng.normal(size=rows)
    known = np.arange(rows) % 10 > 0
    table = DecisionTable(
        contexts=contexts, action_sets=(ActionSet(names=("a", "b", "c", "d"), features=BEST if features else None),),
        action_set=np.zeros(rows, np.int64), executed=executed, logp=np.full(rows, np.log(0.25)),
        reward=np.where(known, reward, np.nan), known=known, at_s=np.arange(float(rows)),
        ids=tuple(map(str, range(rows))), units=("u",) * rows, versions=("v",) * rows,
    )  # fmt: skip
    nothing = np.full(rows, np.nan)
    return DecisionView(
        table=table, as_of_s=1e6, join=JoinConfig(), tenant="t", counts=ViewCounts(decisions=rows),
        first_delay_s=nothing, reward_so_far=nothing, corrected=nothing,
    )  # fmt: skip


@pytest.mark.parametrize("recipe", RECIPES)
def test_it_finds_the_best_arm_and_says_its_probabilities(recipe: str) -> None:
    logp: list[float] = []

    def record(step: int, episodes: Episodes, credits: Credits, metrics: Metrics) -> None:
        logp.extend(episodes.logp.tolist())

    built = job(recipe, steps=150, pulls=4, **LINEAR)
    train(built.recipe, steps=150, callback=record)
    assert built.evaluate is not None
    assert built.evaluate().metrics["eval/of_best"] > 0.97
    assert np.isfinite(logp).all()
    assert max(logp) <= 0.0
    assert (np.array(logp) == 0.0).all() == (recipe == "linucb")


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_resumed_bandit_is_the_uninterrupted_one(recipe: str, tmp_path: Path) -> None:
    straight, whole = job(recipe, steps=8, **LINEAR), StepRecorder()
    train(straight.recipe, steps=8, callback=whole)
    first, begun = job(recipe, steps=8, **LINEAR), StepRecorder()
    train(first.recipe, steps=5, callback=begun)
    (tmp_path / "state").mkdir()
    write_state(tmp_path / "state", {"source": first.recipe.source.state(), "learner": first.recipe.learner.state()})
    first.save_policy(tmp_path / "policy")
    second, state = job(recipe, steps=8, **LINEAR), read_state(tmp_path / "state")
    second.load_policy(tmp_path / "policy")
    second.recipe.learner.restore(substate(state, "learner"))
    second.recipe.source.restore(substate(state, "source"))
    train(second.recipe, steps=8, callback=begun, first_step=6)
    assert begun.lines == whole.lines
    assert policy_hash(second.recipe.learner.policy) == policy_hash(straight.recipe.learner.policy)


@pytest.mark.parametrize("recipe", RECIPES)
def test_it_learns_a_frozen_log_once_and_serves_what_it_learnt(recipe: str, tmp_path: Path) -> None:
    freeze_view(logged_view(400), tmp_path / "view")
    model = {"model": {"kind": "linear", "intercept": True}} if recipe == "thompson" else {}
    built = job(recipe, steps=7, log={"path": str(tmp_path / "view")}, **model)
    train(built.recipe, steps=7, callback=StepRecorder())
    assert built.recipe.learner.observed == 360
    assert built.dataset_fingerprint
    built.save_policy(tmp_path / "policy")
    policy, contexts = open_decision_policy(tmp_path / "policy"), np.random.default_rng(3).normal(size=(200, 3))
    best = policy.logp_rows(contexts, numbered_actions(4)).argmax(axis=1)
    assert (best == (contexts @ BEST.T).argmax(axis=1)).mean() > 0.9


@pytest.mark.parametrize("recipe", sorted(RECIPES.keys() - {"thompson"}))
def test_forgetting_does_not_depend_on_the_number_of_steps(recipe: str, tmp_path: Path) -> None:
    """One part, seven and one of each decision: the same belief. The discount keeps the last ten decisions or so."""
    freeze_view(logged_view(100), tmp_path / "view")
    beliefs: list[dict[str, np.ndarray]] = []
    for steps in (1, 7, 90):
        built = job(recipe, steps=steps, log={"path": str(tmp_path / "view")}, model={"discount": 0.9})
        train(built.recipe, steps=steps, callback=StepRecorder())
        beliefs.append(built.recipe.learner.model.contents().arrays)
    for name, values in beliefs[0].items():
        np.testing.assert_allclose(beliefs[1][name], values, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(beliefs[2][name], values, rtol=1e-9, atol=1e-12)
    lasting = np.trace(beliefs[0]["precision"][..., :1, :1], axis1=1, axis2=2).sum()
    assert lasting < 4 + 1 / (1 - 0.9) + 1e-9  # the prior of four arms, and weights of 1 + 0.9 + 0.81 ...


def test_actions_with_features_share_what_is_learnt(tmp_path: Path) -> None:
    freeze_view(logged_view(400, features=True), tmp_path / "view")
    built = job("linucb", steps=4, log={"path": str(tmp_path / "view")}, model={"kind": "joint"})
    train(built.recipe, steps=4, callback=StepRecorder())
    context = np.array([0.5, 1.0, -0.7])
    new = ActionSet(names=("n", "m"), features=np.array([[0.2, -0.4, 1.0], [1.0, 1.0, 0.0]]))
    assert new.features is not None
    expected = 0.3 + new.features @ context
    np.testing.assert_allclose(built.recipe.learner.model.mean(context, new), expected, atol=0.06)


def test_faults_of_a_config_are_named(tmp_path: Path) -> None:
    freeze_view(logged_view(20), tmp_path / "view")
    log = {"path": str(tmp_path / "view")}
    for settings, message in (
        ({}, "neither is given"),
        ({**LINEAR, "log": log}, "both is given"),
        ({**LINEAR, "model": {"kind": "joint"}}, "needs actions with features"),
        ({"log": log, "model": {"kind": "joint"}}, "needs actions with features"),
        ({"log": log, "steps": 19}, "has 18 decisions with a final reward"),
        ({"log": {"path": str(tmp_path / "nowhere")}}, "nowhere does not exist"),
    ):
        with pytest.raises((ConfigError, ValueError), match=message):
            job("linucb", **{"steps": 3, **settings})
