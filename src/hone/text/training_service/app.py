"""The routes of Tinker's protocol: keys and scopes, submits that are acknowledged once they are on the disk, results.

Every record of another tenant is 404, as if it were not there. A submit with a number (`seq_id`) is never refused for
its content, since the client counts on: the refusal is the result. Source: training over HTTP of the `tinker` SDK 0.38.
"""

import hashlib
import json
import shutil
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import zstandard
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from hone.core.errors import DataError
from hone.run.http.requests import BODY_S, ApiError, BodyReader
from hone.text.serving.completions.app import error_response
from hone.text.training_service.desk import JSON, RequestDesk
from hone.text.training_service.learner import AdapterShape, ServedBase
from hone.text.training_service.ledger import (
    CheckpointRecord,
    ModelRecord,
    RequestRecord,
    SamplerRecord,
    SessionRecord,
    from_text,
)
from hone.text.training_service.messages import read_call
from hone.text.training_service.sampler import SamplingWorker, read_sample
from hone.text.training_service.service_config import Caller, Scope, TenantKeys, TrainingServiceConfig
from hone.text.training_service.worker import SEGMENTS, TrainingWorker

PREFIX: Final = "/api/v1"
_CLIENT_FLAGS: Final = {"use_pyqwest_transport": False, "proto_compress_fwdbwd": False, "parallel_fwdbwd_chunks": True}
_DYNAMIC_FLAGS: Final = {"refresh_interval_sec": 300, "sample_cancel_enabled": True}
_PAGE: Final = 100
_CHANGING: Final = ("forward_backward", "optim_step", "load_weights")
Body = dict[str, Any]
Handler = Callable[[Request], Awaitable[Response]]
OwnedT = TypeVar("OwnedT", SessionRecord, ModelRecord, SamplerRecord, RequestRecord)


def _absent(what: str, id: object) -> ApiError:
    return ApiError(404, f"there is no {what} {str(id)!r:.200}", code="not_found")


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
    bodies: BodyReader = field(init=False)
    _draining: bool = False

    def __post_init__(self) -> None:
        self.bodies = BodyReader(most_bytes=self.config.limits.max_body, within_s=BODY_S)

    def app(self) -> Starlette:
        posts: dict[str, tuple[Scope | None, Callable[[Caller, Body, Request], Response]]] = {
            "client/config": (None, lambda *_: JSONResponse(_CLIENT_FLAGS)),
            "client/dynamic_config": (None, lambda *_: JSONResponse(_DYNAMIC_FLAGS)),
            "telemetry": (None, lambda *_: JSONResponse({"status": "accepted"})),
            "create_session": ("read", self._create_session),
            "session_heartbeat": ("read", self._heartbeat),
            "sessions/{session}/finish": ("read", self._finish_session),
            "sessions/search": ("read", self._list_sessions),
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
            "weights_info": ("read", self._weights_info),
        }
        gets: dict[str, tuple[Scope | None, Callable[[Caller, Body, Request], Response]]] = {
            "get_server_capabilities": ("read", self._capabilities),
            "samplers/{sampler}": ("read", self._sampler),
            "training_runs": ("read", self._list_runs),
            "training_runs/{run}": ("read", self._run),
            "training_runs/{run}/checkpoints": ("read", self._run_checkpoints),
            "checkpoints": ("read", self._list_checkpoints),
            "sessions": ("read", self._list_sessions),
            "sessions/{session}": ("read", self._session),
        }
        checkpoint = "training_runs/{run}/checkpoints/{segment}/{name}"
        routes = [self._route(path, "POST", *one) for path, one in posts.items()]
        routes += [self._route(path, "GET", *one) for path, one in gets.items()]
        routes += [
            self._route("sessions/{session}/project", "PUT", "read", self._assign_project),
            self._route(checkpoint, "DELETE", "publish", self._delete_checkpoint),
            self._route(f"{checkpoint}/publish", "POST", "publish", partial(self._publish, public=1)),
            self._route(f"{checkpoint}/publish", "DELETE", "publish", partial(self._publish, public=0)),
            self._route(f"{checkpoint}/ttl", "PUT", "publish", self._set_ttl),
            self._route(f"{checkpoint}/external_weights_urls", "GET", "read", self._external_urls),
            self._route(f"{checkpoint}/files/{{file}}", "GET", "read", self._file),
            Route(f"{PREFIX}/forward_backward", self._guarded("train", self._forward_backward), methods=["POST"]),
            Route(f"{PREFIX}/retrieve_future", self._guarded(None, self._retrieve), methods=["POST"]),
            Route(f"{PREFIX}/healthz", self._health),
            Route("/metrics", self._guarded("administer", self._metrics)),
        ]
        return Starlette(routes=routes, exception_handlers={404: _unknown, 405: _unknown})

    def drain(self) -> None:
        """Note that the server stops."""
        self._draining = True

    # -------------------------------------------------------------------------------------------- guards

    def _route(
        self, path: str, method: str, scope: Scope | None, handler: Callable[[Caller, Body, Request], Response]
    ) -> Route:
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
        """A handler behind keys and scopes, whose errors all have a status and words."""

        async def guarded(call: Request) -> Response:
            try:
                kind, _, bearer = call.headers.get("authorization", "").partition(" ")
                key = call.headers.get("x-api-key") or (bearer if kind.lower() == "bearer" else "")
                caller = self.keys.caller(key)
                if caller is None:
                    raise ApiError(401, "this service wants a tenant's key: X-Api-Key", code="invalid_api_key")
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
        session = self._owned(SessionRecord, body["session_id"], caller, "session")
        if session.finished is not None:
            raise ApiError(410, f"the session {session.id} is finished", code="finished")
        self.desk.ledger.change(SessionRecord, session.id, {"beat_s": self.desk.clock.now_s()})
        return JSONResponse({"type": "session_heartbeat"})

    def _finish_session(self, caller: Caller, body: Body, call: Request) -> Response:
        session = self._owned(SessionRecord, call.path_params["session"], caller, "session")
        if session.finished is None:
            self.desk.ledger.change(SessionRecord, session.id, {"finished": json.dumps(body.get("reason") or {})})
        return Response(status_code=204)

    def _session(self, caller: Caller, body: Body, call: Request) -> Response:
        del body
        session = self._owned(SessionRecord, call.path_params["session"], caller, "session")
        models = self.desk.ledger.records(ModelRecord, {"session": session.id})
        samplers = self.desk.ledger.records(SamplerRecord, {"session": session.id})
        return JSONResponse(
            {
                "training_run_ids": [one.id for one in models],
                "sampler_ids": [one.id for one in samplers],
                "user_metadata": from_text(session.metadata),
                "display_name": session.display_name,
            }
        )

    def _assign_project(self, caller: Caller, body: Body, call: Request) -> Response:
        session = self._owned(SessionRecord, call.path_params["session"], caller, "session")
        self.desk.ledger.change(SessionRecord, session.id, {"project": str(body["project_id"])})
        return Response(status_code=204)

    def _list_sessions(self, caller: Caller, body: Body, call: Request) -> Response:
        del body
        limit, offset = _window(call)
        sessions, _ = self.desk.ledger.page(SessionRecord, caller.tenant, limit=limit, offset=offset)
        return JSONResponse({"sessions": [one.id for one in sessions]})

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
            rank=int(lora.get("rank") or 32),
            attention=bool(lora.get("train_attn", True)),
            mlp=bool(lora.get("train_mlp", True)),
            output=bool(lora.get("train_unembed", True)),
        )
        shape.settings(self.base.rows.decoder)
        seed = int.from_bytes(uuid.uuid4().bytes[:4], "big") if lora.get("seed") is None else int(lora["seed"])
        return self._new_model("create_model", self._model_record(session, base, shape, seed, body), body, caller)

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
        others = [one for one in self.desk.ledger.records(ModelRecord, {"tenant": model.tenant}) if one.id != model.id]
        if len(others) >= caller.max_models:
            raise ApiError(402, f"{caller.tenant} has {len(others)} models already, the most that it may have")
        return self._submitted(self._request(caller, model.id, 0, kind, json.dumps(body).encode()), model=model)

    def _load_weights(self, caller: Caller, body: Body, call: Request) -> Response:
        if body.get("model_id"):
            return self._submit_step("load_weights", caller, body, call)
        session, saved = self._open_session(body["session_id"], caller), self._readable(body["path"], caller)
        first = self.desk.ledger.find(ModelRecord, saved.model)
        if first is None:
            raise _absent("model of", saved.path)
        shape = AdapterShape(
            rank=first.rank, attention=bool(first.attention), mlp=bool(first.mlp), output=bool(first.output)
        )
        model = self._model_record(session, first.base, shape, first.seed, body)
        return self._new_model("load_weights", model, body, caller)

    def _model_info(self, caller: Caller, body: Body, call: Request) -> Response:
        del call
        model = self._owned(ModelRecord, body["model_id"], caller, "model")
        data = {"arch": self.base.rows.decoder.config.family, "model_name": model.base, "tokenizer_id": self.base.name}
        return JSONResponse(
            {
                "type": "get_info",
                "model_id": model.id,
                "model_data": data,
                "is_lora": True,
                "lora_rank": model.rank,
                "model_name": model.base,
                "optimizer_config": {"type": "adamw"},
            }
        )

    def _submit_step(self, kind: str, caller: Caller, body: Body, call: Request) -> Response:
        del call
        model = self._owned(ModelRecord, body["model_id"], caller, "model")
        seq = int(body["seq_id"])
        if seq < 1:
            raise ApiError(400, f"seq_id must be 1 or more, got {seq}", code="invalid_value")
        return self._submitted(self._request(caller, model.id, seq, kind, json.dumps(body).encode()))

    async def _forward_backward(self, call: Request, caller: Caller) -> Response:
        def prepare(raw: bytes) -> Response:
            body = raw if call.headers.get("content-encoding") != "zstd" else _unpacked(raw, self.bodies.most_bytes)
            asked = read_call(body)
            model = self._owned(ModelRecord, asked.model_id, caller, "model")
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
        if model is None:
            self.desk.ledger.change(ModelRecord, record.owner, {"used_s": record.came_s})
        return JSONResponse({"request_id": accepted.id, "model_id": record.owner})

    # ------------------------------------------------------------------------------------------ samplers

    def _create_sampler(self, caller: Caller, body: Body, call: Request) -> Response:
        del call
        session = self._open_session(body["session_id"], caller)
        path, folder = body.get("model_path"), None
        if path:
            saved = self._readable(path, caller)
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
        sampler = self._owned(SamplerRecord, call.path_params["sampler"], caller, "sampler")
        name = self.config.names[0]
        return JSONResponse({"sampler_id": sampler.id, "base_model": name, "model_path": sampler.path})

    def _join_sampler(self, caller: Caller, body: Body, call: Request) -> Response:
        del call
        self._owned(SamplerRecord, body["sampling_session_id"], caller, "sampler")
        return JSONResponse({"type": "join_sampling_session", "client_counter": int(time.time_ns() % (1 << 31))})

    def _submit_sample(self, caller: Caller, body: Body, call: Request) -> Response:
        del call
        raw = json.dumps(body).encode()
        sampler, asked = self._owned(SamplerRecord, body["sampling_session_id"], caller, "sampler"), read_sample(raw)
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
        record = self._owned(RequestRecord, body["request_id"], caller, "request")
        if record.kind == "sample":
            self.sampler.cancel(record.id)
        return Response(status_code=204)

    # ------------------------------------------------------------------------------------------- futures

    async def _retrieve(self, call: Request, caller: Caller) -> Response:
        """The result of a request, held for a while until there is one; 408 asks the client to call again."""
        body = await self.bodies.prepared(call, lambda raw: json.loads(raw or b"{}"))
        id = body["request_id"]
        record = await self.bodies.beside(0, lambda: self.desk.ledger.find(RequestRecord, id))
        if record is None or record.tenant != caller.tenant:
            raise ApiError(410, f"there is no request {str(id)!r:.80}", code="gone")
        if not await self.desk.wait(id, self.config.limits.poll_s):
            why = self.desk.why_waiting(id)
            return JSONResponse(
                {"type": "try_again", "request_id": id, "queue_state": "active", "queue_state_reason": why},
                status_code=408,
            )
        record = await self.bodies.beside(0, lambda: self.desk.ledger.find(RequestRecord, id))
        assert record is not None
        if record.result is None or record.media is None:
            raise ApiError(410, f"the result of {id} was dropped; results are kept for a while only", code="gone")
        if record.category is not None:
            return JSONResponse({"error": record.result.decode(), "category": record.category})
        if body.get("allow_metadata_only") and record.media != JSON and len(record.result) > self.bodies.most_bytes:
            return JSONResponse({"status": "complete_metadata", "response_payload_size": len(record.result)})
        return Response(record.result, media_type=record.media)

    # --------------------------------------------------------------------------------- runs, checkpoints

    def _list_runs(self, caller: Caller, body: Body, call: Request) -> Response:
        del body
        limit, offset = _window(call)
        models, count = self.desk.ledger.page(ModelRecord, caller.tenant, limit=limit, offset=offset)
        cursor = {"offset": offset, "limit": limit, "total_count": count}
        return JSONResponse({"training_runs": [self._described(one) for one in models], "cursor": cursor})

    def _run(self, caller: Caller, body: Body, call: Request) -> Response:
        del body
        return JSONResponse(self._described(self._owned(ModelRecord, call.path_params["run"], caller, "training run")))

    def _described(self, model: ModelRecord) -> dict[str, object]:
        saved = self.desk.ledger.records(CheckpointRecord, {"model": model.id})

        def last(kind: str) -> dict[str, object] | None:
            return next((_checkpoint_fields(one) for one in reversed(saved) if one.kind == kind), None)

        return {
            "training_run_id": model.id,
            "base_model": model.base,
            "model_owner": model.tenant,
            "is_lora": True,
            "lora_rank": model.rank,
            "corrupted": False,
            "last_request_time": _timestamp(model.used_s),
            "last_checkpoint": last("training"),
            "last_sampler_checkpoint": last("sampler"),
            "user_metadata": from_text(model.metadata),
        }

    def _run_checkpoints(self, caller: Caller, body: Body, call: Request) -> Response:
        del body
        model = self._owned(ModelRecord, call.path_params["run"], caller, "training run")
        saved = self.desk.ledger.records(CheckpointRecord, {"model": model.id})
        return JSONResponse({"checkpoints": [_checkpoint_fields(one) for one in saved]})

    def _list_checkpoints(self, caller: Caller, body: Body, call: Request) -> Response:
        del body
        limit, offset = _window(call)
        saved, count = self.desk.ledger.page(CheckpointRecord, caller.tenant, limit=limit, offset=offset)
        cursor = {"offset": offset, "limit": limit, "total_count": count}
        return JSONResponse({"checkpoints": [_checkpoint_fields(one) for one in saved], "cursor": cursor})

    def _weights_info(self, caller: Caller, body: Body, call: Request) -> Response:
        del call
        saved = self._readable(body["tinker_path"], caller)
        model = self.desk.ledger.find(ModelRecord, saved.model)
        if model is None:
            raise _absent("model of", saved.path)
        return JSONResponse(
            {
                "base_model": model.base,
                "is_lora": True,
                "lora_rank": model.rank,
                "train_unembed": bool(model.output),
                "train_mlp": bool(model.mlp),
                "train_attn": bool(model.attention),
                "optimizer_config": {"type": "adamw"},
            }
        )

    def _delete_checkpoint(self, caller: Caller, body: Body, call: Request) -> Response:
        del body
        saved = self._own_checkpoint(call, caller)
        self.desk.ledger.delete(CheckpointRecord, saved.path)
        remove_checkpoint(saved)
        return Response(status_code=204)

    def _publish(self, caller: Caller, body: Body, call: Request, *, public: int) -> Response:
        del body
        self.desk.ledger.change(CheckpointRecord, self._own_checkpoint(call, caller).path, {"public": public})
        return Response(status_code=204)

    def _set_ttl(self, caller: Caller, body: Body, call: Request) -> Response:
        saved, ttl = self._own_checkpoint(call, caller), body.get("ttl_seconds")
        expires = None if ttl is None else self.desk.clock.now_s() + float(ttl)
        self.desk.ledger.change(CheckpointRecord, saved.path, {"expires_s": expires})
        return Response(status_code=204)

    def _external_urls(self, caller: Caller, body: Body, call: Request) -> Response:
        del body
        saved = self._own_checkpoint(call, caller)
        place = str(call.url).rpartition("/")[0]
        names = sorted(one.name for one in (Path(saved.folder) / "policy").iterdir())
        urls = {name: f"{place}/files/{name}" for name in names}
        return JSONResponse({"urls": urls, "expires": _timestamp(self.desk.clock.now_s() + 3600)})

    def _file(self, caller: Caller, body: Body, call: Request) -> Response:
        del body
        folder = Path(self._own_checkpoint(call, caller).folder) / "policy"
        file = next((one for one in folder.iterdir() if one.name == call.path_params["file"]), None)
        if file is None:
            raise _absent("file", call.path_params["file"])
        return FileResponse(file)

    # ------------------------------------------------------------------------------------------- service

    async def _health(self, call: Request) -> Response:
        del call
        fault = "draining" if self._draining else ""
        fault = fault or ("" if self.trainer.alive and self.sampler.alive else "a worker has ended")
        return JSONResponse({"status": fault or "ok"}, status_code=503 if fault else 200)

    async def _metrics(self, call: Request, caller: Caller) -> Response:
        """Amounts by tenant, in Prometheus's text format."""
        del call, caller
        usage = await self.bodies.beside(0, self.desk.ledger.usage)
        with self.desk.wake:
            waiting = self.desk.turns.counts()
        lines = ["# TYPE hone_training_usage_total counter"]
        lines += [
            f'hone_training_usage_total{{tenant="{tenant}",what="{what}"}} {amount:.6f}'
            for (tenant, what), amount in sorted(usage.items())
        ]
        lines += ["# TYPE hone_training_waiting gauge"]
        lines += [f'hone_training_waiting{{tenant="{one}"}} {count}' for one, count in sorted(waiting.items())]
        return PlainTextResponse("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")

    # --------------------------------------------------------------------------------------------- parts

    def _owned(self, kind: type[OwnedT], id: object, caller: Caller, what: str) -> OwnedT:
        """A record of the caller's tenant. Raises ApiError (404), the same whether there is none or it is another's."""
        record = self.desk.ledger.find(kind, str(id))
        if record is None or record.tenant != caller.tenant:
            raise _absent(what, id)
        return record

    def _open_session(self, id: object, caller: Caller) -> SessionRecord:
        session = self._owned(SessionRecord, id, caller, "session")
        if session.finished is not None:
            raise ApiError(400, f"the session {session.id} is finished; open another", code="finished")
        return session

    def _readable(self, path: object, caller: Caller) -> CheckpointRecord:
        saved = self.desk.ledger.find(CheckpointRecord, str(path))
        if saved is None or not (saved.public or saved.tenant == caller.tenant):
            raise _absent("checkpoint", path)
        return saved

    def _own_checkpoint(self, call: Request, caller: Caller) -> CheckpointRecord:
        parts = call.path_params
        path = f"tinker://{parts['run']}/{parts['segment']}/{parts['name']}"
        saved = self.desk.ledger.find(CheckpointRecord, path)
        if saved is None or saved.tenant != caller.tenant:
            raise _absent("checkpoint", path)
        return saved

    def _base_name(self, name: object) -> str:
        if name not in self.config.names:
            served = ", ".join(self.config.names)
            raise ApiError(400, f"base_model {str(name)!r:.120} is not served here; served: {served}")
        return str(name)


def remove_checkpoint(saved: CheckpointRecord) -> None:
    """Remove a checkpoint's files."""
    shutil.rmtree(Path(saved.folder).parent, ignore_errors=True)


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


def _window(call: Request) -> tuple[int, int]:
    """Limit and offset of a list."""
    limit, offset = int(call.query_params.get("limit", 20)), int(call.query_params.get("offset", 0))
    if limit < 0 or offset < 0:
        raise ApiError(400, f"limit and offset must be 0 or more, got {limit} and {offset}", code="invalid_value")
    return min(limit, _PAGE), offset


def _checkpoint_fields(saved: CheckpointRecord) -> dict[str, object]:
    return {
        "checkpoint_id": f"{SEGMENTS[saved.kind]}/{saved.name}",
        "checkpoint_type": saved.kind,
        "time": _timestamp(saved.created_s),
        "tinker_path": saved.path,
        "size_bytes": saved.size_bytes,
        "public": bool(saved.public),
        "user_metadata": from_text(saved.metadata),
        "expires_at": None if saved.expires_s is None else _timestamp(saved.expires_s),
    }


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


async def _unknown(call: Request, error: Exception) -> Response:
    del error
    return error_response(ApiError(404, f"{call.method} {call.url.path} is not served", code="not_found"))
