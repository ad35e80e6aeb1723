"""Where the time of a step goes: the parts of a recipe, each wrapped in a stopwatch. The loop knows nothing of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from hone.core.clock import Clock
from hone.core.credit import Credits, Metrics, Values
from hone.core.episodes import Episodes
from hone.core.state import State
from hone.run.loop import Learner, Recipe
from hone.run.wrapper import SourceWrapper

P = TypeVar("P")
T = TypeVar("T")


@dataclass
class Stopwatch:
    """Seconds by name since they were last told, and what was in hand when something failed."""

    clock: Clock
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    episodes: Episodes | None = None
    credits: Credits | None = None

    def time(self, name: str, work: Callable[[], T]) -> T:
        start = self.clock.monotonic_s()
        result = work()
        self.seconds[name] = self.seconds.get(name, 0.0) + self.clock.monotonic_s() - start
        return result

    def pop_metrics(self) -> Metrics:
        told = {f"time/{name}_s": seconds for name, seconds in self.seconds.items()}
        self.seconds.clear()
        return told


@dataclass
class _TimedSource(SourceWrapper[P]):
    """Source that measures the seconds of each collection."""

    stopwatch: Stopwatch

    def collect(self) -> Episodes:
        self.stopwatch.episodes = self.stopwatch.time("collect", self.source.collect)
        return self.stopwatch.episodes

    def publish(self, policy: P) -> None:
        self.stopwatch.time("publish", lambda: self.source.publish(policy))


@dataclass
class _TimedLearner(Generic[P]):
    """Learner that measures the seconds of each update."""

    learner: Learner[P]
    stopwatch: Stopwatch

    @property
    def policy(self) -> P:
        return self.learner.policy

    def values(self, episodes: Episodes) -> Values:
        return self.stopwatch.time("values", lambda: self.learner.values(episodes))

    def update(self, episodes: Episodes, credits: Credits) -> Metrics:
        self.stopwatch.credits = credits
        return self.stopwatch.time("update", lambda: self.learner.update(episodes, credits))

    def state(self) -> State:
        return self.learner.state()

    def restore(self, state: State) -> None:
        self.learner.restore(state)


def timed(recipe: Recipe[P], stopwatch: Stopwatch) -> Recipe[P]:
    """The same recipe, its parts timed."""
    return Recipe(
        source=_TimedSource(recipe.source, stopwatch),
        credit=lambda episodes, values: stopwatch.time("credit", lambda: recipe.credit(episodes, values)),
        learner=_TimedLearner(recipe.learner, stopwatch),
    )
