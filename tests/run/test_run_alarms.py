"""Alarms: recorded good runs raise none and bad ones theirs; each rule by hand; hysteresis, state, and what is read."""

import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from manual_clock import ManualClock

import hone.api
from hone.cli.main import main
from hone.core.credit import Metrics
from hone.run.alarm_history import Series
from hone.run.alarms import (
    NO_CAUSE,
    RED_AT,
    RULES,
    AlarmChange,
    AlarmLimits,
    AlarmName,
    AlarmWatch,
    RaisedAlarm,
    diagnose,
    read_alarms,
    read_diagnosis,
    replay_alarms,
    stall,
)
from hone.run.machine import UNPLANNED_BYTES, MachineReader
from hone.run.store.events import EventLog, read_events
from hone.run.store.metrics import metric_catalogue, open_metrics, tail_metrics

RECORDED: dict[str, dict[str, Any]] = json.loads(
    gzip.decompress((Path(__file__).parents[1] / "fixtures" / "alarm_runs.json.gz").read_bytes())
)
"""Written by `benchmarks/alarms.py`: name -> recipe, steps, alarm that it must raise, lines."""
GOOD = [name for name, one in RECORDED.items() if not one["alarm"]]
BAD = [name for name, one in RECORDED.items() if one["alarm"]]


def lines_of(name: str) -> list[tuple[int, Metrics]]:
    lines = RECORDED[name]["lines"]
    return [(step, {key: math.nan if value is None else value for key, value in line.items()}) for step, line in lines]


def raised(name: str, limits: AlarmLimits | None = None) -> list[tuple[int, AlarmChange]]:
    return replay_alarms(lines_of(name), steps=RECORDED[name]["steps"], limits=limits)


def test_there_are_twenty_good_runs_of_five_families_and_thirteen_bad_ones() -> None:
    """The fourteenth, a run that stands still, is no matter of its lines: see below."""
    families = {"sft", "grpo", "ppo", "dqn", "thompson"}
    assert len(GOOD) >= 20
    assert families <= {RECORDED[name]["recipe"] for name in GOOD}
    assert {RECORDED[name]["alarm"] for name in BAD} == set(RULES) - {"not_finite"}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_run_raises_no_alarm(name: str) -> None:
    assert raised(name) == []


@pytest.mark.parametrize("name", BAD)
def test_a_bad_run_raises_the_alarm_of_its_fault(name: str) -> None:
    alarm = RECORDED[name]["alarm"]
    own = [change for _, change in raised(name) if change.name == alarm and change.is_raised]
    assert own, raised(name)
    assert own[0].evidence
    assert own[0].advice
    assert raised(name, {alarm: False}) == [entry for entry in raised(name) if entry[1].name != alarm], "it can be off"


@pytest.mark.parametrize("name", BAD)
def test_a_bad_run_is_diagnosed_with_its_fault(name: str) -> None:
    """Whatever else it raises, from the first line of its own alarm to its last."""
    alarm = RECORDED[name]["alarm"]
    now: dict[str, RaisedAlarm] = {}
    causes: list[str] = []
    for step, change in raised(name):
        now.pop(change.name, None)
        if change.is_raised:
            now[change.name] = RaisedAlarm(
                name=change.name, level=change.level, step=step, evidence=change.evidence, advice=change.advice
            )
        cause = diagnose(list(now.values()))
        if alarm in now:
            assert cause is not None
            causes.append(cause.alarm)
            assert now[alarm].evidence in cause.words
    assert set(causes) == {alarm}


def test_causes_bring_about_no_circle() -> None:
    order: list[str] = []
    while len(order) < len(RULES):
        free = [name for name, rule in RULES.items() if name not in order and {*rule.brings} <= {*order}]
        assert free, "a circle would leave a run without a cause"
        order += free


def test_of_two_causes_a_red_one_counts_then_the_earlier() -> None:
    def alarm(name: AlarmName, level: str, step: int) -> RaisedAlarm:
        return RaisedAlarm(name=name, level=level, step=step, evidence="e", advice="a")

    def cause(*alarms: RaisedAlarm) -> str | None:
        return None if (found := diagnose(alarms)) is None else found.alarm

    assert cause(alarm("stale", "amber", 3), alarm("value", "amber", 2)) == "value"
    assert cause(alarm("stale", "red", 3), alarm("value", "amber", 2)) == "stale"
    assert cause(alarm("dead_groups", "red", 1), alarm("missing_rewards", "amber", 9)) == "missing_rewards"
    assert cause(RaisedAlarm(name="stall", level="red", step=1, evidence="", advice="")) is None
    assert cause() is None


@pytest.mark.parametrize("name", [*BAD, *GOOD[:3]])
def test_a_watch_of_a_resumed_run_goes_on_from_the_lines_that_are_there(name: str, tmp_path: Path) -> None:
    """It sees what the file has up to the checkpoint; lines of later steps are cut before. Lines survive the file."""
    lines, steps = lines_of(name), RECORDED[name]["steps"]
    count = max(1, steps // lines[0][0])
    for cut in (1, len(lines) // 3, len(lines) - 2):
        path = tmp_path / f"{cut}.jsonl"
        writer = open_metrics(path).writer
        for step, line in lines:
            writer.append(step, line)
        writer.close()
        kept = open_metrics(path, after_step=lines[cut - 1][0], every=lines[0][0]).writer
        kept.close()
        first, second = AlarmWatch({}, count), AlarmWatch({}, count)
        changes = [(step, change) for step, line in lines[:cut] for change in first.see(step, line)]
        for step, line in tail_metrics(path, 0)[0]:
            second.see(step, line)
        changes += [(step, change) for step, line in lines[cut:] for change in second.see(step, line)]
        assert changes == raised(name)


# ------------------------------------------------------------------------------------------------------- rules by hand

CALM = {"answers/tokens_mean": 9.0, "reward/mean": 0.5, "reward/std": 0.5, "episodes/truncated": 0.0}


def judged(
    calm: Metrics, ill: Metrics, *, lines: int = 30, limits: AlarmLimits | None = None
) -> list[tuple[AlarmName, int, str]]:
    """Alarms of 15 calm lines and as many ill ones: name, line and level of each."""
    rows = [CALM | calm] * 15 + [CALM | ill] * (lines - 15)
    changes = replay_alarms(list(enumerate(rows, start=1)), steps=lines, limits=limits)
    return [(change.name, line, change.level) for line, change in changes if change.is_raised]


@pytest.mark.parametrize(
    ("alarm", "calm", "ill"),
    [
        ("dead_groups", {"reward/zero_variance_groups": 0.1}, {"reward/zero_variance_groups": 0.7}),
        ("kl", {"policy/kl_nats": 0.01}, {"policy/kl_nats": 0.5}),
        ("mismatch", {"mismatch/mean": 1e-3}, {"mismatch/mean": 2e-2}),
        ("mismatch", {"mismatch/ratio_ess": 1.0}, {"mismatch/ratio_ess": 0.4}),
        ("missing_rewards", {"reward/missing": 0.0}, {"reward/missing": 0.1}),
        ("stale", {"async/dropped": 0.0}, {"async/dropped": 0.2}),
        ("value", {"value/explained_variance": 0.4}, {"value/explained_variance": -0.2}),
        ("value", {"critic/explained_variance": 0.4}, {"critic/explained_variance": -0.2}),
        ("tools", {"stops/deadline": 0.0}, {"stops/deadline": 0.3}),
        ("tools", {"tools/repeats": 0.0}, {"tools/repeats": 0.3}),
        ("length", {"answers/tokens_mean": 9.0}, {"answers/tokens_mean": 20.0, "episodes/truncated": 0.3}),
    ],
)
def test_a_condition_of_three_lines_raises_and_of_eight_makes_red(
    alarm: AlarmName, calm: Metrics, ill: Metrics
) -> None:
    names = {name for name, _, _ in judged(calm, ill)}
    assert names == {alarm}
    levels = [(line, level) for _, line, level in judged(calm, ill)]
    assert levels[0][1] == "amber"
    assert levels[0][0] >= 18, "the third ill line at the earliest"
    if RULES[alarm].severe and len(levels) > 1:
        assert levels[1][1] == "red"
        assert levels[1][0] >= levels[0][0] + RED_AT - 3
    assert judged(calm, ill, limits={alarm: False}) == []
    assert judged(calm, calm) == []


def test_one_line_that_is_not_finite_is_red_at_once() -> None:
    assert judged({"policy/loss": 0.1}, {"policy/loss": math.nan}, lines=16) == [("not_finite", 16, "red")]
    assert judged({"eval/score": 0.1}, {"eval/score": math.nan}) == [], "an evaluation without a score is none"


def test_entropy_that_falls_with_success_is_no_collapse() -> None:
    """Ends at a tenth of its entropy: alone that is no alarm."""
    won = {"reward/mean": 0.96, "reward/std": 0.19, "policy/entropy_nats": 0.05}
    assert judged({"policy/entropy_nats": 0.5}, won, lines=60) == []
    lost = {"policy/entropy_nats": 0.05}
    assert [name for name, *_ in judged({"policy/entropy_nats": 0.5}, lost, lines=60)][:1] == ["entropy_collapse"]
    assert judged({"policy/entropy_nats": 0.5}, lost, lines=60, limits={"entropy_collapse": 0.05}) == []
    driver = [(step, {"reward/mean": 1.0, "reward/std": 1.0, "policy/entropy_nats": 1 / step}) for step in range(1, 61)]
    assert replay_alarms(driver, steps=60) == [], "control: a density's entropy has no zero"


def test_a_critic_of_a_run_that_learnt_is_no_alarm() -> None:
    """Where every episode lasts 500 steps the returns hardly vary, and any critic explains less than a constant."""
    begun, ill = {"reward/mean": 20.0, "value/explained_variance": 0.4}, {"value/explained_variance": -0.5}
    assert judged(begun, {"reward/mean": 500.0} | ill, lines=60) == []
    assert [name for name, *_ in judged(begun, {"reward/mean": 20.0} | ill, lines=60)] == ["value"]


def test_solved_groups_of_a_run_that_learnt_are_no_alarm() -> None:
    share = "reward/zero_variance_groups"
    assert judged({share: 0.1}, {share: 0.9, "reward/mean": 0.97, "reward/std": 0.1}) == []


def test_answers_that_never_ended_are_told_before_the_beginning_is_over() -> None:
    cut = {"episodes/truncated": 0.99}
    (first, *_) = judged(cut, cut)
    assert first == ("no_end", 12, "amber"), "three lines after the tenth"
    driver = [(step, {"reward/mean": 200.0, "episodes/truncated": 1.0}) for step in range(1, 31)]
    assert replay_alarms(driver, steps=30) == [], "episodes of control that reach their limit have done well"


# ---------------------------------------------------------------------------------------------------- memory and disk

GIB = 1 << 30


def read_alarms_of(
    held: Callable[[int], float],
    free: Callable[[int], float],
    *,
    lines: int = 40,
    of: int = 80,
    limits: AlarmLimits | None = None,
) -> list[tuple[str, int, str, str]]:
    """Alarms of a machine with 16 GiB of memory, of which a run was planned to take 2: name, line, level, evidence.
    The reader is told how much is held and free, GiB by line."""
    clock, watch, now = ManualClock(), AlarmWatch(limits or {}, of), 0
    reader = MachineReader(
        folder=Path(), clock=clock, before_bytes=GIB, planned_bytes=2 * GIB - UNPLANNED_BYTES, limit_bytes=16 * GIB,
        resident=lambda: int(held(now) * GIB), free=lambda _: int(free(now) * GIB),
    )  # fmt: skip
    raised: list[tuple[str, int, str, str]] = []
    for now in range(1, lines + 1):
        clock.advance(1.0)
        changes = watch.see(now, CALM | reader.read())
        raised += [(one.name, now, one.level, one.evidence) for one in changes if one.is_raised]
    return raised


def test_a_reader_reads_once_a_second_and_tells_what_the_system_does() -> None:
    clock = ManualClock()
    reader = MachineReader(
        folder=Path(), clock=clock, before_bytes=GIB, planned_bytes=GIB - UNPLANNED_BYTES, limit_bytes=8 * GIB,
        resident=lambda: 3 * GIB, free=lambda _: 0,
    )  # fmt: skip
    full = {
        "machine/resident_bytes": 3.0 * GIB, "machine/memory_share": 0.375, "machine/memory_to_plan": 2.0,
        "machine/disk_free_bytes": 0.0,
    }  # fmt: skip
    assert reader.read() == full, "a full disk is not an unknown one"
    clock.advance(0.999)
    assert reader.read() == {}
    clock.advance(0.001)
    assert reader.read() == full
    silent = MachineReader(folder=Path(), clock=clock, resident=lambda: 0, free=lambda _: None)
    assert silent.read() == {}
    (path := Path("/proc/self/status")).exists() or pytest.skip(f"{path} is not there")
    own = MachineReader(folder=Path(), clock=clock, limit_bytes=GIB).read()
    assert own["machine/resident_bytes"] > 1 << 20
    assert 0 < own["machine/memory_share"] == own["machine/resident_bytes"] / GIB
    assert "machine/memory_to_plan" not in own, "nothing was planned"
    assert own["machine/disk_free_bytes"] > 0


def test_a_machine_with_room_raises_nothing() -> None:
    """Constant, with a checkpoint that comes and goes, a buffer that fills and is full, and one file of a stranger."""
    level = lambda _: 50.0  # noqa: E731
    assert read_alarms_of(lambda _: 2.0, level) == []
    assert read_alarms_of(lambda line: 2.0 + (line % 7) / 4, lambda line: 50 - 20 * (line % 10 < 5)) == []
    assert read_alarms_of(lambda line: min(3.0, 1.5 + line / 10), level) == []
    assert read_alarms_of(lambda _: 2.0, lambda line: 50.0 if line < 20 else 3.0, lines=120, of=400) == []


@pytest.mark.parametrize(("free", "alarms"), [(1.0, 0), (0.99, 2)])
def test_a_disk_with_less_than_its_limit_is_told_after_three_lines_and_red_after_eight(
    free: float, alarms: int
) -> None:
    raised = read_alarms_of(lambda _: 2.0, lambda line: 50.0 if line <= 10 else free)
    assert len(raised) == alarms
    if alarms:
        assert [one[:3] for one in raised] == [("disk", 17, "amber"), ("disk", 22, "red")], "means of five lines"
        assert raised[0][3] == "0.99 GiB are free where the run writes"
        assert read_alarms_of(lambda _: 2.0, lambda _: free, limits={"disk": 0.5}) == []
        assert read_alarms_of(lambda _: 2.0, lambda _: free, limits={"disk": False}) == []


def test_a_disk_that_runs_full_before_the_run_ends_is_told_beforehand() -> None:
    """A GiB a line of 50: after 26 lines 26 more are too many, where the run has as many."""
    name, line, level, words = read_alarms_of(lambda _: 2.0, lambda line: 50.0 - line)[0]
    assert (name, level) == ("disk", "amber")
    assert 26 <= line <= 30, "less than half of it is left"
    assert "ever less: none is left after" in words
    assert read_alarms_of(lambda _: 2.0, lambda line: 50.0 - line, lines=40, of=45) == [], "it ends before"


def test_memory_that_is_taken_or_will_be_is_told() -> None:
    level = lambda _: 50.0  # noqa: E731
    raised = read_alarms_of(lambda line: 2.0 if line <= 10 else 15.0, level)
    assert [one[:3] for one in raised][-1] == ("memory", 22, "red")
    assert "holds 15 GiB, 94% of what it may use" in raised[-1][3]
    assert read_alarms_of(lambda _: 0.9 * 16, level) == [], "at the limit, not above"
    leak = read_alarms_of(lambda line: 2.0 + line * 0.25, level)
    assert leak[0][0] == "memory"
    assert leak[0][1] <= 32, "at line 32 it holds 10 of 16, and 24 more lines are enough"


def test_memory_beyond_its_plan_is_told_while_it_grows() -> None:
    """Planned 2 GiB beyond 1: 4.1 are 1.55 times as much, and stay where they are."""
    level = lambda _: 50.0  # noqa: E731
    assert read_alarms_of(lambda _: 4.1, level) == [], "the plan was wrong, and nothing grows"
    assert read_alarms_of(lambda line: 2.0 + 0.02 * line, level) == [], "it grows within its plan"
    grows = read_alarms_of(lambda line: 3.5 + 0.02 * line, level)
    assert grows[0][0] == "memory"
    assert "times what was planned for it, and it grows" in grows[0][3]


def test_lines_without_a_reading_judge_nothing() -> None:
    """Two bad readings among lines of a fast run are two, not as many as the lines that follow them."""
    bad = {"machine/disk_free_bytes": 0.5 * GIB}
    rows = [CALM | (bad if place in (3, 9) else {}) for place in range(60)]
    assert replay_alarms(list(enumerate(rows, start=1)), steps=60) == []


def test_a_trend_by_hand() -> None:
    """The least of the three changes between the medians of four quarters, by quarter's length; 0 without one sign."""
    series = Series()
    series.latest.extend(float(place) for place in range(19))
    assert series.slope() == 0, "19 values are too few"
    series.latest.append(19.0)
    assert series.slope() == pytest.approx(1.0)
    for values, slope in (([0] * 5 + [1] * 5 + [3] * 5 + [9] * 5, 0.2), ([0] * 10 + [5] * 10, 0), ([3] * 20, 0)):
        series.latest.clear()
        series.latest.extend(map(float, values))
        assert series.slope() == pytest.approx(slope)


# ------------------------------------------------------------------------------------------- written once, shown by all


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_run_writes_its_cause_once_and_every_face_shows_that_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A critic that explains less than a limit which none can reach: one alarm, one cause, in a resumed run too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config: dict[str, Any] = {
        "recipe": "ppo", "name": "cart", "rollout_steps": 8, "env": {"id": "CartPole-v1"}, "steps": 18,
        "run": {"certify": False}, "alarms": {"value": 2.0},
    }  # fmt: skip
    whole = hone.api.train(config | {"name": "whole"}).folder
    hone.api.train(config, on_step=lambda event: event.step < 13)
    resumed = hone.api.train(config, resume=True).folder
    told = {
        run: [(one.step, one.words, one.data) for one in read_events(run).events if one.kind == "diagnosis"]
        for run in (whole, resumed)
    }
    (step, sentence, data), *_ = told[whole]
    assert step == next(one.step for one in read_events(whole).events if one.kind == "alarm")
    assert sentence.startswith(f"likely cause: {RULES['value'].cause}; the critic explains ")
    assert (data["alarm"], data["follows"], data["try"]) == ("value", [], RULES["value"].advice)
    cause = read_diagnosis(whole)
    assert cause is not None
    assert (cause.sentence, cause.data()) == told[whole][-1][1:]
    assert sum(sentence in line for line in (whole / "log.txt").read_text().splitlines()) == 1
    capsys.readouterr()
    for command in (["show", "whole"], ["show", "whole", "--alarms"], ["watch", "runs", "--once", "whole"]):
        main(command)
        assert cause.sentence in " ".join(capsys.readouterr().out.split()), command
    assert told[resumed] == told[whole], "lines of steps that are done again are cut"


def test_a_cause_ends_with_its_alarms(tmp_path: Path) -> None:
    """What stands last counts; without a word of a cause, as in runs of earlier versions, the alarms tell it."""
    log = EventLog(tmp_path / "events.jsonl", ManualClock())
    log.append(3, "alarm", "w", {"alarm": "stale", "state": "raised", "level": "amber", "evidence": "e", "try": "t"})
    by_alarms = read_diagnosis(tmp_path)
    assert by_alarms is not None
    assert by_alarms.sentence == f"likely cause: {RULES['stale'].cause}; e"
    log.append(3, "diagnosis", "w", {"alarm": "kl", "cause": "c", "follows": ["value", "no_end"], "try": "t"})
    written = read_diagnosis(tmp_path)
    assert written is not None
    assert written.sentence == "likely cause: c; it explains value and no end"
    log.append(4, "diagnosis", NO_CAUSE)
    assert read_diagnosis(tmp_path) is None


def scored(evaluations: list[tuple[float, float]]) -> list[str]:
    """Levels of `reward_hacking` over evaluations: (training score, held-out score), each interval +-0.05."""
    rows = [
        CALM | {"reward/mean": reward, "eval/score": score, "eval/low": score - 0.05, "eval/high": score + 0.05}
        for reward, score in evaluations
    ]
    changes = replay_alarms(list(enumerate(rows, start=1)), steps=len(rows))
    return [change.level if change.is_raised else "ended" for _, change in changes if change.name == "reward_hacking"]


def test_a_held_out_score_that_falls_while_training_rises_is_hacking() -> None:
    assert scored([(0.2, 0.3), (0.3, 0.4), (0.5, 0.2), (0.6, 0.2), (0.7, 0.1)]) == ["amber", "red"]
    assert scored([(0.2, 0.3), (0.3, 0.4), (0.4, 0.35), (0.5, 0.34)]) == [], "within the interval"
    assert scored([(0.5, 0.4), (0.2, 0.2), (0.1, 0.1), (0.0, 0.0)]) == [], "both fall: that is no hacking"
    assert scored([(0.3, 0.4), (0.5, 0.2), (0.6, 0.2), (0.7, 0.5)]) == ["amber", "ended"]


def test_an_alarm_ends_after_five_lines_without_and_does_not_flicker() -> None:
    ill = [place % 2 == 0 for place in range(20)]  # every second line: it holds in 3 of 5
    rows = [CALM | {"reward/missing": 0.5 * one} for one in [*ill, *[False] * 8]]
    changes = replay_alarms(list(enumerate(rows, start=1)), steps=len(rows))
    assert [(line, change.is_raised) for line, change in changes] == [(5, True), (24, False)]


def test_metrics_that_rules_name_exist() -> None:
    known = metric_catalogue().pattern()
    assert [name for rule in RULES.values() for name in rule.metrics if not known.fullmatch(name)] == []


# ------------------------------------------------------------------------------------------------------------- reading


def run_folder(folder: Path, rows: list[Metrics]) -> Path:
    folder.mkdir()
    writer = open_metrics(folder / "metrics.jsonl").writer
    for step, row in enumerate(rows, start=1):
        writer.append(step, row | {"time/at_s": 1e9 + 2 * step})
    writer.close()
    return folder


def test_a_run_without_events_is_judged_by_its_metrics(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "old", [CALM | {"reward/missing": 0.0}] * 5 + [CALM | {"reward/missing": 0.4}] * 20)
    (alarm,) = read_alarms(run)
    assert alarm == RaisedAlarm(
        name="missing_rewards", level="red", step=13, evidence="40% of the episodes have no score",
        advice=RULES["missing_rewards"].advice,
    )  # fmt: skip
    assert read_alarms(run_folder(tmp_path / "calm", [CALM] * 9)) == []


def test_a_run_that_writes_no_lines_stands_still(tmp_path: Path) -> None:
    """A line every 2 s: not after a minute's pause, but after two; never once it has ended."""
    run = run_folder(tmp_path / "run", [CALM] * 9)
    last = 1e9 + 18
    assert stall(run, last + 59) is None
    assert stall(run, last + 120) == "no line for 120 s; one every 2 s is usual"
    assert [(one.name, one.level) for one in read_alarms(run, now_s=last + 120)] == [("stall", "red")]
    (run / "events.jsonl").write_text('{"step": 9, "at_s": 1, "kind": "finish", "words": "finished"}\n')
    assert stall(run, last + 1e6) is None
