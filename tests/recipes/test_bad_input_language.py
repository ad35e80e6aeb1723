"""Bad input of pairs, scorers, adapters and experts, row by row: by the commands, before a model is trained, with the
place, the value and the remedy; what only a run can find out ends it or is told at its end."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from tiny_runs import MODEL, hone

from hone.models.language.config import ModelConfig
from hone.models.language.init import new_model
from hone.models.language.scalar_head import TokenScorer, new_scalar_head
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import character_tokenizer

PAIR = {"prompt": "1+1=", "chosen": "2", "rejected": "3"}
SPOKEN = {
    side: [{"role": "user", "content": asked}, {"role": "assistant", "content": "2"}]
    for side, asked in (("chosen", "1+1="), ("rejected", "2+2="))
}
STEPS = {"prompt": "1+1=", "completions": ["1", "2"], "labels": [True, False]}
OLD = '[model]\ncompute = "float32"\npath = "base"\n'
EXPERTS = "\nexperts = {{count = 2, per_token = {}}}\n"


@dataclass(frozen=True, kw_only=True)
class BadRow:
    """One wrong input, what the command answers, and with which exit code."""

    row: str
    says: list[str]
    code: int = 3
    recipe: str = "dpo"
    data: list[dict[str, object]] = field(default_factory=lambda: [PAIR] * 4)
    model: str = MODEL
    config: str = ""
    command: str = "plan"
    drop: bool = False

    def __str__(self) -> str:
        return self.row


ROWS = [
    BadRow(row="chosen equals rejected", data=[PAIR, PAIR | {"rejected": "2"}] * 2,
           says=["`chosen` equals `rejected` in 2 of 4 rows: 2, 4"]),
    BadRow(row="pairs without a winner that are dropped", data=[PAIR, PAIR | {"rejected": "2"}] * 2,
           drop=True, says=["2 of 4"], code=0),
    BadRow(row="every pair is a tie", data=[PAIR | {"rejected": "2"}],
           says=["`chosen` equals `rejected` in 1 of 1 rows: 1"]),
    BadRow(row="prompts of a pair differ", data=[SPOKEN],
           says=["data.jsonl", "their prompts differ", "in 1 of 1 rows: 1"]),
    BadRow(row="an answer without a word", data=[PAIR, PAIR | {"chosen": ""}], says=["2"]),
    BadRow(row="a column by another name", data=[{"prompt": "1+1=", "chosen_response": "2", "rejected": "3"}],
           says=["chosen_response"]),
    BadRow(row="a head of two classes", recipe="rloo", data=[{"prompt": "1+1="}] * 2,
           config='[rollout]\nprompts_per_step = 2\nsamples_per_prompt = 2\nmax_tokens = 4\n'
                  '[[rewards.functions]]\nkind = "model"\npath = "two"\n',
           says=["a classifier of 2 labels; a scalar head has one"]),
    BadRow(row="another tokenizer", recipe="rloo", data=[{"prompt": "1+1="}] * 2,
           config='[rollout]\nprompts_per_step = 2\nsamples_per_prompt = 2\nmax_tokens = 4\n'
                  '[[rewards.functions]]\nkind = "model"\npath = "letters"\n',
           says=["the reward model has another vocabulary than the policy"]),
    BadRow(row="a context shorter than prompt and answer", recipe="rloo",
           data=[{"prompt": "1+1="}, {"prompt": "123456789+123456789="}],
           config='[rollout]\nprompts_per_step = 2\nsamples_per_prompt = 2\nmax_tokens = 4\n'
                  '[[rewards.functions]]\nkind = "model"\npath = "short"\n',
           says=["the reward model reads 16 tokens, and the longest prompt"]),
    BadRow(row="a reward model that is broken", recipe="rloo", data=[{"prompt": "1+1="}] * 2, command="train",
           config='[rollout]\nprompts_per_step = 2\nsamples_per_prompt = 2\nmax_tokens = 4\n'
                  '[[rewards.functions]]\nkind = "model"\npath = "nan"\n',
           says=["tensor score.weight holds 16 NaN or infinite numbers; the checkpoint is broken"]),
    BadRow(row="scores that are no numbers", recipe="rloo", data=[{"prompt": "1+1="}] * 2, command="train",
           config='[rollout]\nprompts_per_step = 2\nsamples_per_prompt = 2\nmax_tokens = 4\n'
                  '[[rewards.functions]]\nkind = "model"\npath = "huge"\n',
           says=["(huge) gives NaN to", "scored tokens"]),
    BadRow(row="scores that are all alike", recipe="rloo", data=[{"prompt": "1+1="}] * 2, command="train", code=0,
           config='[rollout]\nprompts_per_step = 2\nsamples_per_prompt = 2\nmax_tokens = 4\n'
                  '[[rewards.functions]]\nkind = "model"\npath = "constant"\n',
           says=["warning"]),
    BadRow(row="a scorer no better than chance", recipe="reward_pairs", command="train", code=0,
           data=[PAIR, {"prompt": "1+1=", "chosen": "3", "rejected": "2"}],
           config='[evaluation.task]\nsource = "data.jsonl"\n',
           says=["held-out pair accuracy", "no better than chance"]),
    BadRow(row="a separator that never occurs", recipe="collect", data=[{"prompt": "1+1="}] * 2, command="train",
           config='[rollout]\nprompts_per_step = 2\nsamples_per_prompt = 2\nmax_tokens = 4\n'
                  '[collect]\ncontinue_from = "steps"\nseparator = "##"\n'
                  '[[rewards.functions]]\nuse = "data.py:one"\n',
           says=["collect.separator = '##' ends no step of 4 answers"]),
    BadRow(row="more labels than steps", recipe="reward_steps", data=[STEPS | {"labels": [True, True, False]}],
           says=["`completions` and `labels` differ in number", "in 1 of 1 rows: 1"]),
    BadRow(row="an adapter without a rank", model=OLD + "[model.lora]\nrank = 0\n", code=2,
           says=["model.lora.rank", "got 0"]),
    BadRow(row="an adapter wider than the model", model=OLD + "[model.lora]\nrank = 99\n", code=2,
           says=["model.lora.rank = 99 is above the smaller side of"]),
    BadRow(row="an adapter of rounded weights", code=2,
           model=OLD.replace('compute = "float32"', 'weights = "bfloat16"') + "[model.lora]\nrank = 1\n",
           says=['model.lora with model.weights = "bfloat16"']),
    BadRow(row="more experts of a token than there are", code=2,
           model=MODEL.rstrip() + EXPERTS.format(3), says=["experts.per_token = 3 is above experts.count = 2"]),
]  # fmt: skip


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def shape_of(vocabulary: int, *, positions: int = 64) -> ModelConfig:
    return ModelConfig(
        vocab_size=vocabulary, hidden_size=16, intermediate_size=16, layers=1, heads=2, max_positions=positions
    )


def scorer(folder: str, *, alphabet: str = "0123456789+=", positions: int = 64, fill: float | None = None) -> None:
    tokenizer = character_tokenizer([alphabet])
    model = new_scalar_head(new_model(shape_of(tokenizer.size, positions=positions), seed=0), seed=0)
    if fill is not None:
        with torch.no_grad():
            model.score.weight.fill_(fill)
    TokenScorer(model, tokenizer).save(Path(folder))


def two_classes(folder: str) -> None:
    scorer(folder)
    file = Path(folder) / "config.json"
    config = json.loads(file.read_text(encoding="utf-8")) | {"num_labels": 2, "id2label": {"0": "a", "1": "b"}}
    file.write_text(json.dumps(config), encoding="utf-8")


def lay_out(row: BadRow) -> None:
    lines = "".join(json.dumps(line) + "\n" for line in row.data)
    Path("data.jsonl").write_text(lines, encoding="utf-8")
    Path("data.py").write_text("def one(completions, **columns):\n    return [1.0 for _ in completions]\n")
    steps = "steps = 2\n" + ("" if row.recipe in {"rloo", "collect"} else "batch = 2\n")
    drop = 'on_bad_row = "drop"\n' if row.drop else ""
    learner = "" if row.recipe == "collect" else "[learner]\nlr = 1e-9\n"
    text = f'recipe = "{row.recipe}"\nname = "run"\n{steps}{row.model}[task]\nsource = "data.jsonl"\n{drop}{learner}'
    Path("run.toml").write_text(text + "[run]\nthreads = 1\n" + row.config, encoding="utf-8")
    made = {
        "letters": lambda: scorer("letters", alphabet="abc"),
        "short": lambda: scorer("short", positions=16),
        "nan": lambda: scorer("nan", fill=float("nan")),
        "huge": lambda: scorer("huge", fill=3e38),
        "constant": lambda: scorer("constant", fill=0.0),
        "two": lambda: two_classes("two"),
    }
    for name, make in made.items():
        if f'path = "{name}"' in row.config:
            make()
    if "base" in row.model:
        tokenizer = character_tokenizer(["0123456789+="])
        Path("base").mkdir()
        TokenPolicy(new_model(shape_of(tokenizer.size), seed=0), tokenizer).save(Path("base"))


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_bad_input_of_language_models(row: BadRow, capsys: pytest.CaptureFixture[str]) -> None:
    lay_out(row)
    code = hone(row.command, "run.toml")
    told = "".join(capsys.readouterr())
    assert [word for word in row.says if word not in told] == [], told
    assert code == row.code, told
    assert "Traceback" not in told
