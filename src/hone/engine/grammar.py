"""Grammars of answers: which tokens may come next, by llguidance.

A grammar is compiled once for a tokenizer; each sample has a state of its own, which follows its tokens.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hone.core.errors import ConfigError, ResourceError
from hone.core.generation import Grammar

_EVERY_SPELLING: Final = '%llguidance {"no_forcing": true}'
"""Where the grammar leaves one text only, every spelling of it by tokens is allowed, not the tokenizer's own alone: the
mask is then a function of the grammar and the text before."""
_COMPILED: Final = 64
"""Grammars that are kept compiled; a copy of one takes microseconds."""


class GrammarState:
    """Place of one answer in its grammar."""

    def __init__(self, matcher: Any, ends: NDArray[np.uint8]) -> None:  # noqa: ANN401 - llguidance has no types
        self._matcher, self._ends = matcher, ends
        self.stuck = ""
        """Reason why no token continues the text, if none does: only its end is allowed, and it counts as cut off."""

    def allowed(self) -> NDArray[np.uint8]:
        """`[ceil(vocab / 8)]` little-endian bits: tokens that may come next."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)[: len(self._ends)].copy()
        if self._matcher.is_error() or not bits.any():
            reason = self._matcher.get_error().partition("<state>")[0].strip()
            known = reason and not reason.startswith("NoExtension")
            self.stuck = reason if known else "no token of the vocabulary continues the text"
            return self._ends
        return bits

    def take(self, token: int) -> None:
        """Go on by a token that was drawn."""
        self._matcher.consume_token(token)

    def drop_last(self) -> None:
        """Go back by one token."""
        self._matcher.rollback(1)


@dataclass
class GrammarCompiler:
    """Grammars over the tokens of one tokenizer."""

    vocab: int
    """Token ids from there on are never drawn."""
    eos: Sequence[int]
    """Tokens that end an answer, where the grammar may end."""
    tokenizer_json: Callable[[], str]
    """The `tokenizer.json`."""
    compiled: dict[Grammar, Any] = field(default_factory=dict[Grammar, Any])

    def start(self, grammar: Grammar) -> GrammarState:
        """The beginning of an answer. Raises ConfigError for a grammar that cannot be read, or that no token begins;
        ResourceError without llguidance."""
        if grammar not in self.compiled:
            matcher = _library().LLMatcher(self._tokens, _source(grammar))
            state = GrammarState(matcher.deep_copy(), self._ends)
            state.allowed()
            if state.stuck:
                raise ConfigError(f"the {grammar.kind} of an answer cannot be used: {state.stuck}")
            while len(self.compiled) >= _COMPILED:
                del self.compiled[next(iter(self.compiled))]
            self.compiled[grammar] = matcher
        return GrammarState(self.compiled[grammar].deep_copy(), self._ends)

    @cached_property
    def _ends(self) -> NDArray[np.uint8]:
        """Bits of the tokens that end an answer."""
        bits = np.zeros(-(-self.vocab // 8) * 8, np.bool_)
        bits[[one for one in self.eos if one < self.vocab]] = True
        return np.packbits(bits, bitorder="little")

    @cached_property
    def _tokens(self) -> Any:  # noqa: ANN401 - as above
        text, eos = self.tokenizer_json(), [one for one in self.eos if one < self.vocab]
        if not eos:
            raise ConfigError("a grammar needs a token that ends an answer, and the tokenizer names none")
        library, tree = _library(), json.loads(text)
        whole = tree["model"] if tree["model"]["type"] == "WordLevel" else None
        tokenizer = text if whole is None else library.TokenizerWrapper(_WordTokens(tree, self.vocab, eos[0]))
        return library.LLTokenizer(tokenizer, n_vocab=self.vocab, eos_token=eos)


class _WordTokens:
    """A tokenizer whose tokens are texts, such as single characters, in the form that llguidance takes."""

    def __init__(self, tree: Mapping[str, Any], vocab: int, eos: int) -> None:
        words = {number: word for word, number in tree["model"]["vocab"].items()}
        words |= {one["id"]: one["content"] for one in tree["added_tokens"]}
        self.eos_token_id, self.bos_token_id = eos, None
        self.special_token_ids = [one["id"] for one in tree["added_tokens"] if one["id"] < vocab]
        self.tokens = [words.get(number, f"<{number}>").encode() for number in range(vocab)]
        self._ids = {token: number for number, token in enumerate(self.tokens)}

    def __call__(self, text: bytes) -> list[int]:
        pieces = text.decode("utf-8", errors="ignore") if isinstance(text, bytes) else text
        return [self._ids[one.encode()] for one in pieces if one.encode() in self._ids]


def named_grammar(name: str, *, key: str) -> Grammar:
    """The grammar that a config names: `/.../` is a regular expression; otherwise a file, of a JSON schema (`.json`) or
    of a grammar. Raises ConfigError, which names the config's `key`, for a file that cannot be read."""
    if len(name) > 1 and name.startswith("/") and name.endswith("/"):
        return Grammar(kind="regex", text=name[1:-1])
    try:
        text = Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{key} = {name!r} is no file that can be read ({error}); give a JSON schema (.json), a grammar (.lark, "
            ".gbnf), or a regular expression between slashes"
        ) from None
    return Grammar(kind="json_schema" if name.endswith(".json") else "lark", text=text)


def _source(grammar: Grammar) -> str:
    """The grammar in llguidance's own form. Raises ConfigError for a schema that is no JSON."""
    library, text = _library(), grammar.text
    if grammar.kind == "regex":
        text = json.loads(library.LLMatcher.grammar_from_regex(text))["grammars"][0]["lark_grammar"]
    elif grammar.kind == "json_schema":
        try:
            text = f"start: %json {json.dumps(json.loads(text))}"
        except ValueError as error:
            raise ConfigError(f"the JSON schema of an answer is not JSON: {error}") from None
    else:
        try:
            text = library.gbnf_to_lark.any_to_lark(text)
        except library.gbnf_to_lark.GbnfToLarkError as error:
            raise ConfigError(f"the grammar of an answer cannot be used: {error}") from None
    return text if "%llguidance" in text else f"{_EVERY_SPELLING}\n{text}"


def _library() -> Any:  # noqa: ANN401 - an extra
    try:
        import llguidance  # noqa: PLC0415
    except ImportError as error:
        raise ResourceError(f"a grammar needs the package {error.name}: pip install 'hone-rl[grammar]'") from None
    return llguidance
