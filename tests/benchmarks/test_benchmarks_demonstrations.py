"""Demonstrations of `benchmarks/preferences.py` and figures of `benchmarks/dialogues.py`: the convention, and bars."""

import importlib
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
NAMES = [
    f"{folder}.{path.stem}"
    for folder in ("demonstrations", "dialogue_figures")
    for path in sorted((BENCHMARKS / folder).glob("*.py"))
    if path.stem != "__init__"
]


@pytest.fixture(autouse=True)
def _on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.mark.parametrize("name", NAMES)
def test_a_demonstration_keeps_the_convention(name: str) -> None:
    from demonstrations import Bar

    module = importlib.import_module(name)
    assert module.TITLE
    assert len(set(module.SEEDS)) == len(module.SEEDS) >= 3
    assert min(module.SEEDS) >= 100, "seeds below 100 are for finding settings"
    assert all(isinstance(bar, Bar) for bar in module.BARS)
    assert len({bar.figure for bar in module.BARS}) == len(module.BARS)


def test_a_bar_is_reached_by_every_seed_or_by_the_mean() -> None:
    from demonstrations import Bar

    values = np.array([0.7, 0.9])
    assert not Bar(figure="x", at_least=0.8).reached(values)
    assert Bar(figure="x", at_least=0.8, over="mean").reached(values)
    assert Bar(figure="x", at_least=0.7, at_most=0.9).reached(values)
    assert not Bar(figure="x", at_most=0.85).reached(values)
    assert not Bar(figure="x", at_most=1.0).reached(np.array([0.5, np.nan]))
    assert str(Bar(figure="x", at_least=0.8, over="mean")) == ">= 0.8, mean"


def test_a_row_names_the_worst_seed_and_a_figure_without_bar_decides_nothing() -> None:
    import demonstrate
    from demonstrations import Bar

    bar = Bar(figure="wins", at_most=0.5)
    row = demonstrate.figure_row("DPO", "wins", {100: 0.4, 101: 0.6}, bar, [3.0, 5.0], decides=True)
    assert (row.row, row.value, row.met) == ("DPO: wins (worst seed 101: 0.6); 4 CPU s a seed", 0.5, False)
    told = demonstrate.figure_row("DPO", "nats", {100: 0.4, 101: 0.6}, None, [3.0, 5.0], decides=True)
    assert (told.row, told.bar, told.met) == ("DPO: nats", None, None)
