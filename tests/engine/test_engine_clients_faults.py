"""Servers that answer wrongly, late or not at all: every fault is named, and nothing that was drawn is lost."""

import re
import threading
import time

import numpy as np
import pytest
from engine_servers import FakeServer
from engines import CONFIG, VOCAB
from test_engine_contract import client_of, letters

from hone.core.errors import ConfigError, DivergedError, ResourceError
from hone.core.generation import Request, SamplingParams, ScoreRequest, generate
from hone.engine.clients.http import ServerError, UnreachableError
from hone.models.language.hf_checkpoint import save_model
from hone.models.language.init import new_model


def asked(number: int, *, samples: int = 1, **sampling) -> Request:
    prompt = np.arange(1, 4 + number, dtype=np.int32)
    return Request(
        id=f"q{number}", prompt=prompt, samples=samples, sampling=SamplingParams(**{"max_tokens": 12} | sampling)
    )


@pytest.fixture
def model():
    return new_model(CONFIG, seed=1)


@pytest.fixture
def serve(model, tmp_path):
    save_model(model, tmp_path / "first", tokenizer_from=None)
    servers: list[FakeServer] = []
    clients = []

    def start(dialect: str = "vllm", *, missing=(), takes_weights=True, published=True, **config):
        server = FakeServer(tmp_path / "first", dialect, decode=letters, missing=missing, takes_weights=takes_weights)
        client = client_of(server, model, tmp_path, slots=8, **config)
        servers.append(server)
        clients.append(client)
        if published:
            client.publish(0)
        return server, client

    yield start
    for client in clients:
        client.close()
    for server in servers:
        server.end()


WRONG = {
    "no log-probabilities": "logprobs is None",
    "a log-probability too few": "tokens came with",
    "a positive log-probability": "a log-probability is at most 0",
    "another token's log-probability": "belong to other tokens",
    "an id out of the vocabulary": "it sampled token 23000, and the tokenizer has 0 to 23",
    "too many tokens": "at most 12 were requested",
    "no token": "no token came",
    "two answers": "2 answers came, expected one",
    "an unknown end": "it ended by 'repetition' after 1 of 12 tokens",
    "no JSON": "the reply is not JSON",
}


@pytest.mark.parametrize("fault", WRONG)
def test_an_answer_that_cannot_be_right_stops_the_run_and_is_named(serve, fault):
    server, client = serve()
    server.faults.append(fault)
    with pytest.raises(ServerError) as error:
        list(generate(client, [asked(1)]))
    assert WRONG[fault] in str(error.value)
    assert server.url in str(error.value)
    assert isinstance(error.value, ResourceError)  # exit code 5
    assert len(list(generate(client, [asked(1, samples=3)]))) == 3, "the engine is free again"


@pytest.mark.parametrize("fault", ["status 500", "status 503", "status 429", "hang up", "cut off", "silence"])
def test_what_passes_is_asked_again_and_changes_no_token(serve, fault):
    server, client = serve(timeout_s=0.5 if fault == "silence" else 60.0)
    undisturbed = {
        (one.request_id, one.sample_index): one for one in generate(client, [asked(n, samples=3) for n in (1, 2)])
    }
    server.faults += ["", fault, "", fault]
    done = list(generate(client, [asked(n, samples=3) for n in (1, 2)]))
    assert len(done) == 6
    assert all(np.array_equal(one.tokens, undisturbed[one.request_id, one.sample_index].tokens) for one in done)
    assert (client.disconnects > 0) == (not fault.startswith("status"))


PERSISTS = {"status 500": 'status 500: {"error": "overloaded,', "hang up": "it was unreachable 5 times"}


@pytest.mark.parametrize("fault", PERSISTS)
def test_what_does_not_pass_is_named(serve, fault):
    server, client = serve()
    server.faults += [fault] * 100
    with pytest.raises(ServerError) as error:
        list(generate(client, [asked(1)]))
    assert PERSISTS[fault] in str(error.value)
    assert f"POST {server.url}/inference/v1/generate" in str(error.value)


def test_a_refusal_is_not_repeated(serve):
    server, client = serve()
    server.faults += ["status 400"] * 2
    with pytest.raises(ServerError, match="status 400"):
        list(generate(client, [asked(1)]))
    assert list(server.faults) == ["status 400"]


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_a_server_that_restarts_in_the_middle_loses_nothing(serve, model, dialect):
    """The new process has its first weights; it is given the current ones before anything is asked again."""
    server, client = serve(dialect)
    for parameter in model.parameters():
        parameter.data.mul_(1.2)
    client.publish(1)
    requests = [asked(n, samples=4, max_tokens=20) for n in range(4)]
    undisturbed = {(one.request_id, one.sample_index): one for one in generate(client, requests)}
    server.slow_s = 0.01
    stream = generate(client, requests)
    done = [next(stream)]
    server.end()
    threading.Timer(0.3, server.begin).start()
    done += list(stream)
    assert len(done) == 16
    assert client.disconnects >= 1
    for one in done:
        same = undisturbed[one.request_id, one.sample_index]
        assert np.array_equal(one.tokens, same.tokens)
        np.testing.assert_allclose(one.logp, same.logp, atol=1e-5)
        assert (one.version == 1).all()
    assert server.label.endswith(".1")
    assert f"it was unreachable {client.disconnects} times, the last time: POST {server.url}" in client.note


def test_a_server_that_restarts_between_two_steps_is_found_out(serve, model):
    server, client = serve()
    for parameter in model.parameters():
        parameter.data.mul_(1.2)
    client.publish(1)
    before = [one.logp for one in generate(client, [asked(1)])]
    server.end()
    server.begin()
    loads = server.loads
    after = [one.logp for one in generate(client, [asked(1)])]
    np.testing.assert_allclose(after[0], before[0], atol=1e-5)
    assert client.disconnects == 1
    assert server.loads == loads + 1


def test_a_server_that_stays_away_is_waited_for_and_named(serve):
    server, client = serve(reconnect_timeout_s=0.3)
    server.end()
    with pytest.raises(UnreachableError) as error:
        list(generate(client, [asked(1, samples=3)]))
    assert "Connection refused" in str(error.value)
    assert re.search(rf"{server.url} did not answer for \d+ s \(reconnect_timeout_s\)", str(error.value))
    assert "0 answers were finished but not returned" in str(error.value)
    server.begin()


def test_weights_that_are_not_taken_up_are_found_by_the_canary(serve, model):
    server, client = serve()
    server.takes_weights = False
    for parameter in model.parameters():
        parameter.data.mul_(1.2)
    with pytest.raises(DivergedError) as error:
        client.publish(1)
    assert "does not sample from the weights of version 1" in str(error.value)
    assert "start it from an untied folder" in str(error.value)


def test_weights_that_are_not_taken_up_are_found_by_their_label(serve):
    server, client = serve("sglang")
    client.weight_transfer.canary = None
    server.takes_weights = False
    client.publish(1)
    with pytest.raises(DivergedError, match="asked for under version 1 was sampled by 0"):
        list(generate(client, [asked(1)]))


def test_weights_that_nobody_handed_over_are_not_learned_from(serve):
    _, client = serve(takes_weights=False)
    with pytest.raises(ServerError, match="it samples from weights 'default', not from 'hone-"):
        list(generate(client, [asked(1)]))
    assert client.disconnects > 1


def test_a_folder_that_the_server_does_not_see_is_named(serve, tmp_path):
    _, client = serve("sglang")
    client.weight_transfer.folder = tmp_path / "elsewhere"
    with pytest.raises(ServerError, match=r"update_weights_from_disk: status 400: .*no such folder"):
        client.weight_transfer.send(client.protocol, client.features())


# ------------------------------------------------------------------------------------- what a server can do


def test_what_a_server_lacks_is_named_with_what_follows(serve):
    _, client = serve(missing=["enable-scale-out"], published=False)
    with pytest.raises(ConfigError) as error:
        client.publish(0)
    assert "lacks 'tokens'" in str(error.value)
    assert "no policy can be trained on its answers" in str(error.value)
    assert "--enable-scale-out" in str(error.value), "the server's own words"


def test_a_server_that_takes_no_weights_is_refused(serve):
    _, client = serve(missing=["/collective_rpc"], published=False)
    with pytest.raises(ConfigError, match="lacks 'load'"):
        client.publish(0)


def test_an_older_server_does_with_less(serve):
    """No labels, no pause: the canary alone watches the weights, and what runs at a publication begins again."""
    server, client = serve(missing=["/update_weight_version", "/pause", "weight_versions"], on_publish="recompute")
    assert client.features().supported == {"tokens", "temperature", "score", "load"}
    assert "lacks 'labels'" in client.note
    assert "lacks 'abort'" in client.note
    server.slow_s = 0.01
    stream = generate(client, [asked(1, max_tokens=1), asked(2, samples=4, max_tokens=20)])
    done = [next(stream)]
    client.publish(1)
    done += list(stream)
    assert len(done) == 5
    assert all(len(set(one.version.tolist())) == 1 for one in done)
    assert any(one.version[0] == 1 for one in done)
    assert client.stats.preempted > 0


def test_log_probabilities_without_temperature_are_noticed(serve):
    server, client = serve(published=False)
    server.temperature_in_logp = False
    client.publish(0)
    with pytest.raises(ConfigError, match=r"temperature = 0.7: vLLM 0.32.0 at .* lacks 'temperature'"):
        generate(client, [asked(1, temperature=0.7)])
    assert len(list(generate(client, [asked(1)]))) == 1


def test_keep_needs_versions_of_tokens(serve):
    _, client = serve("sglang", on_publish="keep", published=False)
    with pytest.raises(ConfigError, match="lacks 'spans'"):
        client.publish(0)


def test_scoring_at_another_temperature_is_refused(serve):
    _, client = serve()
    text = ScoreRequest(
        prompt=asked(1).prompt, tokens=asked(1).prompt, sampling=SamplingParams(max_tokens=1, temperature=0.5)
    )
    with pytest.raises(ConfigError, match=r"scores given tokens at temperature 1 .* temperature = 0.5"):
        client.score([text])


# ------------------------------------------------------------------------------- publishing in the middle


def in_the_middle(serve, on_publish):
    server, client = serve(on_publish=on_publish)
    server.slow_s = 0.01
    stream = generate(client, [asked(1, max_tokens=1), asked(2, samples=4, max_tokens=30, temperature=1.5)])
    done = [next(stream)]
    time.sleep(0.1)
    client.publish(1)
    return [*done, *stream]


def test_finish_lets_answers_end_under_the_old_weights(serve):
    done = in_the_middle(serve, "finish")
    assert len(done) == 5
    assert all((one.version == 0).all() for one in done)


@pytest.mark.parametrize("on_publish", ["recompute", "keep"])
def test_an_answer_of_two_versions_says_which_token_is_whose(serve, on_publish):
    done = in_the_middle(serve, on_publish)
    assert len(done) == 5
    both = [one for one in done if set(one.version.tolist()) == {0, 1}]
    assert both
    assert all((np.diff(one.version) >= 0).all() for one in done)
    assert all(one.finish_reason in ("eos", "length") for one in done)
    assert all(len(one.tokens) == 30 or one.tokens[-1] == 0 for one in done if one.request_id == "q2")


def test_a_paused_stream_goes_on_where_it_was(serve):
    server, client = serve(on_publish="recompute")
    server.slow_s = 0.01
    stream = generate(client, [asked(1, max_tokens=1), asked(2, samples=2, max_tokens=20)])
    next(stream)
    client.pause()
    assert server.mode == "freeze"
    client.publish(1)
    assert server.mode == "" or client.stats.preempted
    client.resume()
    assert len(list(stream)) == 2


def test_every_request_has_a_seed_of_its_own(serve):
    """A server such as vLLM ignores seeds where a request beside it has none."""
    server, client = serve()
    server.asked.clear()
    list(generate(client, [asked(n, samples=5) for n in range(4)]))
    seeds = [body["sampling_params"]["seed"] for body in server.asked]
    assert len(seeds) == len(set(seeds)) == 20
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert all(body["sampling_params"]["stop_token_ids"] == [0] for body in server.asked)


def test_only_the_newest_weights_lie_in_the_folder(serve, tmp_path):
    _, client = serve()
    client.publish(1)
    client.publish(2)
    assert [path.name for path in (tmp_path / "handed").iterdir()] == ["weights_2"]
    client.close()
    assert list((tmp_path / "handed").iterdir()) == []


def test_closing_breaks_off_what_is_under_way(serve):
    server, client = serve()
    server.mode = "freeze"  # no answer ever ends by itself
    client.submit([asked(1, samples=4, max_tokens=100)])
    threads = threading.active_count()
    client._fill()
    closing = threading.Thread(target=client.close)
    closing.start()
    closing.join(300)
    assert not closing.is_alive()
    assert threading.active_count() <= threads + 4  # the server's handlers end in their own time
    with pytest.raises(UnreachableError, match="this client is closed"):
        client.protocol.probe()


def test_ids_beyond_the_vocabulary_are_refused_at_the_door(serve):
    _, client = serve()
    bad = Request(id="x", prompt=np.array([VOCAB], np.int32), samples=1, sampling=SamplingParams(max_tokens=1))
    with pytest.raises(Exception, match="the model knows 0 to 23"):
        generate(client, [bad])
