"""Which runner an engine gets, and what is said about it."""

import pytest
import torch
from engines import CONFIG, VOCAB

from hone.core.errors import ConfigError, ResourceError
from hone.engine import open_engine as choose
from hone.engine.open_engine import choose_runner
from hone.models.language.init import new_model


@pytest.fixture(scope="module")
def model():
    return new_model(CONFIG, seed=1)


def test_without_a_compiler_torch_takes_over_and_says_so(model, monkeypatch):
    monkeypatch.setattr(choose, "unavailable_reason", lambda: "no C++ compiler was found")
    chosen = choose_runner("auto", model, vocab_used=VOCAB)
    assert chosen.runner.name == "torch float32 (cpu)"
    assert not chosen.own_weights
    assert chosen.note == "generation uses torch, not the compiled runner: no C++ compiler was found"
    with pytest.raises(ResourceError, match="compiler was found; set runner"):
        choose_runner("native", model, vocab_used=VOCAB)


def test_torch_is_not_explained_where_it_was_asked_for(model):
    chosen = choose_runner("torch", model, vocab_used=VOCAB)
    assert chosen.runner.name.startswith("torch")
    assert chosen.note == ""


def test_a_model_that_compiled_code_cannot_run_gets_torch(model):
    wide = new_model(CONFIG, seed=1).to(torch.float64)
    assert choose_runner("auto", wide, vocab_used=VOCAB).runner.name == "torch float64 (cpu)"
    with pytest.raises(ConfigError, match="the model is float64"):
        choose_runner("native", wide, vocab_used=VOCAB)


def test_native_where_it_can_be_built(model, monkeypatch):
    monkeypatch.setattr(choose, "unavailable_reason", lambda: None)
    chosen = choose_runner("auto", model, vocab_used=VOCAB, threads=1)
    assert type(chosen.runner).__name__ == "NativeRunner"
    assert chosen.own_weights
