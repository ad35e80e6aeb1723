"""States of runs, alarms by their events, families of charts, and the lines that need no browser."""

import fcntl
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from watched_runs import append_line, watched_clock, write_text_run

import hone.web.columns as watched_columns
import hone.web.runs as watched_runs_module
from hone.cli.main import main
from hone.core.errors import ConfigError
from hone.run.alarms import RULES, AlarmName, read_alarms, read_diagnosis
from hone.run.store.events import EventLog, read_events
from hone.run.store.folder import RunLock
from hone.run.store.metrics import metric_catalogue, read_metrics
from hone.web.app import OpenRuns
from hone.web.columns import RunColumns
from hone.web.families import FAMILIES, chart_families, describe, family_of
from hone.web.rollouts import RolloutReader
from hone.web.runs import HeldLocks, RunListing, RunRow, StateFacts, alarm_states, read_row, run_state
from hone.web.serve import DEMO, WatchPlace, find_row, run_lines, unpack_demo
from hone.web.views import run_view

FACTS = {"held": False, "step": 5, "steps": 10, "idle_s": 1.0, "median_step_s": 2.0, "last": ""}


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"held": True}, "running"),
        ({"held": True, "idle_s": 59.0}, "running"),  # at least a minute, however short the steps
        ({"held": True, "idle_s": 61.0}, "stalled"),
        ({"held": True, "idle_s": 61.0, "median_step_s": 20.0}, "running"),
        ({"held": True, "idle_s": 101.0, "median_step_s": 20.0}, "stalled"),
        ({"held": True, "median_step_s": math.nan, "idle_s": 61.0}, "stalled"),
        ({"step": 10}, "finished"),
        ({"steps": 0, "last": "finish"}, "finished"),
        ({"last": "stop"}, "interrupted"),
        ({}, "interrupted"),
        ({"last": "failure"}, "crashed"),
        ({"last": "failure diverged"}, "diverged"),
        ({"last": "diverged"}, "diverged"),
    ],
)
def test_state_of_a_run(changes: dict[str, object], state: str) -> None:
    assert run_state(StateFacts(**{**FACTS, **changes})) == state


def test_a_held_lock_is_seen_and_never_taken(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = RunLock.acquire(path, "run")
    lock.write_holder("now")
    assert HeldLocks().holds(path)
    assert HeldLocks(tmp_path / "no-such-table").holds(path)  # by the holder's process number
    lock.release()
    assert not HeldLocks().holds(path)
    (tmp_path / "empty").write_text("")
    assert not HeldLocks(tmp_path / "empty").holds(path)  # the system lists no lock, whoever wrote the file
    path.write_text('{"pid": 999999999, "host": "elsewhere"}', encoding="utf-8")
    assert not HeldLocks(tmp_path / "no-such-table").holds(path)
    assert not HeldLocks().holds(tmp_path / "none")


def test_alarms_are_those_of_hone_show_and_those_that_ended(tmp_path: Path) -> None:
    run = write_text_run(tmp_path, "run", done=10)
    log = EventLog(run / "events.jsonl", watched_clock())
    for step, name, state, level in (
        (3, "length", "raised", "amber"), (5, "entropy_collapse", "raised", "amber"), (6, "length", "cleared", "amber"),
        (8, "entropy_collapse", "raised", "red"), (9, "kl", "raised", "amber"),
    ):  # fmt: skip
        log.append(step, "alarm", "words", {"alarm": name, "state": state, "level": level, "evidence": "e", "try": "t"})
    states, cause = alarm_states(run, read_events(run).events)
    assert [(one.name, one.level, one.raised, one.step) for one in states] == [
        ("entropy_collapse", "red", True, 8), ("kl", "amber", True, 9), ("length", "amber", False, 6),
    ]  # fmt: skip
    assert (cause, cause and cause.words) == (read_diagnosis(run), f"{RULES['entropy_collapse'].cause}; e")
    raised = read_alarms(run)
    assert [(one.name, one.level, one.words, one.remedy) for one in states if one.raised] == [
        (one.name, one.level, one.evidence, one.advice) for one in raised
    ]
    (run / "metrics.jsonl").unlink()
    assert alarm_states(run, []) == ([], None)


def test_a_run_that_is_opened_while_its_row_is_read_takes_the_cache_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache of a long run has one reader at a time; who finds it taken holds all columns in memory."""
    write_text_run(tmp_path / "runs", "long", done=10)
    monkeypatch.setattr(watched_columns, "CACHED_BYTES", 1)
    listing = RunListing(tmp_path / "runs", tmp_path / "cache", watched_clock())
    runs, in_row, go_on = OpenRuns(listing), threading.Event(), threading.Event()

    def slow_row(folder: Path, columns: RunColumns, run_id: str) -> RunRow:
        row = read_row(folder, columns, run_id)
        in_row.set()
        assert go_on.wait(300)
        return row

    monkeypatch.setattr(watched_runs_module, "read_row", slow_row)
    with ThreadPoolExecutor() as pool:
        rows = pool.submit(listing.rows)
        assert in_row.wait(300)
        opened = pool.submit(runs.get, "long")
        while "long" not in listing.in_use:
            time.sleep(0.01)
        go_on.set()
        assert rows.result()[0].step == opened.result().columns.rows == 10
    (folder,) = (tmp_path / "cache").glob("*/")
    with (folder / "lock").open() as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    runs.close()
    with (folder / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_row_is_read_again_when_its_files_change_and_kept_over_a_restart(tmp_path: Path) -> None:
    run = write_text_run(tmp_path / "runs", "live", done=10)
    clock = watched_clock()
    listing = RunListing(tmp_path / "runs", tmp_path / "cache", clock)
    (row,) = listing.rows()
    assert (row.step, row.state) == (10, "crashed")  # its last event is its begin, and nobody holds its lock
    append_line(run, 11)
    assert listing.rows()[0].step == 11
    again = RunListing(tmp_path / "runs", tmp_path / "cache", clock)
    assert again.rows() == listing.rows()
    with RunLockHeld(run / "lock"):
        clock.time_s = (run / "metrics.jsonl").stat().st_mtime + 1
        (row,) = listing.rows()
        assert row.state == "running"
        assert row.left_s == pytest.approx(49 * row.median_step_s)
    (run / "manifest.json").write_text("{", encoding="utf-8")
    (row,) = listing.rows()
    assert row.state == "crashed"
    assert "manifest.json" in row.fault


def test_the_list_reads_a_run_that_a_page_has_open_by_its_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long run is on disk once; a second reader would hold all of it in memory."""
    monkeypatch.setattr("hone.web.columns.CACHED_BYTES", 1)
    run = write_text_run(tmp_path / "runs", "long", done=10)
    listing = RunListing(tmp_path / "runs", tmp_path / "cache", watched_clock())
    opened = OpenRuns(listing).get("long")
    made: list[Path] = []
    monkeypatch.setattr("hone.web.runs.RunColumns", lambda path, cache: made.append(path))
    assert listing.rows()[0].step == 10
    append_line(run, 11)
    assert listing.rows()[0].step == 11
    assert made == []
    opened.columns.close()


class RunLockHeld:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        self.lock = RunLock.acquire(self.path, "run")

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def test_every_metric_of_the_catalogue_has_a_family() -> None:
    names = [name for group in metric_catalogue().groups.values() for name in group]
    unplaced = {name.split("/")[0] for name in names if family_of(name) == "Others"}
    assert len(unplaced) <= 40, sorted(unplaced)
    assert family_of("rollout/canary_gap") == "Mismatch"
    assert family_of("mine/own") == "Others"
    assert describe("eval/score")[0] == "score"
    assert describe("mine/own") == ("", "")


def test_charts_hold_each_metric_once() -> None:
    names = [
        "reward/mean", "reward/std", "eval/score", "eval/low", "eval/high", "judge/a/agreement",
        "judge/a/agreement_low", "judge/a/agreement_high", "async/staleness", "time/collect_s", "time/update_s",
        "time/step_s", "time/at_s", "x",
    ]  # fmt: skip
    families = chart_families(names, lambda name: name != "x")
    drawn = [name for own in families.values() for chart in own for name in chart.metrics]
    assert sorted(drawn) == sorted(set(names) - {"x", "time/at_s"})
    assert list(families) == [family for family in FAMILIES if family in families]


# ---------------------------------------------------------------------------------------------------- without a browser


def test_lines_without_a_browser_and_the_gate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    runs = tmp_path / "runs"
    write_text_run(runs, "good", seed=1)
    assert main(["watch", str(runs), "--once", "good"]) == 0
    told = capsys.readouterr().out
    assert "good: grpo, finished, step 60 of 60" in told
    assert "The bottleneck is" in told
    assert main(["watch", str(runs), "--alarms"]) == 0
    assert "no alarm is raised" in capsys.readouterr().out
    write_text_run(runs, "bad", good=False)
    assert main(["watch", str(runs), "--alarms"]) == 7
    told = capsys.readouterr().out
    assert "bad: red since step 20: entropy collapse: entropy fell" in told
    assert "to try: raise clip_high" in told
    assert main(["watch", str(runs), "--alarms", "--once", "good"]) == 0
    capsys.readouterr()
    assert main(["watch", str(runs), "--once", "god"]) == 3
    assert "did you mean good" in capsys.readouterr().err


def test_amber_alarms_and_ended_ones_do_not_close_the_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = write_text_run(tmp_path / "runs", "run")
    log = EventLog(run / "events.jsonl", watched_clock())
    log.append(1, "alarm", "w", {"alarm": "a", "state": "raised", "level": "red"})
    log.append(2, "alarm", "w", {"alarm": "a", "state": "cleared", "level": "red"})
    log.append(2, "alarm", "w", {"alarm": "b", "state": "raised", "level": "amber"})
    listing = RunListing(tmp_path / "runs", tmp_path / "cache", watched_clock())
    assert [(one.name, one.raised) for one in listing.rows()[0].alarms] == [("b", True), ("a", False)]
    assert main(["watch", str(tmp_path / "runs"), "--alarms"]) == 0


def test_other_hosts_need_a_token_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ssh -L"):
        WatchPlace(host="0.0.0.0", port=8090, token_file=None).token()
    file = tmp_path / "token"
    file.write_text("short", encoding="utf-8")
    with pytest.raises(ConfigError, match="16 printable"):
        WatchPlace(host="0.0.0.0", port=8090, token_file=file).token()
    file.write_text("a-token-that-is-long\n", encoding="utf-8")
    assert WatchPlace(host="0.0.0.0", port=8090, token_file=file).token() == "a-token-that-is-long"
    assert len(WatchPlace(host="127.0.0.1", port=0, token_file=None).token()) == 32


# ---------------------------------------------------------------------------------------------------------------- demo


FAILURES: dict[str, tuple[AlarmName, str]] = {
    "entropy-collapse": ("entropy_collapse", "entropy fell from"),
    "exploited-reward": ("reward_hacking", "the held-out score fell from"),
    "no-end-token": ("no_end", "of the answers are cut by the limit, as they were from the beginning"),
    "drifting-engine": ("mismatch", "engine and trainer differ by"),
    "stuck-tool": ("tools", "of the dialogues ended because their world or a tool did not answer"),
}
"""Recorded run -> the cause that its page names, and its evidence."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RunListing:
    cache = tmp_path_factory.mktemp("recorded")
    return RunListing(unpack_demo(cache), cache / "columns", watched_clock())


@pytest.mark.parametrize("name", FAILURES)
def test_the_page_of_a_failure_names_its_cause_and_no_other(name: str, recorded: RunListing) -> None:
    row, (alarm, evidence) = find_row(recorded, name), FAILURES[name]
    with closing(RunColumns(recorded.folder(name) / "metrics.jsonl", recorded.cache)) as columns:
        columns.refresh()
        sentence = run_view(recorded.folder(name), row, columns, RolloutReader())["diagnosis"]
    cause = row.diagnosis
    assert cause is not None
    assert cause.alarm == alarm
    assert sentence.startswith(f"likely cause: {RULES[alarm].cause}; ")
    assert evidence in sentence
    assert row.alarms[0].name == alarm, "the list shows it first"
    others = {one.name for one in row.alarms if one.raised} - {alarm}
    assert others == set(cause.follows), "whatever else is raised follows from it"
    assert all(one.replace("_", " ") in sentence for one in others)
    assert run_lines(recorded, row).count(sentence) == 1
    again = RunListing(recorded.root, recorded.cache, watched_clock())  # reads the rows that the first one kept
    assert find_row(again, name) == row


def test_the_demo_has_a_good_and_a_bad_run_with_tokens(tmp_path: Path) -> None:
    assert [path.stat().st_size < most for path, most in zip(DEMO, (300_000, 120_000), strict=True)] == [True, True]
    root = unpack_demo(tmp_path)
    assert unpack_demo(tmp_path) == root
    rows = {row.id: row for row in RunListing(root, tmp_path / "cache", watched_clock()).rows()}
    assert set(rows) == {"sums", "sums-too-fast", *FAILURES}
    assert all(row.state == "finished" and not row.fault for row in rows.values())
    assert rows["sums"].low > rows["sums-too-fast"].high
    assert rows["sums"].alarms == ()
    assert [one.name for one in rows["sums-too-fast"].alarms if one.level == "red"], "it fails, and says so"
    reward = read_metrics(root / "sums" / "metrics.jsonl").values["reward/mean"]
    assert reward[-10:].mean() > reward[:10].mean() + 0.2, "the good run learns"
    files = [path for path in root.rglob("*") if path.suffix in (".json", ".jsonl", ".txt")]
    place = str(Path(__file__).parents[2]).encode()
    assert not [path for path in files if b"/tmp/" in path.read_bytes() or place in path.read_bytes()]
    reader = RolloutReader()
    for row in rows.values():
        step = max(reader.steps(root / row.id))
        tokens = reader.answer(root / row.id, step, 0)["tokens_of"]
        assert tokens is not None
        assert tokens["text"] is not None
