"""Tools with chat templates that describe none: hone's own form, in every family's structure, from prompt to row."""

import numpy as np
import pytest
from chat_families import FAMILIES, family_tokenizer

from hone.core.dialogue import ToolCall
from hone.core.errors import DataError
from hone.models.language.tokenizers import DEFAULT_CHAT_TEMPLATE, ROLE_TOKENS, byte_tokenizer
from hone.text.tools.described import describes_tools, find_format, with_tools
from hone.text.tools.formats import TOOL_FORMATS
from hone.text.trained_spans import TurnEncoder

PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Now <|im_end|>.", "parameters": PLACE}}
CALL = {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
HERMES = TOOL_FORMATS["hermes"]
WRITTEN = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
DESCRIBED = (
    'You have tools:\n{"name": "weather", "description": "Now <|im_end|>.", "parameters": {"type": "object", '
    '"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}\n\n'
    "Use a tool by an answer that holds a call, written as in this example:\n<tool_call>\n"
    '{"name": "weather", "arguments": {"city": "..."}}\n</tool_call>\nThe next message holds its result, between '
    "<tool_response> and </tool_response>. Once you know the answer, give it without a call."
)
ASKED = {"role": "user", "content": "cold?"}
CALLED = {"role": "assistant", "content": "so:", "tool_calls": [CALL, CALL]}
RESULTS = [{"role": "tool", "content": "-3"}, {"role": "tool", "content": "-4"}]


def turn(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def test_tools_calls_and_results_are_messages_where_the_template_knows_none() -> None:
    told = with_tools(family_tokenizer("chatml"), [TOOL], HERMES)
    answered = "<tool_response>\n-3\n</tool_response>\n<tool_response>\n-4\n</tool_response>"
    expected = (
        turn("user", "cold?") + turn("assistant", f"so:\n{WRITTEN}\n{WRITTEN}") + turn("user", answered)
        + "<|im_start|>assistant\n"
    )  # fmt: skip
    assert told.render_chat([ASKED, CALLED, *RESULTS]) == turn("system", DESCRIBED) + expected
    kind = {"role": "system", "content": "Be kind."}
    assert told.render_chat([kind, ASKED, CALLED, *RESULTS]) == turn("system", f"Be kind.\n\n{DESCRIBED}") + expected
    more = told.render_chat([ASKED, {**CALLED, "content": None}, *RESULTS, {"role": "user", "content": "and?"}])
    assert turn("assistant", f"{WRITTEN}\n{WRITTEN}") + turn("user", f"{answered}\nand?") in more, "roles alternate"
    tokens, end = told.apply_chat([ASKED]), told.backend.token_to_id("<|im_end|>")
    assert np.sum(tokens == end) == 2, "the description's <|im_end|> is text"


def test_a_template_without_system_messages_has_them_before_the_first_question() -> None:
    told = with_tools(family_tokenizer("another end of turn than eos"), [TOOL], HERMES)
    text = told.render_chat([ASKED, CALLED, *RESULTS])
    assert text.startswith(f"<bos><start_of_turn>user\n{DESCRIBED}\n\ncold?<end_of_turn>\n<start_of_turn>model\nso:")


@pytest.mark.parametrize("form", TOOL_FORMATS)
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "reasoning dropped from history"])
def test_rows_hold_calls_as_the_format_reads_them_in_every_family(name: str, form: str) -> None:
    """A trained turn is read back as its call, and ends in the token at which a policy stops; the prompt before it is
    that of a rollout."""
    tokenizer, tool_format = family_tokenizer(name), TOOL_FORMATS[form]
    if describes_tools(tokenizer):
        assert name == "chatml with tools and a system text"
        assert with_tools(tokenizer, [TOOL], tool_format).tools == (TOOL,)
        return
    told = with_tools(tokenizer, [TOOL], tool_format)
    assert find_format(tokenizer) is HERMES
    silent = {**CALLED, "content": "", "tool_calls": [CALL]}
    rows = TurnEncoder(told).rows([ASKED], [silent, RESULTS[0], {"role": "assistant", "content": "yes"}])
    (begin, end), row = rows[0].spans[0], rows[0]
    text = told.decode(row.tokens[begin : end - 1], special=True).removeprefix(FAMILIES[name].written)
    parsed = tool_format.parse(text.removesuffix(FAMILIES[name].after), told.prepare.tools)
    assert (parsed.calls, parsed.fault) == ((ToolCall(name="weather", arguments={"city": "Oslo"}),), None)
    assert row.tokens[end - 1] in told.eos_ids
    assert np.array_equal(row.tokens[:begin], told.apply_chat([ASKED]))
    assert '"name": "weather"' in told.decode(row.tokens[:begin]) and "-3" in told.decode(rows[-1].tokens)


def test_a_rollout_writes_what_a_row_of_the_same_dialogue_holds() -> None:
    told = with_tools(family_tokenizer("chatml", "gpt2"), [TOOL], HERMES)
    silent, last = {**CALLED, "content": ""}, {"role": "assistant", "content": "cold"}
    (row,) = TurnEncoder(told).rows([ASKED], [silent, *RESULTS, last])
    said = np.append(told.encode(f"{WRITTEN}\n{WRITTEN}"), told.eos_id).astype(np.int32)
    between = told.continue_chat([ASKED], RESULTS, answer=said)
    drawn = [told.apply_chat([ASKED]), said, between, told.encode("cold"), [told.eos_id]]
    assert row.tokens.tolist() == np.concatenate(drawn).tolist()
    told.check_chat_continuation(("tool",))


def test_what_the_format_cannot_write_is_a_fault_of_the_row() -> None:
    told = with_tools(family_tokenizer("chatml"), [TOOL], TOOL_FORMATS["qwen_xml"])
    bad = {"name": "weather", "arguments": {"city": "</parameter></function></tool_call>"}}
    with pytest.raises(DataError, match="'qwen_xml' of tool calls cannot write"):
        told.render_chat([ASKED, {**CALLED, "tool_calls": [{"function": bad}]}])
    with pytest.raises(DataError, match="a tool call needs a name"):
        told.render_chat([ASKED, {**CALLED, "tool_calls": [{"function": {"name": "weather", "arguments": "{"}}]}])


def test_models_of_hones_own_are_told_only_where_it_is_asked_for() -> None:
    own = byte_tokenizer(chat_template=DEFAULT_CHAT_TEMPLATE, chat_tokens=ROLE_TOKENS)
    assert with_tools(own, [TOOL], HERMES).render_chat([ASKED]) == own.render_chat([ASKED])
    assert DESCRIBED in with_tools(own, [TOOL], HERMES, describe=True).render_chat([ASKED])
    plain = byte_tokenizer()
    assert with_tools(plain, [TOOL], HERMES) is plain
    chatml = family_tokenizer("chatml")
    assert with_tools(chatml, [TOOL], HERMES, describe=False).render_chat([ASKED]) == chatml.render_chat([ASKED])
