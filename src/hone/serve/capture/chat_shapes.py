"""OpenAI's shapes of chat answers: whole, as a stream of events, and errors."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hone.serve.capture.capture_desk import AgentAnswer

_FINISH = {"eos": "stop", "stop": "stop", "length": "length"}


def chat_completion(
    answers: Sequence[AgentAnswer], *, model: str, created: int, logprobs: Sequence[Mapping[str, Any] | None]
) -> dict[str, Any]:
    """The body of a chat completion with one choice for each answer."""
    drawn = sum(len(one.completion.tokens) for one in answers)
    read = answers[0].prompt_tokens
    return {
        "id": f"chatcmpl-{answers[0].completion.request_id}",
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": [
            {
                "index": place,
                "message": {"role": "assistant", "content": one.text, "refusal": None},
                "finish_reason": _FINISH[one.completion.finish_reason],
                "logprobs": logprobs[place],
            }
            for place, one in enumerate(answers)
        ],
        "usage": {"prompt_tokens": read, "completion_tokens": drawn, "total_tokens": read + drawn},
    }


def chat_events(whole: Mapping[str, Any], *, usage: bool) -> Iterator[str]:
    """A finished completion as server-sent events: each answer in one piece."""
    head = {key: whole[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    for choice in whole["choices"]:
        delta = {"role": "assistant", "content": choice["message"]["content"]}
        first = {"index": choice["index"], "delta": delta, "finish_reason": None, "logprobs": choice["logprobs"]}
        last = {"index": choice["index"], "delta": {}, "finish_reason": choice["finish_reason"]}
        yield _event({**head, "choices": [first]})
        yield _event({**head, "choices": [last]})
    if usage:
        yield _event({**head, "choices": [], "usage": whole["usage"]})
    yield "data: [DONE]\n\n"


def error_body(code: str, message: str, *, status: int) -> dict[str, Any]:
    """The body of an error, from which clients make typed exceptions."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _event(chunk: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(chunk)}\n\n"
