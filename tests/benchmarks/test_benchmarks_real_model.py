"""The parts of `benchmarks/real_model.py` on templates of the families' structure, without a download."""

import importlib
import sys
import zipfile
from pathlib import Path

import pytest
from chat_families import FAMILIES, family_tokenizer

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def real_model(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("real_model")
    sys.modules.pop("real_model", None)


def test_rows_of_published_templates(real_model, tmp_path, capsys):
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels" / "trl-1.16.0-py3-none-any.whl", "w") as wheel:
        for number, name in enumerate(("chatml", "two end tokens", "reasoning dropped from history")):
            wheel.writestr(f"trl/chat_templates/t{number}.jinja", FAMILIES[name].template)
        wheel.writestr("trl/chat_templates/t_training.jinja", "left out")
        wheel.writestr("trl/chat_templates/refusing.jinja", "{{ raise_exception('no') }}")
        wheel.writestr("trl/other.jinja", "left out")
    (tmp_path / "tokenizer.json").write_text(family_tokenizer("chatml", "gpt2").backend.to_str())
    tools, unequal, broken, right = real_model.measure(tmp_path, conversations=2)
    assert (tools.value, tools.met) == (0, True)
    assert "0 describe tools, hone for 3, 1 refuse the row" in tools.row
    assert (unequal.value, unequal.met) == (0, True)
    assert "of 72" in unequal.row
    assert (broken.value, broken.met) == (0, True)
    assert (right.value, right.met) == (3, False)  # fewer than the bar asks for
    assert "1 are refused" in right.row
    assert "refusing: refused: the chat template does not take the messages" in capsys.readouterr().out


def test_a_broken_invariant_is_seen(real_model, monkeypatch):
    tokenizer = family_tokenizer("chatml")
    turns = [real_model.user("2+2?"), real_model.assistant("44")]
    assert real_model.broken_spans(tokenizer, turns) == ""
    monkeypatch.setattr(type(tokenizer), "apply_chat", lambda *_, **__: tokenizer.encode("another prompt"))
    assert real_model.broken_spans(tokenizer, turns) == "the engine's prompt"
