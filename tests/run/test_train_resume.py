"""A resume is the same run: changed code and settings are refused by name, or accepted on request and recorded."""

import json
import os
import shutil
from pathlib import Path

import pytest
from tiny_runs import differences, files_of, hone, lay_out, lines_of

from hone.core.config import ConfigSetting
from hone.run.resume import step_schedules

CORRIDOR = """
import gymnasium
import numpy as np
from goal import reward

class Corridor(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(5))
        return np.array([self.place / 5], np.float32), {}

    def step(self, action):
        self.place = max(0, self.place + (1 if action == 1 else -1))
        return np.array([min(1.0, self.place / 5)], np.float32), reward(), self.place >= 5, False, {}
"""
CORRIDOR_RUN = """
recipe = "ppo"
name = "walk"
steps = 3
rollout_steps = 8
env = { id = "corridor.py:Corridor", num_envs = 2, max_episode_steps = 9, isolation = "none", check = false }
learner = { lr = 1e-2, lr_decay = "DECAY", epochs = 1 }
algorithm = { clip_decay = "constant" }
run = { threads = 1, checkpoint_every = 1, certify = false, keep_last = 9 }
"""


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GRPO run of six steps, whose reward has a helper beside it."""
    folder = tmp_path_factory.mktemp("straight")
    lay_out(folder)
    (folder / "measure.py").write_text("def same(a, b):\n    return a == b\n", encoding="utf-8")
    text = (folder / "rewards.py").read_text(encoding="utf-8")
    (folder / "rewards.py").write_text(f"import measure\n{text}", encoding="utf-8")
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert hone("train", "grpo.toml", "run.keep_last=9", "run.certify=false") == 0
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def place(straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, stopped after four steps."""
    shutil.copytree(straight, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy/runs/tiny/checkpoints/step_00000006")
    return tmp_path / "copy"


RESUME = ("train", "grpo.toml", "--resume", "run.keep_last=9", "run.certify=false")


def change(file: str) -> None:
    with Path(file).open("a", encoding="utf-8") as opened:
        opened.write("# another thought\n")


def recorded(run: Path) -> list[tuple[int, str]]:
    manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    return [(change["after_step"], change["change"]) for change in manifest["changes"]]


@pytest.mark.parametrize("file", ["rewards.py", "measure.py"])
def test_changed_code_is_no_resume_unless_it_is_asked_for(
    straight: Path, place: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = place / "runs" / "tiny"
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    change(file)
    assert hone(*RESUME) == 2
    said = capsys.readouterr().err
    assert f"code: {file} has changed" in said
    assert "--allow-changed-code" in said
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert hone(*RESUME, "--allow-changed-code") == 0
    assert f"from step 5 on: code: {file} has changed" in (run / "log.txt").read_text(encoding="utf-8")
    assert [step for step, _ in recorded(run)] == [4]
    assert differences(run, straight / "runs" / "tiny", step=6) == [], "the file was changed by a comment only"
    assert hone(*RESUME, "steps=7") == 0, "the new code is the run's own from now on"


def test_changed_code_of_an_environment_is_found_through_its_helper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("corridor.py").write_text(CORRIDOR, encoding="utf-8")
    Path("goal.py").write_text("def reward():\n    return -1.0\n", encoding="utf-8")
    Path("walk.toml").write_text(CORRIDOR_RUN.replace("DECAY", "linear"), encoding="utf-8")
    assert hone("train", "walk.toml") == 0
    assert hone("train", "walk.toml", "--resume", "steps=4") == 0
    said = (tmp_path / "runs/walk/log.txt").read_text(encoding="utf-8")
    assert "the schedule of learner.lr_decay = linear ends at the last step" in said
    change("goal.py")
    capsys.readouterr()
    assert hone("train", "walk.toml", "--resume", "steps=5") == 2
    assert "code: goal.py has changed" in capsys.readouterr().err


def test_more_steps_of_a_constant_schedule_are_the_longer_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("corridor.py").write_text(CORRIDOR, encoding="utf-8")
    Path("goal.py").write_text("def reward():\n    return -1.0\n", encoding="utf-8")
    Path("walk.toml").write_text(CORRIDOR_RUN.replace("DECAY", "constant"), encoding="utf-8")
    assert hone("train", "walk.toml", "steps=5", "--runs", "whole") == 0
    assert hone("train", "walk.toml") == 0
    assert hone("train", "walk.toml", "--resume", "steps=5") == 0
    assert files_of(Path("runs/walk"), 5) == files_of(Path("whole/walk"), 5)
    ours, theirs = lines_of(Path("runs/walk")), lines_of(Path("whole/walk"))
    assert [*ours[:2], *ours[3:]] == [*theirs[:2], *theirs[3:]], "step 3 was evaluated, as the last of its run"
    assert "no schedule ends at the last step" in Path("runs/walk/log.txt").read_text(encoding="utf-8")


def test_evaluation_logging_and_checkpoints_may_change_and_touch_no_weight(straight: Path, place: Path) -> None:
    added = ("evaluation.task.source=held.jsonl", "evaluation.max_tokens=3", "evaluation.every=1")
    added += ('evaluation.rewards.functions=[{use="exact_match"}]', "run.log_every=2", "run.keep_best=1")
    assert hone(*RESUME, *added) == 0
    run = place / "runs" / "tiny"
    ours, theirs = files_of(run, 6), files_of(straight / "runs" / "tiny", 6)
    assert [name for name in ours if ours[name] != theirs[name]] == ["state/state.json"]  # the reporter's window
    assert "eval/score" in lines_of(run)[-1]
    assert any("evaluation.every" in line for _, line in recorded(run))


def test_a_learning_rate_changes_on_request_from_the_next_step_on_and_is_recorded(
    straight: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hone(*RESUME, "learner.lr=2e-3") == 2
    said = capsys.readouterr().err
    assert "learner.lr: 0.01 -> 0.002" in said
    assert "--allow-changed-config accepts learner.lr" in said
    assert hone(*RESUME, "learner.lr=2e-3", "--allow-changed-config") == 0
    run = place / "runs" / "tiny"
    assert lines_of(run)[:4] == lines_of(straight / "runs" / "tiny")[:4]
    assert [json.loads(line)["learner/lr"] for line in lines_of(run)] == [0.01] * 4 + [0.002] * 2
    assert recorded(run) == [(4, "learner.lr: 0.01 -> 0.002")]
    assert "from step 5 on: learner.lr: 0.01 -> 0.002" in (run / "log.txt").read_text(encoding="utf-8")
    capsys.readouterr()
    assert hone("show", "tiny") == 0
    assert "after step 4: learner.lr: 0.01 -> 0.002" in capsys.readouterr().out
    assert hone("compare", "tiny") == 0
    assert "tiny: learner.lr: 0.01 -> 0.002 after step 4" in capsys.readouterr().out


@pytest.mark.parametrize("override", ["seed=5", "model.new.layers=2", "run.threads=2", "task.source=held.jsonl"])
def test_settings_that_made_the_state_never_change(
    place: Path, override: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hone(*RESUME, override, "--allow-changed-config", "--allow-changed-code") == 2
    said = capsys.readouterr().err
    assert override.partition("=")[0] in said
    assert "model.optimizer = true" in said
    assert "start a new run" in said


def test_a_state_that_does_not_fit_changed_settings_leaves_the_run_as_it_was(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hone.learner.gradient import GradientLearner  # its method is replaced here

    def broken(self: object, state: object) -> None:
        raise KeyError("phases")

    monkeypatch.setattr(GradientLearner, "restore", broken)
    run = place / "runs" / "tiny"
    names = ("config.json", "manifest.json", "metrics.jsonl")
    before = [(run / name).read_bytes() for name in names]
    assert hone(*RESUME, "learner.lr=2e-3", "--allow-changed-config") == 2
    assert "does not fit the changed settings" in capsys.readouterr().err
    assert [(run / name).read_bytes() for name in names] == before


def test_fewer_steps_than_are_done_are_an_error(
    straight: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = place / "whole" / "tiny"
    shutil.copytree(straight / "runs" / "tiny", run)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert hone(*RESUME, "--runs", "whole", "steps=5") == 2
    assert "steps = 5, but tiny has finished step 6" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    weights = run / "checkpoints/step_00000006/policy/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\xff")
    assert hone(*RESUME, "--runs", "whole", "steps=5") == 0, "step 6 is damaged: step 4 is the newest"
    assert files_of(run, 5)
    assert hone("train", "grpo.toml", "--seeds", "1", "--name", "many", "steps=2", "run.certify=false") == 0
    capsys.readouterr()
    assert hone("train", "grpo.toml", "--seeds", "1", "--name", "many", "steps=1", "--resume") == 2
    assert "seed_0 has finished step 2" in capsys.readouterr().err


def test_the_flags_are_for_a_resume(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--allow-changed-code", "--allow-changed-config"):
        assert hone("train", "grpo.toml", flag, "name=other") == 2
        assert "--resume" in capsys.readouterr().err
    assert not (place / "runs" / "other").exists()


def test_only_schedules_that_end_with_the_run_are_named() -> None:
    values: dict[str, str | float | None] = {
        "steps": 5, "learner.lr_decay": "cosine", "learner.lr": 0.1, "algorithm.clip_decay": None,
        "algorithm.correction": 0.4, "algorithm.outer_rate": 0.1,
    }  # fmt: skip
    settings = {key: ConfigSetting(value=value) for key, value in values.items()}
    assert step_schedules(settings) == ["learner.lr_decay = cosine", "algorithm.correction = 0.4"]
    meta = settings | {"algorithm.inner_steps": ConfigSetting(value=2)}
    assert "algorithm.outer_rate = 0.1" in step_schedules(meta)
    constant = settings | {"learner.lr_decay": ConfigSetting(value="constant")}
    assert step_schedules(constant) == ["algorithm.correction = 0.4"]


def test_defaults_are_those_that_the_run_was_started_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run of a hone with other defaults goes on with them; a key that was given is compared as ever."""
    monkeypatch.chdir(tmp_path)
    Path("corridor.py").write_text(CORRIDOR, encoding="utf-8")
    Path("goal.py").write_text("def reward():\n    return -1.0\n", encoding="utf-8")
    Path("walk.toml").write_text(CORRIDOR_RUN.replace("DECAY", "constant"), encoding="utf-8")
    older = ("algorithm.gae_lambda=0.7", "learner.max_grad_norm=0.4")
    assert hone("train", "walk.toml", *older) == 0
    assert hone("train", "walk.toml", "steps=4", *older, "--runs", "whole") == 0
    path = tmp_path / "runs/walk/config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    for key in ("algorithm.gae_lambda", "learner.max_grad_norm"):
        settings[key]["origin"] = "default"
    path.write_text(json.dumps(settings), encoding="utf-8")
    capsys.readouterr()
    for steps in (4, 5):
        assert hone("train", "walk.toml", "--resume", f"steps={steps}") == 0
        assert "walk: algorithm.gae_lambda stays 0.7" in capsys.readouterr().out
        if steps == 4:
            assert files_of(Path("runs/walk"), 4) == files_of(Path("whole/walk"), 4)
    assert hone("train", "walk.toml", "--resume", "steps=6", "algorithm.gae_lambda=0.9") == 2
    assert "algorithm.gae_lambda: 0.7 -> 0.9" in capsys.readouterr().err


def test_a_resume_without_its_metrics_says_what_is_lost_and_makes_the_same_weights(
    place: Path, straight: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = place / "runs/tiny"
    (run / "metrics.jsonl").unlink()
    capsys.readouterr()
    assert hone(*RESUME) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "metrics.jsonl is gone: the metrics of steps 1 to 4 are lost to the report, to plots and to hone compare"
        in said
    )
    assert "metrics.jsonl is gone" in (run / "log.txt").read_text(encoding="utf-8")
    assert [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()] == [5, 6]
    last = "runs/tiny/checkpoints/step_00000006/policy/model.safetensors"
    assert (place / last).read_bytes() == (straight / last).read_bytes()
