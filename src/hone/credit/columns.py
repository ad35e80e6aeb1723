"""Further inputs of credit functions: columns (one number per decision) and marks (decisions that end a step).

Columns need a network, so a recipe passes a function that computes them; `checked_column` checks its result.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.core.errors import DataError

Floats = NDArray[np.float64]
CreditFunction: TypeAlias = Callable[[Episodes, Values], Credits]
"""Episodes and critic values -> advantages and value targets."""
DecisionColumn: TypeAlias = Callable[[Episodes], NDArray[np.floating]]
"""One number per decision `[N]`: a log-probability under some policy, a token's implicit reward."""
StepEnds: TypeAlias = Callable[[Episodes], NDArray[np.bool_]]
"""Flags of the decisions that end a step `[N]`."""


def behaviour_logp(episodes: Episodes) -> NDArray[np.floating]:
    """The log-probability under the behaviour policy, in nats `[N]`."""
    return episodes.logp


def checked_column(column: DecisionColumn, episodes: Episodes, name: str) -> Floats:
    """The column as float64 `[N]`; raises DataError for a wrong shape or a number that is not finite."""
    result = np.asarray(column(episodes), dtype=np.float64)
    if result.shape != (episodes.decisions,):
        raise DataError(f"{name} has shape {list(result.shape)}, expected [{episodes.decisions}]: one per decision")
    bad = np.flatnonzero(~np.isfinite(result))
    if len(bad):
        place = int(bad[0])
        episode = int(np.searchsorted(episodes.offsets, place, side="right")) - 1
        raise DataError(
            f"{name} is not finite for {len(bad)} of {len(result)} decisions, the first {result[place]} at decision "
            f"{place - int(episodes.offsets[episode])} of episode {episode}; record it, or use a credit without it"
        )
    return result


def episode_ends(episodes: Episodes) -> NDArray[np.bool_]:
    """Marks the last decision of each episode `[N]`: an episode is one step."""
    marks = np.zeros(episodes.decisions, dtype=np.bool_)
    marks[episodes.offsets[1:][episodes.lengths > 0] - 1] = True
    return marks


def turn_ends(episodes: Episodes) -> NDArray[np.bool_]:
    """Marks `[N]` the last decision of each turn, and the last of each episode; for transcripts. A turn ends before
    tokens of the environment and, where `episodes.turn` was recorded, before the next turn's."""
    marks = episode_ends(episodes)
    marks[:-1] |= np.diff(episodes.transcript.at) > 1
    if episodes.turn is not None:
        marks[:-1] |= np.diff(episodes.turn) != 0
    return marks


def delimiter_ends(episodes: Episodes, *, tokens: Sequence[int]) -> NDArray[np.bool_]:
    """Marks each decision that chose one of `tokens` (a line's end), and the last of each episode `[N]`."""
    return np.isin(episodes.chosen, np.asarray(tokens)) | episode_ends(episodes)
