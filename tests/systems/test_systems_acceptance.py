"""Acceptance of each system in its fast form: every figure meets its bar, every negative control misses it.

Figures of time are told but not judged here, where the machine may be busy: the full acceptance judges them.
"""

import importlib
import math
import re
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
OF_TIME = re.compile(r"CPU|processor time|a second|in time|, us$|speed")
NAMES = sorted(path.stem for path in (BENCHMARKS / "decision_systems").glob("*.py") if path.stem != "__init__")


@pytest.fixture(autouse=True)
def _on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "gateway" else ()) for name in NAMES]
)  # the gateway's figures are of time
def test_a_system_is_accepted_and_its_negative_controls_fail(name: str) -> None:
    module = importlib.import_module(f"decision_systems.{name}")
    lines = list(module.acceptance(fast=True))
    print(*(line.as_json(name) for line in lines), sep="\n")
    assert [line.as_json(name) for line in lines if not line.met and not OF_TIME.search(line.figure)] == []
    assert all(math.isfinite(line.value) for line in lines)
    assert any(line.negative for line in lines), "a system needs a negative control"
    assert all(line.at_least is not None or line.at_most is not None for line in lines if line.negative)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_system_is_accepted_in_full(name: str) -> None:
    module = importlib.import_module(f"decision_systems.{name}")
    assert [line.as_json(name) for line in module.acceptance(fast=False) if not line.met] == []


def test_a_line_meets_its_bar_from_the_side_that_it_names() -> None:
    from decision_systems import AcceptanceLine

    assert AcceptanceLine(figure="share", value=0.95, at_least=0.95).met
    assert not AcceptanceLine(figure="share", value=0.94, at_least=0.95).met
    assert not AcceptanceLine(figure="false alarms", value=0.4, at_most=0.05).met
    assert AcceptanceLine(figure="false alarms", value=0.4, at_least=0.2, negative=True).met
    assert '"met": true' in AcceptanceLine(figure="x", value=1.0, at_most=1.0).as_json("rollout")
