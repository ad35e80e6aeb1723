"""PPO with a curriculum: stages of the same environment, each replaced by the next once episodes succeed often enough.

Chance finds the reward of a far goal only from nearby (Florensa et al., 2017, begin near the goal and move away).
Weights, optimizer and normalisers carry over between stages; the last stage is the original environment, and
evaluations run in it.
"""

from dataclasses import replace
from functools import partial

from pydantic import Field, model_validator

from hone.core.errors import ConfigError
from hone.credit.returns import gae, standardised
from hone.envs.gym.world import GymConfig, GymWorld, inspect_world, open_world
from hone.evaluate.control.returns import evaluate_returns
from hone.models.control.actor_critic import ActorCritic
from hone.models.control.mlp import MlpConfig
from hone.objectives.policy import clipped_surrogate
from hone.objectives.value import squared_error
from hone.objectives.weights import token_mean
from hone.recipes.on_policy import ppo
from hone.train.config import RunConfig, RunSettings
from hone.train.control.acting import DropFailedEpisodes
from hone.train.control.curriculum import CurriculumConfig, CurriculumSource, stage_env
from hone.train.control.job import ControlEvaluationConfig, evaluation_result
from hone.train.job import EvaluationResult, RecipeParts, RecipeSpec, TrainingJob, checked_run
from hone.train.learner.config import LearnerConfig, require_whole_minibatches
from hone.train.sources.live import LiveSource


class PpoCurriculumConfig(RunConfig):
    """PPO, from the easiest stage to the environment as it is."""

    run: RunSettings = RunSettings(threads=1)
    """Threads, logging, checkpoints and other settings of the run; one thread is fastest for a small network."""
    env: GymConfig
    """The environments of the last stage."""
    rollout_steps: int = Field(default=64, ge=1)
    """Steps of each environment per iteration."""
    network: MlpConfig = MlpConfig()
    """Policy and critic have one each."""
    learner: LearnerConfig = LearnerConfig(lr=1e-3, epochs=4, minibatches=4, max_grad_norm=0.5)
    """The optimizer; `minibatches` per epoch."""
    algorithm: ppo.PpoAlgorithm = ppo.PpoAlgorithm(discount=0.99, gae_lambda=0.95, entropy_weight=0.01)
    """Credit and loss."""
    evaluation: ControlEvaluationConfig = ControlEvaluationConfig()
    """Evaluation of the policy, in the last stage."""
    curriculum: CurriculumConfig
    """The stages before it."""

    @model_validator(mode="after")
    def _parts_fit(self) -> "PpoCurriculumConfig":
        require_whole_minibatches(self.learner, self.env.num_envs * self.rollout_steps, "env.num_envs x rollout_steps")
        return self


def stage_config(config: PpoCurriculumConfig, stage: int) -> ppo.PpoConfig:
    """The same run in one stage."""
    kept = {name: value for name, value in config if name != "curriculum"}
    return ppo.PpoConfig.model_validate({**kept, "env": stage_env(config.env, config.curriculum, stage)})


def build(config: PpoCurriculumConfig) -> TrainingJob[ActorCritic]:
    """Build the training job. Raises ConfigError and UserCodeError for an invalid environment of the first stage."""
    job = ppo.build(stage_config(config, 0))
    inner, policy = job.recipe.source, job.recipe.learner.policy
    assert isinstance(inner, DropFailedEpisodes)
    assert isinstance(inner.source, LiveSource)
    heard: list[str] = []

    def opened(stage: int) -> GymWorld:
        env = stage_env(config.env, config.curriculum, stage)
        return open_world(env, steps=config.rollout_steps, seed=config.seed)

    def judge() -> EvaluationResult:
        played = partial(evaluate_returns, episodes=config.evaluation.episodes, seed=config.seed, warn=heard.append)
        return evaluation_result(played(policy, config.env))

    def notes() -> list[str]:
        told = [*heard, *source.notes()]
        heard.clear()
        return told

    source = CurriculumSource(live=inner.source, open_stage=opened, curriculum=config.curriculum)
    recipe = replace(job.recipe, source=source)
    return replace(job, recipe=recipe, evaluate=judge, pop_notices=notes, close=source.close)


def check(config: PpoCurriculumConfig) -> list[str]:
    """Tries every stage. Raises ConfigError where stages differ in their observation or action spaces."""
    warnings: list[str] = []
    found: list[str] = []
    for stage in range(len(config.curriculum.stages) + 1):
        spaces, told = inspect_world(stage_env(config.env, config.curriculum, stage), seed=config.seed)
        found.append(f"{spaces[0]} and {spaces[1]}")
        warnings += [warning for warning in told if warning not in warnings]
    ppo.check(stage_config(config, 0))
    other = next((stage for stage, spaces in enumerate(found) if spaces != found[-1]), None)
    if other is not None:
        raise ConfigError(
            f"curriculum.stages[{other}] = {config.curriculum.stages[other]}: what is seen and done is {found[other]} "
            f"there, and {found[-1]} in the environment as it is; one policy serves all stages, so they must agree"
        )
    return warnings


def derive(config: PpoCurriculumConfig) -> dict[str, str]:
    """Figures that follow from the config, shown by `hone plan`."""
    stages = len(config.curriculum.stages)
    asked = config.curriculum
    return {
        **ppo.derive_on_policy(stage_config(config, stages)),
        "stages": f"{stages} and the environment as it is; each passed at {asked.threshold:.0%} of {asked.window}",
    }


ENTRY = RecipeSpec(
    summary="on-policy control with a curriculum: stages passed by success",
    paper="Bengio et al., Curriculum Learning, 2009; Florensa et al., Reverse Curriculum Generation, 2017",
    config=PpoCurriculumConfig,
    open=checked_run(check, build),
    derive=derive,
    parts=RecipeParts(
        source="Staged(Live(Gymnasium))",
        credit=(standardised, gae),
        loss=(clipped_surrogate, squared_error),
        weights=(token_mean,),
    ),
    limitation="needs user-defined stages of difficulty; a run stays at a stage that it does not pass.",
)
