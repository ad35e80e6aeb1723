"""Candidates of a search: whole answers and beginnings of answers, and the protocol of what scores them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hone.core.generation import Completion, FinishReason, Request
from hone.core.ragged import Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidate:
    """A beginning of an answer, written in one or more steps, or a whole answer."""

    tokens: NDArray[np.int32]
    """`[n]` tokens after the prompt."""
    logp: NDArray[np.float32]
    """`[n]` nats, of each token when it was drawn."""
    version: NDArray[np.int32]
    """`[n]` version of the policy that drew each token."""
    step_ends: tuple[int, ...]
    """Number of tokens up to the end of each step that was drawn by itself; the last one is `n`."""
    finish: FinishReason | None
    """Reason for which it ended; None for a beginning that goes on."""
    trailing_characters: int = 0
    """Characters of the last token behind the stop string that ended the answer."""

    @property
    def mean_logp(self) -> float:
        """Mean log-probability of its tokens, nats."""
        return float(self.logp.mean()) if len(self.logp) else 0.0


EMPTY: Candidate = Candidate(
    tokens=np.zeros(0, np.int32),
    logp=np.zeros(0, np.float32),
    version=np.zeros(0, np.int32),
    step_ends=(),
    finish=None,
)
"""The beginning before the first token."""


def extended(beginning: Candidate, drawn: Completion, *, finish: FinishReason | None) -> Candidate:
    """`beginning` with the tokens of one more step."""
    tokens = np.concatenate([beginning.tokens, drawn.tokens]).astype(np.int32)
    return Candidate(
        tokens=tokens,
        logp=np.concatenate([beginning.logp, drawn.logp]),
        version=np.concatenate([beginning.version, drawn.version]),
        step_ends=(*beginning.step_ends, len(tokens)),
        finish=finish,
        trailing_characters=0 if finish is None else drawn.trailing_characters,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateScores:
    """Scores of n candidates."""

    values: NDArray[np.float64]
    """`[n]`, higher is better; NaN for a candidate that could not be scored, which is never preferred."""
    tokens_read: Ints
    """`[n]` tokens that a network read to score each; 0 for functions."""


class CandidateScorer(Protocol):
    """Scores the candidates of searches: a verifier, a reward model, or a model of steps."""

    def score(self, asked: Sequence[tuple[Request, Sequence[Candidate]]]) -> Sequence[CandidateScores]:
        """Scores of the candidates for each request, in their order."""
        ...
