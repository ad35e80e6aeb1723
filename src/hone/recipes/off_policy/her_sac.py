"""Hindsight experience replay with soft actor-critic (Andrychowicz et al., 2017; Haarnoja et al., 2018).

Off-policy control of environments with goals and a box of actions. The networks and losses are those of `sac`; the
replay buffer differs: it relabels transitions with goals that the episode reached. The defaults are those that solve
`hone/Reach-v0`, where the same learner without hindsight (`hindsight.share = 0`) stays near 0.
"""

import math
from functools import partial

import torch
from pydantic import Field

from hone.core.config import Config
from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.core.random import generator
from hone.credit.returns import one_step_target
from hone.envs.gym.world import GymConfig, inspect_world, open_world
from hone.models.control.actor_critic import SoftActorCritic
from hone.models.control.mlp import MlpConfig
from hone.objectives.soft import sac_actor_loss, soft_target, temperature_loss, twin_critic_loss
from hone.objectives.weights import token_mean
from hone.recipes.off_policy.sac import actor_objective, critic_objective
from hone.replay.hindsight import HindsightBuffer
from hone.train.config import RunConfig, RunSettings
from hone.train.control.acting import DropFailedEpisodes, NetworkActor
from hone.train.control.hindsight import HindsightConfig, derive_hindsight, goal_spec, hindsight_buffer
from hone.train.control.job import ControlEvaluationConfig, control_job
from hone.train.control.phases import optimizer_phase, target_update
from hone.train.control.replay_config import IterationReplayConfig
from hone.train.control.rows import TransitionRows, transition_rows
from hone.train.control.spaces import network_spaces
from hone.train.job import RecipeParts, RecipeSpec, TrainingJob, checked_run
from hone.train.learner.config import ReplayLearnerConfig, learning_rate_schedule
from hone.train.learner.gradient import GradientLearner
from hone.train.loop import Recipe
from hone.train.sources.live import LiveSource
from hone.train.sources.replay import ReplaySource


class HerSacAlgorithm(Config):
    """The numbers of both papers, for a reward that is paid once."""

    discount: float = Field(default=0.95, ge=0, le=1)
    """Discount factor (gamma)."""
    tau: float = Field(default=0.02, gt=0, le=1)
    """Polyak coefficient of the target networks per update."""
    entropy_per_action: float = -1.0
    """Target entropy of the policy, in nats per dimension of an action scaled to [-1, 1]."""
    first_temperature: float = Field(default=0.01, gt=0)
    """Initial temperature (reward per nat of entropy). Reaching a goal that pays 1 also ends the entropy bonus: at a
    temperature of 1 the policy would avoid the goal."""


class HerSacConfig(RunConfig):
    """A squashed Gaussian policy on Gymnasium environments with goals and a box of actions."""

    run: RunSettings = RunSettings(threads=1, log_every=100, checkpoint_every=5000)
    """Threads, logging, checkpoints and other settings of the run."""
    env: GymConfig
    """The environments."""
    network: MlpConfig = MlpConfig(hidden=[128, 128], activation="relu")
    """The policy and each critic have one."""
    learner: ReplayLearnerConfig = ReplayLearnerConfig(lr=1e-3, max_grad_norm=None)
    """The optimizers."""
    replay: IterationReplayConfig = IterationReplayConfig(collect=1, batch=256, capacity=200_000)
    """The replay buffer."""
    hindsight: HindsightConfig = HindsightConfig()
    """Relabelling of goals."""
    algorithm: HerSacAlgorithm = HerSacAlgorithm()
    """Targets and temperature."""
    evaluation: ControlEvaluationConfig = ControlEvaluationConfig(episodes=100)
    """Evaluation of the policy."""


def build(config: HerSacConfig) -> TrainingJob[SoftActorCritic]:
    """Build the training job. Raises ConfigError and UserCodeError for an invalid environment."""
    memory = hindsight_buffer(config.env, config.replay, config.hindsight)
    world = open_world(config.env, steps=config.replay.collect, seed=config.seed, squashed=True)
    space = network_spaces(world.envs.single_observation_space, world.envs.single_action_space)
    policy = SoftActorCritic(space, config.network, seed=config.seed).to(config.run.device)
    actions, algorithm = policy.action_size, config.algorithm
    with torch.no_grad():
        policy.log_temperature.fill_(math.log(algorithm.first_temperature))

    def layout(transitions: Episodes, credits: Credits) -> TransitionRows:
        draws = generator(config.seed, "sac", learner.updates)
        noise = draws.standard_normal((len(transitions), 2, actions), "float32")
        return transition_rows(transitions, credits, noise, device=config.run.device)

    target_entropy = algorithm.entropy_per_action * actions
    heated = [*policy.actor.parameters(), policy.log_temperature]
    learner = GradientLearner(
        policy=policy,
        layout=layout,
        phases=[
            optimizer_phase("critic", critic_objective, policy.critics.parameters(), config.learner),
            optimizer_phase("actor", partial(actor_objective, target_entropy=target_entropy), heated, config.learner),
        ],
        seed=config.seed,
        learning_rate=learning_rate_schedule(config.learner, config.learner.optimizer_steps(config.steps)),
        minibatches=config.learner.updates_per_iteration,
        shuffle=False,
        after_step=target_update([(policy.targets, policy.critics)], tau=algorithm.tau),
    )
    source = ReplaySource(
        DropFailedEpisodes(LiveSource(world, NetworkActor(policy.numpy_policy())), world),
        buffer=memory,
        sample_size=config.replay.batch * config.learner.updates_per_iteration,
        warmup=config.replay.warmup,
        seed=config.seed,
    )
    recipe = Recipe(source=source, credit=partial(one_step_target, discount=algorithm.discount), learner=learner)
    return control_job(recipe, env=config.env, evaluation=config.evaluation, seed=config.seed, world=world)


def check(config: HerSacConfig) -> list[str]:
    """Warnings about the config; raises ConfigError for a run that cannot work."""
    goal_spec(config.env)
    return inspect_world(config.env, seed=config.seed, squashed=True)[1]


def derive(config: HerSacConfig) -> dict[str, str]:
    """Figures that follow from the config, shown by `hone plan`."""
    return derive_hindsight(
        config.env,
        steps=config.steps,
        updates=config.learner.updates_per_iteration,
        replay=config.replay,
        hindsight=config.hindsight,
    )


ENTRY = RecipeSpec(
    summary="off-policy control with goals, continuous actions: hindsight experience replay",
    paper="Andrychowicz et al., Hindsight Experience Replay, 2017",
    config=HerSacConfig,
    open=checked_run(check, build),
    derive=derive,
    parts=RecipeParts(
        source="Replay(Live(Gymnasium with goals), Hindsight)",
        credit=(one_step_target,),
        loss=(twin_critic_loss, soft_target, sac_actor_loss, temperature_loss, HindsightBuffer),
        weights=(token_mean,),
    ),
    limitation="needs goals that are functions of the observation, and a reward that can be computed for any goal.",
)
