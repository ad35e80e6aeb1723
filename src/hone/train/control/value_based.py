"""What the recipes of the value-based family share: their config, who explores, the job.

Belongs here: wiring of `DeepValues` to Gymnasium, replay and the gradient learner. Does not: any branch about which
algorithm runs. A recipe says its `Method`: the shape of the network, the loss, the memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import Field

from hone.core.config import Config
from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError
from hone.credit.returns import one_step
from hone.envs.gym.make import placed
from hone.envs.gym.world import GymConfig, inspect_world, open_world
from hone.models.control.actor_critic import follow
from hone.models.control.mlp import Choices, MlpConfig, Spaces
from hone.models.control.numpy_policies import ActCategorical, Acting
from hone.models.control.numpy_q import Sharpened
from hone.models.control.q_networks import PLAIN, DeepValues, Shape
from hone.objectives.terms import Terms
from hone.objectives.weights import token_mean
from hone.replay.priority import Priorities
from hone.train.config import RunConfig, RunSettings
from hone.train.control.acting import NetworkActor, Scored
from hone.train.control.experts import Demonstrations, with_demonstrations
from hone.train.control.job import JudgeConfig, control_job
from hone.train.control.phases import phase
from hone.train.control.replay_config import TurnReplayConfig
from hone.train.control.spaces import spaces_of
from hone.train.control.value_rows import Recollection, ValueRows, shaken, value_rows
from hone.train.job import Entry, Job, Parts
from hone.train.learner.config import LearnerConfig, schedule
from hone.train.learner.gradient import GradientLearner, Phase
from hone.train.loop import Recipe, Source
from hone.train.sources.live import Live
from hone.train.sources.normalise import Normalise, normalised
from hone.train.sources.replay import Replay

# ---------------------------------------------------------------------------------------------- configs


class Epsilon(Config):
    """Any action with probability epsilon, which falls evenly."""

    kind: Literal["epsilon"] = "epsilon"
    """Which exploration this is."""
    first: float = Field(default=1.0, ge=0, le=1)
    """Epsilon after the warm-up, which acts at random."""
    last: float = Field(default=0.04, ge=0, le=1)
    """Where it ends."""
    over: int = Field(default=8000, ge=1)
    """Decisions of the run, warm-up included, after which it has got there."""


class Boltzmann(Config):
    """A softmax of the values over a temperature, which falls evenly."""

    kind: Literal["boltzmann"] = "boltzmann"
    """Which exploration this is."""
    first: float = Field(default=1.0, gt=0)
    """Temperature after the warm-up, in units of the return."""
    last: float = Field(default=0.05, gt=0)
    """Where it ends."""
    over: int = Field(default=8000, ge=1)
    """Decisions of the run, warm-up included, after which it has got there."""


Exploration: TypeAlias = Annotated[Epsilon | Boltzmann, Field(discriminator="kind")]


class ValueLearner(LearnerConfig):
    """AdamW, and how many updates follow what a turn of the loop collected."""

    lr: float = Field(default=3e-4, gt=0)
    """Peak learning rate; above 1 it needs `--yes`."""
    max_grad_norm: float | None = Field(default=10.0, ge=0)
    """Gradients longer than this are shortened to it; 0 leaves them as they are."""
    minibatches: int = Field(default=8, ge=1)
    """Updates per turn of the loop."""


class ValueNetwork(MlpConfig):
    """A multilayer perceptron that says what choices are worth."""

    layer_norm: bool = True
    """Normalise each hidden layer, without weights of its own, before its activation: then values that learn from their
    own targets do not grow without end (Gallici et al., 2025)."""


class ValueAlgorithm(Config):
    """What all of them have."""

    discount: float = Field(default=0.99, ge=0, le=1)
    """Of a reward one step later. The nearer to 1, the more copies it takes until the values have settled."""
    target_every: int = Field(default=1, ge=1)
    """Turns of the loop after which the slow copy follows."""
    target_rate: float = Field(default=1.0, gt=0, le=1)
    """Share of the values that it then takes on; 1: it becomes a copy."""
    normalise_observations: bool = True
    """Mean 0 and standard deviation 1 for each number that is seen, by running statistics that are part of the policy.
    Numbered states have no scale, and stay as they are."""
    average_rate: float = Field(default=0.0002, gt=0, le=1)
    """Share of the weights that the policy takes on per update: what is judged and shipped is their running average
    (Polyak & Juditsky, 1992); 1: the last weights."""


class Turns(RunConfig):
    """Networks over finitely many actions that learn from replay, a turn at a time."""

    run: RunSettings = RunSettings(threads=1, log_every=10, checkpoint_every=100)
    """How the run is carried out."""
    env: GymConfig
    """The environments."""
    learner: ValueLearner = ValueLearner()
    """The optimizer."""
    replay: TurnReplayConfig = TurnReplayConfig()
    """The memory, and how often it is asked."""
    judge: JudgeConfig = JudgeConfig()
    """How the policy is tried."""

    @property
    def turn(self) -> int:
        """Decisions of a turn."""
        return self.replay.collect * self.env.num_envs

    def worries(self) -> list[str]:
        """What is odd about the numbers."""
        return []


class ValueRun(Turns):
    """Action values on Gymnasium environments with finitely many actions."""

    run: RunSettings = RunSettings(threads=1, log_every=100, checkpoint_every=1000)
    """How the run is carried out; its turns are short."""
    network: ValueNetwork = ValueNetwork(hidden=[256, 256], activation="relu")
    """What every choice is worth."""

    def acting(self, policy: DeepValues, version: int) -> Acting:
        """Who decides in the turn that `version` begins: the policy as it acts by itself, at random before it learned
        anything."""
        return policy.greedy(epsilon=1.0) if version == 0 else policy.exploring()


class Exploring(ValueRun):
    """The same with an exploration that a schedule lowers."""

    exploration: Exploration = Epsilon()
    """How other actions than the best are tried."""

    def worries(self) -> list[str]:
        if self.exploration.over > self.replay.warmup:
            return []
        return [
            f"exploration.over = {self.exploration.over} decisions have passed when the first update is made "
            f"(replay.warmup = {self.replay.warmup}): exploration is at its least before anything is learned"
        ]

    def acting(self, policy: DeepValues, version: int) -> Acting:
        if version == 0:
            return policy.greedy(epsilon=1.0)
        chosen = self.exploration
        level = scheduled(chosen, self.replay.warmup + version * self.turn)
        if isinstance(chosen, Epsilon):
            return policy.greedy(epsilon=level)
        actions = policy.spaces.actions
        assert isinstance(actions, Choices)
        sharpened = Sharpened(values=policy.mirror(), temperature=level)
        return ActCategorical(network=sharpened, inputs=policy.spaces.inputs, actions=actions)


def scheduled(exploration: Epsilon | Boltzmann, decisions: int) -> float:
    """Epsilon or temperature after so many decisions."""
    done = min(1.0, decisions / exploration.over)
    return exploration.first + done * (exploration.last - exploration.first)


# ---------------------------------------------------------------------------------------------- the job


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """What makes one recipe of the family differ from another."""

    algorithm: ValueAlgorithm
    """Discount and slow copy."""
    objective: Callable[[DeepValues, ValueRows], Terms]
    shape: Shape = PLAIN
    """Of the network."""
    steps: int = 1
    """That a transition covers."""
    priorities: Priorities | None = None
    """None: every transition is as likely to be looked at again."""
    demonstrations: Demonstrations | None = None
    """Mixed into what is sampled; for transitions of one step, without priorities."""


C = TypeVar("C", bound=ValueRun)


@dataclass
class Explorer:
    """Decides as `acting` says of the turn that a version begins."""

    choose: Callable[[DeepValues, int], Acting]
    actor: NetworkActor

    @property
    def version(self) -> int:
        return self.actor.version

    def publish(self, policy: DeepValues, version: int) -> None:
        self.actor.acting, self.actor.version = self.choose(policy, version), version

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
        return self.actor.noise(draws, shape)

    def decide(
        self, seen: NDArray[np.generic], noise: NDArray[np.float32]
    ) -> tuple[NDArray[np.generic], NDArray[np.float32]]:
        return self.actor.decide(seen, noise)


def value_job(config: C, *, method: Callable[[C], Method]) -> Job[DeepValues]:
    """The parts, wired. Raises ConfigError and UserCodeError for what is wrong with the environment."""
    chosen, replay = method(config), config.replay
    algorithm = chosen.algorithm
    world = open_world(config.env, steps=replay.collect, seed=config.seed)
    space = space_of(world.envs.single_observation_space, world.envs.single_action_space)
    network, shape = config.network, replace(chosen.shape, layer_norm=config.network.layer_norm)
    plain = MlpConfig(hidden=network.hidden, activation=network.activation)
    policy = DeepValues(space, plain, seed=config.seed, shape=shape).to(config.run.device)
    memory = Recollection(replay.memory, steps=chosen.steps, discount=algorithm.discount, priorities=chosen.priorities)
    updates = config.learner.optimizer_steps(1)

    def layout(transitions: Episodes, credits: Credits) -> ValueRows:
        return value_rows(policy, memory, config.seed, transitions, credits, turn=learner.updates // updates)

    def after_step(policy: DeepValues) -> None:
        if (learner.updates + 1) % (updates * algorithm.target_every) == 0:
            follow(policy.target.parameters(), policy.values.parameters(), rate=algorithm.target_rate)
        # Of the latest eighth of the updates until there are enough of them (Shamir & Zhang, 2013): the first weights
        # must not linger in a short run.
        rate = max(algorithm.average_rate, 8.0 / (learner.updates + 8))
        follow(policy.average.parameters(), policy.values.parameters(), rate=rate)

    step: Phase[DeepValues, ValueRows] = phase("values", chosen.objective, policy.values.parameters(), config.learner)
    step.hear = None if chosen.priorities is None else memory.hear
    step.prepare = partial(shaken, seed=config.seed) if policy.noise_size else None
    learner = GradientLearner(
        policy=policy,
        layout=layout,
        phases=[step],
        seed=config.seed,
        learning_rate=schedule(config.learner, config.learner.optimizer_steps(config.steps)),
        epochs=config.learner.epochs,
        minibatches=config.learner.minibatches,
        # Priorities are drawn in the order of the memory, which is that of time; demonstrations come first.
        shuffle=chosen.priorities is not None or chosen.demonstrations is not None,
        after_step=after_step,
    )
    seen: Source[DeepValues] = Scored(Live(world, Explorer(config.acting, NetworkActor(policy.acting()))), world)
    normalise = Normalise(observations=algorithm.normalise_observations and not space.inputs.one_hot)
    source = Replay(
        normalised(seen, normalise, size=space.inputs.size, discount=algorithm.discount),
        ring=with_demonstrations(memory, chosen.demonstrations, space),
        sample=replay.batch * config.learner.minibatches,
        warmup=replay.warmup,
        seed=config.seed,
    )
    recipe = Recipe(source=source, credit=memory.credit, learner=learner)
    return control_job(recipe, env=config.env, judge=config.judge, seed=config.seed, world=world)


def space_of(observation: spaces.Space[Any], action: spaces.Space[Any]) -> Spaces:
    """Raises ConfigError for actions that cannot be counted."""
    found = spaces_of(observation, action)
    if not isinstance(found.actions, Choices):
        raise ConfigError(f"a table of action values needs a finite set of actions, got {action}; take sac or td3")
    return found


def checked(config: Turns) -> list[str]:
    """Faults of the environment, before anything is allocated; an exploration that ends before anything is learned."""
    (observation, action), notes = inspect_world(config.env, seed=config.seed)
    space_of(observation, action)
    return [*notes, *config.worries()]


def derived(config: Turns) -> dict[str, str]:
    """What a config comes to."""
    replay, updates = config.replay, config.learner.optimizer_steps(1)
    return {
        "steps of the world": f"{replay.warmup} or a little more at random, and {config.steps} x {config.turn}",
        "environments": placed(config.env),
        "updates": f"{config.steps} turns x {updates} = {config.steps * updates}",
        "update": f"{replay.batch} transitions",
    }


def value_entry(
    *,
    summary: str,
    source: str,
    config: type[C],
    method: Callable[[C], Method],
    loss: Sequence[Callable[..., Any]],
    limitation: str,
    memory: str = "Replay(Live(Gymnasium))",
) -> Entry:
    """What the file of a recipe of this family offers: its method, and what people should know of it."""
    return Entry(
        summary=summary,
        source=source,
        config=config,
        build=partial(value_job, method=method),
        check=checked,
        derive=derived,
        parts=Parts(source=memory, credit=(one_step,), loss=loss, weights=(token_mean,)),
        limitation=limitation,
    )
