"""The service's monitor: every signal, tenants apart, repeated records, restarts, bounded memory."""

import json
import math
import tomllib
from pathlib import Path

import numpy as np
import pytest
from drift_streams import bernoulli
from monitor_records import AlarmList, decision, reward, stream

from hone.core.decisions import Decision
from hone.core.errors import ResourceError
from hone.core.random import generator
from hone.decide.monitor.alarms import AlarmLog
from hone.decide.monitor.config import MonitorConfig
from hone.decide.monitor.monitor import POINTS, MonitorLimits, ServiceMonitor, SignalHistory, resident_bytes

CHANGE = bernoulli([0.5, 0.95], 600, 3).tolist()


def watch(config: MonitorConfig | None = None, **settings: object) -> tuple[ServiceMonitor, AlarmList]:
    sink = AlarmList()
    return ServiceMonitor(config or MonitorConfig(settle=50), sink, names=("age",), **settings), sink  # type: ignore[arg-type]


@pytest.mark.parametrize("detector", ["page_hinkley", "adwin", "conformal"])
def test_a_change_of_the_residual_is_found_and_placed(detector: str) -> None:
    monitor, sink = watch(MonitorConfig(settle=50, detector=detector))  # type: ignore[arg-type]
    for record in stream(CHANGE):
        monitor.observe(record)
    assert sink.signals == ["residual"]
    alarm = sink.alarms[0]
    assert 600 < alarm.count < 700
    assert alarm.count - 500 > alarm.recent >= 1
    assert "residual has changed about" in alarm.words
    assert alarm.evidence().verdict == "weak"


def test_the_residual_is_that_of_the_executed_action_and_a_model_that_follows_raises_no_alarm() -> None:
    monitor, sink = watch()
    for number, value in enumerate(CHANGE):
        expected = 0.5 if number < 600 else 0.95
        monitor.observe(decision(number, executed=1, scores=(9.0, expected)))
        monitor.observe(reward(number, value))
    assert sink.alarms == []
    other, heard = watch(MonitorConfig(settle=50, on="reward"))
    for number, value in enumerate(CHANGE):
        other.observe(decision(number, scores=None))
        other.observe(reward(number, value))
    assert heard.signals == ["reward"]


def test_tenants_are_watched_apart() -> None:
    monitor, sink = watch()
    calm = bernoulli([0.5], 1200, 9).tolist()
    for first, second in zip(stream(CHANGE, tenant="shop"), stream(calm, tenant="bank"), strict=True):
        monitor.observe(first)
        monitor.observe(second)
    assert [alarm.tenant for alarm in sink.alarms] == ["shop"]
    assert monitor.rewards("bank") == 1200
    assert monitor.rewards("nobody") == 0 and monitor.recent("nobody", 5) == ()


def test_repeated_unknown_and_other_outcomes_change_nothing() -> None:
    monitor, _ = watch()
    monitor.observe(decision(0))
    for record in (reward(0, 1.0), reward(0, 1.0), reward(7, 1.0), reward(0, 5.0, tenant="bank")):
        monitor.observe(record)
    assert monitor.rewards("shop") == 1
    assert [row.reward for row in monitor.recent("shop", 10)] == [1.0]


def test_a_restart_in_the_middle_gives_the_same_alarm() -> None:
    config = MonitorConfig(settle=50, feature_window=100, least_entropy_nats=0.1, detector="conformal")
    contexts = generator(1, "contexts").standard_normal(1200)
    contexts[900:] += 2.0
    records = [
        record
        for number, value in enumerate(CHANGE)
        for record in (decision(number, context=[contexts[number]], executed=number % 2), reward(number, value))
    ]
    whole, expected = watch(config, seed=5)
    for record in records:
        whole.observe(record)
    for cut in (301, 1100, 1301):
        first, heard = watch(config, seed=5)
        for record in records[:cut]:
            first.observe(record)
        second, later = watch(config, seed=5)
        second.restore(first.state())
        second.reopen([record for record in records[cut - 1 : cut] if isinstance(record, Decision)])
        for record in records[cut:]:
            second.observe(record)
        assert heard.alarms + later.alarms == expected.alarms
    assert {"residual", "feature age"} <= set(expected.signals)


def test_numbers_that_are_not_finite_are_told_at_powers_of_two_and_not_used() -> None:
    monitor, sink = watch()
    for number in range(5):
        monitor.observe(decision(number, context=[math.nan]))
    monitor.observe(reward(0, math.inf))
    assert sink.signals == ["not finite"] * 3
    assert "'d0'" in sink.alarms[0].words
    assert monitor.rewards("shop") == 0
    assert json.loads(sink.alarms[0].line())["tenant"] == "shop"


def test_actions_that_collapse_are_told() -> None:
    monitor, sink = watch(MonitorConfig(least_entropy_nats=0.5, feature_window=0))
    for number in range(1000):
        monitor.observe(decision(number, executed=number % 2 if number < 500 else 0))
    assert sink.signals == ["actions"]
    assert "0.000 nats" in sink.alarms[0].words


def test_silence_is_told_once() -> None:
    monitor, sink = watch(MonitorConfig(stale_s=60.0))
    for record in stream([1.0]):
        monitor.observe(record)
    for now in (30.0, 62.0, 63.0):
        monitor.tick(now)
    assert sink.signals == ["stale"]


def test_a_leak_is_told() -> None:
    readings = iter(range(0, 10**9, 50))
    limits = MonitorLimits(memory_every=10)
    monitor, sink = watch(MonitorConfig(feature_window=0), limits=limits, memory=lambda: float(next(readings)))
    for number in range(640):
        monitor.observe(decision(number))
    assert sink.signals == ["memory"]
    assert "5000 bytes per 1,000 decisions" in sink.alarms[0].words
    assert resident_bytes() > 1e6


def test_memory_is_bounded_by_tenants_decisions_and_points() -> None:
    monitor, _ = watch(limits=MonitorLimits(tenants=2, open_decisions=3))
    for number in range(5):
        monitor.observe(decision(number, tenant=f"t{number}"))
    monitor.observe(reward(4, 1.0, tenant="t4"))
    monitor.observe(reward(1, 1.0, tenant="t1"))  # its decision was forgotten
    assert [monitor.rewards(f"t{number}") for number in range(5)] == [0, 0, 0, 0, 1]
    history = SignalHistory()
    for value in range(100_000):
        history.add(float(value))
    assert POINTS // 2 <= len(history.means) < POINTS
    assert history.means[0] == pytest.approx((history.block - 1) / 2)


def test_alarms_are_lines_of_a_file(tmp_path: Path) -> None:
    sink = AlarmList()
    monitor = ServiceMonitor(MonitorConfig(settle=50), AlarmLog(tmp_path / "alarms.jsonl", sink), names=("age",))
    for record in stream(CHANGE):
        monitor.observe(record)
    (line,) = (tmp_path / "alarms.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["signal"] == "residual" == sink.alarms[0].signal
    with pytest.raises(ResourceError, match="cannot write"):
        AlarmLog(tmp_path / "absent" / "alarms.jsonl").alarm(sink.alarms[0])


def test_blocks_silence_rewards_that_correlate() -> None:
    shocks, last, values = generator(2, "shocks").standard_normal(6000).tolist(), 0.0, []
    for shock in shocks:
        last = 0.9 * last + shock
        values.append(last)
    counts = {}
    for block in (1, 60):
        monitor, sink = watch(MonitorConfig(settle=50, block=block, feature_window=0))
        for record in stream(values):
            monitor.observe(record)
        counts[block] = len(sink.alarms)
    assert counts[1] > 5
    assert counts[60] == 0


def test_a_config_that_cannot_retrain_is_refused() -> None:
    with pytest.raises(ValueError, match=r"needs a table \[monitor\.retrain\]"):
        MonitorConfig(act="retrain")
    assert np.isfinite(MonitorConfig().arl)


def test_the_table_of_the_page_is_a_config() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "production" / "drift.md").read_text(encoding="utf-8")
    block = page[page.index("[monitor]") : page.index("```\n", page.index("[monitor]"))]
    config = MonitorConfig(**tomllib.loads(block)["monitor"])
    assert config.act == "recall" and config.retrain is not None and config.retrain.log_key == "log.path"
