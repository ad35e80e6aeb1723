"""The parts of `benchmarks/chat_examples.py`, on a stand-in of the model and on figures that are made up."""

import importlib
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from real_chat_model import smollm2_stand_in

from hone.models.language.hf_checkpoint import load_model
from hone.models.language.tokenizers import load_tokenizer
from hone.models.packing import pack_rows

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("chat_examples")
    sys.modules.pop("chat_examples", None)


def test_the_nll_of_each_turn_is_that_of_its_own_tokens(examples, tmp_path, monkeypatch):
    file = smollm2_stand_in(tmp_path, monkeypatch)
    turns = [("user", "hi"), ("assistant", "yes"), ("user", "and?"), ("assistant", "no, 4")]
    messages = [{"role": role, "content": content} for role, content in turns]
    measured = examples.turn_nll(file, [{"messages": messages}])
    tokenizer, model = load_tokenizer(file), load_model(file)
    for place, nll in zip((1, 3), measured, strict=True):
        asked = tokenizer.apply_chat(messages[:place])
        answer = np.append(tokenizer.encode(messages[place]["content"]), tokenizer.eos_id)
        with torch.no_grad():
            row = np.concatenate([asked, answer])
            logp = model.logits(model.hidden(pack_rows([row[:-1]]))).double().log_softmax(-1)[len(asked) - 1 :]
        expected = -float(logp.gather(1, torch.from_numpy(answer.astype(np.int64))[:, None]).mean())
        assert math.isclose(nll, expected, abs_tol=1e-4)


def test_a_figure_that_moves_the_wrong_way_in_one_seed_misses_its_bar(examples, monkeypatch, capsys):
    scores = iter([(0.0, 0.5, 0.9), (0.1, 0.4, 0.3)])
    costs = iter([100.0, 1300.0])
    monkeypatch.setattr(examples, "run_example", lambda *_: next(costs))
    stages = ("base", "sft", "grpo")
    made = {
        "grpo": examples.Example(
            title="t",
            figures=lambda _: {f"score, {stage}": value for stage, value in zip(stages, next(scores), strict=True)},
            rises=[("score, base", "score, sft"), ("score, sft", "score, grpo")],
            bars={"score, grpo": 0.5},
        )
    }
    monkeypatch.setattr(examples, "KINDS", made)
    rows = list(examples.measure("grpo", [0, 1]))
    assert [row.value for row in rows] == pytest.approx([0.05, 0.45, 0.6, 2, 1, 1300])
    assert [row.met for row in rows] == [None, None, False, True, False, False]
    assert "lowest 0.300, highest 0.900" in rows[2].row
    assert '"seed": 1' in capsys.readouterr().out


def test_the_margin_is_of_the_means_of_chosen_and_rejected_answers(examples, monkeypatch, tmp_path):
    """A step whose answers are all good has no rejected one: its number counts for the chosen alone."""
    columns = {"preference/chosen_nats": [1.0, 2, 3, 4, 5, 6], "preference/rejected_nats": [0.5, -1, -2, -3, -4]}
    monkeypatch.setattr(examples, "column", lambda _, key: columns[key])
    monkeypatch.setattr(examples, "held_out_score", lambda *_: 0.25)
    monkeypatch.setattr(examples, "last", lambda *_: 0.75)
    assert examples.preferences(tmp_path) == {
        "margin in nats, first step": 0.5, "margin in nats, last 5 steps": 4 + 1.9, "score, base": 0.25,
        "score, trained": 0.75,
    }  # fmt: skip


def test_every_config_is_measured(examples):
    assert set(examples.KINDS) == {path.stem for path in examples.EXAMPLES.glob("*.toml")}
