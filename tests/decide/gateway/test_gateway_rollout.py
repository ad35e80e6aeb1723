"""A rollout that the service watches itself: shadow, canary, control and the way back, through the gateway."""

from pathlib import Path

import pytest
from manual_clock import ManualClock

from hone.core.decisions import Decision
from hone.core.random import key
from hone.decide.bandits.greedy import EpsilonGreedyPolicy
from hone.decide.bandits.models import BetaBernoulliPosterior
from hone.decide.bandits.saving import save_policy
from hone.decide.gateway.opening import OpenedService, open_service, pages
from hone.decide.gateway.shipping import open_rollouts
from hone.decide.log.opening import open_decision_log
from hone.decide.log.protocol import DecisionLog
from hone.decide.registry import StageMove
from hone.decide.rollout.router import split_label

SHOP = """
[service]
actions = ["a", "b"]
deadline_s = 60.0  # busy machines wake threads late

[policy]
kind = "uniform"

[join]
window_s = 5.0
rule = "first"

[rollout]
stages = [0.5]
requests = 400
shadow_requests = 500
look_every_s = 50.0
watch = true
"""


def write_policies(folder: Path) -> None:
    """An even one, one that prefers `b`, and one that prefers `a`."""
    for name, alpha in (("even", [1.0, 1.0]), ("b", [1.0, 9.0]), ("a", [9.0, 1.0])):
        belief = BetaBernoulliPosterior(2)
        belief.alpha[:], belief.beta[:] = alpha, [5.0, 5.0]
        save_policy(EpsilonGreedyPolicy(belief, 1.0 if name == "even" else 0.2), folder / name)


def serve(shop: OpenedService, count: int, first: int) -> None:
    """Visitors, ten a second: `b` is worth 1 in seven of ten, `a` in three."""
    for number in range(first, first + count):
        assert isinstance(shop.clock, ManualClock)
        shop.clock.advance(0.1)
        decided = shop.decide(f"u{number}")
        likes = (0.3, 0.7)[decided.index] > (key(1, "visitor", number) % 1000) / 1000
        shop.reward(decided.id, float(likes))


def look(shop: OpenedService) -> list[str]:
    assert shop.rollouts is not None
    assert isinstance(shop.clock, ManualClock)
    shop.rollouts.settle()
    shop.clock.advance(60.0)
    shop.service.tick()
    done = [one.after for one in shop.rollouts.settle()]
    shop.clock.advance(2.0)  # gateways read the journal once a second
    return done


@pytest.mark.parametrize(("better", "end"), [("b", "100%"), ("a", "rolled_back")])
def test_a_rollout_that_nobody_follows_ends_by_itself(tmp_path: Path, better: str, end: str) -> None:
    write_policies(tmp_path)
    file = tmp_path / "shop.toml"
    file.write_text(SHOP)
    clock, lines = ManualClock(1_700_000_000.0), list[str]()
    with open_rollouts(file, clock) as rollouts:
        old = rollouts.add(tmp_path / "even", "").id
        rollouts.registry.move("shop", StageMove(version=old, stage="live"), at_s=1.0, made_by="a test")
        new = rollouts.add(tmp_path / better, "").id
        rollouts.start(rollouts.plan(new))
        registry = rollouts.registry
    shop = open_service(file, clock=clock, tell=lines.append)
    assert look(shop) == ["shadow"]
    served = 0
    for _ in range(12):
        serve(shop, 300, served)
        served += 300
        look(shop)
        if registry.stage("shop", new) in ("live", "retired"):
            break
    serve(shop, 20, served)
    shop.close()
    assert any(f"-> {end}: " in line for line in lines), lines
    decisions = [one.record for one in pages(shop_log(file)) if isinstance(one.record, Decision)]
    versions = {arm: set[str]() for arm in ("live", "control", "canary", "")}
    stages: list[str] = []
    for one in decisions:
        _, arm, stage = split_label(one.route)
        versions[arm].add(one.version)
        stages += [stage] if stage not in stages else []
    assert versions["canary"] == {new}
    assert versions["control"] == {old}
    assert stages == ["shadow", "50%", ""]
    assert {one.version for one in decisions[-20:]} == {new if end == "100%" else old}
    (score,) = [row for row in registry.evidence(new) if row.kind == "shadow"]
    assert score.count == 500
    assert score.verdict == ("ok" if better == "b" else "weak")
    assert (score.value > 0.1) == (better == "b"), score
    # Which 500 were asked in the shadow depends on the machine's speed: a 95% interval may miss, twice its width not.
    assert abs(score.value - (0.16 if better == "b" else -0.16)) < score.high - score.low, score


def shop_log(file: Path) -> DecisionLog:
    return open_decision_log(file.with_suffix("") / "decisions.db")
