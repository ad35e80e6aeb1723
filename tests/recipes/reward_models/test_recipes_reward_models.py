"""Recipes of scorers: whole runs by their commands; a resumed run is the same run; folders that transformers reads."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from tiny_runs import MODEL, RUN, differences, hone

from hone.recipes.registry import load_recipe
from hone.run.store.records import CALIBRATION, read_certificate
from hone.text.evaluate.open_policy import load_scorer

KINDS = {"reward_pairs": "pairs", "reward_outcome": "answers", "reward_steps": "steps"}


def rows_of(kind: str, numbers: range, draws: np.random.Generator) -> list[dict[str, object]]:
    """Sums of two digits with right and wrong answers."""
    found: list[dict[str, object]] = []
    for a in numbers:
        for b in range(5):
            question, wrong = f"{a}+{b}=", a + b + int(draws.integers(1, 4))
            if kind == "pairs":
                found.append({"prompt": question, "chosen": str(a + b), "rejected": str(wrong)})
            elif kind == "answers":
                found += [{"prompt": question, "completion": str(one), "label": one == a + b}
                          for one in (a + b, wrong, a + b, wrong + 1)]  # fmt: skip
            else:
                found.append({"prompt": question, "completions": [f"{a}+", str(wrong)], "labels": [True, False]})
                found.append({"prompt": question, "completions": [f"{a}+", str(a + b)], "labels": [True, True]})
    return found


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    draws = np.random.default_rng(0)
    for recipe, kind in KINDS.items():
        for name, numbers in (("train", range(6)), ("held", range(6, 10))):
            lines = rows_of(kind, numbers, draws)
            text = "".join(json.dumps(line) + "\n" for line in lines)
            (tmp_path / f"{name}_{kind}.jsonl").write_text(text, encoding="utf-8")
        (tmp_path / f"{recipe}.toml").write_text(
            f'recipe = "{recipe}"\nname = "tiny"\nsteps = 6\nbatch = 10\n{MODEL}\n[task]\n'
            f'source = "train_{kind}.jsonl"\nanswers.separator = "+"\n[evaluation]\nevery = 2\n[evaluation.task]\n'
            f'source = "held_{kind}.jsonl"\nanswers.separator = "+"\n'
            f"[learner]\nlr = 1e-2\nminibatches = 2\n{RUN}",
            encoding="utf-8",
        )
    implicit = (tmp_path / "reward_outcome.toml").read_text(encoding="utf-8").replace("evaluation", "held_out")
    (tmp_path / "implicit_prm.toml").write_text(
        implicit.replace('recipe = "reward_outcome"', 'recipe = "implicit_prm"') + "[samples]\nprompts = 0\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def metrics(name: str = "tiny") -> list[dict[str, float]]:
    return [json.loads(line) for line in Path(f"runs/{name}/metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("recipe", KINDS)
def test_a_run_is_evaluated_shown_resumed_and_read_by_transformers(
    recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hone("plan", f"{recipe}.toml") == 0
    assert hone("train", f"{recipe}.toml") == 0
    assert hone("train", f"{recipe}.toml", "steps=4", "--name", "again") == 0
    assert hone("train", f"{recipe}.toml", "--name", "again", "--resume") == 0
    assert differences(Path("runs/tiny"), Path("runs/again"), step=6) == []
    certificate = read_certificate(Path("runs/tiny"))
    assert certificate is not None
    assert certificate.passed
    last = metrics()[-1]
    capsys.readouterr()
    assert hone("eval", "tiny") == 0
    assert f"{last['eval/auc']:.3f}" in capsys.readouterr().out
    assert hone("show", "tiny", "--verify") == 0
    record = CALIBRATION.read(Path("runs/tiny"))
    assert record is not None
    assert record.figures["score"] == pytest.approx(last["eval/score"])
    assert sum(one.n for one in record.bins) == last["eval/answered"]

    policy = Path("runs/tiny/checkpoints/step_00000006/policy")
    scorer, tokens = load_scorer(policy), np.array([3, 5, 4, 6, 2], np.int32)
    if recipe == "reward_steps":
        theirs = transformers.AutoModelForTokenClassification.from_pretrained(policy).eval()
        ours = scorer.model.score_tokens([tokens], [np.arange(5)], micro_batch_tokens=99)
        with torch.no_grad():
            expected = theirs(torch.from_numpy(tokens[None].astype(np.int64))).logits[0, :, 0].double().numpy()
    else:
        theirs = transformers.AutoModelForSequenceClassification.from_pretrained(policy).eval()
        ours = scorer.model.score_sequences([tokens, tokens[:2]], micro_batch_tokens=99)
        padded = torch.full((2, 5), int(scorer.tokenizer.pad_id))
        padded[0], padded[1, :2] = torch.from_numpy(tokens), torch.from_numpy(tokens[:2])
        with torch.no_grad():
            mask = (padded != scorer.tokenizer.pad_id).long()
            expected = theirs(padded, attention_mask=mask).logits[:, 0].double().numpy()
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-5)


def test_an_implicit_reward_model_is_judged_by_its_log_ratio_to_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    often = "run.rollouts_every=2"  # a table of samples is also written at the last step of a part
    assert hone("train", "implicit_prm.toml", often) == 0
    assert hone("train", "implicit_prm.toml", often, "steps=4", "--name", "again") == 0
    assert hone("train", "implicit_prm.toml", often, "--name", "again", "--resume") == 0
    assert differences(Path("runs/tiny"), Path("runs/again"), step=6) == []
    last = metrics()[-1]
    capsys.readouterr()
    assert hone("eval", "tiny") == 0
    assert f"{last['eval/auc']:.3f}" in capsys.readouterr().out
    record = CALIBRATION.read(Path("runs/tiny"))
    assert record is not None
    assert record.kind == "outcomes"
    changes = ["steps=60", "algorithm.beta=0.5", "held_out.task.source=train_answers.jsonl", "held_out.every=0"]
    assert hone("train", "implicit_prm.toml", *changes, "--name", "long") == 0
    assert metrics("long")[-1]["eval/auc"] > 0.8
    assert hone("train", "implicit_prm.toml", "evaluation.max_tokens=3") == 2


@pytest.mark.parametrize(
    "recipe", [pytest.param(one, marks=pytest.mark.slow if one == "reward_outcome" else ()) for one in KINDS]
)
def test_it_learns(recipe: str) -> None:
    """Answers to questions that it has seen: a model of this size does not add."""
    kind = KINDS[recipe]
    assert hone("train", f"{recipe}.toml", "steps=60", f"evaluation.task.source=train_{kind}.jsonl") == 0
    assert metrics()[-1]["eval/auc"] > 0.8
    assert math.isfinite(metrics()[-1]["eval/temperature"])


@pytest.mark.parametrize("recipe", KINDS)
def test_it_says_what_it_is(recipe: str) -> None:
    entry = load_recipe(recipe)
    assert entry.parts.source and entry.parts.credit and entry.parts.loss and entry.parts.weights
    assert entry.summary and entry.paper and entry.limitation.endswith(".")


def test_a_scorer_without_a_word_to_say_is_told_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    assert hone("train", "reward_pairs.toml", "learner.lr=1e-9", "steps=1", "learner.minibatches=1") == 0
    said = capsys.readouterr().out
    assert "warning: held-out pair accuracy" in said
    assert "no better than chance" in said
    assert "no better than chance" in Path("runs/tiny/report.html").read_text(encoding="utf-8")
