"""Answers that only decide when to stop: their length is the policy, and has nothing to do with their score.

An answer is right with probability 1/2; right and wrong ones stop by logits of their own. An unbiased gradient changes
neither length.
"""

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hone.core.credit import NO_VALUES
from hone.core.ragged import Ints, offsets_of, owner_of
from hone.core.random import generator
from hone.credit.group import group_relative
from hone.lab.exact import gradient, scored_episodes
from hone.lab.puzzles import Floats
from hone.objectives.policy import reinforce_loss

LONGEST: Final = 16
_STOP: Final = 0.2


def initial_logits(dtype: torch.dtype = torch.float32) -> Tensor:
    """Logits `[2, 15]` of stopping with probability 0.2 after each token, of wrong and of right answers."""
    return torch.full((2, LONGEST - 1), float(np.log(_STOP / (1 - _STOP))), dtype=dtype)


def mean_lengths(logits: Tensor) -> Floats:
    """Expected length of wrong and of right answers `[2]`: sum over t of the probability of continuing."""
    go = 1 - torch.sigmoid(logits.double()).numpy()
    return 1 + np.cumprod(go, axis=1).sum(axis=1)


@dataclass(frozen=True, slots=True)
class StoppingAnswers:
    """A sampled answers."""

    right: Ints
    """`[A]` 1 or 0."""
    lengths: Ints
    """`[A]` tokens."""
    advantage: NDArray[np.float32]
    """`[A]` of every token of an answer; all answers are one group."""

    def take(self, rows: Ints) -> Self:
        """The answers `rows`."""
        return type(self)(self.right[rows], self.lengths[rows], self.advantage[rows])

    def slope(self, logits: Tensor, weight: Floats) -> Tensor:
        """Gradient of the policy-gradient loss, each token of an answer with the answer's `weight` `[A]`."""
        logits = logits.clone().requires_grad_(True)
        owner = owner_of(offsets_of(self.lengths))
        place = np.arange(len(owner)) - offsets_of(self.lengths)[:-1][owner]
        free = place < LONGEST - 1  # an answer ends at the last token: no decision
        owner, place = owner[free], place[free]
        going = torch.where(torch.from_numpy(place == self.lengths[owner] - 1), 1.0, -1.0)
        now = torch.nn.functional.logsigmoid(
            going * logits[torch.from_numpy(self.right[owner]), torch.from_numpy(place)]
        )
        terms = reinforce_loss(now, torch.from_numpy(self.advantage[owner]))
        return gradient((terms.loss * torch.from_numpy(weight[owner]).to(logits.dtype)).sum(), logits)


def sample_stopping(logits: Tensor, count: int, *, seed: int, step: int) -> StoppingAnswers:
    """`count` answers of the policy `logits`."""
    draws = generator(seed, "lab/length", step)
    right = (draws.random(count) < 0.5).astype(np.int64)
    stops = draws.random((count, LONGEST - 1)) < torch.sigmoid(logits).numpy()[right]
    lengths = np.where(stops.any(axis=1), stops.argmax(axis=1) + 1, LONGEST)
    episodes = scored_episodes(right.astype(np.float64), np.zeros(count, np.int64), lengths=lengths)
    advantage = group_relative(episodes, NO_VALUES, scale="none").advantage
    return StoppingAnswers(right, lengths, advantage[episodes.offsets[:-1]])
