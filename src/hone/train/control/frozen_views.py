"""Frozen views of a decision log as data of recipes: one decision an episode."""

from pathlib import Path

import numpy as np
from gymnasium.spaces import Box, Discrete

from hone.core.errors import DataError
from hone.envs.logs.parquet import DecisionLog
from hone.store.joins.parquet import read_frozen_view
from hone.store.joins.view import view_episodes


def frozen_view_log(folder: Path) -> DecisionLog:
    """The final decisions of a frozen view, with the spaces of their contexts and actions.

    Raises DataError if the folder was changed, no reward is final, decisions had no features, or several sets of
    actions are in it.
    """
    view = read_frozen_view(folder)
    episodes = view_episodes(view)
    width = episodes.observations.shape[1]
    if not width:
        raise DataError(f"{folder}: its decisions have no features; a policy that reads none is a bandit over arms")
    counts = view.counts
    notes = (f"{folder}: {counts.censored} decisions are left out, as their window is open",) if counts.censored else ()
    return DecisionLog(
        episodes=episodes,
        observation_space=Box(-np.inf, np.inf, (width,), np.float64),
        action_space=Discrete(len(view.table.action_sets[0])),
        notes=notes,
    )
