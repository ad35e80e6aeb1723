"""Tasks of reasoning-gym in several attempts: the world scores an answer and lets the policy try again.

A task's own scorer judges every attempt. The last one pays its score, so a dialogue is worth the answer it ended with.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hone.core.dialogue import PolicyTurn, WorldTurn
from hone.core.errors import ConfigError, ErrorCollector
from hone.text.tasks.reasoning_gym import checked_config

if TYPE_CHECKING:
    from reasoning_gym.dataset import ProceduralDataset


class ReasoningGymSteps:
    """Several attempts at one item: `{task = "chain_sum", attempts = 3}`."""

    def __init__(
        self, task: str, *, config: Mapping[str, Any] | None = None, attempts: int = 3, pattern: str = ""
    ) -> None:
        """Describe a task.

        `config`: the task's own settings. `attempts`: most answers; a right one ends the dialogue. `pattern`: a regular
        expression, of which the last match is the answer (its first group, if it has one); unset: all that was said.
        """
        self._task, self._config, self._attempts, self._pattern = task, dict(config or {}), attempts, pattern
        self._scores: list[float] = []

    def begin(self, columns: Mapping[str, Any], seed: int) -> WorldTurn:
        """Ask an item: the row's own (`question`, `answer`, `metadata`), or the one that is drawn by its `seed`.

        Raises ConfigError with all faults of the options.
        """
        item_seed = int(columns.get("seed", seed)) % 2**31
        self._dataset = _dataset(self._task, self._config, item_seed, self._faults())
        self._scores = []
        if "question" in columns:
            self._item = {name: columns[name] for name in ("question", "answer", "metadata")}
            return WorldTurn()
        self._item = self._dataset[0]
        return WorldTurn(messages=[{"role": "user", "content": f"{self._item['question']}\n"}])

    def answer(self, said: PolicyTurn) -> WorldTurn:
        """Score an attempt; it pays if it is right or the last one."""
        score = float(self._dataset.score_answer(self._extracted(said.text), self._item))
        self._scores.append(score)
        if score >= 1.0 or len(self._scores) == self._attempts:
            facts = {"attempts": float(len(self._scores)), "first_score": self._scores[0]}
            return WorldTurn(reward=score, done=True, facts=facts)
        left = self._attempts - len(self._scores)
        text = f"That scores {score:.2f} of 1. Attempts left: {left}.\n"
        return WorldTurn(messages=[{"role": "user", "content": text}])

    def close(self) -> None:
        """End the dialogue."""

    def _extracted(self, text: str) -> str:
        if not self._pattern:
            return text.strip()
        matches = list(re.finditer(self._pattern, text))
        return "" if not matches else (matches[-1][1] if matches[-1].groups() else matches[-1][0]) or ""

    def _faults(self) -> ErrorCollector:
        faults = ErrorCollector(ConfigError)
        if self._attempts < 1:
            faults.add(f"attempts = {self._attempts} must be at least 1")
        try:
            re.compile(self._pattern)
        except re.error as error:
            faults.add(f"pattern = {self._pattern!r} is no regular expression: {error}")
        return faults


def _dataset(task: str, config: Mapping[str, Any], seed: int, faults: ErrorCollector) -> "ProceduralDataset":
    """The task with one item. Raises ConfigError with these faults and its own."""
    from reasoning_gym.factory import create_dataset  # noqa: PLC0415 - takes 2 s to import

    try:
        settings = checked_config(task, config, size=1, seed=seed)
        faults.raise_if_any()
        return create_dataset(task, **settings, seed=seed, size=1)
    except ConfigError as error:
        own = [one for one in error.messages if one not in faults.messages]
        raise ConfigError(*faults.messages, *own) from None
    except (AssertionError, TypeError, ValueError) as error:  # how the tasks say that a setting does not fit
        raise ConfigError(*faults.messages, f"{task} rejects its config: {error or type(error).__name__}") from None
