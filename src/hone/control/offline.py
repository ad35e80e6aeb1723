"""What the recipes on a log share: the log encoded as rows, its source, and the job.

Belongs here: everything between a file of decisions and a network that learns from it. Does not: any one algorithm.

A row is what a network reads: observations standardised by the log, finite actions counted from 0, boxes scaled to
[-1, 1]. An iteration takes the rows of all its updates out of the log at once, and draws their noise at once.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from hone.control.environments.play import open_evaluation_envs
from hone.control.environments.subprocess_env import reset_seeded
from hone.control.environments.world import GymConfig, GymSpaces, inspect_world
from hone.control.experts import require_same_spaces
from hone.control.job import ControlRunConfig, control_job, decisions_fingerprint
from hone.control.logs.formats import LogDataConfig
from hone.control.logs.parquet import AS_WRITTEN, BehaviourLog, describe_log, joined_logs
from hone.control.networks.actor_critic import ControlPolicy
from hone.control.networks.mlp import BoxActions, DiscreteActions, MlpConfig, PolicySpaces
from hone.control.off_policy import rows_with_noise
from hone.control.phases import LearningMethod, method_learner
from hone.control.rows import TransitionRows, split_decision_rows
from hone.control.spaces import log_spaces, network_spaces
from hone.core.config import new_default
from hone.core.episodes import Episodes
from hone.core.errors import run_all_checks
from hone.core.random import key
from hone.credit.returns import one_step_target
from hone.learner.config import ReplayLearnerConfig
from hone.learner.gradient import OptimizerPhase
from hone.objectives.terms import LossTerms
from hone.objectives.weights import token_mean
from hone.run.job import OpenedRun, RecipeParts, RunSettings, TrainingJob, opened_run
from hone.run.loop import Recipe
from hone.run.recipe_parts import recipe_parts
from hone.sources.logged import LogSource

P = TypeVar("P", bound=ControlPolicy)
Q = TypeVar("Q", bound=nn.Module)


class OfflineRunConfig(ControlRunConfig):
    """A policy from a log of decisions. The last checkpoint is evaluated; no best checkpoint is selected."""

    run = new_default(RunSettings(threads=1, log_every=100, checkpoint_every=1000))
    log: str | Annotated[list[str], Field(min_length=1)]
    """A parquet file written by hone, a frozen view of a decision log, a Minari data set (folder or HDF5 file), or a
    file of another program: CSV, .npz, or HDF5 of D4RL or d3rlpy. Several of the same spaces are one log."""
    data: LogDataConfig = LogDataConfig()
    """Columns and spaces of a log that another program wrote."""
    env: GymConfig | None = None
    """Environment of the evaluations; None: no evaluation."""
    network: MlpConfig = MlpConfig(hidden=[256, 256], activation="relu")
    """Shape of every network of the policy."""
    learner: ReplayLearnerConfig = ReplayLearnerConfig(lr=3e-4, updates_per_iteration=10, max_grad_norm=None)
    """The optimizers."""
    batch: int = Field(default=256, ge=1)
    """Transitions per update."""

    read_log: ClassVar["_LogReader"]
    """Reader of the recipe's log."""

    def method(self, spaces: PolicySpaces) -> LearningMethod[Any]:
        """Networks and losses of the recipe."""
        raise TypeError(f"{type(self).__name__} names no method for {spaces}")

    @classmethod
    def parts(cls) -> RecipeParts:
        return recipe_parts(cls.method, source="Logged(log)", weights=(token_mean,))

    def derive(self) -> dict[str, str]:
        """Figures that follow from the config, shown by `hone plan`."""
        updates = self.learner.optimizer_steps(1)
        return {
            "updates": f"{self.steps} iterations x {updates} = {self.steps * updates}",
            "update": f"{self.batch} transitions",
            "judged": "the last policy, whatever was seen before",
        }

    def open(self) -> OpenedRun:
        """The log, read once, and a check of the environment that the policy is evaluated in. Raises HoneError."""
        files = [self.log] if isinstance(self.log, str) else self.log
        known: list[GymSpaces] = []
        warnings: list[str] = []

        def environment() -> None:
            if self.env is not None:
                spaces, notes = inspect_world(self.env, seed=self.seed)
                known.append(spaces)
                warnings.extend(notes)

        def decisions() -> BehaviourLog:
            paths = [Path(one) for one in files]
            spaces = known[0] if known else None
            read = {str(path): partial(self.read_log, path, spaces=spaces, data=self.data) for path in paths}
            logs: dict[str, BehaviourLog] = run_all_checks(read)
            return joined_logs(paths, [logs[str(path)] for path in paths]) if len(paths) > 1 else logs[str(paths[0])]

        checks: dict[str, Callable[[], Any]] = {"env": environment, "log": decisions}
        log: BehaviourLog = run_all_checks(checks)["log"]
        theirs = network_spaces(log.observation_space, log.action_space)
        if known:
            require_same_spaces("log", ", ".join(files), theirs, network_spaces(*known[0]))
        if self.env is not None and log.episodes.mask is None and self._env_tells_masks(self.env):
            warnings.append(
                f"{self.env.id} tells masks of legal actions, and the log has none (column `mask`): values and choices "
                "of illegal actions are learned, too, and only the evaluation leaves them out. Record the log with "
                'masks, or set env.mask = "off"'
            )
        opened = opened_run(log, _build, warnings=[*warnings, *log.notes])
        return replace(opened, notes=[f"log: {describe_log(log)}"])

    def _env_tells_masks(self, env: GymConfig) -> bool:
        with contextlib.closing(open_evaluation_envs(env, episodes=1)) as envs:
            _, masks = reset_seeded(envs, key(self.seed, "offline masks") & 0xFFFFFFFF)
            return masks.now is not None


# ---------------------------------------------------------------------------------------------- rows


def encode_transitions(transitions: Episodes, spaces: PolicySpaces) -> Episodes:
    """Single-decision episodes as networks read them: observations `[n, size]`, actions as of `_encode_actions`."""
    assert transitions.final is not None
    return replace(
        transitions,
        seen=spaces.inputs.array(transitions.observations),
        chosen=_encode_actions(transitions.chosen, spaces.single),
        final=spaces.inputs.array(transitions.final),
    )


def _encode_actions(chosen: NDArray[np.generic], actions: DiscreteActions | BoxActions) -> NDArray[np.generic]:
    """Finite actions from 0 `[n]`, points of a box on the scale [-1, 1] `[n, a]`; an unbounded box as it is."""
    if isinstance(actions, DiscreteActions):
        return chosen.astype(np.int64) - actions.start
    flat = chosen.reshape(len(chosen), -1).astype(np.float32)
    if not actions.is_finite:
        return flat
    return np.clip((flat - actions.middle) / actions.reach, -1.0, 1.0)


R = TypeVar("R", bound=TransitionRows)


# ---------------------------------------------------------------------------------------------- learning


def logged_method(
    config: OfflineRunConfig,
    policy: P,
    phases: Sequence[OptimizerPhase[P, Any]],
    *,
    discount: float,
    noise_size: int = 0,
) -> LearningMethod[P]:
    """Temporal-difference learning on transitions of a log, encoded, in the precision of the policy.

    Each row has `noise_size` random numbers.
    """

    encoded_rows = rows_with_noise(config, "offline", noise_size)

    return LearningMethod(
        policy=policy,
        phases=[replace(one, objective=partial(_objective_in_policy_dtype, one.objective)) for one in phases],
        layout=lambda transitions, credits, updates: encoded_rows(
            encode_transitions(transitions, policy.spaces), credits, updates
        ),
        credit=partial(one_step_target, discount=discount),
        split=split_decision_rows,
    )


def _objective_in_policy_dtype(objective: Callable[[Q, R], LossTerms], policy: Q, rows: R) -> LossTerms:
    return objective(policy, rows_in_dtype(rows, next(policy.parameters()).dtype))


def rows_in_dtype(rows: R, dtype: torch.dtype) -> R:
    """`rows`, converted where they are of another precision."""
    if rows.reward.dtype == dtype:
        return rows
    columns: dict[str, Tensor | None] = vars(rows)
    floating = {
        name: column.to(dtype) for name, column in columns.items() if column is not None and column.is_floating_point()
    }
    return replace(rows, **floating)


# ---------------------------------------------------------------------------------------------- the job


def offline_job(config: OfflineRunConfig, log: BehaviourLog, method: LearningMethod[P]) -> TrainingJob[P]:
    """Training job of `method` on the log."""
    count = config.batch * config.learner.updates_per_iteration
    source = LogSource(log.episodes.transitions(), batch_size=count, seed=config.seed)
    learner = method_learner(config, config.learner, method)
    return control_job(
        Recipe(source=source, credit=method.credit, learner=learner),
        env=config.env,
        evaluation=config.evaluation,
        seed=config.seed,
        dataset_fingerprint=decisions_fingerprint(log.episodes),
    )


class _LogReader(Protocol):
    """Reads a log of decisions; `spaces` of observations and actions are taken where it names none, and `data` names
    columns and spaces of a foreign one. Raises DataError.

    `read_log`, or a reader that knows further formats.
    """

    def __call__(
        self, path: Path, *, spaces: GymSpaces | None = None, data: LogDataConfig = AS_WRITTEN
    ) -> BehaviourLog: ...


def _build(config: OfflineRunConfig, log: BehaviourLog) -> TrainingJob[Any]:
    """The job of the config's own method; observations are standardised by the log."""
    return offline_job(config, log, config.method(log_spaces(log)))
