"""Tools of chats: what the template is told, calls in OpenAI's shape, and models without tools."""

import json

import numpy as np
import pytest
from live_server import live, opened, save_tiny

from hone.core.errors import ConfigError
from hone.core.generation import Completion
from hone.engine.engine import DrawnToken
from hone.models.language.tokenizers import DEFAULT_CHAT_TEMPLATE, byte_tokenizer
from hone.text.serving.completions.asked import CallIdentity, asked_chat
from hone.text.serving.completions.fields import ChatFields
from hone.text.serving.completions.replies import PromptResults, ReplyWriter, StreamedChoice
from hone.text.tools.described import find_format

HERMES = """
{%- if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %}<eos>{% endif -%}
{%- for message in messages %}[{{ message.role }}]{{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<eos>{% endfor -%}
{%- if add_generation_prompt %}[assistant]{% endif -%}
"""
SUM = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "double", "description": "2a", "parameters": SUM}}
CALL = '<tool_call>\n{"name": "double", "arguments": {"a": 4}}\n</tool_call>'
CALLED = {"id": "c", "type": "function", "function": {"name": "double", "arguments": '{"a": 4}'}}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return opened(save_tiny(tmp_path_factory.mktemp("tools"), template=HERMES))


def answer(model, text: str) -> Completion:
    tokens = model.served.tokenizer.encode(text)
    flat = np.zeros(len(tokens), np.float32)
    return Completion(
        request_id="r", sample_index=0, tokens=tokens, logp=flat, sampled_logp=flat,
        version=np.zeros(len(tokens), np.int32), finish_reason="eos",
    )  # fmt: skip


def writer_of(model, **fields) -> ReplyWriter:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "a"}],
        "tools": [TOOL],
        "max_tokens": 60,
        **fields,
    }
    asked = asked_chat(ChatFields.model_validate(body), model.served, CallIdentity(id="x", client_id=""))
    return ReplyWriter(served=model.served, asked=asked, created=0)


def test_the_format_is_the_one_in_which_the_template_writes_calls():
    assert find_format(byte_tokenizer(chat_template=HERMES)).name == "hermes"
    assert find_format(byte_tokenizer(chat_template=DEFAULT_CHAT_TEMPLATE)).name == "hermes", "hone describes them"
    assert find_format(byte_tokenizer()) is None
    assert find_format(byte_tokenizer(), "bracket").name == "bracket"
    with pytest.raises(ConfigError, match="did you mean hermes"):
        find_format(byte_tokenizer(), "herms")


def test_the_template_is_told_of_tools_and_reads_calls_as_objects(model):
    history = [
        {"role": "user", "content": "double 4"},
        {"role": "assistant", "content": None, "tool_calls": [CALLED]},
        {"role": "tool", "tool_call_id": "c", "content": "8"},
    ]
    text = model.served.tokenizer.decode(writer_of(model, messages=history).asked.prompts[0].tokens)
    assert '"double"' in text.split("[user]")[0]
    assert CALL in text
    assert text.endswith("[tool]8[assistant]")
    without = writer_of(model, messages=history, tool_choice="none").asked
    assert without.tools == () and model.served.tokenizer.decode(without.prompts[0].tokens).startswith("[user]")


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [(f"let me see {CALL}", "let me see", 1), (CALL + CALL, None, 2), ("8", "8", 0), (CALL[:-30], CALL[:-30], 0)],
)
def test_calls_are_told_in_openais_shape_whole_and_streamed(model, text, content, calls):
    """A call that cannot be read is text."""
    writer, done = writer_of(model, logprobs=True), answer(model, text)
    choice = writer.whole([PromptResults(writer.asked.prompts[0], {0: done})], 0)["choices"][0]
    message = choice["message"]
    assert message["content"] == content
    assert choice["finish_reason"] == ("tool_calls" if calls else "stop")
    found = message.get("tool_calls", [])
    assert [json.loads(one["function"]["arguments"]) for one in found] == [{"a": 4}] * calls
    assert len({one["id"] for one in found}) == calls
    streamed = StreamedChoice(writer, 0)
    for place, token in enumerate(done.tokens.tolist()):
        streamed.add(DrawnToken(request_id="r", sample_index=0, position=place, token=token, logp=0.0))
        assert streamed.piece() is None
    pieces = streamed.finish(done)
    assert "".join(one["delta"].get("content", "") for one in pieces) == (content or "")
    assert [one for piece in pieces for one in piece["delta"].get("tool_calls", [])] == [
        {"index": place, **one} for place, one in enumerate(found)
    ]
    assert pieces[-1]["finish_reason"] == choice["finish_reason"]
    told = [entry for piece in pieces if piece["logprobs"] for entry in piece["logprobs"]["content"]]
    assert told == choice["logprobs"]["content"]


@pytest.mark.parametrize(
    ("choice", "count", "begun"),
    [
        ("auto", 1, ""),
        ("required", 1, '<tool_call>\n{"name": "double'),
        ("required", 2, '<tool_call>\n{"name": "'),
        ({"type": "function", "function": {"name": "double"}}, 2, '<tool_call>\n{"name": "double'),
    ],
)
def test_a_required_call_is_begun_for_the_model(model, choice, count, begun):
    halve = {"type": "function", "function": {**TOOL["function"], "name": "halve"}}
    writer = writer_of(model, tools=[TOOL, halve][:count], tool_choice=choice)
    prompt = writer.asked.prompts[0].tokens
    assert model.served.tokenizer.decode(prompt).endswith("[assistant]" + begun)
    done = answer(model, CALL[len(begun) :])
    message = writer.whole([PromptResults(writer.asked.prompts[0], {0: done})], 0)["choices"][0]["message"]
    assert [one["function"]["name"] for one in message["tool_calls"]] == ["double"]


def test_bad_tools_are_refused(model, tmp_path):
    plain = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
    broken = {**CALLED, "function": {"name": "double", "arguments": "[1"}}
    bad = {
        "two of one name": ({"tools": [TOOL, TOOL]}, "tools"),
        "a choice of nothing": ({"tool_choice": "required"}, "tool_choice"),
        "another tool": (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "halve"}}},
            "tool_choice",
        ),
        "an unknown choice": ({"tools": [TOOL], "tool_choice": "maybe"}, "tool_choice"),
        "no JSON": (
            {"messages": [{"role": "assistant", "content": "", "tool_calls": [broken]}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
    }
    with live(model) as server:
        assert server.post("/v1/chat/completions", {**plain, "tools": [TOOL]}).status_code == 200
        for fields, param in bad.values():
            reply = server.post("/v1/chat/completions", {**plain, **fields})
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    unknown = HERMES.replace('{"name": "', "call ").replace("<tool_call>", "<call>")
    with live(opened(save_tiny(tmp_path, template=unknown))) as other:
        error = other.post("/v1/chat/completions", {**plain, "tools": [TOOL]}).json()["error"]
        assert (error["param"], error["code"]) == ("tools", "unsupported")
        told = {**plain, "tools": [], "chat_template_kwargs": {"tools": []}}
        error = other.post("/v1/chat/completions", told).json()["error"]
        assert (error["param"], error["code"]) == ("chat_template_kwargs", "invalid_value")


def test_a_template_that_describes_no_tools_is_told_by_hone(tmp_path):
    """The prompt describes them, and calls are read; `/tokenize` counts the same tokens."""
    model = opened(save_tiny(tmp_path, template=HERMES.partition("endif -%}")[2]))
    writer = writer_of(model, chat_template_kwargs={"mood": "x"})
    prompt = model.served.tokenizer.decode(writer.asked.prompts[0].tokens)
    assert prompt.startswith("[system]You have tools:") and CALL.replace("4", "1") in prompt
    choice = writer.whole([PromptResults(writer.asked.prompts[0], {0: answer(model, CALL)})], 0)["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    with live(model) as server:
        body = {"messages": [{"role": "user", "content": "a"}], "tools": [TOOL]}
        assert server.post("/tokenize", body).json()["tokens"] == writer.asked.prompts[0].tokens.tolist()
