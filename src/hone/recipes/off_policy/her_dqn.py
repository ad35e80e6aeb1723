"""Hindsight experience replay with action values (Andrychowicz et al., 2017, 1707.01495).

Off-policy control of environments with goals: replayed transitions are relabelled with goals that the episode reached,
so that every episode meets some goal. The learner is double DQN. The defaults are those that solve `hone/BitFlip-v0`
with 15 bits, where the same learner without hindsight (`hindsight.share = 0`) stays at 0.
"""

from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from hone.core.config import Config
from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError
from hone.credit.returns import one_step_target
from hone.envs.gym.world import GymConfig, inspect_world, open_world
from hone.models.control.actor_critic import QNetworkPolicy, polyak_update
from hone.models.control.mlp import DiscreteActions, MlpConfig
from hone.models.control.numpy_policies import HasNumpyPolicy, NumpyGreedyPolicy
from hone.objectives.td import double_target
from hone.objectives.terms import LossTerms
from hone.objectives.value import squared_error
from hone.objectives.weights import token_mean
from hone.replay.hindsight import HindsightBuffer
from hone.train.config import RunConfig, RunSettings
from hone.train.control.acting import DropFailedEpisodes, NetworkActor
from hone.train.control.hindsight import HindsightConfig, derive_hindsight, goal_spec, hindsight_buffer
from hone.train.control.job import ControlEvaluationConfig, control_job
from hone.train.control.phases import optimizer_phase
from hone.train.control.replay_config import IterationReplayConfig
from hone.train.control.rows import TransitionRows, transition_rows
from hone.train.control.spaces import network_spaces
from hone.train.job import RecipeParts, RecipeSpec, TrainingJob, checked_run
from hone.train.learner.config import ReplayLearnerConfig, learning_rate_schedule
from hone.train.learner.gradient import GradientLearner
from hone.train.loop import Recipe
from hone.train.sources.live import LiveSource
from hone.train.sources.replay import ReplaySource


class HerDqnAlgorithm(Config):
    """The numbers of the paper, for short episodes."""

    discount: float = Field(default=0.85, ge=0, le=1)
    """Discount factor (gamma); a low one separates the values of near and far goals early."""
    epsilon: float = Field(default=0.1, ge=0, le=1)
    """Epsilon of the epsilon-greedy exploration during training."""
    tau: float = Field(default=0.05, gt=0, le=1)
    """Polyak coefficient of the target networks per update."""
    value_range: list[float] = Field(default=[0.0, 1.0], min_length=2, max_length=2)
    """Lowest and highest possible return; targets are clipped to this range, as in the paper. For a reward of 1 at
    the goal: 0 and 1; for a reward of -1 per step: -1 / (1 - discount) and 0."""


class HerDqnConfig(RunConfig):
    """Action values on Gymnasium environments with goals and a finite set of actions."""

    run: RunSettings = RunSettings(threads=1, log_every=100, checkpoint_every=5000)
    """Threads, logging, checkpoints and other settings of the run."""
    env: GymConfig
    """The environments."""
    network: MlpConfig = MlpConfig(hidden=[256], activation="relu")
    """Q network and target network have one each."""
    learner: ReplayLearnerConfig = ReplayLearnerConfig(lr=1e-3, updates_per_iteration=4, max_grad_norm=None)
    """The optimizer."""
    replay: IterationReplayConfig = IterationReplayConfig(collect=1, batch=256, capacity=200_000)
    """The replay buffer."""
    hindsight: HindsightConfig = HindsightConfig()
    """Relabelling of goals."""
    algorithm: HerDqnAlgorithm = HerDqnAlgorithm()
    """Targets and exploration."""
    evaluation: ControlEvaluationConfig = ControlEvaluationConfig(episodes=100)
    """Evaluation of the policy."""


@dataclass
class EpsilonActor(NetworkActor):
    """Greedy, but for a share of its decisions."""

    epsilon: float = field(kw_only=True, default=0.0)

    def publish(self, policy: HasNumpyPolicy, version: int) -> None:
        acting = policy.numpy_policy()
        assert isinstance(acting, NumpyGreedyPolicy)
        self.numpy_policy, self.version = replace(acting, epsilon=self.epsilon), version


def objective(policy: QNetworkPolicy, rows: TransitionRows, *, low: float, high: float) -> LossTerms:
    """Squared error of the chosen action's value against the double Q-learning target."""
    actions = policy.spaces.actions
    assert isinstance(actions, DiscreteActions)
    with torch.no_grad():
        now, slow = policy.q_values(rows.next_seen), policy.target_q_values(rows.next_seen)
    target = double_target(rows.reward, rows.discount, now, slow).clamp(low, high)
    value = policy.q_values(rows.seen).gather(1, (rows.chosen - actions.start)[:, None]).squeeze(1)
    return squared_error(value, target)


def transition_rows_without_noise(transitions: Episodes, credits: Credits, *, device: str) -> TransitionRows:
    """No random numbers travel with them."""
    nothing: NDArray[np.float32] = np.zeros((len(transitions), 0), dtype=np.float32)
    return transition_rows(transitions, credits, nothing, device=device)


def build(config: HerDqnConfig) -> TrainingJob[QNetworkPolicy]:
    """Build the training job. Raises ConfigError and UserCodeError for an invalid environment."""
    memory = hindsight_buffer(config.env, config.replay, config.hindsight)
    world = open_world(config.env, steps=config.replay.collect, seed=config.seed)
    space = network_spaces(world.envs.single_observation_space, world.envs.single_action_space)
    if not isinstance(space.actions, DiscreteActions):
        raise ConfigError(f"her_dqn needs a finite set of actions, got {space.actions}; for a box of them use her_sac")
    policy = QNetworkPolicy(space, config.network, seed=config.seed).to(config.run.device)
    low, high = config.algorithm.value_range
    learner = GradientLearner(
        policy=policy,
        layout=partial(transition_rows_without_noise, device=config.run.device),
        phases=[
            optimizer_phase(
                "values", partial(objective, low=low, high=high), policy.values.parameters(), config.learner
            )
        ],
        seed=config.seed,
        learning_rate=learning_rate_schedule(config.learner, config.learner.optimizer_steps(config.steps)),
        minibatches=config.learner.updates_per_iteration,
        shuffle=False,
        after_step=lambda it: polyak_update(it.target.parameters(), it.values.parameters(), tau=config.algorithm.tau),
    )
    actor = EpsilonActor(policy.numpy_policy(), epsilon=config.algorithm.epsilon)
    source = ReplaySource(
        DropFailedEpisodes(LiveSource(world, actor), world),
        buffer=memory,
        sample_size=config.replay.batch * config.learner.updates_per_iteration,
        warmup=config.replay.warmup,
        seed=config.seed,
    )
    recipe = Recipe(source=source, credit=partial(one_step_target, discount=config.algorithm.discount), learner=learner)
    return control_job(recipe, env=config.env, evaluation=config.evaluation, seed=config.seed, world=world)


def check(config: HerDqnConfig) -> list[str]:
    """Warnings about the config; raises ConfigError for a run that cannot work."""
    goal_spec(config.env)
    return inspect_world(config.env, seed=config.seed)[1]


def derive(config: HerDqnConfig) -> dict[str, str]:
    """Figures that follow from the config, shown by `hone plan`."""
    return derive_hindsight(
        config.env,
        steps=config.steps,
        updates=config.learner.updates_per_iteration,
        replay=config.replay,
        hindsight=config.hindsight,
    )


ENTRY = RecipeSpec(
    summary="off-policy control with goals, finite actions: hindsight experience replay",
    paper="Andrychowicz et al., Hindsight Experience Replay, 2017",
    config=HerDqnConfig,
    open=checked_run(check, build),
    derive=derive,
    parts=RecipeParts(
        source="Replay(Live(Gymnasium with goals), Hindsight)",
        credit=(one_step_target,),
        loss=(squared_error, double_target, HindsightBuffer),
        weights=(token_mean,),
    ),
    limitation="needs goals that are functions of the observation, and a reward that can be computed for any goal.",
)
