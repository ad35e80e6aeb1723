"""What the deterministic family shares (DDPG, TD3): who explores, the layout, the job around replay and critics.

Belongs here: wiring of `DeterministicActorCritic` to Gymnasium, replay and the gradient learner. Does not: any branch
about which algorithm runs. A recipe hands over its critics' loss and how often the policy is stepped.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from hone.core.config import Config
from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.core.random import generator
from hone.core.state import State, array, substate
from hone.credit.returns import one_step_target
from hone.envs.gym.make import describe_placement
from hone.envs.gym.world import GymConfig, inspect_world, open_world
from hone.models.control.deterministic import DeterministicActorCritic, NumpyDeterministicPolicy
from hone.models.control.mlp import MlpConfig
from hone.objectives.td import ddpg_actor_loss
from hone.objectives.terms import LossTerms
from hone.replay.ring import RingBuffer
from hone.train.config import RunConfig, RunSettings
from hone.train.control.acting import DropFailedEpisodes
from hone.train.control.job import ControlEvaluationConfig, control_job
from hone.train.control.phases import optimizer_phase, target_update
from hone.train.control.replay_config import ReplayConfig
from hone.train.control.rows import TransitionRows, transition_rows
from hone.train.control.spaces import network_spaces
from hone.train.job import TrainingJob
from hone.train.learner.config import ReplayLearnerConfig, learning_rate_schedule
from hone.train.learner.gradient import GradientLearner
from hone.train.loop import Recipe
from hone.train.sources.live import LiveSource
from hone.train.sources.replay import ReplaySource
from hone.train.sources.wrapper import SourceWrapper

P = TypeVar("P")
Floats = NDArray[np.float32]
TransitionObjective: TypeAlias = Callable[[DeterministicActorCritic, TransitionRows], LossTerms]


class GaussianNoise(Config):
    """Independent Gaussian noise for each decision."""

    kind: Literal["gaussian"] = "gaussian"
    """Selects this alternative."""
    scale: float = Field(default=0.1, ge=0)
    """Standard deviation, of actions scaled to [-1, 1]."""


class OrnsteinUhlenbeckNoise(Config):
    """Autocorrelated (Ornstein-Uhlenbeck) noise: x becomes (1 - pull) x + scale n, with n standard normal."""

    kind: Literal["ornstein_uhlenbeck"] = "ornstein_uhlenbeck"
    """Selects this alternative."""
    scale: float = Field(default=0.2, ge=0)
    """Standard deviation of the noise per step, for actions scaled to [-1, 1]; the stationary standard deviation is
    scale / sqrt(1 - (1 - pull)^2)."""
    pull: float = Field(default=0.15, gt=0, le=1)
    """Mean reversion per step; 1 is Gaussian noise."""


ActionNoiseConfig: TypeAlias = Annotated[GaussianNoise | OrnsteinUhlenbeckNoise, Field(discriminator="kind")]


class DeterministicRunConfig(RunConfig):
    """A deterministic policy on Gymnasium environments with a box of actions."""

    run: RunSettings = RunSettings(threads=1, log_every=100, checkpoint_every=5000)
    """Threads, logging, checkpoints and other settings of the run."""
    env: GymConfig
    """The environments; each is stepped once per iteration."""
    network: MlpConfig = MlpConfig(hidden=[400, 300], activation="relu")
    """The policy and each critic have one."""
    learner: ReplayLearnerConfig = ReplayLearnerConfig(lr=1e-3, max_grad_norm=None)
    """The optimizers."""
    replay: ReplayConfig = ReplayConfig(capacity=200_000, warmup=1000)
    """The replay buffer."""
    exploration: ActionNoiseConfig = GaussianNoise()
    """Exploration noise added to actions during training."""
    evaluation: ControlEvaluationConfig = ControlEvaluationConfig()
    """Evaluation of the policy."""


# ---------------------------------------------------------------------------------------------- exploring


@dataclass
class NoisyActor:
    """Decides by a deterministic policy with noise; evenly at random before it learned anything (version 0)."""

    numpy_policy: NumpyDeterministicPolicy
    exploration: GaussianNoise | OrnsteinUhlenbeckNoise
    version: int = 0
    noise_state: Floats = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    """`[B, actions]` where each environment's noise stands, for noise that remembers."""

    def publish(self, policy: DeterministicActorCritic, version: int) -> None:
        self.numpy_policy, self.version = policy.numpy_policy(), version

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        """`[T, B, actions]` on the scale [-1, 1]."""
        whole = (*shape, self.numpy_policy.actions.size)
        if self.version == 0:
            return draws.uniform(-1.0, 1.0, whole).astype(np.float32)
        fresh = np.float32(self.exploration.scale) * draws.standard_normal(whole, np.float32)
        if isinstance(self.exploration, GaussianNoise):
            return fresh
        if self.noise_state.shape != whole[1:]:
            self.noise_state = np.zeros(whole[1:], np.float32)
        for row in fresh:
            row += np.float32(1.0 - self.exploration.pull) * self.noise_state
            self.noise_state = row.copy()
        return fresh

    def decide(self, seen: NDArray[np.generic], noise: Floats) -> tuple[NDArray[np.generic], Floats]:
        if self.version > 0:
            return self.numpy_policy.decide(seen, noise)
        actions = self.numpy_policy.actions
        reach = np.asarray(actions.high, np.float64) - np.asarray(actions.low, np.float64)
        return self.numpy_policy.scale_to_box(noise), np.full(len(noise), -np.log(reach).sum(), np.float32)


@dataclass
class WithNoiseState(SourceWrapper[P]):
    """Another source, with where its actor's noise stands: a resumed run goes on from there."""

    actor: NoisyActor

    def state(self) -> State:
        return {"source": self.source.state(), "strayed": self.actor.noise_state.copy()}

    def restore(self, state: State) -> None:
        self.source.restore(substate(state, "source"))
        self.actor.noise_state = array(state, "strayed").astype(np.float32)


# ---------------------------------------------------------------------------------------------- learning


def actor_objective(policy: DeterministicActorCritic, rows: TransitionRows) -> LossTerms:
    """-Q1(s, pi(s))."""
    return ddpg_actor_loss(policy.first_q_value(rows.seen, policy.actions_of(rows.seen)))


def chosen_action_values(policy: DeterministicActorCritic, rows: TransitionRows) -> list[Tensor]:
    """What each critic thinks of what was done `[n]`."""
    return policy.q_values(rows.seen, policy.to_unit_box(rows.chosen))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeterministicMethod:
    """What makes one algorithm of the family."""

    critic_count: int
    """Number of critics."""
    critic_objective: TransitionObjective
    discount: float
    tau: float
    """Polyak coefficient of the target networks per update of theirs."""
    policy_update_every: int = 1
    """Updates of the critics per update of the policy, and of the target networks."""


def deterministic_job(
    config: DeterministicRunConfig, method: DeterministicMethod
) -> TrainingJob[DeterministicActorCritic]:
    """Build the training job. Raises ConfigError and UserCodeError for an invalid environment."""
    world = open_world(config.env, steps=1, seed=config.seed, squashed=True)
    space = network_spaces(world.envs.single_observation_space, world.envs.single_action_space)
    policy = DeterministicActorCritic(space, config.network, seed=config.seed, critics=method.critic_count)
    policy = policy.to(config.run.device)
    actions = policy.action_size

    def layout(transitions: Episodes, credits: Credits) -> TransitionRows:
        draws = generator(config.seed, config.recipe, learner.updates)
        noise = draws.standard_normal((len(transitions), actions), np.float32)
        return transition_rows(transitions, credits, noise, device=config.run.device)

    critic_phase = optimizer_phase("critic", method.critic_objective, policy.critics.parameters(), config.learner)
    actor_phase = optimizer_phase("actor", actor_objective, policy.actor.parameters(), config.learner)
    pairs = [(policy.slow_actor, policy.actor), (policy.slow_critics, policy.critics)]
    actor_phase.update_every, actor_phase.after_step = method.policy_update_every, target_update(pairs, tau=method.tau)
    learner = GradientLearner(
        policy=policy,
        layout=layout,
        phases=[critic_phase, actor_phase],
        seed=config.seed,
        learning_rate=learning_rate_schedule(config.learner, config.learner.optimizer_steps(config.steps)),
        minibatches=config.learner.updates_per_iteration,
        shuffle=False,
    )
    actor = NoisyActor(policy.numpy_policy(), config.exploration)
    source = ReplaySource(
        WithNoiseState(DropFailedEpisodes(LiveSource(world, actor), world), actor),
        buffer=RingBuffer(config.replay.capacity),
        sample_size=config.replay.batch * config.learner.updates_per_iteration,
        warmup=config.replay.warmup,
        seed=config.seed,
    )
    recipe = Recipe(source=source, credit=partial(one_step_target, discount=method.discount), learner=learner)
    return control_job(recipe, env=config.env, evaluation=config.evaluation, seed=config.seed, world=world)


def check_deterministic(config: DeterministicRunConfig) -> list[str]:
    """Warnings about the config; raises ConfigError for a run that cannot work."""
    return inspect_world(config.env, seed=config.seed, squashed=True)[1]


def derive_deterministic(config: DeterministicRunConfig) -> dict[str, str]:
    """Figures that follow from the config, shown by `hone plan`."""
    updates = config.steps * config.learner.updates_per_iteration
    return {
        "environment steps": f"{config.replay.warmup} at random + {config.steps} x {config.env.num_envs}",
        "environments": describe_placement(config.env),
        "updates": f"{config.steps} x {config.learner.updates_per_iteration} = {updates}",
        "update": f"{config.replay.batch} transitions",
    }
