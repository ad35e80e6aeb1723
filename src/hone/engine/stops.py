"""Conditions that end an answer: an end-of-sequence token, a stop string, or its length, in this order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hone.core.generation import FinishReason
from hone.engine.samples import SampleState
from hone.engine.table import RunningBatch

Decode = Callable[[Sequence[int]], str]

_MARGIN: Final = 32
"""Tokens decoded besides those that a stop string may span, so that the border of the window does not matter."""
_BROKEN: Final = "\N{REPLACEMENT CHARACTER}"
"""Decoded text of a token that is an incomplete character."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerRules:
    """The tokenizer's part in stopping conditions."""

    eos: Sequence[int]
    """Each of these tokens ends an answer."""
    vocab: int
    """Ids from there on are neither accepted nor sampled."""
    decode: Decode | None = None
    """Token ids -> text; needed for stop strings only."""


class StopRules:
    """Implements `scheduler.Ends`. A text is decoded only when its last token could complete a stop string."""

    def __init__(self, text: TokenizerRules) -> None:
        self._is_eos = np.zeros(text.vocab, np.bool_)
        self._is_eos[[token for token in text.eos if token < text.vocab]] = True
        self._decode, self._vocab = text.decode, text.vocab
        self._could: dict[tuple[str, ...], NDArray[np.int8]] = {}
        """Table per set of stop strings and token: 1 if the token may complete one, 0 if it cannot, -1 if unknown."""

    def finished_rows(self, table: RunningBatch) -> list[tuple[int, FinishReason]]:
        """Rows that end with their last token, with the reason."""
        count = len(table)
        eos = self._is_eos[table.last_token[:count]]
        full = table.at_token_limit()
        result: dict[int, FinishReason] = {}
        if bool(table.has_stop_strings[:count].any()):
            for row in np.flatnonzero(table.has_stop_strings[:count] & ~eos).tolist():
                stops = table.samples[row].request.sampling.stop
                if (
                    self._completes(int(table.last_token[row]), stops)
                    and self.characters_after_stop(stops, table.last_tokens, row) is not None
                ):
                    result[row] = "stop"
        ended = eos | full
        if bool(ended.any()):
            for row in np.flatnonzero(ended).tolist():
                result[row] = "eos" if eos[row] else result.get(row, "length")
        return sorted(result.items())

    def finish_of(self, sample: SampleState) -> FinishReason | None:
        """Reason for which a sample ends, or None."""
        token, stops = int(sample.tokens[-1]), sample.request.sampling.stop
        if self._is_eos[token]:
            return "eos"
        if stops and self._completes(token, stops) and self.trailing_characters(sample) is not None:
            return "stop"
        return "length" if len(sample.tokens) >= sample.request.sampling.max_tokens else None

    def trailing_characters(self, sample: SampleState) -> int | None:
        """Characters of an ended sample behind its stop string; None when it holds none near its end."""
        stops = sample.request.sampling.stop
        return self.characters_after_stop(stops, lambda _, count: sample.tokens[-count:], 0) if stops else None

    def characters_after_stop(
        self, stops: tuple[str, ...], last: Callable[[int, int], NDArray[np.int32]], row: int
    ) -> int | None:
        """Characters behind the first stop string in the end of a text; None if there is none."""
        assert self._decode is not None
        # Except for special tokens, a token has at least one byte: a stop string spans no more tokens than this.
        window = max(len(stop.encode()) for stop in stops) + _MARGIN
        text = self._decode(last(row, window).tolist())
        ends = [place + len(stop) for stop in stops if (place := text.find(stop)) >= 0]
        return len(text) - min(ends) if ends else None

    def _completes(self, token: int, stops: tuple[str, ...]) -> bool:
        could = self._could.get(stops)
        if could is None:
            could = self._could[stops] = np.full(self._vocab, -1, np.int8)
        if could[token] < 0:
            could[token] = self._may_complete(token, stops)
        return bool(could[token])

    def _may_complete(self, token: int, stops: tuple[str, ...]) -> bool:
        """A token completes a stop string only by bringing its last character."""
        assert self._decode is not None
        # Twice, because some tokenizers drop a leading space of a text.
        text = self._decode([token]) + self._decode([token, token])
        return not text or _BROKEN in text or any(stop[-1] in text or stop[-1].isspace() for stop in stops)
