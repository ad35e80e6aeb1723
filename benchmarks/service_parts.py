"""A training service in the process of a benchmark: its base, its store, its address, and messages to it."""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx2
import numpy as np
import uvicorn
from tinker.proto import tinker_public_pb2 as wire

from hone.core.clock import SystemClock
from hone.models.language.config import ModelConfig
from hone.models.language.init import new_model
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import DEFAULT_CHAT_TEMPLATE, ROLE_TOKENS, byte_tokenizer
from hone.run.http.server import TimedConnection
from hone.text.training_service.run_training_service import TrainingService, open_training_service
from hone.text.training_service.service_config import ServedBaseConfig, TenantConfig, TrainingServiceConfig, key_digest

PREFIX = "/api/v1"


def tiny_base(folder: Path, width: int = 64, layers: int = 2) -> Path:
    """A model folder with random weights, one token a byte."""
    tokenizer = byte_tokenizer(chat_template=DEFAULT_CHAT_TEMPLATE, chat_tokens=ROLE_TOKENS)
    config = ModelConfig(
        family="qwen3", vocab_size=tokenizer.size, hidden_size=width, intermediate_size=2 * width, layers=layers,
        heads=4, kv_heads=2, head_dim=16, max_positions=512, tie_embeddings=True,
    )  # fmt: skip
    TokenPolicy(new_model(config, seed=3), tokenizer).save_merged(folder)
    return folder


def tenants_of(weights: Sequence[float]) -> list[TenantConfig]:
    return [
        TenantConfig(name=f"t{place}", token_sha256=key_digest(f"t{place}"), weight=weight)
        for place, weight in enumerate(weights)
    ]


def open_store(folder: Path, base: Path, tenants: Sequence[TenantConfig] = ()) -> TrainingService:
    served = ServedBaseConfig(path=str(base), names=["base"], context=256)
    config = TrainingServiceConfig(folder="store", model=served, tenants=list(tenants))
    return open_training_service(config, beside=folder, clock=SystemClock())


@contextmanager
def served(service: TrainingService) -> Iterator[str]:
    """The service behind a port of this process; gives its address."""
    service.start()
    listener = socket.create_server(("127.0.0.1", 0))
    options = uvicorn.Config(service.routes.app(), log_level="critical", lifespan="off", http=TimedConnection)
    server = uvicorn.Server(options)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}{PREFIX}"
    finally:
        server.should_exit = True
        thread.join()
        service.close()


def new_session(http: httpx2.Client) -> str:
    """A session with a model of rank 4; gives the model."""
    session = http.post("/create_session", json={}).json()["session_id"]
    body = {"session_id": session, "model_seq_id": 0, "base_model": "base", "lora_config": {"rank": 4, "seed": 1}}
    return http.post("/create_model", json=body).json()["model_id"]


def row_message(model: str, seq: int, tokens: int, rows: int = 1) -> bytes:
    data = []
    for number in range(rows):
        ids = np.random.default_rng([seq, number]).integers(5, 100, tokens + 1)
        chunk = wire.Chunk(encoded_text=wire.EncodedTextChunk(tokens=ids[:-1].astype(np.int32).tobytes()))
        targets = wire.Tensor(dense=ids[1:].tobytes(), dtype=wire.DTYPE_INT64, shape=[tokens])
        data.append(wire.Datum(model_input=[chunk], loss_fn_inputs={"target_tokens": targets}))
    message = wire.ForwardBackwardRequest(model_id=model, seq_id=seq, data=data, loss_fn="cross_entropy")
    return message.SerializeToString()
