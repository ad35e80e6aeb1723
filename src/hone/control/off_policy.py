"""What off-policy recipes for control share: the config, the rows of a sample, the job around a replay buffer.

Belongs here: wiring of environments, replay buffer and gradient learner. Does not: any branch about which algorithm
runs. A recipe's `method` names its networks and losses (`OffPolicyMethod`); `off_policy_recipe` does the rest.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias, TypeVar

from pydantic import Field

from hone.control.acting import DropFailedEpisodes, NetworkActor
from hone.control.environments.make import describe_envs
from hone.control.environments.ray_blocks import block_transport
from hone.control.environments.world import GymConfig, GymWorld, open_world
from hone.control.fleet_learner import FleetLogConfig, with_td_priorities
from hone.control.job import ControlRunConfig, control_job, updates_per_step
from hone.control.logs.fleet import FleetSource
from hone.control.networks.actor_critic import ControlPolicy
from hone.control.networks.mlp import DiscreteActions, PolicySpaces
from hone.control.networks.numpy_policies import HasNumpyPolicy, NumpyPolicy
from hone.control.phases import LearningMethod, method_learner
from hone.control.replay.mixed import ReplayBuffer, ReplaySource
from hone.control.replay.priority import PrioritizedSampler
from hone.control.replay.ring import RingBuffer
from hone.control.replay.sharded import ShardedSampler
from hone.control.rows import TransitionRows, transition_rows
from hone.control.spaces import image_warnings, world_spaces
from hone.control.value_rows import PrioritizedBuffer, with_recency
from hone.core.config import Config, new_default
from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError
from hone.core.random import generator
from hone.credit.returns import one_step_target
from hone.learner.config import ReplayLearnerConfig
from hone.objectives.weights import token_mean
from hone.run.job import OpenedRun, RecipeParts, RunConfig, RunSettings, TrainingJob, opened_run
from hone.run.loop import Recipe, Source
from hone.run.recipe_parts import recipe_parts
from hone.sources.live import Actor, LiveSource

P = TypeVar("P", bound=ControlPolicy)


# ---------------------------------------------------------------------------------------------- configs


class ReplayConfig(Config):
    """Replay buffer: capacity, batch size and warm-up; updates follow every step of the environments."""

    batch: int = Field(default=256, ge=1)
    """Transitions per update."""
    capacity: int = Field(default=1_000_000, ge=1)
    """Capacity of the replay buffer, transitions."""
    warmup: int = Field(default=100, ge=1)
    """Decisions before the first update; taken at random, except by a policy that draws its own actions."""
    half_life: int = Field(default=0, ge=0)
    """Transitions added after which a transition is half as likely to be drawn as a new one; 0: age does not count."""

    @property
    def rollout_steps(self) -> int:
        """Steps of each environment per iteration."""
        return 1


class IterationReplayConfig(ReplayConfig):
    """Replay buffer: capacity, batch size and steps per iteration; many steps, then many updates."""

    collect: int = Field(default=16, ge=1)
    """Steps of each environment per iteration; `learner.updates_per_iteration` updates follow."""
    batch = new_default(64)
    capacity = new_default(100_000)
    warmup = new_default(1000)

    @property
    def rollout_steps(self) -> int:
        return self.collect


class OffPolicyRunConfig(ControlRunConfig):
    """Training in Gymnasium environments on samples of a replay buffer."""

    run = new_default(RunSettings(threads=1, log_every=100, checkpoint_every=5000))
    env: GymConfig
    """The environments."""
    learner: ReplayLearnerConfig = ReplayLearnerConfig(lr=1e-3, max_grad_norm=None)
    """The optimizers."""


class ReplayRunConfig(OffPolicyRunConfig):
    """Training in Gymnasium environments on uniform or prioritized samples of transitions."""

    replay: ReplayConfig = ReplayConfig()
    """The replay buffer."""
    fleet: FleetLogConfig | None = None
    """Log of a fleet of robots to learn from, in place of acting in `env`, which then evaluates alone."""

    @property
    def iteration_steps(self) -> int:
        """Environment steps of an iteration."""
        return self.replay.rollout_steps * self.env.num_envs

    @property
    def learner_samples(self) -> int:
        """Transitions that an iteration draws from the replay buffer."""
        return self.replay.batch * self.learner.updates_per_iteration

    box_recipes: ClassVar[str | None] = None
    """Recipes for boxes of actions, of a recipe that needs finitely many; None: it is for boxes."""

    def method(self, spaces: PolicySpaces) -> "OffPolicyMethod[Any]":
        """Networks, replay buffer and losses of the recipe."""
        raise TypeError(f"{type(self).__name__} names no method for {spaces}")

    def policy_spaces(self, spaces: PolicySpaces) -> PolicySpaces:
        """Spaces with the encoder of the config. Raises ConfigError where it does not fit."""
        return spaces

    @classmethod
    def parts(cls) -> RecipeParts:
        return off_policy_parts(cls.method)

    def open(self) -> OpenedRun:
        """Open and check the environments and the inputs of the replay buffer."""
        notes = self.check()
        world = open_world(
            self.env,
            steps=self.replay.rollout_steps,
            seed=self.seed,
            squashed=self.box_recipes is None,
            transport=block_transport(self.env),
            masks=self.box_recipes is not None,
            parts="observations",
        )
        with contextlib.ExitStack() as on_fault:
            on_fault.callback(world.close)
            spaces = self.policy_spaces(world_spaces(world))
            if self.box_recipes is not None and not isinstance(spaces.actions, DiscreteActions):
                raise ConfigError(
                    f"{self.recipe} needs a finite set of actions, got {spaces.actions}; use {self.box_recipes}"
                )
            wrap = self.open_replay(world)
            robots = None if self.fleet is None else self.fleet.open(spaces, self.learner_samples)
            on_fault.pop_all()

        def build(config: ReplayRunConfig, world: GymWorld) -> TrainingJob[Any]:
            method = config.method(spaces)
            ages = with_recency(None, config.replay.half_life)
            if ages is not None and isinstance(method.buffer, RingBuffer):
                method = replace(method, buffer=PrioritizedSampler(method.buffer, ages), shuffle=True)
            method = wrap(method)
            if config.fleet is not None:
                method = _of_fleet(config, config.fleet, method)
            return replay_job(config, world, method, config.replay, robots)

        notes = [*world.warnings, *notes, *image_warnings(spaces)]
        return replace(opened_run(world, build, warnings=notes, close=world.close), notes=world.notes)

    def check(self) -> list[str]:
        """Warnings about the numbers. Raises ConfigError for an environment that the algorithm cannot learn in."""
        return []

    def open_replay(self, world: GymWorld) -> "MethodWrapper":  # noqa: ARG002 - for those that ask it
        """Open what the replay buffer needs besides experience -> wrapper of the method. Raises HoneError."""
        return lambda method: method

    def describe_update(self) -> str:
        """Contents of one update's batch, for `hone plan`."""
        return f"{self.replay.batch} transitions"

    def derive(self) -> dict[str, str]:
        """Figures that follow from the config, shown by `hone plan`."""
        updates = self.learner.optimizer_steps(1)
        if self.fleet is not None:
            taken = self.fleet.steps_per_iteration(self.learner_samples)
            return {
                "steps of the log": f"{self.replay.warmup} or a little more to begin with, and {self.steps} x {taken}",
                "updates": f"{self.steps} iterations x {updates} = {self.steps * updates}",
                "samples per insert": f"{self.learner_samples} / {taken} = {self.learner_samples / taken:.4g}",
                "update": self.describe_update(),
            }
        return {
            "environment steps": f"{self.replay.warmup} or a little more to begin with, and {self.steps} x "
            f"{self.iteration_steps}",
            **describe_envs(self.env),
            "updates": f"{self.steps} iterations x {updates} = {self.steps * updates}",
            "updates per environment step": updates_per_step(updates, self.iteration_steps),
            "update": self.describe_update(),
        }


# ---------------------------------------------------------------------------------------------- the job


@dataclass
class ScheduledExplorer(NetworkActor):
    """Behaviour policy that is made of the published policy and its version: a schedule of exploration."""

    exploration_policy: Callable[[Any, int], NumpyPolicy] = field(kw_only=True)

    def publish(self, policy: HasNumpyPolicy, version: int) -> None:
        self.numpy_policy, self.version = self.exploration_policy(policy, version), version


@dataclass(frozen=True, slots=True, kw_only=True)
class OffPolicyMethod(LearningMethod[P]):
    """Parts of one off-policy algorithm, for one config and its spaces."""

    buffer: ReplayBuffer
    actor: Actor[P] | None = None
    """The behaviour policy; None: the policy that was published last."""
    wrap_source: Callable[[Source[P]], Source[P]] | None = None
    """Wrapper of the source that fills the replay buffer."""


MethodWrapper: TypeAlias = Callable[[OffPolicyMethod[Any]], OffPolicyMethod[Any]]
"""A method -> the method with another replay buffer."""


def _of_fleet(config: ReplayRunConfig, fleet: FleetLogConfig, method: OffPolicyMethod[P]) -> OffPolicyMethod[P]:
    """The method on a sharded replay buffer by TD error. Raises ConfigError for one that needs whole episodes."""
    if isinstance(method.buffer, PrioritizedBuffer):
        return method  # action values have made their own
    if not isinstance(method.buffer, RingBuffer | PrioritizedSampler):
        raise ConfigError(
            f"{config.recipe}: a fleet's log has single steps, and this run's replay buffer needs more; leave out "
            "demonstrations and hindsight, or use sac, td3, ddpg, discrete_sac or dqn"
        )
    sampler = ShardedSampler(config.replay.capacity, fleet.sharding(config.steps, config.replay.half_life))
    buffer = PrioritizedBuffer(
        config.replay.capacity, steps=1, discount=1.0, priorities=sampler.params.priorities, sampler=sampler
    )  # the method credits with its own discount
    layout, phases = with_td_priorities(method, buffer)
    return replace(method, layout=layout, phases=phases, buffer=buffer, shuffle=True)


def replay_job(
    config: OffPolicyRunConfig,
    world: GymWorld,
    method: OffPolicyMethod[P],
    replay: ReplayConfig,
    robots: FleetSource[P] | None = None,
) -> TrainingJob[P]:
    """Training job of a method: its actor, or a fleet's log, fills the replay buffer; its phases learn from samples."""
    actor = NetworkActor(method.policy.numpy_policy()) if method.actor is None else method.actor
    source: Source[P] = DropFailedEpisodes(LiveSource(world, actor), world)
    if robots is not None and isinstance(method.buffer, PrioritizedBuffer):
        source = replace(robots, measured=method.buffer.metrics)
    source = ReplaySource(
        source if method.wrap_source is None else method.wrap_source(source),
        buffer=method.buffer,
        sample_size=replay.batch * config.learner.updates_per_iteration,
        warmup=replay.warmup,
        seed=config.seed,
    )
    learner = method_learner(config, config.learner, method)
    recipe = Recipe(source=source, credit=method.credit, learner=learner)
    return control_job(recipe, env=config.env, evaluation=config.evaluation, seed=config.seed, world=world)


def rows_with_noise(config: RunConfig, stream: str, *shape: int) -> Callable[[Episodes, Credits, int], TransitionRows]:
    """Layout of transitions with standard normal numbers `[n, *shape]` of a random stream of the run."""

    def layout(transitions: Episodes, credits: Credits, updates: int) -> TransitionRows:
        noise = generator(config.seed, stream, updates).standard_normal((len(transitions), *shape), "float32")
        return transition_rows(transitions, credits, noise, device=config.run.device)

    return layout


def off_policy_parts(
    method: Callable[..., Any], *extra_loss: Callable[..., Any], source: str = "Replay(Live(Gymnasium))"
) -> RecipeParts:
    """The parts that a method of one-step targets names, and `extra_loss`."""
    parts = recipe_parts(method, *extra_loss, source=source, weights=(token_mean,))
    return replace(parts, credit=(one_step_target,))
