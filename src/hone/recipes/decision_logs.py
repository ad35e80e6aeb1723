"""Logs of decisions as data of the offline recipes: files of episodes, and frozen views of a service's log."""

from pathlib import Path

import numpy as np
from gymnasium.spaces import Box, Discrete

from hone.control.logs.formats import LogDataConfig
from hone.control.logs.parquet import AS_WRITTEN, BehaviourLog, SpacePair, read_log
from hone.core.errors import DataError
from hone.decide.joins.parquet import is_frozen_view, read_frozen_view


def read_decisions(path: Path, *, spaces: SpacePair | None = None, data: LogDataConfig = AS_WRITTEN) -> BehaviourLog:
    """The log at `path`: a frozen view, or what `read_log` reads. Raises DataError."""
    return frozen_view_log(path) if is_frozen_view(path) else read_log(path, spaces=spaces, data=data)


def frozen_view_log(folder: Path) -> BehaviourLog:
    """The final decisions of a frozen view, with the spaces of their contexts and actions.

    Raises DataError if the folder was changed, no reward is final, decisions had no features, or several sets of
    actions are in it.
    """
    view = read_frozen_view(folder)
    episodes = view.episodes()
    width = episodes.observations.shape[1]
    if not width:
        raise DataError(f"{folder}: its decisions have no features; a policy that reads none is a bandit over arms")
    counts = view.counts
    notes = (f"{folder}: {counts.censored} decisions are left out, as their window is open",) if counts.censored else ()
    return BehaviourLog(
        episodes=episodes,
        observation_space=Box(-np.inf, np.inf, (width,), np.float64),
        action_space=Discrete(len(view.table.action_sets[0])),
        notes=notes,
    )
