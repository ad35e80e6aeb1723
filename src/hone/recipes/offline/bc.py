"""Behaviour cloning (Pomerleau, 1989): the policy under which the logged actions are likeliest."""

from functools import partial
from pathlib import Path

from pydantic import Field

from hone.credit.returns import as_paid
from hone.envs.gym.world import GymConfig, inspect_world
from hone.envs.logs.parquet import read_log
from hone.models.control.actor_critic import ActorCritic
from hone.models.control.mlp import MlpConfig
from hone.objectives.offline import imitation
from hone.objectives.terms import Terms
from hone.objectives.weights import token_mean
from hone.train.config import RunConfig, RunSettings
from hone.train.control.job import JudgeConfig, control_job, fingerprint
from hone.train.control.rows import StepRows, step_rows
from hone.train.control.spaces import log_spaces
from hone.train.job import Entry, Job, Parts
from hone.train.learner.config import LearnerConfig, policy_phase, schedule
from hone.train.learner.gradient import GradientLearner
from hone.train.loop import Recipe
from hone.train.sources.logged import Logged


class BcConfig(RunConfig):
    """A policy from a log of decisions."""

    run: RunSettings = RunSettings(threads=1, log_every=100, checkpoint_every=5000)
    """How the run is carried out."""
    log: str
    """A parquet file written by hone, or a Minari data set (folder or HDF5 file)."""
    env: GymConfig | None = None
    """Where the policy is judged; None: nowhere."""
    network: MlpConfig = MlpConfig(hidden=[256, 256], activation="relu")
    """The policy."""
    learner: LearnerConfig = LearnerConfig(lr=1e-3, max_grad_norm=None)
    """The optimizer; `minibatches` is the number of updates per turn of the loop."""
    batch: int = Field(default=256, ge=1)
    """Decisions per update."""
    judge: JudgeConfig = JudgeConfig()
    """How the policy is tried."""


def objective(policy: ActorCritic, rows: StepRows) -> Terms:
    """-log probability of the logged action."""
    now = policy.judge(rows.seen, rows.chosen)
    terms = imitation(now.logp)
    return Terms(loss=terms.loss, told=lambda: {**terms.metrics, "policy/entropy_nats": now.entropy().detach()})


def build(config: BcConfig) -> Job[ActorCritic]:
    """Raises DataError for what is wrong with the log."""
    log = read_log(Path(config.log))
    space = log_spaces(log)
    policy = ActorCritic(space, config.network, seed=config.seed, critic=False).to(config.run.device)
    learner = GradientLearner(
        policy=policy,
        layout=partial(step_rows, device=config.run.device),
        phases=[policy_phase(policy, objective, config.learner)],
        seed=config.seed,
        learning_rate=schedule(config.learner, config.learner.optimizer_steps(config.steps)),
        minibatches=config.learner.minibatches,
        shuffle=False,
    )
    decisions = log.episodes.transitions()
    source = Logged(decisions, batch=config.batch * config.learner.minibatches, seed=config.seed)
    return control_job(
        Recipe(source=source, credit=as_paid, learner=learner),
        env=config.env,
        judge=config.judge,
        seed=config.seed,
        fingerprint=fingerprint(log.episodes),
    )


def check(config: BcConfig) -> list[str]:
    read_log(Path(config.log))
    return [] if config.env is None else inspect_world(config.env, seed=config.seed)[1]


def derive(config: BcConfig) -> dict[str, str]:
    updates = config.learner.optimizer_steps(config.steps)
    return {"updates": f"{updates}", "update": f"{config.batch} decisions"}


ENTRY = Entry(
    summary="imitation of a log",
    source="Pomerleau, ALVINN: An Autonomous Land Vehicle in a Neural Network, 1989",
    config=BcConfig,
    build=build,
    check=check,
    derive=derive,
    parts=Parts(source="Logged(log)", credit=(as_paid,), loss=(imitation,), weights=(token_mean,)),
    limitation="as good as the log's own policy, and lost where the log has never been.",
)
