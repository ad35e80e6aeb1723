"""Routes of the page: files of the browser's side, answers in JSON or numbers, and a stream that says "rows N".

Belongs here: from a request to a function and back. Everything is read; a chat with checkpoints, which starts work, has
a scope of its own and is off by default.
"""

import asyncio
import json
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from hone.core.clock import Clock
from hone.core.errors import HoneError
from hone.run.store.animation import EPISODE_PNG, episode_frame, read_episode
from hone.web.columns import RunColumns
from hone.web.guard import AccessRules, Guard
from hone.web.queue_view import queue_view
from hone.web.rollouts import CHIPS, RolloutReader
from hone.web.runs import RunListing, folded_scores, plain
from hone.web.series import series_answer
from hone.web.views import (
    chat_answers,
    chat_steps,
    compare_view,
    data_view,
    decisions_view,
    evaluation_view,
    histogram_view,
    lab_view,
    lanes_view,
    run_view,
    system_view,
    world_view,
)

STATIC: Final = Path(__file__).with_name("static")
_KINDS: Final = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
_OPEN_RUNS: Final = 12
_LOOK_S: Final = 0.25
_PING_S: Final = 15.0
_FIRST_CHUNKS: Final = 2
_CHUNKS: Final = 4
_MOST_BODY: Final = 64 << 10


# ------------------------------------------------------------------------------------------------------------ open runs


@dataclass(slots=True)
class OpenRun:
    """A run that a tab looks at."""

    columns: RunColumns
    lock: threading.Lock = field(default_factory=threading.Lock)
    seen: tuple[int, int, int] = (0, 0, 0)

    def look(self, chunks: int) -> tuple[int, int, int]:
        """Read what is new; the generation, rows and bytes that are known."""
        with self.lock:
            self.columns.refresh(chunks=chunks)
            self.seen = (self.columns.generation, self.columns.rows, self.columns.offset)
        return self.seen


class OpenRuns:
    """Columns of the runs that were looked at last."""

    def __init__(self, listing: RunListing) -> None:
        self.listing = listing
        self._runs: OrderedDict[str, OpenRun] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, run_id: str) -> OpenRun:
        """An open run with what is new. Raises DataError for an unknown id."""
        folder = self.listing.folder(run_id)
        with self._lock:
            if run_id not in self._runs:
                fresh = OpenRun(RunColumns(folder / "metrics.jsonl", self.listing.cache))
                self._runs[run_id] = fresh
                self.listing.in_use[run_id] = (fresh.columns, fresh.lock)
            self._runs.move_to_end(run_id)
            while len(self._runs) > _OPEN_RUNS:
                gone, dropped = self._runs.popitem(last=False)
                self.listing.in_use.pop(gone, None)
                dropped.columns.close()
            opened = self._runs[run_id]
        with self.listing.gates[run_id]:
            opened.look(_FIRST_CHUNKS)
        return opened

    def close(self) -> None:
        """Let other processes have the caches."""
        for one in self._runs.values():
            one.columns.close()


# --------------------------------------------------------------------------------------------------------------- routes


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchParts:
    """What the page shows."""

    listing: RunListing
    clock: Clock
    service: Path | None = None
    """Service file of the decisions' page."""
    queue: str = ""
    """File or address of the queue's page."""
    chat: bool = False
    """Answer messages by checkpoints: work that takes processor and memory."""


class WatchRoutes:
    """Handlers of the requests."""

    def __init__(self, parts: WatchParts) -> None:
        self._parts = parts
        self._runs = OpenRuns(parts.listing)
        self._rollouts = RolloutReader()
        self._one_chat = asyncio.Lock()
        self._files = {
            path.relative_to(STATIC).as_posix(): path for path in sorted(STATIC.rglob("*")) if path.suffix in _KINDS
        }

    def routes(self) -> list[Route]:
        """Routes of the application."""
        answers: dict[str, Callable[[Request], Any]] = {
            "runs": self._list_runs,
            "run": self._run,
            "histogram": lambda call: histogram_view(self._folder(call), call.query_params.get("name", "")),
            "rollouts": self._table,
            "answer": lambda call: self._rollouts.answer(self._folder(call), _whole(call, "step"), _whole(call, "row")),
            "prompt": self._prompt,
            "pairs": lambda call: self._rollouts.pairs(
                self._folder(call), _whole(call, "step"), max(0, _whole(call, "page", 0))
            ),
            "episodes": lambda call: self._rollouts.episodes(self._folder(call), _whole(call, "step")),
            "trace": lambda call: self._rollouts.trace(self._folder(call), _whole(call, "step"), _whole(call, "row")),
            "lanes": self._lanes,
            "evaluation": self._evaluation,
            "compare": self._compare,
            "world": lambda call: world_view(self._folder(call), self._rollouts),
            "system": self._system,
            "data": lambda call: data_view(self._folder(call), min(50, _whole(call, "rows", 8))),
            "checkpoints": lambda call: {"steps": chat_steps(self._folder(call))},
            "lab": lambda _: lab_view(self._parts.listing.root),
            "decisions": self._decisions,
            "queue": self._queue,
        }
        routes = [Route(f"/api/{name}", _json_route(work)) for name, work in answers.items()]
        return [
            Route("/", self._index),
            Route("/static/{path:path}", self._static),
            Route("/favicon.ico", self._icon),
            Route("/api/series", self._series),
            Route("/api/live", self._live),
            Route("/api/frame", self._frame),
            Route("/api/report", self._report),
            Route("/api/chat", self._chat, methods=["POST"]),
            *routes,
        ]

    def close(self) -> None:
        """Free what is open."""
        self._runs.close()

    # ------------------------------------------------------------------------------------------------------- files

    def _index(self, call: Request) -> Response:
        del call
        return Response(self._files["index.html"].read_bytes(), media_type="text/html")

    def _icon(self, call: Request) -> Response:
        del call
        return Response(self._files["icon.svg"].read_bytes(), media_type="image/svg+xml")

    def _static(self, call: Request) -> Response:
        file = self._files.get(call.path_params["path"])
        if file is None:
            return JSONResponse({"error": "no such file"}, 404)
        headers = {"cache-control": "no-cache"}
        return Response(file.read_bytes(), media_type=_KINDS[file.suffix], headers=headers)

    # ------------------------------------------------------------------------------------------------------- runs

    def _folder(self, call: Request) -> Path:
        return self._parts.listing.folder(call.query_params.get("run", ""))

    def _list_runs(self, call: Request) -> Any:  # noqa: ANN401 - JSON
        del call
        parts = self._parts
        rows = parts.listing.rows()
        return {
            "root": parts.listing.root.resolve().name or str(parts.listing.root),
            "runs": [plain(asdict(row)) for row in rows],
            "folds": folded_scores(rows),
            "has_service": parts.service is not None,
            "has_queue": bool(parts.queue),
            "has_chat": parts.chat,
            "has_lab": bool(lab_view(parts.listing.root)),
        }

    def _run(self, call: Request) -> Any:  # noqa: ANN401 - JSON
        run_id = call.query_params.get("run", "")
        opened = self._runs.get(run_id)
        with opened.lock:
            row = self._parts.listing.row(run_id, opened.columns)
            return run_view(self._folder(call), row, opened.columns, self._rollouts)

    def _series(self, call: Request) -> Response:
        try:
            opened = self._runs.get(call.query_params.get("run", ""))
            with opened.lock:
                data = series_answer(
                    opened.columns,
                    call.query_params.getlist("m"),
                    first_step=_number(call, "from", 0.0),
                    last_step=_number(call, "to", float("inf")),
                    pixels=_whole(call, "px", 700),
                )
        except HoneError as error:
            return _fault(error)
        return Response(data, media_type="application/octet-stream", headers={"cache-control": "no-store"})

    def _live(self, call: Request) -> Response:
        try:
            opened = self._runs.get(call.query_params.get("run", ""))
        except HoneError as error:
            return _fault(error)
        return StreamingResponse(
            _rows_stream(call, opened), media_type="text/event-stream", headers={"cache-control": "no-store"}
        )

    def _system(self, call: Request) -> Any:  # noqa: ANN401 - JSON
        opened = self._runs.get(call.query_params.get("run", ""))
        with opened.lock:
            return system_view(self._folder(call), opened.columns)

    def _lanes(self, call: Request) -> Any:  # noqa: ANN401 - JSON
        opened = self._runs.get(call.query_params.get("run", ""))
        with opened.lock:
            return lanes_view(self._folder(call), opened.columns, self._rollouts, _whole(call, "step"))

    def _evaluation(self, call: Request) -> Any:  # noqa: ANN401 - JSON
        opened = self._runs.get(call.query_params.get("run", ""))
        before, after = (_whole(call, name, -1) for name in ("before", "after"))
        with opened.lock:
            return evaluation_view(
                self._folder(call), opened.columns, None if before < 0 else before, None if after < 0 else after
            )

    def _compare(self, call: Request) -> Any:  # noqa: ANN401 - JSON
        listing = self._parts.listing
        folders = [listing.folder(one) for one in dict.fromkeys(call.query_params.getlist("run"))]
        return compare_view(folders, listing.root, call.query_params.get("metric", ""))

    # ------------------------------------------------------------------------------------------------------- answers

    def _table(self, call: Request) -> Any:  # noqa: ANN401 - JSON
        query = call.query_params
        table = self._rollouts.table(
            self._folder(call), _whole(call, "step"), chip=query.get("chip", ""), text=query.get("text", ""),
            page=_whole(call, "page", 0),
        )  # fmt: skip
        return {**table, "chips": CHIPS}

    def _prompt(self, call: Request) -> Any:  # noqa: ANN401 - JSON
        folder = self._folder(call)
        answer = self._rollouts.answer(folder, _whole(call, "step"), _whole(call, "row"))
        return {"prompt": answer["prompt"], "steps": self._rollouts.prompt_over_time(folder, answer["prompt"])}

    def _frame(self, call: Request) -> Response:
        try:
            recorded = read_episode(self._folder(call))
            png = None if recorded is None else recorded[1]
            if png is None:
                return JSONResponse({"error": f"the run has no {EPISODE_PNG}"}, 404)
            return Response(episode_frame(png, _whole(call, "i", 0)), media_type="image/png")
        except HoneError as error:
            return _fault(error)

    def _report(self, call: Request) -> Response:
        """The run's `report.html`; it has inline styles and no scripts, so its own policy allows those."""
        try:
            path = self._folder(call) / "report.html"
        except HoneError as error:
            return _fault(error)
        if not path.is_file():
            return JSONResponse({"error": "the run has no report yet"}, 404)
        headers = {"content-disposition": 'attachment; filename="report.html"'}
        return Response(path.read_bytes(), media_type="text/html", headers=headers)

    def _decisions(self, call: Request) -> Any:  # noqa: ANN401 - JSON
        del call
        service = self._parts.service
        return {"service": None} if service is None else decisions_view(service, self._parts.clock)

    def _queue(self, call: Request) -> Any:  # noqa: ANN401 - JSON
        del call
        return queue_view(self._parts.queue, self._parts.clock) if self._parts.queue else {"tenants": None}

    # ------------------------------------------------------------------------------------------------------- chat

    async def _chat(self, call: Request) -> Response:
        if not self._parts.chat:
            return JSONResponse({"error": "the chat is off; hone watch --chat turns it on"}, 404)
        body = await call.body()
        if len(body) > _MOST_BODY:
            return JSONResponse({"error": f"a message has at most {_MOST_BODY} bytes"}, 413)
        try:
            asked = json.loads(body)
            run, text = str(asked["run"]), str(asked["text"])
            steps, temperature = [int(one) for one in asked["steps"]][:2], float(asked.get("temperature", 1.0))
        except (ValueError, KeyError, TypeError):
            return JSONResponse({"error": "a chat needs run, steps and text"}, 400)
        if not text.strip() or not 0 <= temperature <= 10:
            return JSONResponse({"error": "a chat needs a text, and a temperature from 0 to 10"}, 400)
        try:
            folder = self._parts.listing.folder(run)
            async with self._one_chat:
                answers = await asyncio.to_thread(chat_answers, folder, steps, text, temperature=temperature)
        except HoneError as error:
            return _fault(error)
        return JSONResponse({"answers": answers})


async def _rows_stream(call: Request, opened: OpenRun) -> AsyncIterator[str]:
    """ "rows N" whenever there are more; a client that comes back says which it has by the event's id."""
    last_id = call.headers.get("last-event-id", "")
    sent: tuple[int, int, int] | None = None
    if last_id:
        with suppress(ValueError):
            generation, rows, offset = map(int, last_id.split("."))
            sent = (generation, rows, offset)
    yield "retry: 1000\n\n"
    quiet_s = 0.0
    while not await call.is_disconnected():
        try:
            seen = await asyncio.to_thread(opened.look, _CHUNKS)
        except HoneError as error:
            yield f"event: fault\ndata: {json.dumps(str(error))}\n\n"
            return
        if seen != sent:
            sent, quiet_s = seen, 0.0
            name = "{}.{}.{}".format(*seen)
            yield f"id: {name}\nevent: rows\ndata: {json.dumps({'generation': seen[0], 'rows': seen[1]})}\n\n"
        elif quiet_s >= _PING_S:
            quiet_s = 0.0
            yield ": still here\n\n"
        await asyncio.sleep(_LOOK_S)
        quiet_s += _LOOK_S


def _json_route(work: Callable[[Request], Any]) -> Callable[[Request], Response]:
    def answer(call: Request) -> Response:
        try:
            result = work(call)
        except HoneError as error:
            return _fault(error)
        return JSONResponse(plain(result), headers={"cache-control": "no-store"})

    return answer


def _fault(error: HoneError) -> Response:
    status = 404 if "there is no run" in str(error) else 400
    return JSONResponse({"error": "; ".join(error.messages)}, status)


def _whole(call: Request, name: str, otherwise: int | None = None) -> int:
    text = call.query_params.get(name)
    if text is None and otherwise is not None:
        return otherwise
    try:
        return int(text or "")
    except ValueError:
        raise RequestFaultError(f"{name} must be a whole number, got {text!r:.40}") from None


def _number(call: Request, name: str, otherwise: float) -> float:
    text = call.query_params.get(name)
    try:
        value = otherwise if text is None else float(text)
    except ValueError:
        value = float("nan")
    if value != value:
        raise RequestFaultError(f"{name} must be a number, got {text!r:.40}")
    return value


class RequestFaultError(HoneError):
    """A request that names something wrongly."""


def make_app(parts: WatchParts, rules: AccessRules) -> Starlette:
    """The application of the page, behind its guard."""
    routes = WatchRoutes(parts)
    app = Starlette(routes=routes.routes())
    app.add_middleware(GZipMiddleware, minimum_size=1000, compresslevel=5)  # a stream of events passes as it is
    app.add_middleware(Guard, rules=rules)
    app.state.routes = routes
    return app
