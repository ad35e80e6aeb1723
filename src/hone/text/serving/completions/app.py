"""The routes of OpenAI's protocol, over a service: a Starlette application for any server of ASGI, in any process.

POST /v1/completions, /v1/chat/completions, /tokenize, /detokenize; GET /v1/models, /live, /ready, /health,
/metrics.
"""

import asyncio
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
from hone.run.http.listening import METRICS_TYPE
from hone.run.http.requests import BODY_S, CLOSED, MOST_BODY_BYTES, ApiError, BodyReader, check_key, client_of
from hone.text.serving.completions.asked import (
    AskedAnswers,
    CallIdentity,
    asked_chat,
    asked_texts,
    chat_messages,
    chat_tokenizer,
    tool_schemas,
)
from hone.text.serving.completions.fields import (
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
_NAMES_SHOWN: Final = 20
_TOKEN_BYTES: Final = 8
"""Bytes that a token of an answer is taken for where it is asked whether a reply is long."""
_NAME_CHARACTERS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRules:
    """Rules for clients."""

    api_key: str = ""
    """Bearer token that requests must bring; empty: none."""
    strict: bool = False
    """Refuse requests with unknown fields."""
    most_body_bytes: int = MOST_BODY_BYTES
    body_s: float = BODY_S
    """Seconds for a body to arrive."""


@dataclass(slots=True, eq=False, kw_only=True)
class CompletionRoutes:
    """Handlers of the routes."""

    served: ServedModel
    desk: AnswerDesk
    clock: Clock
    rules: ServingRules = field(default_factory=ServingRules)
    draining: bool = False
    """True once the server stops: `/ready` says so, and balancers send nobody any more."""
    bodies: BodyReader = field(init=False)

    def __post_init__(self) -> None:
        self.bodies = BodyReader(most_bytes=self.rules.most_body_bytes, within_s=self.rules.body_s)

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
            Route("/live", self.live),
            Route("/ready", self.ready),
            Route("/health", self.ready),
            Route("/metrics", self.metrics),
        ]
        handlers = {404: _not_found, 405: _not_found}
        return Starlette(routes=routes, exception_handlers=handlers)

    async def completions(self, call: Request) -> Response:
        def prepare(body: bytes) -> tuple[AskedAnswers, dict[str, str]]:
            fields = TextFields.read(body)
            headers, identity = self._headers(call, fields)
            return asked_texts(fields, self.served, identity), headers

        return await self._answer(call, *await self.bodies.prepared(call, prepare))

    async def chat(self, call: Request) -> Response:
        def prepare(body: bytes) -> tuple[AskedAnswers, dict[str, str]]:
            fields = ChatFields.read(body)
            headers, identity = self._headers(call, fields)
            return asked_chat(fields, self.served, identity), headers

        return await self._answer(call, *await self.bodies.prepared(call, prepare))

    async def tokenize(self, call: Request) -> Response:
        return await self.bodies.prepared(call, self._tokenized)

    def _tokenized(self, body: bytes) -> Response:
        fields = TokenizeFields.read(body)
        tokenizer = self.served.tokenizer
        if (fields.prompt is None) == (fields.messages is None):
            raise ApiError(400, "give exactly one of prompt and messages", param="prompt", code="invalid_value")
        if fields.messages is not None:
            messages = chat_messages(fields.messages)
            tools = tool_schemas(fields.tools or ())
            prepared = chat_tokenizer(
                tokenizer, tools, self.served.tool_format, fields.chat_template_kwargs,
                describe=self.served.describes_tools,
            )  # fmt: skip
            ids = self.served.chat_tokens(messages, prepared, begin_answer=fields.add_generation_prompt)
        else:
            ids = tokenizer.encode(fields.prompt or "")
        return JSONResponse({"tokens": ids.tolist(), "count": len(ids), "max_model_len": self.served.context})

    async def detokenize(self, call: Request) -> Response:
        """Text of token ids, special tokens by their names. Ids that no token has are refused."""

        def detokenized(body: bytes) -> Response:
            tokens = DetokenizeFields.read(body).tokens
            self.served.check_ids(tokens, "tokens")
            return JSONResponse({"prompt": self.served.tokenizer.decode(tokens, special=True)})

        return await self.bodies.prepared(call, detokenized)

    async def models(self, call: Request) -> Response:
        del call
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, call: Request) -> Response:
        name = call.path_params["name"]
        if name != self.served.name:
            raise ApiError(404, f"model {name!r} is not served here", param="model", code="model_not_found")
        return JSONResponse(self._model())

    async def live(self, call: Request) -> Response:
        """200 while the process can answer at all; 503 tells a supervisor to start it again."""
        del call
        alive = self.desk.service.alive
        return JSONResponse({"status": "ok" if alive else "the engine has ended"}, status_code=200 if alive else 503)

    async def ready(self, call: Request) -> Response:
        """200 while requests are answered, 503 with the reason while they are not: send them elsewhere, and wait."""
        del call
        fault = "draining" if self.draining else self.desk.service.fault()
        status = {"status": fault or "ok", "model": self._fingerprint()}
        return JSONResponse(status, status_code=503 if fault else 200)

    def drain(self) -> None:
        """Note that the server stops."""
        self.draining = True

    async def metrics(self, call: Request) -> Response:
        del call
        engine = self.desk.service.engine
        held = await asyncio.to_thread(lambda: engine.held_pages)  # waits for a pass
        gauges = [
            ("hone_answers_in_progress", "Answers that clients wait for.", self.desk.samples),
            ("hone_kv_pages_held", "Pages of the KV cache that answers in progress hold.", held),
            ("hone_model_version", "Version of the weights: the step of the checkpoint.", engine.version),
        ]
        return PlainTextResponse(self.desk.counters.text(gauges), media_type=METRICS_TYPE)

    # ------------------------------------------------------------------------------------------ parts

    async def _answer(self, call: Request, asked: AskedAnswers, headers: dict[str, str]) -> Response:
        writer = ReplyWriter(served=self.served, asked=asked, created=int(self.clock.now_s()))
        if asked.stream:
            return await self._streamed(call, asked, writer, headers)
        results = await _unless_gone(call, self.desk.whole(asked, client_of(call)))
        drawn = sum(len(one.tokens) for result in results for one in result.completions.values())
        likeliest = 0 if asked.top_logprobs is None else asked.top_logprobs + 1
        return await self.bodies.beside(
            _TOKEN_BYTES * drawn * (1 + likeliest),
            lambda: JSONResponse(writer.whole(results, self._version(results)), headers=headers),
        )

    async def _streamed(
        self, call: Request, asked: AskedAnswers, writer: ReplyWriter, headers: dict[str, str]
    ) -> Response:
        """A stream, whose first event is awaited, so that a fault is a status of its own."""
        events = self.desk.stream(asked, writer, client_of(call))
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
                check_key(call, self.rules.api_key)
                response = await handler(call)
            except Exception as error:  # noqa: BLE001 - every failure has a status and words for its client
                response = error_response(ApiError.of(error))
            self.desk.counters.count_response(path, response.status_code, self.clock.monotonic_s() - began_s)
            return response

        return guarded

    def _headers(self, call: Request, fields: SamplingFields) -> tuple[dict[str, str], CallIdentity]:
        """Headers of the response, and what identifies the call. Raises ApiError for unknown fields under `strict`."""
        identity = CallIdentity(id=uuid.uuid4().hex, client_id=call.headers.get(REQUEST_ID, ""))
        headers = {REQUEST_ID: identity.client_id or identity.id}
        if unknown := fields.unknown:
            if self.rules.strict:
                message = f"unknown fields: {named_fields(unknown)}; this server was started with --strict"
                raise ApiError(400, message, param=unknown[0][:_NAME_CHARACTERS], code="unknown_field")
            headers[IGNORED] = named_fields(unknown)
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


def named_fields(names: Sequence[str]) -> str:
    """Names of fields as a header may hold them: a client chose them, so they are few, short, and visible ASCII."""
    shown = [ascii(name[:_NAME_CHARACTERS])[1:-1].replace(",", "?") for name in names[:_NAMES_SHOWN]]
    return ", ".join([*shown, f"and {len(names) - _NAMES_SHOWN} more"] if len(names) > _NAMES_SHOWN else shown)


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
        raise ApiError(CLOSED, "the client closed its connection")
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
    known = (
        "/v1/completions, /v1/chat/completions, /v1/models, /tokenize, /detokenize, /live, /ready, /health, /metrics"
    )
    message = f"{call.method} {call.url.path} is not served; served: {known}"
    return error_response(ApiError(404, message, code="not_found"))
