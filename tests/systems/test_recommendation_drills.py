"""Failures between a decision and its reward: what was acknowledged is joined, and the log says what is wrong."""

import json
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from hone.cli.main import main
from hone.core.decisions import Decision, schema_hash
from hone.decide.gateway.opening import OpenedService, open_service
from hone.decide.gateway.requests import RequestError
from hone.decide.joins.audit import LogAudit, audit_log
from hone.decide.joins.columns import log_columns, log_pages
from hone.decide.log.opening import open_decision_log
from hone.decide.simulators.recommendation import SimulatedClock

ROOT = Path(__file__).resolve().parents[2]
SHOP = """
[service]
features = ["age", "price"]
actions = ["left", "right"]

[join]
window_s = 100
"""
KILLED = """
import os, signal
from hone.api import serve_decisions
from hone.decide.simulators.recommendation import SimulatedClock
with serve_decisions("shop.toml", clock=SimulatedClock()) as shop:
    for number in range(5):
        print(shop.decide("u", {"age": 1.0, "price": 2.0}, id=f"d{number}").id, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@contextmanager
def opened(clock: SimulatedClock, text: str = SHOP) -> Iterator[OpenedService]:
    path = Path("shop.toml")
    path.write_text(text)
    shop = open_service(path, clock=clock, tell=print)
    try:
        yield shop
    finally:
        shop.close()


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


def visitor(age: float = 1.0, price: float = 2.0) -> dict[str, float]:
    return {"age": age, "price": price}


def audited(tenant: str = "default", **kwargs: object) -> LogAudit:
    with closing(open_decision_log("shop/decisions.db")) as log:
        return audit_log(log_columns(log), tenant=tenant, progress=log.watermarks(), **kwargs)  # type: ignore[arg-type]


def test_a_service_killed_between_decision_and_reward_loses_neither(clock: SimulatedClock) -> None:
    Path("shop.toml").write_text(SHOP)
    child = subprocess.run(
        [sys.executable, "-c", KILLED],
        env={"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (child.returncode, child.stdout.split()) == (-signal.SIGKILL, [f"d{number}" for number in range(5)])
    clock.time_s += 10.0
    with opened(clock) as shop:
        for number in range(5):
            shop.reward(f"d{number}", 1.0)
        view = shop.view(as_of_s=clock.time_s + 200.0)
    assert (view.counts.joined, view.counts.orphans, view.table.reward.tolist()) == (5, 0, [1.0] * 5)
    assert audited().verdict == "ok"


def test_a_reward_before_its_decision_waits_for_it(clock: SimulatedClock) -> None:
    with opened(clock) as shop:
        shop.reward("d0", 3.0)
        assert shop.view(as_of_s=clock.time_s).counts.orphans == 1
        clock.time_s += 0.5
        shop.decide("u", visitor(), id="d0")
        view = shop.view(as_of_s=clock.time_s + 200.0)
    assert (view.counts.orphans, view.counts.early, view.table.reward.tolist()) == (0, 1, [3.0])


def test_a_clock_that_jumps_is_told_and_loses_no_reward(clock: SimulatedClock) -> None:
    with opened(clock) as shop:
        for number, jump_s in enumerate((0.0, 3600.0, -7200.0, 1.0)):
            clock.time_s += jump_s
            shop.decide("u", visitor(), id=f"d{number}")
            shop.reward(f"d{number}", float(number))
        view = shop.view(as_of_s=clock.time_s + 20_000.0)
    rewards = dict(zip(view.table.ids, view.table.reward.tolist(), strict=True))
    assert rewards == {f"d{number}": float(number) for number in range(4)}
    (fault,) = audited().faults
    assert re.search(r"its clock went back 1 times, by up to 7200 s", fault.words)


def test_another_schema_is_refused_by_its_column_and_told_in_the_log(clock: SimulatedClock) -> None:
    with opened(clock) as shop:
        shop.decide("u", visitor(), id="d0")
        with pytest.raises(RequestError, match=r"context.price is missing; context.cost is not a feature"):
            shop.decide("u", {"age": 1.0, "cost": 2.0}, id="d1")
    with opened(clock, SHOP.replace("price", "cost")) as shop:
        shop.decide("u", {"age": 1.0, "cost": 2.0}, id="d1")
    names = [("age", "price"), ("age", "cost")]
    (fault,) = audited(schemas=names).faults
    assert "changes at decision 'd1'" in fault.words
    assert "price is gone, cost is new" in fault.words
    assert main(["log", "shop/decisions.db", "--schema", schema_hash(names[0]), "--view", "old"]) == 3
    assert Path("old").is_dir()


def test_an_empty_list_of_actions_is_refused_and_nothing_is_logged(clock: SimulatedClock) -> None:
    with opened(clock) as shop, pytest.raises(RequestError, match="actions"):
        shop.decide("u", visitor(), actions=[], id="d0")
    with closing(open_decision_log("shop/decisions.db")) as log:
        assert (log.counts().decisions, list(log_pages(log))) == (0, [])


def test_two_tenants_with_the_same_unit_and_id_stay_apart(clock: SimulatedClock) -> None:
    with opened(clock, SHOP.replace("[service]", '[service]\ntenants = ["a", "b"]')) as shop:
        for tenant, value in (("a", 1.0), ("b", 5.0)):
            shop.decide("u", visitor(), id="d0", tenant=tenant)
            shop.reward("d0", value, tenant=tenant)
        views = [shop.view(tenant, as_of_s=clock.time_s + 200.0) for tenant in ("a", "b")]
        shop.log.erase("a", "u")
        logged = [one.record for one in shop.log.read()]
    assert [view.table.reward.tolist() for view in views] == [[1.0], [5.0]]
    assert {one.tenant for one in logged if isinstance(one, Decision)} == {"b"}
    assert audited("b").verdict == "ok"


def test_the_example_runs_and_its_log_is_sound(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = ROOT / "examples" / "decisions" / "recommendation"
    (place / "shop.toml").write_text((example / "shop.toml").read_text())
    (place / "shop.py").write_text((example / "shop.py").read_text().replace("rounds=3_000", "rounds=60"))
    runpy.run_path("shop.py", run_name="__main__")
    said = capsys.readouterr().out
    (command,) = re.findall(r"^hone (log .*)$", said, re.MULTILINE)
    assert "of those of the best item" in said
    assert main([*command.split(), "--json"]) == 0
    (tenant,) = json.loads(capsys.readouterr().out)["tenants"]
    assert (tenant["verdict"], tenant["decisions"]) == ("ok", 60)
