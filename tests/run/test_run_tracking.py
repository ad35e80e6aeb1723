"""Trackers: what each gets, that a resumed run sends no step twice, and that none of them can harm a run."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from manual_clock import ManualClock

import hone.api
from hone.cli.main import main
from hone.core.clock import listening
from hone.core.config import ConfigSetting
from hone.core.errors import ConfigError, UserCodeError
from hone.core.strict_json import Json
from hone.run.alarms import NO_CAUSE, RaisedAlarm, diagnose
from hone.run.job import TrackConfig
from hone.run.store.events import EventLog
from hone.run.store.folder import create_run
from hone.run.store.manifest import RunMetadata
from hone.run.store.metrics import metric_catalogue, open_metrics, read_metrics, tail_metrics
from hone.run.store.rollouts import AnswerRollouts, SampleRow, rollout_path, write_rollouts
from hone.run.tracking import RunFollower, RunTracking, check_trackers, send_run

OWN = Path(__file__).parents[1] / "support" / "recording_tracker.py"
STEPS = 5
PPO: Mapping[str, Any] = {
    "recipe": "ppo",
    "name": "cart",
    "steps": 4,
    "rollout_steps": 8,
    "env": {"id": "CartPole-v1"},
    "run": {"certify": False, "checkpoint_every": 2},
}


def own(name: str) -> str:
    return f"{OWN}:{name}"


def recorded(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "recorded.jsonl").read_text().splitlines()]


def calls(folder: Path) -> list[Any]:
    """Steps of metrics as numbers, of answers as texts, other calls by their names."""
    shown = {"log": lambda line: line["step"], "samples": lambda line: f"answers of {line['step']}"}
    return [shown.get(line["call"], lambda line: line["call"])(line) for line in recorded(folder)]


def sample(step: int, **changes: Any) -> SampleRow:
    values: dict[str, Any] = {
        "step": step, "group": 0, "sample": 0, "prompt": "1 + 1 =", "completion": "a | b\nc", "score": None,
        "status": "error", "advantage": None, "tokens": 3, "finish": "stop", "version": step,
    }  # fmt: skip
    return SampleRow(**values | changes)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of five steps, the third without a finite loss, with answers of the second and the fifth."""
    settings = {"name": "sums", "recipe": "grpo", "seed": 3, "steps": STEPS}
    config = {key: ConfigSetting(value=value) for key, value in settings.items()}
    with create_run(
        tmp_path, "sums", config=config, metadata=RunMetadata(hone_version="1"), clock=ManualClock()
    ) as run:
        append(run.path, 1, STEPS)
        for step in (2, 5):
            write_rollouts(rollout_path(run.path, step), AnswerRollouts(rows=[sample(step)] * 40))
        return run.path


def append(folder: Path, first: int, last: int) -> None:
    writer = open_metrics(folder / "metrics.jsonl", after_step=first - 1).writer
    for step in range(first, last + 1):
        loss = math.nan if step == 3 else 1 / step
        writer.append(step, {"reward/mean": step / 8, "policy/loss": loss, "time/at_s": 1e9 + step})
    writer.close()


# ------------------------------------------------------------------------------------------------------- what is sent


def test_lines_and_answers_are_sent_in_the_order_of_their_steps(folder: Path) -> None:
    assert send_run(folder, TrackConfig(to=own("Recording"))) == STEPS
    assert calls(folder) == ["start", 1, 2, "answers of 2", 3, 4, 5, "answers of 5", "finish"]
    third = recorded(folder)[4]
    assert third["at_s"] == 1e9 + 3
    assert third["metrics"]["reward/mean"] == 0.375
    assert math.isnan(third["metrics"]["policy/loss"])
    assert "time/at_s" not in third["metrics"]


@pytest.mark.parametrize("name", ["Recording", "Forgetful"])
def test_a_run_that_goes_on_is_sent_from_the_first_step_that_the_tracker_lacks(folder: Path, name: str) -> None:
    config = TrackConfig(to=own(name))
    follower = RunFollower(folder=folder, config=config)
    follower.send(3)  # killed here: lines after the checkpoint of step 2 are cut, and computed again
    open_metrics(folder / "metrics.jsonl", after_step=2).writer.close()
    append(folder, 3, 7)
    send_run(folder, config)
    assert calls(folder) == ["start", 1, 2, "answers of 2", 3, "start", 4, 5, "answers of 5", 6, 7, "finish"]
    first, second = (line for line in recorded(folder) if line["call"] == "start")
    assert first == second


def test_a_follower_reads_on_where_it_stopped_and_waits_for_whole_steps(folder: Path) -> None:
    follower = RunFollower(folder=folder, config=TrackConfig(to=own("Recording")))
    follower.send(0)
    assert calls(folder) == ["start"]
    follower.send(1)
    append(folder, 6, 8)
    follower.send(7)
    assert calls(folder)[1:] == [1, 2, "answers of 2", 3, 4, 5, "answers of 5", 6, 7]
    assert follower.sent_step == 7


def test_who_waits_for_a_tracker_hears_how_many_lines_it_has(folder: Path) -> None:
    heard: list[tuple[str, int, int | None]] = []
    with listening(lambda work: heard.append((work.title, work.done, work.total))):
        send_run(folder, TrackConfig(to=own("Recording")))
    assert heard == [("lines sent", done, STEPS) for done in (0, 2, 5, 5)]


def test_a_run_of_a_thousand_steps_wakes_its_trackers_for_none_of_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "metrics.jsonl").unlink()
    append(folder, 1, 1)
    sent: list[int] = []
    own_send = RunFollower.send
    monkeypatch.setattr(RunFollower, "send", lambda one, step: sent.append(step) or own_send(one, step))
    followed = RunTracking(folder, [TrackConfig(to=own("Recording"))])
    append(folder, 2, 1000)
    for step in range(1, 1001):
        followed.complete(step)
    assert followed.close("finished") == []
    assert len(sent) <= 3, "at the first step, after five seconds on a very slow machine, and at the end"
    assert [line["step"] for line in recorded(folder) if line["call"] == "log"] == [*range(1, 1001)]


def test_answers_of_steps_without_a_line_are_sent_before_the_next_line(folder: Path) -> None:
    (folder / "metrics.jsonl").unlink()
    writer = open_metrics(folder / "metrics.jsonl").writer
    for step in (3, 6):  # run.log_every = 3; answers of 2 and 5
        writer.append(step, {"reward/mean": step / 8, "time/at_s": 1e9 + step})
    writer.close()
    follower = RunFollower(folder=folder, config=TrackConfig(to=own("Recording")))
    follower.send(5)
    assert calls(folder) == ["start", "answers of 2", 3]
    follower.send(6)
    assert calls(folder)[3:] == ["answers of 5", 6]
    assert recorded(folder)[1]["at_s"] == 1e9 + 3


def test_the_tail_of_a_file_leaves_a_torn_line_for_later_and_begins_again_in_a_shorter_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1, "a": 1.5}\nnot json\n{"step": 2, "a": null, "non_finite": ["a"]}\n{"step": 3, "a')
    rows, offset = tail_metrics(path, 0)
    assert [step for step, _ in rows] == [1, 2]
    assert rows[0][1] == {"a": 1.5}
    assert math.isnan(rows[1][1]["a"])
    with path.open("ab") as file:
        file.write(b'": 4}\n')
    rows, offset = tail_metrics(path, offset)
    assert rows == [(3, {"a": 4.0})]
    assert tail_metrics(path, offset) == ([], offset)
    path.write_bytes(b'{"step": 1, "a": 9}\n')
    assert tail_metrics(path, offset)[0] == [(1, {"a": 9.0})]


CAUSE = "likely cause: numbers overflow, and what follows is no training any more; policy/loss is not a finite number"


def raise_alarm(folder: Path, step: int) -> None:
    """The alarm of a run whose loss is no number, and its cause, as the run writes them down."""
    log = EventLog(folder / "events.jsonl", ManualClock())
    evidence = "policy/loss is not a finite number"
    data: dict[str, Json] = {"alarm": "not_finite", "state": "raised", "level": "red", "evidence": evidence, "try": "t"}
    log.append(step, "alarm", "words", data)
    cause = diagnose([RaisedAlarm.of_event(step, data)])
    assert cause is not None
    log.append(step, "diagnosis", cause.sentence, cause.data())


def test_the_cause_of_the_alarms_is_sent_when_it_changes(folder: Path) -> None:
    """After the lines that raised it, once; and taken back where its alarms have ended, by a later process too."""
    config = TrackConfig(to=own("Recording"))
    follower = RunFollower(folder=folder, config=config)
    follower.send(3)
    raise_alarm(folder, 3)
    follower.send(4)
    follower.send(5)
    EventLog(folder / "events.jsonl", ManualClock()).append(5, "notice", "of something else")
    assert send_run(folder, config) == STEPS
    told = [line for line in recorded(folder) if line["call"] == "conclude"]
    assert told == [{"call": "conclude", "step": 4, "at_s": 1e9 + 4, "cause": CAUSE}]
    log = EventLog(folder / "events.jsonl", ManualClock())
    log.append(5, "alarm", "words", {"alarm": "not_finite", "state": "cleared", "level": "red"})
    log.append(5, "diagnosis", NO_CAUSE)
    send_run(folder, config)
    assert [line["cause"] for line in recorded(folder) if line["call"] == "conclude"] == [CAUSE, NO_CAUSE]


def test_a_tracker_without_a_place_for_causes_gets_none(folder: Path) -> None:
    raise_alarm(folder, 3)
    assert send_run(folder, TrackConfig(to=own("OnlyCurves"))) == STEPS
    assert calls(folder)[-1] == "finish"


def test_metrics_have_the_names_of_trl_or_verl_where_the_figure_is_the_same(folder: Path) -> None:
    for names, reward, loss in (("trl", "reward", "loss"), ("verl", "critic/score/mean", "actor/pg_loss")):
        send_run(folder, TrackConfig.model_validate({"to": own("Recording"), "names": names}))
        assert set(recorded(folder)[1]["metrics"]) == {reward, loss}
        (folder / "recorded.jsonl").unlink()


def test_every_alias_stands_for_a_metric_of_the_catalogue_and_no_two_for_one_name() -> None:
    catalogue = metric_catalogue()
    assert set(catalogue.aliases) == {"hone", "trl", "verl"}
    for aliases in catalogue.aliases.values():
        assert [name for name in aliases if not catalogue.pattern().fullmatch(name)] == []
        assert len(set(aliases.values())) == len(aliases)


# ---------------------------------------------------------------------------------------------------- a running run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_is_followed_and_a_resume_sends_what_is_new(here: Path) -> None:
    first = hone.api.train({**PPO, "steps": 3}, track=own("Forgetful"))
    hone.api.train({**PPO, "steps": 5}, resume=True, track=[{"to": own("Forgetful")}])
    assert calls(first.folder) == ["start", 1, 2, 3, "finish", "start", 4, 5, "finish"]
    columns = read_metrics(first.folder / "metrics.jsonl")
    logged = [line for line in recorded(first.folder) if line["call"] == "log"]
    assert [line["metrics"]["policy/loss"] for line in logged] == columns.values["policy/loss"].tolist()
    assert [line["at_s"] for line in logged] == columns.values["time/at_s"].tolist()
    assert recorded(first.folder)[-1]["state"] == "finished"
    assert here.samefile(Path.cwd())


def test_a_tracker_that_fails_is_told_once_and_gets_everything_later(here: Path) -> None:
    done = hone.api.train(PPO, track=own("FailsAtFirst"))
    log = (done.folder / "log.txt").read_text()
    assert log.count("ConnectionError: no route to the tracker; the run goes on") == 1
    assert read_metrics(done.folder / "metrics.jsonl").steps.tolist() == [1, 2, 3, 4]
    if (lines := calls(done.folder))[-1] != "finish":  # the run ended before the second attempt
        assert f"tracker {own('FailsAtFirst')} has the metrics up to step 0 of 4" in log
        assert f"hone track runs/cart --to {own('FailsAtFirst')}" in log
    else:
        assert lines == ["start", 1, 2, 3, 4, "finish"]


def test_a_tracker_that_hangs_keeps_no_run_from_its_end(
    here: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = RunTracking(folder, [TrackConfig(to=own("Hangs")), TrackConfig(to=own("Recording"))], finish_s=0.05)
    followed.complete(5)
    assert followed.close("stopped")[0] == (
        f"tracker {own('Hangs')} has the metrics up to step 0 of 5 and was not closed; the run's folder has them all: "
        f"hone track {folder} --to {own('Hangs')} sends the rest"
    )
    assert RunTracking(folder, [TrackConfig(to=own("Hangs"))]).close("failed") == []  # no step was made


@pytest.mark.parametrize("failure", [KeyboardInterrupt, RuntimeError])
def test_a_run_that_does_not_finish_says_how_it_ended(here: Path, failure: type[BaseException]) -> None:
    def at_second(event: hone.api.StepEvent) -> bool:
        if event.step == 2 and failure is RuntimeError:
            raise RuntimeError("enough")
        return event.step < 2

    with pytest.raises(UserCodeError) if failure is RuntimeError else pytest.MonkeyPatch.context():
        hone.api.train(PPO, track=own("Recording"), on_step=at_second)
    assert calls(here / "runs/cart") == ["start", 1, 2, "finish"]
    assert recorded(here / "runs/cart")[-1]["state"] == ("failed" if failure is RuntimeError else "stopped")


# ------------------------------------------------------------------------------------------------------------- faults


def test_all_faults_of_trackers_are_told_at_once_before_any_work(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    wrong = [{"to": "tensorbord"}, {"to": "mlflow"}, {"to": "gone.py:Mine"}, {"to": "wandb"}, {"to": "wandb"}]
    with pytest.raises(ConfigError) as caught:
        check_trackers([TrackConfig.model_validate(one) for one in wrong])
    assert caught.value.messages == (
        'track.0.to = "tensorbord" is not known; did you mean tensorboard?; known: tensorboard, wandb, mlflow, trackio',
        'track.1.to = "mlflow": the package is not installed; fix: pip install mlflow',
        "track.2.to 'gone.py:Mine': no such file gone.py",
        'track.3.to = "wandb": the package is not installed; fix: pip install wandb',
        'track.4.to = "wandb": the package is not installed; fix: pip install wandb',
        'track names "wandb" twice with one project and place',
    )
    with pytest.raises(ConfigError, match="tensorbord"):
        hone.api.train(PPO, track="tensorbord")
    assert not (here / "runs").exists()


def test_a_class_that_is_no_tracker_is_refused_with_what_it_lacks(folder: Path) -> None:
    with pytest.raises(ConfigError, match="has no log, samples, finish"):
        send_run(folder, TrackConfig(to=own("NoTracker")))
    with pytest.raises(UserCodeError, match="has no 'Recordin'; did you mean Recording"):
        send_run(folder, TrackConfig(to=own("Recordin")))
    with pytest.raises(UserCodeError, match="ConnectionError: no route"):
        send_run(folder, TrackConfig(to=own("FailsAtFirst")))


def test_the_command_sends_a_finished_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = ["--runs", str(folder.parent)]
    assert main(["track", "sums", "--to", own("Recording"), "--names", "trl", *runs]) == 0
    assert "up to step 5" in " ".join(capsys.readouterr().out.split())
    assert recorded(folder)[1]["metrics"] == {"reward": 0.125, "loss": 1.0}
    assert main(["track", "sums", "--names", "tlr", *runs]) == 2
    assert "--names tlr is not known; did you mean trl?" in capsys.readouterr().err
    assert main(["track", "sum", "--to", own("Recording"), *runs]) == 3


# ------------------------------------------------------------------------------------------------- the real packages


def test_tensorboard_reads_back_what_was_written(folder: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    config = TrackConfig(to="tensorboard")
    RunFollower(folder=folder, config=config).send(3)  # killed: its writer is never closed
    append(folder, 6, 6)
    raise_alarm(folder, 6)
    assert send_run(folder, config) == 6
    events = accumulator.EventAccumulator(str(folder / "tensorboard"), size_guidance={"tensors": 0})
    events.Reload()
    scalars = [(one.step, one.wall_time, one.value) for one in events.Scalars("reward/mean")]
    assert scalars == [(step, 1e9 + step, step / 8) for step in range(1, 7)]
    assert math.isnan(events.Scalars("policy/loss")[2].value)
    assert [one.step for one in events.Tensors("samples")] == [2, 5]
    table = events.Tensors("samples")[0].tensor_proto.string_val[0].decode().splitlines()
    assert table[2] == "| 1 + 1 = | a \\| b<br>c |  |  | error | 3 | stop |"
    assert len(table) == 2 + 32
    assert [(one.step, one.wall_time) for one in events.Tensors("cause")] == [(6, 1e9 + 6)]
    assert events.Tensors("cause")[0].tensor_proto.string_val == [CAUSE.encode()]
    assert json.loads(events.Tensors("config")[0].tensor_proto.string_val[0][8:-4])["recipe"] == "grpo"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # MLflow's own use of SQLAlchemy
def test_mlflow_reads_back_what_was_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    (elsewhere := folder.parent / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    config = TrackConfig(to="mlflow", project="sums")
    RunFollower(folder=folder, config=config).send(3)
    append(folder, 6, 6)
    raise_alarm(folder, 6)
    assert send_run(folder, config) == 6
    client = mlflow.MlflowClient(f"sqlite:///{folder.parent / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("sums").experiment_id])
    history = client.get_metric_history(run.info.run_id, "reward/mean")
    assert [(one.step, one.timestamp, one.value) for one in history] == [
        (step, (10**9 + step) * 1_000, step / 8) for step in range(1, 7)
    ]
    assert run.info.status == "FINISHED"
    assert run.data.params["recipe"] == "grpo"
    assert run.data.tags["hone.cause"] == CAUSE
    assert len(client.list_artifacts(run.info.run_id, "samples")) == 2
    (first, *_) = sorted((folder.parent / "mlartifacts" / run.info.run_id / "artifacts" / "samples").iterdir())
    assert json.loads(first.read_text())["columns"][:2] == ["prompt", "completion"]
    assert list(elsewhere.iterdir()) == [], "nothing in the working directory"


@pytest.mark.slow
def test_trackio_reads_back_what_was_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(folder.parent / "trackio"))
    storage = pytest.importorskip("trackio.sqlite_storage").SQLiteStorage
    config = TrackConfig(to="trackio", project="sums")
    first = RunFollower(folder=folder, config=config)
    first.send(3)
    first.finish("stopped")
    append(folder, 6, 6)
    raise_alarm(folder, 6)
    assert send_run(folder, config) == 6
    (name,) = storage.get_runs("sums")
    rows = storage.get_logs("sums", name)
    assert [(row["step"], row["reward/mean"]) for row in rows if "reward/mean" in row] == [
        (step, step / 8) for step in range(1, 7)
    ]
    assert [row["step"] for row in rows if "samples" in row] == [2, 5]
    assert [(row["step"], CAUSE in json.dumps(row["cause"])) for row in rows if "cause" in row] == [(6, True)]


@pytest.mark.slow
def test_wandb_writes_every_step_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb, messages = pytest.importorskip("wandb"), pytest.importorskip("wandb.proto.wandb_internal_pb2")
    monkeypatch.setenv("WANDB_MODE", "offline")
    config = TrackConfig(to="wandb", project="sums")
    first = RunFollower(folder=folder, config=config)
    first.send(3)
    first.finish("stopped")
    append(folder, 6, 6)
    raise_alarm(folder, 6)
    assert send_run(folder, config) == 6
    wandb.teardown()  # ends its service, which writes the last bytes
    steps: list[tuple[int, float]] = []
    causes: list[str] = []
    for path in sorted((folder / "wandb").glob("offline-run-*/*.wandb")):
        for data in _leveldb_records(path.read_bytes()):
            record = messages.Record()
            record.ParseFromString(data)
            values = {"/".join([item.key] if item.key else item.nested_key): item.value_json
                      for item in record.history.item}  # fmt: skip
            causes += [json.loads(one.value_json) for one in record.summary.update if one.key == "cause"]
            if "reward/mean" in values:
                steps.append((record.history.step.num, float(values["reward/mean"])))
    assert sorted(steps) == [(step, step / 8) for step in range(1, 7)]
    assert causes == [CAUSE]


def _leveldb_records(data: bytes) -> list[bytes]:
    """The records of a W&B file: LevelDB's log format after seven bytes, in blocks of 32 KiB."""
    records, part, place = [], b"", 7
    while place + 7 <= len(data):
        left = 32_768 - place % 32_768
        if left < 7:
            place += left
            continue
        size, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        part += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):
            records.append(part)
            part = b""
    return records
