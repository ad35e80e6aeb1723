"""The monitor cries wolf no more often than declared: learners that converge, days and nights; and it stays awake."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from monitor_records import ACTIONS, AlarmList, reward, stream

from hone.core.decisions import Choice, Decision, Evidence, Outcome
from hone.core.random import generator
from hone.decide.estimators.drift.detector import FalseAlarmBudget
from hone.decide.gateway.opening import _DriftWatch
from hone.decide.monitor.alarms import MonitorAlarm
from hone.decide.monitor.config import MonitorConfig, RetrainConfig
from hone.decide.monitor.monitor import ServiceMonitor
from hone.decide.monitor.response import DriftAction, DriftResponder
from hone.decide.monitor.retraining import JobQueue


def heard(
    config: MonitorConfig,
    rewards: Sequence[float],
    predicted: Sequence[float] | None,
    at_s: Sequence[float] | None = None,
) -> AlarmList:
    sink = AlarmList()
    monitor = ServiceMonitor(config, sink)
    for number, value in enumerate(rewards):
        time_s = float(number) if at_s is None else at_s[number]
        scores = None if predicted is None else np.full(2, predicted[number])
        monitor.observe(Decision(
            id=str(number), tenant="shop", unit="u", at_s=time_s, context=np.zeros(0), actions=ACTIONS,
            choice=Choice(action=0, logp=0.0, scores=scores), executed=0, executed_logp=0.0, version="v", source="g",
            seq=2 * number,
        ))  # fmt: skip
        monitor.observe(Outcome(decision_id=str(number), tenant="shop", value=value, at_s=time_s, source="g",
                                seq=2 * number + 1))  # fmt: skip
    return sink


def slow_mean(rewards: Sequence[float], rate: float) -> list[float]:
    """Predictions that come nearer to each reward by a share of the way, from 0 on."""
    predicted = [0.0]
    for value in rewards[:-1]:
        predicted.append(predicted[-1] + rate * (value - predicted[-1]))
    return predicted


@pytest.mark.parametrize("rate", [1 / 300, 1 / 1500])
@pytest.mark.parametrize("detector", ["page_hinkley", "adwin"])
def test_a_model_that_converges_is_no_drift(detector: str, rate: float) -> None:
    rewards = (generator(4, "calm").random(6000) < 0.4).astype(np.float64).tolist()
    config = MonitorConfig(arl=3000, detector=detector, feature_window=0)  # type: ignore[arg-type]
    assert len(heard(config, rewards, slow_mean(rewards, rate)).alarms) <= 2 + 3 * math.sqrt(2)
    spoiled = [*rewards[:4000], *(1 - value for value in rewards[4000:])]
    late = [alarm.count for alarm in heard(config, spoiled, slow_mean(rewards, 1 / 300)).alarms if alarm.count > 4000]
    assert late and late[0] < 4400


def test_a_residual_that_crosses_zero_is_drift_and_one_that_shrinks_is_none() -> None:
    draws = generator(8, "noise").standard_normal(2400)
    for levels, expected in (((0.0, 1.0), 1), ((-1.0, 0.1), 0), ((-1.0, 0.9), 1), ((1.0, 0.0), 0), ((0.5, 1.5), 1)):
        rewards = (draws[:1200] + np.repeat(levels, 600)).tolist()
        assert len(heard(MonitorConfig(feature_window=0), rewards, [0.0] * 1200).alarms) == expected, levels
        assert len(heard(MonitorConfig(feature_window=0), rewards, None).alarms) == 1, levels  # a reward may not fall


@pytest.mark.parametrize("on", ["residual", "reward"])
def test_days_and_nights_raise_no_more_alarms_than_declared(on: str) -> None:
    draws = generator(6, "days")
    at_s = np.sort(draws.random(9000)) * 9 * 86_400
    rewards = (draws.random(9000) < 0.3 + 0.2 * np.sin(2 * math.pi * at_s / 86_400)).astype(np.float64).tolist()
    predicted = [0.3] * 9000 if on == "residual" else None
    config = MonitorConfig(on=on, arl=2000, feature_window=0)  # type: ignore[arg-type]
    assert len(heard(config, rewards, predicted, at_s.tolist()).alarms) <= 4.5 + 3 * math.sqrt(4.5)


def test_ranks_refuse_a_cycle_and_a_model_that_learns_and_say_so_once() -> None:
    draws = generator(6, "days")
    at_s = np.sort(draws.random(9000)) * 9 * 86_400
    rewards = (draws.random(9000) < 0.3 + 0.2 * np.sin(2 * math.pi * at_s / 86_400)).astype(np.float64).tolist()
    config = MonitorConfig(arl=2000, feature_window=0, detector="conformal")
    signals = heard(config, rewards, [0.3] * 9000, at_s.tolist()).signals
    assert signals.count("refused") == 1 and signals[-1] == "refused"
    rewards = (draws.random(9000) < 0.4).astype(np.float64).tolist()
    learning = heard(config, rewards, slow_mean(rewards, 1 / 500))
    assert learning.signals.count("refused") == 1 and learning.signals[-1] == "refused"
    assert len(learning.signals) <= 10 and "correlates with its neighbours" in learning.alarms[-1].words
    fixed = heard(config, [*rewards[:3000], *(1.0 - 0.5 * value for value in rewards[3000:3600])], [0.4] * 3600)
    assert "residual" in fixed.signals and "refused" not in fixed.signals


@pytest.mark.parametrize("broken", [math.nan, math.inf, 1e308])
def test_one_broken_reward_does_not_blind_the_monitor(broken: float) -> None:
    values = (generator(3, "rates").random(1200) < np.repeat([0.5, 0.95], 600)).astype(np.float64).tolist()
    for place in (0, 300):
        sink = AlarmList()
        monitor = ServiceMonitor(MonitorConfig(settle=50), sink)
        for number, record in enumerate(stream(values)):
            if number == 2 * place + 1:
                monitor.observe(reward(place, broken))
            monitor.observe(record)
        drift = [alarm.count for alarm in sink.alarms if alarm.signal == "residual"]
        assert drift and 600 < drift[0] < 750, (place, sink.signals)
        assert monitor.rewards("shop") == 1200  # after one that is none, the decision's reward counts


def test_a_later_alarm_drops_the_job_of_an_earlier_one(tmp_path: Path) -> None:
    queue = JobQueue(tmp_path / "jobs.db")
    evidence = Evidence(kind="monitor", verdict="weak", words="drift", made_by="monitor", at_s=0.0)
    action = DriftAction(kind="retrain", tenant="shop", evidence=evidence, count=100, since_s=10.0)
    assert queue.submit_retraining(action, service="s", at_s=20.0)
    held = queue.claim("w", now_s=21.0, lease_s=30.0)
    assert held is not None
    later = DriftAction(kind="retrain", tenant="shop", evidence=evidence, count=100, since_s=500.0)
    assert queue.submit_retraining(later, service="s", at_s=600.0)
    assert not queue.submit_retraining(later, service="s", at_s=600.0)
    assert [(job.state, job.work["since_s"]) for job in queue.jobs()] == [("dropped", "10.0"), ("queued", "500.0")]
    with pytest.raises(Exception, match="a later alarm of its tenant dropped it"):
        queue.renew(held, until_s=99.0)
    assert queue.drop("bank", reason="none of its own") == 0
    assert queue.drop("shop", reason="the world changed") == 1
    assert queue.claim("w", now_s=1000.0, lease_s=30.0) is None


def test_a_service_drops_the_job_of_a_tenant_whose_world_changes_again(tmp_path: Path) -> None:
    config = MonitorConfig(settle=50, act="retrain", retrain=RetrainConfig(config="r.toml", minimum_rewards=4000))
    responder, queue, told = DriftResponder(config), JobQueue(tmp_path / "jobs.db"), list[str]()
    watch = _DriftWatch(
        monitor=ServiceMonitor(config, responder), responder=responder, registry=tmp_path, service="s",
        jobs=queue.path, tell=lambda kind, words: told.append(words),
    )  # fmt: skip
    watch.tick(0.0)  # there is no queue yet
    queue.submit("earlier", tenant="shop", work={"since_s": "1.0"}, at_s=1.0)
    queue.submit("other", tenant="bank", work={"since_s": "1.0"}, at_s=1.0)
    values = (generator(3, "rates").random(1200) < np.repeat([0.5, 0.95], 600)).astype(np.float64).tolist()
    for record in stream(values):
        watch.observe(record)
    assert responder.changed_tenants() == ("shop",)
    responder.alarm(MonitorAlarm(
        tenant="shop", signal="residual", at_s=1200.0, count=1200, statistic=1.0, threshold=1.0,
        budget=FalseAlarmBudget(kind="arl", value=1.0), words="again",
    ))  # fmt: skip
    watch.tick(1201.0)
    watch.tick(1202.0)
    assert [(job.id, job.state) for job in queue.jobs()] == [("earlier", "dropped"), ("other", "queued")]
    assert len(told) == 1 and "an unfinished retraining is dropped" in told[0]


def test_without_a_cycle_a_small_change_is_found_on_the_first_day() -> None:
    """0.4 standard deviations after 3 hours: as well a part of a daily cycle, and a change where there is none."""
    draws = generator(3, "first day").standard_normal(3000)
    rewards = (draws + np.repeat((0.0, 0.25), 1500)).tolist()
    at_s = (np.arange(3000) * 7.2).tolist()
    whole = [heard(MonitorConfig(feature_window=0, cycle_s=cycle), rewards, None, at_s) for cycle in (0.0, 86_400.0)]
    assert [len(one.alarms) for one in whole] == [1, 0]
    assert 1500 < whole[0].alarms[0].count < 1800
