"""A server of a tiny model with a byte tokenizer and a chat template, in a thread of the test."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import openai
import uvicorn

from hone.models.language.config import ModelConfig
from hone.models.language.init import new_model
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import DEFAULT_CHAT_TEMPLATE, ROLE_TOKENS, byte_tokenizer
from hone.text.serving.completions.app import CompletionRoutes, ServingRules
from hone.text.serving.completions.run_server import (
    OpenedModel,
    ServedSource,
    ServedWeights,
    ServerPlace,
    make_routes,
    open_served,
)
from hone.text.serving.completions.service import EngineService


def save_tiny(folder: Path, *, seed: int = 3, template: str | None = DEFAULT_CHAT_TEMPLATE, width: int = 32) -> Path:
    """A model folder with random weights, one token a byte."""
    tokenizer = byte_tokenizer(chat_template=template, chat_tokens=ROLE_TOKENS)
    config = ModelConfig(
        family="qwen3",
        vocab_size=tokenizer.size,
        hidden_size=width,
        intermediate_size=3 * width // 2,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=16,
        max_positions=512,
    )
    TokenPolicy(new_model(config, seed=seed), tokenizer).save_merged(folder)
    return folder


def opened(
    folder: Path, *, slots: int = 8, name: str = "tiny", run: Path | None = None, weights: ServedWeights = "float32"
) -> OpenedModel:
    source = ServedSource(
        policy=folder, run=run, name=name, device="cpu", slots=slots, context=0, seed=5, weights=weights
    )
    return open_served(source)


@dataclass(frozen=True)
class LiveServer:
    """A server that listens."""

    url: str
    model: OpenedModel
    service: EngineService
    routes: CompletionRoutes
    server: uvicorn.Server

    def client(self, *, key: str = "none", retries: int = 0) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=retries, timeout=300)

    def post(self, path: str, body: object, **headers: str) -> httpx2.Response:
        return httpx2.post(f"{self.url}{path}", json=body, headers=headers, timeout=300)

    def get(self, path: str) -> httpx2.Response:
        return httpx2.get(f"{self.url}{path}", timeout=300)

    def hang_up(self, body: object, *, begun: bool = False, read: int = 0) -> None:
        """Ask for a completion and close the connection: at once, once pages are held, or behind some bytes."""
        host, port = self.url.removeprefix("http://").split(":")
        content = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n".encode()
        with socket.create_connection((host, int(port))) as link:
            link.sendall(head + content)
            while begun and not self.model.engine.held_pages:
                time.sleep(0.001)
            if read:
                link.recv(read)

    def settle(self) -> None:
        """Wait until nothing is in progress."""
        until = time.monotonic() + 300
        while self.routes.desk.samples and time.monotonic() < until:
            time.sleep(0.01)
        while self.model.engine.held_pages and time.monotonic() < until:
            time.sleep(0.01)


@contextlib.contextmanager
def live(model: OpenedModel, *, start: bool = True, **place: object) -> Iterator[LiveServer]:
    """A server in a thread; `place`: fields of ServerPlace. Without `start` nobody runs passes."""
    rules = ServingRules(**place.pop("rules", {}))
    service = EngineService(model.engine)
    routes = make_routes(model, service, ServerPlace(rules=rules, **place))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(routes.app(), log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        if start:
            service.start()
        while not server.started:
            time.sleep(0.005)
        try:
            yield LiveServer(f"http://127.0.0.1:{listener.getsockname()[1]}", model, service, routes, server)
        finally:
            service.close()
            server.should_exit = True
            thread.join()
