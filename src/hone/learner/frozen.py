"""A learner that learns nothing: the policy acts, and its episodes are what is wanted."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from hone.core.credit import NO_VALUES, Credits, Metrics, Values
from hone.core.episodes import Episodes
from hone.core.state import State

P = TypeVar("P")


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
