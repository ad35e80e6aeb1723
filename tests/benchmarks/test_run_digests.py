"""Digests of runs: the same code gives the same, and a difference is found and named."""

import copy
import importlib
from pathlib import Path
from types import ModuleType

import pytest

from hone.recipes.registry import recipe_names

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
RUN = "thompson_linear"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("run_digests")


def test_one_code_gives_one_digest_and_differences_are_named(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = script.digests([RUN]), script.digests([RUN])
    assert set(before[RUN]) == {"metrics", "items", "seconds"}
    assert any(item.startswith("checkpoints/step_00000060/policy/") for item in before[RUN]["items"])
    assert not any(name.startswith("time/") for name in before[RUN]["metrics"])
    assert script.compare(before, after, {}) == 0
    other = copy.deepcopy(after)
    column = other[RUN]["metrics"]["reward/mean"]
    column["values"][2] += 1e-9
    column["sha256"] = ""
    capsys.readouterr()
    assert script.compare(before, other, {}) == 1
    assert "thompson_linear: metrics: reward/mean: first at step 3" in capsys.readouterr().out


def test_files_that_speak_of_the_clock_are_not_compared(script: ModuleType, tmp_path: Path) -> None:
    for name in ("time/step_00000001.json", "state/state.json"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("{}", encoding="utf-8")
    assert [name for _, name in script.counted(tmp_path)] == ["state/state.json"]


def test_a_new_name_is_no_difference_where_it_is_said(script: ModuleType) -> None:
    column = {"sha256": "a", "steps": [1], "values": [0.5]}
    item = {"sha256": "b"}
    before = {"x": {"metrics": {"judge/score": column}, "items": {"state/state.json:/slow": item}}}
    after = {"x": {"metrics": {"eval/score": column}, "items": {"state/state.json:/target": item}}}
    assert script.compare(before, after, {}) == 4
    assert script.compare(before, after, {"judge/": "eval/", "/slow": "/target"}) == 0
    assert script.compare(before, after, {"judge/score": "eval/score", "/slow": "/target"}) == 0


def test_a_run_that_fails_on_one_side_is_a_difference(script: ModuleType) -> None:
    ran = {"metrics": {}, "items": {}}
    assert script.compare({"x": ran}, {"x": {"failed": "ConfigError: no"}}, {}) == 1


def test_every_recipe_has_a_run(script: ModuleType) -> None:
    assert {recipe for recipe, _ in script.RUNS.values()} == set(recipe_names())
