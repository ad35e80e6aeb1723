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

from hone.control.acting import NetworkActor
from hone.control.environments.make import describe_envs
from hone.control.environments.world import GymWorld
from hone.control.job import ControlEvaluationConfig, open_gym_run
from hone.control.networks.mlp import MlpConfig, PolicySpaces
from hone.control.networks.mpc import CemPlanning, ModelPlanner, MpcPolicy, MppiPlanning, PlanningConfig
from hone.control.off_policy import OffPolicyMethod, OffPolicyRunConfig, ReplayConfig, replay_job
from hone.control.replay.bootstrap import BootstrapBuffer, ColumnStatistics
from hone.control.replay.ring import RingBuffer
from hone.control.rows import DecisionRows
from hone.control.spaces import world_spaces
from hone.core.config import Config, new_default
from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.core.state import State, array
from hone.credit.returns import reward_as_advantage
from hone.learner.config import ReplayLearnerConfig, policy_phase
from hone.objectives.terms import LossTerms
from hone.objectives.value import gaussian_nll
from hone.objectives.weights import token_mean
from hone.run.job import OpenedRun, RecipeParts, RecipeSpec, RunSettings, TrainingJob
from hone.run.loop import WithState


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


class PetsConfig(OffPolicyRunConfig):
    """A planner on Gymnasium environments with boxes of observations and actions."""

    run = new_default(RunSettings(threads=1))
    rollout_steps: int = Field(default=50, ge=1)
    """Steps of each environment per iteration; the dynamics model is trained between rollouts."""
    network: MlpConfig = MlpConfig(hidden=[64, 64], activation="relu")
    """Each member of the ensemble."""
    learner = new_default(ReplayLearnerConfig(lr=2e-3, updates_per_iteration=100, max_grad_norm=None), "The optimizer.")
    planning: PlanningConfig = CemPlanning()
    """Planning method of a decision."""
    algorithm: PetsAlgorithm = PetsAlgorithm()
    """The ensemble of dynamics models and the reward."""
    evaluation = new_default(ControlEvaluationConfig(episodes=5), "Evaluation of the planner.")

    @model_validator(mode="after")
    def _elites_are_candidates(self) -> "PetsConfig":
        if isinstance(self.planning, CemPlanning) and self.planning.elites > self.planning.candidates:
            raise ValueError(
                f"planning.elites = {self.planning.elites} of planning.candidates = {self.planning.candidates}: there "
                "are not as many"
            )
        return self

    def open(self) -> OpenedRun:
        """The environments, opened and checked. Raises HoneError."""
        steps = self.rollout_steps
        return open_gym_run(self, self.env, steps=steps, build=_build, require=_require_known_reward, squashed=True)

    def derive(self) -> dict[str, str]:
        """Figures that follow from the config, shown by `hone plan`."""
        planning, steps = self.planning, self.env.num_envs * self.rollout_steps
        imagined = planning.candidates * planning.horizon * planning.particles * self.algorithm.members
        kind = "path integral" if isinstance(planning, MppiPlanning) else "cross-entropy"
        return {
            "environment steps": f"{self.steps} iterations x {steps} = {self.steps * steps}",
            **describe_envs(self.env),
            "imagined steps per decision": f"{kind}: {planning.iterations} x {imagined} = "
            f"{planning.iterations * imagined}",
            "updates": f"{self.learner.optimizer_steps(self.steps)}",
            "update": f"{self.algorithm.members} members x {self.algorithm.batch} transitions",
        }


@dataclass(frozen=True, kw_only=True)
class _DynamicsRows(DecisionRows):
    """Transitions for an ensemble: each row holds one of every member's."""

    inputs: Tensor
    """`[n, K, observation + action]`, standardised."""
    target: Tensor
    """`[n, K, observation + 1]`: change and reward, standardised."""


def _objective(policy: ModelPlanner, rows: _DynamicsRows, *, bounds_weight: float) -> LossTerms:
    """Negative log-likelihood of what followed + bounds_weight * distance of the bounds."""
    least, greatest = policy.ensemble.bounds.unbind()
    mean, log_variance = policy.ensemble(rows.inputs.transpose(0, 1).to(least.dtype))
    terms = gaussian_nll(mean, log_variance, rows.target.transpose(0, 1))
    return LossTerms(loss=terms.loss + bounds_weight * (greatest - least).sum(), compute_metrics=terms.compute_metrics)


def _measured_credit(
    transitions: Episodes, values: Values, *, policy: ModelPlanner, memory: BootstrapBuffer
) -> Credits:  # fmt: skip
    """No credit of its own: the whole replay buffer sets the scales of the ensemble, before its rows are laid out."""
    if memory.inputs.count:
        scales = (_mean_and_scale(memory.inputs), _mean_and_scale(memory.targets))
        policy.ensemble.set_statistics(memory.inputs.count, *scales)
    return reward_as_advantage(transitions, values)


def _dynamics_rows(
    transitions: Episodes, credits: Credits, updates: int, *, policy: ModelPlanner, members: int
) -> _DynamicsRows:
    """Rows of a bootstrapped sample, standardised by the scales of the ensemble."""
    del credits, updates
    ensemble = policy.ensemble
    count = len(transitions) // members * members
    transitions = transitions.take(np.arange(count))
    assert transitions.final is not None
    seen, chosen, after = (
        torch.from_numpy(np.ascontiguousarray(column.reshape(count, -1), dtype=np.float32))
        for column in (transitions.observations, transitions.chosen, transitions.final)
    )
    target = ensemble.standardise_targets(seen, after, torch.from_numpy(transitions.reward))
    inputs = ensemble.standardise_inputs(seen, chosen)
    return _DynamicsRows(
        weight=torch.ones(count // members),
        inputs=inputs.view(members, count // members, -1).transpose(0, 1).contiguous(),
        target=target.view(members, count // members, -1).transpose(0, 1).contiguous(),
    )


def _mean_and_scale(moments: ColumnStatistics) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(moments.mean).float(), torch.from_numpy(moments.std).float()


@dataclass
class _PlanningActor(NetworkActor):
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


def _method(config: PetsConfig, spaces: PolicySpaces) -> OffPolicyMethod[ModelPlanner]:
    """The ensemble, trained on bootstrap samples, and the planner that acts by it."""
    algorithm = config.algorithm
    policy = ModelPlanner(
        spaces,
        config.network,
        seed=config.seed,
        members=algorithm.members,
        planning=config.planning,
        reward=algorithm.reward,
    )
    memory = BootstrapBuffer(RingBuffer(algorithm.replay_capacity), members=algorithm.members, seed=config.seed)
    loss: Callable[[ModelPlanner, _DynamicsRows], LossTerms] = partial(
        _objective, bounds_weight=algorithm.bounds_weight
    )
    actor = _PlanningActor(policy.numpy_policy())
    return OffPolicyMethod(
        policy=policy,
        phases=[policy_phase(policy, loss, config.learner)],
        layout=partial(_dynamics_rows, policy=policy, members=algorithm.members),
        credit=partial(_measured_credit, policy=policy, memory=memory),
        buffer=memory,
        actor=actor,
        wrap_source=lambda source: WithState(source, actor, "plan"),
        shuffle=True,
    )


def _build(config: PetsConfig, world: GymWorld) -> TrainingJob[ModelPlanner]:
    """Training job of the planner: each update takes a batch for every member of the ensemble."""
    algorithm = config.algorithm
    replay = ReplayConfig(batch=algorithm.members * algorithm.batch, warmup=algorithm.warmup)
    return replay_job(config, world, _method(config, world_spaces(world)), replay)


def _require_known_reward(config: PetsConfig, spaces: PolicySpaces) -> None:
    """Raises ConfigError for spaces that the planner or its reward function does not fit."""
    ModelPlanner(spaces, MlpConfig(hidden=[1]), seed=0, members=1, reward=config.algorithm.reward)


ENTRY = RecipeSpec(
    summary="model-based control: planning with an ensemble of learned dynamics models",
    paper="Chua et al., Deep Reinforcement Learning in a Handful of Trials using Probabilistic Dynamics Models, 2018",
    config=PetsConfig,
    parts=RecipeParts(
        source="Replay(Live(Gymnasium))",
        credit=(reward_as_advantage,),
        loss=(gaussian_nll,),
        weights=(token_mean,),
    ),
    limitation="plans see as far as the horizon, know of no early end, and cost a thousand times a network's decision.",
)
