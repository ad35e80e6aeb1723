"""Live sources: an environment and an actor, with the outcomes of episodes that ended."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hone.core.credit import Metrics
from hone.core.episodes import Episodes, concatenate, pack_episodes, unpack_episodes
from hone.core.state import State, integer, substate
from hone.run.loop import SourceWrapper

P = TypeVar("P")


A_contra = TypeVar("A_contra", contravariant=True)


P_contra = TypeVar("P_contra", contravariant=True)


class RolloutEnvironment(Protocol[A_contra]):
    """Environment of a rollout: a text task, a Gymnasium vector environment, bandit arms."""

    def rollout(self, actor: A_contra, /) -> Episodes:
        """One batch of episodes (or pieces of them), decided by `actor`."""
        ...

    def state(self) -> State: ...

    def restore(self, state: State) -> None: ...


class Actor(Protocol[P_contra]):
    """Behaviour policy: an engine over the trainer's weights, a numpy copy of a small network, a posterior."""

    def publish(self, policy: P_contra, version: int) -> None:
        """Decide by this policy from now on, and stamp decisions with `version`."""
        ...


@dataclass
class EpisodeStats:
    """Outcomes of the episodes that ended since they were last told; pieces that were cut have no outcome yet."""

    scores: list[np.ndarray] = field(default_factory=list[np.ndarray])
    truncated: int = 0
    decisions: int = 0
    unscored: int = 0

    def add(self, episodes: Episodes) -> None:
        ended = episodes.terminated | episodes.truncated
        counted = ended & episodes.scored
        self.decisions += episodes.decisions
        self.unscored += int((ended & ~episodes.scored).sum())
        if counted.any():
            self.scores.append(episodes.score[counted])
        self.truncated += int(episodes.truncated.sum())

    def pop_metrics(self) -> Metrics:
        """`reward/mean` and `reward/std` over episodes that ended, counts beside them; then forget."""
        metrics: Metrics = {"episodes/decisions": float(self.decisions)}
        scores = np.concatenate(self.scores) if self.scores else np.zeros(0)
        ended = len(scores) + self.unscored
        metrics["episodes/ended"] = float(ended)
        if len(scores):
            metrics |= {"reward/mean": float(scores.mean()), "reward/std": float(scores.std())}
        if ended:
            metrics |= {
                "episodes/truncated": self.truncated / ended,
                "reward/missing": self.unscored / ended,
            }
        self.scores, self.truncated, self.decisions, self.unscored = [], 0, 0, 0
        return metrics


@dataclass
class LiveSource(Generic[P]):
    """Acts in a world. `version` counts publications: the episodes of step n are decided by version n - 1."""

    world: RolloutEnvironment[Any]  # the recipe pairs a world with an actor that it can ask
    actor: Actor[P]
    version: int = -1
    actor_metrics: Callable[[], Metrics] = dict
    """Metrics of the actor about its latest episodes."""
    episode_stats: EpisodeStats = field(default_factory=EpisodeStats)

    def collect(self) -> Episodes:
        episodes = self.world.rollout(self.actor)
        self.episode_stats.add(episodes)
        return episodes

    def publish(self, policy: P) -> None:
        self.version += 1
        self.actor.publish(policy, self.version)

    def metrics(self) -> Metrics:
        return {**self.episode_stats.pop_metrics(), **self.actor_metrics()}

    def state(self) -> State:
        return {"version": self.version, "world": self.world.state()}

    def restore(self, state: State) -> None:
        self.version = integer(state, "version") - 1  # the loop publishes the restored policy before its first step
        self.world.restore(substate(state, "world"))


# ------------------------------------------------------------------------------------------------------- whole episodes


@dataclass
class WholeEpisodes(SourceWrapper[P]):
    """Hands on the episodes of another source that have ended, each in one piece, in the order of their numbers.

    Collects until at least `episodes` of them have ended. Decisions keep the version that took them.
    """

    min_episodes: int = 1
    open_pieces: Episodes | None = None
    """Pieces of episodes that go on."""

    def collect(self) -> Episodes:
        ended = 0
        pieces = [] if self.open_pieces is None else [self.open_pieces]
        while ended < self.min_episodes:
            pieces.append(self.source.collect())
            ended += int((pieces[-1].terminated | pieces[-1].truncated).sum())
        whole, self.open_pieces = _join_pieces(concatenate(pieces))
        return whole

    def state(self) -> State:
        return {
            "source": self.source.state(),
            "pending": {} if self.open_pieces is None else pack_episodes(self.open_pieces),
        }

    def restore(self, state: State) -> None:
        self.source.restore(substate(state, "source"))
        kept = substate(state, "pending")
        self.open_pieces = unpack_episodes(kept) if kept else None


def _join_pieces(pieces: Episodes) -> tuple[Episodes, Episodes | None]:
    """Episodes that ended, each in one piece, and the pieces of those that go on; pieces stand in the order of time."""
    order = np.argsort(pieces.group, kind="stable")
    sorted_pieces = pieces.take(order)
    group = sorted_pieces.group
    final = np.append(group[1:] != group[:-1], True)  # the last piece of each episode
    ended = (sorted_pieces.terminated | sorted_pieces.truncated)[final]
    over = ended[np.cumsum(final) - final]
    finished, open_pieces = sorted_pieces.take(np.flatnonzero(over)), np.flatnonzero(~over)
    whole = finished.join_pieces(final[over])
    return whole, sorted_pieces.take(open_pieces) if len(open_pieces) else None


@dataclass
class DynamicSampling(SourceWrapper[P]):
    """As many groups as one `collect` of `source` yields, those that are `wanted` first (DAPO, Yu et al., 2025).

    At most `max_rounds` collections; if they do not suffice, unwanted groups fill the batch up, so that its size, and
    with it the weight of a token, stays. Wanted groups beyond the batch are thrown away: kept for the next step, they
    would be older than its policy. Statistics of the source (`reward/mean`) stay those of everything that was asked.
    """

    is_informative: Callable[[Episodes], NDArray[np.bool_]]
    """Episodes -> `[E]`, all of a group alike."""
    max_rounds: int = 10
    last_metrics: Metrics = field(default_factory=dict[str, float])

    def collect(self) -> Episodes:
        rounds = [self.source.collect()]
        size = len(np.unique(rounds[0].group))
        informative, asked = np.unique(rounds[0].group[self.is_informative(rounds[0])]), size
        while len(informative) < size and len(rounds) < self.max_rounds:
            more = self.source.collect()
            rounds.append(more)
            asked += len(np.unique(more.group))
            informative = np.concatenate((informative, np.unique(more.group[self.is_informative(more)])))
        everything = concatenate(rounds)
        kept = informative[:size]
        if len(kept) < size:
            others = np.setdiff1d(everything.group, kept)
            kept = np.concatenate((kept, others[: size - len(kept)]))
        batch = everything.take(np.flatnonzero(np.isin(everything.group, kept)))
        self.last_metrics = {
            "dynamic_sampling/rounds": float(len(rounds)),
            "dynamic_sampling/informative_groups": len(informative) / asked,
            "dynamic_sampling/filled_up_groups": float(max(0, size - len(informative))),
            "dynamic_sampling/decisions_per_used": everything.decisions / max(batch.decisions, 1),
        }
        return batch

    def metrics(self) -> Metrics:
        metrics, self.last_metrics = self.last_metrics, {}
        return {**self.source.metrics(), **metrics}
