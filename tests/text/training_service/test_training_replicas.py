"""Samples from replicas: the bits of the service's own engine, whatever happens to replicas, and on Ray."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from inline_fleet import FaultRates, InlineTransport, inline_engine
from training_parts import TestClient, TrainingService, WireClient, text_datum

from hone.core.errors import DivergedError, ResourceError
from hone.core.fleet import GenerationAsk
from hone.engine.fleet.fleet_engine import FleetEngine
from hone.engine.fleet.replica import FleetEvent, ReplicaFailed, ReplicaSettings
from hone.models.language.decoder import Decoder
from hone.parallel.config import ClusterConfig
from hone.text.training_service import sampling_engine

Serve = Callable[..., tuple[TrainingService, TestClient]]
TEXTS = ("the cat sat", "on a mat in the sun", "two and two")
ON_RAY = {"rollout": {"replicas": 2, "cpus": 0.5}}
CHAOS = FaultRates(lost=0.2, twice=0.3, flutter=0.1)


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[FleetEngine, InlineTransport]]]:
    """Replicas of services stand in this process, with faults; gives them as they are made."""
    made: list[tuple[FleetEngine, InlineTransport]] = []

    def open_inline(config: ClusterConfig, decoder: Decoder, settings: ReplicaSettings) -> FleetEngine:
        made.append(inline_engine(deepcopy(decoder), settings, replicas=config.rollout.replicas, faults=CHAOS, seed=1))
        made[-1][0]._tensors = decoder.stored_tensors  # replicas have the arithmetic of the decoder as it is now
        return made[-1][0]

    monkeypatch.setattr(sampling_engine, "open_fleet", open_inline)
    yield made


def lesson(client: WireClient) -> list[bytes]:
    """Samples of the base, of two trained adapters, of one as it changes, and of a checkpoint."""
    models, results = [client.model(rank=3), client.model(rank=4, number=1, train_unembed=False)], list[bytes]()
    follow = client.call("save_weights_for_sampler", models[0], sampling_session_seq_id=9, kind="inflight")
    samplers = [client.sampler(), follow["sampling_session_id"]]
    for number, model in enumerate(models):
        client.forward_backward(model, [text_datum(text) for text in TEXTS])
        client.step(model, learning_rate=0.1)
        path = client.call("save_weights_for_sampler", model, path="c1")["path"]
        samplers.append(client.sampler(20 + number, model_path=path))
    asked: tuple[dict[str, Any], ...] = (
        {"samples": 3, "params": {"max_tokens": 6, "seed": 7}},
        {"samples": 2, "params": {"max_tokens": 5, "seed": 8, "temperature": 0.7, "top_k": 9, "stop": ["e"]}},
        {"params": {"max_tokens": 3, "temperature": 0.0}, "prompt_logprobs": True, "topk_sample_logprobs": 2},
    )
    for sampler in samplers:
        results += [client.sample(sampler, [40, 41, 42, 43], **one).SerializeToString() for one in asked]
    return results


@pytest.mark.parametrize("runner", ["native", pytest.param("torch", marks=pytest.mark.slow)])
def test_samples_of_replicas_have_the_bits_of_one_process(
    serve: Serve, tmp_path: Path, inline: list[tuple[FleetEngine, InlineTransport]], runner: str
) -> None:
    alone = lesson(WireClient(serve(tmp_path / "alone", runner=runner)[1]))
    assert len(set(alone)) == len(alone) - 3, "every sampler's weights but those that both paths name"
    service, http = serve(tmp_path / "fleet", runner=runner, cluster={"rollout": {"replicas": 3}})
    assert lesson(WireClient(http)) == alone
    ((fleet, transport),) = inline
    assert fleet.report.losses and transport.happened["twice"] and service.sampler.slots == 48
    bills = [one for one in service.desk.ledger.hourly_usage(0.0, 1e12) if ":sample:" in one.owner]
    work = {one.owner: one.amount for one in bills if one.what == "core_s"}
    assert len(work) == len(alone) // 3 and min(work.values()) > 0, "the work of replicas is on the bills"
    assert sum(work.values()) < service.desk.turns.spent_s["local"]


def test_whole_models_are_published_to_replicas(
    serve: Serve, tmp_path: Path, inline: list[tuple[FleetEngine, InlineTransport]]
) -> None:
    def answers(http: TestClient) -> list[bytes]:
        client = WireClient(http)
        model = client.whole_model()
        follow = client.call("save_weights_for_sampler", model, sampling_session_seq_id=2, kind="inflight")
        samplers, results = [client.sampler(), follow["sampling_session_id"]], list[bytes]()
        for _ in range(2):
            results += [client.sample(one, [7, 8, 9], samples=2).SerializeToString() for one in samplers]
            client.forward_backward(model, [text_datum(TEXTS[0])])
            client.step(model, learning_rate=1e-2)
        return results

    alone = answers(serve(tmp_path / "alone", whole=True)[1])
    assert answers(serve(tmp_path / "fleet", whole=True, cluster={"rollout": {"replicas": 2}})[1]) == alone
    assert alone[0] == alone[1] == alone[2] != alone[3]
    assert inline[0][0].version == 3, "base, the model at the same numbers, base, the model after a step"


def test_a_fleet_without_room_is_told_before_the_service_listens(
    serve: Serve, inline: list[tuple[FleetEngine, InlineTransport]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(self: InlineTransport) -> None:
        raise ResourceError("2 replicas have no room")

    monkeypatch.setattr(InlineTransport, "open", no_room)
    with pytest.raises(ResourceError, match="2 replicas have no room"):
        serve(cluster=ON_RAY)


def test_an_error_in_one_request_of_a_replica_ends_that_one(
    serve: Serve, inline: list[tuple[FleetEngine, InlineTransport]]
) -> None:
    client = WireClient(serve(cluster={"rollout": {"replicas": 2}})[1])
    client.open()
    ((_, transport),) = inline
    transport.faults, original = FaultRates(), transport.answer

    def answer(replica: str, ask: GenerationAsk) -> FleetEvent:
        if any(len(one.prompt) == 3 for one in ask.requests):
            return ReplicaFailed(replica=replica, number=ask.number, error=DivergedError("logits are not finite"))
        return original(replica, ask)

    transport.answer = answer
    samplers = [client.sampler(number) for number in range(2)]
    bodies = [
        {"sampling_session_id": one, "seq_id": 1, "num_samples": 1, "sampling_params": {"max_tokens": 4, "seed": 7},
         "prompt": {"chunks": [{"type": "encoded_text", "tokens": [40 + place] * (3 + place)}]}}
        for place, one in enumerate(samplers)
    ]  # fmt: skip
    bad, good = [client.result(client.post("asample", body)) for body in bodies]
    assert "logits are not finite" in bad["error"] and isinstance(good, bytes)


@pytest.mark.slow
def test_replicas_on_ray_have_the_bits_of_one_process_also_when_one_is_killed(serve: Serve, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    from hone.parallel.ray_transport import RayTransport, start_ticks

    alone = lesson(WireClient(serve(tmp_path / "alone")[1]))
    service, http = serve(tmp_path / "ray", cluster={"address": "local", **ON_RAY})
    client = WireClient(http)
    assert lesson(client) == alone
    fleet = service.sampler.engine
    assert isinstance(fleet, FleetEngine) and isinstance(fleet.transport, RayTransport)
    first = next(iter(fleet.book.replicas))
    asked, end = {"samples": 3, "params": {"max_tokens": 6, "seed": 7}}, time.monotonic() + 300
    while first not in fleet.transport._hellos:  # on a busy machine the other one answers all before it has joined
        assert time.monotonic() < end
        client.sample(f"{client.session}:sample:0", [40, 41, 42, 43], **asked)
    hello = fleet.transport._hellos[first]
    assert start_ticks(hello.pid) == hello.start_ticks is not None
    os.kill(hello.pid, signal.SIGKILL)
    for _ in range(2):  # the first time that replica is asked: of two without work it is the first
        assert client.sample(f"{client.session}:sample:0", [40, 41, 42, 43], **asked).SerializeToString() == alone[0]
    assert len(fleet.report.losses) == 1 and f"process {hello.pid}" in fleet.report.losses[0]
    assert len(fleet.book.replicas) == 2, "another one is started in its place"
