"""`benchmarks/worlds.py` starts, its refusals name the cause and the remedy, and its bars hold for the worst seed."""

import importlib
import json
import sys
from pathlib import Path

import pytest


@pytest.fixture
def worlds(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    yield importlib.import_module("worlds")
    sys.modules.pop("worlds", None)


def test_refused_environments_are_told_why_and_what_to_do(worlds, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["worlds.py", "--only", "refused", "--seeds", "1", "--first-seed", "7"])
    assert worlds.main() == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 4
    assert all(line["met"] and line["processor"] and line["value"] and line["bar"] for line in lines)


def test_a_missed_bar_is_the_exit_code_unless_the_run_was_quick(worlds, monkeypatch, capsys):
    seen = []

    def missed(seeds, *, quick):
        seen.append((list(seeds), quick))
        yield worlds.line_of("missed", [1.0], 2.0)

    monkeypatch.setattr(worlds, "ROWS", {"missed": missed, "other": lambda *_, **__: pytest.fail("not asked for")})
    monkeypatch.setattr(sys, "argv", ["worlds.py", "--only", "mis", "--first-seed", "9"])
    assert worlds.main() == 1
    monkeypatch.setattr(sys, "argv", ["worlds.py", "--only", "mis", "--quick"])
    assert worlds.main() == 0
    assert seen == [([9, 10, 11, 12, 13], False), ([worlds.FRESH_SEED], True)]
    assert capsys.readouterr().out.count('"met": false') == 2


def test_the_worst_seed_decides_and_a_bar_is_met_at_equality(worlds):
    line = worlds.line_of("a", [3.0, 1.0, 2.0], 1.0)
    assert (line["value"], line["worst"], line["met"], line["seeds"]) == (2.0, 1.0, True, 3)
    assert not worlds.line_of("a", [3.0, 0.99], 1.0)["met"]
    most = worlds.line_of("a", [3.0, 1.0], 3.0, most=True)
    assert (most["worst"], most["met"], most["bar"]) == (3.0, True, "<= 3, worst seed")
    assert not worlds.line_of("a", [3.01, 1.0], 3.0, most=True)["met"]
