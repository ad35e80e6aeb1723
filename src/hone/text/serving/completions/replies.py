"""Answers in OpenAI's shapes: whole, and as chunks of a stream."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from hone.core.generation import Completion, FinishReason, LikeliestTokens, ScoreResult
from hone.engine.engine import DrawnToken
from hone.text.serving.completions.asked import AskedAnswers, AskedPrompt, call_shapes
from hone.text.serving.completions.served_model import GrowingText, ServedModel, TokenText, without_stop

# ------------------------------------------------------------------------------------------------------- logprob shapes

TokenPair = tuple[int, float]
"""Id and log-probability, nats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ScoredToken:
    """One token with its log-probability, and the likeliest ones in its place."""

    token: int
    logp: float | None
    """Nats; None for the first token of a text, before which there is nothing."""
    likeliest: Sequence[TokenPair] = ()


def _tokens_of_completion(completion: Completion) -> list[_ScoredToken]:
    return _scored(completion.tokens.tolist(), completion.logp.tolist(), completion.likeliest)


def _text_logprobs(names: TokenText, tokens: Sequence[_ScoredToken], *, start: int = 0) -> dict[str, Any]:
    """`logprobs` of `/v1/completions`; `start`: character of the text at which the first token begins. A position's
    likeliest tokens are named with the token itself, as OpenAI does, so that a client sees whether it is the
    likeliest."""
    return {
        "tokens": [names.label(one.token) for one in tokens],
        "token_logprobs": [one.logp for one in tokens],
        "top_logprobs": [_top(names, one) for one in tokens],
        "text_offset": names.offsets([one.token for one in tokens], start),
    }


def _chat_logprobs(names: TokenText, tokens: Sequence[_ScoredToken]) -> dict[str, Any]:
    """`logprobs` of `/v1/chat/completions`; `bytes` have the halves of characters that `token` cannot show."""
    content = [
        {**_entry(names, one.token, one.logp), "top_logprobs": [_entry(names, *pair) for pair in one.likeliest]}
        for one in tokens
    ]
    return {"content": content, "refusal": None}


def _scored(tokens: Sequence[int], logp: Sequence[float], likeliest: LikeliestTokens | None) -> list[_ScoredToken]:
    if likeliest is None:
        return [_ScoredToken(token=token, logp=value) for token, value in zip(tokens, logp, strict=True)]
    columns = zip(tokens, logp, likeliest.tokens.tolist(), likeliest.logp.tolist(), strict=True)
    return [
        _ScoredToken(token=token, logp=value, likeliest=list(zip(ids, values, strict=True)))
        for token, value, ids, values in columns
    ]


def _top(names: TokenText, one: _ScoredToken) -> Mapping[str, float] | None:
    """Likeliest tokens by name, the likeliest first, and the token itself; of two with one name the likelier stays."""
    if one.logp is None:
        return None
    logps: dict[str, float] = {}
    for token, logp in (*one.likeliest, (one.token, one.logp)):
        logps.setdefault(names.label(token), logp)
    return logps


def _entry(names: TokenText, token: int, logp: float | None) -> dict[str, Any]:
    raw = names.bytes_of(token)
    return {"token": raw.decode(errors="replace"), "logprob": logp, "bytes": list(raw)}


# -------------------------------------------------------------------------------------------------------------- replies

FINISH_REASONS: Final[Mapping[FinishReason, str]] = {"eos": "stop", "stop": "stop", "length": "length"}
CALLED: Final = "tool_calls"
"""Reason to end of an answer that calls tools."""
DONE: Final = "data: [DONE]\n\n"


@dataclass(slots=True, eq=False)
class PromptResults:
    """What the engine gave for one prompt."""

    asked: AskedPrompt
    completions: dict[int, Completion] = field(default_factory=dict[int, Completion])
    """By sample."""
    scored: ScoreResult | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyWriter:
    """Writer of the replies to one request."""

    served: ServedModel
    asked: AskedAnswers
    created: int
    """Seconds since the epoch."""

    @property
    def chat(self) -> bool:
        """True for a chat."""
        return bool(self.asked.messages)

    def whole(self, results: Sequence[PromptResults], version: int) -> dict[str, Any]:
        """The body of a reply that is not streamed; `version` of the weights that answered."""
        choices = [
            self._chat_choice(number, one) if self.chat else self._text_choice(number, result, one)
            for number, (result, one) in enumerate(self._answers(results))
        ]
        reply = {**self._head(version), "choices": choices, "usage": self.usage(results)}
        if self.asked.token_ids and self.chat:
            reply["prompt_token_ids"] = results[0].asked.tokens.tolist()
        return reply

    def usage(self, results: Sequence[PromptResults]) -> dict[str, int]:
        read = sum(len(result.asked.tokens) for result in results)
        drawn = sum(len(one.tokens) for result in results for one in result.completions.values())
        return {"prompt_tokens": read, "completion_tokens": drawn, "total_tokens": read + drawn}

    def answer_text(self, completion: Completion) -> str:
        """Text of an answer, without its stop string unless it is asked for."""
        text = completion.text(self.served.tokenizer.decode)
        if completion.finish_reason == "stop" and not self.asked.keep_stop:
            return without_stop(text, self.asked.stop)
        return text

    def content_and_calls(self, number: int, completion: Completion) -> tuple[str | None, list[dict[str, Any]]]:
        """Content of a chat's answer, and its calls in OpenAI's shape; None for calls without any text."""
        text = self.asked.begun + self.answer_text(completion)
        if not self.asked.tools or self.served.tool_format is None:
            return text, []
        parsed = self.served.tool_format.parse(text, self.asked.tools)
        calls = call_shapes(parsed.calls, f"{self.asked.id}_{number}")
        return ((parsed.content.strip() or None) if calls else parsed.content), calls

    def chunk_head(self, version: int) -> str:
        """Beginning of every event of a stream, which `chunk` goes on from."""
        return f"data: {json.dumps(self._head(version, chunk=True))[:-1]}"

    def chunk(self, head: str, choices: Sequence[Mapping[str, Any]], *, usage: Mapping[str, int] | None = None) -> str:
        counts = f', "usage": {json.dumps(usage)}' if self.asked.usage else ""
        return f'{head}, "choices": {json.dumps(choices)}{counts}}}\n\n'

    def _head(self, version: int, *, chunk: bool = False) -> dict[str, Any]:
        kind = ("chat.completion.chunk" if chunk else "chat.completion") if self.chat else "text_completion"
        return {
            "id": f"{'chatcmpl' if self.chat else 'cmpl'}-{self.asked.id}",
            "object": kind,
            "created": self.created,
            "model": self.served.name,
            "system_fingerprint": self.served.fingerprint_of(version),
        }

    def _answers(self, results: Sequence[PromptResults]) -> list[tuple[PromptResults, Completion | None]]:
        """Each answer with its prompt, in the order of choices; None where nothing was to be drawn."""
        answers: list[tuple[PromptResults, Completion | None]] = []
        for result in results:
            samples = [result.completions[number] for number in sorted(result.completions)]
            answers += [(result, one) for one in (samples or [None] * self.asked.samples)]
        return answers

    def _text_choice(self, number: int, result: PromptResults, one: Completion | None) -> dict[str, Any]:
        before = result.asked.text if self.asked.echo else ""
        choice: dict[str, Any] = {
            "index": number,
            "text": before + ("" if one is None else self.answer_text(one)),
            "logprobs": None,
            "finish_reason": "length" if one is None else FINISH_REASONS[one.finish_reason],
        }
        if self.asked.top_logprobs is not None:
            tokens: list[_ScoredToken] = []
            if self.asked.echo:
                first, *rest = result.asked.tokens.tolist()
                tokens.append(_ScoredToken(token=first, logp=None))
                if result.scored is not None:
                    tokens += _scored(rest, result.scored.logp.tolist(), result.scored.likeliest)
            tokens += [] if one is None else _tokens_of_completion(one)
            choice["logprobs"] = _text_logprobs(self.served.token_text, tokens)
        if self.asked.token_ids:
            choice["prompt_token_ids"] = result.asked.tokens.tolist()
            choice["token_ids"] = [] if one is None else one.tokens.tolist()
        return choice

    def _chat_choice(self, number: int, one: Completion | None) -> dict[str, Any]:
        assert one is not None  # a chat always draws
        text, calls = self.content_and_calls(number, one)
        message = {"role": "assistant", "content": text, "refusal": None}
        choice: dict[str, Any] = {
            "index": number,
            "message": {**message, "tool_calls": calls} if calls else message,
            "logprobs": None,
            "finish_reason": CALLED if calls else FINISH_REASONS[one.finish_reason],
        }
        if self.asked.top_logprobs is not None:
            choice["logprobs"] = _chat_logprobs(self.served.token_text, _tokens_of_completion(one))
        if self.asked.token_ids:
            choice["token_ids"] = one.tokens.tolist()
        return choice


@dataclass(slots=True, eq=False)
class StreamedChoice:
    """One answer while it is being streamed: one token behind the engine, whole characters only."""

    writer: ReplyWriter
    number: int
    """Index of the choice."""
    text: GrowingText = field(init=False)
    _drawn: list[_ScoredToken] = field(default_factory=list[_ScoredToken])
    _waiting: str = ""
    """Text that is certain and was not sent."""
    _told: int = 0
    """Tokens whose log-probabilities were sent."""
    _length: int = 0
    """Characters sent."""

    def __post_init__(self) -> None:
        stop = () if self.writer.asked.keep_stop else self.writer.asked.stop
        self.text = GrowingText(self.writer.served.tokenizer, stop)

    def begin(self) -> dict[str, Any] | None:
        """The chunk before any text: the role of a chat's answer."""
        return self._choice({"role": "assistant", "content": "", "refusal": None}) if self.writer.chat else None

    def add(self, one: DrawnToken) -> None:
        pairs = [] if one.likeliest is None else list(zip(*(column.tolist() for column in one.likeliest), strict=True))
        self._drawn[one.position :] = [_ScoredToken(token=one.token, logp=one.logp, likeliest=pairs)]
        self._waiting += self.text.add(one.position, one.token)

    def piece(self) -> dict[str, Any] | None:
        """The choice of a chunk with what is certain by now; None without text. With tools all waits for the end of the
        answer: a part of a call is not text."""
        return self._piece(len(self._drawn) - 1) if self._waiting and not self.writer.asked.tools else None

    def finish(self, completion: Completion) -> list[dict[str, Any]]:
        """The rest of the answer, and its reason to end."""
        self._drawn = _tokens_of_completion(completion)
        calls: list[dict[str, Any]] = []
        if self.writer.asked.tools:
            text, calls = self.writer.content_and_calls(self.number, completion)
            self._waiting = text or ""
        else:
            self._waiting += self.text.finish(self.writer.answer_text(completion))
        rest = [self._piece(len(self._drawn))] if self._waiting or self._told < len(self._drawn) else []
        if calls:
            rest.append(self._choice({"tool_calls": [{"index": place, **one} for place, one in enumerate(calls)]}))
        last = self._choice({} if self.writer.chat else "")
        last["finish_reason"] = CALLED if calls else FINISH_REASONS[completion.finish_reason]
        return [*rest, last]

    def _piece(self, until: int) -> dict[str, Any]:
        """A chunk of the waiting text with the tokens up to `until`."""
        piece, self._waiting = self._waiting, ""
        asked, tokens = self.writer.asked, self._drawn[self._told : until]
        choice = self._choice({"content": piece} if self.writer.chat else piece)
        names = self.writer.served.token_text
        if asked.top_logprobs is not None:
            choice["logprobs"] = (
                _chat_logprobs(names, tokens) if self.writer.chat else _text_logprobs(names, tokens, start=self._length)
            )
        if asked.token_ids:
            choice["token_ids"] = [one.token for one in tokens]
        self._told = until
        self._length += len(piece)
        return choice

    def _choice(self, content: Mapping[str, Any] | str) -> dict[str, Any]:
        key = "delta" if self.writer.chat else "text"
        return {"index": self.number, key: content, "logprobs": None, "finish_reason": None}
