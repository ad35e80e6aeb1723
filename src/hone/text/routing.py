"""Routing replay in the trainer: the recorded experts of a batch's tokens, and what a record must cover."""

import numpy as np
from numpy.typing import NDArray

from hone.core.episodes import Episodes
from hone.core.errors import DivergedError
from hone.core.ragged import Ints
from hone.core.routing import is_recorded, routing_coverage


def require_whole_routing(episodes: Episodes) -> None:
    """Raise DivergedError where routes were recorded, but not of every token that a decision depends on."""
    seen = episodes.transcript
    if seen.routing is None or not len(seen.at):
        return
    coverage = routing_coverage(seen.routing, seen.offsets, _last_decisions(episodes))
    if coverage < 1:
        raise DivergedError(
            f"the engine recorded the experts of {coverage:.6g} of the (token, layer) places that the answers depend "
            "on, and routing replay needs all: for the others the trainer would choose, and its log-probabilities "
            "would be those of neither policy. Nothing was updated. Set model.experts.replay = false to train without "
            "replay"
        )


def replayed_routes(episodes: Episodes, read: Ints, size: int) -> NDArray[np.int64] | None:
    """`[size, L, k]` experts of the transcript's tokens `read`, -1 where none was recorded and behind them; None where
    nothing was recorded."""
    routing = episodes.transcript.routing
    if routing is None:
        return None
    told = np.full((size, *routing.shape[1:]), -1, np.int64)
    known = is_recorded(routing[read])[:, :, None]
    told[: len(read)] = np.where(known, routing[read].astype(np.int64), -1)
    return told


def _last_decisions(episodes: Episodes) -> Ints:
    """`[E]` flat position of each episode's last decision; of its first token where it has none."""
    seen, last = episodes.transcript, episodes.offsets[1:] - 1
    positions = seen.at[np.maximum(last, 0)]
    return np.where(episodes.lengths > 0, positions, seen.offsets[:-1])
