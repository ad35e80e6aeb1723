"""What the unmodified SDK makes of every kind of fault, which the service relies on, and a client that was silent."""

import asyncio
import gc
import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from manual_clock import ManualClock
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from training_parts import TestClient, TrainingService, WireClient, adapter_bytes, open_service, text_datum

tinker = pytest.importorskip("tinker", reason="the SDK: pip install 'hone-rl[training-service]'")
from tinker import _base_client as base_client  # noqa: E402
from tinker import types  # noqa: E402
from tinker.lib import api_future_impl as futures  # noqa: E402
from tinker.lib import internal_client_holder as holder  # noqa: E402

from hone.text.training_service.worker import TrainingWorker  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
IDS = [byte + 3 for byte in b"the cat sat"]
ROW = types.Datum(model_input=types.ModelInput.from_ints(IDS[:-1]), loss_fn_inputs={"target_tokens": IDS[1:]})
PROMPT, FEW = types.ModelInput.from_ints(IDS), types.SamplingParams(max_tokens=1, seed=1, stop=[])
HEARTBEAT_S = 10
Serve = Callable[..., tuple[TrainingService, TestClient]]


@dataclass
class FaultyApp:
    """The service's app, but the next answers of one path are others."""

    app: ASGIApp
    training: TrainingWorker
    path: str = ""
    answers: list[tuple[int, object]] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.answers and scope["type"] == "http" and scope["path"].endswith(self.path):
            status, body = self.answers.pop(0)
            await Response(json.dumps(body), status, media_type="application/json")(scope, receive, send)
            return
        await self.app(scope, receive, send)


@dataclass
class Listening:
    """An app behind a port of this machine, which refuses connections while it is stopped."""

    app: ASGIApp
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        listener = socket.create_server(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        self._server = uvicorn.Server(uvicorn.Config(self.app, log_level="critical", lifespan="off"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join()


@dataclass
class ScriptedTime:
    """Time and sleep of the SDK's modules: nothing waits, and a server comes back once so many seconds were slept."""

    server: Listening
    back_s: float
    now_s: float = 0.0
    slept: list[float] = field(default_factory=list)

    def time(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        if seconds == HEARTBEAT_S:  # a loop of its own
            await asyncio.sleep(seconds)
            return
        before, self.now_s = self.now_s, self.now_s + seconds
        self.slept.append(seconds)
        if before < self.back_s <= self.now_s:
            await asyncio.to_thread(self.server.start)
        await asyncio.sleep(0)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for module, name in ((holder, "asyncio"), (holder, "time"), (futures, "asyncio"), (base_client, "anyio")):
            original = getattr(module, name)
            patch.setattr(module, name, SimpleNamespace(**{**vars(original), "sleep": self.sleep, "time": self.time}))


@dataclass
class FaultyClients:
    app: FaultyApp
    service: Any
    training: Any
    sampling: Any

    def create(self) -> Any:
        return self.service.create_lora_training_client(base_model="tiny", rank=2).result()

    def forward(self) -> Any:
        return self.training.forward([ROW], "cross_entropy").result()

    def sample(self) -> Any:
        return self.sampling.sample(PROMPT, 1, FEW).result()


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FaultyApp, str]]:
    """The app, and its address."""
    service = open_service(tmp_path_factory.mktemp("faults"))
    service.start()
    app = FaultyApp(service.routes.app(), service.trainer)
    server = Listening(app)
    server.start()
    yield app, server.url
    server.stop()
    service.close()
    gc.collect()  # connections that the SDK left open are collected here, and not in a later test


@pytest.fixture(scope="module")
def clients(faulty: tuple[FaultyApp, str]) -> Iterator[FaultyClients]:
    app, url = faulty
    logging.disable(logging.CRITICAL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINKER_TELEMETRY", "0")
        client = tinker.ServiceClient(base_url=url, api_key="tml-any")
        training = client.create_lora_training_client(base_model="tiny", rank=2, seed=1).result()
        yield FaultyClients(app, client, training, client.create_sampling_client(base_model="tiny").result())
    logging.disable(logging.NOTSET)


WAITING = {"type": "try_again", "request_id": "x", "queue_state": "paused_capacity", "queue_state_reason": "shares"}
CALLS: dict[str, Callable[[FaultyClients], Any]] = {
    "create_model": FaultyClients.create,
    "asample": FaultyClients.sample,
    "training": FaultyClients.forward,
    "sampling": FaultyClients.sample,
}
RAISED: dict[str, tuple[str, int, object, str]] = {
    "create_model 400": ("create_model", 400, {"detail": "why"}, "BadRequestError"),
    "create_model 401": ("create_model", 401, {"detail": "why"}, "AuthenticationError"),
    "create_model 402": ("create_model", 402, {"detail": "why"}, "BillingError"),
    "create_model 403": ("create_model", 403, {"detail": "why"}, "PermissionDeniedError"),
    "create_model 404": ("create_model", 404, {"detail": "why"}, "NotFoundError"),
    "create_model 422": ("create_model", 422, {"detail": "why"}, "UnprocessableEntityError"),
    "asample 400": ("asample", 400, {"detail": "why"}, "BadRequestError"),
    "asample 404": ("asample", 404, {"detail": "why"}, "NotFoundError"),
    "a pass whose user erred": ("training", 200, {"error": "why", "category": "user"}, "RequestFailedError"),
    "a pass whose server erred": ("training", 200, {"error": "why", "category": "server"}, "RequestFailedError"),
    "a pass that failed somehow": ("training", 200, {"error": "why"}, "RequestFailedError"),
    "a sample that failed": ("sampling", 200, {"error": "why", "category": "server"}, "RequestFailedError"),
    "a pass whose result is not there": ("training", 404, {"detail": "why"}, "ValueError"),
    "a pass that expired": ("training", 410, {"detail": "why"}, "RetryableException"),
    "a pass whose result is JSON": ("training", 200, {"loss_fn_outputs": [], "metrics": {}}, "ValueError"),
}


@pytest.mark.parametrize("name", RAISED)
def test_an_answer_is_an_exception_at_once_and_the_client_goes_on(name: str, clients: FaultyClients) -> None:
    path, status, body, error = RAISED[name]
    call = CALLS[path]
    clients.app.path = "retrieve_future" if path in ("training", "sampling") else path
    clients.app.answers = [(status, body)]
    with pytest.raises(Exception, match=r"why|proto|expired|Error retrieving") as raised:
        call(clients)
    assert type(raised.value).__name__ == error and not clients.app.answers
    assert call(clients) is not None


SIZE = {"status": "complete_metadata", "response_payload_size": 9}
RETRIED: dict[str, tuple[str, list[tuple[int, object]]]] = {
    "create_model 409": ("create_model", [(409, {})]),
    "create_model 503": ("create_model", [(503, {})]),
    "asample 429": ("asample", [(429, {})]),
    "a pass that waits": ("training", [(200, WAITING)] * 2),
    "a pass that waits, by status": ("training", [(408, {"queue_state": "active"})] * 2),
    "a pass behind a fault of the server": ("training", [(503, {})] * 5),
    "a pass behind too many calls": ("training", [(429, {})]),
    "a pass behind bad requests": ("training", [(400, {"detail": "x"})] * 2),
    "a sample that expired": ("sampling", [(410, {"detail": "x"})]),
    "a pass whose size is told first": (
        "training",
        [(200, {"status": "complete_metadata", "response_payload_size": 9})],
    ),
    "a sample whose size is told first": ("sampling", [(200, {"status": "complete_metadata"})]),
}


@pytest.mark.parametrize("name", RETRIED)
def test_an_answer_is_asked_for_again_and_nobody_notices(name: str, clients: FaultyClients) -> None:
    path, answers = RETRIED[name]
    clients.app.path = "retrieve_future" if path in ("training", "sampling") else path
    clients.app.answers = list(answers)
    assert CALLS[path](clients) is not None
    assert not clients.app.answers


def client_of(server: Listening) -> Any:
    service = tinker.ServiceClient(base_url=server.url, api_key="tml-any")
    return service.create_lora_training_client(base_model="tiny", rank=2, seed=1).result()


@pytest.fixture
def away(clients: FaultyClients) -> Iterator[Listening]:
    """The service behind a port of its own, which a test stops."""
    server = Listening(clients.app)
    server.start()
    yield server
    server.stop()


def test_a_poll_survives_any_gap_of_refused_connections(
    clients: FaultyClients, away: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    training, clock = client_of(away), ScriptedTime(away, back_s=1200.0)
    with clients.app.training.computing:
        promise = training.forward([ROW], "cross_entropy")
        while not clients.app.training.desk.waiting:
            threading.Event().wait(0.001)
        clock.install(monkeypatch)
        away.stop()
    assert promise.result().metrics["loss:sum"] > 0
    assert clock.slept[:6] == [1, 2, 4, 8, 16, 30] and set(clock.slept[6:]) == {30} and clock.now_s >= 1200


@pytest.mark.parametrize("back_s", [299.0, 900.0])
def test_a_submit_survives_a_gap_of_five_minutes(
    clients: FaultyClients, away: Listening, monkeypatch: pytest.MonkeyPatch, back_s: float
) -> None:
    training, clock = client_of(away), ScriptedTime(away, back_s)
    clock.install(monkeypatch)
    away.stop()
    promise = training.forward([ROW], "cross_entropy")
    if back_s < 300:
        assert promise.result().metrics["loss:sum"] > 0 and clock.now_s >= 299
        return
    with pytest.raises(tinker.APIConnectionError):
        promise.result()
    assert 300 <= clock.now_s < 400, "five minutes, and the last call's own retries"
    away.start()


def test_a_refused_pass_of_the_service_leaves_the_client_usable(clients: FaultyClients) -> None:
    with pytest.raises(tinker.RequestFailedError, match="advantages"):
        clients.training.forward([ROW], "ppo").result()
    assert clients.forward() is not None


def test_a_client_that_was_silent_for_long_goes_on_with_the_same_bits(serve: Serve, tmp_path: Path) -> None:
    states = []
    for silence in (0.0, 660.0):
        clock = ManualClock()
        service, http = serve(tmp_path / f"{silence}", clock=clock)
        client = WireClient(http)
        model = client.model()
        for text in ("before", "afterwards"):
            client.forward_backward(model, [text_datum(text)])
            client.step(model)
            clock.advance(silence)
            service.sweep()
        states.append(adapter_bytes(service, model))
    assert states[0] == states[1]
