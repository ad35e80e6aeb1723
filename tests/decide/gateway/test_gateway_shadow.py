"""Versions in the shadow: asked after the answer, logged apart, never on an answer's path."""

import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from gateway_parts import OneChain, ServiceBox, SoftmaxPolicy, make_box, post
from manual_clock import ManualClock

from hone.core.decisions import Decision, Outcome, ShadowChoice, shadow_choice
from hone.decide.bandits.greedy import EpsilonGreedyPolicy
from hone.decide.bandits.models import BetaBernoulliPosterior
from hone.decide.bandits.saving import load_policy, save_policy
from hone.decide.gateway.fallback_chain import BATCH, MOST_WAIT_S, MOST_WAITING, ServingVersion, ShadowAsker
from hone.decide.gateway.http_app import GatewayRoutes, RequestBatcher
from hone.decide.gateway.opening import OpenedService, open_service, pages
from hone.decide.gateway.requests import RequestError
from hone.decide.gateway.shipping import open_rollouts
from hone.decide.joins.join import build_view
from hone.decide.registry import StageMove

CONTEXT = {"age": 0.5, "country": "de"}


@pytest.fixture(autouse=True)
def _patience(monkeypatch) -> None:
    """Busy machines wake threads late."""
    monkeypatch.setattr("hone.decide.gateway.fallback_chain.ASK_S", 60.0)


class StalledPolicy(SoftmaxPolicy):
    """Waits until it is let go."""

    def __init__(self) -> None:
        self.asked, self.free = threading.Event(), threading.Event()

    def act(self, context, actions, draw_key):
        self.asked.set()
        self.free.wait(300)
        return super().act(context, actions, draw_key)


class RaisingPolicy(SoftmaxPolicy):
    """Raises with another message each time."""

    def act(self, context, actions, draw_key):
        raise ValueError(f"no weights for {draw_key}")


class OddPolicy(SoftmaxPolicy):
    """Gives a choice whose log-probability is text."""

    def act(self, context, actions, draw_key):
        return replace(super().act(context, actions, draw_key), logp="likely")


def routed(*listeners) -> ServiceBox:
    """A service whose units are all in the shadow of a rollout."""
    box = make_box(listeners=listeners)
    assert isinstance(box.service.parts.policies, OneChain)
    box.service.parts.policies.route = "r1:control:shadow"
    return box


def shadowed(policy) -> tuple[ServiceBox, ShadowAsker]:
    """Such a service, with a version `v2` in the shadow."""
    version = ServingVersion(name="v2", policy=policy)
    asker = ShadowAsker(
        shadow_of=lambda decision: version,
        versions=lambda: ["v2"],
        clock=ManualClock(0.0),
        tell=lambda code, words: None,
    )
    box = routed(asker)
    asker.clock, asker.tell = box.clock, lambda code, words: box.service.parts.lines.fault(code, words, {})
    return box, asker


def test_a_shadow_sees_the_same_request_and_its_choice_is_logged_beside_the_decision() -> None:
    box, asker = shadowed(SoftmaxPolicy())
    decided = [box.service.decide(f"u{number}", CONTEXT) for number in range(BATCH + 3)]
    assert len(box.sink.records) == BATCH + 3  # nothing was asked on the way to an answer
    assert [asker.ask(box.service.log_shadows) for _ in range(3)] == [BATCH, 3, 0]
    choices = [record for record in box.sink.records if isinstance(record, Outcome)]
    assert [one.decision_id for one in choices] == [one.id for one in decided]
    for one, outcome in zip(decided, choices, strict=True):  # the same policy and key: the same draw
        assert shadow_choice(outcome) == ShadowChoice(version="v2", action=one.index, logp=one.logp)
    assert [record.seq for record in box.sink.records] == list(range(2 * BATCH + 6))
    view = build_view(box.sink.records, as_of_s=box.clock.now_s() + 1e6)
    assert (view.counts.joined, view.counts.other_kinds) == (0, BATCH + 3)
    assert asker.counts == {("v2", "logged"): BATCH + 3}


def test_a_stalling_shadow_changes_no_answers_time_or_bytes() -> None:
    policy = StalledPolicy()
    box, asker = shadowed(policy)
    plain = routed()
    app, bare = (
        GatewayRoutes(service=one.service, batcher=RequestBatcher(one.service, apart=False)).app()
        for one in (box, plain)
    )
    asker.start(box.service.log_shadows)
    count = 200
    batch = {"decisions": [{"unit": f"u{number}", "context": CONTEXT} for number in range(count)]}
    answers = [post(app, "/v1/decide", {"unit": "u", "context": CONTEXT})]
    assert policy.asked.wait(300)
    answers += [post(app, "/v1/decide/batch", batch) for _ in range(2)]
    assert not policy.free.is_set()  # every answer came while the shadow stalled
    expected = [post(bare, "/v1/decide", {"unit": "u", "context": CONTEXT})]
    expected += [post(bare, "/v1/decide/batch", batch) for _ in range(2)]
    assert answers == expected
    decisions = [record for record in box.sink.records if isinstance(record, Decision)]
    assert {one.latency_s for one in decisions} == {0.0}
    policy.free.set()
    asker.close()
    assert sum(asker.counts.values()) == 2 * count + 1


def test_a_full_queue_drops_and_the_end_drops_the_rest() -> None:
    box, asker = shadowed(SoftmaxPolicy())
    for number in range(MOST_WAITING + 2):
        box.service.decide(f"u{number}", CONTEXT)
    asker.close()
    assert asker.counts == {("v2", "full"): 2, ("v2", "stopped"): MOST_WAITING}
    assert box.faults() == ["shadow_dropped"] * 2


def test_late_failing_and_unlogged_shadows_are_counted_and_told() -> None:
    box, asker = shadowed(RaisingPolicy())
    box.service.decide("u", CONTEXT)
    box.clock.advance(MOST_WAIT_S + 1.0)
    box.service.decide("v", CONTEXT)
    assert asker.ask(box.service.log_shadows) == 2
    assert asker.counts == {("v2", "late"): 1, ("v2", "failed"): 1}
    box.service.tick()
    words = [json.loads(line)["message"] for line in box.lines]
    assert words[0] == "version v2 in the shadow did not see 1 requests: they waited for more than 5 s"
    assert words[1].startswith("version v2 in the shadow did not see 1 requests: exception: ValueError: no weights")
    box.service.tick()
    assert len(box.lines) == 2  # each is told once
    asker.close()


def test_an_odd_choice_is_a_failure_and_the_next_request_is_asked() -> None:
    box, asker = shadowed(OddPolicy())
    for unit in ("u", "v"):
        box.service.decide(unit, CONTEXT)
    assert asker.ask(box.service.log_shadows) == 2
    assert asker.counts == {("v2", "failed"): 2}
    asker.close()


def test_a_log_that_refuses_a_shadow_leaves_no_gap() -> None:
    box, asker = shadowed(SoftmaxPolicy())
    box.service.decide("u", CONTEXT)
    box.sink.broken = True
    asker.ask(box.service.log_shadows)
    box.sink.broken = False
    box.service.decide("v", CONTEXT)
    asker.ask(box.service.log_shadows)
    assert asker.counts == {("v2", "log"): 1, ("v2", "logged"): 1}
    assert [record.seq for record in box.sink.records] == [0, 1, 2]
    asker.close()


def test_nobody_else_may_write_a_shadows_choice() -> None:
    box, _ = shadowed(SoftmaxPolicy())
    with pytest.raises(RequestError, match="which the gateway logs itself") as caught:
        box.service.reward("d", 1.0, kind="shadow:v2:a")
    assert (caught.value.status, caught.value.code, caught.value.field) == (422, "reserved_kind", "kind")
    assert box.sink.records == []


SHOP = """
[service]
actions = ["a", "b"]
deadline_s = 60.0

[policy]
kind = "uniform"

[rollout]
stages = [0.5]
shadow_requests = 500
look_every_s = 50.0
watch = true
"""


def in_the_shadow(folder: Path) -> tuple[OpenedService, str]:
    """A service with a version that nobody is served by, and the version."""
    save_policy(EpsilonGreedyPolicy(BetaBernoulliPosterior(2), 0.3), folder / "new")
    save_policy(EpsilonGreedyPolicy(BetaBernoulliPosterior(2), 1.0), folder / "old")
    file, clock = folder / "shop.toml", ManualClock(1_700_000_000.0)
    file.write_text(SHOP, encoding="utf-8")
    with open_rollouts(file, clock) as rollouts:
        old = rollouts.add(folder / "old", "").id
        rollouts.registry.move("shop", StageMove(version=old, stage="live"), at_s=1.0, made_by="a test")
        new = rollouts.add(folder / "new", "").id
        rollouts.start(rollouts.plan(new))
    shop = open_service(file, clock=clock, tell=print)
    assert shop.rollouts is not None
    for _ in range(2):
        clock.advance(60.0)
        shop.service.tick()
        shop.rollouts.settle()
        clock.advance(2.0)
    shop.service.tick()
    return shop, new


def test_a_version_in_the_shadow_is_asked_live_and_a_restart_passes_its_choices_over(tmp_path: Path) -> None:
    shop, version = in_the_shadow(tmp_path)
    asked = [shop.decide(f"u{number}") for number in range(40)]
    assert {one.route.rpartition(":")[2] for one in asked} == {"shadow"}
    assert shop.shadows is not None
    until_s = time.monotonic() + 300.0
    while shop.shadows.counts[version, "logged"] < 40 and time.monotonic() < until_s:
        time.sleep(0.005)
    assert f'hone_shadow_total{{version="{version}",result="logged"}} 40' in shop.service.counters_text()
    records = [logged.record for logged in pages(shop.log)]
    found = {one.decision_id: shadow_choice(one) for one in records if isinstance(one, Outcome)}
    policy = load_policy(tmp_path / "new")
    for one in (record for record in records if isinstance(record, Decision)):
        choice = policy.act(one.context, one.actions, one.draw_key)
        assert found[one.id] == ShadowChoice(version=version, action=choice.action, logp=choice.logp)
        assert one.version != version
    shop.close()
    again = open_service(tmp_path / "shop.toml", clock=ManualClock(1_700_000_900.0), tell=print)
    assert {again.decide(f"u{number}", id=one.id) for number, one in enumerate(asked)} == set(asked)
    again.close()


def test_kinds_of_outcomes_are_read_back() -> None:
    choice = ShadowChoice(version="ab12", action=7, logp=-0.5)
    outcome = Outcome(decision_id="d", tenant="t", kind=choice.kind, value=-0.5, at_s=1.0, source="g", seq=0)
    assert shadow_choice(outcome) == choice
    for kind in ("shadow", "shadow:", "shadow:ab12", "shadow:ab12:b", "reward"):
        assert shadow_choice(replace(outcome, kind=kind)) is None
