"""The contract, held by the embedded runners and by the clients over servers that speak the real protocols."""

from pathlib import Path

import pytest
from contract import CHECKS, EXEMPT, Subject, promised
from engine_servers import FakeServer
from engines import CONFIG, VOCAB, engine

from hone.core.errors import ConfigError
from hone.engine.canary import WeightCanary
from hone.engine.clients.http import ServerEngine
from hone.engine.clients.remote import connect_engine
from hone.engine.native.library import unavailable_reason
from hone.engine.session import TokenizerRules
from hone.models.language.hf_checkpoint import save_model
from hone.models.language.init import new_model

ALPHABET = "_abcdefghijklmnopqrstuvw"


def letters(ids) -> str:
    return "".join(ALPHABET[i] for i in ids)


def embedded(kind: str) -> Subject:
    model = new_model(CONFIG, seed=1)

    def make(*, seed=0, slots=4, on_publish="recompute"):
        return engine(model, seed=seed, slots=slots, on_publish=on_publish, decode=letters, kind=kind)

    return Subject(name=kind, model=model, vocab=VOCAB, eos=(0,), decode=letters, make=make)


BESIDE_THE_TRAINER = {
    "recorded_log_probabilities_are_the_trainers",
    "greedy_takes_the_likeliest_token",
    "published_weights_draw_from_then_on",
    "answers_that_run_at_a_publication_go_on_under_the_new_weights",
    "truncated_draws_record_both_distributions",
    "greedy_answers_have_log_probabilities_at_any_temperature",
}
"""Checks that compare with the trainer's own log-probabilities."""


@pytest.fixture(params=["torch", "native", "native_int8"])
def runner(request) -> Subject:
    if request.param.startswith("native") and unavailable_reason() is not None:
        pytest.skip(f"no compiled runner here: {unavailable_reason()}")
    return embedded(request.param)


@pytest.mark.parametrize("check", promised("embedded"))
def test_the_embedded_engine_keeps_the_contract(check, runner):
    if runner.name == "native_int8" and check in BESIDE_THE_TRAINER:
        pytest.skip("codes of 8 bits are another policy than the trainer's, and their distance is tested by itself")
    CHECKS[check](runner)


@pytest.fixture(params=["vllm", "sglang"])
def server(request, tmp_path):
    model = new_model(CONFIG, seed=1)
    save_model(model, tmp_path / "first", tokenizer_from=None)
    server = FakeServer(tmp_path / "first", request.param, decode=letters)
    made = []

    def make(*, seed=0, slots=4, on_publish="finish"):
        client = client_of(server, model, tmp_path, seed=seed, slots=slots, on_publish=on_publish)
        made.append(client)
        client.publish(0)
        return client

    server.subject = Subject(
        name=request.param, model=model, vocab=VOCAB, eos=(0,), decode=letters, make=make, draws=200
    )
    yield server
    for client in made:
        client.close()
    server.end()


def client_of(server: FakeServer, model, folder: Path, *, seed=0, slots=4, **changes):
    config = ServerEngine(
        kind=server.dialect,
        url=server.url,
        weights_folder=str(folder / "handed"),
        **{"reconnect_timeout_s": 10.0} | changes,
    )
    return connect_engine(
        config,
        model=model,
        save=lambda place: save_model(model, place, tokenizer_from=None),
        text=TokenizerRules(eos=(0,), vocab=VOCAB, decode=letters),
        slots=slots,
        seed=seed,
    )


@pytest.mark.parametrize("check", promised("vllm"))
def test_a_server_keeps_the_contract(check, server):
    CHECKS[check](server.subject)


def test_every_exemption_is_of_a_check_that_there_is():
    assert all(name in CHECKS for exempt in EXEMPT.values() for name in exempt)
    assert all(len(reason) > 20 for exempt in EXEMPT.values() for reason in exempt.values())


def test_what_a_server_cannot_promise_is_refused_in_words(server):
    client = server.subject.make()
    with pytest.raises(ConfigError) as error:
        client.submit(
            [
                server.subject.request(1, top_k=3),
                server.subject.request(2, top_p=0.5),
                server.subject.request(3, greedy=True, temperature=0.5),
            ]
        )
    assert len(error.value.messages) == 3
    assert "top_k = 3" in str(error.value)
    assert "use the embedded engine" in str(error.value)
    assert "greedy answers at temperature 1, not 0.5" in str(error.value)


def test_canary_tolerance_is_the_configs(server, tmp_path):
    client = client_of(server, server.subject.model, tmp_path, canary_nats=0.1)
    client.publish(0)
    assert client.fingerprints[0].mean_gap_nats < 1e-4
    assert isinstance(client.weight_transfer.canary, WeightCanary)
    client.close()
