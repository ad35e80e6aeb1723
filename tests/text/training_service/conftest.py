"""Services of a tiny base for tests, each with a folder of its own."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from training_parts import TrainingService, WireClient, adapter_bytes, calls, open_service


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., tuple[TrainingService, TestClient]]]:
    """Opens services; all are closed at the end."""
    opened: list[tuple[TrainingService, TestClient]] = []

    def start(folder: Path = tmp_path, **more: Any) -> tuple[TrainingService, TestClient]:
        service = open_service(folder, **more)
        service.start()
        http = TestClient(service.routes.app(), raise_server_exceptions=False)
        opened.append((service, http))
        return service, http

    yield start
    for service, _ in opened:
        if not service.desk.closing:
            service.close()


@pytest.fixture
def client(serve: Callable[..., tuple[TrainingService, TestClient]]) -> WireClient:
    return WireClient(serve()[1])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[object], bytes]:
    """Results of the training, and the adapter's bytes at its end."""
    service = open_service(tmp_path_factory.mktemp("undisturbed"))
    service.start()
    client = WireClient(TestClient(service.routes.app()))
    session = client.open()
    results = [client.result(client.post(path, body)) for path, body in calls(session)]
    state = adapter_bytes(service, f"{session}:train:0")
    service.close()
    return results, state
