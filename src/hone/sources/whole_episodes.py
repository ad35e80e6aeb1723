"""A source of whole episodes: pieces are put together again, and handed out once their episode has ended.

Belongs here: what Monte Carlo methods need of any world that cuts its episodes.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from hone.core.episodes import Episodes, concatenate, pack_episodes, unpack_episodes
from hone.core.state import State, substate
from hone.run.loop import SourceWrapper

P = TypeVar("P")


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
        whole, self.open_pieces = join_pieces(concatenate(pieces))
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


def join_pieces(pieces: Episodes) -> tuple[Episodes, Episodes | None]:
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
