"""Config of a saved run as nested tables, and the problems that a user asks for in place of the run's own.

Belongs here: nothing that imports torch: the commands read it before they load a model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from hone.core.clock import SystemClock
from hone.store.durable import Json
from hone.store.folder import open_run

FILE_SUFFIXES = (".jsonl", ".json", ".parquet")
GENERATED = "reasoning_gym:"
"""Prefix of the names of reasoning-gym's tasks in a config."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationTask:
    """Problems and rewards that a user asks for; empty values are those of the run."""

    task: str = ""
    """A file of prompts, or a reasoning-gym task, with or without `reasoning_gym:`."""
    rewards: tuple[str, ...] = ()
    """Reward functions: built-in names, or `file.py:name`."""
    max_tokens: int | None = None

    @property
    def source(self) -> str:
        """Value for `task.source`."""
        is_file = self.task.endswith(FILE_SUFFIXES) or Path(self.task).exists()
        return self.task if is_file or not self.task else GENERATED + self.task.removeprefix(GENERATED)


OWN_TASK = EvaluationTask()


def config_tree(run: Path) -> dict[str, Json]:
    """Config of a run as nested tables."""
    tree: dict[str, Json] = {}
    for key, setting in open_run(run, clock=SystemClock()).config().items():
        _insert_nested(tree, key.split("."), setting.value)
    return {name: _lists(value) for name, value in tree.items()}


def _insert_nested(tree: dict[str, Json], path: Sequence[str], value: Json) -> None:
    head, *rest = path
    if not rest:
        tree[head] = value
        return
    branch = tree.setdefault(head, {})
    if isinstance(branch, dict):
        _insert_nested(branch, rest, value)


def _lists(value: Json) -> Json:
    """Convert tables with the keys 0, 1, 2 ... back to lists, which dotted keys had replaced."""
    if not isinstance(value, dict):
        return value
    inner = {key: _lists(child) for key, child in value.items()}
    if inner and list(inner) == [str(number) for number in range(len(inner))]:
        return list(inner.values())
    return inner


def table_of(tree: Mapping[str, Json], name: str) -> dict[str, Json]:
    """A table of a config; {} where there is none."""
    value = tree.get(name)
    return cast("dict[str, Json]", value) if isinstance(value, dict) else {}
