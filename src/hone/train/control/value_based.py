"""What the recipes of the value-based family share: their config, who explores, the job.

Belongs here: wiring of `DqnPolicy` to Gymnasium, replay and the gradient learner. Does not: any branch about which
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
from hone.credit.returns import one_step_target
from hone.envs.gym.make import describe_placement
from hone.envs.gym.world import GymConfig, inspect_world, open_world
from hone.models.control.actor_critic import polyak_update
from hone.models.control.mlp import DiscreteActions, MlpConfig, PolicySpaces
from hone.models.control.numpy_policies import NumpyCategoricalPolicy, NumpyPolicy
from hone.models.control.numpy_q import BoltzmannLogits
from hone.models.control.q_networks import PLAIN_ARCHITECTURE, DqnPolicy, QArchitecture
from hone.objectives.terms import LossTerms
from hone.objectives.weights import token_mean
from hone.replay.priority import PriorityParams
from hone.train.config import RunConfig, RunSettings
from hone.train.control.acting import DropFailedEpisodes, NetworkActor
from hone.train.control.experts import DemonstrationsConfig, with_demonstrations
from hone.train.control.job import ControlEvaluationConfig, control_job
from hone.train.control.phases import optimizer_phase
from hone.train.control.replay_config import IterationReplayConfig
from hone.train.control.spaces import network_spaces
from hone.train.control.value_rows import PrioritizedBuffer, ValueRows, value_rows, with_weight_noise
from hone.train.job import RecipeParts, RecipeSpec, TrainingJob, checked_run
from hone.train.learner.config import ReplayLearnerConfig, learning_rate_schedule
from hone.train.learner.gradient import GradientLearner, OptimizerPhase
from hone.train.loop import Recipe, Source
from hone.train.sources.live import LiveSource
from hone.train.sources.normalise import NormaliseConfig, with_normalisation
from hone.train.sources.replay import ReplaySource

# ---------------------------------------------------------------------------------------------- configs


class LinearEpsilon(Config):
    """Epsilon-greedy exploration with an epsilon that falls linearly."""

    kind: Literal["epsilon"] = "epsilon"
    """Selects this alternative."""
    start: float = Field(default=1.0, ge=0, le=1)
    """Epsilon at the end of the warm-up; the warm-up itself acts at random."""
    end: float = Field(default=0.04, ge=0, le=1)
    """Final value."""
    decay_env_steps: int = Field(default=8000, ge=1)
    """Environment steps of the run, warm-up included, after which the final value is reached."""


class LinearBoltzmann(Config):
    """Softmax of the values with a temperature that falls linearly."""

    kind: Literal["boltzmann"] = "boltzmann"
    """Selects this alternative."""
    start: float = Field(default=1.0, gt=0)
    """Temperature after the warm-up, in units of the return."""
    end: float = Field(default=0.05, gt=0)
    """Final value."""
    decay_env_steps: int = Field(default=8000, ge=1)
    """Environment steps of the run, warm-up included, after which the final value is reached."""


ValueExploration: TypeAlias = Annotated[LinearEpsilon | LinearBoltzmann, Field(discriminator="kind")]


class ValueLearnerConfig(ReplayLearnerConfig):
    """AdamW, and the number of updates per iteration."""

    lr: float = Field(default=3e-4, gt=0)
    """Peak learning rate; above 1 it needs `--yes`."""
    max_grad_norm: float | None = Field(default=10.0, ge=0)
    """Clip gradients to this global L2 norm; 0: no clipping."""
    updates_per_iteration: int = Field(default=8, ge=1)
    """Updates per iteration."""


class ValueNetworkConfig(MlpConfig):
    """A multilayer perceptron that computes action values."""

    layer_norm: bool = True
    """Normalise each hidden layer, without weights of its own, before its activation: then values that learn from their
    own targets do not grow without end (Gallici et al., 2025)."""


class ValueAlgorithm(Config):
    """Fields shared by the algorithm tables of the family."""

    discount: float = Field(default=0.99, ge=0, le=1)
    """Discount factor (gamma). The nearer to 1, the more target-network updates the values need to converge."""
    target_every: int = Field(default=1, ge=1)
    """Iterations between updates of the target network."""
    tau: float = Field(default=1.0, gt=0, le=1)
    """Polyak coefficient of such an update: target += tau * (values - target); 1 copies."""
    normalise_observations: bool = True
    """Standardise each dimension of the observation by running statistics that are part of the policy. Numbered
    states stay as they are."""
    average_rate: float = Field(default=0.0002, gt=0, le=1)
    """Rate of the running average of the weights per update. The average is evaluated and saved (Polyak & Juditsky,
    1992); 1: the last weights."""


class ReplayRunConfig(RunConfig):
    """Networks over finitely many actions that learn from a replay buffer, one iteration at a time."""

    run: RunSettings = RunSettings(threads=1, log_every=10, checkpoint_every=100)
    """Threads, logging, checkpoints and other settings of the run."""
    env: GymConfig
    """The environments."""
    learner: ValueLearnerConfig = ValueLearnerConfig()
    """The optimizer."""
    replay: IterationReplayConfig = IterationReplayConfig()
    """The replay buffer."""
    evaluation: ControlEvaluationConfig = ControlEvaluationConfig()
    """Evaluation of the policy."""

    @property
    def iteration_steps(self) -> int:
        """Decisions of a turn."""
        return self.replay.collect * self.env.num_envs

    def warnings(self) -> list[str]:
        """What is odd about the numbers."""
        return []


class ValueRunConfig(ReplayRunConfig):
    """Action values on Gymnasium environments with finitely many actions."""

    run: RunSettings = RunSettings(threads=1, log_every=100, checkpoint_every=1000)
    """Threads, logging, checkpoints and other settings of the run; iterations are short, so it logs and saves less
    often."""
    network: ValueNetworkConfig = ValueNetworkConfig(hidden=[256, 256], activation="relu")
    """The Q network."""

    def exploration_policy(self, policy: DqnPolicy, version: int) -> NumpyPolicy:
        """Who decides in the turn that `version` begins: the policy as it acts by itself, at random before it learned
        anything."""
        return policy.epsilon_greedy_policy(epsilon=1.0) if version == 0 else policy.exploring_policy()


class ScheduledValueRunConfig(ValueRunConfig):
    """Value-based config with a scheduled exploration."""

    exploration: ValueExploration = LinearEpsilon()
    """Exploration strategy."""

    def warnings(self) -> list[str]:
        if self.exploration.decay_env_steps > self.replay.warmup:
            return []
        return [
            f"exploration.decay_env_steps = {self.exploration.decay_env_steps} environment steps have passed at the "
            f"first update (replay.warmup = {self.replay.warmup}): exploration has ended before anything is learned"
        ]

    def exploration_policy(self, policy: DqnPolicy, version: int) -> NumpyPolicy:
        if version == 0:
            return policy.epsilon_greedy_policy(epsilon=1.0)
        chosen = self.exploration
        level = exploration_level(chosen, self.replay.warmup + version * self.iteration_steps)
        if isinstance(chosen, LinearEpsilon):
            return policy.epsilon_greedy_policy(epsilon=level)
        actions = policy.spaces.actions
        assert isinstance(actions, DiscreteActions)
        sharpened = BoltzmannLogits(values=policy.numpy_q_network(), temperature=level)
        return NumpyCategoricalPolicy(network=sharpened, inputs=policy.spaces.inputs, actions=actions)


def exploration_level(exploration: LinearEpsilon | LinearBoltzmann, decisions: int) -> float:
    """Epsilon or temperature after so many decisions."""
    done = min(1.0, decisions / exploration.decay_env_steps)
    return exploration.start + done * (exploration.end - exploration.start)


# ---------------------------------------------------------------------------------------------- the job


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueMethod:
    """What makes one recipe of the family differ from another."""

    algorithm: ValueAlgorithm
    """Discount factor and target network."""
    objective: Callable[[DqnPolicy, ValueRows], LossTerms]
    network_shape: QArchitecture = PLAIN_ARCHITECTURE
    """Architecture of the network."""
    n_steps: int = 1
    """That a transition covers."""
    priorities: PriorityParams | None = None
    """None: every transition is as likely to be looked at again."""
    demonstrations: DemonstrationsConfig | None = None
    """Mixed into what is sampled; for transitions of one step, without priorities."""


C = TypeVar("C", bound=ValueRunConfig)


@dataclass
class ScheduledExplorer:
    """Decides as `acting` says of the turn that a version begins."""

    exploration_policy: Callable[[DqnPolicy, int], NumpyPolicy]
    actor: NetworkActor

    @property
    def version(self) -> int:
        return self.actor.version

    def publish(self, policy: DqnPolicy, version: int) -> None:
        self.actor.numpy_policy, self.actor.version = self.exploration_policy(policy, version), version

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
        return self.actor.noise(draws, shape)

    def decide(
        self, seen: NDArray[np.generic], noise: NDArray[np.float32]
    ) -> tuple[NDArray[np.generic], NDArray[np.float32]]:
        return self.actor.decide(seen, noise)


def value_job(config: C, *, method: Callable[[C], ValueMethod]) -> TrainingJob[DqnPolicy]:
    """Build the training job. Raises ConfigError and UserCodeError for an invalid environment."""
    chosen, replay = method(config), config.replay
    algorithm = chosen.algorithm
    world = open_world(config.env, steps=replay.collect, seed=config.seed)
    space = finite_action_spaces(world.envs.single_observation_space, world.envs.single_action_space)
    policy = _new_policy(config, space, chosen)
    memory = PrioritizedBuffer(
        replay.capacity, steps=chosen.n_steps, discount=algorithm.discount, priorities=chosen.priorities
    )
    updates = config.learner.optimizer_steps(1)

    def layout(transitions: Episodes, credits: Credits) -> ValueRows:
        return value_rows(policy, memory, config.seed, transitions, credits, iteration=learner.updates // updates)

    def after_step(policy: DqnPolicy) -> None:
        if (learner.updates + 1) % (updates * algorithm.target_every) == 0:
            polyak_update(policy.target.parameters(), policy.values.parameters(), tau=algorithm.tau)
        # Over the latest eighth of the updates of a short run (Shamir & Zhang, 2013): first weights must not linger.
        rate = max(algorithm.average_rate, 8.0 / (learner.updates + 8))
        polyak_update(policy.average.parameters(), policy.values.parameters(), tau=rate)

    step: OptimizerPhase[DqnPolicy, ValueRows] = optimizer_phase(
        "values", chosen.objective, policy.values.parameters(), config.learner
    )
    step.on_micro_batch = None if chosen.priorities is None else memory.on_micro_batch
    step.prepare = partial(with_weight_noise, seed=config.seed) if policy.noise_size else None
    learner = GradientLearner(
        policy=policy,
        layout=layout,
        phases=[step],
        seed=config.seed,
        learning_rate=learning_rate_schedule(config.learner, config.learner.optimizer_steps(config.steps)),
        epochs=config.learner.epochs,
        minibatches=config.learner.updates_per_iteration,
        # Priorities are drawn in the order of the memory, which is that of time; demonstrations come first.
        shuffle=chosen.priorities is not None or chosen.demonstrations is not None,
        after_step=after_step,
    )
    explorer = ScheduledExplorer(config.exploration_policy, NetworkActor(policy.numpy_policy()))
    seen: Source[DqnPolicy] = DropFailedEpisodes(LiveSource(world, explorer), world)
    normalise = NormaliseConfig(observations=algorithm.normalise_observations and not space.inputs.one_hot)
    source = ReplaySource(
        with_normalisation(seen, normalise, size=space.inputs.size, discount=algorithm.discount),
        buffer=with_demonstrations(memory, chosen.demonstrations, space),
        sample_size=replay.batch * config.learner.updates_per_iteration,
        warmup=replay.warmup,
        seed=config.seed,
    )
    recipe = Recipe(source=source, credit=memory.credit, learner=learner)
    return control_job(recipe, env=config.env, evaluation=config.evaluation, seed=config.seed, world=world)


def _new_policy(config: ValueRunConfig, space: PolicySpaces, method: ValueMethod) -> DqnPolicy:
    network, shape = config.network, replace(method.network_shape, layer_norm=config.network.layer_norm)
    plain = MlpConfig(hidden=network.hidden, activation=network.activation)
    return DqnPolicy(space, plain, seed=config.seed, architecture=shape).to(config.run.device)


def finite_action_spaces(observation: spaces.Space[Any], action: spaces.Space[Any]) -> PolicySpaces:
    """Raises ConfigError for actions that cannot be counted."""
    found = network_spaces(observation, action)
    if not isinstance(found.actions, DiscreteActions):
        raise ConfigError(f"a table of action values needs a finite set of actions, got {action}; take sac or td3")
    return found


def check_replay_run(config: ReplayRunConfig) -> list[str]:
    """Faults of the environment, before anything is allocated; an exploration that ends before anything is learned."""
    (observation, action), notes = inspect_world(config.env, seed=config.seed)
    finite_action_spaces(observation, action)
    return [*notes, *config.warnings()]


def derive_replay_run(config: ReplayRunConfig) -> dict[str, str]:
    """Figures that follow from the config, shown by `hone plan`."""
    replay, updates = config.replay, config.learner.optimizer_steps(1)
    return {
        "environment steps": f"{replay.warmup} or a little more at random, and {config.steps} x "
        f"{config.iteration_steps}",
        "environments": describe_placement(config.env),
        "updates": f"{config.steps} iterations x {updates} = {config.steps * updates}",
        "update": f"{replay.batch} transitions",
    }


def value_recipe_spec(
    *,
    summary: str,
    paper: str,
    config: type[C],
    method: Callable[[C], ValueMethod],
    loss: Sequence[Callable[..., Any]],
    limitation: str,
    episode_source: str = "Replay(Live(Gymnasium))",
) -> RecipeSpec:
    """What the file of a recipe of this family offers: its method, and what people should know of it."""
    return RecipeSpec(
        summary=summary,
        paper=paper,
        config=config,
        open=checked_run(check_replay_run, partial(value_job, method=method)),
        derive=derive_replay_run,
        parts=RecipeParts(source=episode_source, credit=(one_step_target,), loss=loss, weights=(token_mean,)),
        limitation=limitation,
    )
