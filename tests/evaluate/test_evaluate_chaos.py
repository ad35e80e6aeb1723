"""Faults at counted events: their plan, the attempts, the comparison, and real runs that come through them."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tiny_runs import lay_out

from hone.cli.main import main
from hone.core.clock import listening
from hone.core.errors import DataError, DivergedError, HoneError
from hone.evaluate.chaos import HARMED, REFERENCE, ChaosResult, ChaosTrial, plan_faults, run_differences
from hone.run.store import durable
from hone.run.store.durable import EventCounter, FaultKind, Moment, PlannedFault, read_events

EVENTS = [Moment(step, number, "file") for step in range(5) for number in range(1, 9)]

# ------------------------------------------------------------------------------------------------- the plan


@pytest.mark.parametrize("seed", range(4))
def test_a_plan_visits_every_step_before_one_twice_and_is_the_seeds(seed: int) -> None:
    plan = plan_faults(EVENTS, ("kill", "disk"), 7, seed)
    assert plan == plan_faults(EVENTS, ("kill", "disk"), 7, seed)
    assert [fault.at for fault in plan] == sorted({fault.at for fault in plan})
    assert sorted(Counter(fault.at.step for fault in plan).values()) == [1, 1, 1, 2, 2]
    assert [fault.kind for fault in plan] == ["kill", "disk"] * 3 + ["kill"]


def test_seeds_draw_other_events_and_all_can_be_drawn() -> None:
    assert len({str(plan_faults(EVENTS, ("kill",), 3, seed)) for seed in range(8)}) > 4
    assert [fault.at for fault in plan_faults(EVENTS, ("kill",), len(EVENTS), 1)] == EVENTS
    with pytest.raises(DataError, match="40 events, fewer than 41 faults"):
        plan_faults(EVENTS, ("kill",), 41, 0)


# ------------------------------------------------------------------------------------------------- the counter


def counter(path: Path, *faults: str) -> EventCounter:
    made = EventCounter()
    made.arm(";".join([str(path), *faults]))
    return made


def test_events_are_counted_by_step_and_a_full_disk_stays_full(tmp_path: Path) -> None:
    events = counter(tmp_path / "events", "disk@1.2")
    events.announce("a", writes=True)
    events.reach(1)
    events.announce("b", writes=True)
    events.announce("point", writes=False)  # a fault of the disk waits for a write
    with pytest.raises(OSError, match="No space left"):
        events.announce("c d", writes=True)
    with pytest.raises(OSError, match="No space left"):
        events.announce("e", writes=True)
    events.announce("point", writes=False)
    moments, came = read_events(tmp_path / "events")
    os.close(events.record)
    assert [(one.step, one.number, one.name) for one in moments[:4]] == [
        (0, 1, "a"), (1, 1, "b"), (1, 2, "point"), (1, 3, "c d")
    ]  # fmt: skip
    assert came == [("disk", Moment(1, 3))]


def test_a_fault_comes_at_the_first_event_after_one_that_is_not_there(tmp_path: Path) -> None:
    events = counter(tmp_path / "events", "disk@1.9")
    for step in (1, 2):
        events.reach(step)
        try:
            events.announce("a", writes=True)
        except OSError:
            assert step == 2
    os.close(events.record)
    assert read_events(tmp_path / "events")[1] == [("disk", Moment(2, 1))]


def test_the_loss_of_a_replica_waits_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeper = subprocess.Popen(["sleep", "600"])
    there: list[int] = []
    monkeypatch.setattr(durable, "_replicas", lambda: there)
    events = counter(tmp_path / "events", "replica@0.1")
    events.announce("a", writes=True)
    assert sleeper.poll() is None
    there.append(sleeper.pid)
    events.announce("b", writes=False)
    assert sleeper.wait(300) == -9
    os.close(events.record)
    assert read_events(tmp_path / "events")[1] == [("replica", Moment(0, 2))]


def test_nothing_is_counted_without_a_word() -> None:
    events = EventCounter()
    events.arm("")
    events.reach(3)
    events.announce("a", writes=True)
    assert (events.step, events.number) == (0, 0)


def test_a_killed_write_is_torn(tmp_path: Path) -> None:
    program = (
        "import os, sys\nfrom hone.run.store.durable import EVENTS, write_file\nfrom pathlib import Path\n"
        "EVENTS.arm(sys.argv[1] + ';kill@0.2')\nwrite_file(Path(sys.argv[2]), b'0123456789')\n"
    )
    words = [sys.executable, "-c", program, str(tmp_path / "events"), str(tmp_path / "file")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run(words, env=environment, check=False).returncode == -9
    assert (tmp_path / "file").read_bytes() == b"01234"
    assert read_events(tmp_path / "events")[1] == [("kill", Moment(0, 2))]


def test_faults_are_read_as_they_are_written() -> None:
    fault = PlannedFault(kind="stall", at=Moment(12, 3, "x"))
    assert str(fault) == "stall@12.3"
    assert PlannedFault.parse(str(fault)) == fault


# ------------------------------------------------------------------------------------------------- the attempts


@dataclass
class PretendedRuns:
    """Runs of two files, whose events are announced to a counter; `spoil` changes what a harmed run writes."""

    folder: Path
    spoil: Callable[[str], str] = lambda text: text
    codes: dict[str, int] = field(default_factory=dict)
    """Exit code after each kind of fault."""
    made: list[tuple[str, bool, str]] = field(default_factory=list)

    def __call__(self, name: str, resume: bool, chaos: str) -> tuple[int, str]:
        path, *faults = chaos.split(";")
        self.made.append((name, resume, " ".join(faults)))
        plan = [PlannedFault.parse(one) for one in faults]
        run, lines = self.folder / name, list[str]()
        (run / "checkpoints").mkdir(parents=True, exist_ok=True)
        (run / "manifest.json").write_text("{}")
        for event in EVENTS:
            lines.append(f"event {event.step} {event.number} {event.name}")
            while plan and event >= plan[0].at:
                kind = plan.pop(0).kind
                lines.append(f"fault {kind} {event.step} {event.number} {event.name}")
                if kind in ("kill", "disk"):
                    Path(path).write_text("\n".join(lines))
                    return {"kill": -9, "disk": 5, **self.codes}[kind], "words"
        Path(path).write_text("\n".join(lines))
        text = json.dumps({"step": 1, "reward/mean": 0.5, "time/step_s": len(self.made)}) + "\n"
        (run / "metrics.jsonl").write_text(text if name == REFERENCE else self.spoil(text))
        last = run / "checkpoints/step_00000004"
        last.mkdir(exist_ok=True)
        (last / "manifest.json").write_text(json.dumps({"files": {"policy/w": {"sha256": "a"}}}))
        return self.codes.get("end", 0), "words"


def trial(runs: PretendedRuns, kinds: Sequence[FaultKind] = ("kill", "replica", "disk"), count: int = 5) -> ChaosResult:
    return ChaosTrial(folder=runs.folder, kinds=kinds, count=count, seed=3, train=runs).run()


def test_a_run_is_taken_up_until_it_finishes(tmp_path: Path) -> None:
    runs = PretendedRuns(tmp_path)
    heard: list[tuple[str, int, int | None]] = []
    with listening(lambda work: heard.append((work.title, work.done, work.total))):
        result = trial(runs)
    assert heard == [("runs ended", 0, 2), *(("runs ended", done, 5) for done in (1, 2, 3, 4, 5, 5))]
    plan = [str(fault) for fault in plan_faults(EVENTS, ("kill", "replica", "disk"), 5, 3)]
    harmed = [(resume, faults) for name, resume, faults in runs.made if name == HARMED]
    assert harmed == [
        (False, plan[0]), (True, f"{plan[1]} {plan[2]}"), (True, plan[3]), (True, plan[4])
    ]  # fmt: skip
    assert [one.code for one in result.attempts] == [-9, 5, -9, 0]
    assert [[kind for kind, _ in one.faults] for one in result.attempts] == [
        ["kill"], ["replica", "disk"], ["kill"], ["replica"]
    ]  # fmt: skip
    assert result.differences == ()
    assert result.compared.startswith("1 files of the last checkpoint, 1 lines of metrics")
    assert json.loads((tmp_path / "chaos.json").read_text())["differences"] == []


def test_another_end_than_that_of_the_fault_is_no_resume(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=r"attempt 1 of the harmed run ended after disk at .* exit code 0, exp"):
        trial(PretendedRuns(tmp_path, codes={"disk": 0}), kinds=("disk",))


def test_a_run_that_fails_by_itself_keeps_its_exit_code(tmp_path: Path) -> None:
    with pytest.raises(HoneError, match="fails without any fault") as error:
        trial(PretendedRuns(tmp_path, codes={"end": 3}))
    assert error.value.exit_code == 3


def test_a_difference_is_found_and_told_from_one_without_faults(tmp_path: Path) -> None:
    spoilt = PretendedRuns(tmp_path / "one", spoil=lambda text: text.replace("0.5", "0.25"))
    spoilt.folder.mkdir()
    result = trial(spoilt)
    assert "0.25" in result.differences[0]
    assert "line 1" in result.differences[0]
    assert not result.reproducible  # the second uninterrupted run differs as well
    only_harmed = PretendedRuns(tmp_path / "two")
    only_harmed.folder.mkdir()
    only_harmed.spoil = lambda text: text + text if only_harmed.made[-1][0] == HARMED else text
    result = trial(only_harmed)
    assert result.differences == ("metrics.jsonl has 2 lines, that of the uninterrupted run 1",)
    assert result.reproducible


def test_files_and_samples_are_compared(tmp_path: Path) -> None:
    runs = PretendedRuns(tmp_path)
    for name in ("one", "other"):
        runs(name, False, str(tmp_path / "events"))
        (tmp_path / name / "rollouts").mkdir()
        (tmp_path / name / "rollouts/step").write_text(name)
    manifest = tmp_path / "other/checkpoints/step_00000004/manifest.json"
    manifest.write_text(json.dumps({"files": {"policy/w": {"sha256": "b"}, "more": {}}}))
    found = run_differences(tmp_path / "one", tmp_path / "other")
    assert found == [
        "last checkpoint: policy/w differs", "last checkpoint: more differs", "rollouts/step differs"
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------- the command


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(Path(one).resolve()) for one in sys.path if one))
    lay_out(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["grpo.toml", "--faults", "flood"], "--faults 'flood' is not known; known: kill, disk, replica, stall"),
        (["grpo.toml", "--faults", "kill,replica"], "--faults replica stops a replica, and the config has none"),
        (["grpo.toml", "--count", "0"], "--count"),
        (["grpo.toml", "--count", "2.5"], "--count"),
        (["stages.toml"], "hone chaos harms a single run"),
        (["grpo.toml", "learner.lrr=1"], "unknown key learner.lrr"),
    ],
)
def test_what_cannot_be_done_is_refused_before_a_run(words: list[str], says: str, place: Path, capsys) -> None:
    Path("stages.toml").write_text('[[stage]]\nrecipe = "ppo"\n', encoding="utf-8")
    assert main(["chaos", *words]) == 2
    assert says in capsys.readouterr().err
    assert not [one for one in Path("runs").rglob("*") if one.is_file()]


@pytest.mark.slow  # four processes; the page of `hone chaos` runs it in every suite
def test_a_run_under_kills_and_a_full_disk_is_the_same_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    control = (
        'recipe = "ppo"\nname = "cart"\nsteps = 4\nrollout_steps = 8\n'
        'env = { id = "CartPole-v1", num_envs = 2, isolation = "none" }\nlearner = { lr = 1e-3, epochs = 1 }\n'
        "run = { threads = 1, checkpoint_every = 1, certify = false }\n"
    )
    Path("ppo.toml").write_text(control, encoding="utf-8")
    assert main(["chaos", "ppo.toml", "--count", "2", "--seed", "1"]) == 0, capsys.readouterr().err
    out = " ".join(capsys.readouterr().out.split())
    assert "equal to the bit: " in out
    assert "SIGKILL" in out
    assert "exit code 5" in out
    record = json.loads(Path("runs/cart_chaos/chaos.json").read_text(encoding="utf-8"))
    assert [one["exit_code"] for one in record["attempts"]] == [-9, 5, 0]
    assert main(["chaos", "ppo.toml", "--count", "2", "--seed", "1"]) == 2
    assert "runs/cart_chaos exists; remove it, or give another --name" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(("config", "seed"), [("grpo.toml", 0), ("sft.toml", 1)])
def test_language_models_come_through_many_faults(config: str, seed: int, place: Path) -> None:
    assert main(["chaos", config, "--count", "12", "--seed", str(seed), "run.certify=false"]) == 0


@pytest.mark.slow
def test_a_reward_with_a_clock_is_told_from_a_resume_that_is_wrong(place: Path, capsys) -> None:
    rewards = Path("rewards.py").read_text(encoding="utf-8")
    Path("rewards.py").write_text(rewards.replace("- 0.1 * len(text)", "- time.time() % 1"), encoding="utf-8")
    assert main(["chaos", "grpo.toml", "--count", "1", "run.certify=false"]) == 6
    assert "two uninterrupted runs differ too" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_that_loses_replicas_is_the_same_run(place: Path) -> None:
    pytest.importorskip("ray")
    words = ["cluster.rollout.replicas=2", "cluster.rollout.cpus=0.5", "run.certify=false"]
    assert main(["chaos", "grpo.toml", "--faults", "replica,kill", "--count", "2", *words]) == 0
