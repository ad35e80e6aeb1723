"""Steps of an answer: the pieces between a text such as `;` or a line's end, and the tokens at which they end.

A step is paid at the token that completes its separator, before anything later is decided; the last piece, empty where
an answer ends with a separator, is paid at the answer's last token.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hone.core.ragged import Ints

Decode = Callable[[NDArray[np.int32]], str]


def count_steps(text: str, separator: str) -> int:
    """Number of pieces of `text.split(separator)`: the separators, and what follows the last one."""
    return text.count(separator) + 1


def step_ends(tokens: NDArray[np.int32], decode: Decode, separator: str, steps: int) -> Ints:
    """`[steps]` place in `tokens` `[n]` of the last token of each step.

    Step k ends at the first token after which the text holds k separators, found by bisection of the text's beginnings;
    a separator may be spread over several tokens, and one token may hold several. The last step ends at the last token.
    """
    ends = np.full(steps, len(tokens) - 1, np.int64)
    low = 0
    for step in range(steps - 1):
        high = len(tokens) - 1
        while low < high:
            middle = (low + high) // 2
            if decode(tokens[: middle + 1]).count(separator) > step:
                high = middle
            else:
                low = middle + 1
        ends[step] = low
    return ends
