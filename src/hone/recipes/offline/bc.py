"""Behaviour cloning (Pomerleau, 1989): the policy under which the logged actions are likeliest."""

from functools import partial
from pathlib import Path

from pydantic import Field

from hone.credit.returns import reward_as_advantage
from hone.envs.gym.world import GymConfig, inspect_world
from hone.envs.logs.parquet import read_log
from hone.models.control.actor_critic import ActorCritic
from hone.models.control.mlp import MlpConfig
from hone.objectives.offline import behaviour_cloning
from hone.objectives.terms import LossTerms
from hone.objectives.weights import token_mean
from hone.train.config import RunConfig, RunSettings
from hone.train.control.job import ControlEvaluationConfig, control_job, decisions_fingerprint
from hone.train.control.rows import StepRows, step_rows
from hone.train.control.spaces import log_spaces
from hone.train.job import RecipeParts, RecipeSpec, TrainingJob, checked_run
from hone.train.learner.config import ReplayLearnerConfig, learning_rate_schedule, policy_phase
from hone.train.learner.gradient import GradientLearner
from hone.train.loop import Recipe
from hone.train.sources.logged import LogSource


class BcConfig(RunConfig):
    """A policy from a log of decisions."""

    run: RunSettings = RunSettings(threads=1, log_every=100, checkpoint_every=5000)
    """Threads, logging, checkpoints and other settings of the run."""
    log: str
    """A parquet file written by hone, or a Minari data set (folder or HDF5 file)."""
    env: GymConfig | None = None
    """Environment of the evaluations; None: no evaluation."""
    network: MlpConfig = MlpConfig(hidden=[256, 256], activation="relu")
    """The policy."""
    learner: ReplayLearnerConfig = ReplayLearnerConfig(lr=1e-3, max_grad_norm=None)
    """The optimizer."""
    batch: int = Field(default=256, ge=1)
    """Decisions per update."""
    evaluation: ControlEvaluationConfig = ControlEvaluationConfig()
    """Evaluation of the policy."""


def objective(policy: ActorCritic, rows: StepRows) -> LossTerms:
    """-log probability of the logged action."""
    now = policy.evaluate_actions(rows.seen, rows.chosen)
    terms = behaviour_cloning(now.logp)
    return LossTerms(
        loss=terms.loss, compute_metrics=lambda: {**terms.metrics, "policy/entropy_nats": now.entropy().detach()}
    )


def build(config: BcConfig) -> TrainingJob[ActorCritic]:
    """Build the training job. Raises DataError for an invalid log."""
    log = read_log(Path(config.log))
    space = log_spaces(log)
    policy = ActorCritic(space, config.network, seed=config.seed, critic=False).to(config.run.device)
    learner = GradientLearner(
        policy=policy,
        layout=partial(step_rows, device=config.run.device),
        phases=[policy_phase(policy, objective, config.learner)],
        seed=config.seed,
        learning_rate=learning_rate_schedule(config.learner, config.learner.optimizer_steps(config.steps)),
        minibatches=config.learner.updates_per_iteration,
        shuffle=False,
    )
    decisions = log.episodes.transitions()
    source = LogSource(decisions, batch_size=config.batch * config.learner.updates_per_iteration, seed=config.seed)
    return control_job(
        Recipe(source=source, credit=reward_as_advantage, learner=learner),
        env=config.env,
        evaluation=config.evaluation,
        seed=config.seed,
        dataset_fingerprint=decisions_fingerprint(log.episodes),
    )


def check(config: BcConfig) -> list[str]:
    """Warnings about the config; raises ConfigError for a run that cannot work."""
    read_log(Path(config.log))
    return [] if config.env is None else inspect_world(config.env, seed=config.seed)[1]


def derive(config: BcConfig) -> dict[str, str]:
    """Figures that follow from the config, shown by `hone plan`."""
    updates = config.learner.optimizer_steps(config.steps)
    return {"updates": f"{updates}", "update": f"{config.batch} decisions"}


ENTRY = RecipeSpec(
    summary="imitation of a log",
    paper="Pomerleau, ALVINN: An Autonomous Land Vehicle in a Neural Network, 1989",
    config=BcConfig,
    open=checked_run(check, build),
    derive=derive,
    parts=RecipeParts(
        source="Logged(log)", credit=(reward_as_advantage,), loss=(behaviour_cloning,), weights=(token_mean,)
    ),
    limitation="as good as the log's own policy, and lost where the log has never been.",
)
