"""Rounds: answers are gathered from a source for some steps, then a selection of them is learnt from for some steps.

A decoration of *collect*: expert iteration and distillation of the best of n are imitation of what a policy did itself.
The learner's side, which leaves gathered answers alone and may start each round from the first policy, is
`learner/rounds.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from hone.core.credit import Metrics
from hone.core.episodes import Episodes, concatenate, pack_episodes, unpack_episodes
from hone.core.random import key
from hone.core.state import State, integer, substate
from hone.run.loop import SourceWrapper
from hone.sources.logged import LogSource

P = TypeVar("P")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSchedule:
    """Steps of a round: first those that gather, then those that learn."""

    collect_steps: int
    learn_steps: int

    @property
    def length(self) -> int:
        """Steps of a round."""
        return self.collect_steps + self.learn_steps

    def place(self, step: int) -> tuple[int, int]:
        """Round and step within it, both from 0, of the step with number `step`, from 0."""
        return divmod(step, self.length)

    def learns(self, step: int) -> bool:
        """True if the step learns."""
        return self.place(step)[1] >= self.collect_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Episodes of a round to learn from, and how they were chosen."""

    episodes: Episodes
    metrics: Metrics
    note: str
    """One sentence for the user."""


@dataclass
class RoundSource(SourceWrapper[P]):
    """Gathers from another source, and then serves a selection of what it gathered, `batch_size` episodes at a time.

    The state is what was gathered in this round, so that a resumed run selects and serves the same.
    """

    schedule: RoundSchedule
    select: Callable[[Episodes], Selection]
    """Everything that a round gathered -> what is learnt. Raises HoneError when nothing is left."""
    batch_size: int
    seed: int
    steps: int = 0
    """Steps so far."""
    gathered: list[Episodes] = field(default_factory=list[Episodes])
    """What this round gathered."""
    notes: list[str] = field(default_factory=list[str])
    last_metrics: Metrics = field(default_factory=dict[str, float])

    def __post_init__(self) -> None:
        self._log: LogSource[P] | None = None

    @property
    def learns(self) -> bool:
        """True if the episodes collected last are to be learnt."""
        return self.schedule.learns(self.steps - 1)

    def collect(self) -> Episodes:
        number, place = self.schedule.place(self.steps)
        self.steps += 1
        if place < self.schedule.collect_steps:
            if place == 0:
                self.gathered, self._log = [], None
            self.gathered.append(self.source.collect())
            return self.gathered[-1]
        if self._log is None:
            selection = self.select(concatenate(self.gathered))
            self.last_metrics = {"rounds/round": float(number + 1), **selection.metrics}
            self.notes.append(f"round {number + 1}: {selection.note}")
            self._log = self._open(selection, number)
        return self._log.collect()

    def metrics(self) -> Metrics:
        """Metrics of the source while it gathers; those of the selection at a round's first step of learning."""
        told, self.last_metrics = self.last_metrics, {}
        return told if self.learns else self.source.metrics()

    def pop_notes(self) -> Sequence[str]:
        """Notes for the user since the last call."""
        notes, self.notes = self.notes, []
        return notes

    def state(self) -> State:
        gathered = {} if not self.gathered else {"gathered": pack_episodes(concatenate(self.gathered))}
        return {"steps": self.steps, "source": self.source.state(), **gathered}

    def restore(self, state: State) -> None:
        self.steps = integer(state, "steps")
        self.source.restore(substate(state, "source"))
        self.gathered = [unpack_episodes(substate(state, "gathered"))] if "gathered" in state else []
        number, place = self.schedule.place(self.steps)
        served = place - self.schedule.collect_steps
        self._log = None
        if served > 0:
            self._log = self._open(self.select(concatenate(self.gathered)), number)
            self._log.rows_drawn = served * self.batch_size

    def _open(self, selection: Selection, number: int) -> LogSource[P]:
        return LogSource[P](
            log=selection.episodes, batch_size=self.batch_size, seed=key(self.seed, "round", number) >> 64
        )
