"""Which tokens are meant: those that end a step of an answer, and those that the environment said in a dialogue.

Steps are the pieces of an answer between a text such as `;` or a line's end. A step is paid at the token that completes
its separator, before anything later is decided; the last piece, empty where an answer ends with a separator, is paid at
the answer's last token.

World modelling is the mirror of imitation: there the policy's tokens are decisions, here those of the environment after
the first turn of the policy. Prompts are neither. A policy that predicts them knows what its actions lead to (implicit
world modelling; Zhang et al., Agent Learning via Early Experience, 2025, 2510.08558).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hone.core.episodes import Episodes
from hone.core.errors import DataError
from hone.core.ragged import Ints, offsets_of, owner_of

Decode = Callable[[NDArray[np.int32]], str]

# ---------------------------------------------------------------------------------------------------------------- steps


def step_ends(tokens: NDArray[np.int32], decode: Decode, separator: str, steps: int) -> Ints:
    """`[steps]` place in `tokens` `[n]` of the last token of each step.

    Step k ends at the first token after which the text holds k separators; a separator may be spread over several
    tokens, and one token may hold several. The last step ends at the last token.
    """
    ends = np.full(steps, len(tokens) - 1, np.int64)
    completed = separator_ends(tokens, decode, separator)[: steps - 1]
    ends[: len(completed)] = completed
    return ends


def separator_ends(tokens: NDArray[np.int32], decode: Decode, separator: str) -> list[int]:
    """Places in `tokens` `[n]` of the tokens that complete each separator, in order; a token that completes several
    stands as often."""
    text, ends = decode(tokens), list[int]()
    at = text.find(separator)
    while at >= 0:
        ends.append(at + len(separator))
        at = text.find(separator, ends[-1])
    return text_ends(tokens, decode, text, ends)


def text_ends(tokens: NDArray[np.int32], decode: Decode, text: str, ends: Sequence[int]) -> list[int]:
    """Places in `tokens` `[n]` of the tokens that complete the first `end` characters of `text`, for each of `ends`.

    `tokens` write `text`, and perhaps what a chat template puts around it. Raises DataError where they do not.
    """
    start = decode(tokens).find(text)
    if start < 0:
        raise DataError(f"the tokens of an answer do not write its text back: {text[:60]!r}")
    places: list[int] = []
    for end in ends:
        low, high = 0, len(tokens)  # fewest tokens whose text covers the characters, by bisection
        while low < high:
            middle = (low + high) // 2
            covered = decode(tokens[:middle])[start:].startswith(text[:end])
            low, high = (low, middle) if covered else (middle + 1, high)
        places.append(low - 1)
    return places


# ---------------------------------------------------------------------------------------------------------------- world


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
