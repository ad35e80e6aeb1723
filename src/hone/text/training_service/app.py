"""The routes of Tinker's protocol: keys and scopes, submits that are acknowledged once they are on the disk, results.

Every record of another tenant is 404, as if it were not there. A submit with a number (`seq_id`) is never refused for
its content, since the client counts on: the refusal is the result. Source: training over HTTP of the `tinker` SDK 0.38.
"""

import asyncio
import hashlib
import json
import threading
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

import zstandard
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from hone.core.errors import DataError
from hone.run.http.listening import METRICS_TYPE, metric_lines
from hone.run.http.requests import BODY_S, ApiError, BodyReader, RefusalDelays
from hone.text.serving.completions.app import error_response
from hone.text.training_service.catalogue import (
    ACTIVE_S,
    NO_ACCESS_TOKENS,
    Body,
    Catalogue,
    RecordHandler,
    absent,
    owned,
    readable,
)
from hone.text.training_service.desk import JSON, RequestDesk
from hone.text.training_service.learner import AdapterShape, ServedBase
from hone.text.training_service.ledger import (
    ModelRecord,
    RequestRecord,
    RequestResult,
    SamplerRecord,
    SessionRecord,
)
from hone.text.training_service.messages import read_call
from hone.text.training_service.sampler import SamplingWorker, read_sample
from hone.text.training_service.service_config import Caller, Scope, TenantKeys, TrainingServiceConfig, key_digest
from hone.text.training_service.worker import TrainingWorker

PREFIX: Final = "/api/v1"
_CLIENT_FLAGS: Final = {"use_pyqwest_transport": False, "proto_compress_fwdbwd": False, "parallel_fwdbwd_chunks": True}
_DYNAMIC_FLAGS: Final = {"refresh_interval_sec": 300, "sample_cancel_enabled": True}
_CHANGING: Final = ("forward_backward", "optim_step", "load_weights")
Handler = Callable[[Request], Awaitable[Response]]


@dataclass(slots=True, eq=False)
class TrainingRoutes:
    """Handlers of the routes."""

    config: TrainingServiceConfig
    base: ServedBase
    desk: RequestDesk
    trainer: TrainingWorker
    sampler: SamplingWorker
    keys: TenantKeys
    context: int
    catalogue: Catalogue
    bodies: BodyReader = field(init=False)
    refusals: RefusalDelays = field(default_factory=RefusalDelays)
    _admission: threading.Lock = field(default_factory=threading.Lock)
    """Held from the look at who has models to the model that joins them."""
    _draining: bool = False

    def __post_init__(self) -> None:
        self.bodies = BodyReader(most_bytes=self.config.limits.max_body, within_s=BODY_S)

    def app(self) -> Starlette:
        posts: dict[str, tuple[Scope | None, RecordHandler]] = {
            "client/config": (None, lambda *_: JSONResponse(_CLIENT_FLAGS)),
            "client/dynamic_config": (None, lambda *_: JSONResponse(_DYNAMIC_FLAGS)),
            "telemetry": (None, lambda *_: JSONResponse({"status": "accepted"})),
            "create_session": ("read", self._create_session),
            "session_heartbeat": ("read", self._heartbeat),
            "sessions/{session}/finish": ("read", self._finish_session),
            "create_model": ("train", self._create_model),
            "get_info": ("read", self._model_info),
            "optim_step": ("train", partial(self._submit_step, "optim_step")),
            "save_weights": ("train", partial(self._submit_step, "save_weights")),
            "save_weights_for_sampler": ("train", partial(self._submit_step, "save_weights_for_sampler")),
            "save_weights_external": ("train", partial(self._submit_step, "save_weights_external")),
            "load_weights": ("train", self._load_weights),
            "create_sampling_session": ("sample", self._create_sampler),
            "join_sampling_session": ("sample", self._join_sampler),
            "asample": ("sample", self._submit_sample),
            "cancel_future": ("sample", self._cancel),
        }
        gets: dict[str, tuple[Scope | None, RecordHandler]] = {
            "get_server_capabilities": ("read", self._capabilities),
            "samplers/{sampler}": ("read", self._sampler),
        }
        routes = [self._route(path, "POST", *one) for path, one in posts.items()]
        routes += [self._route(path, "GET", *one) for path, one in gets.items()]
        routes += [self._route(*one) for one in self.catalogue.routes()]
        routes += [
            Route(f"{PREFIX}/forward_backward", self._guarded("train", self._forward_backward), methods=["POST"]),
            Route(f"{PREFIX}/retrieve_future", self._guarded(None, self._retrieve), methods=["POST"]),
            Route(f"{PREFIX}/healthz", self._health),
            Route("/metrics", self._guarded("administer", self._metrics)),
        ]
        return Starlette(routes=routes, exception_handlers={404: _unknown, 405: _unknown})

    def drain(self) -> None:
        """Note that the server stops: whoever waits for a result is asked to call again, which the next process
        hears."""
        self._draining = True
        self.desk.release()

    # -------------------------------------------------------------------------------------------- guards

    def _route(self, path: str, method: str, scope: Scope | None, handler: RecordHandler) -> Route:
        """A route whose body, if any, is a JSON object; handlers run beside the event loop."""

        async def answer(call: Request, caller: Caller) -> Response:
            def work(raw: bytes) -> Response:
                body: object = json.loads(raw) if raw else {}
                if not isinstance(body, dict):
                    raise ApiError(400, f"the body must be a JSON object, got {type(body).__name__}")
                return handler(caller, body, call)

            return await self.bodies.prepared(call, work)

        return Route(f"{PREFIX}/{path}", self._guarded(scope, answer), methods=[method])

    def _guarded(self, scope: Scope | None, handler: Callable[[Request, Caller], Awaitable[Response]]) -> Handler:
        """A handler behind keys and scopes, whose errors all have a status and words. Who is refused again and again
        waits for it."""

        async def guarded(call: Request) -> Response:
            response = await answered(call)
            if 400 <= response.status_code < 500 and response.status_code not in (408, 429):
                sender = call.headers.get("x-api-key") or (call.client.host if call.client else "")
                await asyncio.sleep(self.refusals.delay_s(key_digest(sender), self.desk.clock.monotonic_s()))
            return response

        async def answered(call: Request) -> Response:
            try:
                kind, _, bearer = call.headers.get("authorization", "").partition(" ")
                key = call.headers.get("x-api-key") or (bearer if kind.lower() == "bearer" else "")
                caller = self.keys.caller(key)
                if caller is None:
                    why = "no tenant of this service has the key that was sent" if key else "no key was sent"
                    raise ApiError(401, f"{why}: X-Api-Key must be a tenant's key", code="invalid_api_key")
                if scope is not None and scope not in caller.scopes:
                    has = ", ".join(sorted(caller.scopes))
                    raise ApiError(403, f"the key of {caller.tenant} lacks the scope {scope}; it has {has}")
                return await handler(call, caller)
            except (KeyError, ValueError, TypeError) as error:
                words = f"the field {error} is missing" if isinstance(error, KeyError) else str(error)
                return error_response(ApiError(400, f"the body cannot be read: {words}", code="invalid_value"))
            except Exception as error:  # noqa: BLE001 - every failure has a status and words for its client
                return error_response(ApiError.of(error))

        return guarded

    # ------------------------------------------------------------------------------------------ sessions

    def _create_session(self, caller: Caller, body: Body, call: Request) -> Response:
        del call
        now = self.desk.clock.now_s()
        session = SessionRecord(
            id=uuid.uuid4().hex[:16],
            tenant=caller.tenant,
            created_s=now,
            beat_s=now,
            finished=None,
            tags=json.dumps(body.get("tags") or []),
            metadata=json.dumps(body.get("user_metadata")),
            project=body.get("project_id"),
            display_name=body.get("display_name"),
        )
        self.desk.ledger.insert(session)
        return JSONResponse({"type": "create_session", "session_id": session.id})

    def _heartbeat(self, caller: Caller, body: Body, call: Request) -> Response:
        del call
        session = owned(self.desk.ledger, SessionRecord, body["session_id"], caller, "session")
        if session.finished is not None:
            raise ApiError(410, f"the session {session.id} is finished", code="finished")
        self.desk.ledger.change(SessionRecord, session.id, {"beat_s": self.desk.clock.now_s()})
        return JSONResponse({"type": "session_heartbeat"})

    def _finish_session(self, caller: Caller, body: Body, call: Request) -> Response:
        session = owned(self.desk.ledger, SessionRecord, call.path_params["session"], caller, "session")
        if session.finished is None:
            self.desk.ledger.change(SessionRecord, session.id, {"finished": json.dumps(body.get("reason") or {})})
        return Response(status_code=204)

    def _capabilities(self, caller: Caller, body: Body, call: Request) -> Response:
        del caller, body, call
        models = [
            {"model_name": name, "max_context_length": self.context, "trainable": True, "sampleable": True}
            for name in self.config.names
        ]
        return JSONResponse({"supported_models": models})

    # -------------------------------------------------------------------------------------------- models

    def _create_model(self, caller: Caller, body: Body, call: Request) -> Response:
        del call
        session = self._open_session(body["session_id"], caller)
        base, lora = self._base_name(body["base_model"]), dict(body.get("lora_config") or {})
        optimizer = (body.get("optimizer_config") or {}).get("type", "adamw")
        if optimizer != "adamw":
            raise ApiError(400, f"the optimizer {optimizer!r} is not served; known: adamw", code="unsupported")
        shape = AdapterShape(
            rank=int(lora.get("rank", 32 if lora else 0)),
            attention=bool(lora.get("train_attn", True)),
            mlp=bool(lora.get("train_mlp", True)),
            output=bool(lora.get("train_unembed", True)),
        )
        self._check_shape(shape)
        seed = int.from_bytes(uuid.uuid4().bytes[:4], "big") if lora.get("seed") is None else int(lora["seed"])
        return self._new_model("create_model", self._model_record(session, base, shape, seed, body), body, caller)

    def _check_shape(self, shape: AdapterShape) -> None:
        """Raises ApiError and DataError for a model that this service does not train."""
        whole = self.config.model.whole
        if whole != (not shape.rank):
            served = "all weights: ask for rank 0, or send no lora_config" if whole else "adapters: give a rank of 1 on"
            raise ApiError(400, f"this service trains {served}; model.whole in its file decides", code="unsupported")
        if not whole:
            shape.settings(self.base.rows.decoder)
        elif not (shape.attention and shape.mlp and shape.output):
            raise ApiError(
                400, "train_attn, train_mlp and train_unembed are for adapters; here all weights are trained"
            )

    def _check_free(self, tenant: str) -> None:
        """Raises ApiError where a whole model would be a second tenant's."""
        now, sessions = self.desk.clock.now_s(), dict[str, SessionRecord | None]()
        for one in self.desk.ledger.records(ModelRecord, {}):
            if one.tenant == tenant or one.copied:
                continue
            session = sessions.setdefault(one.session, self.desk.ledger.find(SessionRecord, one.session))
            if session is None or session.finished is not None:
                continue
            if now - max(session.beat_s, one.used_s) < ACTIVE_S:
                message = (
                    f"{one.base} is trained whole, by one tenant at a time, and another has a model on it; it is free "
                    f"once that session is finished, or silent for {ACTIVE_S:.0f} s"
                )
                raise ApiError(403, message, code="base_taken")

    def _model_record(
        self, session: SessionRecord, base: str, shape: AdapterShape, seed: int, body: Body
    ) -> ModelRecord:
        now, metadata = self.desk.clock.now_s(), dict(body.get("user_metadata") or {})
        return ModelRecord(
            id=f"{session.id}:train:{int(body['model_seq_id'])}",
            session=session.id,
            tenant=session.tenant,
            base=base,
            rank=shape.rank,
            seed=seed,
            attention=shape.attention,
            mlp=shape.mlp,
            output=shape.output,
            metadata=json.dumps({**metadata, "hone_lora_seed": str(seed)}),
            created_s=now,
            used_s=now,
        )

    def _new_model(self, kind: str, model: ModelRecord, body: Body, caller: Caller) -> Response:
        """Acknowledge a model, its first request; a repeated one gets the first one's."""
        with self._admission:
            sessions = self.desk.ledger.records(SessionRecord, {"tenant": model.tenant})
            finished = {one.id for one in sessions if one.finished is not None}
            own = self.desk.ledger.records(ModelRecord, {"tenant": model.tenant})
            others = [one for one in own if one.id != model.id and one.session not in finished and not one.copied]
            if len(others) >= caller.max_models:
                message = f"{caller.tenant} has {len(others)} models in open sessions, the most that it may have"
                raise ApiError(402, f"{message}; finish a session to train another")
            if self.config.model.whole:
                self._check_free(model.tenant)
            return self._submitted(self._request(caller, model.id, 0, kind, json.dumps(body).encode()), model=model)

    def _load_weights(self, caller: Caller, body: Body, call: Request) -> Response:
        if body.get("model_id"):
            return self._submit_step("load_weights", caller, body, call)
        if body.get("weights_access_token"):
            raise ApiError(400, NO_ACCESS_TOKENS)
        session = self._open_session(body["session_id"], caller)
        saved = readable(self.desk.ledger, body["path"], caller)
        first = self.desk.ledger.find(ModelRecord, saved.model)
        if first is None:
            raise absent("model of", saved.path)
        shape = AdapterShape(
            rank=first.rank, attention=bool(first.attention), mlp=bool(first.mlp), output=bool(first.output)
        )
        self._check_shape(shape)
        model = self._model_record(session, first.base, shape, first.seed, body)
        return self._new_model("load_weights", model, body, caller)

    def _model_info(self, caller: Caller, body: Body, call: Request) -> Response:
        del call
        model = owned(self.desk.ledger, ModelRecord, body["model_id"], caller, "model")
        data = {"arch": self.base.rows.decoder.config.family, "model_name": model.base, "tokenizer_id": self.base.name}
        return JSONResponse(
            {
                "type": "get_info",
                "model_id": model.id,
                "model_data": data,
                "is_lora": bool(model.rank),
                "lora_rank": model.rank or None,
                "model_name": model.base,
                "optimizer_config": {"type": "adamw"},
            }
        )

    def _submit_step(self, kind: str, caller: Caller, body: Body, call: Request) -> Response:
        del call
        model = self._trainable(body["model_id"], caller)
        seq = int(body["seq_id"])
        if seq < 1:
            raise ApiError(400, f"seq_id must be 1 or more, got {seq}", code="invalid_value")
        return self._submitted(self._request(caller, model.id, seq, kind, json.dumps(body).encode()))

    async def _forward_backward(self, call: Request, caller: Caller) -> Response:
        def prepare(raw: bytes) -> Response:
            body = raw if call.headers.get("content-encoding") != "zstd" else _unpacked(raw, self.bodies.most_bytes)
            asked = read_call(body)
            model = self._trainable(asked.model_id, caller)
            record = self._request(caller, model.id, asked.seq_id, "forward_backward", body)
            return self._submitted(replace(record, changes=int(not asked.forward_only)))

        return await self.bodies.prepared(call, prepare)

    def _request(self, caller: Caller, owner: str, seq: int, kind: str, body: bytes) -> RequestRecord:
        return RequestRecord(
            id=uuid.uuid4().hex,
            tenant=caller.tenant,
            owner=owner,
            seq=seq,
            kind=kind,
            digest=hashlib.sha256(kind.encode() + body).hexdigest(),
            body=body,
            state="queued",
            result=None,
            media=None,
            category=None,
            came_s=self.desk.clock.now_s(),
            done_s=None,
            changes=int(kind in _CHANGING),
        )

    def _submitted(self, record: RequestRecord, *, model: ModelRecord | None = None) -> Response:
        """Acknowledge a request of a model."""
        accepted = self.desk.submit(record, model)
        return JSONResponse({"request_id": accepted.id, "model_id": record.owner})

    # ------------------------------------------------------------------------------------------ samplers

    def _create_sampler(self, caller: Caller, body: Body, call: Request) -> Response:
        del call
        session = self._open_session(body["session_id"], caller)
        path, folder = body.get("model_path"), None
        if path:
            saved = readable(self.desk.ledger, path, caller)
            folder = str(Path(saved.folder) / "policy")
        else:
            self._base_name(body.get("base_model"))
        id = f"{session.id}:sample:{int(body['sampling_session_seq_id'])}"
        if self.desk.ledger.find(SamplerRecord, id) is None:
            now = self.desk.clock.now_s()
            self.desk.ledger.insert(
                SamplerRecord(
                    id=id, session=session.id, tenant=caller.tenant, path=path, folder=folder, model=None, created_s=now
                )
            )
        return JSONResponse({"type": "create_sampling_session", "sampling_session_id": id})

    def _sampler(self, caller: Caller, body: Body, call: Request) -> Response:
        del body
        sampler = owned(self.desk.ledger, SamplerRecord, call.path_params["sampler"], caller, "sampler")
        name = self.config.names[0]
        return JSONResponse({"sampler_id": sampler.id, "base_model": name, "model_path": sampler.path})

    def _join_sampler(self, caller: Caller, body: Body, call: Request) -> Response:
        del call
        owned(self.desk.ledger, SamplerRecord, body["sampling_session_id"], caller, "sampler")
        return JSONResponse({"type": "join_sampling_session", "client_counter": int(time.time_ns() % (1 << 31))})

    def _submit_sample(self, caller: Caller, body: Body, call: Request) -> Response:
        del call
        raw = json.dumps(body).encode()
        sampler = owned(self.desk.ledger, SamplerRecord, body["sampling_session_id"], caller, "sampler")
        asked = read_sample(raw)
        with self.desk.wake:
            waiting = self.desk.turns.counts().get(caller.tenant, 0)
        if waiting >= caller.max_waiting:
            message = f"{waiting} requests of {caller.tenant} wait already; retry in 1 s"
            raise ApiError(429, message, code="overloaded", headers={"Retry-After": "1"})
        accepted = self.desk.submit(self._request(caller, sampler.id, asked.seq_id, "sample", raw))
        ids = [f"{accepted.id}-{number}" for number in range(asked.num_samples)]
        return JSONResponse({"request_id": accepted.id, "sample_sequence_ids": ids})

    def _cancel(self, caller: Caller, body: Body, call: Request) -> Response:
        del call
        record = owned(self.desk.ledger, RequestRecord, body["request_id"], caller, "request")
        if record.kind == "sample":
            self.sampler.cancel(record.id)
        return Response(status_code=204)

    # ------------------------------------------------------------------------------------------- futures

    async def _retrieve(self, call: Request, caller: Caller) -> Response:
        """The result of a request, held for a while until there is one; 408 asks the client to call again."""
        body = await self.bodies.prepared(call, lambda raw: json.loads(raw or b"{}"))
        id = str(body["request_id"])
        one, outcome = self.desk.waiting.get(id), None
        if one is not None and one.tenant == caller.tenant:
            outcome = await self.desk.wait(id, self.config.limits.poll_s)
        if outcome is None:
            record = await self.bodies.beside(0, lambda: self.desk.ledger.find(RequestRecord, id))
            if record is None or record.tenant != caller.tenant:
                raise ApiError(410, f"there is no request {id!r:.80}", code="gone")
            if record.state == "queued":
                why = self.desk.why_waiting(id)
                return JSONResponse(
                    {"type": "try_again", "request_id": id, "queue_state": "active", "queue_state_reason": why},
                    status_code=408,
                )
            if record.result is None or record.media is None:
                raise ApiError(410, f"the result of {id} was dropped; results are kept for a while only", code="gone")
            outcome = RequestResult(result=record.result, media=record.media, category=record.category)
        if outcome.category is not None:
            return JSONResponse({"error": outcome.result.decode(), "category": outcome.category})
        size = len(outcome.result)
        if body.get("allow_metadata_only") and outcome.media != JSON and size > self.bodies.most_bytes:
            return JSONResponse({"status": "complete_metadata", "response_payload_size": size})
        return Response(outcome.result, media_type=outcome.media)

    # ------------------------------------------------------------------------------------------- service

    async def _health(self, call: Request) -> Response:
        del call
        fault = "draining" if self._draining else ""
        fault = fault or ("" if self.trainer.thread.alive and self.sampler.thread.alive else "a worker has ended")
        return JSONResponse({"status": fault or "ok"}, status_code=503 if fault else 200)

    async def _metrics(self, call: Request, caller: Caller) -> Response:
        """Amounts by tenant, in Prometheus's text format."""
        del call, caller
        usage = await self.bodies.beside(0, self.desk.ledger.usage)
        with self.desk.wake:
            waiting = self.desk.turns.counts()
            spent, weights = dict(self.desk.turns.spent_s), self.desk.turns.weights
        labels, total = ("tenant",), sum(weights.values())
        counts, work = ([((one,), value) for one, value in sorted(of.items())] for of in (waiting, spent))
        due = [((one,), weight / total) for one, weight in sorted(weights.items())]
        name = "hone_training_usage_total"
        lines = [
            *metric_lines(name, "counter", "Tokens, steps, core-seconds.", ("tenant", "what"), sorted(usage.items())),
            *metric_lines("hone_training_waiting", "gauge", "Requests that wait.", labels, counts),
            *metric_lines("hone_training_spent_seconds", "gauge", "Work by weight: the least is next.", labels, work),
            *metric_lines("hone_training_entitlement", "gauge", "Share of the work under load.", labels, due),
        ]
        return PlainTextResponse("\n".join(lines) + "\n", media_type=METRICS_TYPE)

    # --------------------------------------------------------------------------------------------- parts

    def _trainable(self, id: object, caller: Caller) -> ModelRecord:
        """A model that takes requests. Raises ApiError."""
        model = owned(self.desk.ledger, ModelRecord, id, caller, "model")
        if model.copied:
            raise ApiError(400, f"{model.id} holds a copy of weights: load the copy into a new model to train it")
        return model

    def _open_session(self, id: object, caller: Caller) -> SessionRecord:
        session = owned(self.desk.ledger, SessionRecord, id, caller, "session")
        if session.finished is not None:
            raise ApiError(400, f"the session {session.id} is finished; open another", code="finished")
        return session

    def _base_name(self, name: object) -> str:
        if name not in self.config.names:
            served = ", ".join(self.config.names)
            raise ApiError(400, f"base_model {str(name)!r:.120} is not served here; served: {served}")
        return str(name)


def _unpacked(raw: bytes, most: int) -> bytes:
    """A body that was compressed, of at most so many bytes. Raises ApiError."""
    try:
        with zstandard.ZstdDecompressor().stream_reader(raw) as stream:
            body = stream.read(most + 1)
    except zstandard.ZstdError as error:
        raise DataError(f"the body is not zstd: {error}") from None
    if len(body) > most:
        raise ApiError(413, f"the body unpacks to more than {most} bytes", code="too_large")
    return body


async def _unknown(call: Request, error: Exception) -> Response:
    del error
    return error_response(ApiError(404, f"{call.method} {call.url.path} is not served", code="not_found"))
