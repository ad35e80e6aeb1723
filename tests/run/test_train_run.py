"""A run that was stopped, in whatever way, and went on is bitwise the run that was never stopped."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import pytest
from tiny_runs import CONFIGS, ROOT, differences, files_of, hone, lay_out, lines_of, start, steps_logged, wait_for

from hone.learner.gradient import GradientLearner, MetricsAccumulator, OptimizerPhase
from hone.models.language.token_policy import TokenPolicy
from hone.objectives.terms import LossTerms
from hone.run.capsule import read_batch, read_capsule
from hone.run.store.events import read_events
from hone.text.rows import TokenBatch, TokenRows

Learner: TypeAlias = GradientLearner[TokenPolicy, TokenBatch]
Objective: TypeAlias = Callable[[TokenPolicy, TokenBatch], LossTerms]
STEPS = 6
NO_CERTIFICATE = "run.certify=false"
"""A process of its own would make one, which takes half of the time of a short run."""
RECIPES = sorted(CONFIGS)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The uninterrupted runs, one folder each: `straight/sft/tiny`."""
    folder = tmp_path_factory.mktemp("straight")
    lay_out(folder)
    before = Path.cwd()
    os.chdir(folder)
    try:
        for recipe in RECIPES:
            assert hone("train", f"{recipe}.toml", "--runs", recipe, "run.keep_last=9") == 0
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_run_is_the_same_run_every_time(straight: Path, place: Path, recipe: str) -> None:
    assert hone("train", f"{recipe}.toml") == 0
    assert differences(place / "runs" / "tiny", straight / recipe / "tiny", step=STEPS) == []
    assert hone("train", f"{recipe}.toml", "seed=1", "name=other") == 0
    assert differences(place / "runs" / "other", straight / recipe / "tiny", step=STEPS) != []


@pytest.mark.parametrize("recipe", RECIPES)
def test_it_learns(straight: Path, recipe: str) -> None:
    """The witness that these runs step at all: their figures move, and all of them are there."""
    lines = [json.loads(line) for line in lines_of(straight / recipe / "tiny")]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    name = "policy/nll_nats" if recipe == "sft" else "policy/kl_reference"
    values = [line[name] for line in lines]
    assert len(set(values)) == STEPS
    assert (values[-1] < values[0]) == (recipe == "sft")
    assert all(("eval/score" in line) == (recipe == "sft" and line["step"] % 2 == 0) for line in lines)


@pytest.mark.parametrize("recipe", RECIPES)
def test_steps_in_two_goes_are_the_same_steps(straight: Path, place: Path, recipe: str) -> None:
    """Three steps, and then three more; where a run ends it also judges and shows, which touches no weight."""
    assert hone("train", f"{recipe}.toml", "steps=3") == 0
    assert hone("train", f"{recipe}.toml", "--resume") == 0
    assert "steps was 3 and is 6" in (place / "runs" / "tiny" / "log.txt").read_text(encoding="utf-8")
    run, whole = place / "runs" / "tiny", straight / recipe / "tiny"
    assert files_of(run, STEPS) == files_of(whole, STEPS)
    ours, theirs = lines_of(run), lines_of(whole)
    assert [*ours[:2], *ours[3:]] == [*theirs[:2], *theirs[3:]]
    assert json.loads(ours[2]).items() >= json.loads(theirs[2]).items()


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("step", [2, 4, 6])
def test_every_checkpoint_leads_to_the_same_end(
    straight: Path, place: Path, recipe: str, step: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Later checkpoints are gone, metrics and samples of later steps are still there, and the last line is torn."""
    run = place / "runs" / "tiny"
    shutil.copytree(straight / recipe / "tiny", run)
    for later in range(step + 2, STEPS + 1, 2):
        shutil.rmtree(run / "checkpoints" / f"step_{later:08d}")
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 7, "policy/loss": 1.2')
    assert hone("train", f"{recipe}.toml", "--resume", "run.keep_last=9") == 0
    assert differences(run, straight / recipe / "tiny", step=STEPS) == []
    assert "torn last line cut" in capsys.readouterr().out + (run / "log.txt").read_text(encoding="utf-8")


def test_a_damaged_checkpoint_is_passed_over_and_kept(straight: Path, place: Path) -> None:
    run = place / "runs" / "tiny"
    shutil.copytree(straight / "grpo" / "tiny", run)
    weights = run / "checkpoints" / f"step_{STEPS:08d}" / "policy" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert hone("train", "grpo.toml", "--resume", "run.keep_last=9") == 0
    assert differences(run, straight / "grpo" / "tiny", step=STEPS) == []
    assert (run / "checkpoints" / f"aside_step_{STEPS:08d}").is_dir()


def test_figures_over_several_steps_survive_a_stop_between_lines(place: Path) -> None:
    """A line every three steps, a stop after the fourth: the window of two steps is in the checkpoint."""
    arguments = ("train", "grpo.toml", "run.log_every=3", "run.keep_last=9")
    assert hone(*arguments, "--runs", "whole") == 0
    shutil.copytree(place / "whole", place / "cut")
    shutil.rmtree(place / "cut" / "tiny" / "checkpoints" / f"step_{STEPS:08d}")
    assert hone(*arguments, "--runs", "cut", "--resume") == 0
    assert len(lines_of(place / "cut" / "tiny")) == 2
    assert differences(place / "cut" / "tiny", place / "whole" / "tiny", step=STEPS) == []


@pytest.mark.parametrize(
    ("recipe", "number", "code"),
    [("grpo", signal.SIGINT, 130), pytest.param("sft", signal.SIGTERM, 143, marks=pytest.mark.slow)],
)
def test_a_signal_saves_and_the_rest_follows(place: Path, recipe: str, number: signal.Signals, code: int) -> None:
    """The whole process group gets it, as from a terminal, at a random moment of a random step."""
    arguments = ("train", f"{recipe}.toml", "run.checkpoint_every=5000", "run.rollouts_every=0", NO_CERTIFICATE)
    dice, run = random.Random(0), place / "runs" / "tiny"
    process = start(place, *arguments, "steps=3000")
    wanted = dice.randint(2, 9)
    wait_for(lambda: steps_logged(run) >= wanted, process)
    time.sleep(dice.random() * 0.05)
    os.killpg(process.pid, number)
    said = process.communicate(timeout=300)[0]
    assert process.returncode == code, said
    assert "Go on with --resume" in said
    done = steps_logged(run)
    assert wanted <= done < 3000, "the signal came too late to test anything"
    assert f"stopped after step {done} of 3000" in said
    assert files_of(run, done)
    steps = f"steps={done + 8}"
    assert hone(*arguments, steps, "--resume") == 0
    assert hone(*arguments, steps, "--runs", "whole") == 0
    assert differences(run, place / "whole" / "tiny", step=done + 8) == []


def test_a_second_signal_leaves_at_once(place: Path) -> None:
    """While a reward function hangs, the step cannot end: the second Ctrl-C does not wait for it."""
    arguments = ("train", "grpo.toml", "user_code.deadline_s=600", NO_CERTIFICATE)
    process = start(place, *arguments, "steps=3000")
    run = place / "runs" / "tiny"
    wait_for(lambda: steps_logged(run) >= 2, process)
    (place / "hold").touch()
    wait_for((place / "held").exists, process)
    done = steps_logged(run)
    os.killpg(process.pid, signal.SIGINT)
    assert process.stdout is not None
    assert any("once more leaves at once" in line for line in process.stdout), "it is told of"
    assert process.poll() is None, "the first one waits for the step"
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=300)
    assert process.returncode == 130
    assert steps_logged(run) == done, "it did not wait for the step"
    deadline = time.monotonic() + 300
    while alive(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert alive(process.pid) == [], "worker processes outlive the run"
    (place / "hold").unlink()
    assert hone(*arguments, f"steps={done + 3}", "--resume") == 0


def alive(session: int) -> list[str]:
    """Processes of a session that still run."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(entry.name)
    return found


def test_a_killed_run_goes_on_as_if_nothing_had_been(place: Path) -> None:
    """kill -9 at random moments, twice over; what lies there then is resumed, and ends as the straight run.

    Lines that wait to be written together are lost with the process, and made again.
    """
    dice, run = random.Random(1), place / "runs" / "tiny"
    arguments = ("train", "grpo.toml", "run.checkpoint_every=3", "run.rollouts_every=0", NO_CERTIFICATE)
    for attempt in range(2):
        process = start(place, *arguments, "steps=3000", *(["--resume"] if attempt else []), program="hone")
        wanted = (steps_logged(run) if attempt else 0) + dice.randint(4, 7)
        wait_for(lambda wanted=wanted: steps_logged(run) >= wanted, process)
        time.sleep(dice.random() * 0.05)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=300)
        assert process.returncode == -signal.SIGKILL
    steps = steps_logged(run) + 8
    assert hone(*arguments, f"steps={steps}", "--resume") == 0
    assert hone(*arguments, f"steps={steps}", "--runs", "whole") == 0
    assert differences(run, place / "whole" / "tiny", step=steps) == []


def test_a_run_killed_before_its_first_checkpoint_can_be_resumed(straight: Path, place: Path) -> None:
    """There is nothing to lose: it begins again, says so, and is the same run."""
    run = place / "runs" / "tiny"
    shutil.copytree(straight / "grpo" / "tiny", run)
    shutil.rmtree(run / "checkpoints")
    assert hone("train", "grpo.toml", "--resume", "run.keep_last=9") == 0
    assert differences(run, straight / "grpo" / "tiny", step=STEPS) == []
    assert "no checkpoint" in (run / "log.txt").read_text(encoding="utf-8")


def test_a_run_killed_in_its_first_save_and_killed_again_can_still_be_resumed(straight: Path, place: Path) -> None:
    run = place / "runs" / "tiny"
    shutil.copytree(straight / "sft" / "tiny", run)
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints" / ".tmp_step_00000002").mkdir(parents=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    words = ("train", "sft.toml", "--resume", "run.keep_last=9", "run.checkpoint_every=0")
    process = subprocess.Popen(  # an interpreter that starts: a warm one has ended before it is killed
        [sys.executable, "-m", "hone", *words], cwd=place, env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    end = time.monotonic() + 300
    while (run / "checkpoints").exists():
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.005)
    process.kill()
    process.communicate(timeout=300)
    assert hone("train", "sft.toml", "--resume", "run.keep_last=9") == 0
    assert files_of(run, STEPS) == files_of(straight / "sft" / "tiny", STEPS)


def test_a_finished_run_resumed_stays_as_it_is(straight: Path, place: Path) -> None:
    run = place / "runs" / "tiny"
    shutil.copytree(straight / "sft" / "tiny", run)
    assert hone("train", "sft.toml", "--resume", "run.keep_last=9") == 0
    assert differences(run, straight / "sft" / "tiny", step=STEPS) == []


def test_other_data_or_settings_are_no_resume(straight: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = place / "runs" / "tiny"
    shutil.copytree(straight / "sft" / "tiny", run)
    before = (run / "metrics.jsonl").read_bytes(), (run / "config.json").read_bytes()
    assert hone("train", "sft.toml", "--resume", "run.keep_last=9", "learner.lr=2e-3", "steps=9") == 2
    assert "learner.lr: 0.01 -> 0.002" in capsys.readouterr().err
    with (place / "sums.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"prompt": "5+5=", "completion": "10", "answer": "10"}\n')
    assert hone("train", "sft.toml", "--resume", "run.keep_last=9", "steps=9") == 2
    assert "dataset: " in capsys.readouterr().err
    assert ((run / "metrics.jsonl").read_bytes(), (run / "config.json").read_bytes()) == before


def test_workers_slots_and_micro_batches_do_not_matter(straight: Path, place: Path) -> None:
    """Processes and slots never; a micro-batch only in the last bits of a sum."""
    assert hone("train", "grpo.toml", "user_code.workers=2", "rollout.max_concurrent=16") == 0
    same = lines_of(place / "runs" / "tiny")
    assert same[0] == lines_of(straight / "grpo" / "tiny")[0]
    assert hone("train", "grpo.toml", "learner.micro_batch_tokens=9", "name=small") == 0
    for one, other in zip(lines_of(place / "runs" / "small")[:2], same[:2], strict=True):
        ours, theirs = json.loads(one), json.loads(other)
        assert ours.keys() == theirs.keys()
        # A prompt that answers share is computed once a micro-batch: the work grows.
        for work in ("learner/tokens", "learner/flops"):
            assert ours.pop(work) > theirs.pop(work)
        for name, value in ours.items():
            assert theirs[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_run_that_diverges_stops_before_the_step_and_leaves_a_bundle(
    straight: Path, place: Path, recipe: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss of the third step is made NaN: the bundle holds its batch and the weights that the second step left."""
    seen: list[float] = []
    original = GradientLearner._optimizer_step

    def poisoned(
        self: Learner,
        phase: OptimizerPhase[TokenPolicy, TokenBatch],
        rows: TokenRows,
        rate: float,
        tally: MetricsAccumulator,
        *,
        with_metrics: bool,
    ) -> None:
        seen.append(rate)
        per_step = 2 if recipe == "sft" else 4
        if len(seen) == 2 * per_step + 1:
            original(
                self, replace(phase, objective=nan_of(phase.objective)), rows, rate, tally, with_metrics=with_metrics
            )
        original(self, phase, rows, rate, tally, with_metrics=with_metrics)

    monkeypatch.setattr(GradientLearner, "_optimizer_step", poisoned)
    assert hone("train", f"{recipe}.toml") == 6
    said = capsys.readouterr().err
    assert "not a finite number" in said
    assert "hone debug" in said
    run = place / "runs" / "tiny"
    bundle = run / "capsule"
    assert (bundle / "policy" / "model.safetensors").read_bytes() == (
        straight / recipe / "tiny" / "checkpoints" / "step_00000002" / "policy" / "model.safetensors"
    ).read_bytes()
    assert lines_of(run) == lines_of(straight / recipe / "tiny")[:2]
    batch, failure = read_batch(run), read_capsule(run)
    assert len(batch.credits.advantage) == batch.episodes.decisions
    assert (failure.kind, failure.step, failure.checkpoint) == ("refused_update", 3, 2)
    assert "not a finite number" in failure.traceback
    assert [event.kind for event in read_events(run).events][-1] == "refused_update"
    monkeypatch.setattr(GradientLearner, "_optimizer_step", original)
    assert hone("train", f"{recipe}.toml", "--resume") == 0
    assert differences(run, straight / recipe / "tiny", step=STEPS) == []


def nan_of(objective: Objective) -> Objective:
    def bad(policy: TokenPolicy, batch: TokenBatch) -> LossTerms:
        terms = objective(policy, batch)
        return replace(terms, loss=terms.loss * float("nan"))

    return bad


def test_a_resume_with_another_reference_policy_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The folder that the run started from, and that its KL is measured to, was overwritten in the meantime."""
    assert hone("train", "sft.toml", "steps=2", "name=start") == 0
    weights = newest_policy(place / "runs" / "start")
    shutil.copytree(weights, place / "base")
    config = (place / "grpo.toml").read_text(encoding="utf-8")
    (place / "grpo.toml").write_text(re.sub(r"\[model\.new\][^\[]*", 'path = "base"\n', config), encoding="utf-8")
    assert hone("train", "grpo.toml", "steps=2") == 0
    assert hone("train", "sft.toml", "steps=3", "name=other") == 0
    shutil.rmtree(place / "base")
    shutil.copytree(newest_policy(place / "runs" / "other"), place / "base")
    capsys.readouterr()
    assert hone("train", "grpo.toml", "--resume", "steps=3") == 3
    assert "the reference policy (model.path) is not what this run was started with" in capsys.readouterr().err


def newest_policy(run: Path) -> Path:
    return max((run / "checkpoints").iterdir()) / "policy"
