"""`hone compare` and `hone train --seeds`, on runs that are really made."""

import json
from pathlib import Path

import pytest
from short_runs import SHORT

from hone.cli.commands.seeds import parse_seeds
from hone.cli.main import main
from hone.core.errors import ConfigError
from hone.run.store.metrics import without_clock_metrics


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.toml").write_text(SHORT)
    return tmp_path


def figures(run: str) -> list[str]:
    """The metrics of a run, without what depends on the clock."""
    return without_clock_metrics(Path(f"runs/{run}/metrics.jsonl").read_text().splitlines())


@pytest.mark.parametrize(
    ("text", "seeds"), [("3", [0, 1, 2]), ("2..4", [2, 3, 4]), ("7,1", [7, 1]), ("5..5", [5]), ("4,", [4])]
)
def test_seeds_are_read(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["0", "-1", "x", "4..2", "1,1", "1..x", "1001", "-1..2"])
def test_other_seeds_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--seeds must"):
        parse_seeds(text)


def test_seeds_are_trained_resumed_and_compared(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "short.toml", "--seeds", "2"]) == 0, capsys.readouterr().err
    out = capsys.readouterr().out
    assert "finished 2 seeds: runs/short" in out and "IQM (95% interval)" in out
    assert sorted(path.name for path in (place / "runs/short").iterdir()) == ["compare.html", "seed_0", "seed_1"]
    assert main(["train", "short.toml", "--seeds", "3"]) == 2
    assert "contains seed_0, seed_1 already; --resume continues them" in capsys.readouterr().err
    before = (place / "runs/short/seed_0/metrics.jsonl").read_bytes()
    assert main(["train", "short.toml", "--seeds", "3", "--resume"]) == 0, capsys.readouterr().err
    assert (place / "runs/short/seed_2/metrics.jsonl").is_file()
    assert (place / "runs/short/seed_0/metrics.jsonl").read_bytes() == before
    alone = ["train", "short.toml", "seed=2", "name=alone"]
    assert main(alone) == 0
    capsys.readouterr()
    assert main(["compare", "short", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [group["name"] for group in document["groups"]] == ["short"]
    assert len(document["groups"][0]["runs"]) == 3
    assert document["curve"] == {"metric": "eval/score", "unit": "environment steps"}
    assert main(["compare", "short", "alone", "--html", "c.html", "--metric", "reward/mean", "--threshold", "5"]) == 0
    out = capsys.readouterr().out
    assert "seed 2 of CartPole-v1 occurs more than once" in out and (place / "c.html").is_file()
    # A seed among others is the run that it is alone.
    assert figures("short/seed_2") == figures("alone")


@pytest.mark.slow
def test_seeds_in_processes_are_the_same_runs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "short.toml", "--seeds", "0..1", "--jobs", "2"]) == 0, capsys.readouterr().err
    assert main(["train", "short.toml", "--seeds", "2", "--name", "other"]) == 0
    for seed in (0, 1):
        assert figures(f"short/seed_{seed}") == figures(f"other/seed_{seed}")


def test_a_seed_that_fails_is_named_and_the_others_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "runs/short").mkdir(parents=True)
    (place / "runs/short/seed_0").write_text("in the way")
    for jobs in ("1", "2"):
        assert main(["train", "short.toml", "--seeds", "2", "--jobs", jobs, "--resume"]) == 5
        assert "seed_0: " in capsys.readouterr().err
        assert (place / "runs/short/seed_1/report.html").is_file()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "short.toml", "--seeds", "2", "seed=1"], "both --seeds and seed="),
        (["train", "short.toml", "--jobs", "2"], "it needs --seeds"),
        (["train", "short.toml", "--seeds", "2", "--jobs", "0"], "--jobs must be a whole number >= 1"),
        (["train", "stages.toml", "--seeds", "2"], "--seeds is for a single run"),
        (["compare"], "the following arguments are required: run"),
        (["compare", "x", "--threshold", "nan"], "--threshold must be a finite number"),
    ],
)
def test_bad_words(words: list[str], said: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "stages.toml").write_text('[[stage]]\nrecipe = "sft"\n')
    assert main(words) == 2
    assert said in capsys.readouterr().err


def test_a_dry_run_with_seeds_changes_nothing(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "short.toml", "--seeds", "2", "--dry-run"]) == 0
    assert "seed_0: ppo" in capsys.readouterr().out and not (place / "runs").exists()
