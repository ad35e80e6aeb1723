"""Self-imitation: replayed answers count by how much better they went than the policy expects now (Oh et al., 2018)."""

from dataclasses import replace

import numpy as np

from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.core.ragged import ranges
from hone.credit.columns import CreditFunction


def self_imitation(episodes: Episodes, values: Values, *, credit: CreditFunction, weight: float) -> Credits:
    """A = that of `credit` for live answers; A = weight * max(r - b, 0) for replayed ones, at each of their tokens
    (SIL, Oh et al., 2018, 1806.05635).

    Replayed answers are those of groups with numbers below 0; their `baseline` b is the latest mean score of the
    answers to the same question. One that the policy has caught up with gets 0. In the paper b is a critic's value.
    """
    live = episodes.group >= 0
    if live.all():
        return credit(episodes, values)
    own = np.flatnonzero(live)
    found = credit(episodes.take(own), values)
    assert episodes.baseline is not None  # a source of replayed answers gives each the baseline of its question
    better = np.nan_to_num(np.maximum(episodes.score - episodes.baseline, 0.0))
    advantage = (weight * better)[episodes.owner].astype(np.float32)
    advantage[ranges(episodes.offsets[:-1][own], episodes.lengths[own])] = found.advantage
    told = {"successes/advantage_mean": float(better[~live].mean())}
    return replace(found, advantage=advantage, metrics={**found.metrics, **told})
