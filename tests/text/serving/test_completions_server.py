"""The server beside the engine in process, with OpenAI's own client: the same tokens, the same bits."""

import concurrent.futures
import hashlib
import json
import time

import numpy as np
import openai
import pytest
from live_server import LiveServer, live, opened, save_tiny

from hone.core.generation import Request, SamplingParams, ScoreRequest, generate
from hone.models.language.tokenizers import DEFAULT_CHAT_TEMPLATE


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def server(folder):
    with live(opened(folder)) as running:
        yield running


def ids(server: LiveServer, text: str) -> np.ndarray:
    return server.model.served.tokenizer.encode(text)


def test_a_text_completion_is_the_engines_answer_to_the_bit(server, folder):
    reply = server.client().completions.create(
        model="tiny", prompt="2+2=", max_tokens=12, logprobs=3, seed=7, n=3, extra_body={"return_token_ids": True}
    )
    draw = server.post("/tokenize", {"prompt": "2+2="}).json()
    assert draw == {"tokens": ids(server, "2+2=").tolist(), "count": 4, "max_model_len": 512}
    again = opened(folder).engine
    prompt = ids(server, "2+2=")
    key = f"seed 7 of {hashlib.sha256(prompt.tobytes()).hexdigest()[:32]}"
    sampling = SamplingParams(max_tokens=12, top_logprobs=3)
    asked = Request(id="x", prompt=prompt, samples=3, sampling=sampling, draw_id=key)
    done = sorted(generate(again, [asked]), key=lambda one: one.sample_index)
    for choice, one in zip(reply.choices, done, strict=True):
        assert choice.token_ids == one.tokens.tolist()
        assert choice.logprobs.token_logprobs == one.logp.tolist()
        assert choice.text == one.text(server.model.served.tokenizer.decode)
        assert choice.finish_reason == {"eos": "stop", "length": "length"}[one.finish_reason]
        for place, top in enumerate(choice.logprobs.top_logprobs):
            named = [server.model.served.token_text.label(token) for token in one.likeliest.tokens[place].tolist()]
            assert list(top)[:3] == named
            assert [top[name] for name in named] == one.likeliest.logp[place].tolist()
            assert top[choice.logprobs.tokens[place]] == one.logp[place]
    assert reply.usage.prompt_tokens == 4
    assert reply.usage.completion_tokens == sum(len(one.tokens) for one in done)
    assert reply.system_fingerprint.startswith("tiny-")
    assert reply.id.startswith("cmpl-")


def test_equal_requests_get_equal_answers_in_any_company(server):
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 20, "seed": 1}
    alone = server.post("/v1/completions", body).json()["choices"][0]["text"]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        asked = [body if number % 2 else {**body, "seed": number} for number in range(32)]
        replies = pool.map(lambda one: server.post("/v1/completions", one), asked)
        texts = [one.json()["choices"][0]["text"] for one in replies]
    assert set(texts[1::2]) == {alone}
    assert len(set(texts)) > 8
    ids_given = [server.post("/v1/completions", {**body, "seed": None}, **{"X-Request-Id": "mine"}) for _ in range(2)]
    assert ids_given[0].json()["choices"] == ids_given[1].json()["choices"]
    assert ids_given[0].headers["x-request-id"] == "mine"
    fresh = {server.post("/v1/completions", {**body, "seed": None}).json()["choices"][0]["text"] for _ in range(3)}
    assert len(fresh) > 1


def test_echoed_prompts_are_scored_as_lm_eval_reads_them(server):
    """Lists of ids; the first entry is null, the last is the drawn token, and the likeliest token is named."""
    texts, sampling = ["one text", "another"], SamplingParams(max_tokens=1, top_logprobs=1)
    prompts = [ids(server, one).tolist() for one in texts]
    body = {"model": "tiny", "prompt": prompts, "echo": True, "max_tokens": 1, "logprobs": 1, "temperature": 0}
    reply = server.post("/v1/completions", {**body, "seed": 1234}).json()
    for words, prompt, choice in zip(texts, prompts, reply["choices"], strict=True):
        told = choice["logprobs"]
        tokens = np.array(prompt, np.int32)
        (scored,) = server.model.engine.score([ScoreRequest(prompt=tokens[:1], tokens=tokens[1:], sampling=sampling)])
        assert told["token_logprobs"][0] is None and told["top_logprobs"][0] is None
        assert told["token_logprobs"][1:-1] == scored.logp.tolist()
        assert len(told["tokens"]) == len(prompt) + 1
        assert choice["text"].startswith(words)
        assert told["text_offset"][: len(prompt)] == list(range(len(prompt)))
        for place, top in enumerate(told["top_logprobs"][1:-1]):
            assert max(top, key=top.get) == server.model.served.token_text.label(scored.likeliest.tokens[place, 0])
    nothing = server.post("/v1/completions", {**body, "max_tokens": 0}).json()
    assert [len(one["logprobs"]["tokens"]) for one in nothing["choices"]] == [8, 7]
    assert nothing["usage"]["completion_tokens"] == 0


def test_answers_keep_to_the_format_that_is_asked_for(server):
    schema = {
        "type": "object",
        "properties": {"n": {"enum": [1, 22]}},
        "required": ["n"],
        "additionalProperties": False,
    }
    schema["x-guidance"] = {"whitespace_flexible": False}
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "2+2?"}], "max_completion_tokens": 24}
    formats = {"type": "json_schema", "json_schema": {"name": "number", "schema": schema}}
    for body, matches in (
        ({"response_format": formats}, lambda text: json.loads(text)["n"] in (1, 22)),
        ({"structured_outputs": {"json": json.dumps(schema)}}, lambda text: json.loads(text)["n"] in (1, 22)),
        ({"guided_choice": ["yes", "no.", "(no)"]}, {"yes", "no.", "(no)"}.__contains__),
        ({"structured_outputs": {"regex": "[ab]{3}"}}, lambda text: len(text) == 3 and set(text) <= set("ab")),
        ({"guided_grammar": 'start: "x" | "yy"'}, {"x", "yy"}.__contains__),
    ):
        reply = server.client().chat.completions.create(**asked, n=4, logprobs=True, extra_body=body)
        for choice in reply.choices:
            assert choice.finish_reason == "stop"
            assert matches(choice.message.content), choice.message.content
            # Log-probabilities are the policy's own, of all tokens: no answer is certain.
            assert sum(entry.logprob for entry in choice.logprobs.content) < -1
    body = {"model": "tiny", "prompt": "a", "max_tokens": 24, "response_format": {"type": "json_object"}}
    for choice in server.post("/v1/completions", {**body, "n": 4}).json()["choices"]:
        assert choice["text"].lstrip().startswith("{")
    assert server.post("/v1/completions", {**body, "response_format": {"type": "text"}}).status_code == 200


def test_a_chat_follows_the_template(server):
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "2+2?"}]},
    ]
    reply = server.client().chat.completions.create(
        model="tiny", messages=messages, max_completion_tokens=9, seed=3, logprobs=True, top_logprobs=2, n=2,
        extra_body={"return_token_ids": True},
    )  # fmt: skip
    tokenizer = server.model.served.tokenizer
    plain = [messages[0], {"role": "user", "content": "2+2?"}]
    assert reply.prompt_token_ids == tokenizer.apply_chat(plain).tolist()
    assert server.post("/tokenize", {"messages": messages}).json()["tokens"] == reply.prompt_token_ids
    for choice in reply.choices:
        assert choice.message.role == "assistant" and choice.message.refusal is None
        assert choice.message.content == tokenizer.decode(choice.token_ids)
        whole = b"".join(bytes(entry.bytes) for entry in choice.logprobs.content)
        assert whole.decode(errors="replace").startswith(choice.message.content)
        assert all(len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)
    assert reply.id.startswith("chatcmpl-")
    assert server.get("/v1/models").json()["data"][0]["id"] == "tiny"
    assert server.post("/detokenize", {"tokens": reply.prompt_token_ids}).json()["prompt"].endswith("<|assistant|>")


@pytest.mark.parametrize("stop", [None, ["a"]])
def test_a_stream_is_the_same_answer_in_whole_characters(server, stop):
    """Bytes of a random model are seldom whole characters: what is streamed is what the whole answer has."""
    asked = {"model": "tiny", "max_tokens": 60, "seed": 11, "n": 2, "stop": stop, "temperature": 1.5}
    for kind, body in (
        ("/v1/completions", {**asked, "prompt": "x", "logprobs": 1}),
        ("/v1/chat/completions", {**asked, "messages": [{"role": "user", "content": "x"}], "logprobs": True}),
    ):
        whole = server.post(kind, body).json()
        with server.client()._client.stream(
            "POST", f"{server.url}{kind}", json={**body, "stream": True, "stream_options": {"include_usage": True}}
        ) as response:
            lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
        assert lines[-1] == "[DONE]"
        chunks = [json.loads(line) for line in lines[:-1]]
        assert chunks[-1]["usage"] == whole["usage"] and chunks[-1]["choices"] == []
        assert all(len(chunk["choices"]) == 1 for chunk in chunks[:-1])
        for number, choice in enumerate(whole["choices"]):
            mine = [one for chunk in chunks for one in chunk["choices"] if one["index"] == number]
            if "message" in choice:
                assert mine[0]["delta"]["role"] == "assistant"
                pieces = [one["delta"].get("content", "") for one in mine]
                told = [entry for one in mine if one["logprobs"] for entry in one["logprobs"]["content"]]
                assert told == choice["logprobs"]["content"]
                text = choice["message"]["content"]
            else:
                pieces, text = [one["text"] for one in mine], choice["text"]
                told = [value for one in mine if one["logprobs"] for value in one["logprobs"]["token_logprobs"]]
                assert told == choice["logprobs"]["token_logprobs"]
            assert "".join(pieces) == text
            assert mine[-1]["finish_reason"] == choice["finish_reason"]
            assert all(one["finish_reason"] is None for one in mine[:-1])


def test_openais_client_reads_streams(server):
    client = server.client()
    messages = [{"role": "user", "content": "hi"}]
    asked = {"model": "tiny", "messages": messages, "max_tokens": 8, "seed": 2}
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens <= 8
    assert {chunk.system_fingerprint for chunk in chunks} == {chunks[0].system_fingerprint}


def test_a_stop_string_ends_the_text_before_it(server):
    body = {"model": "tiny", "prompt": "q", "max_tokens": 60, "seed": 4, "temperature": 0.8}
    text = server.post("/v1/completions", body).json()["choices"][0]["text"]
    letter = next(one for one in text[3:] if one.isascii())
    cut = server.post("/v1/completions", {**body, "stop": letter}).json()["choices"][0]
    assert cut["text"] == text[: text.index(letter)]
    assert cut["finish_reason"] == "stop"
    kept = server.post("/v1/completions", {**body, "stop": letter, "include_stop_str_in_output": True}).json()
    assert kept["choices"][0]["text"] == text[: text.index(letter) + 1]


TEXT, CHAT, VALUE = "/v1/completions", "/v1/chat/completions", "invalid_value"


def text(**fields):
    return TEXT, {"model": "tiny", "prompt": "a", **fields}


def chat(content="a", role="user", **fields):
    return CHAT, {"model": "tiny", "messages": [{"role": role, "content": content}], **fields}


IMAGE = [{"type": "image_url", "image_url": {"url": "x"}}]
BAD = {
    "no model": ((TEXT, {"prompt": "a"}), 400, "model", "missing_required_parameter"),
    "another model": (text(model="gpt"), 404, "model", "model_not_found"),
    "no prompt": (text(prompt=""), 400, "prompt", VALUE),
    "an empty prompt of two": (text(prompt=["a", ""]), 400, "prompt", VALUE),
    "ids beyond the vocabulary": (text(prompt=[1, 9999]), 400, None, VALUE),
    "huge ids": (text(prompt=[2**40]), 400, "prompt", VALUE),
    "a text for a number": (text(max_tokens="3"), 400, "max_tokens", VALUE),
    "a cold temperature": (text(temperature=-1), 400, "temperature", VALUE),
    "a long prompt": (text(prompt="a" * 600), 400, "prompt", "context_length_exceeded"),
    "too many tokens": (chat(max_tokens=999), 400, "messages", "context_length_exceeded"),
    "an image": (chat(IMAGE), 400, "messages[0].content", "unsupported"),
    "penalties": (text(presence_penalty=1), 400, "presence_penalty", "unsupported"),
    "an unknown format": (chat(response_format={"type": "xml"}), 400, "response_format", "unsupported"),
    "a format without a schema": (chat(response_format={"type": "json_schema"}), 400, "response_format", "unsupported"),
    "two formats": (chat(guided_regex="a", guided_choice=["a"]), 400, "structured_outputs", "unsupported"),
    "an unknown output": (chat(structured_outputs={"tags": 1}), 400, "structured_outputs", "unsupported"),
    "a broken grammar": (chat(guided_regex="[a"), 400, None, VALUE),
    "no messages": (chat(messages=[]), 400, "messages", VALUE),
    "an unknown role": (chat(role="king"), 400, "messages[0].role", VALUE),
    "a list": ((TEXT, [1]), 400, None, "invalid_json"),
    "an empty stop": (text(stop=[""]), 400, "stop", VALUE),
    "nothing to do": (text(max_tokens=0), 400, "max_tokens", VALUE),
    "the best of several": (text(best_of=4), 400, "best_of", "unsupported"),
    "likeliest tokens of nothing": (chat(top_logprobs=2), 400, "top_logprobs", "unsupported"),
    "an echo of a stream": (text(echo=True, stream=True), 400, "echo", "unsupported"),
    "an unknown route": (("/v1/embeddings", {}), 404, None, "not_found"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_requests_are_refused_in_openais_shape(server, name):
    (path, body), status, param, code = BAD[name]
    for stream in (True,) if "stream" in body else (False, True):
        asked = {**body, "stream": stream} if isinstance(body, dict) else body
        reply = server.post(path, asked)
        error = reply.json()["error"]
        assert (reply.status_code, error["param"], error["code"]) == (status, param, code), error
        assert error["type"] and error["message"]


def test_every_fault_of_a_body_is_named_at_once(server):
    message = server.post("/v1/completions", {"prompt": "a", "n": 0, "top_p": 7}).json()["error"]["message"]
    assert all(name in message for name in ("model:", "n:", "top_p:"))
    broken = openai.OpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0)
    with pytest.raises(openai.NotFoundError):
        broken.completions.create(model="gpt", prompt="a")
    reply = server.client()._client.post(f"{server.url}/v1/completions", content=b'{"model": 1, "model": 2}')
    assert reply.status_code == 400 and reply.json()["error"]["code"] == "invalid_json"


def test_unknown_fields_are_named_and_refused_under_strict(server, folder):
    body = {"model": "tiny", "prompt": "a", "max_tokens": 2, "min_tokens": 1, "banana": 2}
    assert server.post("/v1/completions", body).headers["x-hone-ignored-fields"] == "banana, min_tokens"
    with live(opened(folder), rules={"strict": True}) as strict:
        error = strict.post("/v1/completions", body).json()["error"]
        assert (error["param"], error["code"]) == ("banana", "unknown_field")
        assert "x-hone-ignored-fields" not in strict.post("/v1/completions", {"model": "tiny", "prompt": "a"}).headers


def test_a_key_is_wanted_where_one_is_set(folder):
    with live(opened(folder), rules={"api_key": "secret"}) as guarded:
        with pytest.raises(openai.AuthenticationError):
            guarded.client().models.list()
        assert guarded.client(key="secret").models.list().data[0].id == "tiny"
        assert guarded.get("/health").status_code == 200


def test_a_deadline_is_408_and_frees_the_pages(folder):
    with live(opened(folder), deadline_s=0.05) as late:
        late.model.engine.pause()
        with pytest.raises(openai.APIStatusError) as refused:
            late.client().completions.create(model="tiny", prompt="a", max_tokens=200)
        assert refused.value.status_code == 408
        late.model.engine.resume()
        late.settle()
        assert late.model.engine.held_pages == 0


def test_a_full_server_says_when_to_come_back(folder):
    with live(opened(folder, slots=2), queue=1) as busy:
        busy.model.engine.pause()
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            body = {"model": "tiny", "prompt": "a", "max_tokens": 3}
            waiting = [pool.submit(busy.post, "/v1/completions", body) for _ in range(3)]
            while busy.routes.desk.samples < 3:
                time.sleep(0.005)
            refused = busy.post("/v1/completions", body)
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) >= 1
            busy.model.engine.resume()
            assert all(one.result().status_code == 200 for one in waiting)


@pytest.mark.parametrize("stream", [False, True])
def test_a_closed_connection_frees_its_pages(folder, stream):
    with live(opened(folder)) as server:
        body = {"model": "tiny", "prompt": "a", "max_tokens": 250, "n": 8, "stream": stream}
        for number in range(12):
            server.hang_up(body, begun=number % 2 == 1, read=100 if stream and number % 3 == 0 else 0)
        server.settle()
        assert server.routes.desk.samples == 0
        assert server.model.engine.held_pages == 0
        assert server.post("/v1/completions", {"model": "tiny", "prompt": "a", "max_tokens": 3}).status_code == 200
        if not stream:
            assert 'status="499"' in server.get("/metrics").text


def test_a_closed_service_answers_nothing(folder):
    with live(opened(folder)) as server:
        server.service.close()
        reply = server.post("/v1/completions", {"model": "tiny", "prompt": "a"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "unavailable")


def test_metrics_count(server):
    server.post("/v1/completions", {"model": "tiny", "prompt": "abc", "max_tokens": 3})
    lines = dict(line.rsplit(" ", 1) for line in server.get("/metrics").text.splitlines() if not line.startswith("#"))
    assert float(lines["hone_prompt_tokens_total"]) >= 3
    assert float(lines['hone_requests_total{path="/v1/completions",status="200"}']) >= 1
    assert float(lines["hone_kv_pages_held"]) == 0
    assert float(lines['hone_request_seconds_bucket{le="+Inf"}']) == float(lines["hone_request_seconds_count"])


def test_a_model_without_a_chat_template_says_so(tmp_path):
    with live(opened(save_tiny(tmp_path, template=None))) as server:
        reply = server.post("/v1/chat/completions", {"model": "tiny", "messages": [{"role": "user", "content": "a"}]})
        assert reply.status_code == 400
        assert "chat template" in reply.json()["error"]["message"]
    assert "assistant" in DEFAULT_CHAT_TEMPLATE


def test_weights_are_replaced_between_answers(folder, tmp_path):
    from hone.text.evaluate.open_policy import ModelSource, open_policy

    other = save_tiny(tmp_path, seed=9)
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 30, "seed": 1}
    with live(opened(other)) as second:
        theirs = second.post("/v1/completions", body).json()
    with live(opened(folder)) as server:
        before = server.post("/v1/completions", body).json()
        fresh = open_policy(ModelSource(path=str(other)), seed=0, device="cpu", temperature=1.0)
        with concurrent.futures.ThreadPoolExecutor(9) as pool:
            asked = [pool.submit(server.post, "/v1/completions", {**body, "max_tokens": 200}) for _ in range(8)]
            server.service.replace_weights(lambda: server.model.take_over(fresh, 12)).result()
            mixed = [one.result().json() for one in asked]
        after = server.post("/v1/completions", body).json()
    assert before["choices"] != after["choices"] == theirs["choices"]
    assert after["system_fingerprint"].split("-")[0] == "tiny@12"
    assert after["system_fingerprint"].split("-")[1] == theirs["system_fingerprint"].split("-")[1]
    by_weights = {one["system_fingerprint"]: set() for one in mixed}
    for one in mixed:
        by_weights[one["system_fingerprint"]].add(one["choices"][0]["text"])
    assert all(len(texts) == 1 for texts in by_weights.values())
