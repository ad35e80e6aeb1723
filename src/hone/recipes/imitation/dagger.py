"""DAgger (Ross, Gordon & Bagnell, 2011): imitation in the states that the learner reaches, labelled by an expert.

Each iteration acts, asks the expert for its action in every visited state, and clones all labels so far. Behaviour
cloning of a log sees only the expert's states; mistakes lead to states without labels, and the loss grows with the
square of an episode's length. Labels in the learner's own states keep it linear.
"""

from dataclasses import replace
from functools import partial

from pydantic import Field

from hone.core.config import Config
from hone.credit.returns import reward_as_advantage
from hone.envs.gym.make import describe_placement
from hone.envs.gym.world import GymConfig, inspect_world, open_world
from hone.models.control.actor_critic import ActorCritic
from hone.models.control.mlp import MlpConfig
from hone.objectives.offline import behaviour_cloning
from hone.objectives.weights import token_mean
from hone.recipes.offline.bc import objective
from hone.replay.ring import RingBuffer
from hone.train.config import RunConfig, RunSettings
from hone.train.control.acting import DropFailedEpisodes
from hone.train.control.experts import DaggerActor, ExpertConfig, ExpertLabelledSource, ExpertProgram, open_expert
from hone.train.control.job import ControlEvaluationConfig, control_job
from hone.train.control.on_policy import require_clipping
from hone.train.control.rows import step_rows
from hone.train.control.spaces import network_spaces
from hone.train.job import RecipeParts, RecipeSpec, TrainingJob, checked_run
from hone.train.learner.config import ReplayLearnerConfig, learning_rate_schedule, policy_phase
from hone.train.learner.gradient import GradientLearner
from hone.train.loop import Recipe
from hone.train.sources.live import LiveSource
from hone.train.sources.replay import ReplaySource


class DaggerAlgorithm(Config):
    """Schedule of the expert's share of decisions, and the buffer of labelled states."""

    beta_decay: float = Field(default=0.5, ge=0, le=1)
    """The expert acts with probability beta_decay^i in iteration i = 0, 1, ...: always in the first; with 0 never
    afterwards."""
    replay_capacity: int = Field(default=1_000_000, ge=1)
    """Capacity of the buffer of labelled states."""
    batch: int = Field(default=256, ge=1)
    """Decisions per update."""


class DaggerConfig(RunConfig):
    """A policy from an expert that can be asked."""

    run: RunSettings = RunSettings(threads=1)
    """Threads, logging, checkpoints and other settings of the run."""
    env: GymConfig
    """The environments."""
    expert: ExpertConfig
    """The expert."""
    rollout_steps: int = Field(default=100, ge=1)
    """Steps of each environment per iteration, every one of them labelled."""
    algorithm: DaggerAlgorithm = DaggerAlgorithm()
    """Schedule of the expert's share of decisions, and the buffer of labelled states."""
    network: MlpConfig = MlpConfig(hidden=[64, 64])
    """The policy."""
    learner: ReplayLearnerConfig = ReplayLearnerConfig(lr=1e-3, updates_per_iteration=50, max_grad_norm=None)
    """The optimizer."""
    evaluation: ControlEvaluationConfig = ControlEvaluationConfig()
    """Evaluation of the policy."""


def build(config: DaggerConfig) -> TrainingJob[ActorCritic]:
    """Raises ConfigError, DataError and UserCodeError for what is wrong with the expert and the environment."""
    expert, close = open_expert(config.expert)
    world = open_world(config.env, steps=config.rollout_steps, seed=config.seed)
    space = network_spaces(world.envs.single_observation_space, world.envs.single_action_space)
    require_clipping(config.env, space)
    policy = ActorCritic(space, config.network, seed=config.seed, critic=False).to(config.run.device)
    updates = config.learner.updates_per_iteration
    learner = GradientLearner(
        policy=policy,
        layout=partial(step_rows, device=config.run.device),
        phases=[policy_phase(policy, objective, config.learner)],
        seed=config.seed,
        learning_rate=learning_rate_schedule(config.learner, config.learner.optimizer_steps(config.steps)),
        minibatches=updates,
        epochs=config.learner.epochs,
        shuffle=False,
    )
    actor = DaggerActor(
        policy.numpy_policy(), expert=expert, actions=space.actions, beta_decay=config.algorithm.beta_decay
    )
    source = ReplaySource(
        ExpertLabelledSource(DropFailedEpisodes(LiveSource(world, actor), world), expert, space.actions),
        buffer=RingBuffer(config.algorithm.replay_capacity),
        sample_size=config.algorithm.batch * updates,
        warmup=1,
        seed=config.seed,
    )
    recipe = Recipe(source=source, credit=reward_as_advantage, learner=learner)
    job = control_job(recipe, env=config.env, evaluation=config.evaluation, seed=config.seed, world=world)

    def end() -> None:
        close()
        world.close()

    return replace(job, close=end)


def check(config: DaggerConfig) -> list[str]:
    """Warnings about the config; raises ConfigError for a run that cannot work."""
    _, close = open_expert(config.expert)
    close()
    found, warnings = inspect_world(config.env, seed=config.seed)
    require_clipping(config.env, network_spaces(*found))
    return warnings


def derive(config: DaggerConfig) -> dict[str, str]:
    """Figures that follow from the config, shown by `hone plan`."""
    asked = config.env.num_envs * config.rollout_steps
    where = "in a process of its own" if isinstance(config.expert, ExpertProgram) else config.expert.policy
    return {
        "expert": where,
        "states labelled": f"{config.steps} iterations x {asked} = {config.steps * asked}",
        "environments": describe_placement(config.env),
        "updates": f"{config.learner.optimizer_steps(config.steps)} of {config.algorithm.batch} decisions",
    }


ENTRY = RecipeSpec(
    summary="imitation of an expert that can be asked, in the states that the learner reaches",
    paper="Ross et al., A Reduction of Imitation Learning ... to No-Regret Online Learning, 2011",
    config=DaggerConfig,
    open=checked_run(check, build),
    derive=derive,
    parts=RecipeParts(
        source="Replay(Labelled(Live(Gymnasium)))",
        credit=(reward_as_advantage,),
        loss=(behaviour_cloning,),
        weights=(token_mean,),
    ),
    limitation="the expert is asked about every state, also where the learner's mistakes are dangerous to make.",
)
