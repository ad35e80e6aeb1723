"""The model that a server offers, with the bytes and names of its tokens, and text that only grows as it is written."""

import codecs
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from hone.core.conversation import Message
from hone.core.errors import DataError, HoneError
from hone.models.language.tokenizers import Tokenizer
from hone.run.http.requests import ApiError
from hone.text.evaluate.engine_actor import IncrementalDetokenizer
from hone.text.tools.formats import ToolFormat

# ----------------------------------------------------------------------------------------------------------- token text

_BYTE: Final = re.compile(r"<0x([0-9A-F]{2})>")
"""A byte as SentencePiece's vocabularies write it."""


class TokenText:
    """Bytes of a tokenizer's tokens: a token may be a part of a character."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        decoder = cast("Mapping[str, object]", json.loads(tokenizer.backend.to_str())).get("decoder")
        kinds = set(_kinds(decoder))
        self._byte_level, self._byte_fallback = "ByteLevel" in kinds, "ByteFallback" in kinds
        self._special = set(tokenizer.backend.get_added_tokens_decoder())
        self._known: dict[int, bytes] = {}

    def bytes_of(self, token: int) -> bytes:
        """The bytes that a token adds to a text; a special token's name."""
        known = self._known.get(token)
        if known is None:
            known = self._known[token] = self._bytes(token)
        return known

    def label(self, token: int) -> str:
        """Text of a token; `bytes:\\xe2\\x82` for one that is not whole characters, as OpenAI writes it. So tokens
        that differ have labels that differ."""
        raw = self.bytes_of(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def offsets(self, tokens: Sequence[int], start: int = 0) -> list[int]:
        """`[n]` character of the text at which each token begins, counted from `start`; special tokens take no room."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        offsets: list[int] = []
        for token in tokens:
            offsets.append(start)
            start += 0 if token in self._special else len(decoder.decode(self.bytes_of(token)))
        return offsets

    def _bytes(self, token: int) -> bytes:
        name = self.tokenizer.backend.id_to_token(token) or ""
        if token in self._special:
            return name.encode()
        if self._byte_level:
            table = _bytes_of_letters()
            return bytes(table[letter] for letter in name) if all(letter in table for letter in name) else name.encode()
        if self._byte_fallback and (match := _BYTE.fullmatch(name)):
            return bytes([int(match[1], 16)])
        # Twice, because some tokenizers drop a leading space of a text.
        return self.tokenizer.decode([token, token])[len(self.tokenizer.decode([token])) :].encode()


class GrowingText:
    """Text of an answer as it may be sent: whole characters, and nothing that may be the beginning of a stop string."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer.decode)
        self._stop = tuple(stop)
        self._held = ""
        self.sent = ""

    def add(self, place: int, token: int) -> str:
        """Set token number `place`; returns the text that is certain now, one token behind."""
        self._held += self._detokenizer.add(place, token)
        held = self._held
        starts = (length for one in self._stop for length in range(1, len(one)) if held.endswith(one[:length]))
        return self._send(len(held) - max(starts, default=0))

    def finish(self, whole: str) -> str:
        self._held = whole[len(self.sent) :]
        return self._send(len(self._held))

    def _send(self, count: int) -> str:
        text, self._held = self._held[:count], self._held[count:]
        self.sent += text
        return text


def without_stop(text: str, stop: Sequence[str]) -> str:
    """The text of an answer that ended with a stop string, without it."""
    ends = [len(text) - len(one) for one in stop if text.endswith(one)]
    return text[: min(ends)] if ends else text


def _kinds(decoder: object) -> Iterator[str]:
    """Kinds of a tokenizer's decoders, those of a sequence included."""
    if isinstance(decoder, dict):
        table = cast("Mapping[str, object]", decoder)
        yield str(table.get("type"))
        for inner in cast("list[object]", table.get("decoders") or []):
            yield from _kinds(inner)


@cache
def _bytes_of_letters() -> dict[str, int]:
    """The letters in which byte-level vocabularies write bytes (GPT-2)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(256 + place): byte for place, byte in enumerate(others)}


# --------------------------------------------------------------------------------------------------------- served model


@dataclass(eq=False, kw_only=True)
class ServedModel:
    """A model under its name."""

    name: str
    tokenizer: Tokenizer
    context: int
    """Most tokens of a prompt and its answer."""
    fingerprint_of: Callable[[int], str]
    """`system_fingerprint` of the weights of a version (`Completion.version`)."""
    tool_format: ToolFormat | None = None
    """Format in which the model calls tools; None: it has none."""
    describes_tools: bool | None = True
    """As `task.tools.describe` of its run; True for a model of no run."""
    token_text: TokenText = field(init=False)
    most_characters: int = field(init=False)
    """Characters above which a text has more tokens than the context, whatever they are."""

    def __post_init__(self) -> None:
        self.token_text = TokenText(self.tokenizer)
        self.most_characters = self.context * self.tokenizer.longest_token

    def chat_tokens(
        self, messages: Sequence[Message], tokenizer: Tokenizer, *, begin_answer: bool
    ) -> NDArray[np.int32]:
        """`[n]` ids of a conversation, by the chat template of `tokenizer`: this model's, told of tools or not.

        Raises DataError for messages that the template does not take, whatever it raises: a template is code of the
        model's folder. Raises ApiError for a conversation that is longer than the context, before it is tokenised.
        """
        try:
            if sum(len(str(message.get("content", ""))) for message in messages) > self.most_characters:
                rendered = tokenizer.render_chat(messages, add_generation_prompt=begin_answer)
                self.check_length(rendered, "the conversation", "messages")
            return tokenizer.apply_chat(messages, add_generation_prompt=begin_answer)
        except (HoneError, ApiError):
            raise
        except Exception as error:
            raise DataError(
                f"the chat template does not take these messages: it raised {type(error).__name__}: {error!s:.200}"
            ) from error

    def check_length(self, text: str, name: str, param: str) -> None:
        """Raise ApiError for a text that cannot fit into the context, whatever its tokens are."""
        if len(text) > self.most_characters:
            longest = self.most_characters // self.context
            raise ApiError(
                400,
                f"{name} of {len(text)} characters does not fit into the context of {self.context} tokens, each of at "
                f"most {longest} characters; shorten it",
                param=param,
                code="context_length_exceeded",
            )

    def check_ids(self, tokens: Sequence[int], param: str) -> None:
        """Raise ApiError that names the first ids that are no tokens."""
        known = self.tokenizer.backend.id_to_token
        unknown = [place for place, token in enumerate(tokens) if known(token) is None]
        if unknown:
            shown = ", ".join(f"{param}[{place}] = {tokens[place]}" for place in unknown[:3])
            more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
            message = f"{shown}{more}: no token has this id; the largest is {self.tokenizer.size - 1}"
            raise ApiError(400, message, param=param, code="invalid_value")
