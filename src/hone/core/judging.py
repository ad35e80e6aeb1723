"""Scorers of answers: their input and their scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hone.core.conversation import Message, TranscriptBuilder
from hone.core.dialogue import DialogueOutcome
from hone.core.state import State


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerInput:
    """One finished answer, or conversation of several turns."""

    prompt: str | Sequence[Message]
    text: str
    """The last answer, without special tokens, up to the end of its stop string."""
    columns: Mapping[str, object]
    """The dataset's other columns."""
    messages: Sequence[Message]
    """Messages after the prompt: answers (`assistant`), and the environment's between and after them."""
    transcript: TranscriptBuilder
    """The whole conversation as it was written."""
    id: str = ""
    """Name of the prompt in messages."""
    steps: int | None = None
    """Steps of the answer, where these are scored instead of turns."""
    dialogue: DialogueOutcome | None = None
    """Result of a dialogue, as its world gave it; None for answers to prompts."""

    @property
    def tokens(self) -> NDArray[np.int32]:
        """`[n]` the whole conversation: prompt, sampled tokens, environment tokens."""
        return self.transcript.tokens

    @property
    def turns(self) -> int:
        """Number of answers in the conversation, or of steps where these are scored."""
        if self.steps is not None:
            return self.steps
        return max(1, sum(message["role"] == "assistant" for message in self.messages))


class DatasetRow(Protocol):
    """Row of a dataset, as scorers check it before a run."""

    @property
    def columns(self) -> Mapping[str, object]:
        """All columns beside the prompt; None where the row lacks one."""
        ...

    @property
    def row(self) -> int:
        """Number in its file, counted from 1; the line of a JSONL file."""
        ...

    @property
    def source(self) -> str:
        """File or task that it came from."""
        ...


class ScoreBatch(Protocol):
    """Scores of some answers, in their order."""

    @property
    def score(self) -> NDArray[np.float64]: ...

    @property
    def status(self) -> NDArray[np.uint8]: ...

    @property
    def functions(self) -> Mapping[str, NDArray[np.float64]]:
        """Each reward function's own scores, unweighted; NaN where it gave none."""
        ...

    @property
    def turn_scores(self) -> Mapping[int, Sequence[float]]:
        """Scores of single turns or steps, by the place of the answer: each becomes the reward of its last decision.
        Answers that are left out are rewarded with `score` at their last decision."""
        ...


class Scorer(Protocol):
    """Scores answers; `submit` returns at once, so that scoring runs while other answers are still being written."""

    def submit(self, answers: Sequence[ScorerInput]) -> object:
        """A ticket for the scores of `answers`, which all answer one prompt."""
        ...

    def gather(self, tickets: Sequence[Any]) -> ScoreBatch:
        """Wait for the scores of all tickets, in their order."""
        ...

    def state(self) -> State: ...

    def restore(self, state: State) -> None: ...
