"""A service file opened, served, closed and opened again."""

from pathlib import Path

import numpy as np
import pytest
from manual_clock import ManualClock

from hone.api import serve_decisions
from hone.core.decisions import Decision
from hone.core.errors import ConfigError, ResourceError
from hone.decide.gateway.opening import OpenedService, open_service, pages

SHOP = """
[service]
features = ["age", "country=de"]
actions = ["banner", "mail", "none"]

[policy]
kind = "linucb"
publish_every = 10

[join]
rule = "first"
"""


def opened(tmp_path: Path, text: str = SHOP, clock: ManualClock | None = None) -> OpenedService:
    path = tmp_path / "shop.toml"
    path.write_text(text)
    return open_service(path, clock=clock or ManualClock(1_700_000_000.0), tell=print)


def run(shop: OpenedService, rounds: int, tenant: str = "default", first: int = 0) -> list[str]:
    """Decide and reward: mails are worth 1."""
    versions = []
    for number in range(first, first + rounds):
        context = {"age": (number % 7) / 7, "country": "de" if number % 2 else "fr"}
        decided = shop.service.decide(f"u{number}", context, tenant=tenant, id=f"d{number}")
        shop.service.reward(decided.id, float(decided.action == "mail"), tenant=tenant)
        versions.append(decided.version)
    return versions


def test_a_service_learns_publishes_and_every_decision_can_be_replayed(tmp_path: Path) -> None:
    shop = opened(tmp_path)
    versions = run(shop, 60)
    assert len(set(versions)) == 6
    decisions = [one.record for one in pages(shop.log) if isinstance(one.record, Decision)]
    assert [one.executed for one in decisions[20:]].count(1) >= 36
    for one in decisions:
        choice = shop.service.replay(one)
        assert (choice.action, choice.logp) == (one.executed, one.executed_logp)
    view = shop.view(as_of_s=1_800_000_000.0)
    assert (len(view.table), view.counts.joined) == (60, 60)
    shop.close()


def test_a_restart_learns_the_same_and_remembers_answers(tmp_path: Path) -> None:
    shop = opened(tmp_path)
    run(shop, 60)
    before = shop.policies.tenants["default"].live.name
    again = shop.service.decide("u59", {"age": 59 % 7 / 7, "country": "de"}, id="d59")
    shop.close()
    shop = opened(tmp_path)
    assert shop.policies.tenants["default"].live.name == before
    assert shop.service.decide("u59", {"age": 59 % 7 / 7, "country": "de"}, id="d59") == again
    run(shop, 1, first=60)
    marks = shop.log.watermarks()
    assert [(mark.highest, mark.missing) for mark in marks] == [(121, 0)]
    decisions = [one.record for one in pages(shop.log) if isinstance(one.record, Decision)]
    choice = shop.service.replay(decisions[0])  # of a version that is on the shelf only
    assert choice.logp == decisions[0].executed_logp
    shop.close()


def test_tenants_learn_apart(tmp_path: Path) -> None:
    shop = opened(tmp_path, SHOP.replace("[service]", '[service]\ntenants = ["a", "b"]'))
    run(shop, 30, "a")
    first, second = (shop.policies.tenants[tenant] for tenant in ("a", "b"))
    assert first.live.name != second.live.name
    assert len(set(run(shop, 1, "b"))) == 1
    shop.close()


def test_some_actions_on_offer_are_drawn_from_the_renormalised_distribution(tmp_path: Path) -> None:
    shop = opened(tmp_path)
    run(shop, 60)
    drawn = [shop.service.decide(f"x{n}", {"age": 0.5, "country": "fr"}, ["none", "banner"]) for n in range(200)]
    assert {one.action for one in drawn} == {"none", "banner"}
    decisions = [one.record for one in pages(shop.log)][-200:]
    assert all(isinstance(one, Decision) and one.actions.names == ("none", "banner") for one in decisions)
    for one in decisions:
        assert isinstance(one, Decision)
        assert shop.service.replay(one).logp == one.executed_logp
    shop.close()


def test_actions_with_features_learn_for_actions_that_nobody_tried(tmp_path: Path) -> None:
    text = """
        [service]
        features = ["age"]
        action_features = ["price"]
        [policy]
        kind = "linucb"
        alpha = 0.1
        publish_every = 10
        [join]
        rule = "first"
    """
    shop = opened(tmp_path, text)
    draws = np.random.default_rng(100)
    for number in range(100):
        offer = [{"name": f"p{k}-{number}", "features": {"price": float(draws.random())}} for k in range(3)]
        decided = shop.service.decide(f"u{number}", {"age": 0.3}, offer)
        shop.service.reward(decided.id, offer[decided.index]["features"]["price"])
    offer = [{"name": name, "features": {"price": price}} for name, price in (("new", 0.9), ("other", 0.1))]
    chosen = [shop.service.decide(f"v{n}", {"age": 0.3}, offer).action for n in range(100)]
    assert chosen.count("new") > 90
    shop.close()


def test_a_folder_is_served_by_one_process(tmp_path: Path) -> None:
    shop = opened(tmp_path)
    with pytest.raises(ResourceError, match="service shop is served by another process"):
        opened(tmp_path)
    shop.close()
    opened(tmp_path).close()


def test_every_fault_of_the_file_is_told_at_once_with_its_line(tmp_path: Path) -> None:
    text = """
[service]
feature = ["age"]
actions = ["a", "a"]
[polcy]
kind = "uniform"
[log]
durable = "later"
"""
    with pytest.raises(ConfigError) as caught:
        opened(tmp_path, text)
    messages = "\n".join(caught.value.messages)
    for part in (
        "shop.toml:3",
        "did you mean service.features",
        "did you mean policy",
        "shop.toml:8",
        "names 'a' twice",
    ):
        assert part in messages, messages


def test_tokens_that_are_not_set_are_all_named(tmp_path: Path) -> None:
    clients = "".join(
        f'[[service.clients]]\nname = "{name}"\ntoken_env = "NO_SUCH_{name}"\n' for name in ("ONE", "TWO")
    )
    with pytest.raises(ConfigError) as caught:
        opened(tmp_path, clients)
    assert [line for line in ("NO_SUCH_ONE", "NO_SUCH_TWO") if line in str(caught.value)] == [
        "NO_SUCH_ONE",
        "NO_SUCH_TWO",
    ]
    assert "shop.toml:3" in str(caught.value)


def test_records_behind_the_answers_are_counted_when_a_kill_loses_them(tmp_path: Path, capsys) -> None:
    text = SHOP + '[log]\ndurable = "after"\n'
    shop = opened(tmp_path, text)
    run(shop, 20)
    shop.close()
    shop = opened(tmp_path, text)
    for _ in range(3):
        shop.service.parts.numbers.take("default")  # given out, and in no log when the process is killed
    shop.close()
    shop = opened(tmp_path, text)
    assert "3 records waited when the process was killed" in capsys.readouterr().out
    run(shop, 1, first=20)
    shop.close()
    shop = opened(tmp_path, text)
    assert [(mark.highest, mark.missing) for mark in shop.log.watermarks()] == [(44, 3)]
    shop.close()


def test_drift_is_watched_told_and_queued_for_retraining(tmp_path: Path) -> None:
    text = SHOP.replace("publish_every = 10", "publish_every = 1000") + (
        '[monitor]\narl = 2000\nsettle = 50\nfeature_window = 0\nact = "retrain"\n'
        '[monitor.retrain]\nconfig = "run.toml"\nminimum_rewards = 40\n'
    )
    clock, lines = ManualClock(1_700_000_000.0), list[str]()
    path = tmp_path / "shop.toml"
    path.write_text(text)
    shop = open_service(path, clock=clock, tell=lines.append)
    for number in range(900):
        clock.advance(1.0)
        decided = shop.decide(f"u{number}", {"age": 0.5, "country": "de"})
        shop.reward(decided.id, float(number > 450))
    told = [line for line in lines if '"fault": "drift"' in line]
    assert told and "retrain" in told[0]
    assert (tmp_path / "shop" / "alarms.jsonl").is_file()
    shop.close()


def test_below_the_confidence_the_safe_action_is_taken_with_its_own_probability(tmp_path: Path) -> None:
    text = """
    [service]
    features = ["age"]
    actions = ["a", "b", "c"]
    safe_action = "b"
    min_confidence = 0.5

    [policy]
    kind = "boltzmann"
    publish_every = 1
    temperature = 0.05

    [join]
    rule = "first"
    """
    path = tmp_path / "s.toml"
    path.write_text(text, encoding="utf-8")
    with serve_decisions(path) as service:
        first = service.decide("u", {"age": 1.0})  # nothing is learnt: each action has a third
        assert (first.action, first.logp, first.intervention) == ("b", 0.0, "fallback: low confidence")
        assert service.replay(next(one.record for one in pages(service.log))).intervention == first.intervention
        for number in range(30):
            service.reward(service.decide("u", {"age": 1.0}, ["a"], id=str(number)).id, 1.0)
        later = [service.decide("u", {"age": 1.0}) for _ in range(20)]
        assert {one.intervention for one in later} == {""} and [one.action for one in later].count("a") > 15
