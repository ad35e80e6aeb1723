"""Bad input of scorers and reward models: refused before a model is trained, with place, value and remedy."""

import json
from pathlib import Path

import pytest
import transformers
from tiny_runs import MODEL, hone

from hone.models.language.config import ModelConfig
from hone.models.language.init import new_model
from hone.models.language.scalar_head import TokenScorer, new_scalar_head
from hone.models.language.tokenizers import character_tokenizer

ALPHABET = "0123456789+="
SCORER = """recipe = "{recipe}"
steps = 1
{model}
[task]
source = "{data}"
[learner]
lr = 1e-3
"""
RL = """recipe = "rloo"
steps = 1
{model}
[task]
source = "prompts.jsonl"
[rollout]
prompts_per_step = 2
samples_per_prompt = 2
max_tokens = 4
[learner]
lr = 1e-3
[[rewards.functions]]
kind = "model"
path = "{folder}"
"""
DATA = {
    "pairs": [{"prompt": "1+1=", "chosen": "2", "rejected": "3"}],
    "equal": [{"prompt": "1+1=", "chosen": "2", "rejected": "2"}],
    "renamed": [{"prompt": "1+1=", "chosen_response": "2", "rejected_response": "3"}],
    "outcomes": [{"prompt": "1+1=", "completion": "2", "label": True}],
    "prompts": [{"prompt": "1+1="}, {"prompt": "123456789+123456789="}],
    "steps": [{"prompt": "1+1=", "completions": ["1", "2"], "labels": [True]}],
    "shares": [{"prompt": "1+1=", "completions": ["1", "2"], "labels": [True, 1.5]}],
}


def reward_folder(folder: Path, *, alphabet: str = ALPHABET, positions: int = 64) -> None:
    tokenizer = character_tokenizer([alphabet])
    shape = ModelConfig(
        vocab_size=tokenizer.size, hidden_size=8, intermediate_size=16, layers=1, heads=2, max_positions=positions
    )
    TokenScorer(new_scalar_head(new_model(shape, seed=0), seed=0), tokenizer).save(folder)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, rows in DATA.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    reward_folder(tmp_path / "good")
    reward_folder(tmp_path / "letters", alphabet="abc")
    reward_folder(tmp_path / "short", positions=16)
    config = transformers.Qwen3Config(
        vocab_size=14, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, head_dim=4, num_labels=2,
    )  # fmt: skip
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path / "two")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("recipe", "data", "changes", "code", "said"),
    [
        ("reward_pairs", "equal", [], 3, "`chosen` equals `rejected` in 1 of 1 rows: 1"),
        ("reward_pairs", "renamed", [], 3, "did you mean chosen_response?"),
        ("reward_pairs", "outcomes", [], 3, "this is a dataset of the unpaired kind, the recipe needs pairs"),
        ("reward_outcome", "prompts", [], 3, "the recipe needs labelled answers"),
        ("reward_steps", "steps", [], 3, "labels"),
        ("reward_steps", "shares", [], 3, "outside 0 .. 1"),
        ("reward_pairs", "pairs", ["evaluation.task.source=absent.jsonl"], 3, "absent.jsonl"),
        (
            "reward_pairs",
            "pairs",
            ["evaluation={task={source='pairs.jsonl'},answer='('}"],
            2,
            "is not a regular express",
        ),
        ("reward_pairs", "pairs", ["algorithm.margin=-1"], 2, "algorithm.margin"),
        ("reward_pairs", "pairs", ['model.exactness="bitwise"'], 2, "for policies whose answers are sampled"),
        ("reward_pairs", "pairs", ["batch=3", "learner.minibatches=2"], 2, "batch = 3 cannot be cut"),
        ("reward_outcome", "outcomes", ["task.source=outcomes.jsonl", "lerner.lr=1"], 2, "did you mean learner"),
    ],
)
def test_a_scorer_that_cannot_be_trained_is_refused(
    recipe: str, data: str, changes: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("run.toml").write_text(SCORER.format(recipe=recipe, model=MODEL, data=f"{data}.jsonl"), encoding="utf-8")
    assert hone("plan", "run.toml", *changes) == code
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("two", "a classifier of 2 labels; a scalar head has one"),
        ("letters", "the reward model has another vocabulary than the policy"),
        ("short", "the reward model reads 16 tokens, and the longest prompt"),
        ("absent", "model folder 'absent' does not exist"),
    ],
)
def test_a_reward_model_that_does_not_fit_is_refused(model: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.toml").write_text(RL.format(model=MODEL, folder=model), encoding="utf-8")
    assert hone("plan", "run.toml") == 3
    assert said in capsys.readouterr().err


def test_a_reward_model_that_fits_is_taken() -> None:
    Path("run.toml").write_text(RL.format(model=MODEL, folder="good"), encoding="utf-8")
    assert hone("plan", "run.toml") == 0
