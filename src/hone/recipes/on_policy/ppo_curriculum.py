"""PPO with a curriculum: stages of the same environment, each replaced by the next once episodes succeed often enough.

Chance finds the reward of a far goal only from nearby (Florensa et al., 2017, begin near the goal and move away).
Weights, optimizer and normalisers carry over between stages; the last stage is the original environment, and
evaluations run in it.
"""

from dataclasses import replace
from functools import partial

from hone.control import on_policy
from hone.control.acting import DropFailedEpisodes
from hone.control.curriculum import CurriculumConfig, CurriculumSource, stage_env
from hone.control.environments.world import GymWorld, inspect_world, open_world
from hone.control.job import open_gym_run
from hone.control.networks.actor_critic import ActorCritic
from hone.control.networks.mlp import PolicySpaces
from hone.control.spaces import network_spaces
from hone.core.errors import ConfigError
from hone.recipes.on_policy.ppo import PpoAlgorithm, ppo_method
from hone.run.job import OpenedRun, RecipeSpec, TrainingJob
from hone.run.loop import Source
from hone.sources.live import LiveSource


class PpoCurriculumConfig(on_policy.OnPolicyRunConfig):
    """PPO, from the easiest stage to the environment as it is; `env` and the evaluation are of the last stage."""

    algorithm: PpoAlgorithm = PpoAlgorithm(discount=0.99, gae_lambda=0.95, entropy_weight=0.01)
    """Credit and loss."""
    curriculum: CurriculumConfig
    """The stages before it."""

    def open(self) -> OpenedRun:
        """Open the first stage and try the others. Raises ConfigError where stages differ in what is seen and done."""
        later = [
            inspect_world(stage_env(self.env, self.curriculum, stage), seed=self.seed)
            for stage in range(1, len(self.curriculum.stages) + 1)
        ]

        def require(self: PpoCurriculumConfig, space: PolicySpaces) -> PolicySpaces:
            encoded = on_policy.require_supported_spaces(self.env, space, self.algorithm.normalise, self.network)
            spaces = [space, *(network_spaces(*inspected) for inspected, _ in later)]
            other = next((stage for stage, stage_spaces in enumerate(spaces) if stage_spaces != spaces[-1]), None)
            if other is not None:
                raise ConfigError(
                    f"curriculum.stages[{other}] = {self.curriculum.stages[other]}: observations are "
                    f"{spaces[other].inputs.size} numbers and actions {spaces[other].actions} there, in the "
                    f"environment as it is {spaces[-1].inputs.size} and {spaces[-1].actions}; one policy serves all "
                    "stages, so they must agree"
                )
            return encoded

        first = stage_env(self.env, self.curriculum, 0)
        opened = open_gym_run(self, first, steps=self.rollout_steps, build=_build, require=require)
        warnings = [*opened.warnings, *(warning for _, stage_warnings in later for warning in stage_warnings)]
        return replace(opened, warnings=list(dict.fromkeys(warnings)))

    def derive(self) -> dict[str, str]:
        """Figures that follow from the config, shown by `hone plan`."""
        curriculum = self.curriculum
        return {
            **super().derive(),
            "stages": f"{len(curriculum.stages)} and the environment as it is; each passed at "
            f"{curriculum.threshold:.0%} of {curriculum.window}",
        }


def _method(config: PpoCurriculumConfig) -> on_policy.OnPolicyMethod:
    """PPO's credit and loss."""
    return ppo_method(config, config.algorithm)


def _open_stage(config: PpoCurriculumConfig, stage: int) -> GymWorld:
    """The environments of a stage."""
    env = stage_env(config.env, config.curriculum, stage)
    return open_world(env, steps=config.rollout_steps, seed=config.seed)


def _build(config: PpoCurriculumConfig, world: GymWorld) -> TrainingJob[ActorCritic]:
    """Training job that begins in `world`, the first stage."""
    stages: list[CurriculumSource[ActorCritic]] = []

    def staged(source: Source[ActorCritic]) -> Source[ActorCritic]:
        assert isinstance(source, DropFailedEpisodes)
        assert isinstance(source.source, LiveSource)
        stages.append(
            CurriculumSource(live=source.source, open_stage=partial(_open_stage, config), curriculum=config.curriculum)
        )
        return stages[0]

    job = on_policy.on_policy_job(config, world, replace(_method(config), wrap_source=staged))

    def close() -> None:
        job.close()
        stages[0].close()

    return replace(job, pop_notices=lambda: [*job.pop_notices(), *stages[0].notes()], close=close)


ENTRY = RecipeSpec(
    summary="on-policy control with a curriculum: stages passed by success",
    paper="Bengio et al., Curriculum Learning, 2009; Florensa et al., Reverse Curriculum Generation, 2017",
    config=PpoCurriculumConfig,
    parts=on_policy.control_parts(ppo_method, source="Staged(Live(Gymnasium))"),
    limitation="needs user-defined stages of difficulty; a run stays at a stage that it does not pass.",
)
