"""World modelling: what the environment said in a dialogue, as decisions to imitate.

The mirror of imitation: there the policy's tokens are decisions, here those of the environment after the first turn of
the policy. Prompts are neither. A policy that predicts them knows what its actions lead to (implicit world modelling;
Zhang et al., Agent Learning via Early Experience, 2025, 2510.08558).
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hone.core.episodes import Episodes
from hone.core.ragged import Ints, offsets_of, owner_of


def environment_positions(episodes: Episodes) -> Ints:
    """Flat positions `[W]` of the tokens that the environment said after the first sampled token of each episode; an
    episode without decisions has none."""
    seen, counts = episodes.transcript, episodes.lengths
    first = np.diff(seen.offsets).copy()
    spoke = counts > 0
    first[spoke] = seen.at[episodes.offsets[:-1][spoke]] - seen.offsets[:-1][spoke]
    owner = owner_of(seen.offsets)
    after = np.arange(len(seen.tokens)) - seen.offsets[:-1][owner] > first[owner]
    after[seen.at] = False
    return np.flatnonzero(after)


def with_learned_tokens(episodes: Episodes, *, said: float, world: float) -> Episodes:
    """The same episodes with the tokens that are to be imitated as decisions, each worth its weight.

    A sampled token is worth `said` times its reward in `episodes`, a token of the environment after the first of them
    `world`; tokens worth 0 are context, and episodes without any other are left out. The log-probability of a token of
    the environment is NaN: no policy drew it. Sampling masks are left behind, since nothing is drawn.
    """
    seen = episodes.transcript
    weight = np.zeros(len(seen.tokens), np.float32)
    logp = np.full(len(seen.tokens), np.nan, np.float32)
    version = np.zeros(len(seen.tokens), np.int32)
    weight[environment_positions(episodes)] = world
    weight[seen.at] = said * episodes.reward
    logp[seen.at], version[seen.at] = episodes.logp, episodes.version
    at = np.flatnonzero(weight)
    counts = np.diff(np.searchsorted(at, seen.offsets))
    learnt = replace(
        episodes,
        offsets=offsets_of(counts),
        seen=replace(seen, at=at, kept=None),
        chosen=seen.tokens[at],
        logp=logp[at],
        version=version[at],
        reward=weight[at],
        turn=None,
        time=None,
        ref_logp=None,
    )
    return learnt if counts.all() else learnt.take(np.flatnonzero(counts))


def environment_only(episodes: Episodes) -> Episodes:
    """The tokens of the environment as decisions that were worth 1, in the episodes that have any."""
    return with_learned_tokens(episodes, said=0.0, world=1.0)


def environment_means(values: NDArray[np.floating], episodes: Episodes) -> NDArray[np.float64]:
    """`[E]` mean of `values` `[W]`, one for each decision of `environment_only(episodes)`, over each of `episodes`; 0
    where the environment said nothing."""
    owner = owner_of(episodes.transcript.offsets)[environment_positions(episodes)]
    total = np.bincount(owner, weights=values, minlength=len(episodes))
    return total / np.maximum(np.bincount(owner, minlength=len(episodes)), 1)
