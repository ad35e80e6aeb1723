"""`hone.api`: seeds and comparisons from Python are what the commands make."""

import json
from dataclasses import replace
from math import nan
from pathlib import Path

import pytest
from short_runs import SHORT

from hone.api import TrainingResult, compare, train, train_seeds
from hone.cli.main import main
from hone.core.errors import ConfigError, DataError
from hone.run.store.evaluations import best_step, step_scores
from hone.run.store.metrics import without_clock_metrics


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.toml").write_text(SHORT)
    return tmp_path


def figures(run: Path) -> list[str]:
    return without_clock_metrics((run / "metrics.jsonl").read_text().splitlines())


def test_seeds_from_python_are_the_runs_of_the_command(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = train_seeds("short.toml", [1, 0], ["steps=2"])
    assert capsys.readouterr().out == ""
    assert found.runs == [Path("runs/short/seed_1"), Path("runs/short/seed_0")]
    (group,) = found.comparison.groups
    assert sorted(run.name for run in group.runs) == ["seed_0", "seed_1"]
    assert main(["train", "short.toml", "steps=2", "--seeds", "2", "--runs", "command"]) == 0
    for run in found.runs:
        assert figures(run) == figures(place / "command" / "short" / run.name)
    with pytest.raises(ConfigError, match="contains seed_0, seed_1 already"):
        train_seeds("short.toml", 2, ["steps=2"])
    more = train_seeds("short.toml", 3, ["steps=2"], resume=True)
    assert [run.name for run in more.runs] == ["seed_0", "seed_1", "seed_2"]
    assert len(more.comparison.groups[0].runs) == 3


def test_runs_are_compared_by_name_and_folder() -> None:
    train("short.toml", ["steps=1", "name=one"])
    folder = train("short.toml", ["steps=1", "name=other", "learner.lr=0.1"]).folder
    found = compare(["one", folder], metric="reward/mean", threshold=5.0)
    assert [group.name for group in found.groups] == ["one", "other"]
    assert "reward/mean" in found.metric
    assert [next(iter(group.reached.values())).threshold for group in found.groups] == [5.0, 5.0]
    with pytest.raises(DataError, match="nobody"):
        compare(["nobody"])


@pytest.mark.parametrize("seeds", [0, [], [1, 1], [-1]])
def test_seeds_that_cannot_be_meant_are_refused(seeds: int | list[int]) -> None:
    with pytest.raises(ConfigError, match="seeds must"):
        train_seeds("short.toml", seeds)


def test_a_resume_keeps_a_default_of_its_start_and_warns_at_the_caller() -> None:
    folder = train("short.toml", ["steps=1"]).folder
    config = json.loads((folder / "config.json").read_text())
    assert config["learner.max_grad_norm"] == {"value": 0.5, "origin": "default"}
    config["learner.max_grad_norm"]["value"] = 0.125
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.warns(
        UserWarning, match=r"short: learner.max_grad_norm stays 0\.125, the default when the run was started"
    ) as caught:
        train("short.toml", ["steps=2"], resume=True)
    assert caught[0].filename == __file__
    assert json.loads((folder / "config.json").read_text())["learner.max_grad_norm"]["value"] == 0.125


def test_the_best_policy_is_that_of_the_highest_evaluation_and_the_latest_of_equal_ones() -> None:
    scores = iter([3.0, 5.0, 5.0, 4.0])
    run = train("short.toml", ["steps=4", "evaluation.every=1", "evaluation.episodes=2", "run.keep_last=1"])
    evaluations = [replace(one, mean=next(scores)) for one in run.evaluations]
    assert best_step(step_scores(evaluations)) == 3
    assert best_step(step_scores([*evaluations, replace(evaluations[0], stage="step 5", mean=nan)])) == 3

    best = best_step(step_scores(run.evaluations))
    assert run.best_policy == run.folder / "checkpoints" / f"step_{best:08d}" / "policy"
    with pytest.raises(DataError, match="has no evaluation of a step"):
        _ = TrainingResult(folder=run.folder).best_policy
    lost = TrainingResult(folder=run.folder, evaluations=[replace(run.evaluations[0], stage="step 9", mean=1e9)])
    with pytest.raises(DataError, match=r"best of 1 evaluations is that of step 9 .* run.keep_best = 1"):
        _ = lost.best_policy
