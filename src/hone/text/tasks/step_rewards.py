"""Steps of an answer: the pieces between a text such as `;` or a line's end, and the tokens at which they end.

A step is paid at the token that completes its separator, before anything later is decided; the last piece, empty where
an answer ends with a separator, is paid at the answer's last token.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from hone.core.errors import DataError
from hone.core.ragged import Ints

Decode = Callable[[NDArray[np.int32]], str]


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
