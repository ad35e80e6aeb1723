"""What a user asks for in place of a run's own evaluation: other problems, rewards, limits or searches.

Belongs here: nothing that imports torch: the commands read it before they load a model.
"""

from dataclasses import dataclass
from pathlib import Path

from hone.core.strict_json import Json
from hone.rewards.functions import BUILTIN_FUNCTIONS

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
        values: dict[str, Json] = {"plans": list(self.plans), "step": self.step, "answer": self.answer}
        if self.scorer and (":" in self.scorer or self.scorer in BUILTIN_FUNCTIONS):
            values["scorer"] = {"kind": "verifier", "functions": [{"use": self.scorer}]}
        elif self.scorer:
            values["scorer"] = {"kind": "model", "path": self.scorer}
        return {name: value for name, value in values.items() if value}


OWN_SEARCH = SearchOptions()
