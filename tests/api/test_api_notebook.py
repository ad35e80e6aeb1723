"""A run in a notebook draws itself below its cell, as it goes on."""

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest
from manual_clock import ManualClock

import hone.api
from hone.api.notebook import NotebookProgress, notebook_cell


class Shell:
    """IPython's shell, under the name that a kernel or a terminal gives it."""


class Cell:
    """Outputs of a cell: what each showed, one drawing after another."""

    def __init__(self) -> None:
        self.outputs: list[list[str]] = []

    def __call__(self, page: str) -> Any:
        self.outputs.append([page])
        return self.outputs[-1].append


def progress() -> tuple[NotebookProgress, Cell, ManualClock]:
    cell, clock = Cell(), ManualClock()
    return NotebookProgress(cell=cell, clock=clock), cell, clock


def test_curves_grow_once_a_second_and_the_end_is_drawn() -> None:
    shown, cell, clock = progress()
    shown.start(40, "sums (grpo)")
    for step in range(1, 41):
        clock.advance(0.25)
        shown.update(step, {"reward/mean": step / 40, "policy/loss": -1.0, "policy/kl_nats": float("nan")})
    shown.close()
    (pages,) = cell.outputs
    assert len(pages) == 1 + 10 + 1, "the beginning, one a second, and the end"
    assert "sums (grpo)" in pages[0]
    assert "5/40  9s left" in pages[2]
    assert "40/40  10s in all" in pages[-1]
    assert re.findall(r"<figcaption>(\S+)", pages[-1]) == ["reward/mean", "policy/loss"]
    assert pages[-1].count("<svg") == 2
    ElementTree.fromstring(pages[-1])  # whole markup


def test_a_resumed_run_counts_its_own_steps_and_text_is_no_markup() -> None:
    shown, cell, clock = progress()
    shown.note("before <b>all</b>")
    shown.start(100, "<script>run</script>")
    clock.advance(2)
    shown.update(51, {})
    shown.note("saved")
    first, second = cell.outputs
    assert "before &lt;b&gt;all&lt;/b&gt;" in first[0]
    assert "51/100  1m 38s left" in second[1]
    assert "<script>" not in second[-1]
    assert second[-1].endswith("<p>saved</p></div>")
    assert len(first) <= 3, "a run has an output of its own"


def test_only_a_kernel_of_a_notebook_has_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert notebook_cell() is None
    shells: dict[str, Any] = {"shell": None}
    updates: list[str] = []
    handle = type("Handle", (), {"update": lambda _, page: updates.append(page)})
    ipython, pages = ModuleType("IPython"), ModuleType("IPython.display")
    vars(ipython).update(get_ipython=lambda: shells["shell"])
    vars(pages).update(HTML=str, display=lambda page, display_id: updates.append(page) or handle())
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", pages)
    assert notebook_cell() is None
    shells["shell"] = type("TerminalInteractiveShell", (Shell,), {})()
    assert notebook_cell() is None
    shells["shell"] = type("ZMQInteractiveShell", (Shell,), {})()
    cell = notebook_cell()
    assert cell is not None
    cell("one")("two")
    assert updates == ["one", "two"]


def test_a_run_draws_itself_below_the_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell()
    monkeypatch.setattr("hone.api.commands.notebook_cell", lambda: cell)
    config = {
        "recipe": "ppo", "name": "cart", "steps": 3, "rollout_steps": 64, "env": {"id": "CartPole-v1"},
        "run": {"certify": False},
    }  # fmt: skip
    hone.api.train(config, runs=tmp_path, progress=True)
    pages = [page for output in cell.outputs for page in output]
    assert "cart (ppo)" in pages[0]
    assert "3/3" in pages[-1]
    assert "reward/mean" in pages[-1]
    hone.api.train(config | {"name": "silent"}, runs=tmp_path)
    assert not [page for output in cell.outputs for page in output if "silent" in page]
