"""Bases of the sources that wrap another source: everything forwarded, and the same with a part's state beside it."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from hone.core.credit import Metrics
from hone.core.episodes import Episodes
from hone.core.state import State, Stateful, substate
from hone.run.loop import Source

P = TypeVar("P")


@dataclass
class SourceWrapper(Generic[P]):
    """Forwards everything to another source; a subclass overrides what it changes."""

    source: Source[P]

    def collect(self) -> Episodes:
        return self.source.collect()

    def publish(self, policy: P) -> None:
        self.source.publish(policy)

    def metrics(self) -> Metrics:
        return self.source.metrics()

    def state(self) -> State:
        return self.source.state()

    def restore(self, state: State) -> None:
        self.source.restore(state)


@dataclass
class WithState(SourceWrapper[P]):
    """Another source whose saved state includes that of `part` under `name`: a controller, an actor's noise."""

    part: Stateful
    name: str

    def state(self) -> State:
        return {"source": self.source.state(), self.name: self.part.state()}

    def restore(self, state: State) -> None:
        self.source.restore(substate(state, "source"))
        self.part.restore(substate(state, self.name))
