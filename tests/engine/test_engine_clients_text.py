"""The way to a server, servers of text, and folders with an output layer of their own."""

import json
import shutil
import threading
from collections import deque
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch
from engines import CONFIG
from safetensors import safe_open

from hone.core.errors import ConfigError, DataError
from hone.core.generation import SamplingParams
from hone.engine.clients.handover import untie
from hone.engine.clients.http import (
    HttpClient,
    RequestCancelledError,
    ServerAddress,
    ServerEngine,
    ServerError,
    UnreachableError,
)
from hone.engine.clients.openai import OpenAiClient, OpenAiRequest
from hone.models.language.hf_checkpoint import load_model, save_model
from hone.models.language.init import new_model
from hone.models.packing import pack_rows


class Replies(ThreadingHTTPServer):
    """Answers with what `replies` holds, in order, the last one for ever."""

    daemon_threads = True

    def __init__(self, *replies):
        super().__init__(("127.0.0.1", 0), Replying)
        self.replies, self.seen, self.lock = deque(replies), [], threading.Lock()
        self.hold = threading.Event()
        self.hold.set()
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def handle_error(self, request, client_address):
        """Callers that went away are what some tests are about."""

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class Replying(BaseHTTPRequestHandler):
    def log_message(self, format, *args):
        """Silent."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.do_GET(body)

    def do_GET(self, body=None):
        with self.server.lock:
            self.server.seen.append((self.path, body, self.headers.get("Authorization")))
            reply = self.server.replies.popleft() if len(self.server.replies) > 1 else self.server.replies[0]
        self.server.hold.wait(600)
        status, content = reply(body) if callable(reply) else reply
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def serve():
    servers = []

    def start(*replies) -> Replies:
        servers.append(Replies(*replies))
        return servers[-1]

    yield start
    for server in servers:
        server.hold.set()
        server.shutdown()
        server.server_close()


def link(server: Replies, **changes) -> HttpClient:
    return HttpClient(ServerAddress(url=server.url, **{"backoff_s": 0.01, "timeout_s": 60.0} | changes))


# ------------------------------------------------------------------------------------------------ http


def test_a_failure_names_the_address_the_status_and_the_first_lines(serve):
    server = serve((404, b"no such\n  page\n" + b"x" * 1000))
    with pytest.raises(ServerError) as error:
        link(server).get("/here")
    assert str(error.value).startswith(f"GET {server.url}/here: status 404: no such page xxx")
    assert str(error.value).endswith(" ...")
    assert error.value.status == 404
    assert len(server.seen) == 1


@pytest.mark.parametrize(("repeat", "sent"), [("never", 1), ("refused", 3), ("always", 3)])
def test_what_is_sent_again(serve, repeat, sent):
    server = serve((503, {}), (503, {}), (200, {"ok": 1}))
    if repeat == "never":
        with pytest.raises(ServerError, match="status 503"):
            link(server).post("/x", retry=repeat)
    else:
        assert link(server).post("/x", retry=repeat) == {"ok": 1}
    assert len(server.seen) == sent


def test_silence_ends_at_the_deadline(serve):
    server = serve((200, {}))
    server.hold.clear()
    with pytest.raises(UnreachableError, match=r"POST .*/x: no answer within 0.1 s"):
        link(server, timeout_s=0.1).post("/x", retry="refused")
    assert len(server.seen) == 1, "no answer is no refusal: it may be at work"
    with pytest.raises(UnreachableError):
        link(server, timeout_s=0.1, attempts=2).post("/x", retry="always")
    assert len(server.seen) == 3


def test_interrupting_wakes_whoever_waits_and_is_not_repeated(serve):
    server = serve((200, {}))
    server.hold.clear()
    found: list[BaseException] = []
    spoken = link(server)

    def ask():
        try:
            spoken.post("/x", retry="always")
        except ServerError as error:
            found.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    while not server.seen:
        thread.join(0.01)
    spoken.cancel_all()
    thread.join(300)
    assert isinstance(found[0], RequestCancelledError)
    assert len(server.seen) == 1
    server.hold.set()
    assert spoken.get("/y") == {}, "the next request goes through"
    spoken.close()
    with pytest.raises(UnreachableError, match="closed"):
        spoken.get("/y")


def test_an_address_or_a_key_that_cannot_be_is_refused_at_the_door(monkeypatch):
    for url in ("localhost:8000", "ftp://host", "http://"):
        with pytest.raises(ConfigError, match="expected http://host:port"):
            HttpClient(ServerAddress(url=url))
    monkeypatch.delenv("HONE_TEST_KEY", raising=False)
    with pytest.raises(ConfigError, match="HONE_TEST_KEY"):
        HttpClient(ServerAddress(url="http://host:1", api_key_env="HONE_TEST_KEY"))
    with pytest.raises(ValueError, match="openai"):
        ServerEngine(kind="openai", url="http://host:1")  # pyright: ignore[reportArgumentType]


def test_the_key_is_read_from_the_environment(serve, monkeypatch):
    monkeypatch.setenv("HONE_TEST_KEY", "s3cret")
    server = serve((200, {}))
    link(server, api_key_env="HONE_TEST_KEY").get("/x")
    assert server.seen[0][2] == "Bearer s3cret"


# ---------------------------------------------------------------------------------------------- openai


def said(body):
    if "messages" in body:
        text = body["messages"][-1]["content"].upper()
        choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    else:
        choice = {"text": body["prompt"][::-1], "finish_reason": "length"}
    return 200, {"choices": [choice], "usage": {"completion_tokens": 3}}


def test_texts_and_conversations_are_answered(serve):
    server = serve(said)
    client = OpenAiClient(link(server), model="big", slots=3)
    questions = [
        OpenAiRequest(id="a", prompt="abc", sampling=SamplingParams(max_tokens=5, stop=("\n",)), samples=2),
        OpenAiRequest(
            id="b", prompt=[{"role": "user", "content": "hello"}], sampling=SamplingParams(max_tokens=7, greedy=True)
        ),
    ]
    found = sorted(client.generate(questions), key=lambda one: (one.request_id, one.sample_index))
    assert [
        (one.request_id, one.sample_index, one.text, one.finish_reason, one.completion_tokens) for one in found
    ] == [
        ("a", 0, "cba", "length", 3),
        ("a", 1, "cba", "length", 3),
        ("b", 0, "HELLO", "stop", 3),
    ]
    bodies = {path: body for path, body, _ in server.seen}
    assert bodies["/v1/chat/completions"]["temperature"] == 0
    assert bodies["/v1/chat/completions"]["max_tokens"] == 7
    assert bodies["/v1/completions"]["stop"] == ["\n"]
    seeds = [body["seed"] for _, body, _ in server.seen]
    assert len(set(seeds)) == 3


def test_no_policy_is_trained_on_text(serve):
    with pytest.raises(ConfigError, match="returns text and no token ids: no policy can be trained"):
        OpenAiClient(link(serve((200, {}))), model="big").raise_untrainable()


def test_every_question_that_cannot_be_asked_is_named(serve):
    client = OpenAiClient(link(serve(said)), model="big")
    plain = SamplingParams(max_tokens=1)
    with pytest.raises(ConfigError, match="top_k"):
        client.generate([OpenAiRequest(id="a", prompt="x", sampling=SamplingParams(max_tokens=1, top_k=2))])
    with pytest.raises(DataError) as error:
        client.generate(
            [
                OpenAiRequest(id="a", prompt="x", sampling=plain),
                OpenAiRequest(id="a", prompt="", sampling=plain, samples=0),
            ]
        )
    assert len(error.value.messages) == 2


@pytest.mark.parametrize(
    ("reply", "named"),
    [
        ({"choices": []}, "0 answers came"),
        ({"choices": [{"text": None}]}, "expected text"),
        ({"error": "x"}, "'choices' is None"),
    ],
)
def test_an_answer_that_is_none_is_named(serve, reply, named):
    client = OpenAiClient(link(serve((200, reply))), model="big")
    with pytest.raises(ServerError, match=named) as error:
        list(client.generate([OpenAiRequest(id="q7", prompt="x", sampling=SamplingParams(max_tokens=1))]))
    assert "question 'q7'" in str(error.value)


def test_models_are_listed(serve):
    assert OpenAiClient(link(serve((200, {"data": [{"id": "one"}]}))), model="").models() == ["one"]


# ---------------------------------------------------------------------------------------------- untied


@pytest.mark.parametrize("shard_bytes", [5_000_000_000, 8_000])
def test_an_untied_folder_is_the_same_model_to_every_tool(tmp_path, shard_bytes):
    model = new_model(replace(CONFIG, tie_embeddings=True), seed=1)
    save_model(model, tmp_path / "tied", tokenizer_from=None, shard_bytes=shard_bytes)
    shutil.copytree(tmp_path / "tied", tmp_path / "untied")
    assert untie(tmp_path / "untied")
    assert not untie(tmp_path / "untied"), "it has an output layer already"
    loaded = load_model(tmp_path / "untied")
    assert not loaded.config.tie_embeddings
    tied = load_model(tmp_path / "tied")
    tokens = np.arange(9, dtype=np.int32)
    with torch.no_grad():
        ours, theirs = (one.logits(one.hidden(pack_rows([tokens]))) for one in (tied, loaded))
    assert torch.equal(ours, theirs)
    assert untied_files(tmp_path / "untied") >= {"model.embed_tokens.weight", "lm_head.weight"}


def untied_files(folder):
    """Tensors by the index, which other tools go by; each of them is in the file that it says."""
    places = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    for name, file in places.items():
        with safe_open(folder / file, framework="pt") as tensors:
            assert name in tensors.keys()  # noqa: SIM118 - it is no mapping
    return set(places)


def test_a_folder_without_an_embedding_cannot_be_untied(tmp_path):
    (tmp_path / "config.json").write_text('{"tie_word_embeddings": true}')
    with pytest.raises(DataError, match="no weights"):
        untie(tmp_path)
