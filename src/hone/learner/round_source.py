"""Rounds: answers are gathered from a source for some steps, then a selection of them is learnt from for some steps.

A decoration of *collect*: expert iteration and distillation of the best of n are imitation of what a policy did itself.
The learner's side, which leaves gathered answers alone and may start each round from the first policy, is
`learner/round_source.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from hone.core.credit import NO_VALUES, Credits, Metrics, Values
from hone.core.episodes import Episodes, concatenate, pack_episodes, unpack_episodes
from hone.core.errors import DataError
from hone.core.random import key
from hone.core.state import State, integer, substate
from hone.learner.gradient import GradientLearner, TensorBatch
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
        metrics, self.last_metrics = self.last_metrics, {}
        return metrics if self.learns else self.source.metrics()

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


# --------------------------------------------------------------------------------------------------------------- frozen


@dataclass
class FrozenLearner(Generic[P]):
    """Leaves `policy` as it is."""

    policy: P

    def values(self, episodes: Episodes) -> Values:
        del episodes
        return NO_VALUES

    def update(self, episodes: Episodes, credits: Credits) -> Metrics:
        """Learn nothing; the metrics are those of the credit."""
        del episodes
        return dict(credits.metrics)

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        """Nothing was saved."""


# --------------------------------------------------------------------------------------------------------------- rounds


Network = TypeVar("Network", bound=nn.Module)
B = TypeVar("B", bound=TensorBatch)


@dataclass
class RoundLearner(Generic[Network, B]):
    """A gradient learner that steps on the learning steps of a round only.

    With `initial`, the first of them begins from these weights, with a new optimizer and a new learning-rate schedule:
    a round then learns its own selection and inherits no more than the answers (Singh et al., ReST-EM, 2024).
    """

    learner: GradientLearner[Network, B]
    schedule: RoundSchedule
    initial: Sequence[Tensor] | None = None
    """Copies of the trained tensors as they were when the run began; None: rounds go on from the
    policy of the one before."""
    initial_sha256: str = ""
    """Sha256 of these weights, whole, where a rank steps a part of them; empty: `initial` is whole."""
    steps: int = 0

    @property
    def policy(self) -> Network:
        return self.learner.policy

    def values(self, episodes: Episodes) -> Values:
        return self.learner.values(episodes)

    def update(self, episodes: Episodes, credits: Credits) -> Metrics:
        """Learn, or leave gathered answers alone and return the metrics of the credit."""
        number, place = self.schedule.place(self.steps)
        self.steps += 1
        if place < self.schedule.collect_steps:
            return dict(credits.metrics)
        if place == self.schedule.collect_steps and number > 0 and self.initial is not None:
            self._restart(self.initial)
        return self.learner.update(episodes, credits)

    def state(self) -> State:
        first = {} if self.initial is None else {"first": self.initial_sha256 or tensors_sha256(self.initial)}
        return {"steps": self.steps, "learner": self.learner.state(), **first}

    def restore(self, state: State) -> None:
        """Raises DataError when the first policy is not the one that the run was started with."""
        now = None if self.initial is None else self.initial_sha256 or tensors_sha256(self.initial)
        if now is not None and state.get("first") != now:
            raise DataError(
                f"the first policy (model.path) is not what this run was started with (was {state.get('first')}, is "
                f"{now}), and every round starts from it; put the old one back, or start a new run"
            )
        self.steps = integer(state, "steps")
        self.learner.restore(substate(state, "learner"))

    @torch.no_grad()
    def _restart(self, initial: Sequence[Tensor]) -> None:
        for now, then in zip(trained_tensors(self.learner), initial, strict=True):
            now.copy_(then)
        for phase in self.learner.phases:
            phase.optimizer.reset()
            if phase.after_step is not None:
                phase.after_step(self.policy)  # an adapter is merged again
        self.learner.updates = 0


def trained_tensors(learner: GradientLearner[Network, B]) -> list[Tensor]:
    """The tensors that a learner steps."""
    return [tensor for phase in learner.phases for tensor in phase.parameters.owned]


def tensors_sha256(tensors: Sequence[Tensor]) -> str:
    """Sha256 of the bytes of `tensors`, one after another."""
    digest = sha256()
    for tensor in tensors:
        digest.update(tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
