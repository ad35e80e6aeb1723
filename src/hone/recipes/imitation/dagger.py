"""DAgger (Ross, Gordon & Bagnell, 2011): imitation in the states that the learner reaches, labelled by an expert.

Each iteration acts, asks the expert for its action in every visited state, and clones all labels so far. Behaviour
cloning of a log sees only the expert's states; mistakes lead to states without labels, and the loss grows with the
square of an episode's length. Labels in the learner's own states keep it linear.
"""

import contextlib
from functools import partial

from pydantic import Field

from hone.control.environments.make import describe_envs
from hone.control.environments.world import GymWorld
from hone.control.experts import (
    DaggerActor,
    ExpertActor,
    ExpertConfig,
    ExpertLabelledSource,
    ExpertProgram,
    open_expert,
)
from hone.control.job import open_gym_run
from hone.control.networks.actor_critic import ActorCritic
from hone.control.networks.mlp import GaussianMlpConfig, PolicySpaces
from hone.control.off_policy import OffPolicyMethod, OffPolicyRunConfig, ReplayConfig, replay_job
from hone.control.on_policy import control_parts, require_clipping
from hone.control.replay.ring import RingBuffer
from hone.control.rows import step_rows
from hone.control.spaces import gaussian_spaces, world_spaces
from hone.core.config import Config, new_default
from hone.credit.returns import reward_as_advantage
from hone.learner.config import ReplayLearnerConfig, policy_phase
from hone.recipes.offline.bc import objective
from hone.run.job import OpenedRun, RecipeSpec, RunSettings, TrainingJob, opened_run


class DaggerAlgorithm(Config):
    """Schedule of the expert's share of decisions, and the buffer of labelled states."""

    beta_decay: float = Field(default=0.5, ge=0, le=1)
    """The expert acts with probability beta_decay^i in iteration i = 0, 1, ...: always in the first; with 0 never
    afterwards."""
    replay_capacity: int = Field(default=1_000_000, ge=1)
    """Capacity of the buffer of labelled states."""
    batch: int = Field(default=256, ge=1)
    """Decisions per update."""


class DaggerConfig(OffPolicyRunConfig):
    """A policy from an expert that can be asked."""

    run = new_default(RunSettings(threads=1))
    expert: ExpertConfig
    """The expert."""
    rollout_steps: int = Field(default=100, ge=1)
    """Steps of each environment per iteration, every one of them labelled."""
    algorithm: DaggerAlgorithm = DaggerAlgorithm()
    """Schedule of the expert's share of decisions, and the buffer of labelled states."""
    network: GaussianMlpConfig = GaussianMlpConfig(hidden=[64, 64])
    """The policy."""
    learner = new_default(ReplayLearnerConfig(lr=1e-3, updates_per_iteration=50, max_grad_norm=None), "The optimizer.")

    def open(self) -> OpenedRun:
        """The expert and the environments, opened and checked; closed together. Raises HoneError."""
        with contextlib.ExitStack() as stack:
            expert, close_expert = open_expert(self.expert)
            stack.callback(close_expert)
            opened = open_gym_run(
                self,
                self.env,
                steps=self.rollout_steps,
                build=partial(_build, expert=expert),
                require=lambda self, spaces: require_clipping(self.env, spaces, self.network),
            )
            stack.callback(opened.close)
            close = stack.pop_all().close
        return opened_run(opened, lambda self, gym: gym.build(self), warnings=opened.warnings, close=close)

    def derive(self) -> dict[str, str]:
        """Figures that follow from the config, shown by `hone plan`."""
        asked = self.env.num_envs * self.rollout_steps
        where = "in a process of its own" if isinstance(self.expert, ExpertProgram) else self.expert.policy
        return {
            "expert": where,
            "states labelled": f"{self.steps} iterations x {asked} = {self.steps * asked}",
            **describe_envs(self.env),
            "updates": f"{self.learner.optimizer_steps(self.steps)} of {self.algorithm.batch} decisions",
        }


def _method(config: DaggerConfig, spaces: PolicySpaces, expert: ExpertActor) -> OffPolicyMethod[ActorCritic]:
    """Behaviour cloning of the expert's labels, in states that the expert and the learner reach by turns."""
    own = gaussian_spaces(spaces, config.network)
    policy = ActorCritic(own, config.network, seed=config.seed, critic=False).to(config.run.device)
    return OffPolicyMethod(
        policy=policy,
        phases=[policy_phase(policy, objective, config.learner)],
        layout=lambda decisions, credits, _: step_rows(decisions, credits, device=config.run.device),
        credit=reward_as_advantage,
        buffer=RingBuffer(config.algorithm.replay_capacity),
        actor=DaggerActor(
            policy.numpy_policy(), expert=expert, actions=spaces.single, beta_decay=config.algorithm.beta_decay
        ),
        wrap_source=lambda source: ExpertLabelledSource(source, expert, spaces.single),
    )


def _build(config: DaggerConfig, world: GymWorld, *, expert: ExpertActor) -> TrainingJob[ActorCritic]:
    """Training job on all labels so far, from the first iteration on."""
    replay = ReplayConfig(batch=config.algorithm.batch, warmup=1)
    return replay_job(config, world, _method(config, world_spaces(world), expert), replay)


ENTRY = RecipeSpec(
    summary="imitation of an expert that can be asked, in the states that the learner reaches",
    paper="Ross et al., A Reduction of Imitation Learning ... to No-Regret Online Learning, 2011",
    config=DaggerConfig,
    parts=control_parts(_method, source="Replay(Labelled(Live(Gymnasium)))"),
    limitation="the expert is asked about every state, also where the learner's mistakes are dangerous to make.",
)
