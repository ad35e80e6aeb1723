"""The routes that agents call: OpenAI's chat completions below a session's path, and the session's reward.

POST /sessions/ID/v1/chat/completions      a request of the session ID; an agent's base_url is http://.../sessions/ID/v1
POST /v1/chat/completions                  the same, with the session in the header X-Session-ID
POST /sessions/ID/reward                   {"reward": 1.0, "group": "question 7"} ends the session
GET  /v1/models, /sessions/ID/v1/models, /health
"""

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from hone.core.agent_session import SessionReport
from hone.core.clock import Clock
from hone.core.conversation import Message
from hone.core.strict_json import strict_json
from hone.serve.capture.capture_desk import AgentAnswer, AgentRequest, CaptureDesk, RefusedRequestError, ReportedSession
from hone.serve.capture.chat_shapes import chat_completion, chat_events, error_body

MODEL_NAME: Final = "policy"
SESSION_HEADER: Final = "x-session-id"
_UNSUPPORTED: Final = ("functions", "audio", "response_format", "logit_bias", "modalities", "tools")
_MAX_CHOICES: Final = 64


@dataclass(frozen=True, slots=True)
class CaptureRoutes:
    """Handlers of the routes; each waits at the desk."""

    desk: CaptureDesk
    clock: Clock
    decode_token: Callable[[int], str]
    """Text of one token, a special one by its name."""

    def app(self) -> Starlette:
        """The application."""
        chat, models = "/v1/chat/completions", "/v1/models"
        return Starlette(
            routes=[
                Route(chat, self.chat, methods=["POST"]),
                Route(f"/sessions/{{session}}{chat}", self.chat, methods=["POST"]),
                Route("/sessions/{session}/reward", self.reward, methods=["POST"]),
                Route(models, _models),
                Route(f"/sessions/{{session}}{models}", _models),
                Route("/health", _health),
            ]
        )

    async def chat(self, request: Request) -> Response:
        """Answer a chat completion with what the policy draws."""
        try:
            body = await _object(request)
            session, role = _session(request)
            asked = [_agent_request(body, session, role) for _ in range(_choices(body))]
            for one in asked:
                self.desk.put(one)
            answers = await _until_gone(request, asked)
        except RefusedRequestError as refusal:
            return _error(refusal)
        whole = chat_completion(
            answers, model=MODEL_NAME, created=int(self.clock.now_s()), logprobs=self._logprobs(body, answers)
        )
        if body.get("stream") is True:
            usage = cast("Mapping[str, Any]", body.get("stream_options") or {}).get("include_usage") is True
            return StreamingResponse(chat_events(whole, usage=usage), media_type="text/event-stream")
        return JSONResponse(whole)

    async def reward(self, request: Request) -> Response:
        """End a session with its reward."""
        try:
            report = _report(await _object(request), request.path_params["session"])
            reported = ReportedSession(report)
            self.desk.put(reported)
            await asyncio.wrap_future(reported.taken)
        except RefusedRequestError as refusal:
            return _error(refusal)
        return JSONResponse({"session": report.session, "reward": report.score})

    def _logprobs(self, body: Mapping[str, Any], answers: Sequence[AgentAnswer]) -> list[dict[str, Any] | None]:
        if body.get("logprobs") is not True:
            return [None for _ in answers]
        return [{"content": self._token_logprobs(one), "refusal": None} for one in answers]

    def _token_logprobs(self, answer: AgentAnswer) -> list[dict[str, Any]]:
        pairs = zip(answer.completion.tokens.tolist(), answer.completion.logp.tolist(), strict=True)
        texts = [(self.decode_token(token), logp) for token, logp in pairs]
        return [
            {"token": text, "logprob": logp, "bytes": list(text.encode()), "top_logprobs": []} for text, logp in texts
        ]


async def _object(request: Request) -> dict[str, Any]:
    try:
        body = strict_json(await request.body())
    except ValueError as error:
        raise RefusedRequestError(400, "invalid_json", f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise RefusedRequestError(400, "invalid_json", f"the body must be an object, found {type(body).__name__}")
    return cast("dict[str, Any]", body)


def _session(request: Request) -> tuple[str, str]:
    """Session and role of a request: with a session in the path, the header names the role."""
    header = request.headers.get(SESSION_HEADER, "")
    if (session := request.path_params.get("session")) is not None:
        return session, header
    if not header:
        raise RefusedRequestError(
            400,
            "no_session",
            "this server trains on what agents ask, and must know which requests belong together: give each dialogue a "
            "base_url of its own, http://.../sessions/ID/v1, or send the header X-Session-ID",
        )
    return header, ""


def _choices(body: Mapping[str, Any]) -> int:
    given = body.get("n")
    count = 1 if given is None else given
    if not isinstance(count, int) or not 1 <= count <= _MAX_CHOICES:
        raise RefusedRequestError(400, "invalid_value", f"n must be 1 to {_MAX_CHOICES}, got {count!r}")
    return count


def _agent_request(body: Mapping[str, Any], session: str, role: str) -> AgentRequest:
    if not isinstance(body.get("model"), str):
        raise RefusedRequestError(400, "missing_model", f'model must be a text, such as "{MODEL_NAME}"')
    if unsupported := sorted(name for name in _UNSUPPORTED if body.get(name)):
        raise RefusedRequestError(400, "unsupported", f"not supported: {', '.join(unsupported)}; leave it out")
    most = body.get("max_completion_tokens") or body.get("max_tokens")
    if most is not None and (not isinstance(most, int) or most < 1):
        raise RefusedRequestError(400, "invalid_value", f"max_tokens must be a number from 1 on, got {most!r}")
    stop = body.get("stop") or []
    stops = cast("list[object]", [stop] if isinstance(stop, str) else stop)
    if not isinstance(stops, list) or not all(isinstance(one, str) and one for one in stops):  # pyright: ignore[reportUnnecessaryIsInstance] - JSON
        raise RefusedRequestError(400, "invalid_value", f"stop must be texts, got {stop!r}")
    messages = _messages(body.get("messages"))
    return AgentRequest(
        session=session, messages=messages, role=role, max_tokens=most, stop=tuple(cast("list[str]", stops))
    )


def _messages(given: object) -> tuple[Message, ...]:
    """Messages with their content as text."""
    if not isinstance(given, list) or not given:
        raise RefusedRequestError(400, "invalid_value", "messages must be a list of at least one message")
    found: list[Message] = []
    for place, one in enumerate(cast("list[object]", given)):
        message = cast("Mapping[str, object]", one) if isinstance(one, dict) else {}
        if not isinstance(message.get("role"), str):
            raise RefusedRequestError(400, "invalid_value", f"messages[{place}] must have a role, got {one!r}")
        found.append({**message, "content": _text(message.get("content"), place)})
    if found[-1]["role"] == "assistant":
        raise RefusedRequestError(400, "unsupported", "the last message is the assistant's: nothing is to be answered")
    return tuple(found)


def _text(content: object, place: int) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = cast("list[Mapping[str, object]]", content) if isinstance(content, list) else []
    texts = [one.get("text") for one in parts if one.get("type") == "text"]
    if not parts or len(texts) < len(parts) or not all(isinstance(text, str) for text in texts):
        raise RefusedRequestError(400, "unsupported", f"messages[{place}].content: only text is read")
    return "".join(cast("list[str]", texts))


def _report(body: Mapping[str, Any], session: str) -> SessionReport:
    reward, group = body.get("reward"), body.get("group", "")
    number = isinstance(reward, int | float) and not isinstance(reward, bool) and math.isfinite(reward)
    if "reward" not in body or (reward is not None and not number):
        raise RefusedRequestError(
            400, "invalid_value", f"reward must be a finite number, or null for no score; got {body.get('reward')!r}"
        )
    if not isinstance(group, str):
        raise RefusedRequestError(400, "invalid_value", f"group must be a text, got {group!r}")
    if unknown := sorted(set(body) - {"reward", "group"}):
        raise RefusedRequestError(400, "unknown_field", f"unknown: {', '.join(unknown)}; known: reward, group")
    return SessionReport(session=session, score=None if reward is None else float(reward), group=group)


async def _until_gone(request: Request, asked: Sequence[AgentRequest]) -> list[AgentAnswer]:
    """The answers; once the agent is gone, they are cancelled, so that nothing that it never saw is learnt from."""
    answers = asyncio.gather(*(asyncio.wrap_future(one.answer) for one in asked))
    gone = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({answers, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not answers.done():
            raise RefusedRequestError(499, "gone", "the agent closed its connection")
        return answers.result()
    finally:
        answers.cancel()
        gone.cancel()
        with contextlib.suppress(asyncio.CancelledError, RefusedRequestError):
            await answers


async def _models(_: Request) -> Response:
    return JSONResponse({"object": "list", "data": [{"id": MODEL_NAME, "object": "model", "owned_by": "hone"}]})


async def _health(_: Request) -> Response:
    return JSONResponse({"status": "ok"})


def _error(refusal: RefusedRequestError) -> Response:
    return JSONResponse(error_body(refusal.code, str(refusal), status=refusal.status), status_code=refusal.status)
