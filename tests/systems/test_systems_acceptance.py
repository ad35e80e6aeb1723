"""Acceptance of each system in its fast form: every figure meets its bar, every negative control misses it.

The default tests run the first lines of each, which are the cheap ones; the slow tests run all.

Figures of time are told but not judged here, where the machine may be busy: the full acceptance judges them.
"""

import importlib
import math
import re
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
OF_TIME = re.compile(r"CPU|processor time|a second|in time|, us$|speed")
NAMES = sorted(path.stem for path in (BENCHMARKS / "decision_systems").glob("*.py") if path.stem != "__init__")
FIRST_LINES = {
    "bandits": 12, "drift": 3, "estimate_verdicts": 3, "features": 5, "fleet": 6, "league": 6, "log": 4, "mixtures": 5,
    "offline_estimates": 6, "players": 2, "recommendation": 2, "rollout": 10, "shield": 7, "warehouse": 11,
}  # fmt: skip
"""Lines of each system that take about two seconds together: those that the default tests run."""
SLOW = ("gateway", "gateways", "retraining")
"""Systems of which no line is cheap, or none is other than of time."""


@pytest.fixture(autouse=True)
def _on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def fast_lines(name: str, most: int | None = None) -> list[Any]:
    """The first lines of a system in its fast form, of which those that are not of time meet their bars."""
    module = importlib.import_module(f"decision_systems.{name}")
    lines = list(islice(module.acceptance(fast=True), most))
    print(*(line.as_json(name) for line in lines), sep="\n")
    assert [line.as_json(name) for line in lines if not line.met and not OF_TIME.search(line.figure)] == []
    assert all(math.isfinite(line.value) for line in lines)
    assert all(line.at_least is not None or line.at_most is not None for line in lines if line.negative)
    return lines


@pytest.mark.parametrize(("name", "most"), FIRST_LINES.items())
def test_the_first_figures_of_a_system_meet_their_bars(name: str, most: int) -> None:
    assert len(fast_lines(name, most)) == most


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_system_is_accepted_and_its_negative_controls_fail(name: str) -> None:
    assert any(line.negative for line in fast_lines(name)), "a system needs a negative control"


def test_each_system_is_run_by_default_or_named_as_slow() -> None:
    assert sorted([*FIRST_LINES, *SLOW]) == NAMES


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
