"""Results of tools at a length that fits: the middle is cut out, and the text says so."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray


def cut_result(
    text: str,
    most_tokens: int,
    *,
    encode: Callable[[str], NDArray[np.int32]],
    decode: Callable[[Sequence[int] | NDArray[np.integer]], str],
) -> str:
    """A text of at most `most_tokens` tokens: both ends with a notice between them, or the text itself if it fits.

    The notice counts against the limit; if that leaves no room for the ends, the result is the beginning of the notice.
    Joined pieces may encode to other tokens than they did apart, so the ends are shortened until the whole fits.
    """
    # A token is at least one byte, and at most as many characters as the longest of a vocabulary: a text of many
    # megabytes is never encoded as a whole.
    text, lost = _within(text, 64 * max(1, most_tokens))
    tokens = encode(text)
    if len(tokens) <= most_tokens and not lost:
        return text
    for ends in range(most_tokens, 0, -max(1, most_tokens // 64)):
        head, tail = decode(tokens[: ends - ends // 2]), decode(tokens[len(tokens) - ends // 2 :]) if ends > 1 else ""
        cut = f"{head}{_notice(len(tokens) - ends, lost)}{tail}"
        if len(encode(cut)) <= most_tokens:
            return cut
    notice = encode(_notice(len(tokens), lost).strip())
    return decode(notice[:most_tokens])


def _notice(tokens: int, characters: int) -> str:
    also = f" and {characters} characters" if characters else ""
    return f"\n[... {tokens} tokens{also} left out ...]\n"


def _within(text: str, characters: int) -> tuple[str, int]:
    """A text of at most so many characters, from both of its ends, and the number of those lost."""
    if len(text) <= characters:
        return text, 0
    half = characters // 2
    return text[:half] + text[len(text) - half :], len(text) - 2 * half
