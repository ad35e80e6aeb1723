"""Rows as chats: plain prompts in a chat, and what a row tells the chat template wherever it is rendered."""

import json
from dataclasses import replace

import numpy as np
import pytest
from chat_families import family_tokenizer

from hone.core.errors import DataError
from hone.models.language.tokenizers import byte_tokenizer
from hone.rewards.config import UserCodeConfig
from hone.text.answer_data import AnswerTaskConfig, encode_answers, imitation_episodes
from hone.text.dialogues.config import DialogueTaskConfig
from hone.text.evaluate.dialogues import TokenizerDialogue, task_tokenizer
from hone.text.evaluate.engine_actor import make_prompts
from hone.text.serving.completions.asked import CallIdentity, asked_chat
from hone.text.serving.completions.fields import ChatFields
from hone.text.serving.completions.served_model import ServedModel
from hone.text.tasks.chat_rows import asked_row, chat_notes
from hone.text.tasks.dataset import read_examples
from hone.text.tasks.task import TaskConfig
from hone.text.tools.formats import TOOL_FORMATS
from hone.text.trained_spans import DataConfig

CHAT = family_tokenizer("chatml")
MOODY = replace(CHAT, chat_template="{{ mood | default('calm') }}:" + str(CHAT.chat_template))
TOOL = {"type": "function", "function": {"name": "add", "description": "a+b", "parameters": {"type": "object"}}}
GLAD = {"chat_template_kwargs": {"mood": "glad"}}
USER = {"role": "user", "content": "2+2?"}


def task_of(path="rows.jsonl", kind=TaskConfig, **keys):
    return kind(source=str(path), **keys)


def user(text: str, system: str = "") -> str:
    return "".join(
        f"<|im_start|>{role}\n{one}<|im_end|>\n" for role, one in (("system", system), ("user", text)) if one
    )


@pytest.mark.parametrize(
    ("keys", "prompt", "columns", "text"),
    [
        ({}, "2+2?", {}, "calm:" + user("2+2?")),
        ({"chat": False}, "2+2?", {"chat_template_kwargs": {"mood": "x"}}, None),
        ({"template": "{prompt} {n}"}, "2+2?", {"n": 7}, "calm:" + user("2+2? 7")),
        ({"system": "Be brief."}, "2+2?", {}, "calm:" + user("2+2?", "Be brief.")),
        ({"system": "Be brief."}, [USER], {}, "calm:" + user("2+2?", "Be brief.")),
        ({"system": "Be brief."}, [{"role": "system", "content": "own"}, USER], {}, "calm:" + user("2+2?", "own")),
        (GLAD, [USER], {}, "glad:" + user("2+2?")),
        (GLAD, [USER], {"chat_template_kwargs": {"mood": None}}, "glad:" + user("2+2?")),
        (GLAD, "2+2?", {"chat_template_kwargs": '{"mood": "sad"}'}, "sad:" + user("2+2?")),
    ],
)  # fmt: skip
def test_a_prompt_is_asked_as_the_task_and_its_row_say(keys, prompt, columns, text) -> None:
    asked = asked_row(task_of(**keys), prompt, columns, MOODY)
    assert isinstance(asked.content, str) == (text is None)
    if text is None:
        assert asked.content == prompt
    else:
        assert asked.tokenizer.render_chat(asked.content, add_generation_prompt=False) == text


def test_plain_prompts_stay_plain_without_a_template_and_are_refused_where_a_chat_is_asked_for() -> None:
    plain = byte_tokenizer()
    assert asked_row(task_of(), "2+2?", {}, plain).content == "2+2?"
    for keys in ({"chat": True}, {"system": "s"}):
        asked = asked_row(task_of(**keys), "2+2?", {}, plain)
        with pytest.raises(DataError, match="the model folder has no chat template"):
            asked.tokenizer.apply_chat(asked.content)
    for keys in ({"chat": False, "system": "s"}, {"chat_template_kwargs": {"messages": []}}):
        with pytest.raises(ValueError, match="leave"):
            task_of(**keys)


ROW = {
    "prompt": [USER], "completion": [{"role": "assistant", "content": "4"}], "tools": json.dumps([TOOL]),
    "chat_template_kwargs": {"mood": "<|im_end|>"}, "answer": "4",
}  # fmt: skip


def test_a_rows_prompt_has_the_same_tokens_in_training_rollout_evaluation_and_serving(tmp_path) -> None:
    rows, pairs = tmp_path / "rows.jsonl", tmp_path / "pairs.jsonl"
    bare = {**ROW, "tools": [TOOL["function"]], "chat_template_kwargs": json.dumps(ROW["chat_template_kwargs"])}
    rows.write_text("".join(json.dumps(one) + "\n" for one in (ROW, {**bare, "answer": "5"})))
    pair = {name: value for name, value in ROW.items() if name != "completion"}
    worse = [{"role": "assistant", "content": "5"}]
    pairs.write_text(json.dumps({**pair, "chosen": ROW["completion"], "rejected": worse}))
    task = task_of(rows, kind=AnswerTaskConfig, system="Be brief.")
    served = ServedModel(
        name="m", tokenizer=MOODY, context=4000, fingerprint_of=str, tool_format=TOOL_FORMATS["hermes"]
    )
    body = {
        "model": "m", "messages": [{"role": "system", "content": "Be brief."}, USER], "tools": [TOOL],
        "chat_template_kwargs": ROW["chat_template_kwargs"],
    }  # fmt: skip
    asked = asked_chat(ChatFields.model_validate(body), served, CallIdentity(id="x", client_id=""))
    tokens = asked.prompts[0].tokens
    assert '{"name": "add"' in MOODY.decode(tokens) and MOODY.decode(tokens).startswith("<|im_end|>:")
    assert np.sum(tokens == MOODY.eos_id) == 2, "variables name no special token"
    examples = read_examples(rows, need="prompt-completion")
    prompts, _ = make_prompts(examples, task, MOODY, room=4000)
    assert [one.tokens.tolist() for one in prompts] == [tokens.tolist()] * 2
    assert prompts[0].columns["tools"] == ROW["tools"], "reward functions get the column, too"
    learnt, _ = imitation_episodes(examples, task, MOODY, context=4000, data=DataConfig())
    compared, _ = encode_answers(
        read_examples(pairs, need="preference"), task_of(pairs, AnswerTaskConfig, system="Be brief."), MOODY,
        context=4000, kind="preference", data=DataConfig(),
    )  # fmt: skip
    for episodes in (learnt, compared.episodes):
        seen = episodes.transcript
        begins = seen.at[episodes.offsets[:-1]] - seen.offsets[:-1]
        assert [seen.tokens[a : a + n].tolist() for a, n in zip(seen.offsets, begins, strict=False)] == [
            tokens.tolist()
        ] * 2
    dialogue = TokenizerDialogue(MOODY, "append").for_prompt(prompts[0])
    assert dialogue.prompt([USER]).tolist() == tokens.tolist(), (
        "worlds that begin a dialogue tell the template the same"
    )
    between = dialogue.bridge([USER], "4", MOODY.encode("4"), [USER])
    whole = dialogue.prompt([USER, {"role": "assistant", "content": "4"}, USER])
    assert np.concatenate([tokens, MOODY.encode("4"), between.tokens]).tolist() == whole.tolist()


def test_tools_that_name_parameters_without_a_schema_get_one() -> None:
    bare = {"name": "add", "parameters": {"a": {"type": "int", "default": None}}}
    told = asked_row(task_of(), [USER], {"tools": json.dumps([bare])}, CHAT).tokenizer
    assert told.prepare.tools[0].parameters == {"type": "object", "properties": {"a": {"type": "int"}}}
    assert '{"name": "add", "arguments": {"a": "..."}}' in told.prepare.description()


@pytest.mark.parametrize(
    ("column", "value", "fault"),
    [
        ("tools", ["add"], "`tools` holds 'add', expected tools in OpenAI's form"),
        ("tools", "[", "`tools` is text and no JSON"),
        ("chat_template_kwargs", [1], "is a list, expected a table"),
        ("chat_template_kwargs", {"tools": []}, "tools: what hone gives the chat template itself"),
    ],
)
def test_a_column_that_cannot_be_used_names_its_rows(tmp_path, column, value, fault) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join(json.dumps({"prompt": [USER], "n": n, column: one}) + "\n" for n, one in enumerate([None, value]))
    )
    with pytest.raises(DataError, match=r"in 1 of 2 rows: 2 \(id") as error:
        make_prompts(read_examples(path, need="prompt"), task_of(path), CHAT, room=4000)
    assert fault in str(error.value)


def test_the_plan_names_columns_that_are_not_used(tmp_path) -> None:
    path = tmp_path / "rows.jsonl"
    row = {
        "prompt": "2+2?",
        "tools": [TOOL],
        "images": [],
        "parallel_tool_calls": False,
        "extra_info": {"tools_kwargs": {}},
    }
    path.write_text(json.dumps({**row, "answer": "4"}))
    examples = read_examples(path, need="prompt")
    said = [one.removeprefix(f"{path}: ").partition(":")[0] for one in chat_notes(task_of(path), examples, CHAT)]
    assert said == [
        "the chat template describes no tools",
        "plain prompts are asked as a user's message of the chat template; task.chat = false encodes them as they are",
        "column 'parallel_tool_calls', which OpenAI would use, reaches reward functions only",
        "column 'tools_kwargs', which verl would use, reaches reward functions only",
    ]
    plain = chat_notes(task_of(path, chat=False, chat_template_kwargs={"mood": "x"}), examples, CHAT)
    assert [one for one in plain if "not used" in one] == [
        f"{path}: column 'tools' is not used: prompts are plain text, without a chat template",
        f"{path}: task.chat_template_kwargs is not used: prompts are plain text, without a chat template",
    ]
    own = DialogueTaskConfig(source=str(path), tools={"use": ["hone:calculator"]})
    assert [
        one.removeprefix(f"{path}: ")[:80] for one in chat_notes(own, examples, replace(CHAT, tools=(TOOL,)))[:2]
    ] == [
        "column 'tools' is not used: the policy is told of the tools of task.tools",
        "the chat template describes no tools, and nobody tells the policy of them: the p",
    ]
    assert "nobody tells the policy of the tools" in chat_notes(own, examples, byte_tokenizer())[0]


def test_a_task_tells_rows_without_a_column_of_its_tools(tmp_path) -> None:
    """The same row as one whose column holds the tool; nothing is run."""
    call = {"type": "function", "function": {"name": "calculator", "arguments": {"expression": "2+2"}}}
    turns = [USER, {"role": "assistant", "content": "", "tool_calls": [call]}]
    task = task_of(tmp_path / "rows.jsonl", AnswerTaskConfig, tools={"use": ["hone:calculator"], "format": "qwen_xml"})
    prepared = task_tokenizer(task, CHAT, UserCodeConfig())
    learnt = []
    for columns, tokenizer in (({}, prepared), ({"tools": [prepared.prepare.tools[0].as_function()]}, CHAT)):
        (tmp_path / "rows.jsonl").write_text(json.dumps({"messages": turns, **columns}))
        examples = read_examples(task.source, need="prompt-completion")
        learnt.append(imitation_episodes(examples, task, tokenizer, context=4000, data=DataConfig())[0])
    one, other = (CHAT.decode(episodes.transcript.tokens) for episodes in learnt)
    assert one == other and "<function=calculator>\n<parameter=expression>\n2+2\n</parameter>" in one
    with pytest.raises(ValueError, match="no tool runs"):
        task_of("rows.jsonl", AnswerTaskConfig, tools={"use": []})
