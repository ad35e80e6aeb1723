"""The routes that read and change records: sessions, training runs, checkpoints and their copies, and what was used.

Records of another tenant are 404, as if they were not there. A published checkpoint is everybody's to read and to copy.
"""

import hashlib
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response

from hone.core.errors import DataError
from hone.run.http.requests import ApiError
from hone.text.training_service.desk import RequestDesk
from hone.text.training_service.ledger import (
    CheckpointRecord,
    Ledger,
    ModelRecord,
    RequestRecord,
    SamplerRecord,
    SessionRecord,
    from_text,
)
from hone.text.training_service.service_config import Caller, Scope
from hone.text.training_service.worker import SEGMENTS, folder_name

Body: TypeAlias = dict[str, Any]
RecordHandler: TypeAlias = Callable[[Caller, Body, Request], Response]
RecordRoute: TypeAlias = tuple[str, str, Scope | None, RecordHandler]
"""Path, method, the scope that it needs, and what answers."""
OwnedT = TypeVar("OwnedT", SessionRecord, ModelRecord, SamplerRecord, RequestRecord)
NO_ACCESS_TOKENS: Final = "weights_access_token is not served: the checkpoint's owner may publish it instead"
_PAGE: Final = 100
_HOUR_S: Final = 3600
ACTIVE_S: Final = 300.0
"""Seconds since its last heartbeat after which a session does not count as active."""
_BILLED: Final[Mapping[str, Mapping[str, object]]] = {
    "train_tokens": {"type": "training"},
    "forward_tokens": {"type": "training"},
    "prompt_tokens": {"type": "sampling_prefill", "cached": False},
    "sampled_tokens": {"type": "sampling_sample"},
}
"""Kinds of use that the protocol has a name for."""


def owned(ledger: Ledger, kind: type[OwnedT], id: object, caller: Caller, what: str) -> OwnedT:
    """A record of the caller's tenant. Raises ApiError (404), the same whether there is none or it is another's."""
    record = ledger.find(kind, str(id))
    if record is None or record.tenant != caller.tenant:
        raise absent(what, id)
    return record


def readable(ledger: Ledger, path: object, caller: Caller) -> CheckpointRecord:
    """A checkpoint that the caller may read. Raises ApiError (404)."""
    saved = ledger.find(CheckpointRecord, str(path))
    if saved is None or not (saved.public or saved.tenant == caller.tenant):
        raise absent("checkpoint", path)
    return saved


def absent(what: str, id: object) -> ApiError:
    """404 for a record that is not there, or not the caller's."""
    return ApiError(404, f"there is no {what} {str(id)!r:.200}", code="not_found")


def remove_checkpoint(saved: CheckpointRecord) -> None:
    """Remove a checkpoint's files."""
    shutil.rmtree(Path(saved.folder).parent, ignore_errors=True)


@dataclass(frozen=True, slots=True, eq=False)
class Catalogue:
    """Handlers of the routes."""

    desk: RequestDesk
    folder: Path
    """Where checkpoints stand."""

    @property
    def ledger(self) -> Ledger:
        return self.desk.ledger

    def routes(self) -> Iterator[RecordRoute]:
        checkpoint = "training_runs/{run}/checkpoints/{segment}/{name}"
        yield "sessions", "GET", "read", self._list_sessions
        yield "sessions/search", "POST", "read", self._search_sessions
        yield "sessions/{session}", "GET", "read", self._session
        yield "sessions/{session}/project", "PUT", "read", self._assign_project
        yield "training_runs", "GET", "read", self._list_runs
        yield "training_runs/{run}", "GET", "read", self._run
        yield "training_runs/{run}/checkpoints", "GET", "read", self._run_checkpoints
        yield "checkpoints", "GET", "read", self._list_checkpoints
        yield "weights_info", "POST", "read", self._weights_info
        yield "copy_weights", "POST", "publish", self._copy_weights
        yield checkpoint, "DELETE", "publish", self._delete_checkpoint
        yield f"{checkpoint}/publish", "POST", "publish", partial(self._publish, public=1)
        yield f"{checkpoint}/publish", "DELETE", "publish", partial(self._publish, public=0)
        yield f"{checkpoint}/ttl", "PUT", "publish", self._set_ttl
        yield f"{checkpoint}/external_weights_urls", "GET", "read", self._external_urls
        yield f"{checkpoint}/files/{{file}}", "GET", "read", self._file
        yield "billing/usage/events", "GET", "administer", self._billing_usage
        yield "billing/usage/checkpoints/current", "GET", "administer", self._storage_usage

    # ------------------------------------------------------------------------------------------ sessions

    def _session(self, caller: Caller, body: Body, call: Request) -> Response:
        del body
        session = owned(self.ledger, SessionRecord, call.path_params["session"], caller, "session")
        models = self.ledger.records(ModelRecord, {"session": session.id})
        samplers = self.ledger.records(SamplerRecord, {"session": session.id})
        return JSONResponse(
            {
                "training_run_ids": [one.id for one in models],
                "sampler_ids": [one.id for one in samplers],
                "user_metadata": from_text(session.metadata),
                "display_name": session.display_name,
            }
        )

    def _assign_project(self, caller: Caller, body: Body, call: Request) -> Response:
        session = owned(self.ledger, SessionRecord, call.path_params["session"], caller, "session")
        self.ledger.change(SessionRecord, session.id, {"project": str(body["project_id"])})
        return Response(status_code=204)

    def _list_sessions(self, caller: Caller, body: Body, call: Request) -> Response:
        del body
        limit, offset = _window(call)
        sessions, _ = self.ledger.page(SessionRecord, caller.tenant, limit=limit, offset=offset)
        return JSONResponse({"sessions": [one.id for one in sessions]})

    def _search_sessions(self, caller: Caller, body: Body, call: Request) -> Response:
        """The tenant's sessions that match every filter, the newest first."""
        del call
        limit, cursor = int(body.get("limit") or 50), body.get("cursor")
        if not 1 <= limit <= 2 * _PAGE:
            raise ApiError(400, f"limit must be 1 to {2 * _PAGE}, got {limit}", code="invalid_value")
        sessions = self.ledger.records(SessionRecord, {"tenant": caller.tenant})
        sessions.sort(key=lambda one: (one.created_s, one.id), reverse=True)
        if cursor:
            last = (datetime.fromisoformat(cursor["last_created_at"]).timestamp(), cursor["last_session_id"])
            sessions = [one for one in sessions if (one.created_s, one.id) < last]
        now = self.desk.clock.now_s()
        matching = [one for one in sessions if _matches(one, body, now)]
        page = [self._summary(one, now) for one in matching[:limit]]
        more = None
        if len(matching) > limit:
            more = {"last_created_at": page[-1]["created_at"], "last_session_id": page[-1]["session_id"]}
        return JSONResponse({"sessions": page, "next_cursor": more})

    def _summary(self, session: SessionRecord, now_s: float) -> dict[str, object]:
        models = self.ledger.records(ModelRecord, {"session": session.id})
        saved = [one for model in models for one in self.ledger.records(CheckpointRecord, {"model": model.id})]
        status = _status(session, now_s)
        ended = {"reason": {"type": status[1]}} if status is not None and status[1] else {}
        return {
            "session_id": session.id,
            "created_at": _timestamp(session.created_s),
            "owner": session.tenant,
            "project_id": session.project or "",
            "status": None if status is None else {"type": status[0], **ended},
            "checkpoints_count": len(saved),
            "display_name": session.display_name,
            "user_metadata": from_text(session.metadata),
            "checkpoint_storage_bytes": sum(one.size_bytes for one in saved),
        }

    # --------------------------------------------------------------------------------- runs, checkpoints

    def _list_runs(self, caller: Caller, body: Body, call: Request) -> Response:
        del body
        limit, offset = _window(call)
        models, count = self.ledger.page(ModelRecord, caller.tenant, limit=limit, offset=offset)
        cursor = {"offset": offset, "limit": limit, "total_count": count}
        return JSONResponse({"training_runs": [self._described(one) for one in models], "cursor": cursor})

    def _run(self, caller: Caller, body: Body, call: Request) -> Response:
        del body
        model = owned(self.ledger, ModelRecord, call.path_params["run"], caller, "training run")
        return JSONResponse(self._described(model))

    def _described(self, model: ModelRecord) -> dict[str, object]:
        saved = self.ledger.records(CheckpointRecord, {"model": model.id})

        def last(kind: str) -> dict[str, object] | None:
            return next((_checkpoint_fields(one) for one in reversed(saved) if one.kind == kind), None)

        return {
            "training_run_id": model.id,
            "base_model": model.base,
            "model_owner": model.tenant,
            "is_lora": bool(model.rank),
            "lora_rank": model.rank or None,
            "corrupted": False,
            "last_request_time": _timestamp(model.used_s),
            "last_checkpoint": last("training"),
            "last_sampler_checkpoint": last("sampler"),
            "user_metadata": from_text(model.metadata),
        }

    def _run_checkpoints(self, caller: Caller, body: Body, call: Request) -> Response:
        del body
        model = owned(self.ledger, ModelRecord, call.path_params["run"], caller, "training run")
        saved = self.ledger.records(CheckpointRecord, {"model": model.id})
        return JSONResponse({"checkpoints": [_checkpoint_fields(one) for one in saved]})

    def _list_checkpoints(self, caller: Caller, body: Body, call: Request) -> Response:
        del body
        limit, offset = _window(call)
        saved, count = self.ledger.page(CheckpointRecord, caller.tenant, limit=limit, offset=offset)
        cursor = {"offset": offset, "limit": limit, "total_count": count}
        return JSONResponse({"checkpoints": [_checkpoint_fields(one) for one in saved], "cursor": cursor})

    def _weights_info(self, caller: Caller, body: Body, call: Request) -> Response:
        del call
        saved = readable(self.ledger, body["tinker_path"], caller)
        model = self.ledger.find(ModelRecord, saved.model)
        if model is None:
            raise absent("model of", saved.path)
        return JSONResponse(
            {
                "base_model": model.base,
                "is_lora": bool(model.rank),
                "lora_rank": model.rank or None,
                "train_unembed": bool(model.output),
                "train_mlp": bool(model.mlp),
                "train_attn": bool(model.attention),
                "optimizer_config": {"type": "adamw"},
            }
        )

    def _delete_checkpoint(self, caller: Caller, body: Body, call: Request) -> Response:
        del body
        saved = self._own_checkpoint(call, caller)
        self.ledger.delete(CheckpointRecord, saved.path)
        remove_checkpoint(saved)
        return Response(status_code=204)

    def _publish(self, caller: Caller, body: Body, call: Request, *, public: int) -> Response:
        del body
        self.ledger.change(CheckpointRecord, self._own_checkpoint(call, caller).path, {"public": public})
        return Response(status_code=204)

    def _set_ttl(self, caller: Caller, body: Body, call: Request) -> Response:
        saved, ttl = self._own_checkpoint(call, caller), body.get("ttl_seconds")
        expires = None if ttl is None else self.desk.clock.now_s() + float(ttl)
        self.ledger.change(CheckpointRecord, saved.path, {"expires_s": expires})
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
            raise absent("file", call.path_params["file"])
        return FileResponse(file)

    def _copy_weights(self, caller: Caller, body: Body, call: Request) -> Response:
        """A checkpoint of this tenant with the files of another, which are shared; one call has one copy, however often
        it is sent. Its run holds it, and cannot be trained on."""
        if body.get("weights_access_token") or call.headers.get("x-tinker-weights-access-token"):
            raise ApiError(400, NO_ACCESS_TOKENS)
        saved, now = readable(self.ledger, body["source_path"], caller), self.desk.clock.now_s()
        source = self.ledger.find(ModelRecord, saved.model)
        if source is None:
            raise absent("model of", saved.path)
        session = self._session_of_copy(caller, body, call, now)
        model = f"{session.id}:train:{int(body.get('model_seq_id') or 0)}"
        path = f"tinker://{model}/{SEGMENTS[saved.kind]}/{saved.name}"
        if self.ledger.find(CheckpointRecord, path) is None:
            if self.ledger.find(ModelRecord, model) is not None:
                raise ApiError(400, f"{model} is a model already; give another model_seq_id", code="invalid_value")
            target = self.folder / "checkpoints" / folder_name(model) / SEGMENTS[saved.kind] / saved.name
            folder = target / Path(saved.folder).name
            shutil.rmtree(target, ignore_errors=True)  # of a copy that was killed before it was written down
            shutil.copytree(saved.folder, folder, copy_function=os.link)
            ttl = body.get("ttl_seconds")
            self.ledger.insert(
                replace(source, id=model, session=session.id, tenant=caller.tenant, created_s=now, used_s=now, copied=1)
            )
            self.ledger.insert(
                replace(
                    saved, path=path, model=model, tenant=caller.tenant, folder=str(folder), created_s=now, public=0,
                    expires_s=None if ttl is None else now + float(ttl),
                )
            )  # fmt: skip
        return JSONResponse({"type": "copy_weights", "tinker_path": path})

    def _session_of_copy(self, caller: Caller, body: Body, call: Request, now_s: float) -> SessionRecord:
        """The session that the body names; or a new one, whose id follows from the call's key."""
        if body.get("session_id"):
            return owned(self.ledger, SessionRecord, body["session_id"], caller, "session")
        key = call.headers.get("x-idempotency-key") or os.urandom(16).hex()
        id = hashlib.sha256(f"{caller.tenant} {key} {body['source_path']}".encode()).hexdigest()[:16]
        session = self.ledger.find(SessionRecord, id)
        if session is None:
            session = SessionRecord(
                id=id, tenant=caller.tenant, created_s=now_s, beat_s=now_s, finished=None, tags="[]", metadata=None,
                project=body.get("destination_project_id"), display_name=None,
            )  # fmt: skip
            self.ledger.insert(session)
        return session

    # --------------------------------------------------------------------------------------------- usage

    def _billing_usage(self, caller: Caller, body: Body, call: Request) -> Response:
        """What was used in each hour, by session. There are no prices: amounts are tokens."""
        del body
        begin, end = (_moment(call, name) for name in ("starting_on", "ending_before"))
        sessions: dict[str, dict[str, object]] = {}
        events: list[dict[str, object]] = []
        for one in self.ledger.hourly_usage(begin, end):
            if one.tenant != caller.tenant or one.what not in _BILLED:
                continue
            session = one.owner.partition(":")[0]
            record = self.ledger.find(SessionRecord, session)
            sessions[session] = {"user_metadata": from_text(record.metadata) if record is not None else None}
            events.append(
                {
                    "bucket_start": _timestamp(one.hour_s),
                    "bucket_end": _timestamp(one.hour_s + _HOUR_S),
                    "session_id": session,
                    "user_id": one.tenant,
                    "project_id": None if record is None else record.project,
                    "event_info": {**_BILLED[one.what], "token_count": round(one.amount)},
                }
            )
        return JSONResponse({"data": events, "sessions": sessions})

    def _storage_usage(self, caller: Caller, body: Body, call: Request) -> Response:
        """Checkpoints of the tenant and their bytes, by project. Files that copies share are counted with each."""
        del body, call
        by_project: dict[str | None, list[int]] = defaultdict(list)
        for saved in self.ledger.records(CheckpointRecord, {"tenant": caller.tenant}):
            session = self.ledger.find(SessionRecord, saved.model.partition(":")[0])
            by_project[None if session is None else session.project].append(saved.size_bytes)
        data = [
            {
                "project_id": project,
                "org_user_urn": caller.tenant,
                "checkpoint_count": len(sizes),
                "size_bytes": sum(sizes),
                "size_gigabytes": sum(sizes) / 1e9,
            }
            for project, sizes in sorted(by_project.items(), key=lambda one: one[0] or "")
        ]
        return JSONResponse({"data": data})

    # --------------------------------------------------------------------------------------------- parts

    def _own_checkpoint(self, call: Request, caller: Caller) -> CheckpointRecord:
        parts = call.path_params
        path = f"tinker://{parts['run']}/{parts['segment']}/{parts['name']}"
        saved = self.ledger.find(CheckpointRecord, path)
        if saved is None or saved.tenant != caller.tenant:
            raise absent("checkpoint", path)
        return saved


def _status(session: SessionRecord, now_s: float) -> tuple[str, str] | None:
    """Status of a session and how it ended; None for one that has not ended and gives no sign of life."""
    if session.finished is None:
        return ("active", "") if now_s - session.beat_s < ACTIVE_S else None
    reason = from_text(session.finished)
    return "client_finished", str(reason.get("type", "success")) if isinstance(reason, dict) else "success"


def _matches(session: SessionRecord, body: Body, now_s: float) -> bool:
    """Whether a session is one that a search asks for."""
    metadata, status = from_text(session.metadata) or {}, _status(session, now_s)
    wanted_id, words = body.get("session_id"), str(body.get("display_name") or "").lower().split()
    named = bool(words) and all(word in (session.display_name or "").lower() for word in words)
    if (wanted_id or words) and not (session.id == wanted_id or named):
        return False
    if body.get("project_ids") is not None and session.project not in body["project_ids"]:
        return False
    pairs = (body.get("user_metadata") or {}).items()
    if not isinstance(metadata, dict) or any(metadata.get(key) != value for key, value in pairs):
        return False
    kind, ended = status if status is not None else ("", "")
    return body.get("statuses") is None or any(
        one["type"] == kind and (not one.get("reasons") or ended in one["reasons"]) for one in body["statuses"]
    )


def _moment(call: Request, name: str) -> float:
    """Seconds of a parameter. Raises DataError for one that is no time."""
    text = call.query_params.get(name, "")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise DataError(f"{name} must be a time of ISO 8601, got {text!r:.80}") from None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


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
