"""The engine's check of itself: it passes here, and sees what is wrong."""

from dataclasses import replace

import numpy as np
import pytest

from hone.core.errors import ResourceError
from hone.engine.engine import EmbeddedEngine
from hone.engine.native.library import unavailable_reason
from hone.engine.session import TokenizerRules
from hone.evaluate import engine_check as selfcheck


def test_everything_holds_here():
    native = unavailable_reason() is None
    found = list(selfcheck.check_runners(native=native))
    assert [one for one in found if not one.passed] == []
    names = [(one.runner.split()[0], one.name) for one in found if "float32" in one.runner]
    singles = [("native", name) for name in ("parity", "scores", "slots", "order", "chunks", "preemption", "threads")]
    assert names == [*(singles if native else []), *(("torch", name) for name in (
        "parity", "scores", "slots, order, chunks, preemption"))]  # fmt: skip


def test_a_trainer_that_computes_otherwise_is_seen(monkeypatch):
    real = selfcheck._trainer_logp
    monkeypatch.setattr(selfcheck, "_trainer_logp", lambda *given: real(*given) + np.float32(5e-5))
    found = {one.name: one for one in selfcheck.check_runners(native=False)}
    assert not found["parity"].passed and "mean 5.0e-05" in found["parity"].result
    assert found["scores"].passed


def test_answers_that_depend_on_slots_are_seen(monkeypatch):
    def engine(chosen, limits):
        return EmbeddedEngine(chosen, TokenizerRules(eos=(0,), vocab=96), limits=limits, seed=limits.slots)

    monkeypatch.setattr(selfcheck, "_engine", engine)
    found = list(selfcheck.check_runners(native=False))
    assert [one.passed for one in found] == [True, True, False]
    assert "of 8 answers differ" in found[2].result


def test_a_runner_that_cannot_run_is_a_finding(monkeypatch):
    def choose(kind, model, *, threads=None):
        raise ResourceError("no memory for it")

    monkeypatch.setattr(selfcheck, "_choose", choose)
    (found,) = selfcheck.check_runners(native=False)
    assert (found.runner, found.result, found.passed) == ("torch float32", "no memory for it", False)


def test_what_is_chosen_and_why(monkeypatch):
    if unavailable_reason() is None:
        found = selfcheck.kernel_report()
        assert found.usable and found.runner_note.startswith("native, ") and "most capable" in found.runner_note
    monkeypatch.setattr(selfcheck, "find_compiler", lambda: None)
    found = selfcheck.kernel_report()
    assert not found.usable and "without a C++ compiler" in found.runner_note
    monkeypatch.setattr(selfcheck, "find_compiler", lambda: "/usr/bin/c++")

    def build():
        raise ResourceError("c++ could not compile the runner: no space")

    monkeypatch.setattr(selfcheck, "build", build)
    assert replace(selfcheck.kernel_report(), trainer_note="") == selfcheck.KernelReport(
        usable=False,
        compiler="failed",
        build_note="c++ could not compile the runner: no space",
        runner_note="torch: compiled code is unavailable",
    )
    monkeypatch.setenv("HONE_NATIVE", "0")
    assert "HONE_NATIVE=0" in selfcheck.kernel_report().runner_note


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_model_has_answers_to_tell_apart(dtype):
    """A flat distribution would hide what a check looks for."""
    model = selfcheck._model(dtype)
    logp = selfcheck._trainer_logp(model, np.arange(1, 40, dtype=np.int32), 0.8)
    assert logp.std() > 0.5
