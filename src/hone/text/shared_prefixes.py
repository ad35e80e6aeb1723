"""Rows of sequences that begin alike: which ones share a row, and how many tokens they share.

Belongs here: the choice. How a row is packed is in `rows.py`.
"""

import numpy as np
from numpy.typing import NDArray

from hone.core.episodes import Episodes
from hone.core.ragged import Ints, ranges

MIN_SHARED_PART = 3
"""A sequence shares a row's trunk with answers to other questions when that is at least one part in so many of it."""


def shared_rows(episodes: Episodes, row_tokens: int, begins: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """First sequence of each row `[R]`, and the tokens that its sequences share `[R]`; `begins` `[E]` begin a row.

    A sequence joins the row before it while that saves tokens (k sequences that share t tokens save (k - 1) t), where
    both answer one question or a third of it is shared. So answers to one question stay together, however short it is,
    and examples that share only a system prompt share just that; those that share less stay apart, so that minibatches
    still mix them.
    """
    seen = episodes.transcript
    asked = seen.at[episodes.offsets[:-1]] - seen.offsets[:-1]
    prompts, lengths = asked.tolist(), np.diff(seen.offsets).tolist()
    like_before = np.where(begins, 0, _common_prefix_lengths(seen.tokens, seen.offsets[:-1], asked)).tolist()
    same_question = (np.diff(episodes.group, prepend=episodes.group[:1] - 1) == 0).tolist()
    starts: list[int] = []
    trunks: list[int] = []
    together, read = 0, 0
    sequences = zip(prompts, lengths, like_before, same_question, strict=True)
    for number, (prompt, length, alike, same) in enumerate(sequences):
        if together:
            alike = min(trunks[-1], alike)  # the one before begins with the trunk, as the row's first does
            grown = read + length - (together + 1) * alike
            saves = together * alike > (together - 1) * trunks[-1] and (same or MIN_SHARED_PART * alike >= length)
            if saves and alike + grown <= row_tokens:
                trunks[-1], together, read = alike, together + 1, read + length
                continue
        starts.append(number)
        trunks.append(prompt)
        together, read = 1, length
    return np.array(starts, dtype=np.int64), np.array(trunks, dtype=np.int64)


def _common_prefix_lengths(tokens: NDArray[np.integer], begins: Ints, most: Ints) -> Ints:
    """`[E]` tokens in which each sequence and the one before it begin alike, of the first `most` `[E]` of both."""
    alike = np.minimum(most, np.roll(most, 1))
    alike[:1] = 0
    places = ranges(np.zeros_like(alike), alike)
    here, before = (np.repeat(first, alike) + places for first in (begins, np.roll(begins, 1)))
    differ = np.flatnonzero(tokens[here] != tokens[before])
    owner, first = np.unique(np.repeat(np.arange(len(alike)), alike)[differ], return_index=True)
    alike[owner] = places[differ[first]]
    return alike
