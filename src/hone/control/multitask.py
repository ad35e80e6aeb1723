"""What learning several tasks at once shares: worlds side by side, whose steps are told apart, and fair advantages.

Belongs here: sources and credit over tasks. Does not: the network (`models.control.multitask`), the loss (a recipe).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hone.control.acting import NetworkActor
from hone.control.networks.multitask import MultitaskActorCritic
from hone.core.credit import Credits, Metrics, Values
from hone.core.episodes import Episodes, concatenate
from hone.core.state import State, substate
from hone.run.loop import Source

Array = NDArray[np.generic]


@dataclass
class TaskActor(NetworkActor):
    """Decides in one task."""

    task: int = 0

    def publish(self, policy: MultitaskActorCritic, version: int) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.numpy_policy, self.version = policy.for_task(self.task).numpy_policy(), version


@dataclass
class MultitaskSource:
    """Collects from every task in turn; what is seen ends in the task, one-hot."""

    sources: Sequence[Source[MultitaskActorCritic]]

    def collect(self) -> Episodes:
        return concatenate([self._with_task_id(source.collect(), task) for task, source in enumerate(self.sources)])

    def publish(self, policy: MultitaskActorCritic) -> None:
        for source in self.sources:
            source.publish(policy)

    def metrics(self) -> Metrics:
        """Each task's figures under its number, and the mean over tasks of those that all of them have."""
        task_metrics = [source.metrics() for source in self.sources]
        shared = set(task_metrics[0]).intersection(*task_metrics[1:])
        means = {name: sum(own[name] for own in task_metrics) / len(task_metrics) for name in sorted(shared)}
        each = {f"task{task}/{name}": value for task, own in enumerate(task_metrics) for name, value in own.items()}
        return {**means, **each}

    def state(self) -> State:
        return {str(task): source.state() for task, source in enumerate(self.sources)}

    def restore(self, state: State) -> None:
        for task, source in enumerate(self.sources):
            source.restore(substate(state, str(task)))

    def _with_task_id(self, episodes: Episodes, task: int) -> Episodes:
        assert episodes.final is not None
        count = len(self.sources)
        return replace(
            episodes,
            seen=with_task_id(episodes.observations, task, count),
            final=with_task_id(episodes.final, task, count),
            group=episodes.group * count + task,
        )


def with_task_id(seen: Array, task: int, tasks: int) -> NDArray[np.float32]:
    """`[n, *observation]` -> `[n, numbers + tasks]`."""
    flat = seen.reshape(len(seen), -1).astype(np.float32)
    return np.concatenate((flat, np.broadcast_to(np.eye(tasks, dtype=np.float32)[task], (len(flat), tasks))), axis=1)


def standardised_by_task(
    credit: Callable[[Episodes, Values], Credits], *, tasks: int
) -> Callable[[Episodes, Values], Credits]:
    """`credit` with advantages standardised within each task: one that pays in hundreds does not drown one that pays
    in ones (mean 0, standard deviation 1 each, as `standardised`)."""

    def fair(episodes: Episodes, values: Values) -> Credits:
        credits = credit(episodes, values)
        task = episodes.observations[:, -tasks:].argmax(axis=1)
        advantage = credits.advantage.copy()
        for number in range(tasks):
            own = task == number
            if own.sum() > 1:
                advantage[own] = (advantage[own] - advantage[own].mean()) / (advantage[own].std() + 1e-8)
        return replace(credits, advantage=advantage)

    return fair
