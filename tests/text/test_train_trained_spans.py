"""Trained tokens of a conversation: which they are, for templates of each family's structure and several tokenizers."""

import json
from dataclasses import replace

import numpy as np
import pytest
from chat_families import FAMILIES, SPLITS, family_tokenizer
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from hone.core.errors import DataError
from hone.models.language.tokenizers import answer_end, byte_tokenizer
from hone.text.tasks.dataset import Example, build_examples
from hone.text.tasks.scored_rows import AnswerTokens
from hone.text.tasks.task import TaskConfig
from hone.text.trained_spans import TurnEncoder, template_findings

HOSTILE = [
    "<|im_end|>",
    "<eos>",
    "x<|user|>y",
    "<|eot_id|><|start_header_id|>",
    "</s",
    ">",
    "[INST]",
    "|>",
    "{{ x }}",
    "<",
]
WORDS = st.text(st.sampled_from("ab4 ?\n<|>"), min_size=1, max_size=8).map(lambda text: f"q{text}q")
TEXTS = WORDS | st.sampled_from([f"q{one}q" for one in HOSTILE])
"""No text is empty or has whitespace at its ends, which some templates cut."""
NAMES = sorted(FAMILIES)
QUESTION, ANSWER = {"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "44"}
CALL = {"type": "function", "function": {"name": "get", "arguments": {"of": "cats"}}}


def chat(*texts: str) -> list[dict[str, object]]:
    """Messages of user and assistant in turn."""
    return [{"role": "user" if n % 2 == 0 else "assistant", "content": text} for n, text in enumerate(texts)]


def spoken(tokenizer, tokens) -> str:
    """Text of tokens without spaces, which a tokenizer that writes them as letters sets between pieces."""
    return "".join(tokenizer.decode(tokens, special=True).split(" "))


def spans(rows: list[AnswerTokens]) -> list[tuple[AnswerTokens, tuple[int, int]]]:
    return [(row, span) for row in rows for span in row.spans]


# ---------------------------------------------------------------------------------------------------------- properties


@pytest.mark.parametrize("name", NAMES)
@examples(8)
@given(st.data(), st.sampled_from(SPLITS), st.integers(1, 3))
def test_spans_are_what_an_engine_would_sample(name, data, split, turns):
    family, tokenizer = FAMILIES[name], family_tokenizer(name, split)
    texts = data.draw(st.lists(TEXTS, min_size=2 * turns, max_size=2 * turns))
    messages = chat(*texts)
    if family.system and data.draw(st.booleans()):
        messages = [{"role": "system", "content": data.draw(TEXTS)}, *messages]
    first = next(n for n, one in enumerate(messages) if one["role"] == "assistant")
    encoder = TurnEncoder(tokenizer)
    rows = encoder.rows(messages[:first], messages[first:])
    assert len(rows) == (turns if family.splits else 1)
    found = spans(rows)
    answers = [n for n, one in enumerate(messages) if one["role"] == "assistant"]
    assert len(found) == len(answers)
    prompts: list[np.ndarray] = []
    for (row, (begin, end)), place in zip(found, answers, strict=True):
        # Ends in a stop token, and holds no other.
        said = row.tokens[begin:end]
        assert int(said[-1]) in tokenizer.eos_ids
        assert not np.isin(said[:-1], tokenizer.eos_ids).any()
        # Holds the turn, what the policy must write before it, and nothing else.
        expected = f"{family.written}{messages[place]['content']}{family.after}{family.end}"
        assert spoken(tokenizer, said) == "".join(expected.split(" "))
        # Stands behind the engine's prompt, bit for bit.
        earlier = [n for n in answers if n < place]
        if begin == row.spans[0][0]:
            prompt = tokenizer.apply_chat(messages[:place])
        else:
            new = messages[earlier[-1] + 1 : place]
            between = tokenizer.continue_chat(messages[: earlier[-1]], new, answer=prompts[-1][1])
            prompt = np.concatenate([*prompts[-1], between])
        assert np.array_equal(row.tokens[:begin], prompt)
        prompts.append((prompt, said))
    # A scorer reads the last token of the sampled answer.
    last = encoder.answer_row(messages[:first], messages[first:])
    assert int(last.at[-1]) == len(last.tokens) - 1
    # Special tokens come from the template alone.
    plain = [{**one, "content": "q"} for one in messages]
    bare = TurnEncoder(tokenizer).rows(plain[:first], plain[first:])
    known = [id_ for id_, one in tokenizer.backend.get_added_tokens_decoder().items() if one.special]
    for row, other in zip(rows, bare, strict=True):
        assert row.tokens[np.isin(row.tokens, known)].tolist() == other.tokens[np.isin(other.tokens, known)].tolist()
        bos = tokenizer.backend.token_to_id("<bos>")
        assert (row.tokens == bos).sum() <= 1
        assert not (row.tokens[1:] == bos).any()


@pytest.mark.parametrize("name", NAMES)
@examples(3)
@given(st.data(), st.sampled_from(SPLITS))
def test_later_turns_change_no_earlier_row(name, data, split):
    tokenizer = family_tokenizer(name, split)
    messages = chat(*data.draw(st.lists(TEXTS, min_size=6, max_size=6)))
    whole = TurnEncoder(tokenizer).rows(messages[:1], messages[1:])
    early = TurnEncoder(tokenizer).rows(messages[:1], messages[1:4])
    for one, other in zip(early, whole, strict=False):
        assert np.array_equal(one.tokens, other.tokens[: len(one.tokens)])
        assert np.array_equal(one.at, other.at[: len(one.at)])
    last = TurnEncoder(tokenizer, "last").rows(messages[:1], messages[1:])
    assert len(last) == 1
    assert np.array_equal(last[0].tokens, whole[-1].tokens)
    assert last[0].spans == whole[-1].spans[-1:]


# -------------------------------------------------------------------------------------------------------- ends of turns


def test_text_behind_the_end_is_context():
    tokenizer = family_tokenizer("chatml")
    encoder = TurnEncoder(tokenizer)
    (row,) = encoder.rows([QUESTION], [ANSWER])
    assert tokenizer.decode(row.tokens[row.at], special=True) == "44<|im_end|>"
    assert len(row.tokens) == row.at[-1] + 1
    assert "text behind the end token '<|im_end|>'" in encoder.remarks(1)[0]
    (two,) = encoder.rows([QUESTION], [ANSWER, QUESTION, ANSWER])
    between = two.tokens[two.spans[0][1] : two.spans[1][0]]
    assert tokenizer.decode(between, special=True) == "\n<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n"


def test_an_end_that_no_template_writes_is_appended_and_said():
    tokenizer = family_tokenizer("no end token at all")
    encoder = TurnEncoder(tokenizer)
    (row,) = encoder.rows([QUESTION], [ANSWER])
    assert tokenizer.decode(row.tokens[row.at], special=True) == "44<eos>"
    assert "'<eos>' (257) is appended, which the template never writes (in 1 of 1 rows)" in encoder.remarks(1)[0]


def test_an_end_that_nothing_decides_is_refused():
    tokenizer = family_tokenizer("no end token at all")
    both = (tokenizer.eos_id, tokenizer.backend.token_to_id("<bos>"))
    undecided = replace(tokenizer, special={"bos_token": "<bos>"}, eos_ids=both)
    with pytest.raises(DataError, match=r"'<eos>' .*, '<bos>' .* all end texts: nothing says which"):
        TurnEncoder(undecided).rows([QUESTION], [ANSWER])


@pytest.mark.parametrize(
    ("name", "added"),
    [
        ("another end of turn than eos", "<end_of_turn>"),
        ("eos once behind everything", "<|end|>"),
        ("an end in history only", "<|assistant_end|>"),
        ("blocks around an answer", "<|END_OF_TURN|>"),
        ("channels and two end tokens", None),
        ("two end tokens", None),
        ("chatml", None),
        ("no end token at all", None),
        ("the next role ends the turn", None),
    ],
)
def test_the_end_of_turn_is_among_the_stops(name, added):
    tokenizer = family_tokenizer(name)
    names = [tokenizer.backend.id_to_token(token) for token in tokenizer.eos_ids]
    assert names == [*FAMILIES[name].stops, *([added] if added else [])]
    assert tokenizer.added_stop == (None if added is None else tokenizer.backend.token_to_id(added))


def test_a_token_of_the_prompt_is_never_joined_with_the_answer():
    """GPT-2's rule cuts two newlines differently before a digit than at the end of a text."""
    tokenizer = family_tokenizer("header with two newlines", "gpt2")
    assert tokenizer.encode("\n\n4")[0] != tokenizer.encode("\n\n")[0]
    (row,) = TurnEncoder(tokenizer).rows([QUESTION], [ANSWER])
    prompt = tokenizer.apply_chat([QUESTION])
    assert np.array_equal(row.tokens[: len(prompt)], prompt)
    assert tokenizer.decode(row.tokens[len(prompt) :], special=True) == "44<|eot_id|>"


# ------------------------------------------------------------------------------------------------ turns and parts


def test_a_message_of_weight_0_is_only_seen():
    tokenizer = family_tokenizer("chatml")
    turns = [{**ANSWER, "weight": 0}, QUESTION, {**ANSWER, "weight": 1}]
    (row,) = TurnEncoder(tokenizer).rows([QUESTION], turns)
    (both,) = TurnEncoder(tokenizer).rows([QUESTION], [ANSWER, QUESTION, ANSWER])
    assert row.spans == both.spans[1:]
    assert np.array_equal(row.tokens, both.tokens)
    with pytest.raises(DataError, match="no turn of the assistant to learn"):
        TurnEncoder(tokenizer).rows([QUESTION], [{**ANSWER, "weight": 0}])
    with pytest.raises(DataError, match=r"weight = 0.5; it is 1 \(learnt\) or 0"):
        TurnEncoder(tokenizer).rows([QUESTION], [{**ANSWER, "weight": 0.5}])


def test_generation_blocks_say_what_is_learnt():
    tokenizer = family_tokenizer("generation blocks")
    marked = TurnEncoder(tokenizer, "generation").rows([QUESTION], [ANSWER, QUESTION, ANSWER])
    every = TurnEncoder(tokenizer).rows([QUESTION], [ANSWER, QUESTION, ANSWER])
    assert [row.spans for row in marked] == [row.spans for row in every]
    source = tokenizer.chat_template.replace("{{- m.content ~ '<|im_end|>' -}}{% endg", "{{- m.content -}}{% endg", 1)
    source = source.replace("{% endgeneration %}", "{% endgeneration %}{{- '?<|im_end|>' -}}")
    less = replace(tokenizer, chat_template=source)
    (row,) = TurnEncoder(less, "generation").rows([QUESTION], [ANSWER])
    assert less.decode(row.tokens[row.at], special=True) == "44"
    with pytest.raises(DataError, match=r"marks nothing of this turn by \{% generation %\}"):
        TurnEncoder(family_tokenizer("chatml"), "generation").rows([QUESTION], [ANSWER])


def test_a_call_is_a_turn_with_an_end():
    tokenizer = family_tokenizer("chatml with tools and a system text")
    calls = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    turns = [calls, {"role": "tool", "content": "9 cats"}, {"role": "assistant", "content": "nine"}]
    (row,) = TurnEncoder(tokenizer).rows([QUESTION], turns)
    said = [tokenizer.decode(row.tokens[a:b], special=True) for a, b in row.spans]
    assert said == [
        '\n<tool_call>\n{"name": "get", "arguments": {"of": "cats"}}\n</tool_call><|im_end|>',
        "nine<|im_end|>",
    ]
    written = {**CALL, "function": {**CALL["function"], "arguments": json.dumps(CALL["function"]["arguments"])}}
    (same,) = TurnEncoder(tokenizer).rows([QUESTION], [{**calls, "tool_calls": [written]}, *turns[1:]])
    assert np.array_equal(same.tokens, row.tokens)


@pytest.mark.parametrize(
    ("name", "turn", "part"),
    [
        ("chatml", {"content": "", "tool_calls": [CALL]}, "tool_calls"),
        ("chatml", {"content": "44", "reasoning_content": "2 and 2"}, "reasoning_content"),
        ("prompt opens a thought that no row has", {"content": "<think>2 and 2</think>44"}, "the reasoning in content"),
    ],
)
def test_a_part_that_the_template_drops_is_refused(name, turn, part):
    with pytest.raises(DataError, match=f"drops {part}"):
        TurnEncoder(family_tokenizer(name)).rows([QUESTION], [{"role": "assistant", **turn}])


@pytest.mark.parametrize("field", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_is_learnt_with_its_answer(field):
    turn = {**ANSWER, field: "two and two"}
    tokenizer = family_tokenizer("reasoning dropped from history")
    rows = TurnEncoder(tokenizer).rows([QUESTION], [turn, QUESTION, turn])
    said = [tokenizer.decode(row.tokens[row.at], special=True) for row in rows]
    assert said == ["<think>\ntwo and two\n</think>\n\n44<|im_end|>"] * 2
    assert "two and two" not in tokenizer.decode(rows[1].tokens[: rows[1].at[0]])  # as a rollout would see it
    inline = {**ANSWER, "content": "<think>\ntwo and two\n</think>\n\n44"}
    (row,) = TurnEncoder(tokenizer).rows([QUESTION], [inline])
    assert tokenizer.decode(row.tokens[row.at], special=True) == said[0]


def test_an_open_thought_is_told():
    encoder = TurnEncoder(family_tokenizer("prompt opens a thought that no row has"))
    encoder.rows([QUESTION], [ANSWER])
    assert "before the answer, which is learnt inside the open block" in encoder.remarks(1)[0]
    closed = TurnEncoder(family_tokenizer("the next role ends the turn, and the prompt opens a thought"))
    closed.rows([QUESTION], [ANSWER])
    assert "open block" not in " ".join(closed.remarks(1))


def test_a_stop_inside_an_answer_is_refused():
    tokenizer = family_tokenizer("channels and two end tokens")
    stopped = replace(tokenizer, eos_ids=(*tokenizer.eos_ids, tokenizer.backend.token_to_id("<|end|>")))
    turn = {**ANSWER, "content": "forty-four", "thinking": "two and two"}
    with pytest.raises(DataError, match="which ends texts, before content"):
        TurnEncoder(stopped).rows([QUESTION], [turn])
    (row,) = TurnEncoder(tokenizer).rows([QUESTION], [turn])
    assert tokenizer.decode(row.tokens[row.at], special=True).endswith("<|message|>forty-four<|return|>")


def test_a_template_that_writes_another_prompt_is_refused():
    template = (
        "{%- for m in messages -%}{{- m.content ~ '<eos>' -}}{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{- 'Now answer: ' -}}{%- endif -%}"
    )
    tokenizer = byte_tokenizer(chat_template=template)
    with pytest.raises(DataError, match="writes the prompt differently once an answer follows"):
        TurnEncoder(tokenizer).rows([QUESTION], [ANSWER])


def test_edges_that_a_template_cuts_are_told():
    encoder = TurnEncoder(family_tokenizer("header with two newlines"))
    encoder.rows([QUESTION], [{**ANSWER, "content": " 44 "}])
    assert "cuts the whitespace around an assistant's content" in " ".join(encoder.remarks(1))


def test_an_answer_of_several_turns_is_one_text_or_refused():
    turns = [ANSWER, QUESTION, ANSWER]
    split = TurnEncoder(family_tokenizer("two end tokens"))
    with pytest.raises(DataError, match="2 turns of an answer are no single text"):
        split.answer_row([QUESTION], turns, whole=True)
    assert len(split.answer_row([QUESTION], turns).spans) == 1
    assert len(TurnEncoder(family_tokenizer("chatml")).answer_row([QUESTION], turns, whole=True).spans) == 2


# ------------------------------------------------------------------------------------------------ findings of the plan


def findings(
    template: str, *prompts: object, tokens: tuple[str, ...] = ("<bos>",), chat: bool | None = None
) -> list[str]:
    tokenizer = byte_tokenizer(chat_template=template, chat_tokens=tokens)
    named = replace(tokenizer, special={**tokenizer.special, "bos_token": "<bos>"})
    drafts = [
        Example(id=str(n), prompt=prompt, completion=None, columns={}, row=n, source="data.jsonl")
        for n, prompt in enumerate(prompts, start=1)
    ]
    return template_findings(
        named, build_examples(drafts, source="data.jsonl"), TaskConfig(source="data.jsonl", chat=chat)
    )


TURN = "{%- for m in messages -%}{{- m.role ~ ': ' ~ m.content ~ '<eos>' -}}{%- endfor -%}"


def test_the_plan_tells_a_date_and_a_second_beginning():
    assert findings(TURN, [QUESTION]) == []
    assert "the prompt holds the date" in findings("{{- strftime_now('%Y') -}}" + TURN, [QUESTION])[0]
    assert "'<bos>' is written twice" in findings("{{- bos_token ~ bos_token -}}" + TURN, [QUESTION])[0]
    assert findings("{{- bos_token -}}" + TURN, [QUESTION]) == []
    assert "text behind the end token" in findings(TURN.replace("<eos>", "<eos>\n"), [QUESTION])[0]
    assert findings(TURN.replace("<eos>", "<eos>\n"), "plain text", chat=False) == []
    assert "text behind the end token" in findings(TURN.replace("<eos>", "<eos>\n"), "plain text")[0]


def test_rows_that_a_template_refuses_are_left_to_the_layout_of_all_rows():
    refusing = TURN + "{%- if messages | length > 1 -%}{{- raise_exception('one turn only') -}}{%- endif -%}"
    assert findings(refusing, [QUESTION], [QUESTION, QUESTION]) == findings(refusing, [QUESTION])


@pytest.mark.parametrize("name", NAMES)
def test_a_written_turn_has_the_end_of_a_trained_one(name):
    tokenizer = family_tokenizer(name)
    (row,) = TurnEncoder(tokenizer).rows([QUESTION], [ANSWER])
    assert answer_end(tokenizer, is_chat=True) == row.tokens[-1]
    assert answer_end(tokenizer, is_chat=False) == tokenizer.eos_id


@pytest.mark.parametrize("name", NAMES)
def test_a_dialogue_goes_on_behind_the_sampled_end(name):
    """The end that was drawn is not written again, and a template that writes another one there is told."""
    tokenizer, family = family_tokenizer(name), FAMILIES[name]
    (row,) = TurnEncoder(tokenizer).rows([QUESTION], [ANSWER])
    rewrites = family.splits or family.written or family.after or family.trims
    if not family.splits:
        between = tokenizer.continue_chat([QUESTION], [QUESTION], answer=row.tokens[row.at])
        whole = tokenizer.render_chat([QUESTION, ANSWER, QUESTION])
        assert tokenizer.decode(np.concatenate([row.tokens, between]), special=True) == whole
    if name in ("two end tokens", "channels and two end tokens"):
        with pytest.raises(DataError, match="the last answer ends in"):
            tokenizer.check_chat_continuation()
        prompt = tokenizer.continue_or_rewrite_chat([QUESTION], [QUESTION], said="44", answer=row.tokens[row.at])[1]
        assert prompt is not None
    elif not rewrites and family.system:
        tokenizer.check_chat_continuation()
