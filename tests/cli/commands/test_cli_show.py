"""`hone show`, `list`, `eval` and `sample`: on a run folder that the store has written."""

from pathlib import Path

import pytest
from manual_clock import ManualClock

from hone import recipes
from hone.cli.commands import doctor
from hone.cli.main import main
from hone.core.config import ConfigSetting
from hone.evaluate import checkpoint
from hone.recipes.registry import recipe_families, recipe_names, recipes_by_family
from hone.run.store.folder import create_run
from hone.run.store.manifest import RunMetadata
from hone.run.store.metrics import open_metrics
from hone.text.evaluate.evaluation_request import EvaluationTask


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    config = {"lr": ConfigSetting(value=0.5, origin="run.toml:3"), "gamma": ConfigSetting(value=0.99)}
    facts = RunMetadata(hone_version="0.1.0", recipe="toy", machine="a machine", versions={"torch": "2"})
    with create_run(Path("runs"), "first", config=config, metadata=facts, clock=ManualClock()) as folder:
        metrics = open_metrics(folder.metrics_path).writer
        metrics.append(1, {"reward/mean": 0.25, "loss": float("nan")})
        metrics.append(2, {"reward/mean": 0.75})
        metrics.close()
        folder.checkpoints().save(2, {"step": 2}, write_policy=write_policy)
    return tmp_path / "runs"


def write_policy(folder: Path) -> None:
    (folder / "config.json").write_text("{}")


def test_show_tells_what_a_run_did(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "first"]) == 0
    out = capsys.readouterr().out
    assert "first: toy" in out and "run.toml:3" in out and "gamma" not in out
    assert ["reward/mean", "0.250", "0.750"] in [line.split() for line in out.splitlines()]
    assert main(["show", "runs/first", "--config"]) == 0
    assert "gamma" in capsys.readouterr().out


def test_two_runs_differ_in_settings_versions_and_last_metrics(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"lr": ConfigSetting(value=0.25), "gamma": ConfigSetting(value=0.99), "beta": ConfigSetting(value=1)}
    facts = RunMetadata(hone_version="0.1.0", recipe="toy", machine="a machine", versions={"torch": "3"})
    with create_run(runs, "second", config=config, metadata=facts, clock=ManualClock()) as folder:
        metrics = open_metrics(folder.metrics_path).writer
        metrics.append(1, {"reward/mean": 0.5, "time/step_s": 9.0})
        metrics.append(2, {"reward/mean": float("nan"), "kl": 0.1})
        metrics.close()
    assert main(["show", "first", "--diff", "second"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["lr", "0.5", "0.25"] in rows
    assert ["beta", "-", "1"] in rows
    assert ["torch", "2", "3"] in rows
    assert ["reward/mean", "0.750", "0.500"] in rows
    assert ["kl", "-", "0.100"] in rows
    assert not [row for row in rows if row[:1] in (["gamma"], ["machine"], ["step"], ["time/step_s"])]
    assert main(["show", "first", "--diff", "secnd"]) == 3
    assert "did you mean second?" in capsys.readouterr().err


def test_unknown_runs_come_with_the_nearest(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "frist"]) == 3
    assert "did you mean first?" in capsys.readouterr().err
    assert main(["show", "x", "--runs", "nowhere"]) == 3
    assert "contains no runs" in capsys.readouterr().err


def test_list_shows_runs_even_beside_a_damaged_one(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "second").mkdir()
    (runs / "second" / "manifest.json").write_text("{")
    assert main(["list", "runs"]) == 0
    out = capsys.readouterr().out
    assert "first" in out and "damaged" in out
    assert main(["list", "rnus"]) == 2
    assert "did you mean runs?" in capsys.readouterr().err


def test_list_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "recipes"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert all(any(line.startswith(f"{name} ") for line in lines) for name in recipe_names())
    titles = [line for line in lines if line.endswith(")") and line.startswith(tuple(recipes_by_family()))]
    assert len(titles) == len(recipes_by_family())
    assert sum(int(line.split("(")[1][:-1]) for line in titles) == len(recipe_names())
    assert lines.index(titles[0]) < next(k for k, line in enumerate(lines) if line.startswith("grpo "))
    assert main(["list", "recipes", "dapo"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "dapo GRPO with clip-higher, token mean, dynamic sampling and overlong shaping"
    assert lines[1] == "Yu et al., DAPO, 2025"
    assert lines[2].startswith("DynamicSampling(Live(text task, engine)) -> with_shaped_scores(overlong_penalty(")
    assert "clip_high = 0.28" in lines[3] and lines[4].startswith("when not to use it: ")
    assert main(["list", "recipes", "bandits"]) == 0
    assert capsys.readouterr().out.startswith("boltzmann  ")
    assert main(["list", "recipes", "thomson"]) == 2
    assert "did you mean thompson?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("grpo", "text"), ("sft", "text"), ("ppo", "on_policy"), ("sac", "off_policy"),
        ("cql", "offline"), ("bc", "offline"), ("thompson", "bandits"),
    ],
)  # fmt: skip
def test_the_family_of_a_recipe_is_its_folder(name: str, family: str) -> None:
    assert recipe_families()[name] == family


def test_names_of_recipes_are_unique_over_all_families() -> None:
    files = [path.stem for path in Path(recipes.__path__[0]).glob("*/*.py") if path.stem != "__init__"]
    assert sorted(files) == recipe_names()


Asked = list[tuple[Path, Path | None]]


def fake_judge(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Takes the place of the judge, and writes down what it was asked."""
    asked: Asked = []

    def examine(
        policy: Path, *, run: Path | None, problems: int, seed: int, device: str, task: EvaluationTask, search: object
    ) -> checkpoint.PolicyEvaluation:
        asked.append((policy, run))
        return checkpoint.PolicyEvaluation(scores={"eval/score": 0.5, "problems": float(problems)})

    def answers(policy: Path, wanted: checkpoint.SampleRequest) -> list[checkpoint.SampledAnswer]:
        asked.append((policy, wanted.run))
        return [(wanted.prompt or "2 + 2", "4\x1b[2J", 1.0), ("3 + 3", "7", None)][: wanted.count]

    monkeypatch.setattr(checkpoint, "evaluate_checkpoint", examine)
    monkeypatch.setattr(checkpoint, "sample_answers", answers)
    return asked


def test_checkpoints_are_found_judged_and_heard(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = fake_judge(monkeypatch)
    policy = Path("runs/first/checkpoints/step_00000002/policy")
    for words in ("first", str(policy), str(policy.parent)):
        assert main(["eval", words, "--problems", "7"]) == 0
    assert [(path.absolute(), run and run.absolute()) for path, run in asked] == [
        (policy.absolute(), (runs / "first").absolute())
    ] * 3
    assert main(["sample", "first", "--count", "2", "--temperature", "0"]) == 0
    out = capsys.readouterr().out
    assert "eval/score  0.500" in out
    assert "2 + 2" in out and "\x1b" not in out


def test_lost_episodes_are_named(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def examine(
        policy: Path, *, run: Path | None, problems: int, seed: int, device: str, task: EvaluationTask, search: object
    ) -> checkpoint.PolicyEvaluation:
        return checkpoint.PolicyEvaluation(
            scores={"eval/score": 0.5}, notes=["2 of 7 episodes of an evaluation were lost"]
        )

    monkeypatch.setattr(checkpoint, "evaluate_checkpoint", examine)
    assert main(["eval", "first", "--problems", "7"]) == 0
    assert "note: 2 of 7 episodes of an evaluation were lost" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["eval", "first", "--problems", "0"], "--problems must be a whole number >= 1, got 0"),
        (["eval", "first", "--problems", "many"], "--problems must be a whole number >= 1, got 'many'"),
        (["sample", "first", "--temperature", "nan"], "--temperature must be a number >= 0, got nan"),
        (["sample", "first", "--seed", "-1"], "--seed must be a whole number >= 0, got -1"),
    ],
)
def test_bad_numbers(words: list[str], said: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert said in capsys.readouterr().err


def test_the_doctor_tries_the_disk(tmp_path: Path) -> None:
    assert [verdict for _, _, verdict in doctor.disk(tmp_path / "deep" / "runs")] != ["fail"]
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    ((_, found, verdict),) = doctor.disk(tmp_path / "file" / "runs")
    assert verdict == "fail" and "cannot be written" in found


def test_the_doctor_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LIBRARIES", ("numpy", "no-such-library"))
    assert [verdict for _, _, verdict in doctor.libraries()] == ["ok", "fail"]
