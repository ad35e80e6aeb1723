"""The training loop: act, score, learn, publish, report.

Belongs here: the order of the verbs. Does not: any branch about which algorithm, world or model runs. Off-policy
learning, asynchrony and distribution decorate a source; they are not other loops.

Below the loop: bases of the sources that wrap another source.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from hone.core.credit import Credits, Metrics, Values
from hone.core.episodes import Episodes
from hone.core.state import State, Stateful, substate

P = TypeVar("P")
P_co = TypeVar("P_co", covariant=True)
P_contra = TypeVar("P_contra", contravariant=True)


class Source(Protocol[P_contra]):
    """Source of episodes: `LiveSource`, `LogSource`, `ReplaySource(source)`."""

    def collect(self) -> Episodes: ...

    def publish(self, policy: P_contra) -> None:
        """Act with `policy` from now on."""

    def metrics(self) -> Metrics:
        """Metrics of the trajectories since the last call: returns, lengths; {} for a log."""
        ...

    def state(self) -> State: ...

    def restore(self, state: State) -> None: ...


class Learner(Protocol[P_co]):
    """Learner: improves the policy from credits, by gradient or in closed form."""

    @property
    def policy(self) -> P_co: ...

    def values(self, episodes: Episodes) -> Values:
        """Predict values with the critic; `NO_VALUES` without one."""
        ...

    def update(self, episodes: Episodes, credits: Credits) -> Metrics: ...

    def state(self) -> State: ...

    def restore(self, state: State) -> None: ...


class StepCallback(Protocol):
    """Callback after every step: logs, saves checkpoints, shows progress. May raise to stop the run."""

    def __call__(self, step: int, episodes: Episodes, credits: Credits, metrics: Metrics) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(Generic[P]):
    """An algorithm: source, credit function and learner."""

    source: Source[P]
    credit: Callable[[Episodes, Values], Credits]
    learner: Learner[P]


def train(recipe: Recipe[P], *, steps: int, callback: StepCallback, first_step: int = 1) -> P:
    """Run steps `first..steps` and return the policy; `first > 1` continues a restored recipe."""
    source, learner = recipe.source, recipe.learner
    source.publish(learner.policy)  # the policy as it stands: new, or restored
    for step in range(first_step, steps + 1):
        episodes = source.collect()  # act
        credits = recipe.credit(episodes, learner.values(episodes))  # judge
        metrics = learner.update(episodes, credits)  # learn
        source.publish(learner.policy)  # publish
        callback(step, episodes, credits, metrics)  # report
    return learner.policy


# -------------------------------------------------------------------------------------------------------------- wrapper


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
