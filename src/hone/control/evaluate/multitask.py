"""Evaluation of a policy for several tasks: per task and overall."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from hone.control.environments.make import GymConfig
from hone.control.evaluate.returns import evaluate_returns, ignore_warning, score_metrics
from hone.control.networks.checkpoint import load_policy
from hone.control.networks.multitask import MultitaskActorCritic
from hone.core.credit import Metrics
from hone.core.errors import DataError
from hone.core.strict_json import Json


def task_scores(
    policy: MultitaskActorCritic,
    tasks: Sequence[GymConfig],
    *,
    episodes: int,
    seed: int,
    warn: Callable[[str], None] = ignore_warning,
) -> tuple[NDArray[np.float64], Metrics]:
    """Returns `[tasks * episodes]` of the policy's mode, ordered by task (fewer if environments were lost), and the
    means as `eval/task0` .. in the order of `tasks`."""
    scores = [
        evaluate_returns(policy.for_task(number), task, episodes=episodes, seed=seed, warn=warn)
        for number, task in enumerate(tasks)
    ]
    return np.concatenate(scores), {f"eval/task{number}": float(own.mean()) for number, own in enumerate(scores)}


def evaluate_tasks(
    folder: Path,
    *,
    config: Mapping[str, Json],
    episodes: int,
    seed: int,
    warn: Callable[[str], None] = ignore_warning,
) -> Metrics:
    """Evaluate a saved policy in the tasks of its run's `config`. Raises DataError."""
    policy, tables = load_policy(folder), config.get("tasks")
    if not isinstance(policy, MultitaskActorCritic) or not isinstance(tables, list):
        raise DataError(f"{folder}: not a policy for several tasks")
    try:
        tasks = [GymConfig.model_validate(table) for table in tables]
    except ValidationError as error:
        raise DataError(f"{folder}: the tasks of its run cannot be read: {error}") from None
    scores, each = task_scores(policy, tasks, episodes=episodes, seed=seed, warn=warn)
    return {**score_metrics(scores)[1], **each}
