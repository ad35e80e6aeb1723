"""`hone sweep`: its checks before the first run, and runs that are really made."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from short_runs import SHORT

from hone.cli.commands import sweep
from hone.cli.commands.sweep import toml_text
from hone.cli.main import main
from hone.config.toml import parse_value
from hone.process.commands import CommandEnd, HoneCommand
from hone.run.store.metrics import without_clock_metrics

PLAIN = f'{SHORT}[learner]\nlr_decay = "constant"\n'


@dataclass
class CommandsHere:
    """A runner that makes the runs in this process."""

    slots: int = 1
    ends: list[CommandEnd] = field(default_factory=list[CommandEnd])

    def start(self, command: HoneCommand) -> None:
        self.ends.append(CommandEnd(name=command.name, code=main(list(command.arguments)), lines=("no",)))

    def wait(self, timeout_s: float) -> list[CommandEnd]:
        del timeout_s
        ended, self.ends = self.ends, []
        return ended

    def stop(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(PLAIN)
    return tmp_path


def write_sweep(*lines: str, over: str = "learner.lr = [1e-3, 1e-2]") -> None:
    Path("sweep.toml").write_text("\n".join(['config = "run.toml"', *lines, "[over]", over, ""]))


def test_trials_are_trained_halved_and_resumed_as_runs_of_hone_train(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweep, "_runner", lambda *_: CommandsHere())
    write_sweep("seeds = 1", "halving = { first_steps = 1, factor = 2 }", 'metric = "reward/mean"')
    assert main(["sweep", "sweep.toml"]) == 0, capsys.readouterr().err
    out = capsys.readouterr().out
    assert "step 1                   2 trials, 1 go on" in out and "winner" in out and "stopped at step 1" in out
    assert "on fresh seeds, worst seed" in out and "page in runs/sweep/sweep.html" in out
    record = json.loads((place / "runs/sweep/sweep.json").read_text())
    (winner,) = record["finalists"]
    # A trial that was trained in parts is the run that `hone train` makes in one.
    rate = record["trials"][winner]["settings"]["learner.lr"]
    assert main(["train", "run.toml", "seed=0", f"learner.lr={rate}", "name=alone"]) == 0
    parts, alone = (
        without_clock_metrics(Path(f"runs/{name}/metrics.jsonl").read_text().splitlines())
        for name in (f"sweep/search/trial_00{winner}/seed_0", "alone")
    )
    assert parts == alone
    assert main(["sweep", "sweep.toml"]) == 2
    assert "contains a sweep already; --resume continues it" in capsys.readouterr().err
    assert main(["sweep", "sweep.toml", "--resume", "--seeds", "2"]) == 2
    assert "sweep.json: seeds: was [0], is [0, 1]" in capsys.readouterr().err
    before = (place / "runs/sweep/sweep.json").read_bytes()
    assert main(["sweep", "sweep.toml", "--resume"]) == 0
    assert (place / "runs/sweep/sweep.json").read_bytes() == before


def test_all_faults_are_told_before_anything_is_made(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_sweep(
        "seeds = 2", "fresh_seeds = [1, 2]", "[halving]", "first_steps = 3",
        over='learner.lrr = [1]\nlearner.epochs = [1, 0]\nenv.id = ["A"]\nseed = [1]',
    )  # fmt: skip
    assert main(["sweep", "sweep.toml"]) == 2
    told = capsys.readouterr().err
    for text in (
        "unknown key learner.lrr in sweep.toml:7; did you mean learner.lr?",
        "learner.epochs in sweep.toml:8 must be >= 1, got 0",
        "over.env.id in sweep.toml:9: runs that differ in it count as one configuration",
        "over.seed in sweep.toml:10: a sweep sets name, seed, steps of its runs itself",
        "fresh_seeds contains 1 of seeds",
    ):
        assert text in told, told
    assert not (place / "runs").exists()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("run.toml", 2, "names nothing to try: give --over"),
        ("run.toml --over learner.lr", 2, "is not of the form key=value,value"),
        ("run.toml --over learner.lr=1e-3,1e-3", 2, "must list different values"),
        ("run.toml --over learner.lr=1e-3 seed=3", 2, "seed=... is set by the sweep itself"),
        ("run.toml --over learner.lr=1e-3 --jobs 0", 2, "jobs on the command line must be >= 1"),
        ("run.toml --over learner.lr=1e-3 --resume", 2, "has no sweep to go on with"),
        ("run.toml --over learner.lr=7,1e-3", 2, "is above 1: such a learning rate nearly always diverges"),
        ("stages.toml --over learner.lr=1e-3", 2, "has [[stage]] tables, and a sweep is over a single run"),
        ("ends.toml", 2, "the schedule of learner.lr_decay = linear ends with the run"),
        ("late.toml", 2, "halving.first_steps = 9 must be below steps = 3"),
        ("many.toml", 2, "over: 1600 combinations are more than 1000"),
        ("far.toml", 2, "over.learner.lr is a range, and a grid needs a list"),
        ("nope.toml", 2, "metric = 'nope' in nope.toml:2 is no metric that a run writes; such as reward/mean"),
        ("run.toml --over learner.lr=1e-3 --metric reward/maen", 2, "--metric 'reward/maen' is no metric"),
        ("run.toml --over learner.lr=1e-3 --metric reward/maen", 2, "did you mean reward/mean?"),
        ("run.toml --over learner.lr=1e-3 --metric mean", 2, "--metric 'mean' is no metric"),
        ("run.toml --over learner.lr=1e-3 metric=reward/mean", 2, "unknown key metric on the command line"),
    ],
)
def test_bad_sweeps(words: str, code: int, said: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rates = "learner.lr = [1e-3]"
    numbers = ", ".join(map(str, range(1, 41)))
    for name, text in {
        "stages.toml": '[[stage]]\nrecipe = "ppo"\n',
        "ends.toml": f'config = "linear.toml"\nhalving.first_steps = 1\n[over]\n{rates}\n',
        "linear.toml": PLAIN.replace("constant", "linear"),
        "late.toml": f'config = "run.toml"\nhalving.first_steps = 9\n[over]\n{rates}\n',
        "many.toml": f'config = "run.toml"\n[over]\nlearner.epochs = [{numbers}]\nrollout_steps = [{numbers}]\n',
        "nope.toml": f'config = "run.toml"\nmetric = "nope"\n[over]\n{rates}\n',
        "far.toml": 'config = "run.toml"\n[over]\nlearner.lr = { low = 1, high = 2 }\n',
    }.items():
        Path(name).write_text(text)
    assert main(["sweep", *words.split()]) == code
    assert said in capsys.readouterr().err
    assert not (place / "runs").exists()


def test_a_dry_run_prints_the_plan_and_changes_nothing(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "run.toml",
        "--over",
        "learner.lr=1e-4,1e-3",
        "--over",
        "algorithm.clip_low=0.1,0.2",
        "--fresh-seeds",
        "7..9",
    ]
    assert main(["sweep", *words, "--dry-run"]) == 0, capsys.readouterr().err
    out = capsys.readouterr().out
    assert "sweep run_sweep: 4 trials of run.toml" in out and "12, then 3 on fresh seeds" in out
    assert not (place / "runs").exists()


@pytest.mark.parametrize("value", [1e-4, 3, True, 'a "b" é', [1, 2.5], {"kind": "x", "rate": [0.1, {"a": "b"}]}])
def test_values_pass_the_command_line_unchanged(value: object) -> None:
    assert parse_value(toml_text(value)) == value  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
def test_a_killed_and_an_interrupted_sweep_leave_nothing_running_and_end_as_a_whole_one(place: Path) -> None:
    write_sweep("seeds = 1", over="learner.lr = [1e-3]")
    command = [sys.executable, "-m", "hone", "sweep", "sweep.toml"]
    subprocess.run([*command, "--name", "whole"], check=True)
    for number, kill in ((signal.SIGKILL, -9), (signal.SIGINT, 130)):
        resume = ["--resume"] if number == signal.SIGINT else []
        process = subprocess.Popen([*command, "--name", "cut", *resume])
        while not _runs_of(place) or not list(place.glob("runs/cut/search/*/*/manifest.json")):
            time.sleep(0.1)
        process.send_signal(number)
        assert process.wait(300) == kill
        time.sleep(1.0)
        assert _runs_of(place) == []
    subprocess.run([*command, "--name", "cut", "--resume"], check=True)
    whole, cut = (json.loads((place / f"runs/{name}/sweep.json").read_text()) for name in ("whole", "cut"))
    assert whole == cut


def _runs_of(place: Path) -> list[str]:
    """Processes that train a run of a sweep in this place."""
    return [one.name for one in Path("/proc").glob("[0-9]*") if f"{place}/runs" in _words(one)]


def _words(process: Path) -> str:
    try:
        return (process / "cmdline").read_text(errors="replace")
    except OSError:
        return ""
