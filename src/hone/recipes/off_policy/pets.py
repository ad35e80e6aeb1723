"""Planning in learnt worlds (PETS; Chua et al., 2018): an ensemble learns what follows, and every action is planned.

There is no policy network: each decision imagines many plans in the ensemble and takes the first action of the best.
The defaults are those that swing a cart-pole up within 3,000 steps of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from hone.core.config import Config
from hone.core.credit import Credits, Metrics
from hone.core.episodes import Episodes
from hone.core.state import State, array, substate
from hone.credit.returns import as_paid
from hone.envs.gym.make import placed
from hone.envs.gym.world import GymConfig, inspect_world, open_world
from hone.models.control.mlp import MlpConfig
from hone.models.control.mpc import ActPlanning, CemPlanning, ModelPlanner, MppiPlanning, Planning
from hone.objectives.dynamics import gaussian_nll
from hone.objectives.terms import Terms
from hone.objectives.weights import token_mean
from hone.replay.bootstrap import Bootstrapped, Moments
from hone.replay.ring import Ring
from hone.train.config import RunConfig, RunSettings
from hone.train.control.acting import NetworkActor, Scored
from hone.train.control.job import JudgeConfig, control_job
from hone.train.control.rows import Columns
from hone.train.control.spaces import spaces_of
from hone.train.job import Entry, Job, Parts
from hone.train.learner.config import LearnerConfig, policy_phase, schedule
from hone.train.learner.gradient import GradientLearner
from hone.train.loop import Recipe, Source
from hone.train.sources.live import Live
from hone.train.sources.replay import Replay


class PetsAlgorithm(Config):
    """The learnt world."""

    members: int = Field(default=5, ge=1)
    """Networks of the ensemble; each sees its own bootstrap sample."""
    batch: int = Field(default=64, ge=1)
    """Transitions of each member per optimizer step."""
    bounds_weight: float = Field(default=0.01, ge=0)
    """Of the distance between the learnt bounds of the log variance, which is kept small."""
    reward: str | None = None
    """`pendulum` or `cartpole_swing_up`: the reward is known; None: it is learnt with the world."""
    warmup: int = Field(default=200, ge=1)
    """Steps taken at random before the first update."""
    memory: int = Field(default=100_000, ge=1)
    """Transitions remembered."""


class PetsConfig(RunConfig):
    """A planner on Gymnasium environments with boxes of observations and actions."""

    run: RunSettings = RunSettings(threads=1)
    """How the run is carried out."""
    env: GymConfig
    """The environments."""
    rollout_steps: int = Field(default=50, ge=1)
    """Steps of each environment per turn of the loop; the world is learnt between turns."""
    network: MlpConfig = MlpConfig(hidden=[64, 64], activation="relu")
    """Each member of the ensemble."""
    learner: LearnerConfig = LearnerConfig(lr=2e-3, minibatches=100, max_grad_norm=None)
    """The optimizer; `minibatches` is the number of updates per turn of the loop."""
    planning: Planning = CemPlanning()
    """How a decision is planned."""
    algorithm: PetsAlgorithm = PetsAlgorithm()
    """The learnt world."""
    judge: JudgeConfig = JudgeConfig(episodes=5)
    """How the planner is tried."""

    @model_validator(mode="after")
    def _elites_are_candidates(self) -> "PetsConfig":
        if isinstance(self.planning, CemPlanning) and self.planning.elites > self.planning.candidates:
            raise ValueError(
                f"planning.elites = {self.planning.elites} of planning.candidates = {self.planning.candidates}: there "
                "are not as many"
            )
        return self


@dataclass(frozen=True, kw_only=True)
class WorldRows(Columns):
    """Transitions for an ensemble: each row holds one of every member's."""

    inputs: Tensor
    """`[n, K, observation + action]`, standardised."""
    target: Tensor
    """`[n, K, observation + 1]`: change and reward, standardised."""


def objective(policy: ModelPlanner, rows: WorldRows, *, bounds_weight: float) -> Terms:
    """Negative log-likelihood of what followed + bounds_weight * distance of the bounds."""
    least, greatest = policy.ensemble.bounds.unbind()
    mean, log_variance = policy.ensemble(rows.inputs.transpose(0, 1).to(least.dtype))
    terms = gaussian_nll(mean, log_variance, rows.target.transpose(0, 1))
    return Terms(loss=terms.loss + bounds_weight * (greatest - least).sum(), told=terms.told)


def layout(transitions: Episodes, credits: Credits, *, policy: ModelPlanner, memory: Bootstrapped) -> WorldRows:
    """Rows of a bootstrapped sample, standardised by all that is remembered."""
    del credits
    ensemble, members = policy.ensemble, memory.members
    if memory.inputs.count:
        ensemble.measure(memory.inputs.count, _of(memory.inputs), _of(memory.changes))
    count = len(transitions) // members * members
    transitions = transitions.take(np.arange(count))
    assert transitions.final is not None
    seen, chosen, after = (
        torch.from_numpy(np.ascontiguousarray(column.reshape(count, -1), dtype=np.float32))
        for column in (transitions.observations, transitions.chosen, transitions.final)
    )
    target = ensemble.standard_changes(seen, after, torch.from_numpy(transitions.reward))
    inputs = ensemble.standard_inputs(seen, chosen)
    return WorldRows(
        weight=torch.ones(count // members),
        inputs=inputs.view(members, count // members, -1).transpose(0, 1).contiguous(),
        target=target.view(members, count // members, -1).transpose(0, 1).contiguous(),
    )


def _of(moments: Moments) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(moments.mean).float(), torch.from_numpy(moments.std).float()


@dataclass
class PlanningActor(NetworkActor):
    """Keeps its plans when a better world is published."""

    def publish(self, policy: ModelPlanner, version: int) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        acting, before = policy.acting(), self.acting
        assert isinstance(before, ActPlanning)
        acting.plan = before.plan
        self.acting, self.version = acting, version


@dataclass
class Planned:
    """A source whose plans are saved with it: a resumed run goes on with them."""

    source: Source[ModelPlanner]
    actor: PlanningActor

    def collect(self) -> Episodes:
        return self.source.collect()

    def publish(self, policy: ModelPlanner) -> None:
        self.source.publish(policy)

    def metrics(self) -> Metrics:
        return self.source.metrics()

    def state(self) -> State:
        plan = self._planning().plan
        return {"source": self.source.state(), "plan": {} if plan is None else {"mean": plan.numpy().copy()}}

    def restore(self, state: State) -> None:
        self.source.restore(substate(state, "source"))
        plan = substate(state, "plan")
        self._planning().plan = torch.from_numpy(array(plan, "mean").astype(np.float32)) if plan else None

    def _planning(self) -> ActPlanning:
        assert isinstance(self.actor.acting, ActPlanning)
        return self.actor.acting


def build(config: PetsConfig) -> Job[ModelPlanner]:
    """Raises ConfigError and UserCodeError for what is wrong with the environment."""
    algorithm, learning = config.algorithm, config.learner
    world = open_world(config.env, steps=config.rollout_steps, seed=config.seed, squashed=True)
    space = spaces_of(world.envs.single_observation_space, world.envs.single_action_space)
    policy = ModelPlanner(
        space,
        config.network,
        seed=config.seed,
        members=algorithm.members,
        planning=config.planning,
        reward=algorithm.reward,
    )
    memory = Bootstrapped(Ring(algorithm.memory), members=algorithm.members, seed=config.seed)
    loss: Callable[[ModelPlanner, WorldRows], Terms] = partial(objective, bounds_weight=algorithm.bounds_weight)
    learner = GradientLearner(
        policy=policy,
        layout=partial(layout, policy=policy, memory=memory),
        phases=[policy_phase(policy, loss, learning)],
        seed=config.seed,
        learning_rate=schedule(learning, learning.optimizer_steps(config.steps)),
        minibatches=learning.minibatches,
        epochs=learning.epochs,
    )
    actor = PlanningActor(policy.acting())
    source = Replay(
        Scored(Planned(Live(world, actor), actor), world),
        ring=memory,
        sample=algorithm.members * algorithm.batch * learning.minibatches,
        warmup=algorithm.warmup,
        seed=config.seed,
    )
    recipe = Recipe(source=source, credit=as_paid, learner=learner)
    return control_job(recipe, env=config.env, judge=config.judge, seed=config.seed, world=world)


def check(config: PetsConfig) -> list[str]:
    found, warnings = inspect_world(config.env, seed=config.seed, squashed=True)
    ModelPlanner(spaces_of(*found), MlpConfig(hidden=[1]), seed=0, members=1, reward=config.algorithm.reward)
    return warnings


def derive(config: PetsConfig) -> dict[str, str]:
    planning, steps = config.planning, config.env.num_envs * config.rollout_steps
    imagined = planning.candidates * planning.horizon * planning.particles * config.algorithm.members
    kind = "path integral" if isinstance(planning, MppiPlanning) else "cross-entropy"
    return {
        "steps of the world": f"{config.steps} turns x {steps} = {config.steps * steps}",
        "environments": placed(config.env),
        "imagined steps per decision": f"{kind}: {planning.iterations} x {imagined} = {planning.iterations * imagined}",
        "updates": f"{config.learner.optimizer_steps(config.steps)}",
        "update": f"{config.algorithm.members} members x {config.algorithm.batch} transitions",
    }


ENTRY = Entry(
    summary="model-based control: plans in an ensemble of learnt worlds",
    source="Chua et al., Deep Reinforcement Learning in a Handful of Trials using Probabilistic Dynamics Models, 2018",
    config=PetsConfig,
    build=build,
    check=check,
    derive=derive,
    parts=Parts(
        source="Replay(Live(Gymnasium))",
        credit=(as_paid,),
        loss=(gaussian_nll,),
        weights=(token_mean,),
    ),
    limitation="plans see as far as the horizon, know of no early end, and cost a thousand times a network's decision.",
)
