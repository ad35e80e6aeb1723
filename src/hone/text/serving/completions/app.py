"""The routes of OpenAI's protocol, over a service: a Starlette application for any server of ASGI, in any process.

POST /v1/completions, /v1/chat/completions, /tokenize, /detokenize; GET /v1/models, /health, /metrics.
"""

import asyncio
import hmac
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from hone.core.clock import Clock
from hone.text.serving.completions.asked import AskedAnswers, CallIdentity, asked_chat, asked_texts, chat_messages
from hone.text.serving.completions.fields import (
    ApiError,
    ChatFields,
    DetokenizeFields,
    SamplingFields,
    TextFields,
    TokenizeFields,
)
from hone.text.serving.completions.replies import PromptResults, ReplyWriter
from hone.text.serving.completions.served_model import ServedModel
from hone.text.serving.completions.service import AnswerDesk

# ------------------------------------------------------------------------------------------------------ error responses


def error_response(error: ApiError) -> JSONResponse:
    """The response with the error's status, headers and body."""
    return JSONResponse(error.body(), status_code=error.status, headers=error.headers)


# ------------------------------------------------------------------------------------------------------------------ app

IGNORED: Final = "x-hone-ignored-fields"
"""Response header that names fields of the request without effect."""
REQUEST_ID: Final = "x-request-id"
"""Header of requests and responses: a request that repeats an id and all else gets the same answer."""
AnswerT = TypeVar("AnswerT")
_CLOSED: Final = 499
"""Status that is counted for a client that went away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRules:
    """Rules for clients."""

    api_key: str = ""
    """Bearer token that requests must bring; empty: none."""
    strict: bool = False
    """Refuse requests with unknown fields."""
    most_body_bytes: int = 64 << 20


@dataclass(slots=True, eq=False, kw_only=True)
class CompletionRoutes:
    """Handlers of the routes."""

    served: ServedModel
    desk: AnswerDesk
    clock: Clock
    rules: ServingRules = field(default_factory=ServingRules)
    draining: bool = False
    """True once the server stops: `/health` says so, and balancers send nobody any more."""

    def app(self) -> Starlette:
        posts = {
            "/v1/completions": self.completions,
            "/v1/chat/completions": self.chat,
            "/tokenize": self.tokenize,
            "/detokenize": self.detokenize,
        }
        routes = [Route(path, self._guarded(handler, path), methods=["POST"]) for path, handler in posts.items()]
        routes += [
            Route("/v1/models", self._guarded(self.models, "/v1/models")),
            Route("/v1/models/{name:path}", self._guarded(self.model, "/v1/models")),
            Route("/health", self.health),
            Route("/metrics", self.metrics),
        ]
        handlers = {404: _not_found, 405: _not_found}
        return Starlette(routes=routes, exception_handlers=handlers)

    async def completions(self, call: Request) -> Response:
        fields = TextFields.read(await self._body(call))
        headers, identity = self._headers(call, fields)
        return await self._answer(call, asked_texts(fields, self.served, identity), headers)

    async def chat(self, call: Request) -> Response:
        fields = ChatFields.read(await self._body(call))
        headers, identity = self._headers(call, fields)
        return await self._answer(call, asked_chat(fields, self.served, identity), headers)

    async def tokenize(self, call: Request) -> Response:
        fields = TokenizeFields.read(await self._body(call))
        tokenizer = self.served.tokenizer
        if (fields.prompt is None) == (fields.messages is None):
            raise ApiError(400, "give exactly one of prompt and messages", param="prompt", code="invalid_value")
        if fields.messages is not None:
            messages = chat_messages(fields.messages)
            tokens = tokenizer.apply_chat(messages, add_generation_prompt=fields.add_generation_prompt).tolist()
        else:
            tokens = tokenizer.encode(fields.prompt or "").tolist()
        return JSONResponse({"tokens": tokens, "count": len(tokens), "max_model_len": self.served.context})

    async def detokenize(self, call: Request) -> Response:
        """Text of token ids, special tokens by their names."""
        fields = DetokenizeFields.read(await self._body(call))
        return JSONResponse({"prompt": self.served.tokenizer.decode(fields.tokens, special=True)})

    async def models(self, call: Request) -> Response:
        del call
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, call: Request) -> Response:
        name = call.path_params["name"]
        if name != self.served.name:
            raise ApiError(404, f"model {name!r} is not served here", param="model", code="model_not_found")
        return JSONResponse(self._model())

    async def health(self, call: Request) -> Response:
        """200 while requests are answered, 503 once the server stops."""
        del call
        status = {"status": "draining" if self.draining else "ok", "model": self._fingerprint()}
        return JSONResponse(status, status_code=503 if self.draining else 200)

    async def metrics(self, call: Request) -> Response:
        del call
        engine = self.desk.service.engine
        held = await asyncio.to_thread(lambda: engine.held_pages)  # waits for a pass
        gauges = [
            ("hone_answers_in_progress", "Answers that clients wait for.", self.desk.samples),
            ("hone_kv_pages_held", "Pages of the KV cache that answers in progress hold.", held),
            ("hone_model_version", "Version of the weights: the step of the checkpoint.", engine.version),
        ]
        return PlainTextResponse(self.desk.counters.text(gauges), media_type="text/plain; version=0.0.4")

    # ------------------------------------------------------------------------------------------ parts

    async def _answer(self, call: Request, asked: AskedAnswers, headers: dict[str, str]) -> Response:
        writer = ReplyWriter(served=self.served, asked=asked, created=int(self.clock.now_s()))
        if asked.stream:
            return await self._streamed(call, asked, writer, headers)
        results = await _unless_gone(call, self.desk.whole(asked))
        return JSONResponse(writer.whole(results, self._version(results)), headers=headers)

    async def _streamed(
        self, call: Request, asked: AskedAnswers, writer: ReplyWriter, headers: dict[str, str]
    ) -> Response:
        """A stream, whose first event is awaited, so that a fault is a status of its own."""
        events = self.desk.stream(asked, writer)
        try:
            first = await _unless_gone(call, anext(events))
        except BaseException:
            await events.aclose()
            raise
        return _EventStream(first, events, headers)

    def _version(self, results: Sequence[PromptResults]) -> int:
        drawn = [int(one.version[-1]) for result in results for one in result.completions.values()]
        return max(drawn, default=self.desk.service.engine.version)

    def _guarded(
        self, handler: Callable[[Request], Awaitable[Response]], path: str
    ) -> Callable[[Request], Awaitable[Response]]:
        """A handler whose errors have OpenAI's shape, behind the key, and counted."""

        async def guarded(call: Request) -> Response:
            began_s = self.clock.monotonic_s()
            try:
                kind, _, key = call.headers.get("authorization", "").partition(" ")
                wanted = self.rules.api_key
                if wanted and not (kind.lower() == "bearer" and hmac.compare_digest(key.encode(), wanted.encode())):
                    raise ApiError(401, "this server wants its key as a bearer token", code="invalid_api_key")
                response = await handler(call)
            except Exception as error:  # noqa: BLE001 - every failure has a status and words for its client
                response = error_response(ApiError.of(error))
            self.desk.counters.count_response(path, response.status_code, self.clock.monotonic_s() - began_s)
            return response

        return guarded

    async def _body(self, call: Request) -> bytes:
        most, body = self.rules.most_body_bytes, bytearray()
        async for piece in call.stream():
            body += piece
            if len(body) > most:
                raise ApiError(413, f"the body has more than {most} bytes", code="too_large")
        return bytes(body)

    def _headers(self, call: Request, fields: SamplingFields) -> tuple[dict[str, str], CallIdentity]:
        """Headers of the response, and what identifies the call. Raises ApiError for unknown fields under `strict`."""
        identity = CallIdentity(id=uuid.uuid4().hex, given=call.headers.get(REQUEST_ID, ""))
        headers = {REQUEST_ID: identity.given or identity.id}
        if unknown := fields.unknown:
            if self.rules.strict:
                message = f"unknown fields: {', '.join(unknown)}; this server was started with --strict"
                raise ApiError(400, message, param=unknown[0], code="unknown_field")
            headers[IGNORED] = ", ".join(unknown)
        return headers, identity

    def _fingerprint(self) -> str:
        return self.served.fingerprint_of(self.desk.service.engine.version)

    def _model(self) -> dict[str, object]:
        return {
            "id": self.served.name,
            "object": "model",
            "created": 0,
            "owned_by": "hone",
            "root": self._fingerprint(),
            "max_model_len": self.served.context,
        }


class _EventStream(StreamingResponse):
    """Server-sent events; they are closed when the response is over or its client is gone, and free what they hold."""

    def __init__(self, first: str, events: AsyncGenerator[str], headers: dict[str, str]) -> None:
        super().__init__(_chained(first, events), media_type="text/event-stream", headers=headers)
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._events.aclose()


async def _unless_gone(call: Request, answer: Awaitable[AnswerT]) -> AnswerT:
    """Await an answer; it is cancelled once its client closes the connection, and raises ApiError."""
    task, gone = asyncio.ensure_future(answer), asyncio.ensure_future(_until_gone(call))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ApiError(_CLOSED, "the client closed its connection")
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.wait({task, gone})


async def _until_gone(call: Request) -> None:
    while (await call.receive())["type"] != "http.disconnect":
        pass


async def _chained(first: str, events: AsyncIterator[str]) -> AsyncIterator[str]:
    yield first
    async for event in events:
        yield event


async def _not_found(call: Request, error: Exception) -> Response:
    del error
    known = "/v1/completions, /v1/chat/completions, /v1/models, /tokenize, /detokenize, /health, /metrics"
    message = f"{call.method} {call.url.path} is not served; served: {known}"
    return error_response(ApiError(404, message, code="not_found"))
