"""A tiny base, a service over it, and a plain client of HTTP that speaks the protocol."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

pytest.importorskip("tinker", reason="the protocol's messages are the SDK's: pip install 'hone-rl[training-service]'")

import itertools

import httpx2
from tinker.proto import tinker_public_pb2 as wire

from hone.core.clock import Clock, SystemClock
from hone.models.language.config import ModelConfig
from hone.models.language.init import new_model
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import byte_tokenizer
from hone.text.training_service.messages import PROTOBUF
from hone.text.training_service.run_training_service import TrainingService, open_training_service
from hone.text.training_service.service_config import ServedBaseConfig, TrainingServiceConfig

PATH = "/api/v1"
LESSON = ("the cat sat", "on a mat")
"""Texts of `calls`."""


@cache
def tiny_base() -> Path:
    """A model folder with random weights, one token a byte, the output projection tied to the embedding."""
    folder = Path(mkdtemp()) / "tiny"
    tokenizer = byte_tokenizer()
    config = ModelConfig(
        family="qwen3", vocab_size=tokenizer.size, hidden_size=32, intermediate_size=48, layers=2, heads=4, kv_heads=2,
        head_dim=16, max_positions=128, tie_embeddings=True,
    )  # fmt: skip
    TokenPolicy(new_model(config, seed=3), tokenizer).save_merged(folder)
    return folder


def open_service(
    folder: Path, *, whole: bool = False, claim: int = 0, clock: Clock | None = None, **more: Any
) -> TrainingService:
    model = ServedBaseConfig(path=str(tiny_base()), names=["tiny"], context=96, whole=whole)
    config = TrainingServiceConfig(folder=str(folder / "store"), model=model, **more)
    return open_training_service(config, beside=folder, clock=clock or SystemClock(), claim=claim)


def tensor(values: Sequence[Any] | np.ndarray, dtype: type = np.float32) -> wire.Tensor:
    array = np.asarray(values, dtype)
    kind = wire.DTYPE_FLOAT32 if dtype is np.float32 else wire.DTYPE_INT64
    return wire.Tensor(dense=array.tobytes(), dtype=kind, shape=list(array.shape))


def datum(tokens: Sequence[int], targets: Sequence[Any], **inputs: Sequence[float]) -> wire.Datum:
    chunk = wire.Chunk(encoded_text=wire.EncodedTextChunk(tokens=np.asarray(tokens, np.int32).tobytes()))
    named = {"target_tokens": tensor(targets, np.int64)} | {name: tensor(one) for name, one in inputs.items()}
    return wire.Datum(model_input=[chunk], loss_fn_inputs=named)


def text_datum(text: str, **inputs: Sequence[float]) -> wire.Datum:
    """Every character predicts the next."""
    ids = [byte + 3 for byte in text.encode()]
    return datum(ids[:-1], ids[1:], **inputs)


@dataclass
class WireClient:
    """One tenant's client: plain HTTP, and numbers that count on as the SDK's do."""

    http: TestClient
    key: str = "anybody"
    session: str = ""
    numbers: dict[str, int] = field(default_factory=dict)

    def post(self, path: str, body: Any, *, status: int = 200, **options: Any) -> Any:
        headers = {"x-api-key": self.key, **options.pop("headers", {})}
        sent = {"content": body} if isinstance(body, bytes) else {"json": body}
        answer = self.http.request(options.pop("method", "POST"), f"{PATH}/{path}", headers=headers, **sent)
        assert answer.status_code == status, (path, answer.status_code, answer.text)
        return answer.json() if "json" in answer.headers.get("content-type", "") else answer.content

    def get(self, path: str, *, status: int = 200) -> Any:
        answer = self.http.get(f"{PATH}/{path}", headers={"x-api-key": self.key})
        assert answer.status_code == status, (path, answer.status_code, answer.text)
        return answer.json()

    def open(self) -> str:
        self.session = self.post("create_session", {"tags": []})["session_id"]
        return self.session

    def result(self, promise: Mapping[str, Any]) -> Any:
        """A result, or the error's text."""
        return self.post("retrieve_future", {"request_id": promise["request_id"]})

    def model(self, *, rank: int = 4, seed: int = 1, number: int = 0, **more: Any) -> str:
        if not self.session:
            self.open()
        lora = {"rank": rank, "seed": seed, "train_unembed": True, "train_mlp": True, "train_attn": True, **more}
        body = {"session_id": self.session, "model_seq_id": number, "base_model": "tiny", "lora_config": lora}
        return self.result(self.post("create_model", body))["model_id"]

    def whole_model(self, number: int = 0, **more: Any) -> str:
        """A model of which all weights are trained."""
        if not self.session:
            self.open()
        body = {"session_id": self.session, "model_seq_id": number, "base_model": "tiny", **more}
        return self.result(self.post("create_model", body))["model_id"]

    def number(self, owner: str) -> int:
        self.numbers[owner] = self.numbers.get(owner, 0) + 1
        return self.numbers[owner]

    def send_pass(
        self, model: str, data: Sequence[wire.Datum], loss: str = "cross_entropy", *, forward_only: bool = False,
        number: int | None = None, **options: float,
    ) -> Any:  # fmt: skip
        message = wire.ForwardBackwardRequest(
            model_id=model, seq_id=self.number(model) if number is None else number, data=data, loss_fn=loss,
            loss_fn_config=options, forward_only=forward_only,
        )  # fmt: skip
        return self.post("forward_backward", message.SerializeToString(), headers={"content-type": PROTOBUF})

    def forward_backward(
        self, model: str, data: Sequence[wire.Datum], loss: str = "cross_entropy", **more: Any
    ) -> tuple[list[np.ndarray], dict[str, float]]:
        """Log-probabilities of each row, and metrics."""
        raw = self.result(self.send_pass(model, data, loss, **more))
        assert isinstance(raw, bytes), raw
        return read_output(raw)

    def step(self, model: str, **adam: float) -> dict[str, Any]:
        params = {"learning_rate": 1e-2, **adam}
        body = {"model_id": model, "seq_id": self.number(model), "adam_params": params}
        return self.result(self.post("optim_step", body))

    def call(self, verb: str, model: str, **body: Any) -> Any:
        """A numbered call of a model, and its result."""
        return self.result(self.post(verb, {"model_id": model, "seq_id": self.number(model), **body}))

    def sampler(self, number: int = 0, **source: str) -> str:
        body = {"session_id": self.session, "sampling_session_seq_id": number, **(source or {"base_model": "tiny"})}
        return self.post("create_sampling_session", body)["sampling_session_id"]

    def sample(self, sampler: str, prompt: Sequence[int], *, samples: int = 1, **more: Any) -> wire.SampleResponse:
        params = more.pop("params", {"max_tokens": 6, "seed": 7})
        body = {
            "sampling_session_id": sampler, "seq_id": self.number(sampler), "num_samples": samples,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": list(prompt)}]}, "sampling_params": params, **more,
        }  # fmt: skip
        raw = self.result(self.post("asample", body))
        assert isinstance(raw, bytes), raw
        response = wire.SampleResponse()
        response.ParseFromString(raw)
        return response


def read_output(raw: bytes) -> tuple[list[np.ndarray], dict[str, float]]:
    message = wire.ForwardBackwardOutput()
    message.ParseFromString(raw)
    rows: list[np.ndarray] = []
    for record in message.loss_fn_outputs:
        one = record.fields["logprobs"]
        ends = np.frombuffer(one.offsets, np.int64) // 4
        flat = np.frombuffer(one.data, np.float32)
        rows += [flat[a:b].reshape(-1, *one.trailing_shape) for a, b in itertools.pairwise(ends)]
    return rows, dict(message.metrics)


def floats(raw: bytes) -> list[float]:
    return np.frombuffer(raw, np.float32).tolist()


def ints(raw: bytes) -> list[int]:
    return np.frombuffer(raw, np.int32).tolist()


def adapter_bytes(service: TrainingService, model: str) -> bytes:
    """All factors and moments of a model, to the bit."""
    with service.trainer.computing:
        trained = service.trainer._model(model)
        arrays = [trained.parameters.data.detach(), *trained.optimizer.means, *trained.optimizer.squares]
        return b"".join(one.numpy().tobytes() for one in arrays)


def answer_json(raw: Any) -> dict[str, Any]:
    return raw if isinstance(raw, dict) else json.loads(raw)


def calls(session: str) -> list[tuple[str, object]]:
    """A short training: two steps, a checkpoint, and one more pass."""
    model = f"{session}:train:0"
    lora = {"rank": 4, "seed": 1}
    create = {"session_id": session, "model_seq_id": 0, "base_model": "tiny", "lora_config": lora}
    plan: list[tuple[str, object]] = [("create_model", create)]
    number = 0
    for _ in range(2):
        for text in LESSON:
            number += 1
            message = wire.ForwardBackwardRequest(
                model_id=model, seq_id=number, data=[text_datum(text)], loss_fn="cross_entropy"
            )
            plan.append(("forward_backward", message.SerializeToString()))
        number += 1
        plan.append(("optim_step", {"model_id": model, "seq_id": number, "adam_params": {"learning_rate": 1e-2}}))
    plan.append(("save_weights", {"model_id": model, "seq_id": number + 1, "path": "c1"}))
    message = wire.ForwardBackwardRequest(
        model_id=model, seq_id=number + 2, data=[text_datum("end")], loss_fn="cross_entropy", forward_only=True
    )
    plan.append(("forward_backward", message.SerializeToString()))
    return plan


_HTTP = httpx2.Client(timeout=300)


def patient(url: str, path: str, body: object, revive: Callable[[], None]) -> httpx2.Response:
    """Post as the SDK does: again, where the server is away."""
    for _ in range(6000):
        try:
            headers = {"x-api-key": "k", "content-type": PROTOBUF if isinstance(body, bytes) else "application/json"}
            sent = {"content": body} if isinstance(body, bytes) else {"json": body}
            answer = _HTTP.post(f"{url}/{path}", headers=headers, **sent)
            if answer.status_code < 500 and answer.status_code != 408:
                return answer
        except httpx2.TransportError:
            revive()
        time.sleep(0.1)
    raise AssertionError(f"no answer to {path}")
