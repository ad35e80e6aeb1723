"""A learner over several ranks: the driver, which is rank 0, and the others make the same calls on the same data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hone.core.credit import NO_VALUES, Credits, Metrics, Values
from hone.core.episode_state import pack_episodes, unpack_episodes
from hone.core.episodes import Episodes
from hone.core.errors import HoneError, LostRankError
from hone.core.state import State, array, integer, substate
from hone.credit.novelty import NoveltyCredits
from hone.learner.gradient import GradientLearner
from hone.learner.share import SharedStatistics, sharing
from hone.run.loop import Learner

if TYPE_CHECKING:
    from hone.learner.share import Question
    from hone.parallel.group import RankGroup
    from hone.parallel.sharded_build import ShardedTwin

P = TypeVar("P")
T = TypeVar("T")
VALUES: Final = "values"
UPDATE: Final = "update"
QUESTION: Final = "question"
STATE: Final = "state"
RESTORE: Final = "restore"
WEIGHTS: Final = "weights"
STATISTICS: Final = "statistics"
CREDIT_COLUMNS: Final = ("advantage", "target", "discount", "novelty_target")


class RankPeers(Protocol):
    """The other ranks as the driver reaches them."""

    def tell(self, order: str) -> None:
        """Announce what all ranks do next. Raises LostRankError where one has ended."""
        ...

    def fault(self) -> HoneError | None:
        """The fault of the first rank that has ended or failed; None: all of them live."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWork:
    """What one rank does of an update. All ranks call the same methods in the same order."""

    learner: Learner[Any]
    group: "RankGroup"
    twins: "Sequence[ShardedTwin]" = ()
    """Sharded policies; without them every rank holds, and steps, whole networks."""
    questions: "Sequence[Question]" = ()
    """Questions to networks that no rank has whole, which the driver's credit may ask."""

    def values(self, episodes: Episodes) -> Values:
        """Values of the learner's critic."""
        self._take_buffers()
        with sharing(self.group.share()):
            return self.learner.values(episodes)

    def update(self, episodes: Episodes, credits: Credits) -> Metrics:
        """Update the policy; afterwards rank 0's whole policy has the new weights."""
        self._take_buffers()
        with sharing(self.group.share()):
            metrics = self.learner.update(episodes, credits)
        for twin in self.twins:
            twin.gather(self.group)
        return metrics

    def answer(self, number: int, episodes: Episodes) -> NDArray[Any]:
        """Answer of a question about episodes; all ranks have it."""
        with sharing(self.group.share()):
            return self.questions[number](episodes)

    def state(self) -> State:
        """State of the learner, whole on rank 0."""
        return self.learner.state()

    def restore(self, state: State) -> None:
        """Take up a whole state."""
        self.learner.restore(state)
        for twin in self.twins:
            twin.gather(self.group)

    def take_weights(self) -> None:
        """Take up the weights of rank 0's policy."""
        for twin in self.twins:
            twin.scatter(self.group)
        policy = self.learner.policy
        if not self.twins and isinstance(policy, nn.Module):
            with torch.no_grad():
                self.group.copy_from_driver([*policy.parameters(), *policy.buffers()])

    def _take_buffers(self) -> None:
        """Take up the buffers of rank 0's small policy: its credit keeps statistics there."""
        policy = self.learner.policy
        if isinstance(policy, SharedStatistics):
            with torch.no_grad():
                self.group.copy_from_driver(list(policy.buffers()))

    def take_statistics(self, message: State) -> None:
        """Take up what the driver's source has put into a small policy: statistics that normalise observations."""
        policy = self.learner.policy
        if isinstance(policy, SharedStatistics) and STATISTICS in message:
            policy.take_statistics(substate(message, STATISTICS))


@dataclass(kw_only=True)
class RankedLearner(Generic[P]):
    """The learner of a run over several ranks. Implements `Learner` in the driver."""

    policy: P
    """The whole policy: it acts, is evaluated and saved."""
    work: RankWork
    peers: RankPeers

    def values(self, episodes: Episodes) -> Values:
        inner = self.work.learner
        if isinstance(inner, GradientLearner) and inner.predict_values is None:
            return NO_VALUES
        message: State = {"episodes": pack_episodes(episodes), **_source_statistics(self.policy)}
        return self._together(VALUES, message, lambda: self.work.values(episodes))

    def update(self, episodes: Episodes, credits: Credits) -> Metrics:
        message: State = {
            "episodes": pack_episodes(episodes),
            "credits": _pack_credits(credits),
            **_source_statistics(self.policy),
        }
        return self._together(UPDATE, message, lambda: self.work.update(episodes, credits))

    def answer(self, number: int, episodes: Episodes) -> NDArray[Any]:
        """Answer of all ranks together to a question about episodes."""
        message: State = {"number": number, "episodes": pack_episodes(episodes)}
        return self._together(QUESTION, message, lambda: self.work.answer(number, episodes))

    def state(self) -> State:
        return self._together(STATE, {}, self.work.state)

    def restore(self, state: State) -> None:
        self.take_weights()
        self._together(RESTORE, state, lambda: self.work.restore(state))

    def take_weights(self) -> None:
        """Give all ranks the weights of the whole policy."""
        self._together(WEIGHTS, {}, self.work.take_weights)

    def _together(self, order: str, message: State, act: Callable[[], T]) -> T:
        """Carry out an order on all ranks. Raises LostRankError where another rank ended or did not answer."""
        self.peers.tell(order)
        try:
            self.work.group.send(message)
            return act()
        except HoneError:
            raise
        except RuntimeError as error:  # what torch raises for a lost connection and for a collective that took too long
            raise self._lost(order, error) from error

    def _lost(self, order: str, error: RuntimeError) -> Exception:
        fault, asked = self.peers.fault(), self.work.group.meeting
        if fault is not None:
            return type(fault)(f"{fault}, while all {asked.ranks} ranks carried out {order!r}")
        if isinstance(error, torch.distributed.DistError) or "imed out" in str(error):
            return LostRankError(
                f"a rank did not answer within run.patience_s = {asked.patience_s:g} while all {asked.ranks} ranks "
                f"carried out {order!r}: {error}"
            )
        return error


@dataclass(frozen=True, slots=True)
class RankServant:
    """The side of a rank that is not the driver: it carries out one order after another."""

    work: RankWork

    def obey(self, order: str) -> None:
        """Carry out an order with the data that rank 0 sends for it."""
        message = self.work.group.send(None)
        self.work.take_statistics(message)
        if order == VALUES:
            self.work.values(unpack_episodes(substate(message, "episodes")))
        elif order == UPDATE:
            credits = _unpack_credits(substate(message, "credits"))
            self.work.update(unpack_episodes(substate(message, "episodes")), credits)
        elif order == QUESTION:
            self.work.answer(integer(message, "number"), unpack_episodes(substate(message, "episodes")))
        elif order == STATE:
            self.work.state()
        elif order == RESTORE:
            self.work.restore(message)
        else:
            assert order == WEIGHTS, f"unknown order {order!r}"
            self.work.take_weights()


def _source_statistics(policy: object) -> State:
    """What sources put into a policy beside its weights; empty for a language model."""
    statistics = policy.statistics() if isinstance(policy, SharedStatistics) else {}
    return {STATISTICS: statistics} if statistics else {}


def _pack_credits(credits: Credits) -> State:
    """Credits as a state, without those columns that are not there."""
    columns = {"advantage": credits.advantage, "target": credits.target, "discount": credits.discount}
    if isinstance(credits, NoveltyCredits):
        columns["novelty_target"] = credits.novelty_target
    present: State = {name: column for name, column in columns.items() if column is not None}
    return {**present, "metrics": {name: float(value) for name, value in credits.metrics.items()}}


def _unpack_credits(state: State) -> Credits:
    """Inverse of `_pack_credits`."""
    metrics = {name: float(value) for name, value in substate(state, "metrics").items() if isinstance(value, float)}
    columns = {name: array(state, name).astype(np.float32) for name in CREDIT_COLUMNS if name in state}
    advantage, target, discount = columns["advantage"], columns.get("target"), columns.get("discount")
    if "novelty_target" not in columns:
        return Credits(advantage=advantage, target=target, discount=discount, metrics=metrics)
    return NoveltyCredits(
        advantage=advantage,
        target=target,
        discount=discount,
        metrics=metrics,
        novelty_target=columns["novelty_target"],
    )
