"""RL^2 (Duan et al., 2016; Wang et al., 2016): a recurrent policy whose hidden state does the learning.

A gated recurrent unit runs through whole trials, each a task of its own drawn from a family, and keeps its state from
one episode of a trial to the next. Proximal policy optimisation trains it to explore early and exploit late; once
trained, it learns a new task without a gradient. The defaults are those that match Thompson sampling on five Bernoulli
arms.
"""

from functools import partial

import torch
from pydantic import Field

from hone.core.config import Config
from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.credit.returns import gae, standardised
from hone.envs.gym.make import describe_placement
from hone.envs.gym.world import GymConfig, inspect_world, open_world
from hone.models.control.mlp import MlpConfig
from hone.models.control.recurrent import RecurrentActorCritic
from hone.objectives.policy import clipped_surrogate
from hone.objectives.terms import LossTerms
from hone.objectives.value import squared_error
from hone.objectives.weights import token_mean
from hone.train.config import RunConfig, RunSettings
from hone.train.control.acting import DropFailedEpisodes, NetworkActor
from hone.train.control.job import ControlEvaluationConfig, control_job
from hone.train.control.meta_rl import TrialRows, predict_trial_values, trial_rows, with_thompson_baseline
from hone.train.control.spaces import network_spaces
from hone.train.job import RecipeParts, RecipeSpec, TrainingJob, checked_run
from hone.train.learner.config import LearnerConfig, learning_rate_schedule, policy_phase
from hone.train.learner.gradient import GradientLearner
from hone.train.loop import Recipe
from hone.train.sources.live import LiveSource


class Rl2Algorithm(Config):
    """Credit and loss."""

    discount: float = Field(default=0.9, ge=0, le=1)
    """Discount factor (gamma), within a trial and across its episodes."""
    gae_lambda: float = Field(default=0.3, ge=0, le=1)
    """GAE's lambda."""
    clip: float = Field(default=0.2, gt=0, lt=1)
    """Clip width of the probability ratio around 1."""
    value_weight: float = Field(default=0.5, ge=0)
    """Weight of the critic's squared error."""
    entropy_weight: float = Field(default=0.005, ge=0)
    """Weight of the entropy bonus."""


class Rl2Config(RunConfig):
    """Recurrent policy on trials."""

    run: RunSettings = RunSettings(threads=1, certify=False, log_every=10, checkpoint_every=100)
    """Threads, logging, checkpoints and other settings of the run; `certify` is off, because its invented episodes
    of uneven lengths are not trials."""
    env: GymConfig
    """The task family: `hone/BanditTrials-v0`, `hone/ChainTrials-v0`, or one that marks the beginning of a trial."""
    rollout_steps: int = Field(default=50, ge=1)
    """Steps of each environment per iteration: a trial's `pulls`, or a multiple."""
    network: MlpConfig = MlpConfig(hidden=[48])
    """The recurrent unit: one layer."""
    learner: LearnerConfig = LearnerConfig(lr=1e-2, lr_decay="linear", epochs=3, minibatches=4, max_grad_norm=0.5)
    """The optimizer; `minibatches` of whole trials per epoch."""
    algorithm: Rl2Algorithm = Rl2Algorithm()
    """Credit and loss."""
    evaluation: ControlEvaluationConfig = ControlEvaluationConfig(episodes=1000)
    """Trials of an evaluation, each with a task of its own."""


def objective(policy: RecurrentActorCritic, rows: TrialRows, *, algorithm: Rl2Algorithm) -> LossTerms:
    """Clipped surrogate + value_weight * value error - entropy_weight * entropy, through time."""
    now = policy.evaluate_actions(rows.seen, rows.chosen)
    assert now.value is not None
    clip = algorithm.clip
    surrogate = clipped_surrogate(now.logp, rows.logp.flatten(), rows.advantage.flatten(), low=clip, high=clip)
    critic = squared_error(now.value, rows.target.flatten())
    entropy = now.entropy()
    loss = torch.add(surrogate.loss, critic.loss, alpha=algorithm.value_weight)
    return LossTerms(
        loss=torch.sub(loss, entropy, alpha=algorithm.entropy_weight),
        compute_metrics=lambda: {**surrogate.metrics, **critic.metrics, "policy/entropy_nats": entropy.detach()},
    )


def build(config: Rl2Config) -> TrainingJob[RecurrentActorCritic]:
    """Build the training job. Raises ConfigError and UserCodeError for an invalid environment."""
    world = open_world(config.env, steps=config.rollout_steps, seed=config.seed)
    space = network_spaces(world.envs.single_observation_space, world.envs.single_action_space)
    policy = RecurrentActorCritic(space, config.network, seed=config.seed)
    algorithm, learning = config.algorithm, config.learner

    def credit(episodes: Episodes, values: Values) -> Credits:
        return standardised(gae(episodes, values, discount=algorithm.discount, gae_lambda=algorithm.gae_lambda))

    learner = GradientLearner(
        policy=policy,
        layout=trial_rows,
        phases=[policy_phase(policy, partial(objective, algorithm=algorithm), learning)],
        seed=config.seed,
        learning_rate=learning_rate_schedule(learning, learning.optimizer_steps(config.steps)),
        predict_values=predict_trial_values,
        epochs=learning.epochs,
        minibatches=learning.minibatches,
        micro_batch_tokens=1 << 62,
    )
    recipe = Recipe(
        source=DropFailedEpisodes(LiveSource(world, NetworkActor(policy.numpy_policy())), world),
        credit=credit,
        learner=learner,
    )
    job = control_job(recipe, env=config.env, evaluation=config.evaluation, seed=config.seed, world=world)
    return with_thompson_baseline(job, config.env, episodes=config.evaluation.episodes, seed=config.seed)


def check(config: Rl2Config) -> list[str]:
    """Warnings about the config; raises ConfigError for a run that cannot work."""
    found, warnings = inspect_world(config.env, seed=config.seed)
    RecurrentActorCritic(network_spaces(*found), config.network, seed=0)
    return warnings


def derive(config: Rl2Config) -> dict[str, str]:
    """Figures that follow from the config, shown by `hone plan`."""
    batch = config.env.num_envs * config.rollout_steps
    return {
        "environment steps per iteration": f"{config.env.num_envs} environments x {config.rollout_steps} = {batch}",
        "environment steps": f"{config.steps * batch}",
        "environments": describe_placement(config.env),
        "optimizer steps": f"{config.learner.optimizer_steps(config.steps)}",
    }


ENTRY = RecipeSpec(
    summary="meta-learning: a recurrent policy over whole trials",
    paper="Duan et al., RL^2: Fast Reinforcement Learning via Slow Reinforcement Learning, 2016",
    config=Rl2Config,
    open=checked_run(check, build),
    derive=derive,
    parts=RecipeParts(
        source="Live(trials)",
        credit=(standardised, gae),
        loss=(clipped_surrogate, squared_error),
        weights=(token_mean,),
    ),
    limitation="generalises only to tasks of the training family, and to trials of the training length.",
)
