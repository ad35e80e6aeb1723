"""The dispatcher's recipe: credit by hand, what it learns from, what it is judged by, its policy on disk."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hone.cli.main import main
from hone.control.networks.actor_critic import ChoiceScorer
from hone.control.networks.checkpoint import load_policy, save_policy
from hone.control.networks.mlp import DiscreteActions, MlpConfig, ObservationInputs, PolicySpaces
from hone.control.warehouse.dispatcher import choose_nearest, play_floor, policy_chooser
from hone.control.warehouse.floor import Floor, floor_spec
from hone.core.errors import ConfigError
from hone.recipes.on_policy.dispatch import ENTRY
from hone.run.loop import train

OPTIONS: dict[str, Any] = {"floor": ["......", ".XX...", ".XX...", "..GG.."], "robots": 2, "requests": 2, "limit": 80}


def config(**changes: Any) -> Any:
    settings = {
        "recipe": "dispatch", "name": "x", "seed": 1, "steps": 3, "rollout_steps": 8,
        "env": {"id": "hone/Warehouse-v0", "num_envs": 4, "check": False, "kwargs": OPTIONS},
        "evaluation": {"episodes": 3},
    }  # fmt: skip
    return ENTRY.config.model_validate({**settings, **changes})


def scorer(choices: int = 3, row: int = 2) -> ChoiceScorer:
    spaces = PolicySpaces(
        inputs=ObservationInputs(size=choices * row), actions=DiscreteActions(count=choices, masked=True)
    )
    return ChoiceScorer(spaces, MlpConfig(hidden=[4]), seed=2, critic=False)


def test_it_learns_from_differences_and_is_judged_by_deliveries() -> None:
    asked = config()
    assert asked.env.kwargs.get("difference", 0) == 0
    assert asked.training_env.kwargs["difference"] == 40
    assert config(algorithm={"credit": "team"}).training_env.kwargs["difference"] == 0
    job = asked.open().build(asked)
    try:
        score = job.evaluate()
        policy = job.recipe.learner.policy
        assert (policy.critic, type(policy)) == (None, ChoiceScorer)
    finally:
        job.close()
    assert score.estimate.mean == int(score.estimate.mean * 3) / 3, "whole deliveries of three episodes"
    assert score.estimate.mean > 1


def test_difference_credit_is_the_reward_over_its_spread() -> None:
    asked = config()
    job = asked.open().build(asked)
    try:
        episodes = job.recipe.source.collect()
        credits = job.recipe.credit(episodes, job.recipe.learner.values(episodes))
    finally:
        job.close()
    reward = np.asarray(episodes.reward, np.float64)
    expected = (reward - reward.mean()) / (reward.std() + 1e-8)
    np.testing.assert_allclose(credits.advantage, expected, rtol=1e-4, atol=1e-5)


def test_a_shared_critic_learns_too() -> None:
    asked = config(algorithm={"credit": "team"})
    job = asked.open().build(asked)
    try:
        train(job.recipe, steps=3, callback=_nothing)
        critic = job.recipe.learner.policy.critic
        assert critic is not None
        assert critic.layer_parameters[-1][1].detach().abs().sum() > 0
    finally:
        job.close()


def _nothing(step: int, episodes: object, credits: object, metrics: object) -> None:
    del step, episodes, credits, metrics


def test_scores_follow_their_candidates_and_illegal_ones_have_no_probability() -> None:
    policy = scorer()
    rows = torch.tensor([[1.0, 0.5, -1.0, 2.0, 0.0, 0.25]])
    swapped = torch.tensor([[-1.0, 2.0, 1.0, 0.5, 0.0, 0.25]])
    scores = policy.scores(rows)[0]
    by_hand = torch.stack([policy.actor(row[None])[0, 0] for row in rows.reshape(3, 2)])
    torch.testing.assert_close(scores, by_hand)
    torch.testing.assert_close(policy.scores(swapped)[0], scores[[1, 0, 2]])
    mask = torch.tensor([[True, False, True]])
    with torch.no_grad():
        logp = [policy.evaluate_actions(rows, torch.tensor([choice]), mask).logp.item() for choice in range(3)]
    legal = scores.detach()[[0, 2]].log_softmax(dim=0).tolist()
    assert (logp[0], logp[2]) == pytest.approx(tuple(legal))
    assert logp[1] == -np.inf
    acting = policy.numpy_policy()
    chosen, chosen_logp = acting.decide(rows.numpy(), np.array([0.999], np.float32), mask.numpy())
    assert chosen.tolist() == [2]
    assert chosen_logp[0] == pytest.approx(logp[2], abs=1e-5)


def test_a_policy_comes_back_from_its_folder(tmp_path: Path) -> None:
    policy = scorer()
    save_policy(policy, tmp_path)
    back = load_policy(tmp_path)
    rows = torch.tensor([[1.0, 0.5, -1.0, 2.0, 0.0, 0.25]])
    assert isinstance(back, ChoiceScorer)
    assert torch.equal(back.scores(rows), policy.scores(rows))


def test_rows_that_do_not_fit_are_refused() -> None:
    spaces = PolicySpaces(inputs=ObservationInputs(size=7), actions=DiscreteActions(count=3))
    with pytest.raises(ConfigError, match="observations of 7 numbers are no rows for 3 choices"):
        ChoiceScorer(spaces, MlpConfig(), seed=0)
    with pytest.raises(ConfigError, match="this floor has 16 pairs"):
        policy_chooser(scorer(), floor_spec("small", robots=4, requests=8))


def test_a_run_is_trained_resumed_evaluated_and_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    kwargs = ", ".join(f"{name} = {json.dumps(value)}" for name, value in OPTIONS.items())
    Path("dispatch.toml").write_text(
        'recipe = "dispatch"\nsteps = 2\nrollout_steps = 8\nevaluation.episodes = 2\nalgorithm.horizon = 10\n'
        f'[env]\nid = "hone/Warehouse-v0"\nnum_envs = 2\nkwargs = {{ {kwargs} }}\n'
    )
    assert main(["train", "dispatch.toml"]) == 0
    assert main(["train", "dispatch.toml", "steps=3", "--resume"]) == 0
    assert main(["eval", "dispatch", "--problems", "2"]) == 0
    assert "eval/score" in capsys.readouterr().out
    policy = load_policy(Path("runs/dispatch/checkpoints/step_00000003/policy"))
    spec = floor_spec(**OPTIONS)
    learnt = play_floor(Floor(spec), policy_chooser(policy, spec), seed=4)
    nearest = play_floor(Floor(spec), choose_nearest, seed=4)
    assert learnt.state["deliveries"] > 0.5 * nearest.state["deliveries"]
