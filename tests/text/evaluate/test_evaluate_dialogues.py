"""Tokens of dialogues by tokenizers and chat templates: what was drawn is kept, whatever a world or template says."""

import json
from pathlib import Path

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from hone.core.conversation import Message
from hone.core.errors import ConfigError, DataError, UserCodeError
from hone.models.language.tokenizers import Tokenizer, byte_tokenizer
from hone.rewards.config import RewardsConfig, UserCodeConfig
from hone.text.dialogues.config import DialogueTaskConfig
from hone.text.evaluate.dialogues import (
    DialogueLimits,
    TokenizerDialogue,
    dialogue_faults,
    open_dialogue,
    with_world_reward,
)

MARKS = ("<|im_start|>", "<|im_end|>")
TURN = "'<|im_start|>' + message.role + '\\n' + {text} + '<eos>\\n'"
OPEN = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"


def template(text: str) -> str:
    return "{% for message in messages %}{{ " + TURN.format(text=text) + " }}{% endfor %}" + OPEN


CHATML = template("message.content")
TRIMMING = template("(message.content | trim)")
LAST_USER = (
    "{% set ns = namespace(last=-1) %}{% for message in messages %}{% if message.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
)
THOUGHTLESS = (
    LAST_USER
    + (
        "{% for message in messages %}{% set text = message.content %}"
        "{% if message.role == 'assistant' and loop.index0 < ns.last and '</think>' in text %}"
        "{% set text = text.split('</think>')[-1] %}{% endif %}{{ "
    )
    + TURN.format(text="text")
    + " }}{% endfor %}"
    + OPEN
)
COUNTING = (
    "{% for message in messages %}{{ messages | length if loop.first else '' }}{{ "
    + TURN.format(text="message.content")
    + " }}{% endfor %}"
    + OPEN
)
"""Writes the number of messages at the beginning: rewrites the prompt."""
TEMPLATES = {"chatml": CHATML, "trimming": TRIMMING, "thoughtless": THOUGHTLESS}
ANSWERS = [
    "an answer",
    " spaces at both ends ",
    "",
    "<|im_end|> and <eos> as text",
    "<think>a thought</think>answer",
    "é\n",
]


def tokenizer_of(text: str) -> Tokenizer:
    return byte_tokenizer(chat_template=text, chat_tokens=MARKS)


SAID = st.sampled_from(ANSWERS) | st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Co"]), max_size=12)


@pytest.mark.parametrize("name", TEMPLATES)
@examples(25)
@given(turns=st.lists(st.tuples(SAID, st.booleans(), SAID), min_size=1, max_size=4))
def test_each_turn_begins_with_the_tokens_of_the_one_before(name: str, turns: list[tuple[str, bool, str]]) -> None:
    """Or a new row begins, and only where the template would have written something else."""
    tokenizer = tokenizer_of(TEMPLATES[name])
    tokens = TokenizerDialogue(tokenizer, "template")
    history: list[Message] = [{"role": "user", "content": "a question"}]
    row = tokens.prompt(history)
    for said, ended, reply in turns:
        answer = np.append(tokenizer.encode(said), [tokenizer.eos_id] if ended else []).astype(np.int32)
        new: list[Message] = [{"role": "user", "content": reply}]
        bridge = tokens.bridge(history, said, answer, new)
        history = [*history, {"role": "assistant", "content": said}, *new]
        whole = tokenizer.apply_chat(history)
        if bridge.prompt is None:
            row = np.concatenate([row, answer, bridge.tokens])
            assert tokenizer.decode(row, special=True) == tokenizer.decode(whole, special=True)
            if ended:
                assert row.tolist() == whole.tolist(), "as the template writes the whole"
        else:
            assert name != "chatml", "which keeps everything"
            assert bridge.prompt.tolist() == whole.tolist()
            row = bridge.prompt
        ends = np.flatnonzero(np.isin(row, tokenizer.eos_ids))
        assert len(ends) == len(history), "a token of the end for each message, and none that a text spells"


@pytest.mark.parametrize(
    ("name", "rewritten"), [("trimming", " spaces at both ends "), ("thoughtless", "<think>x</think>y")]
)
def test_a_template_that_rewrites_history_begins_a_new_row(name: str, rewritten: str) -> None:
    tokens = TokenizerDialogue(tokenizer_of(TEMPLATES[name]), "template")
    history, new = [{"role": "user", "content": "q"}], [{"role": "user", "content": "r"}]
    assert tokens.bridge(history, "plain", tokens.encode("plain"), new).prompt is None
    assert tokens.bridge(history, rewritten, tokens.encode(rewritten), new).prompt is not None
    if name == "thoughtless":
        tool = [{"role": "tool", "content": "r"}]
        assert tokens.bridge(history, rewritten, tokens.encode(rewritten), tool).prompt is None, "no user has spoken"


CHAT = {"source": "dialogue:dialogue_worlds:Counting", "size": 3}
LIMITS = DialogueLimits(max_tokens=8, context=200)


@pytest.mark.parametrize(
    ("text", "history", "said"),
    [
        (TRIMMING, "append", "rewrites history: after the answer ' spaces at both ends '"),
        (THOUGHTLESS, "append", "rewrites history: after the answer '<think>a thought"),
        (COUNTING, "append", "rewrites the prompt once an answer"),
        (COUNTING, "template", "rewrites the prompt once an answer"),
    ],
)
def test_templates_that_cannot_be_followed_are_refused_with_both_renderings(text: str, history: str, said: str) -> None:
    opened = open_dialogue(DialogueTaskConfig.model_validate(CHAT), UserCodeConfig())
    assert opened is not None
    limits = DialogueLimits(max_tokens=8, context=200, history=history)  # type: ignore[arg-type]
    try:
        with pytest.raises(DataError, match=said) as error:
            opened.check(tokenizer_of(text), limits)
    finally:
        opened.close()
    assert str(error.value).count("<|im_start|>") >= 4, "both texts"


@pytest.mark.parametrize("text", [TRIMMING, THOUGHTLESS])
def test_history_by_the_template_takes_them(text: str) -> None:
    opened = open_dialogue(DialogueTaskConfig.model_validate(CHAT), UserCodeConfig())
    assert opened is not None
    try:
        opened.check(tokenizer_of(text), DialogueLimits(max_tokens=8, context=200, history="template"))
    finally:
        opened.close()


@pytest.mark.parametrize(
    ("task", "limits", "error", "said"),
    [
        (CHAT, DialogueLimits(max_tokens=8, context=20), ConfigError, "rollout.context = 20 has no room for a turn"),
        ({**CHAT, "source": "dialogue:dialogue_worlds:RaisesInBegin"}, LIMITS, UserCodeError, "failed on the first"),
        ({**CHAT, "tools": {"use": ["dialogue_worlds:nothing"]}}, LIMITS, UserCodeError, "has no 'nothing'"),
        ({**CHAT, "source": "dialogue:dialogue_worlds:Nobody"}, LIMITS, UserCodeError, "has no 'Nobody'"),
    ],
)  # fmt: skip
def test_faults_are_found_before_a_model_is_loaded(
    task: dict, limits: DialogueLimits, error: type[Exception], said: str
) -> None:
    opened = open_dialogue(DialogueTaskConfig.model_validate(task), UserCodeConfig())
    assert opened is not None
    try:
        with pytest.raises(error, match=said):
            opened.check(tokenizer_of(CHATML), limits)
    finally:
        opened.close()


def test_settings_that_do_not_go_together_are_named_with_their_numbers() -> None:
    rewards = RewardsConfig.model_validate({"functions": [{"kind": "world"}]})
    talk = DialogueTaskConfig.model_validate({**CHAT, "turns": 5})
    (fault,) = dialogue_faults(talk, rewards, max_tokens=64, context=32, history="append")
    assert all(text in fault for text in ("max_tokens = 64", "context = 32", "task.turns = 5"))
    asked = DialogueTaskConfig(source="data.jsonl")
    faults = dialogue_faults(asked, rewards, max_tokens=8, context=32, history="template")
    assert len(faults) == 3


def test_a_world_is_paid_without_being_named() -> None:
    functions = [{"use": "exact_match"}]
    for given_rewards in (None, {"functions": functions}, {"step_end": ""}):
        values = with_world_reward({"task": CHAT, **({} if given_rewards is None else {"rewards": given_rewards})})
        assert values["rewards"]["functions"][-1] == {"kind": "world"}  # type: ignore[index]
    own = {"task": CHAT, "rewards": {"functions": [{"kind": "world", "weight": 2.0}]}}
    assert with_world_reward(own) == own
    plain = {"task": {"source": "data.jsonl"}, "rewards": {"functions": functions}}
    assert with_world_reward(plain) == plain


def test_tools_that_pay_nothing_need_a_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "asked.jsonl").write_text('{"prompt": "a"}\n')
    task = {"source": "asked.jsonl", "tools": {"use": ["dialogue_worlds:double"]}}
    opened = open_dialogue(DialogueTaskConfig.model_validate(task), UserCodeConfig())
    assert opened is not None
    world = [{"kind": "world"}]
    try:
        with pytest.raises(ConfigError, match="nothing scores these dialogues"):
            opened.check_pay(RewardsConfig.model_validate({"functions": world}))
        opened.check_pay(RewardsConfig.model_validate({"functions": [*world, {"use": "exact_match"}]}))
    finally:
        opened.close()


def test_rows_of_a_world_come_from_a_file_its_class_or_numbers(tmp_path: Path) -> None:
    def rows(**task: object) -> list[dict[str, object]]:
        opened = open_dialogue(DialogueTaskConfig.model_validate(task), UserCodeConfig())
        assert opened is not None
        try:
            return [{"id": one.id, "prompt": one.prompt, **one.columns} for one in opened.examples()]
        finally:
            opened.close()

    assert [row["start"] for row in rows(**CHAT)] == ["a", "b", "a"]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"start": text}) + "\n" for text in "xyz"))
    assert [row["start"] for row in rows(**{**CHAT, "rows": str(tmp_path / "rows.jsonl")})] == ["x", "y", "z"]
    bare = {"source": "dialogue:dialogue_worlds:Failing", "size": 2, "seed": 3}
    assert [row["seed"] for row in rows(**bare)] == [6, 7]
    (tmp_path / "rows.jsonl").write_text('{"start": "x", "prompt": 3}\n')
    with pytest.raises(DataError, match="prompt"):
        rows(**{**CHAT, "rows": str(tmp_path / "rows.jsonl")})
