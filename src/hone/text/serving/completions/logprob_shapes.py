"""Log-probabilities in the shapes of OpenAI's two protocols."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hone.core.generation import Completion, LikeliestTokens, ScoreResult
from hone.text.serving.completions.token_text import TokenText

TokenPair = tuple[int, float]
"""Id and log-probability, nats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredToken:
    """One token with its log-probability, and the likeliest ones in its place."""

    token: int
    logp: float | None
    """Nats; None for the first token of a text, before which there is nothing."""
    likeliest: Sequence[TokenPair] = ()


def tokens_of_completion(completion: Completion) -> list[ScoredToken]:
    """The tokens of an answer."""
    return _scored(completion.tokens.tolist(), completion.logp.tolist(), completion.likeliest)


def tokens_of_prompt(tokens: Sequence[int], scored: ScoreResult | None) -> list[ScoredToken]:
    """The tokens of a prompt; the first one has no log-probability."""
    first = ScoredToken(token=tokens[0], logp=None)
    if scored is None:
        return [first]
    return [first, *_scored(tokens[1:], scored.logp.tolist(), scored.likeliest)]


def text_logprobs(names: TokenText, tokens: Sequence[ScoredToken], *, start: int = 0) -> dict[str, Any]:
    """`logprobs` of `/v1/completions`; `start`: character of the text at which the first token begins.

    A position's likeliest tokens are named with the token itself, as OpenAI does, so that a client sees whether it is
    the likeliest.
    """
    return {
        "tokens": [names.label(one.token) for one in tokens],
        "token_logprobs": [one.logp for one in tokens],
        "top_logprobs": [_top(names, one) for one in tokens],
        "text_offset": names.offsets([one.token for one in tokens], start),
    }


def chat_logprobs(names: TokenText, tokens: Sequence[ScoredToken]) -> dict[str, Any]:
    """`logprobs` of `/v1/chat/completions`; `bytes` have the halves of characters that `token` cannot show."""
    content = [
        {**_entry(names, one.token, one.logp), "top_logprobs": [_entry(names, *pair) for pair in one.likeliest]}
        for one in tokens
    ]
    return {"content": content, "refusal": None}


def _scored(tokens: Sequence[int], logp: Sequence[float], likeliest: LikeliestTokens | None) -> list[ScoredToken]:
    if likeliest is None:
        return [ScoredToken(token=token, logp=value) for token, value in zip(tokens, logp, strict=True)]
    columns = zip(tokens, logp, likeliest.tokens.tolist(), likeliest.logp.tolist(), strict=True)
    return [
        ScoredToken(token=token, logp=value, likeliest=list(zip(ids, values, strict=True)))
        for token, value, ids, values in columns
    ]


def _top(names: TokenText, one: ScoredToken) -> Mapping[str, float] | None:
    """Likeliest tokens by name, the likeliest first, and the token itself; of two with one name the likelier stays."""
    if one.logp is None:
        return None
    found: dict[str, float] = {}
    for token, logp in (*one.likeliest, (one.token, one.logp)):
        found.setdefault(names.label(token), logp)
    return found


def _entry(names: TokenText, token: int, logp: float | None) -> dict[str, Any]:
    raw = names.bytes_of(token)
    return {"token": raw.decode(errors="replace"), "logprob": logp, "bytes": list(raw)}
