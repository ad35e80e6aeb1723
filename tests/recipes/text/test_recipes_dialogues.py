"""Runs on dialogues: trained, resumed to the bit, evaluated and sampled, with the worlds' counts told."""

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import files_of, hone, lines_of

from hone.models.language.config import ModelConfig
from hone.models.language.init import new_model
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import character_tokenizer

WORLD = '''
from hone.core.dialogue import WorldTurn

class Letters:
    """Asks for letters, and pays each that was asked for; what it says is a function of row and seed."""

    def begin(self, columns, seed):
        self.letter, self.heard = "ab"[(columns["seed"] + seed) % 2], 0
        return WorldTurn(messages=[{"role": "user", "content": self.letter}])

    def answer(self, said):
        self.heard += 1
        good = said.text.count(self.letter) / max(1, len(said.text))
        self.letter = "ba"["ab".index(self.letter)]
        back = [{"role": "user", "content": self.letter}]
        return WorldTurn(messages=back, reward=good, done=self.heard >= 3, facts={"heard": self.heard})

    def close(self): ...
'''
CONFIG = """
recipe = "grpo"
name = "talk"
steps = 4
[model]
compute = "float32"
[model.new]
alphabet = "ab"
hidden_size = 16
layers = 1
heads = 2
kv_heads = 1
head_dim = 8
intermediate_size = 24
max_positions = 64
[task]
source = "dialogue:world.py:Letters"
size = 8
turns = 4
[rollout]
prompts_per_step = 4
samples_per_prompt = 4
max_tokens = 12
max_concurrent = 5
[learner]
lr = 1e-2
minibatches = 2
[run]
threads = 1
checkpoint_every = 2
rollouts_every = 2
"""
EVALUATION = """
[evaluation]
task = { source = "dialogue:world.py:Letters", size = 6, turns = 4 }
max_tokens = 12
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "world.py").write_text(WORLD)
    (tmp_path / "talk.toml").write_text(CONFIG + EVALUATION)
    return tmp_path


def figures(run: Path) -> list[dict[str, Any]]:
    """Metrics of the steps without clocks."""
    return [json.loads(line) for line in lines_of(run)]


def test_a_run_on_dialogues_is_resumed_to_the_bit_and_refuses_changed_worlds(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hone("train", "talk.toml", "name=straight") == 0
    told = figures(place / "runs/straight")[-1]
    assert told["stops/done"] + told["stops/max_tokens"] == 1
    assert told["world/heard"] > 1
    assert told["turns/mean"] > 1
    assert told["eval/turns/mean"] >= 1
    assert told["eval/score"] >= 0
    assert hone("train", "talk.toml", "name=half", "steps=2") == 0
    assert hone("train", "talk.toml", "name=half", "--resume") == 0
    straight, half = place / "runs/straight", place / "runs/half"
    assert files_of(straight, 4) == files_of(half, 4)
    both = [[row for row in figures(run) if row["step"] in (1, 3)] for run in (straight, half)]
    assert both[0] == both[1]
    (place / "world.py").write_text(WORLD.replace("good =", "good = 0.5 *"))
    capsys.readouterr()
    assert hone("train", "talk.toml", "name=half", "steps=6", "--resume") != 0
    assert "world.py" in capsys.readouterr().err


@pytest.mark.slow  # four commands on a run, each with an engine of its own
def test_dialogues_are_evaluated_and_sampled(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hone("train", "talk.toml", "steps=1") == 0
    capsys.readouterr()
    assert hone("eval", "runs/talk") == 0
    told = capsys.readouterr().out
    assert "turns" in told
    assert "score" in told
    assert hone("sample", "runs/talk", "--count", "2") == 0
    assert capsys.readouterr().out.strip()


def test_a_dataset_with_tools_is_a_dialogue(place: Path) -> None:
    (place / "tool.py").write_text('def twice(text: str) -> str:\n    """Say a text twice."""\n    return 2 * text\n')
    (place / "rewards.py").write_text("def length(completions, **columns):\n    return [len(x) for x in completions]\n")
    (place / "asked.jsonl").write_text("".join(json.dumps({"prompt": letter}) + "\n" for letter in "abab"))
    config = (
        CONFIG.replace('source = "dialogue:world.py:Letters"', 'source = "asked.jsonl"')
        .replace("size = 8", '[task.tools]\nuse = ["tool.py:twice"]\nformat = "bracket"')
        .replace("turns = 4\n", "")
        .replace('alphabet = "ab"', 'alphabet = "ab[]"')
        .replace("[learner]", '[[rewards.functions]]\nuse = "rewards.py:length"\n[learner]')
    )
    (place / "tools.toml").write_text(config)
    assert hone("train", "tools.toml", "name=tools", "steps=2") == 0
    told = figures(place / "runs/tools")[-1]
    assert told["tools/called"] > 0
    assert told["turns/mean"] > 1
    assert told["reward/mean"] > 0


def test_rewritten_history_trains_in_rows_that_are_told(place: Path) -> None:
    turn = "'<|' + message.role + '|>' + (message.content | trim) + '<eos>'"
    template = f"{{% for message in messages %}}{{{{ {turn} }}}}{{% endfor %}}"
    template += "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
    tokenizer = character_tokenizer(["ab "], chat_template=template, chat_tokens=("<|user|>", "<|assistant|>"))
    shape = {"hidden_size": 16, "intermediate_size": 24, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 8}
    config = ModelConfig(family="qwen3", vocab_size=tokenizer.size, max_positions=128, **shape)
    TokenPolicy(new_model(config, seed=1), tokenizer, 1.0).save(place / "base")
    text = CONFIG.partition("[model.new]")[0] + 'path = "base"\n[task]' + CONFIG.partition("[task]")[2]
    (place / "rows.toml").write_text(
        text.replace("max_tokens = 12", 'max_tokens = 16\nhistory = "template"\nstop = [" "]')
    )
    assert hone("train", "rows.toml", "name=rows", "steps=2") == 0
    told = figures(place / "runs/rows")[-1]
    assert told["turns/forked"] > 0.5, "an answer that ends in a space is trimmed"
    assert told["episodes/ended"] == 16, "a dialogue counts once"
    assert told["policy/kl_nats"] < 0.1
    assert hone("train", "rows.toml", "name=refused", "rollout.history=append") == 3
