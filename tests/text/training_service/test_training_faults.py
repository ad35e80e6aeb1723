"""What the unmodified SDK makes of every kind of fault, which the service relies on, and a client that was silent."""

import gc
import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from manual_clock import ManualClock
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from training_parts import TestClient, TrainingService, WireClient, adapter_bytes, open_service, text_datum

tinker = pytest.importorskip("tinker", reason="the SDK: pip install 'hone-rl[training-service]'")
from tinker import types  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
IDS = [byte + 3 for byte in b"the cat sat"]
ROW = types.Datum(model_input=types.ModelInput.from_ints(IDS[:-1]), loss_fn_inputs={"target_tokens": IDS[1:]})
PROMPT, FEW = types.ModelInput.from_ints(IDS), types.SamplingParams(max_tokens=1, seed=1, stop=[])
Serve = Callable[..., tuple[TrainingService, TestClient]]


@dataclass
class FaultyApp:
    """The service's app, but the next answers of one path are others."""

    app: ASGIApp
    path: str = ""
    answers: list[tuple[int, object]] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.answers and scope["type"] == "http" and scope["path"].endswith(self.path):
            status, body = self.answers.pop(0)
            await Response(json.dumps(body), status, media_type="application/json")(scope, receive, send)
            return
        await self.app(scope, receive, send)


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
    listener, app = socket.create_server(("127.0.0.1", 0)), FaultyApp(service.routes.app())
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield app, f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join()
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
}


@pytest.mark.parametrize("name", RETRIED)
def test_an_answer_is_asked_for_again_and_nobody_notices(name: str, clients: FaultyClients) -> None:
    path, answers = RETRIED[name]
    clients.app.path = "retrieve_future" if path in ("training", "sampling") else path
    clients.app.answers = list(answers)
    assert CALLS[path](clients) is not None
    assert not clients.app.answers


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
