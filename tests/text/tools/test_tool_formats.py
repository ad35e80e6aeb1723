"""Formats of tool calls: rendered calls are parsed again, faults are words, templates of other formats are found."""

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hone.core.dialogue import ToolCall, ToolSchema
from hone.core.errors import ConfigError, DataError
from hone.text.tools.formats import TOOL_FORMATS, check_round_trip, same_calls

ROOT = Path(__file__).resolve().parents[3]


def schema(name: str, required: list[str] | None = None, **kinds: str) -> ToolSchema:
    properties = {key: {"type": kind} for key, kind in kinds.items()}
    names = list(kinds) if required is None else required
    parameters = {"type": "object", "properties": properties, "required": names}
    return ToolSchema(name=name, description=f"Tool {name}.", parameters=parameters)


SEARCH = schema("search", query="string")
ADD = schema("add", ["a", "b"], a="integer", b="number")
MIXED = schema("mixed", text="string", flags="boolean", items="array", table="object", nothing="null")
CLOCK = schema("clock")
TOOLS = (SEARCH, ADD, MIXED, CLOCK)

# Everything that formats use as marks, and everything that JSON escapes.
NASTY = st.text(
    st.one_of(st.sampled_from('<>[]{}"\\/\n\r\t ;:,='), st.characters(exclude_categories=["Cs"])), max_size=30
) | st.sampled_from([
    "", " ", "</tool_call>", "<tool_call>", "]", "[", '"]', "\n</parameter>\n</function>\n</tool_call>",
    "</parameter>", "<parameter=a>", "<function=x>", "null", "true", "5", "{}", '{"name": "x"}', "; {",
    "<|python_tag|>",    "\ufeff", "\u2028", "a\x00b", "]]", "\\", "\\u0041", "search",
])  # fmt: skip
NUMBER = st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBER | NASTY,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NASTY, inner, max_size=3),
    max_leaves=6,
)
CALLS = st.one_of(
    NASTY.map(lambda text: ToolCall(name="search", arguments={"query": text})),
    st.builds(lambda a, b: ToolCall(name="add", arguments={"a": a, "b": b}), st.integers(-(10**20), 10**20), NUMBER),
    st.builds(
        lambda text, flags, items, table: ToolCall(
            name="mixed", arguments={"text": text, "flags": flags, "items": items, "table": table, "nothing": None}
        ),
        NASTY,
        st.booleans(),
        st.lists(JSON, max_size=3),
        st.dictionaries(NASTY, JSON, max_size=3),
    ),
    st.just(ToolCall(name="clock", arguments={})),
)


@pytest.mark.parametrize("name", ["hermes", "llama3_json", "bracket"])
@given(calls=st.lists(CALLS, min_size=1, max_size=3))
def test_rendered_calls_are_parsed_again(name: str, calls: list[ToolCall]) -> None:
    found = TOOL_FORMATS[name]
    parsed = found.parse(found.render(calls, TOOLS), TOOLS)
    assert parsed.fault is None
    assert same_calls(parsed.calls, calls)
    assert parsed.content.strip("\n; ") == ""


@given(calls=st.lists(CALLS, min_size=1, max_size=3))
@example(calls=[ToolCall(name="search", arguments={"query": "a\n</parameter> b"})])
@example(calls=[ToolCall(name="search", arguments={"query": "\nx\n\n"})])
def test_qwen_xml_is_parsed_again_or_refused(calls: list[ToolCall]) -> None:
    found = TOOL_FORMATS["qwen_xml"]
    texts = [json.dumps(dict(one.arguments), ensure_ascii=False) for one in calls]
    try:
        text = found.render(calls, TOOLS)
    except ValueError as refused:
        assert any("</parameter>" in one for one in texts), "only text with closing tags cannot be written"
        assert "cannot write" in str(refused)
        return
    assert same_calls(found.parse(text, TOOLS).calls, calls)


@given(text=NASTY)
def test_one_tool_of_one_text_is_a_bare_bracket(text: str) -> None:
    found, call = TOOL_FORMATS["bracket"], ToolCall(name="search", arguments={"query": text})
    assert same_calls(found.parse(found.render([call], (SEARCH,)), (SEARCH,)).calls, [call])


def test_brackets_are_short() -> None:
    found = TOOL_FORMATS["bracket"]
    assert found.render([ToolCall(name="search", arguments={"query": "34+58"})], (SEARCH,)) == "[34+58]"
    assert found.render([ToolCall(name="search", arguments={"query": "34+58"})], TOOLS) == "[search 34+58]"
    assert found.render([ToolCall(name="add", arguments={"a": 1, "b": 2})], TOOLS) == '[add {"a": 1, "b": 2}]'
    assert found.render([ToolCall(name="clock", arguments={})], TOOLS) == "[clock]"


@pytest.mark.parametrize("name", TOOL_FORMATS)
@given(
    text=st.lists(NASTY | st.sampled_from(["<tool_call>", "<function=add>", '{"name": "add"', "[add "])).map("".join)
)
def test_any_text_is_parsed_without_an_exception(name: str, text: str) -> None:
    parsed = TOOL_FORMATS[name].parse(text, TOOLS)
    assert parsed.fault is None or not parsed.calls
    assert parsed.fault is None or parsed.fault.endswith("No tool was called.")


HERMES = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'
FAULTS = [
    ("hermes", HERMES.format("serch", '{"query": "x"}'), "unknown tool 'serch'; did you mean search?"),
    ("hermes", HERMES.format("search", '{"query": 5}'), "search: query is '5', not of type string"),
    ("hermes", HERMES.format("search", '{"query": "x", "limit": 5}'), "search has no parameter 'limit'; known: query"),
    ("hermes", HERMES.format("add", "{}"), "add needs a, b"),
    ("hermes", HERMES.format("add", '{"a": 1, "b": "2"}'), "add: b is \"'2'\", not of type number"),
    ("hermes", HERMES.format("add", '{"a": true, "b": 2}'), "add: a is 'True', not of type integer"),
    ("hermes", HERMES.format("add", '{"a": 1, "b": NaN}'), "invalid JSON: Out of range float"),
    ("hermes", HERMES.format("add", '{"a": 1, "a": 2, "b": 3}'), "invalid JSON: arguments: key 'a' occurs more"),
    ("hermes", HERMES.format("add", '"1, 2"'), "the arguments of add are \"'1, 2'\", not an object"),
    ("hermes", "<tool_call>{'name': 'add'}</tool_call>", "invalid JSON: Expecting property name"),
    ("hermes", "<tool_call>[]</tool_call>", 'a call is an object {"name": ..., "arguments": {...}}'),
    ("hermes", '<tool_call>{"name": "clock"} and', "</tool_call> is missing"),
    ("hermes", '<tool_call>{"name": "clock", "parameters": {}}</tool_call>', "unknown key 'parameters' in a call"),
    ("hermes", "<tool_call>" + "[" * 100_000, "invalid JSON"),
    ("llama3_json", '{"name": "clock"} is the call', "text after a call"),
    ("llama3_json", '{"name": "add", "parameters": {"a": 1', "invalid JSON"),
    ("llama3_json", '{"name": "clock", "arguments": {}}', "unknown key 'arguments' in a call"),
    ("qwen_xml", "<tool_call><function=add><parameter=a>x</parameter></function></tool_call>", "parameter 'a' is 'x'"),
    ("qwen_xml", "<tool_call>add(1, 2)</tool_call>", "<function=NAME> is missing"),
    ("qwen_xml", "<tool_call><function=add><parameter=a>1</function></tool_call>", "</function> is missing"),
    (
        "qwen_xml",
        "<tool_call><function=search><parameter=query>x</parameter><parameter=query>y</parameter></function></tool_call>",
        "parameter 'query' of search stands there twice",
    ),
    ("bracket", "[34+58]", "unknown tool '34+58'"),
    ("bracket", "[]", "a bracket begins with the name of a tool"),
    ("bracket", "[add 1 2]", "the arguments of add are '1', not an object"),
    ("bracket", '[search "a" b]', "] is missing"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "words"), FAULTS)
def test_faults_are_words_for_the_model(name: str, text: str, words: str) -> None:
    parsed = TOOL_FORMATS[name].parse(text, TOOLS)
    assert parsed.calls == ()
    assert parsed.fault is not None
    assert words in parsed.fault
    assert len(parsed.fault) < 500


def test_all_faults_of_an_answer_are_told_and_no_call_is_made() -> None:
    good, bad = HERMES.format("clock", "{}"), HERMES.format("clok", "{}")
    parsed = TOOL_FORMATS["hermes"].parse(good + bad + HERMES.format("add", '{"a": 1}'), TOOLS)
    assert parsed.calls == ()
    assert parsed.fault is not None
    assert "clok" in parsed.fault
    assert "add needs b" in parsed.fault


@pytest.mark.parametrize(
    ("name", "text", "content"),
    [
        ("hermes", "I look.\n" + HERMES.format("clock", "{}") + " ok", "I look.\n ok"),
        ("hermes", 'I look. <tool_call>{"name": "clock"}', "I look. "),
        ("llama3_json", '<|python_tag|>{"name": "clock", "parameters": {}}', "<|python_tag|>"),
        ("qwen_xml", "Hm. <tool_call>\n<function=clock>\n</function>\n</tool_call>", "Hm. "),
        ("bracket", "It is [clock", "It is "),
    ],
)
def test_text_around_calls_stays(name: str, text: str, content: str) -> None:
    parsed = TOOL_FORMATS[name].parse(text, TOOLS)
    assert [one.name for one in parsed.calls] == ["clock"]
    assert parsed.content == content


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_an_answer_without_calls_is_its_text(name: str) -> None:
    parsed = TOOL_FORMATS[name].parse('The answer is {"x": 4}.', TOOLS)
    assert (parsed.content, parsed.calls, parsed.fault) == ('The answer is {"x": 4}.', (), None)


def test_qwen_xml_reads_what_python_templates_write() -> None:
    text = (
        "<tool_call><function=mixed><parameter=text>5</parameter><parameter=flags>True</parameter>"
        "<parameter=items>[1]</parameter><parameter=table>{}</parameter><parameter=nothing>None</parameter>"
        "</function></tool_call>"
    )
    parsed = TOOL_FORMATS["qwen_xml"].parse(text, TOOLS)
    assert parsed.fault is None
    assert dict(parsed.calls[0].arguments) == {"text": "5", "flags": True, "items": [1], "table": {}, "nothing": None}


def template(style: str, tools=TOOLS):
    """A chat template in one format; `plain` writes no calls, `strict` refuses them."""

    def render(messages, /, *, add_generation_prompt: bool) -> str:
        text = ""
        for one in messages:
            calls = [
                ToolCall(name=call["function"]["name"], arguments=call["function"]["arguments"])
                for call in one.get("tool_calls", ())
            ]
            if calls and style == "strict":
                raise DataError("no calls here")
            written = TOOL_FORMATS[style].renderer(calls, tools) if style in TOOL_FORMATS and calls else ""
            text += f"<|im_start|>{one['role']}\n{one['content']}{written}<|im_end|>\n"
        return text + ("<|im_start|>assistant\n" if add_generation_prompt else "")

    return render


@pytest.mark.parametrize("style", ["hermes", "llama3_json", "qwen_xml", "bracket", "plain", "strict"])
@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_a_template_of_another_format_is_refused(style: str, name: str) -> None:
    if style in (name, "plain", "strict"):
        check_round_trip(TOOL_FORMATS[name], TOOLS, template(style))
        return
    with pytest.raises(ConfigError) as refused:
        check_round_trip(TOOL_FORMATS[name], TOOLS, template(style))
    message = str(refused.value)
    assert f"task.tools.format = '{name}'" in message
    assert "The template writes" in message
    assert "the format writes" in message
    assert f"Formats that read it: {style}" in message


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_bounds_and_nested_types_of_a_tool_are_no_fault_of_its_template(name: str) -> None:
    point = {"$ref": "#/$defs/Point"}
    parameters = {
        "type": "object", "required": ["size", "word", "at", "places"], "properties": {
            "size": {"type": "integer", "minimum": 10}, "word": {"type": "string", "pattern": "^[a-z]$"}, "at": point,
            "places": {"type": "array", "items": point, "minItems": 1},
        },
        "$defs": {"Point": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}},
    }  # fmt: skip
    tools = (ToolSchema(name="draw", description="Draw.", parameters=parameters),)
    check_round_trip(TOOL_FORMATS[name], tools, template(name, tools))
    good = ToolCall(name="draw", arguments={"size": 12, "word": "a", "at": {"x": 1}, "places": [{"x": 2}]})
    assert same_calls(TOOL_FORMATS[name].parse(TOOL_FORMATS[name].render([good], tools), tools).calls, [good])


FAMILIES = {
    "qwen2_5": "hermes", "qwen3": "hermes", "qwen3_instruct_2507": "hermes", "llama3_1": "llama3_json",
    "llama3_2": "llama3_json", "qwen3_5_think": "qwen_xml", "qwen3_6": "qwen_xml", "nemotron_3_nano": "qwen_xml",
}  # fmt: skip
"""Chat templates of models, as TRL brings them, and the format of their calls."""


@pytest.mark.slow  # makes an environment with TRL
def test_templates_of_models_write_calls_in_the_format_of_their_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from peers import require_peer
    from transformers.utils.chat_template_utils import render_jinja_template

    (folder,) = (require_peer("trl").parents[1] / "lib").glob("python3*/site-packages/trl/chat_templates")
    described = [one.as_function() for one in (SEARCH, ADD, CLOCK)]
    for family, fitting in FAMILIES.items():
        text = (folder / f"{family}.jinja").read_text()

        def render(messages, /, *, add_generation_prompt: bool, text=text) -> str:
            (rendered,), _ = render_jinja_template(
                conversations=[list(messages)], chat_template=text, tools=described,
                add_generation_prompt=add_generation_prompt, bos_token="<s>", eos_token="</s>",
            )  # fmt: skip
            return rendered

        check_round_trip(TOOL_FORMATS[fitting], (SEARCH, ADD, CLOCK), render)
        for other in TOOL_FORMATS.keys() - {fitting}:
            with pytest.raises(ConfigError, match=f"Formats that read it: {fitting}"):
                check_round_trip(TOOL_FORMATS[other], (SEARCH, ADD, CLOCK), render)
