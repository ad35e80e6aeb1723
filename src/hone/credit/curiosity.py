"""Curiosity: what surprises a world model is paid beside the score (Pathak et al., 2017; Burda et al., 2018)."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import numpy as np

from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.credit.columns import CreditFunction, Floats
from hone.credit.shaping import with_scores, with_shaped_scores

Surprise: TypeAlias = Callable[[Episodes], Floats]
"""Episodes -> `[E]` nats: mean of -log p of what the environment said, under a world model."""


def with_curiosity(
    episodes: Episodes, values: Values, *, credit: CreditFunction, surprise: Surprise, weight: float, max_nats: float
) -> Credits:
    """The credit of scores r + weight * min(surprise, max_nats) (ICM, Pathak et al., 2017).

    A world that is known by heart is worth nothing, and chance, which cannot be known, stays worth something: the bound
    keeps a policy from watching noise. Missing scores stay missing.
    """
    nats = surprise(episodes)
    bonus = partial(_with_bonus, bonus=weight * np.minimum(nats, max_nats))
    found = with_shaped_scores(episodes, values, credit=credit, shapings=[bonus])
    told = {"curiosity/surprise_nats": float(nats.mean()), "curiosity/surprise_max": float(nats.max())}
    return replace(found, metrics={**found.metrics, **told})


def _with_bonus(episodes: Episodes, *, bonus: Floats) -> Episodes:
    return with_scores(episodes, episodes.score + bonus)
