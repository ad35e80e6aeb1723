"""Limits of the server: large and hostile bodies, shares of clients, ids without a token, templates that raise."""

import json
import socket
import threading
import time

import httpx2
import pytest
from live_server import live, opened, save_tiny
from pydantic import ValidationError

from hone.models.language.tokenizers import Tokenizer
from hone.run.http.requests import LONG_BODY, ClientShares
from hone.text.serving.completions.app import named_fields
from hone.text.serving.completions.fields import ChatFields, TextFields

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def server(folder):
    with live(opened(folder)) as running:
        yield running


def refused(reply, status, code):
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (status, code), error
    assert len(error["message"]) < 5000
    return error


# ------------------------------------------------------------------------------------------------ beside the event loop


def test_others_are_answered_while_a_long_body_is_prepared(server, monkeypatch):
    begun, go, read = threading.Event(), threading.Event(), TextFields.read

    def slow(raw):
        if len(raw) >= LONG_BODY:
            begun.set()
            assert go.wait(300)
        return read(raw)

    monkeypatch.setattr(TextFields, "read", slow)
    body = {"model": "tiny", "prompt": "a" * LONG_BODY}
    replies = []
    asking = threading.Thread(target=lambda: replies.append(server.post(TEXT, body)))
    asking.start()
    assert begun.wait(300)
    assert server.get("/health").status_code == 200
    assert server.post(TEXT, {"model": "tiny", "prompt": "a", "max_tokens": 2}).status_code == 200
    assert server.post("/tokenize", {"prompt": "abc"}).json()["count"] == 3
    go.set()
    asking.join()
    refused(replies[0], 400, "context_length_exceeded")
    assert server.routes.bodies.held.used.total() == 0


def test_a_tokenizer_for_threads_gives_the_same_ids_and_lets_others_work(server):
    threaded = server.model.served.tokenizer
    shared = server.model.policy.tokenizer
    assert threaded.plain_backend is not None and shared.plain_backend is None
    for text in ("2+2=", "<|user|> is plain text", "x" * 5000, "é<eos>" * 1000, ""):
        assert threaded.encode(text).tolist() == shared.encode(text).tolist()
        ids = shared.encode(text)
        assert threaded.decode(ids) == shared.decode(ids) == text
        messages = [{"role": "user", "content": text}]
        assert threaded.apply_chat(messages).tolist() == shared.apply_chat(messages).tolist()
    ticks, running = 0, True

    def tick():
        nonlocal ticks
        while running:
            time.sleep(0.001)
            ticks += 1

    ticking = threading.Thread(target=tick)
    ticking.start()
    threaded.encode("some words " * 100_000)
    running = False
    ticking.join()
    assert ticks > 10


@pytest.mark.parametrize("path", [TEXT, CHAT])
def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenised(server, monkeypatch, path):
    most = server.model.served.most_characters
    assert most == 512 * len("<|assistant|>")
    encoded = []
    encode = Tokenizer._encode
    monkeypatch.setattr(
        Tokenizer, "_encode", lambda self, text, *, plain: encoded.append(len(text)) or encode(self, text, plain=plain)
    )

    def ask(size):
        body = {"prompt": "a" * size} if path == TEXT else {"messages": [{"role": "user", "content": "a" * size}]}
        return server.post(path, {"model": "tiny", **body})

    error = refused(ask(most + 1), 400, "context_length_exceeded")
    assert "characters does not fit into the context of 512 tokens" in error["message"] and encoded == []
    message = refused(ask(most), 400, "context_length_exceeded")["message"]
    if path == TEXT:
        assert f"a prompt of {most} tokens does not fit" in message and encoded == [most]
    else:  # the template's own characters are too many
        assert "the conversation of" in message or "a prompt of" in message


# --------------------------------------------------------------------------------------------------------------- bodies


def test_a_long_body_is_refused_by_its_length_and_without_one_as_it_comes(folder):
    with live(opened(folder), rules={"most_body_bytes": 2000}) as small:
        fits = json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 1})
        exact = fits + " " * (2000 - len(fits))
        assert httpx2.post(f"{small.url}{TEXT}", content=exact).status_code == 200
        refused(httpx2.post(f"{small.url}{TEXT}", content=exact + " "), 413, "too_large")
        refused(httpx2.post(f"{small.url}{TEXT}", content=iter([b" " * 1000] * 3)), 413, "too_large")
        host, port = small.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as link:  # the answer comes before the body
            link.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50000000000\r\n\r\n")
            assert link.recv(20).startswith(b"HTTP/1.1 413")


def test_a_body_that_stalls_is_408_and_gives_its_bytes_back(folder):
    with live(opened(folder), rules={"body_s": 0.05}) as strict:
        host, port = strict.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as link:
            link.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            answer = b""
            while piece := link.recv(4096):  # the connection is closed behind the answer
                answer += piece
        assert answer.startswith(b"HTTP/1.1 408") and b"1 bytes came" in answer
        assert strict.routes.bodies.held.used.total() == 0


def test_bodies_that_wait_are_bounded_for_each_client(folder):
    with live(opened(folder), rules={"most_body_bytes": 1000}) as small:
        host, port = small.url.removeprefix("http://").split(":")
        links = []
        for number in range(8):  # half of 16 bodies of 1000 bytes
            link = socket.create_connection((host, int(port)))
            link.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n" + b" " * 999)
            links.append(link)
            while small.routes.bodies.held.used.total() < 999 * (number + 1):
                time.sleep(0.001)
        reply = small.post("/tokenize", {"prompt": "a" * 100})
        assert "this client has 7992 in use, of 8000" in refused(reply, 429, "overloaded")["message"]
        assert reply.headers["retry-after"] == "1"
        assert small.get("/health").status_code == 200
        for link in links:
            link.close()
        while small.routes.bodies.held.used.total():
            time.sleep(0.001)
        assert small.post("/tokenize", {"prompt": "a" * 100}).status_code == 200


MANY = 30_000
HOSTILE = {
    "numbers for ids": {"prompt": [0.5] * MANY},
    "lists of nothing": {"prompt": [[]] * MANY},
    "a list of kinds": {"prompt": [1, "a", [1]] * MANY},
    "empty messages": {"messages": [{}] * MANY},
    "many messages": {"messages": [{"role": "user", "content": "a"}] * MANY},
    "parts of parts": {"messages": [{"role": "user", "content": [{"type": 1}] * MANY}]},
    "empty tools": {"messages": [{"role": "user", "content": "a"}], "tools": [{}] * MANY},
    "many calls": {"messages": [{"role": "assistant", "content": "a", "tool_calls": [{}] * MANY}]},
    "parts without a kind": {"messages": [{"role": "user", "content": [{}] * 300}] * 300},
    "calls that are none": {"messages": [{"role": "user", "content": "a", "tool_calls": [1] * 250}] * 300},
    "a bias of texts": {"prompt": "a", "logit_bias": {str(number): "x" for number in range(MANY)}},
    "a long name": {"prompt": "a", "model": "m" * MANY},
    "kinds of parts": {"messages": [{"role": "user", "content": [{"type": f"kind{n}"} for n in range(4000)]}]},
    "many stops": {"prompt": "a", "stop": ["b"] * MANY},
    "a long stop": {"prompt": "a", "stop": "b" * MANY},
    "ids beyond the context": {"prompt": [1] * MANY, "echo": True},
    "ids that no token has": {"prompt": [10**6, 5]},
    "answers without end": {"prompt": ["a"] * 33, "n": 128},
    "a bias": {"prompt": "a", "logit_bias": {str(number): 1.0 for number in range(MANY)}},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_the_faults_of_a_hostile_body_are_few(name):
    """Each fault is an object that is built before anything can be left out."""
    count = 0
    body = {"model": "tiny", **HOSTILE[name]}
    kind = ChatFields if "messages" in body else TextFields
    try:
        kind.model_validate(body)
    except ValidationError as error:
        count = error.error_count()
    assert count <= 12


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bodies_get_a_short_answer(server, name):
    body = HOSTILE[name]
    reply = server.post(CHAT if "messages" in body else TEXT, {"model": "tiny", **body})
    assert reply.status_code == (404 if "model" in body else 400) and len(reply.content) < 6000, reply.text[:300]
    assert server.get("/health").status_code == 200


def test_names_of_unknown_fields_are_few_and_visible_in_the_header(server):
    names = {"a\r\nSet-Cookie: x": 1, "é": 1, "b" * 500: 1, **{f"field{number:03d}": 1 for number in range(500)}}
    reply = server.post(TEXT, {"model": "tiny", "prompt": "a", "max_tokens": 1, **names})
    assert reply.status_code == 200 and "set-cookie" not in reply.headers
    header = reply.headers["x-hone-ignored-fields"]
    assert header.startswith("a\\r\\nSet-Cookie: x, " + "b" * 60 + ", field000") and header.endswith("and 483 more")
    assert named_fields(["é", "x,y"]) == "\\xe9, x?y"
    assert named_fields([str(number) for number in range(20)]).endswith("18, 19")


# -------------------------------------------------------------------------------------------------------------- clients


def test_a_client_takes_its_share_and_leaves_the_rest():
    shares = ClientShares(most=10, share=6)
    assert shares.take("a", 6) == ""
    assert shares.take("a", 1) == "this client has 6 in use, of 6 at most for one client"
    assert shares.take("b", 4) == ""
    assert shares.take("c", 1) == "10 of 10 are in use"
    shares.give_back("a", 6)
    assert shares.take("c", 7) == "4 of 10 are in use"
    assert shares.take("c", 6) == ""
    shares.give_back("b", 4), shares.give_back("c", 6)
    assert dict(shares.used) == {}, "clients that left are forgotten"
    assert shares.take("a", 99) == "", "what is larger than a limit is served alone"


def test_a_client_is_refused_above_its_share_of_answers(folder):
    with live(opened(folder, slots=4), queue=4, per_client=2) as server:
        server.model.engine.pause()
        body = {"model": "tiny", "prompt": "a", "max_tokens": 2, "n": 2}
        first = threading.Thread(target=server.post, args=(TEXT, body))
        first.start()
        while server.routes.desk.samples < 2:
            time.sleep(0.001)
        reply = server.post(TEXT, body)
        assert "this client has 2 in use" in refused(reply, 429, "overloaded")["message"]
        assert int(reply.headers["retry-after"]) >= 1
        server.model.engine.resume()
        first.join()
        assert server.post(TEXT, body).status_code == 200


# ----------------------------------------------------------------------------------------------- ids and chat templates


def test_ids_that_no_token_has_are_refused_by_their_place(server):
    size = server.model.served.tokenizer.size
    assert server.post("/detokenize", {"tokens": [size - 1]}).status_code == 200
    assert server.post("/detokenize", {"tokens": []}).json() == {"prompt": ""}
    error = refused(server.post("/detokenize", {"tokens": [3, size, 2**31 - 1, size, size]}), 400, "invalid_value")
    assert error["param"] == "tokens"
    assert error["message"].startswith(f"tokens[1] = {size}, tokens[2] = {2**31 - 1}, tokens[3] = {size} and 1 more")
    refused(server.post("/detokenize", {"tokens": [-1]}), 400, "invalid_value")


RAISING = {
    "AttributeError": "{{ messages[0]['content'].nothing.at_all }}",
    "ZeroDivisionError": "{{ 1 // (messages | length - 1) }}",
    "OverflowError": "{{ '%c' % 99999999999999999999 }}",
    "TypeError": "{{ 1 + messages[0]['content'] }}",
    "IndexError": "{{ '{}'.format() }}",
    "RecursionError": "{% macro again(x) %}{{ again(x) }}{% endmacro %}{{ again(1) }}",
    "SecurityError": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "ValueError": "{{ 'x' | int(base=99) }}{{ '{:d}'.format('a') }}",
}


@pytest.mark.parametrize("name", RAISING)
def test_whatever_a_template_raises_is_a_fault_of_the_request(tmp_path, name):
    template = "{%- if messages[0]['content'] == 'fine' -%}<eos>{%- else -%}" + RAISING[name] + "{%- endif -%}"
    with live(opened(save_tiny(tmp_path, template=template)), start=True) as server:
        for path in (CHAT, "/tokenize"):
            asked = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
            error = refused(server.post(path, asked), 400, "invalid_value")
            assert "the chat template does not take" in error["message"], error
        fine = {"model": "tiny", "messages": [{"role": "user", "content": "fine"}], "max_tokens": 2}
        assert server.post(CHAT, fine).status_code == 200
