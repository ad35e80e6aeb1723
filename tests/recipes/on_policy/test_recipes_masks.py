"""Recipes in an environment that tells masks of legal actions and stops at an illegal one: trained, judged, resumed."""

from pathlib import Path
from typing import Any

import pytest
from control_runs import StepRecorder

from hone.control.environments.world import GymConfig
from hone.control.networks.checkpoint import load_policy
from hone.core.errors import ConfigError
from hone.recipes.meta import rl2
from hone.recipes.on_policy import a2c, ppo, ppo_kl, ppo_rnd, reinforce_control, trpo
from hone.run.job import RunConfig, TrainingJob
from hone.run.loop import train

LADDER = f"{Path(__file__).parents[2] / 'control' / 'environments' / 'masked_envs.py'}:Ladder"
ENV = GymConfig(id=LADDER, num_envs=4, isolation="none")
OPTIMUM = 4.0


def job_of(config: RunConfig) -> TrainingJob[Any]:
    return config.open().build(config)


def ppo_config(**settings: Any) -> ppo.PpoConfig:
    given: dict[str, Any] = {"recipe": "ppo", "name": "x", "steps": 12, "env": ENV, "rollout_steps": 16}
    return ppo.PpoConfig.model_validate({**given, "evaluation": {"episodes": 4}, **settings})


def test_ppo_reaches_the_optimum_and_no_action_is_illegal(tmp_path: Path) -> None:
    """An illegal action raises an error in this environment, so that a run that ends has taken none."""
    config = ppo_config(learner={"lr": 0.01, "epochs": 4, "minibatches": 2}, algorithm={"entropy_weight": 0.01})
    recorder, job = StepRecorder(), job_of(config)
    train(job.recipe, steps=config.steps, callback=recorder)
    assert job.evaluate is not None
    assert job.evaluate().metrics["eval/score"] == OPTIMUM
    shares = [line[-1]["policy/entropy_share"] for line in recorder.lines]
    assert 0.9 < shares[0] <= 1.0 and shares[-1] < shares[0]
    assert recorder.lines[0][-1]["policy/ratio_max"] < 1.5
    job.save_policy(tmp_path)
    assert load_policy(tmp_path).spaces.choices.masked
    job.close()


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    whole, first, second = (job_of(ppo_config(steps=6)) for _ in range(3))
    here, there = StepRecorder(), StepRecorder()
    train(whole.recipe, steps=6, callback=here)
    train(first.recipe, steps=3, callback=there)
    first.save_policy(tmp_path)
    second.load_policy(tmp_path)
    second.recipe.learner.restore(first.recipe.learner.state())
    second.recipe.source.restore(first.recipe.source.state())
    train(second.recipe, steps=6, callback=there, first_step=4)
    assert here.lines == there.lines
    for job in (whole, first, second):
        job.close()


FAMILY = {
    "a2c": a2c.A2cConfig, "ppo_kl": ppo_kl.PpoKlConfig, "ppo_rnd": ppo_rnd.PpoRndConfig, "trpo": trpo.TrpoConfig,
    "reinforce_control": reinforce_control.ReinforceControlConfig,
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILY)
def test_the_on_policy_family_takes_legal_actions_only(name: str) -> None:
    given = {"recipe": name, "name": "x", "steps": 2, "env": ENV, "rollout_steps": 16, "evaluation": {"episodes": 2}}
    job = job_of(FAMILY[name].model_validate(given))
    train(job.recipe, steps=2, callback=StepRecorder())
    assert job.evaluate is not None
    job.evaluate()
    job.close()


def test_a_recipe_without_masks_refuses_the_environment() -> None:
    config = rl2.Rl2Config.model_validate({"recipe": "rl2", "name": "x", "steps": 1, "env": ENV})
    with pytest.raises(ConfigError, match=r"masks of legal actions are told by info.*env.mask = .off."):
        config.open()
