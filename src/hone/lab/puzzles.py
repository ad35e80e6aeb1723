"""Puzzles that are answered in a few tokens, small enough to score every answer.

Questions, right answers, and observations.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hone.core.ragged import Ints

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Puzzle:
    """Q questions, each with one right answer of L tokens out of V."""

    questions: Ints
    """`[Q, F]` features of each question, small whole numbers."""
    answers: Ints
    """`[Q, L]`."""
    vocab_size: int
    """V."""

    @property
    def feature_sizes(self) -> tuple[int, ...]:
        """Number of values of each observed feature: the question's, the position, the previous token."""
        return (*(self.questions.max(axis=0) + 1).tolist(), self.answers.shape[1], self.vocab_size + 1)

    def observation(self, questions: Ints, position: int, before: Ints) -> Ints:
        """`[E, F + 2]` observations at `position`; `before` `[E]` is the previous token, V at the start."""
        column = np.full(len(questions), position)
        return np.column_stack([self.questions[questions], column, before])

    def score(self, questions: Ints, answers: Ints) -> Floats:
        """`[E]` 1 where every token is right."""
        return (self.answers[questions] == answers).all(axis=1).astype(np.float64)


def addition(base: int = 6) -> Puzzle:
    """a + b in two digits: base^2 questions; a random answer is right once in base^2."""
    a, b = np.divmod(np.arange(base * base), base)
    total = a + b
    return Puzzle(
        questions=np.column_stack([a, b]), answers=np.column_stack([total // base, total % base]), vocab_size=base
    )


def parity(bits: int = 4) -> Puzzle:
    """The parity of each prefix of a row of bits: 2^bits questions of `bits` tokens 0 or 1."""
    rows = (np.arange(2**bits)[:, None] >> np.arange(bits)) & 1
    return Puzzle(questions=rows, answers=np.cumsum(rows, axis=1) % 2, vocab_size=2)


def geometric_mean(values: Floats) -> float:
    """exp(mean(log x)): the mean of factors, all of them above 0."""
    return float(np.exp(np.log(values).mean()))
