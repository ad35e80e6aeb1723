"""Conversations with a new model: it gets the default chat template, and every later use of its folder has the same."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hone import api
from hone.core.errors import DataError
from hone.models.language.hf_checkpoint import read_config
from hone.models.language.tokenizers import load_tokenizer
from hone.text.evaluate.open_policy import ModelSource, NewModelConfig, open_tokenizer

NEW = {
    "hidden_size": 16,
    "layers": 1,
    "heads": 2,
    "kv_heads": 1,
    "head_dim": 8,
    "intermediate_size": 24,
    "max_positions": 64,
}
PROMPTS = ["2+2?", "3+4?", "1+1?", "5+3?"]
ANSWERS = ["4", "7", "2", "8"]
PAIRS = list(zip(PROMPTS, ANSWERS, strict=True))


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


ROWS = {
    "messages": [
        {"messages": [{"role": "system", "content": "Add."}, user(q), assistant(a)], "answer": a} for q, a in PAIRS
    ],
    "prompt-completion": [{"prompt": [user(q)], "completion": [assistant(a)], "answer": a} for q, a in PAIRS],
    "verl": [
        {
            "data_source": "sums", "prompt": [user(q)], "ability": "math", "answer": a,
            "reward_model": {"style": "rule", "ground_truth": a}, "extra_info": {"index": number, "split": "train"},
        }
        for number, (q, a) in enumerate(PAIRS)
    ],
    "prompt": [{"prompt": [user(q)], "answer": a} for q, a in PAIRS],
    "plain": [{"prompt": q, "completion": a, "answer": a} for q, a in PAIRS],
}  # fmt: skip
REWARDS = {"functions": [{"use": "exact_match"}]}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, rows in ROWS.items():
        if name == "verl":
            pq.write_table(pa.Table.from_pylist(rows), tmp_path / "verl.parquet")
        else:
            (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return tmp_path


def config(recipe: str, source: str, *, tokenizer: str, steps: int = 2) -> dict[str, object]:
    alphabet = {} if tokenizer == "bytes" else {"alphabet": "0123456789+?Ad."}
    shared = {
        "recipe": recipe,
        "name": "chat",
        "steps": steps,
        "model": {"new": {**NEW, "tokenizer": tokenizer, **alphabet}, "compute": "float32"},
        "task": {"source": source},
        "learner": {"lr": 0.01},
        "run": {"threads": 1, "checkpoint_every": 1},
        "evaluation": {"task": {"source": "prompt.jsonl"}, "rewards": REWARDS, "max_tokens": 2},
    }
    if recipe == "sft":
        return {**shared, "batch": 4}
    return {
        **shared,
        "rewards": REWARDS,
        "user_code": {"workers": 1},
        "rollout": {"prompts_per_step": 2, "samples_per_prompt": 2, "max_tokens": 2},
    }


CASES = [
    ("sft", "messages.jsonl", "characters"),
    ("sft", "prompt-completion.jsonl", "bytes"),
    ("grpo", "verl.parquet", "bytes"),
    ("grpo", "prompt.jsonl", "characters"),
]


@pytest.mark.filterwarnings("ignore:.*stand in the training and in the evaluation set:UserWarning")
@pytest.mark.parametrize(("recipe", "source", "tokenizer"), CASES)
def test_conversations_train_a_new_model(files, recipe, source, tokenizer):
    api.train(config(recipe, source, tokenizer=tokenizer))
    folder = files / "runs/chat/checkpoints/step_00000002/policy"
    saved = load_tokenizer(folder)
    chat = ROWS["prompt"][0]["prompt"]
    assert saved.render_chat(chat) == "<|user|>2+2?<eos><|assistant|>"
    assert read_config(folder).vocab_size == saved.size == len(saved.backend.get_vocab(with_added_tokens=True))


def test_a_resumed_run_equals_an_uninterrupted_one(files):
    api.train(config("sft", "messages.jsonl", tokenizer="characters", steps=3))
    whole = (files / "runs/chat/checkpoints/step_00000003/policy/model.safetensors").read_bytes()
    (files / "runs").rename(files / "whole")
    api.train(config("sft", "messages.jsonl", tokenizer="characters", steps=2))
    api.train(config("sft", "messages.jsonl", tokenizer="characters", steps=3), resume=True)
    assert (files / "runs/chat/checkpoints/step_00000003/policy/model.safetensors").read_bytes() == whole


def test_plain_data_leave_the_tokenizer_as_it_was(files):
    settings = config("sft", "plain.jsonl", tokenizer="characters")
    del settings["evaluation"]
    api.train(settings)
    folder = files / "runs/chat/checkpoints/step_00000002/policy"
    assert not (folder / "chat_template.jinja").exists()
    assert load_tokenizer(folder).size == 3 + len("0123456789+?Ad.")


@pytest.mark.filterwarnings("ignore:.*plain prompts are asked:UserWarning")
def test_held_out_conversations_count_too(files):
    api.train(config("sft", "plain.jsonl", tokenizer="characters"))
    folder = files / "runs/chat/checkpoints/step_00000002/policy"
    assert load_tokenizer(folder).chat_template is not None


def test_the_same_config_gives_the_same_tokenizer():
    source = ModelSource(new=NewModelConfig(**NEW))
    one, other = (open_tokenizer(source, chat=True)[0] for _ in range(2))
    assert one.files == other.files
    assert open_tokenizer(source)[0].chat_template is None


@pytest.mark.parametrize("recipe", ["sft", "grpo"])
def test_messages_that_cannot_be_rendered_are_named_by_row(files, recipe):
    """All faults at once, and a fault that many rows share only once."""
    bad = [user("1+é"), {"role": "critic", "content": "1"}, user("2+2"), *[{"role": "judge", "content": "1"}] * 9]
    rows = [
        {"id": f"r{n}", "prompt": [turn], "completion": [assistant("1")], "answer": "1"} for n, turn in enumerate(bad)
    ]
    (files / "bad.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    settings = config(recipe, "bad.jsonl", tokenizer="characters")
    del settings["evaluation"]
    with pytest.raises(DataError) as error:
        api.train(settings)
    first, second, third = error.value.messages
    assert "bad.jsonl: the tokenizer has no token for 'é'" in first and first.endswith("; in 1 of 12 rows: 1 (id r0)")
    assert "'critic'" in second and second.endswith("; in 1 of 12 rows: 2 (id r1)")
    shown = "4 (id r3), 5 (id r4), 6 (id r5), 7 (id r6), 8 (id r7), ..."
    assert "bad.jsonl: the chat template does not take" in third and third.endswith(f"; in 9 of 12 rows: {shown}")
