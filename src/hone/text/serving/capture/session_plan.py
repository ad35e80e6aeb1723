"""Which rows of a dataset the sessions of a step are about."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hone.core.dialogue import PlannedSession
from hone.core.random import generator, permutation


@dataclass(eq=False, kw_only=True)
class SessionPlan:
    """Plans `per_step` rows, `samples` sessions each, in a fresh order of the dataset every epoch. Its state is the
    number of rows that were asked."""

    rows: Sequence[Mapping[str, Any]]
    ids: Sequence[str]
    per_step: int
    samples: int
    seed: int
    asked: int = 0

    def next_sessions(self) -> list[PlannedSession]:
        """The sessions of the next step."""
        found: list[PlannedSession] = []
        for number in range(self.asked, self.asked + self.per_step):
            epoch, place = divmod(number, len(self.rows))
            row = int(permutation(self.seed, "prompts", epoch, count=len(self.rows))[place])
            seeds = generator(self.seed, "sessions", self.ids[row], number).integers(2**31, size=self.samples)
            found += [
                PlannedSession(id=f"{number}-{sample}", group=str(number), columns=self.rows[row], seed=int(seed))
                for sample, seed in enumerate(seeds)
            ]
        self.asked += self.per_step
        return found
