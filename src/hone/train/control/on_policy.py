"""What on-policy recipes for control share (PPO, A2C, REINFORCE): config, who acts, normalisation, the job.

Belongs here: wiring of `ActorCritic` to Gymnasium and the gradient learner. Does not: any branch about which algorithm
runs. A recipe hands over its credit and its loss.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

from pydantic import Field, model_validator
from torch import Tensor

from hone.core.credit import Credits, Metrics, Values
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError
from hone.core.reduction import Reduction
from hone.core.state import Stateful
from hone.envs.gym.make import describe_placement
from hone.envs.gym.world import GymConfig, inspect_world, open_world
from hone.models.control.actor_critic import ActorCritic
from hone.models.control.mlp import BoxActions, MlpConfig, NumpyMlp, PolicySpaces
from hone.models.control.numpy_policies import NumpyCategoricalPolicy, NumpyGaussianPolicy, NumpyPolicy
from hone.objectives.terms import LossTerms
from hone.train.config import RunConfig, RunSettings
from hone.train.control.acting import DropFailedEpisodes, NetworkActor, predict_values
from hone.train.control.job import ControlEvaluationConfig, control_job
from hone.train.control.rows import StepRows, split_decision_rows, step_rows
from hone.train.control.spaces import network_spaces
from hone.train.job import TrainingJob
from hone.train.learner.config import LearnerConfig, learning_rate_schedule, policy_phase, require_whole_minibatches
from hone.train.learner.gradient import GradientLearner, TrainingRows
from hone.train.loop import Recipe, Source
from hone.train.sources.asynchronous import AsyncSource
from hone.train.sources.live import LiveSource
from hone.train.sources.normalise import NormaliseConfig, with_normalisation


class OnPolicyRunConfig(RunConfig):
    """A policy and a critic on Gymnasium environments."""

    run: RunSettings = RunSettings(threads=1)
    """Threads, logging, checkpoints and other settings of the run; one thread is fastest for a small network."""
    env: GymConfig
    """The environments."""
    rollout_steps: int = Field(default=32, ge=1)
    """Steps of each environment per iteration."""
    network: MlpConfig = MlpConfig()
    """Policy and critic have one each."""
    learner: LearnerConfig = LearnerConfig(lr=1e-3, max_grad_norm=0.5)
    """The optimizer; `minibatches` per epoch."""
    evaluation: ControlEvaluationConfig = ControlEvaluationConfig()
    """Evaluation of the policy."""

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        require_whole_minibatches(self.learner, self.env.num_envs * self.rollout_steps, "env.num_envs x rollout_steps")
        return self


@dataclass
class SnapshotActor(NetworkActor):
    """Decides by weights that change on publication only, so that a thread may act while the policy learns."""

    def publish(self, policy: ActorCritic, version: int) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.numpy_policy, self.version = _snapshot(policy.numpy_policy()), version


def _snapshot(acting: NumpyPolicy) -> NumpyPolicy:
    if isinstance(acting, NumpyCategoricalPolicy | NumpyGaussianPolicy):
        network = acting.network
        assert isinstance(network, NumpyMlp)
        layers = tuple((weight.copy(order="K"), bias.copy()) for weight, bias in network.layers)
        acting = replace(acting, network=replace(network, layers=layers))
    return replace(acting, log_std=acting.log_std.copy()) if isinstance(acting, NumpyGaussianPolicy) else acting


@dataclass(frozen=True, slots=True, kw_only=True)
class OnPolicyMethod:
    """What makes one algorithm of the family."""

    credit: Callable[[Episodes, Values], Credits]
    objective: Callable[[ActorCritic, StepRows], LossTerms]
    normalise: NormaliseConfig
    discount: float
    """Discount factor of the returns whose spread scales the rewards."""
    max_staleness: int = 0
    """Turns that steps may be older than the policy that learns from them; above 0, a thread collects the next ones
    meanwhile."""
    use_critic: bool = True
    wrap_source: Callable[[Source[ActorCritic]], Source[ActorCritic]] | None = None
    """Wrapper of the source, applied before collection runs ahead."""
    prepare: Callable[[ActorCritic, Any, int, Reduction], TrainingRows[StepRows]] | None = None
    """See `OptimizerPhase.prepare`."""
    on_metrics: Callable[[Metrics], None] | None = None
    """See `GradientLearner.watch`."""
    extra_state: Mapping[str, Stateful] = field(default_factory=dict[str, Stateful])
    """See `GradientLearner.kept`."""


def on_policy_job(config: OnPolicyRunConfig, method: OnPolicyMethod) -> TrainingJob[ActorCritic]:
    """Build the training job. Raises ConfigError and UserCodeError for an invalid environment."""
    world = open_world(config.env, steps=config.rollout_steps, seed=config.seed)
    space = network_spaces(world.envs.single_observation_space, world.envs.single_action_space)
    require_supported_spaces(config.env, space, method.normalise)
    policy = ActorCritic(space, config.network, seed=config.seed, critic=method.use_critic).to(config.run.device)
    policy_step = policy_phase(policy, method.objective, config.learner)
    policy_step.prepare = method.prepare
    learner = GradientLearner(
        policy=policy,
        layout=partial(step_rows, device=config.run.device),
        phases=[policy_step],
        seed=config.seed,
        learning_rate=learning_rate_schedule(config.learner, config.learner.optimizer_steps(config.steps)),
        predict_values=predict_values if method.use_critic else None,
        epochs=config.learner.epochs,
        minibatches=config.learner.minibatches,
        shuffle=config.learner.minibatches > 1,
        split=split_decision_rows,
        on_metrics=method.on_metrics,
        extra_state=method.extra_state,
    )
    actor = (
        SnapshotActor(_snapshot(policy.numpy_policy())) if method.max_staleness else NetworkActor(policy.numpy_policy())
    )
    source: Source[ActorCritic] = DropFailedEpisodes(LiveSource(world, actor), world)
    source = source if method.wrap_source is None else method.wrap_source(source)
    source = with_normalisation(source, method.normalise, size=space.inputs.size, discount=method.discount)
    ahead = AsyncSource(source, max_staleness=method.max_staleness, in_background=method.max_staleness > 0)
    recipe = Recipe(source=ahead if method.max_staleness else source, credit=method.credit, learner=learner)
    job = control_job(recipe, env=config.env, evaluation=config.evaluation, seed=config.seed, world=world)

    def close() -> None:
        ahead.close()
        world.close()

    return replace(job, close=close)


def require_supported_spaces(env: GymConfig, space: PolicySpaces, normalise: NormaliseConfig) -> None:
    """Raises ConfigError for what these spaces do not go with."""
    require_clipping(env, space)
    if normalise.observations and space.inputs.one_hot:
        raise ConfigError(
            f"algorithm.normalise.observations = true: {env.id} shows numbers of states, which have no scale; set it "
            "to false"
        )


def require_clipping(env: GymConfig, space: PolicySpaces) -> None:
    """Raises ConfigError where a policy without bounds meets actions with bounds, and nobody clips."""
    if isinstance(space.actions, BoxActions) and not env.clip_actions:
        raise ConfigError("env.clip_actions = false: a Gaussian policy reaches outside any box; set it to true")


def check_on_policy(config: OnPolicyRunConfig, normalise: NormaliseConfig) -> list[str]:
    """Warnings about the config; raises ConfigError for a run that cannot work."""
    found, warnings = inspect_world(config.env, seed=config.seed)
    require_supported_spaces(config.env, network_spaces(*found), normalise)
    return warnings


def derive_on_policy(config: OnPolicyRunConfig) -> dict[str, str]:
    """Figures that follow from the config, shown by `hone plan`."""
    batch = config.env.num_envs * config.rollout_steps
    return {
        "environment steps per iteration": f"{config.env.num_envs} environments x {config.rollout_steps} = {batch}",
        "environment steps": f"{config.steps * batch}",
        "minibatch": f"{batch} / {config.learner.minibatches} = {batch // config.learner.minibatches} steps",
        "environments": describe_placement(config.env),
        "optimizer steps": f"{config.learner.optimizer_steps(config.steps)}",
    }


def merged_metrics(now_entropy: Tensor, *parts: LossTerms) -> dict[str, Tensor]:
    """Metrics of `parts`, and the policy's entropy `[n]` nats."""
    found: dict[str, Tensor] = {}
    for part in parts:
        found |= part.metrics
    return {**found, "policy/entropy_nats": now_entropy.detach()}


__all__ = [
    "OnPolicyMethod",
    "OnPolicyRunConfig",
    "SnapshotActor",
    "check_on_policy",
    "derive_on_policy",
    "merged_metrics",
    "on_policy_job",
    "require_clipping",
    "require_supported_spaces",
]
