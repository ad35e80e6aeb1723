"""What the recipes of the value-based family share: their config, who explores, the job.

Belongs here: wiring of `DqnPolicy` to Gymnasium, replay and the gradient learner. Does not: any branch about which
algorithm runs. A recipe says its `ValueMethod`: the shape of the network, the loss, the memory.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field
from torch import nn

from hone.control.networks.encoders import encoded_spaces, framed_spaces
from hone.control.networks.encoding import FrameMemoryConfig
from hone.control.networks.mlp import EncodedMlpConfig, MlpConfig, PolicySpaces
from hone.control.networks.numpy_policies import NumpyPolicy
from hone.control.networks.q_networks import PLAIN_ARCHITECTURE, DqnPolicy, QArchitecture
from hone.control.normalise import NormaliseConfig, with_normalisation
from hone.control.off_policy import (
    IterationReplayConfig,
    OffPolicyMethod,
    ReplayRunConfig,
    ScheduledExplorer,
    off_policy_parts,
)
from hone.control.phases import TdAlgorithm, optimizer_phase, polyak_updater
from hone.control.replay.priority import PriorityParams
from hone.control.replay.sharded import ShardedSampler
from hone.control.value_rows import (
    PrioritizedBuffer,
    ValueRows,
    split_value_rows,
    value_rows,
    with_recency,
    with_weight_noise,
)
from hone.core.config import Config, new_default
from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.learner.config import ReplayLearnerConfig
from hone.objectives.terms import LossTerms
from hone.run.job import RecipeParts, RunSettings

# ---------------------------------------------------------------------------------------------- configs


class LinearDecay(Config):
    """A number of the exploration that falls linearly."""

    decay_env_steps: int = Field(default=8000, ge=1)
    """Environment steps of the run, warm-up included, after which the final value is reached."""


class LinearEpsilon(LinearDecay):
    """Epsilon-greedy exploration with an epsilon that falls linearly."""

    kind: Literal["epsilon_greedy"] = "epsilon_greedy"
    """Selects this alternative."""
    start: float = Field(default=1.0, ge=0, le=1)
    """Epsilon at the end of the warm-up; the warm-up itself acts at random."""
    end: float = Field(default=0.04, ge=0, le=1)
    """Final value."""


class LinearBoltzmann(LinearDecay):
    """Softmax of the values with a temperature that falls linearly."""

    kind: Literal["boltzmann"] = "boltzmann"
    """Selects this alternative."""
    start: float = Field(default=1.0, gt=0)
    """Temperature after the warm-up, in units of the return."""
    end: float = Field(default=0.05, gt=0)
    """Final value."""


ValueExploration: TypeAlias = Annotated[LinearEpsilon | LinearBoltzmann, Field(discriminator="kind")]


class ValueNetworkConfig(EncodedMlpConfig):
    """Network that computes action values: encoder of observations, hidden layers."""

    layer_norm: bool = True
    """Normalise each hidden layer, without weights of its own, before its activation: then values that learn from their
    own targets do not grow without end (Gallici et al., 2025)."""
    memory: FrameMemoryConfig | None = None
    """The newest `frames` observations, read together; the replay buffer keeps each once."""


class ValueAlgorithm(TdAlgorithm):
    """Fields shared by the algorithm tables of the family."""

    tau = new_default(
        1.0, "Polyak coefficient of an update of the target network: target += tau * (values - target); 1 copies."
    )
    target_every: int = Field(default=1, ge=1)
    """Iterations between updates of the target network."""
    normalise_observations: bool = True
    """Standardise each dimension of the observation by running statistics that are part of the policy. Numbered
    states stay as they are."""
    average_rate: float = Field(default=0.0002, gt=0, le=1)
    """Rate of the running average of the weights per update. The average is evaluated and saved (Polyak & Juditsky,
    1992); 1: the last weights."""


class ValueRunConfig(ReplayRunConfig):
    """Action values on Gymnasium environments with finitely many actions."""

    run = new_default(RunSettings(threads=1, log_every=100, checkpoint_every=1000))
    learner = new_default(ReplayLearnerConfig(lr=3e-4, max_grad_norm=10.0, updates_per_iteration=8), "The optimizer.")
    replay: IterationReplayConfig = IterationReplayConfig()  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    """The replay buffer."""
    network: ValueNetworkConfig = ValueNetworkConfig(hidden=[256, 256], activation="relu")
    """The Q network."""

    box_recipes: ClassVar[str | None] = "sac or td3"

    def policy_spaces(self, spaces: PolicySpaces) -> PolicySpaces:
        memory = self.network.memory
        return encoded_spaces(spaces if memory is None else framed_spaces(spaces, memory.count), self.network)

    def value_method(self) -> "ValueMethod":
        """Loss, replay and network options of the recipe."""
        raise TypeError(f"{type(self).__name__} names no method")

    @classmethod
    def parts(cls) -> RecipeParts:
        return off_policy_parts(cls.value_method)

    def exploration_policy(self, policy: DqnPolicy, version: int) -> NumpyPolicy:
        """Behaviour policy of the iteration that `version` begins: the exploring policy, or random actions during
        the warm-up."""
        return policy.epsilon_greedy_policy(epsilon=1.0) if version == 0 else policy.exploring_policy()

    def method(self, spaces: PolicySpaces) -> OffPolicyMethod[Any]:
        """Networks, replay buffer, behaviour policy and target updates of a value-based method."""
        chosen, replay = self.value_method(), self.replay
        algorithm, age = chosen.algorithm, replay.half_life
        sharding = None if self.fleet is None else self.fleet.sharding(self.steps, age)
        policy = _new_policy(self, spaces, chosen)
        priorities = chosen.priorities if sharding is None else sharding.priorities
        buffer = PrioritizedBuffer(
            replay.capacity,
            steps=chosen.n_steps,
            discount=algorithm.discount,
            priorities=with_recency(priorities, age),
            frames=spaces.inputs.frames,
            sampler=None if sharding is None else ShardedSampler(replay.capacity, sharding),
        )
        updates = self.learner.optimizer_steps(1)

        def layout(transitions: Episodes, credits: Credits, done: int) -> ValueRows:
            return value_rows(policy, buffer, self.seed, transitions, credits, iteration=done // updates)

        phase = optimizer_phase(
            "values",
            chosen.objective,
            policy.values.parameters(),
            self.learner,
            prepare=partial(with_weight_noise, seed=self.seed) if policy.noise_size else None,
        )
        if priorities is not None:
            phase = replace(phase, on_micro_batch=buffer.on_micro_batch, step_metrics=buffer.finish_step)
        normalise = NormaliseConfig(observations=algorithm.normalise_observations and spaces.inputs.has_scale)
        return OffPolicyMethod(
            policy=policy,
            phases=[phase],
            layout=layout,
            credit=buffer.credit,
            buffer=buffer,
            actor=ScheduledExplorer(policy.numpy_policy(), exploration_policy=self.exploration_policy),
            split=split_value_rows,
            wrap_source=lambda source: with_normalisation(
                source,
                normalise,
                size=spaces.inputs.number_size,
                discount=algorithm.discount,
            ),
            after_step=followers(policy.values, policy.target, policy.average, algorithm, updates=updates),
            shuffle=age > 0 or priorities is not None,  # drawn in the order of the buffer, which is that of time
        )


class ScheduledValueRunConfig(ValueRunConfig):
    """Value-based config with a scheduled exploration."""

    exploration: ValueExploration = LinearEpsilon()
    """Exploration strategy."""

    def check(self) -> list[str]:
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
        return policy.boltzmann_policy(level)


def followers(
    values: nn.Module, target: nn.Module, average: nn.Module, algorithm: ValueAlgorithm, *, updates: int
) -> Callable[[nn.Module, int], None]:
    """Updates of the target network and of the average of the weights, after each update; `updates` an iteration."""
    update_target, update_average = polyak_updater([(target, values)]), polyak_updater([(average, values)])

    def after_step(_: nn.Module, number: int) -> None:
        if (number + 1) % (updates * algorithm.target_every) == 0:
            update_target(algorithm.tau)
        # Over the latest eighth of a short run's updates (Shamir & Zhang, 2013): first weights must not linger.
        update_average(max(algorithm.average_rate, 8.0 / (number + 8)))

    return after_step


def exploration_level(exploration: LinearEpsilon | LinearBoltzmann, decisions: int) -> float:
    """Epsilon or temperature after so many decisions."""
    done = min(1.0, decisions / exploration.decay_env_steps)
    return exploration.start + done * (exploration.end - exploration.start)


# ---------------------------------------------------------------------------------------------- the method


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueMethod:
    """Parts that differ between the recipes of the family."""

    algorithm: ValueAlgorithm
    """Discount factor and target network."""
    objective: Callable[[DqnPolicy, ValueRows], LossTerms]
    network_shape: QArchitecture = PLAIN_ARCHITECTURE
    """Architecture of the network."""
    n_steps: int = 1
    """That a transition covers."""
    priorities: PriorityParams | None = None
    """None: every transition is as likely to be looked at again."""


def _new_policy(config: ValueRunConfig, space: PolicySpaces, method: ValueMethod) -> DqnPolicy:
    network, shape = config.network, replace(method.network_shape, layer_norm=config.network.layer_norm)
    plain = MlpConfig(hidden=network.hidden, activation=network.activation)
    return DqnPolicy(space, plain, seed=config.seed, architecture=shape).to(config.run.device)
