"""The routes that agents call: OpenAI's chat completions below a session's path, and the session's reward.

POST /sessions/ID/v1/chat/completions      a request of session ID: an agent's base_url is http://.../sessions/ID/v1
POST /v1/chat/completions                  the same, with the session in the header X-Session-ID
POST /sessions/ID/reward                   {"reward": 1.0, "group": "question 7"} ends the session
GET  /v1/models, /sessions/ID/v1/models, /health
"""

import asyncio
import math
import socket
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from hone.core.clock import Clock
from hone.core.dialogue import SessionReport
from hone.core.errors import ResourceError
from hone.core.strict_json import strict_json
from hone.run.http.requests import BODY_S, MOST_BODY_BYTES, ApiError, BodyReader
from hone.run.http.server import TimedConnection
from hone.text.serving.capture.capture_world import AgentAnswer, AgentRequest, CaptureDesk, ReportedSession
from hone.text.serving.completions.app import IGNORED, error_response
from hone.text.serving.completions.asked import AskedPrompt, asked_answers, chat_messages
from hone.text.serving.completions.fields import ChatFields
from hone.text.serving.completions.replies import DONE, PromptResults, ReplyWriter
from hone.text.serving.completions.served_model import ServedModel

# -------------------------------------------------------------------------------------------------------- agent replies


@dataclass(frozen=True, slots=True, kw_only=True)
class _AgentReply:
    """The reply to one request: an answer for each choice."""

    served: ServedModel
    fields: ChatFields
    answers: Sequence[AgentAnswer]
    id: str
    created: int
    """Seconds since the epoch."""

    def whole(self) -> dict[str, Any]:
        """The body of a reply that is not streamed."""
        body = self._writer().whole([self._results()], self._version())
        for choice, answer in zip(body["choices"], self.answers, strict=True):
            choice["message"] = {**choice["message"], **answer.message}
            if answer.message.get("tool_calls"):
                choice["finish_reason"] = "tool_calls"
        return body

    def events(self) -> Iterator[str]:
        writer, body = self._writer(), self.whole()
        head = writer.chunk_head(self._version())
        for choice in body["choices"]:
            number, message = choice["index"], choice["message"]
            calls = [{"index": place, **call} for place, call in enumerate(message.get("tool_calls", ()))]
            delta = {"role": "assistant", "content": message["content"], **({"tool_calls": calls} if calls else {})}
            begin = {"index": number, "delta": delta, "logprobs": choice["logprobs"], "finish_reason": None}
            end = {"index": number, "delta": {}, "logprobs": None, "finish_reason": choice["finish_reason"]}
            yield writer.chunk(head, [begin])
            yield writer.chunk(head, [end])
        if writer.asked.usage:
            yield writer.chunk(head, [], usage=body["usage"])
        yield DONE

    def _writer(self) -> ReplyWriter:
        asked = asked_answers(self.fields, self.id, [self._results().asked], self.fields.top)
        asked = replace(asked, messages=({"role": "user"},))
        return ReplyWriter(served=self.served, asked=asked, created=self.created)

    def _results(self) -> PromptResults:
        asked = AskedPrompt(tokens=self.answers[0].prompt, text="", request=None)
        return PromptResults(asked, {place: one.completion for place, one in enumerate(self.answers)})

    def _version(self) -> int:
        return max(int(one.completion.version[-1]) for one in self.answers)


# ---------------------------------------------------------------------------------------------------------- capture app

MODEL_NAME: Final = "policy"
SESSION_HEADER: Final = "x-session-id"
_CLOSED: Final = 499
_DRAWN_BY_CONFIG: Final = ("temperature", "top_p", "top_k", "min_p", "seed")


@dataclass(frozen=True, slots=True)
class CaptureRoutes:
    """Handlers of the routes; each waits at the desk."""

    desk: CaptureDesk
    clock: Clock
    served: ServedModel
    bodies: BodyReader = field(default_factory=lambda: BodyReader(most_bytes=MOST_BODY_BYTES, within_s=BODY_S))

    def app(self) -> Starlette:
        chat, models = "/v1/chat/completions", "/v1/models"
        return Starlette(
            routes=[
                Route(chat, _guarded(self.chat), methods=["POST"]),
                Route(f"/sessions/{{session}}{chat}", _guarded(self.chat), methods=["POST"]),
                Route("/sessions/{session}/reward", _guarded(self.reward), methods=["POST"]),
                Route(models, self.models),
                Route(f"/sessions/{{session}}{models}", self.models),
                Route("/health", self.health),
            ]
        )

    async def chat(self, call: Request) -> Response:
        """Answer a chat completion with what the policy draws."""
        fields = await self.bodies.prepared(call, ChatFields.read)
        session, role = _session(call)
        asked = [_agent_request(fields, session, role) for _ in range(fields.n or 1)]
        for one in asked:
            self.desk.put(one)
        answers = await _until_gone(call, asked)
        reply = _AgentReply(
            served=self.served, fields=fields, answers=answers, id=uuid.uuid4().hex, created=int(self.clock.now_s())
        )
        # The policy's own distribution is drawn from: what an agent asks of it has no effect, and is named.
        unused = [*(name for name in _DRAWN_BY_CONFIG if name in fields.model_fields_set), *fields.unknown]
        headers = {IGNORED: ", ".join(unused)} if unused else None
        if fields.stream:
            return StreamingResponse(iter(reply.events()), media_type="text/event-stream", headers=headers)
        return JSONResponse(reply.whole(), headers=headers)

    async def reward(self, call: Request) -> Response:
        session = str(call.path_params["session"])
        reported = ReportedSession(await self.bodies.prepared(call, lambda raw: _report(raw, session)))
        self.desk.put(reported)
        await asyncio.wrap_future(reported.taken)
        return JSONResponse({"session": reported.report.session, "reward": reported.report.score})

    async def models(self, call: Request) -> Response:
        del call
        model = {"id": MODEL_NAME, "object": "model", "created": 0, "owned_by": "hone"}
        return JSONResponse({"object": "list", "data": [{**model, "max_model_len": self.served.context}]})

    async def health(self, call: Request) -> Response:
        """200 while the run goes on."""
        del call
        return JSONResponse({"status": "ok"})


def _guarded(handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """A handler whose errors have OpenAI's shape."""

    async def guarded(call: Request) -> Response:
        try:
            return await handler(call)
        except Exception as error:  # noqa: BLE001 - every failure has a status and words for its agent
            return error_response(ApiError.of(error))

    return guarded


def _session(call: Request) -> tuple[str, str]:
    """Session and role of a request: with a session in the path, the header names the role."""
    header = call.headers.get(SESSION_HEADER, "")
    if (session := call.path_params.get("session")) is not None:
        return session, header
    if not header:
        raise ApiError(
            400,
            "this server trains on what agents ask, and must know which requests belong together: give each dialogue a "
            "base_url of its own, http://.../sessions/ID/v1, or send the header X-Session-ID",
            code="no_session",
        )
    return header, ""


def _agent_request(fields: ChatFields, session: str, role: str) -> AgentRequest:
    if faults := fields.neutral_faults():
        raise ApiError.unsupported(faults[0][0], "; ".join(text for _, text in faults))
    messages = chat_messages(fields.messages)
    if messages[-1]["role"] == "assistant":
        raise ApiError.unsupported("messages", "the last message is the assistant's: nothing is to be answered")
    offered = [] if fields.tool_choice == "none" else fields.tools or []
    return AgentRequest(
        session=session,
        messages=messages,
        tools=tuple(one.model_dump(exclude_none=True) for one in offered),
        variables=fields.chat_template_kwargs or {},
        role=role,
        max_tokens=fields.most_tokens,
        stop=fields.stops,
        top_logprobs=fields.top or 0,
    )


def _report(raw: bytes, session: str) -> SessionReport:
    try:
        body = strict_json(raw)
    except ValueError as error:
        raise ApiError(400, f"the body is not JSON: {error}", code="invalid_json") from None
    table = cast("dict[str, Any]", body) if isinstance(body, dict) else {}
    reward, group = table.get("reward"), table.get("group", "")
    number = isinstance(reward, int | float) and not isinstance(reward, bool) and math.isfinite(reward)
    if "reward" not in table or (reward is not None and not number):
        message = f"reward must be a finite number, or null for no score; got {table.get('reward')!r}"
        raise ApiError(400, message, param="reward", code="invalid_value")
    if not isinstance(group, str):
        raise ApiError(400, f"group must be a text, got {group!r}", param="group", code="invalid_value")
    if unknown := sorted(set(table) - {"reward", "group"}):
        message = f"unknown: {', '.join(unknown)}; known: reward, group"
        raise ApiError(400, message, param=unknown[0], code="unknown_field")
    return SessionReport(session=session, score=None if reward is None else float(reward), group=group)


async def _until_gone(call: Request, asked: Sequence[AgentRequest]) -> list[AgentAnswer]:
    """The answers; once the agent is gone they are cancelled, so that nothing that it never saw is learnt from."""
    answers = asyncio.gather(*(asyncio.wrap_future(one.answer) for one in asked))
    gone = asyncio.ensure_future(call.receive())
    try:
        await asyncio.wait({answers, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not answers.done():
            raise ApiError(_CLOSED, "the agent closed its connection")
        return answers.result()
    finally:
        answers.cancel()
        gone.cancel()
        await asyncio.gather(answers, gone, return_exceptions=True)


# ------------------------------------------------------------------------------------------------------- capture server

_STARTING_S = 20.0


@dataclass(eq=False)
class CaptureServer:
    """Serves an application on a loopback address from `start` to `close`."""

    host: str
    port: int
    """0: any free one."""
    _thread: threading.Thread | None = None
    _server: uvicorn.Server | None = None
    _socket: socket.socket | None = field(default=None, repr=False)

    def bind(self) -> str:
        """Take the address, and return it as a URL. Raises ResourceError if something else has it."""
        bound = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((self.host, self.port))
        except OSError as error:
            bound.close()
            raise ResourceError(
                f"cannot listen at {self.host}:{self.port}: {error.strerror}; end what listens there, or give another "
                "port (0: any free one)"
            ) from None
        self._socket = bound
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{name}:{bound.getsockname()[1]}"

    def start(self, app: Starlette) -> None:
        """Serve `app` at the address. Raises ResourceError if the server does not come up."""
        assert self._socket is not None, "bind the address first"
        config = uvicorn.Config(
            app, http=TimedConnection, ws="none", log_level="error", access_log=False, lifespan="off",
            timeout_graceful_shutdown=2,
        )  # fmt: skip
        server = uvicorn.Server(config)
        self._server = server
        self._thread = threading.Thread(target=server.run, args=([self._socket],), daemon=True, name="hone-capture")
        self._thread.start()
        pause = threading.Event()
        for _ in range(int(_STARTING_S / 0.01)):
            if server.started or not self._thread.is_alive():
                break
            pause.wait(0.01)
        if not server.started:
            raise ResourceError(f"the server at {self.host}:{self.port} did not start in {_STARTING_S:g} s")

    def close(self) -> None:
        """End the server and its thread, and give the address back."""
        if self._server is not None:
            self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(_STARTING_S)
        if self._socket is not None:
            self._socket.close()
        self._server = self._thread = self._socket = None
