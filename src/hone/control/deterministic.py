"""What the deterministic family shares (DDPG, TD3): who explores, the layout, the job around replay and critics.

Belongs here: wiring of `DeterministicActorCritic` to Gymnasium, replay and the gradient learner. Does not: any branch
about which algorithm runs. A recipe hands over its critics' loss and how often the policy is stepped.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from hone.control.critic_backward import deterministic_actor_with_backward
from hone.control.networks.actor_critic import DeterministicActorCritic, NumpyDeterministicPolicy
from hone.control.networks.encoders import encoded_spaces
from hone.control.networks.mlp import EncodedMlpConfig, PolicySpaces
from hone.control.networks.numpy_policies import scale_to_box
from hone.control.off_policy import OffPolicyMethod, ReplayConfig, ReplayRunConfig, rows_with_noise
from hone.control.phases import TdAlgorithm, optimizer_phase, target_update
from hone.control.replay.ring import RingBuffer
from hone.control.rows import TransitionRows
from hone.core.config import Config, new_default
from hone.core.state import State, array, substate
from hone.credit.returns import one_step_target
from hone.objectives.td import ddpg_actor_loss
from hone.objectives.terms import LossTerms
from hone.run.loop import SourceWrapper

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


class DeterministicRunConfig(ReplayRunConfig):
    """A deterministic policy on Gymnasium environments with a box of actions."""

    network: EncodedMlpConfig = EncodedMlpConfig(hidden=[400, 300], activation="relu")
    """Encoder of observations, and hidden layers of the policy and of each critic."""
    replay = new_default(ReplayConfig(capacity=200_000, warmup=1000))
    exploration: ActionNoiseConfig = GaussianNoise()
    """Noise added to actions while learning."""

    def policy_spaces(self, spaces: PolicySpaces) -> PolicySpaces:
        return encoded_spaces(spaces, self.network)


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

    def decide(
        self, seen: NDArray[np.generic], noise: Floats, mask: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.generic], Floats]:
        del mask
        if self.version > 0:
            return self.numpy_policy.decide(seen, noise)
        actions = self.numpy_policy.actions
        width = np.asarray(actions.high, np.float64) - np.asarray(actions.low, np.float64)
        return scale_to_box(noise, actions), np.full(len(noise), -np.log(width[width > 0]).sum(), np.float32)


@dataclass
class _WithNoiseState(SourceWrapper[P]):
    """Another source, with where its actor's noise stands: a resumed run goes on from there."""

    actor: NoisyActor

    def state(self) -> State:
        return {"source": self.source.state(), "strayed": self.actor.noise_state.copy()}

    def restore(self, state: State) -> None:
        self.source.restore(substate(state, "source"))
        self.actor.noise_state = array(state, "strayed").astype(np.float32)


# ---------------------------------------------------------------------------------------------- learning


def _actor_objective(policy: DeterministicActorCritic, rows: TransitionRows) -> LossTerms:
    """-Q1(s, pi(s))."""
    return ddpg_actor_loss(policy.first_q_value(rows.seen, policy.actions_of(rows.seen)))


def chosen_action_values(policy: DeterministicActorCritic, rows: TransitionRows) -> list[Tensor]:
    """Values of the chosen actions by each critic `[n]`."""
    return policy.q_values(rows.seen, policy.to_unit_box(rows.chosen))


def deterministic_method(
    config: DeterministicRunConfig,
    spaces: PolicySpaces,
    algorithm: TdAlgorithm,
    *,
    critics: int,
    critic_objective: TransitionObjective,
    critic_with_backward: TransitionObjective | None = None,
    policy_every: int = 1,
) -> OffPolicyMethod[DeterministicActorCritic]:
    """Critics, then on every `policy_every`-th update the policy, and the target networks after it.
    `critic_with_backward`: the critics' loss with its gradient written out, of observations without an encoder."""
    policy = DeterministicActorCritic(spaces, config.network, seed=config.seed, critics=critics)
    policy = policy.to(config.run.device)
    actor = NoisyActor(policy.numpy_policy(), config.exploration)
    encoders = policy.target_encoders()
    pairs = [(policy.slow_actor, policy.actor), (policy.slow_critics, policy.critics), *encoders]
    judging = [*(part for _, encoder in encoders for part in encoder.parameters()), *policy.critics.parameters()]
    critic = optimizer_phase("critic", critic_objective, judging, config.learner)
    actor_phase = optimizer_phase(
        "actor",
        _actor_objective,
        policy.actor.parameters(),
        config.learner,
        update_every=policy_every,
        after_step=target_update(pairs, tau=algorithm.tau),
    )
    if policy.encoder is None:
        critic = replace(critic, objective_with_backward=critic_with_backward)
        actor_phase = replace(actor_phase, objective_with_backward=deterministic_actor_with_backward)
    return OffPolicyMethod(
        policy=policy,
        phases=[critic, actor_phase],
        layout=rows_with_noise(config, config.recipe, policy.action_size),
        credit=partial(one_step_target, discount=algorithm.discount),
        buffer=RingBuffer(config.replay.capacity),
        actor=actor,
        wrap_source=lambda source: _WithNoiseState(source, actor),
    )
