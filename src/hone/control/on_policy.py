"""What on-policy recipes for control share: config, credit and loss of an actor-critic, the job, the recipe's spec.

Belongs here: wiring of small networks to Gymnasium and the gradient learner. Does not: any branch about which algorithm
runs. A recipe hands over its credit and its loss.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Self, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor, nn

from hone.control.acting import DropFailedEpisodes, NetworkActor, predict_values
from hone.control.environments.make import describe_envs
from hone.control.environments.world import GymConfig, GymWorld
from hone.control.job import (
    RetrainableRunConfig,
    control_job,
    open_gym_run,
    updates_per_step,
)
from hone.control.networks.actor_critic import ActorCritic, ControlPolicy, PolicyOutput, entropy_metrics
from hone.control.networks.encoders import EncodedInputs, encoded_spaces, framed_spaces
from hone.control.networks.encoding import FrameMemoryConfig, RecurrentMemoryConfig
from hone.control.networks.factored import NumpyFactoredPolicy
from hone.control.networks.memory import MemoryActorCritic
from hone.control.networks.mlp import (
    BoxActions,
    FactoredActions,
    GaussianMlpConfig,
    MlpConfig,
    NumpyMlp,
    PolicyNetworkConfig,
    PolicySpaces,
)
from hone.control.networks.numpy_memory import NumpyMemoryPolicy
from hone.control.networks.numpy_policies import NumpyCategoricalPolicy, NumpyGaussianPolicy, NumpyPolicy
from hone.control.normalise import NormaliseConfig, with_normalisation
from hone.control.rows import StepRows, split_decision_rows, step_rows
from hone.control.sequences import predict_memory_values, sequence_rows, stack_frames
from hone.control.spaces import gaussian_spaces, world_spaces
from hone.core.config import Config, new_default
from hone.core.credit import Credits, Metrics, Values
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError
from hone.core.reduction import Reduction
from hone.core.state import Stateful
from hone.credit.returns import gae, standardised
from hone.learner.config import LearnerConfig, learning_rate_schedule, policy_phase, require_whole_minibatches
from hone.learner.gradient import GradientLearner, OptimizerPhase, TrainingRows, split_by_rows
from hone.objectives.terms import LossTerms
from hone.objectives.value import squared_error
from hone.objectives.weights import token_mean
from hone.run.job import OpenedRun, RecipeParts, RunConfig, RunSettings, TrainingJob
from hone.run.loop import Learner, Recipe, Source
from hone.run.recipe_parts import recipe_parts
from hone.sources.asynchronous import AsyncSource
from hone.sources.live import LiveSource

P = TypeVar("P", bound=ControlPolicy)
M = TypeVar("M", bound=nn.Module)
R = TypeVar("R", bound="RolloutRunConfig")
C = TypeVar("C", bound="OnPolicyRunConfig")
CriticLoss: TypeAlias = Callable[[Tensor, Tensor], LossTerms]
"""Values and their targets `[n]` -> the critic's loss."""


class RolloutRunConfig(RetrainableRunConfig):
    """A policy that acts in Gymnasium environments and learns from each rollout."""

    has_encoders: ClassVar[bool] = False
    """True if the policy reads images by an encoder, and may have a memory."""

    run = new_default(
        RunSettings(threads=1, keep_best=1),
        "Threads, logging, checkpoints and other settings of the run; one thread is fastest for a small network, and "
        "with `evaluation.every` the best policy is kept beside the last ones.",
    )
    env: GymConfig
    """The environments."""
    rollout_steps: int = Field(default=64, ge=1)
    """Steps of each environment per iteration."""
    network: MlpConfig = MlpConfig()
    """Shape of the policy's network, and of the critic's."""
    learner: LearnerConfig = LearnerConfig(lr=1e-3, epochs=4, minibatches=4, max_grad_norm=0.5)
    """The optimizer; `minibatches` per epoch."""

    uses_masks: ClassVar[bool] = False
    """Whether the recipe takes legal actions only, where the environments tell masks."""

    @property
    def training_env(self) -> GymConfig:
        """The environments to learn in: those of `env`, unless their rewards are for evaluation only."""
        return self.env

    def open_envs(
        self, build: Callable[[Any, GymWorld], TrainingJob[Any]], require: Callable[[Any, PolicySpaces], object]
    ) -> OpenedRun:
        """Open the environments for `build(config, world)`. Raises as `open_gym_run`."""
        return open_gym_run(
            self,
            self.training_env,
            steps=self.rollout_steps,
            build=build,
            require=require,
            masks=self.uses_masks,
        )

    def derive(self) -> dict[str, str]:
        """Figures that follow from the config, shown by `hone plan`."""
        batch = self.env.num_envs * self.rollout_steps
        return {
            "environment steps per iteration": f"{self.env.num_envs} environments x {self.rollout_steps} = {batch}",
            "environment steps": f"{self.steps * batch}",
            "minibatch": f"{batch} / {self.learner.minibatches} = {batch // self.learner.minibatches} steps",
            **describe_envs(self.env),
            "optimizer steps": f"{self.learner.optimizer_steps(self.steps)}",
            "updates per environment step": updates_per_step(self.learner.optimizer_steps(1), batch),
        }


class OnPolicyRunConfig(RolloutRunConfig):
    """A policy and a critic that learn from single environment steps."""

    has_encoders: ClassVar[bool] = True

    network: PolicyNetworkConfig = PolicyNetworkConfig()  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    """Encoder of observations, shape of the policy's network and of the critic's, and form of a Gaussian policy."""

    uses_masks = True

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        require_whole_minibatches(self.learner, self.env.num_envs * self.rollout_steps, "env.num_envs x rollout_steps")
        if not self.has_encoders:
            asked = (
                self.network.encoder not in {"auto", "mlp"} or self.network.encoders or self.network.module is not None
            )
            if asked or self.network.memory is not None:
                raise ValueError(
                    "network.encoder, network.encoders, network.module, network.memory: this recipe's networks have "
                    "neither encoder nor memory; leave the keys out, or take ppo, a2c or reinforce_control"
                )
        return self

    def open(self) -> OpenedRun:
        return self.open_envs(_build, _require_supported)

    def method(self) -> "OnPolicyMethod":
        """Credit and loss of the recipe."""
        raise TypeError(f"{type(self).__name__} names no method")

    @classmethod
    def parts(cls) -> RecipeParts:
        return control_parts(cls.method)


class ActorCriticAlgorithm(Config):
    """Generalised advantages, and the weights of the critic's error and of the entropy bonus."""

    discount: float = Field(default=0.99, ge=0, le=1)
    """Discount factor (gamma)."""
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    """GAE's lambda: 0 trusts the critic, 1 the returns."""
    value_weight: float = Field(default=0.5, ge=0)
    """Weight of the critic's loss."""
    entropy_weight: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus."""


class ClippedAlgorithm(ActorCriticAlgorithm):
    """PPO's numbers."""

    clip: float = Field(default=0.2, gt=0, lt=1)
    """Clip width of the probability ratio: the gradient stops outside 1 - clip .. 1 + clip."""


def standardised_gae(episodes: Episodes, values: Values, *, discount: float, gae_lambda: float) -> Credits:
    """Generalised advantages, standardised over the batch."""
    return standardised(gae(episodes, values, discount=discount, gae_lambda=gae_lambda))


def actor_critic_loss(
    actor: LossTerms,
    now: PolicyOutput,
    target: Tensor,
    value_weight: float,
    entropy_weight: float,
    critic_loss: CriticLoss | None = None,
) -> LossTerms:
    """`actor` + value_weight * the critic's loss (squared error) - entropy_weight * entropy; no error without a
    critic.
    """
    parts = [actor]
    loss = actor.loss
    if now.value is not None:
        parts.append(squared_error(now.value, target) if critic_loss is None else critic_loss(now.value, target))
        loss = torch.add(loss, parts[1].loss, alpha=value_weight)
    if entropy_weight:
        loss = torch.sub(loss, now.entropy(), alpha=entropy_weight)

    def metrics() -> dict[str, Tensor]:
        every = {name: value for part in parts for name, value in part.metrics.items()}
        return {**every, **entropy_metrics(now.entropy().detach(), now.mask)}

    return LossTerms(loss=loss, compute_metrics=metrics)


@dataclass
class _SnapshotActor(NetworkActor):
    """Decides by weights that change on publication only, so that a thread may act while the policy learns."""

    def publish(self, policy: ActorCritic, version: int) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.numpy_policy, self.version = _snapshot(policy.numpy_policy()), version


def _snapshot(acting: NumpyPolicy) -> NumpyPolicy:
    if isinstance(acting, NumpyMemoryPolicy):
        return copy.deepcopy(acting)
    if isinstance(acting, NumpyCategoricalPolicy | NumpyGaussianPolicy | NumpyFactoredPolicy):
        network = acting.network
        assert isinstance(network, NumpyMlp)
        layers = tuple((weight.copy(order="K"), bias.copy()) for weight, bias in network.layers)
        acting = replace(acting, network=replace(network, layers=layers))
        if isinstance(acting.inputs, EncodedInputs):
            acting = replace(acting, inputs=acting.inputs.frozen_copy())
    has_deviations = isinstance(acting, NumpyGaussianPolicy | NumpyFactoredPolicy)
    return replace(acting, log_std=acting.log_std.copy()) if has_deviations else acting


@dataclass(frozen=True, slots=True, kw_only=True)
class OnPolicyMethod:
    """Parts of one algorithm of the family."""

    credit: Callable[[Episodes, Values], Credits]
    objective: Callable[[ActorCritic, StepRows], LossTerms]
    normalise: NormaliseConfig
    discount: float
    """Discount factor of the returns whose spread scales the rewards."""
    max_staleness: int = 0
    """Turns that steps may be older than the policy that learns from them; above 0, a thread collects the next ones
    meanwhile."""
    use_critic: bool = True
    make_policy: type[ActorCritic] = ActorCritic
    """Class of a policy without memory."""
    layout: Callable[[ActorCritic, Episodes, Credits], StepRows] | None = None
    """Rows of a loss that looks at the policy before the update; None: `step_rows`."""
    wrap_source: Callable[[Source[ActorCritic]], Source[ActorCritic]] | None = None
    """Wrapper of the source, applied before collection runs ahead."""
    prepare: Callable[[ActorCritic, Any, int, Reduction], TrainingRows[StepRows]] | None = None
    """See `OptimizerPhase.prepare`."""
    objective_with_backward: Callable[[ActorCritic, StepRows], LossTerms] | None = None
    """See `OptimizerPhase.objective_with_backward`."""
    on_metrics: Callable[[Metrics], None] | None = None
    """See `GradientLearner.on_metrics`."""
    extra_state: Mapping[str, Stateful] = field(default_factory=dict[str, Stateful])
    """See `GradientLearner.extra_state`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyParts:
    """A policy, and how its decisions are laid out for it."""

    policy: ActorCritic
    layout: Callable[[Episodes, Credits], StepRows]
    predict_values: Callable[[Any, Episodes], Values]
    split: Callable[[Any, NDArray[np.int64], int, Reduction], Iterator[Any]] = split_decision_rows
    is_plain: bool = False
    """True if the gradient that a recipe writes out is that of this policy: two MLPs over numbers."""


def _policy_parts(config: OnPolicyRunConfig, world: GymWorld, method: OnPolicyMethod) -> PolicyParts:
    """The policy that `network` asks for. Raises ConfigError for a loss that its memory does not go with."""
    network, device = config.network, config.run.device
    space = policy_spaces(world_spaces(world), network)
    memory = network.memory
    if isinstance(memory, RecurrentMemoryConfig):
        recurrent = MemoryActorCritic(space, network, seed=config.seed, critic=method.use_critic, memory=memory)
        recurrent.to(device)
        return PolicyParts(
            policy=recurrent,
            layout=partial(sequence_rows, recurrent, device=device),
            predict_values=predict_memory_values,
            split=split_by_rows,
        )
    policy = method.make_policy(space, network, seed=config.seed, critic=method.use_critic).to(device)
    layout = partial(step_rows, device=device) if method.layout is None else partial(method.layout, policy)
    if isinstance(memory, FrameMemoryConfig):
        frames, of_windows = memory.count, layout
        return PolicyParts(
            policy=policy,
            layout=lambda episodes, credits: of_windows(stack_frames(episodes, frames), credits),
            predict_values=lambda policy, episodes: predict_values(policy, stack_frames(episodes, frames)),
        )
    squashed = isinstance(space.actions, BoxActions) and space.actions.gaussian == "squashed"
    plain = (
        type(policy) is ActorCritic
        and policy.encoder is None
        and not squashed
        and not isinstance(space.actions, FactoredActions)
    )
    return PolicyParts(policy=policy, layout=layout, predict_values=predict_values, is_plain=plain)


def policy_spaces(spaces: PolicySpaces, network: PolicyNetworkConfig) -> PolicySpaces:
    """`spaces` as `network` reads them: form of the Gaussian, stacked observations, encoder. Raises ConfigError."""
    memory = network.memory
    spaces = gaussian_spaces(spaces, network)
    if isinstance(memory, FrameMemoryConfig):
        spaces = framed_spaces(spaces, memory.count)
    return encoded_spaces(spaces, network)


def on_policy_learner(
    config: OnPolicyRunConfig, method: OnPolicyMethod, parts: PolicyParts
) -> GradientLearner[ActorCritic, StepRows]:
    """Gradient learner of a method's loss over the parameters of a policy."""
    return GradientLearner(
        policy=parts.policy,
        layout=parts.layout,
        phases=[
            policy_phase(
                parts.policy,
                method.objective,
                config.learner,
                prepare=method.prepare,
                objective_with_backward=method.objective_with_backward if parts.is_plain else None,
            )
        ],
        seed=config.seed,
        learning_rate=learning_rate_schedule(config.learner, config.learner.optimizer_steps(config.steps)),
        predict_values=parts.predict_values if method.use_critic else None,
        epochs=config.learner.epochs,
        minibatches=config.learner.minibatches,
        shuffle=config.learner.minibatches > 1,
        split=parts.split,
        on_metrics=method.on_metrics,
        extra_state=method.extra_state,
    )


def on_policy_job(config: OnPolicyRunConfig, world: GymWorld, method: OnPolicyMethod) -> TrainingJob[ActorCritic]:
    """Training job of an actor-critic that acts in `world`."""
    parts = _policy_parts(config, world, method)
    policy, space = parts.policy, parts.policy.spaces
    learner = on_policy_learner(config, method, parts)
    acting = policy.numpy_policy()
    actor = _SnapshotActor(_snapshot(acting)) if method.max_staleness else NetworkActor(acting)
    source: Source[ActorCritic] = DropFailedEpisodes(LiveSource(world, actor), world)
    source = source if method.wrap_source is None else method.wrap_source(source)
    size = space.inputs.number_size
    source = with_normalisation(source, method.normalise, size=size, discount=method.discount)
    ahead = AsyncSource(source, max_staleness=method.max_staleness, in_background=method.max_staleness > 0)
    recipe = Recipe(source=ahead if method.max_staleness else source, credit=method.credit, learner=learner)
    job = control_job(
        recipe, env=config.env, evaluation=config.evaluation, seed=config.seed, world=world, rollouts=True
    )
    return replace(job, close=ahead.close)


def _build(config: OnPolicyRunConfig, world: GymWorld) -> TrainingJob[ActorCritic]:
    return on_policy_job(config, world, config.method())


def _require_supported(config: OnPolicyRunConfig, space: PolicySpaces) -> PolicySpaces:
    if isinstance(config.network.memory, RecurrentMemoryConfig) and config.method().layout is not None:
        raise ConfigError(
            "network.memory: the loss of this config looks at values before the update (algorithm.value_loss.kind = "
            '"clipped"), which a recurrent policy has no rows of; take "squared" or "huber"'
        )
    return require_supported_spaces(config.env, space, config.method().normalise, config.network)


def rollout_learner(
    config: RunConfig,
    learning: LearnerConfig,
    policy: M,
    phases: Sequence[OptimizerPhase[M, Any]],
    *,
    layout: Callable[[Episodes, Credits], TrainingRows[Any]] | None = None,
    predict_values: Callable[[M, Episodes], Values] | None = None,
) -> GradientLearner[M, Any]:
    """Gradient learner of a policy that steps `phases` on each rollout; the layout is by single steps unless given."""
    return GradientLearner(
        policy=policy,
        layout=layout or partial(step_rows, device=config.run.device),
        phases=phases,
        seed=config.seed,
        learning_rate=learning_rate_schedule(learning, learning.optimizer_steps(config.steps)),
        predict_values=predict_values,
        epochs=learning.epochs,
        minibatches=learning.minibatches,
    )


def rollout_job(
    config: RolloutRunConfig, world: GymWorld, credit: Callable[[Episodes, Values], Credits], learner: Learner[P]
) -> TrainingJob[P]:
    """Training job of a policy that acts in `world` and learns from each rollout as it is."""
    actor = NetworkActor(learner.policy.numpy_policy())
    recipe = Recipe(source=DropFailedEpisodes(LiveSource(world, actor), world), credit=credit, learner=learner)
    return control_job(
        recipe, env=config.env, evaluation=config.evaluation, seed=config.seed, world=world, rollouts=True
    )


def require_supported_spaces(
    env: GymConfig, space: PolicySpaces, normalise: NormaliseConfig, network: PolicyNetworkConfig
) -> PolicySpaces:
    """The spaces as the network reads them. Raises ConfigError for what they do not go with."""
    require_clipping(env, space, network)
    encoded = policy_spaces(space, network)
    if normalise.observations and not encoded.inputs.has_scale:
        shown = "numbers of states, which have no scale" if space.inputs.one_hot else "images, which its encoder scales"
        raise ConfigError(f"algorithm.normalise.observations = true: {env.id} shows {shown}; set it to false")
    return encoded


def require_clipping(env: GymConfig, space: PolicySpaces, network: GaussianMlpConfig) -> None:
    """Raises ConfigError where nobody may clip the actions of a policy that reaches outside its box, and where actions
    without bounds are to be squashed."""
    gaussian_spaces(space, network)
    if isinstance(space.actions, BoxActions) and env.clip_actions is False and network.gaussian != "squashed":
        squash = ', or network.gaussian = "squashed"' if space.actions.is_finite else ""
        raise ConfigError(
            f"env.clip_actions = false: a Gaussian policy reaches outside any box; set it to true{squash}"
        )


def require_clipped_actions(config: OnPolicyRunConfig, space: PolicySpaces) -> None:
    """`require_clipping` for a config."""
    require_clipping(config.env, space, config.network)


control_parts = partial(recipe_parts, source="Live(Gymnasium)", weights=(token_mean,))
"""The parts that the wiring of a recipe for control names (see `recipe_parts`)."""
