"""Config of a saved run as nested tables, and the problems that a user asks for in place of the run's own.

Belongs here: nothing that imports torch: the commands read it before they load a model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from hone.core.clock import SystemClock
from hone.rewards.functions import BUILTIN_FUNCTIONS
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """Searches that a user asks for; empty values are those of the run's `[evaluation.search]`."""

    plans: tuple[str, ...] = ()
    """Plans in their short form: `beam:1x4`."""
    scorer: str = ""
    """A reward model's folder or run, or a reward function: a built-in name, or `file.py:name`."""
    step: str = ""
    answer: str = ""

    def fields(self) -> dict[str, Json]:
        """Values for `[evaluation.search]` that were given."""
        given: dict[str, Json] = {"plans": list(self.plans), "step": self.step, "answer": self.answer}
        if self.scorer and (":" in self.scorer or self.scorer in BUILTIN_FUNCTIONS):
            given["scorer"] = {"kind": "verifier", "functions": [{"use": self.scorer}]}
        elif self.scorer:
            given["scorer"] = {"kind": "model", "path": self.scorer}
        return {name: value for name, value in given.items() if value}


OWN_SEARCH = SearchOptions()


def is_control(policy: Path) -> bool:
    """True if a folder contains a control policy (a language model has a `config.json` instead)."""
    return (policy / "policy.json").is_file()


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
