"""Alarms: recorded good runs raise none and bad ones theirs; each rule by hand; hysteresis, state, and what is read."""

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest

from hone.core.credit import Metrics
from hone.run.alarms import (
    RED_AT,
    RULES,
    AlarmChange,
    AlarmName,
    AlarmsConfig,
    AlarmWatch,
    RaisedAlarm,
    diagnose,
    read_alarms,
    replay_alarms,
    stall,
)
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


def raised(name: str, **config: Any) -> list[tuple[int, AlarmChange]]:
    settings = AlarmsConfig(**config)
    return replay_alarms(lines_of(name), steps=RECORDED[name]["steps"], config=settings)


def test_there_are_twenty_good_runs_of_five_families_and_eleven_bad_ones() -> None:
    """The twelfth, a run that stands still, is no matter of its lines: see below."""
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
    assert raised(name, off=[alarm]) == [entry for entry in raised(name) if entry[1].name != alarm], "it can be off"


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
        first, second = AlarmWatch(AlarmsConfig(), count), AlarmWatch(AlarmsConfig(), count)
        changes = [(step, change) for step, line in lines[:cut] for change in first.see(line)]
        for _, line in tail_metrics(path, 0)[0]:
            second.see(line)
        changes += [(step, change) for step, line in lines[cut:] for change in second.see(line)]
        assert changes == raised(name)


# ------------------------------------------------------------------------------------------------------- rules by hand

CALM = {"answers/tokens_mean": 9.0, "reward/mean": 0.5, "reward/std": 0.5, "episodes/truncated": 0.0}


def judged(calm: Metrics, ill: Metrics, *, lines: int = 30, **config: Any) -> list[tuple[AlarmName, int, str]]:
    """Alarms of 15 calm lines and as many ill ones: name, line and level of each."""
    rows = [CALM | calm] * 15 + [CALM | ill] * (lines - 15)
    changes = replay_alarms(list(enumerate(rows, start=1)), steps=lines, config=AlarmsConfig(**config))
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
    assert judged(calm, ill, off=[alarm]) == []
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


def test_solved_groups_of_a_run_that_learnt_are_no_alarm() -> None:
    share = "reward/zero_variance_groups"
    assert judged({share: 0.1}, {share: 0.9, "reward/mean": 0.97, "reward/std": 0.1}) == []


def test_answers_that_never_ended_are_told_before_the_beginning_is_over() -> None:
    cut = {"episodes/truncated": 0.99}
    (first, *_) = judged(cut, cut)
    assert first == ("no_end", 12, "amber"), "three lines after the tenth"
    driver = [(step, {"reward/mean": 200.0, "episodes/truncated": 1.0}) for step in range(1, 31)]
    assert replay_alarms(driver, steps=30) == [], "episodes of control that reach their limit have done well"


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
