"""Planning in learned dynamics models (PETS; Chua et al., 2018): an ensemble predicts next states, a planner acts.

There is no policy network: for each action the planner simulates many action sequences in the ensemble and takes the
first action of the best. The defaults are those that swing a cart-pole up within 3,000 environment steps.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from hone.core.config import Config
from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.core.state import State, array
from hone.credit.returns import reward_as_advantage
from hone.envs.gym.make import describe_placement
from hone.envs.gym.world import GymConfig, inspect_world, open_world
from hone.models.control.mlp import MlpConfig
from hone.models.control.mpc import CemPlanning, ModelPlanner, MpcPolicy, MppiPlanning, PlanningConfig
from hone.objectives.dynamics import gaussian_nll
from hone.objectives.terms import LossTerms
from hone.objectives.weights import token_mean
from hone.replay.bootstrap import BootstrapBuffer, ColumnStatistics
from hone.replay.ring import RingBuffer
from hone.train.config import RunConfig, RunSettings
from hone.train.control.acting import DropFailedEpisodes, NetworkActor
from hone.train.control.job import ControlEvaluationConfig, control_job
from hone.train.control.rows import DecisionRows
from hone.train.control.spaces import network_spaces
from hone.train.job import RecipeParts, RecipeSpec, TrainingJob, checked_run
from hone.train.learner.config import ReplayLearnerConfig, learning_rate_schedule, policy_phase
from hone.train.learner.gradient import GradientLearner
from hone.train.loop import Recipe
from hone.train.sources.live import LiveSource
from hone.train.sources.replay import ReplaySource
from hone.train.sources.wrapper import WithState


class PetsAlgorithm(Config):
    """The ensemble of dynamics models and the reward."""

    members: int = Field(default=5, ge=1)
    """Networks of the ensemble; each sees its own bootstrap sample."""
    batch: int = Field(default=64, ge=1)
    """Transitions of each member per optimizer step."""
    bounds_weight: float = Field(default=0.01, ge=0)
    """Weight of the distance between the learned bounds of the log variance, which is kept small."""
    reward: str | None = None
    """Known reward function, `pendulum` or `cartpole_swing_up`; None: the reward is learned with the dynamics."""
    warmup: int = Field(default=200, ge=1)
    """Steps taken at random before the first update."""
    replay_capacity: int = Field(default=100_000, ge=1)
    """Capacity of the replay buffer, transitions."""


class PetsConfig(RunConfig):
    """A planner on Gymnasium environments with boxes of observations and actions."""

    run: RunSettings = RunSettings(threads=1)
    """Threads, logging, checkpoints and other settings of the run."""
    env: GymConfig
    """The environments."""
    rollout_steps: int = Field(default=50, ge=1)
    """Steps of each environment per iteration; the dynamics model is trained between rollouts."""
    network: MlpConfig = MlpConfig(hidden=[64, 64], activation="relu")
    """Each member of the ensemble."""
    learner: ReplayLearnerConfig = ReplayLearnerConfig(lr=2e-3, updates_per_iteration=100, max_grad_norm=None)
    """The optimizer."""
    planning: PlanningConfig = CemPlanning()
    """Planning method of a decision."""
    algorithm: PetsAlgorithm = PetsAlgorithm()
    """The ensemble of dynamics models and the reward."""
    evaluation: ControlEvaluationConfig = ControlEvaluationConfig(episodes=5)
    """Evaluation of the planner."""

    @model_validator(mode="after")
    def _elites_are_candidates(self) -> "PetsConfig":
        if isinstance(self.planning, CemPlanning) and self.planning.elites > self.planning.candidates:
            raise ValueError(
                f"planning.elites = {self.planning.elites} of planning.candidates = {self.planning.candidates}: there "
                "are not as many"
            )
        return self


@dataclass(frozen=True, kw_only=True)
class DynamicsRows(DecisionRows):
    """Transitions for an ensemble: each row holds one of every member's."""

    inputs: Tensor
    """`[n, K, observation + action]`, standardised."""
    target: Tensor
    """`[n, K, observation + 1]`: change and reward, standardised."""


def objective(policy: ModelPlanner, rows: DynamicsRows, *, bounds_weight: float) -> LossTerms:
    """Negative log-likelihood of what followed + bounds_weight * distance of the bounds."""
    least, greatest = policy.ensemble.bounds.unbind()
    mean, log_variance = policy.ensemble(rows.inputs.transpose(0, 1).to(least.dtype))
    terms = gaussian_nll(mean, log_variance, rows.target.transpose(0, 1))
    return LossTerms(loss=terms.loss + bounds_weight * (greatest - least).sum(), compute_metrics=terms.compute_metrics)


def dynamics_rows(
    transitions: Episodes, credits: Credits, *, policy: ModelPlanner, memory: BootstrapBuffer
) -> DynamicsRows:
    """Rows of a bootstrapped sample, standardised by the whole replay buffer."""
    del credits
    ensemble, members = policy.ensemble, memory.members
    if memory.inputs.count:
        ensemble.set_statistics(memory.inputs.count, _mean_and_scale(memory.inputs), _mean_and_scale(memory.targets))
    count = len(transitions) // members * members
    transitions = transitions.take(np.arange(count))
    assert transitions.final is not None
    seen, chosen, after = (
        torch.from_numpy(np.ascontiguousarray(column.reshape(count, -1), dtype=np.float32))
        for column in (transitions.observations, transitions.chosen, transitions.final)
    )
    target = ensemble.standardise_targets(seen, after, torch.from_numpy(transitions.reward))
    inputs = ensemble.standardise_inputs(seen, chosen)
    return DynamicsRows(
        weight=torch.ones(count // members),
        inputs=inputs.view(members, count // members, -1).transpose(0, 1).contiguous(),
        target=target.view(members, count // members, -1).transpose(0, 1).contiguous(),
    )


def _mean_and_scale(moments: ColumnStatistics) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(moments.mean).float(), torch.from_numpy(moments.std).float()


@dataclass
class PlanningActor(NetworkActor):
    """Keeps its plans when a better world is published."""

    def publish(self, policy: ModelPlanner, version: int) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        acting = policy.numpy_policy()
        acting.plan = self._planning().plan
        self.numpy_policy, self.version = acting, version

    def state(self) -> State:
        """The plans: a resumed run continues with them."""
        plan = self._planning().plan
        return {} if plan is None else {"mean": plan.numpy().copy()}

    def restore(self, state: State) -> None:
        self._planning().plan = torch.from_numpy(array(state, "mean").astype(np.float32)) if state else None

    def _planning(self) -> MpcPolicy:
        assert isinstance(self.numpy_policy, MpcPolicy)
        return self.numpy_policy


def build(config: PetsConfig) -> TrainingJob[ModelPlanner]:
    """Build the training job. Raises ConfigError and UserCodeError for an invalid environment."""
    algorithm, learning = config.algorithm, config.learner
    world = open_world(config.env, steps=config.rollout_steps, seed=config.seed, squashed=True)
    space = network_spaces(world.envs.single_observation_space, world.envs.single_action_space)
    policy = ModelPlanner(
        space,
        config.network,
        seed=config.seed,
        members=algorithm.members,
        planning=config.planning,
        reward=algorithm.reward,
    )
    memory = BootstrapBuffer(RingBuffer(algorithm.replay_capacity), members=algorithm.members, seed=config.seed)
    loss: Callable[[ModelPlanner, DynamicsRows], LossTerms] = partial(objective, bounds_weight=algorithm.bounds_weight)
    learner = GradientLearner(
        policy=policy,
        layout=partial(dynamics_rows, policy=policy, memory=memory),
        phases=[policy_phase(policy, loss, learning)],
        seed=config.seed,
        learning_rate=learning_rate_schedule(learning, learning.optimizer_steps(config.steps)),
        minibatches=learning.updates_per_iteration,
        epochs=learning.epochs,
    )
    actor = PlanningActor(policy.numpy_policy())
    source = ReplaySource(
        DropFailedEpisodes(WithState(LiveSource(world, actor), actor, "plan"), world),
        buffer=memory,
        sample_size=algorithm.members * algorithm.batch * learning.updates_per_iteration,
        warmup=algorithm.warmup,
        seed=config.seed,
    )
    recipe = Recipe(source=source, credit=reward_as_advantage, learner=learner)
    return control_job(recipe, env=config.env, evaluation=config.evaluation, seed=config.seed, world=world)


def check(config: PetsConfig) -> list[str]:
    """Warnings about the config; raises ConfigError for a run that cannot work."""
    found, warnings = inspect_world(config.env, seed=config.seed, squashed=True)
    ModelPlanner(network_spaces(*found), MlpConfig(hidden=[1]), seed=0, members=1, reward=config.algorithm.reward)
    return warnings


def derive(config: PetsConfig) -> dict[str, str]:
    """Figures that follow from the config, shown by `hone plan`."""
    planning, steps = config.planning, config.env.num_envs * config.rollout_steps
    imagined = planning.candidates * planning.horizon * planning.particles * config.algorithm.members
    kind = "path integral" if isinstance(planning, MppiPlanning) else "cross-entropy"
    return {
        "environment steps": f"{config.steps} iterations x {steps} = {config.steps * steps}",
        "environments": describe_placement(config.env),
        "imagined steps per decision": f"{kind}: {planning.iterations} x {imagined} = {planning.iterations * imagined}",
        "updates": f"{config.learner.optimizer_steps(config.steps)}",
        "update": f"{config.algorithm.members} members x {config.algorithm.batch} transitions",
    }


ENTRY = RecipeSpec(
    summary="model-based control: planning with an ensemble of learned dynamics models",
    paper="Chua et al., Deep Reinforcement Learning in a Handful of Trials using Probabilistic Dynamics Models, 2018",
    config=PetsConfig,
    open=checked_run(check, build),
    derive=derive,
    parts=RecipeParts(
        source="Replay(Live(Gymnasium))",
        credit=(reward_as_advantage,),
        loss=(gaussian_nll,),
        weights=(token_mean,),
    ),
    limitation="plans see as far as the horizon, know of no early end, and cost a thousand times a network's decision.",
)
