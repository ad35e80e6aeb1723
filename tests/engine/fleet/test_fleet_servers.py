"""Several servers as one engine: shares of the answers, weights for all, a server that dies and comes back."""

import sys
import threading
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1]))
from engine_servers import FakeServer
from engines import CONFIG, VOCAB, by_name, request

from hone.core.errors import DivergedError
from hone.core.generation import ScoreRequest, generate
from hone.engine.clients.http import ServerEngine, ServerError
from hone.engine.fleet.fleet_book import ReplicaPhase
from hone.engine.fleet.server_transport import open_server_fleet
from hone.engine.session import TokenizerRules
from hone.models.language.hf_checkpoint import save_model
from hone.models.language.init import new_model

REQUESTS = [request(number, samples=2, max_tokens=6) for number in range(8)]


@pytest.fixture
def model():
    return new_model(CONFIG, seed=1)


@pytest.fixture
def servers(tmp_path, model):
    save_model(model, tmp_path / "start", tokenizer_from=None)
    made = [FakeServer(tmp_path / "start", "vllm") for _ in range(2)]
    yield made
    for one in made:
        one.end()


def fleet_of(servers, model, folder: Path, *, wait_s: float = 10.0):
    urls = [one if isinstance(one, str) else one.url for one in servers]
    config = ServerEngine(kind="vllm", url=urls, weights_folder=str(folder / "weights"), reconnect_timeout_s=wait_s)
    return open_server_fleet(
        config,
        model=model,
        save=lambda place: save_model(model, place, tokenizer_from=None),
        text=TokenizerRules(eos=(0,), vocab=VOCAB),
        slots=3,
        seed=0,
    )


def await_ready(fleet, count: int) -> None:
    """Let the fleet work until so many servers have the newest weights."""
    while sum(one.phase is ReplicaPhase.READY for one in fleet.book.replicas.values()) < count:
        fleet._pump()


def tokens_of(found) -> dict:
    return {name: one.tokens.tolist() for name, one in found.items()}


def test_two_servers_give_the_answers_of_one_by_the_newest_weights(servers, model, tmp_path) -> None:
    alone = fleet_of(servers[:1], model, tmp_path / "alone")
    alone.publish(0)
    expected = tokens_of(by_name(generate(alone, REQUESTS, round=3)))
    alone.close()
    fleet = fleet_of(servers, model, tmp_path)
    for version in (0, 1):
        fleet.publish(version)
        await_ready(fleet, 2)
        found = by_name(generate(fleet, REQUESTS, round=3))
        assert tokens_of(found) == expected
        assert all((one.version == version).all() for one in found.values())
        assert fleet.fingerprints[version].mean_gap_nats < 1e-4
    text = ScoreRequest(
        prompt=np.array([3], np.int32), tokens=np.array([5, 6], np.int32), sampling=REQUESTS[0].sampling
    )
    assert fleet.score([text])[0].logp.shape == (2,)
    assert [one.loads for one in servers] == [3, 2]
    assert all(one.label.endswith(".1") for one in servers)
    assert len(fleet.report.by_replica) == 2
    assert sorted(path.name for path in (tmp_path / "weights").iterdir()) == ["weights_1"]
    fleet.close()
    assert not list((tmp_path / "weights").iterdir())


def test_a_server_that_dies_costs_its_work_and_is_used_again(servers, model, tmp_path) -> None:
    fleet = fleet_of(servers, model, tmp_path)
    fleet.publish(0)
    await_ready(fleet, 2)
    expected = tokens_of(by_name(generate(fleet, REQUESTS, round=3)))
    servers[1].slow_s = 0.05
    fleet.submit(REQUESTS, round=3)
    while not fleet.book.asks:
        fleet._step()
    threading.Timer(0.1, servers[1].end).start()
    assert tokens_of(by_name(iter(fleet.next_completion, None))) == expected
    (line,) = fleet.report.losses
    assert servers[1].url in line
    servers[1].slow_s = 0.0
    servers[1].begin()  # with its first weights: the newest are sent to it
    fleet.publish(1)
    assert tokens_of(by_name(generate(fleet, REQUESTS, round=3))) == expected
    await_ready(fleet, 2)
    assert servers[1].label == servers[0].label
    fleet.close()


def test_a_server_that_keeps_its_old_weights_is_tried_twice(servers, model, tmp_path) -> None:
    fleet = fleet_of(servers, model, tmp_path)
    fleet.publish(0)
    await_ready(fleet, 2)
    servers[1].takes_weights = False
    for parameter in model.parameters():
        parameter.data.add_(0.3)
    with pytest.raises(DivergedError, match=r"server \d on http.*does not sample from the weights of version 1"):
        fleet.publish(1)
        while True:
            fleet._pump()
    fleet.close()


def test_servers_that_are_not_there_are_named(model, tmp_path) -> None:
    fleet = fleet_of(["http://127.0.0.1:9", "http://127.0.0.1:19"], model, tmp_path, wait_s=0.1)
    fleet.publish(0)
    with pytest.raises(ServerError, match=r"no server answers: http://127.0.0.1:9, http://127.0.0.1:19; waited"):
        list(generate(fleet, REQUESTS))
    fleet.close()


def test_one_address_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="http://a:1 more than once"):
        ServerEngine(kind="vllm", url=["http://a:1", "http://a:1/"])
