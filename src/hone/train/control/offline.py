"""What the recipes on a log share: the log encoded as rows, its source, and the job.

Belongs here: everything between a file of decisions and a network that learns from it. Does not: any one algorithm.

A row is what a network reads: observations standardised by the log, finite actions counted from 0, boxes scaled to
[-1, 1]. An iteration takes the rows of all its updates out of the log at once, and draws their noise at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.core.random import generator
from hone.credit.returns import one_step_target
from hone.envs.gym.world import GymConfig, inspect_world
from hone.envs.logs.parquet import DecisionLog, read_log
from hone.models.control.actor_critic import ControlPolicy
from hone.models.control.mlp import BoxActions, DiscreteActions, MlpConfig, PolicySpaces
from hone.objectives.terms import LossTerms
from hone.train.config import RunConfig, RunSettings
from hone.train.control.job import ControlEvaluationConfig, control_job, decisions_fingerprint
from hone.train.control.phases import optimizer_phase as plain_phase
from hone.train.control.rows import DecisionRows, split_decision_rows
from hone.train.control.spaces import log_spaces
from hone.train.job import TrainingJob
from hone.train.learner.config import OptimizerConfig, ReplayLearnerConfig, learning_rate_schedule
from hone.train.learner.gradient import GradientLearner, OptimizerPhase
from hone.train.loop import Recipe
from hone.train.sources.logged import LogSource

P = TypeVar("P", bound=ControlPolicy)
Q = TypeVar("Q", bound=nn.Module)


class OfflineRunConfig(RunConfig):
    """A policy from a log of decisions. The last checkpoint is evaluated; no best checkpoint is selected."""

    run: RunSettings = RunSettings(threads=1, log_every=100, checkpoint_every=1000)
    """Threads, logging, checkpoints and other settings of the run."""
    log: str
    """A parquet file written by hone, or a Minari data set (folder or HDF5 file)."""
    env: GymConfig | None = None
    """Environment of the evaluations; None: no evaluation."""
    network: MlpConfig = MlpConfig(hidden=[256, 256], activation="relu")
    """Every network of the policy has this shape."""
    learner: ReplayLearnerConfig = ReplayLearnerConfig(lr=3e-4, updates_per_iteration=10, max_grad_norm=None)
    """The optimizers."""
    batch: int = Field(default=256, ge=1)
    """Transitions per update."""
    evaluation: ControlEvaluationConfig = ControlEvaluationConfig()
    """Evaluation of the policy."""


# ---------------------------------------------------------------------------------------------- rows


@dataclass(frozen=True, kw_only=True)
class LoggedRows(DecisionRows):
    """Decisions of a log, encoded."""

    seen: Tensor
    """`[n, size]`"""
    chosen: Tensor
    """`[n]` numbers from 0, or `[n, a]` in [-1, 1]."""
    reward: Tensor
    discount: Tensor
    """`[n]` on the worth of `after`; 0 where the world ended."""
    next_seen: Tensor
    """`[n, size]` what was seen next."""
    noise: Tensor
    """`[n, draws]` standard normal numbers of this update; they travel with the row, so that no split can change
    them."""

    def take(self, rows: NDArray[np.int64]) -> Self:
        """Views, where the rows stand together: the updates of a turn are cut out of it in order."""
        first, count = int(rows[0]), len(rows)
        if int(rows[-1]) - first + 1 != count or (np.diff(rows) != 1).any():
            return super().take(rows)
        columns = {name: column[first : first + count] for name, column in vars(self).items() if name != "weight"}
        return type(self)(weight=self.weight[:count], **columns)

    def to(self, dtype: torch.dtype) -> Self:
        """The same in another precision."""
        columns: dict[str, Tensor] = vars(self)
        return type(self)(
            **{name: column.to(dtype) if column.is_floating_point() else column for name, column in columns.items()}
        )


def logged_rows(
    transitions: Episodes, credits: Credits, noise: NDArray[np.float32], *, spaces: PolicySpaces, device: str = "cpu"
) -> LoggedRows:
    """Rows of single-decision episodes; `credits` from `one_step_target`."""
    assert credits.discount is not None
    assert transitions.final is not None
    columns = {
        "weight": np.ones(transitions.decisions, np.float32),
        "seen": spaces.inputs.array(transitions.observations),
        "chosen": encode_actions(transitions.chosen, spaces.actions),
        "reward": credits.advantage,
        "discount": credits.discount,
        "next_seen": spaces.inputs.array(transitions.final),
        "noise": noise,
    }
    return LoggedRows(
        **{name: torch.from_numpy(np.ascontiguousarray(column)).to(device) for name, column in columns.items()}
    )


def encode_actions(chosen: NDArray[np.generic], actions: DiscreteActions | BoxActions) -> NDArray[np.generic]:
    """Finite actions from 0 `[n]`, points of a box on the scale [-1, 1] `[n, a]`; an unbounded box as it is."""
    if isinstance(actions, DiscreteActions):
        return chosen.astype(np.int64) - actions.start
    flat = chosen.reshape(len(chosen), -1).astype(np.float32)
    if not actions.is_finite:
        return flat
    low, high = np.asarray(actions.low, np.float32), np.asarray(actions.high, np.float32)
    return np.clip((flat - 0.5 * (low + high)) / (0.5 * (high - low)), -1.0, 1.0)


R = TypeVar("R", bound=LoggedRows)


# ---------------------------------------------------------------------------------------------- learning


def offline_phase(
    name: str,
    objective: Callable[[Q, R], LossTerms],
    parameters: Sequence[nn.Parameter],
    config: OptimizerConfig,
) -> OptimizerPhase[Q, R]:
    """One of several optimizer steps per minibatch; rows come in the precision of the policy that is stepped."""
    return plain_phase(name, partial(_objective_in_policy_dtype, objective), parameters, config)


def _objective_in_policy_dtype(objective: Callable[[Q, R], LossTerms], policy: Q, rows: R) -> LossTerms:
    return objective(policy, rows_in_dtype(rows, next(policy.parameters()).dtype))


def rows_in_dtype(rows: R, dtype: torch.dtype) -> R:
    """`rows`, converted where they are not so already."""
    return rows if rows.reward.dtype == dtype else rows.to(dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineMethod:
    """What a recipe adds to the job that all of them share."""

    phases: Sequence[OptimizerPhase[Any, Any]]
    noise_size: int = 0
    """Random numbers of a row."""
    discount: float
    """Discount factor (gamma)."""
    after_step: Callable[[Any], None] | None = None
    after_step_every: int = 1
    """Updates between calls of `after_step`."""


def open_log(config: OfflineRunConfig) -> tuple[DecisionLog, PolicySpaces]:
    """The log and its spaces, standardised by it. Raises DataError for what is wrong with it."""
    log = read_log(Path(config.log))
    return log, log_spaces(log)


def offline_job(config: OfflineRunConfig, log: DecisionLog, policy: P, method: OfflineMethod) -> TrainingJob[P]:
    """The job of `policy` on the log."""

    def layout(transitions: Episodes, credits: Credits) -> LoggedRows:
        shape = (transitions.decisions, method.noise_size)
        noise = generator(config.seed, "offline", learner.updates).standard_normal(shape, "float32")
        return logged_rows(transitions, credits, noise, spaces=policy.spaces, device=config.run.device)

    def after_step(policy: P) -> None:
        if method.after_step is not None and (learner.updates + 1) % method.after_step_every == 0:
            method.after_step(policy)

    learner = GradientLearner(
        policy=policy,
        layout=layout,
        phases=method.phases,
        seed=config.seed,
        learning_rate=learning_rate_schedule(config.learner, config.learner.optimizer_steps(config.steps)),
        epochs=config.learner.epochs,
        minibatches=config.learner.updates_per_iteration,
        shuffle=False,
        after_step=after_step,
        split=split_decision_rows,
    )
    source = LogSource(
        log.episodes.transitions(), batch_size=config.batch * config.learner.updates_per_iteration, seed=config.seed
    )
    return control_job(
        Recipe(source=source, credit=partial(one_step_target, discount=method.discount), learner=learner),
        env=config.env,
        evaluation=config.evaluation,
        seed=config.seed,
        dataset_fingerprint=decisions_fingerprint(log.episodes),
    )


def check_offline(config: OfflineRunConfig) -> list[str]:
    """Warnings about the log and the environment that the policy is judged in. Raises HoneError."""
    read_log(Path(config.log))
    return [] if config.env is None else inspect_world(config.env, seed=config.seed)[1]


def derive_offline(config: OfflineRunConfig) -> dict[str, str]:
    """Figures that follow from the config, shown by `hone plan`."""
    updates = config.learner.optimizer_steps(config.steps)
    return {
        "updates": f"{config.steps} iterations x "
        f"{config.learner.epochs * config.learner.updates_per_iteration} = {updates}",
        "update": f"{config.batch} transitions",
        "judged": "the last policy, whatever was seen before",
    }
