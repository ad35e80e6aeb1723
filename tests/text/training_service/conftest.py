"""Services of a tiny base for tests, each with a folder of its own."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from training_parts import TrainingService, WireClient, open_service


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
