"""PPO with potential-based reward shaping (Ng, Harada & Russell, 1999).

The potential says which states are promising; it changes how fast a policy is found, and not which policy is optimal.
`hints.naive = true` rewards the potential itself instead, as a warning: circling can become the optimal policy.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from pydantic import Field, model_validator

from hone.core.config import Config
from hone.core.episodes import Episodes
from hone.credit.potential import (
    PotentialConfig,
    build_potential,
    potential_shaped,
    state_bonus_shaped,
    with_shaped_rewards,
)
from hone.credit.returns import gae, standardised
from hone.envs.gym.world import GymConfig
from hone.models.control.actor_critic import ActorCritic
from hone.models.control.mlp import MlpConfig
from hone.objectives.policy import clipped_surrogate
from hone.objectives.value import squared_error
from hone.objectives.weights import token_mean
from hone.recipes.on_policy import ppo
from hone.train.config import RunConfig, RunSettings
from hone.train.control.job import ControlEvaluationConfig
from hone.train.job import RecipeParts, RecipeSpec, TrainingJob, checked_run
from hone.train.learner.config import LearnerConfig, require_whole_minibatches


class HintsConfig(Config):
    """Potential-based shaping of the rewards."""

    potential: PotentialConfig
    """A potential for every state."""
    naive: bool = False
    """Add the potential of the next state instead of the difference of potentials; this can change the optimal
    policy."""


class PpoShapedConfig(RunConfig):
    """PPO, with hints."""

    run: RunSettings = RunSettings(threads=1)
    """Threads, logging, checkpoints and other settings of the run; one thread is fastest for a small network."""
    env: GymConfig
    """The environments."""
    rollout_steps: int = Field(default=64, ge=1)
    """Steps of each environment per iteration."""
    network: MlpConfig = MlpConfig()
    """Policy and critic have one each."""
    learner: LearnerConfig = LearnerConfig(lr=1e-3, epochs=4, minibatches=4, max_grad_norm=0.5)
    """The optimizer; `minibatches` per epoch."""
    algorithm: ppo.PpoAlgorithm = ppo.PpoAlgorithm(discount=0.99, gae_lambda=0.95, entropy_weight=0.01)
    """Credit and loss; its discount is the potential's."""
    evaluation: ControlEvaluationConfig = ControlEvaluationConfig()
    """Evaluation of the policy, by the environment's own reward."""
    hints: HintsConfig
    """Potential function of the state."""

    @model_validator(mode="after")
    def _parts_fit(self) -> "PpoShapedConfig":
        require_whole_minibatches(self.learner, self.env.num_envs * self.rollout_steps, "env.num_envs x rollout_steps")
        return self


def without_hints(config: PpoShapedConfig) -> ppo.PpoConfig:
    """The same run without hints."""
    kept = {name: value for name, value in config if name != "hints"}
    return ppo.PpoConfig.model_validate(kept)


def shaping_wrapper(config: PpoShapedConfig) -> Callable[[Episodes], Episodes]:
    """What is done to the rewards."""
    potential = build_potential(config.hints.potential)
    if config.hints.naive:
        return partial(state_bonus_shaped, potential=potential)
    return partial(potential_shaped, potential=potential, discount=config.algorithm.discount)


def build(config: PpoShapedConfig) -> TrainingJob[ActorCritic]:
    """Build the training job. Raises ConfigError and UserCodeError for an invalid environment."""
    job = ppo.build(without_hints(config))
    credit = partial(with_shaped_rewards, credit=job.recipe.credit, shaping=shaping_wrapper(config))
    return replace(job, recipe=replace(job.recipe, credit=credit))


def check(config: PpoShapedConfig) -> list[str]:
    """Warnings about the config; raises ConfigError for a run that cannot work."""
    return ppo.check(without_hints(config))


def derive(config: PpoShapedConfig) -> dict[str, str]:
    """Figures that follow from the config, shown by `hone plan`."""
    return ppo.derive_on_policy(without_hints(config))


ENTRY = RecipeSpec(
    summary="on-policy control with potential-based reward shaping",
    paper="Ng, Harada and Russell, Policy Invariance under Reward Transformations, 1999",
    config=PpoShapedConfig,
    open=checked_run(check, build),
    derive=derive,
    parts=RecipeParts(
        source="Live(Gymnasium)",
        credit=(with_shaped_rewards, potential_shaped, standardised, gae),
        loss=(clipped_surrogate, squared_error),
        weights=(token_mean,),
    ),
    limitation="needs a user-defined potential; a wrong one slows learning, the optimal policy is unchanged.",
)
