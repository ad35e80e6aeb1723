"""The rollout's life: stages in order, the way back for each reason, and a state that is always its journal's."""

import itertools
import math
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from rollout_shop import ListLog, Shop, add_versions, alike, decision, outcome, worse

from hone.core.decisions import Evidence
from hone.core.errors import ConfigError, DataError, ResourceError
from hone.decide.gateway.shipped_versions import RouterWatch, read_router
from hone.decide.registry import JournalEntry, StageMove, VersionRegistry
from hone.decide.rollout.controller import ROLLED_BACK
from hone.decide.rollout.driver import read_rollout, running_rollouts, state_from_json, transition_from_json
from hone.decide.rollout.plan import RolloutGuardrail
from hone.decide.rollout.router import end_position

STAGES = ["shadow", "10%", "50%", "100%"]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def transitions(shop: Shop) -> list[dict]:
    return [entry["transition"] for entry in shop.registry.entries("shop", "r1") if entry["kind"] == "transition"]


def test_a_version_as_good_as_the_live_one_climbs_the_ladder_and_becomes_live(shop: Shop) -> None:
    driver = shop.start()
    assert shop.run(driver, alike) == STAGES
    assert shop.registry.live("shop") == shop.new
    assert shop.registry.stage("shop", shop.old) == "retired"
    assert [(move["before"], move["after"]) for move in transitions(shop)] == list(
        itertools.pairwise(["candidate", *STAGES])
    )
    assert "units exposed at 50%, none of the guardrails is worse" in transitions(shop)[-1]["words"]
    assert [(move.after, move.replaced) for move in shop.registry.moves("shop")[1:]] == [
        ("shadow", ""), ("canary", ""), ("live", shop.old),
    ]  # fmt: skip
    (row,) = shop.registry.evidence(shop.new)
    assert (row.kind, row.verdict, row.made_by) == ("rollout", "ok", "rollout r1")
    assert row.count == driver.state.evidence.count >= 360
    assert driver.step() == []
    with pytest.raises(ConfigError, match="has ended at 100%"):
        driver.back("too late")


def test_a_worse_version_is_rolled_back_with_its_figures(shop: Shop) -> None:
    driver = shop.start()
    stages = shop.run(driver, worse)
    assert stages[-1] == ROLLED_BACK
    assert (shop.registry.live("shop"), shop.registry.stage("shop", shop.new)) == (shop.old, "retired")
    last = transitions(shop)[-1]
    assert last["cause"] == "guardrail"
    assert "reward is worse: 0." in last["words"]
    assert "limit 22.2" in last["words"]  # 1 / (0.05 * 0.9): a tenth of alpha is the sample ratio's
    (row,) = shop.registry.evidence(shop.new)
    assert (row.verdict, row.value < 0) == ("refuse", True)
    assert {read_router(shop.registry, "shop", "shop").route("t", f"u{k}").version for k in range(99)} == {shop.old}


def test_costs_are_better_low_and_a_tolerance_is_accepted(shop: Shop) -> None:
    costs = RolloutGuardrail(higher_is_better=False)
    assert shop.run(shop.start(guardrails=(costs,)), worse)[-1] == "100%"  # fewer rewards are lower costs
    other = Shop(shop.folder / "other")
    generous = RolloutGuardrail(tolerance=0.9)
    assert other.run(other.start(guardrails=(generous,)), worse)[-1] == "100%"


def test_a_person_takes_it_back_and_a_driver_elsewhere_notices(shop: Shop) -> None:
    driver = shop.start()
    driver.step()
    shop.serve(100, alike)
    assert not driver.behind()
    shop.resume().back("the support line rings")
    assert driver.behind()
    shop.serve(400, alike)
    with pytest.raises(ResourceError, match="another controller moved it"):
        driver.step()
    recorded = read_rollout(shop.registry, "shop", "r1")
    assert recorded.state.stage == ROLLED_BACK
    assert transitions(shop)[-1]["cause"] == "person"
    assert shop.resume().step() == []


def test_unequal_slices_stop_the_rollout(shop: Shop) -> None:
    driver = shop.start(requests=10_000)
    shop.run(driver, alike, most=3)
    # a fault of the logging: half of the control slice's decisions are lost
    labels = ["r1:canary:50%", "r1:canary:50%", "r1:control:50%"]
    base, at_s = shop.served, shop.clock.now_s()
    shop.log.append([decision(base + k, f"x{k}", at_s, route=labels[k % 3]) for k in range(900)])
    shop.clock.advance(100)
    assert driver.step()[-1].cause == "sample_ratio"
    assert "are no equal shares" in transitions(shop)[-1]["words"]


def test_units_seen_in_both_arms_are_counted_and_stop_the_rollout_when_they_are_many(shop: Shop) -> None:
    driver = shop.start(requests=10_000)
    shop.run(driver, alike, most=2)
    base, at_s = shop.served, shop.clock.now_s()

    def seen(unit: str, number: int, arm: str) -> None:
        shop.log.append([decision(base + number, unit, at_s, route=f"r1:{arm}:10%")])

    for k in range(10):
        seen(f"x{k}", 4 * k, "canary")
        seen(f"x{k}", 4 * k + 1, "control")
        seen(f"x{k}", 4 * k + 2, "canary")
        seen(f"y{k}", 4 * k + 3, "control")
    shop.clock.advance(100)
    driver.step()
    assert driver.state.evidence.both_arms == 10
    counted = [label.split(":")[1] for label in shop.labels if ":10%" in label]
    assert driver.state.evidence.ratio.counts == (
        counted.count("control") + 10,
        counted.count("canary") + 10,
    )  # each once, in its first arm
    seen("z", 50, "canary")
    seen("z", 51, "control")
    assert driver.step()[-1].cause == "both_arms"


def test_a_changed_live_version_ends_the_comparison(shop: Shop) -> None:
    driver = shop.start()
    shop.run(driver, alike, most=3)
    (third,) = add_versions(shop.registry, shop.folder / "more", "third")
    assert driver.step()[-1].cause == "control_changed"
    assert shop.registry.live("shop") == third


def test_missing_evidence_is_listed_before_anything_begins(shop: Shop) -> None:
    with pytest.raises(ConfigError) as fault:
        shop.start(needs=("offline", "load"), version=shop.old)
    assert fault.value.exit_code == 2
    assert fault.value.messages[:2] == ("evidence offline: none", "evidence load: none")
    assert "is live already" in str(fault.value)
    assert shop.registry.rollouts("shop") == []
    for kind in ("offline", "load"):
        row = Evidence(kind=kind, verdict="ok", words="fine", made_by="a job", at_s=1.0)
        shop.registry.add_evidence(shop.new, row)
    driver = shop.start(needs=("offline", "load"))
    shop.run(driver, alike, most=2)
    worse_now = Evidence(kind="load", verdict="refuse", words="too slow", made_by="a job", at_s=2.0)
    shop.registry.add_evidence(shop.new, worse_now)
    with pytest.raises(ConfigError, match=r"load: refuse \(too slow; by a job\)"):
        shop.run(driver, alike)
    assert read_rollout(shop.registry, "shop", "r1").state.stage in ("shadow", "50%")


def test_two_rollouts_of_a_layer_need_disjoint_parts_and_share_no_unit(shop: Shop) -> None:
    (third,) = add_versions(shop.registry, shop.folder / "more", "third")[-1:]
    shop.registry.move("shop", StageMove(version=shop.old, stage="live"), at_s=1.0, made_by="a test")
    first = shop.start(last=500_000, shadow_requests=0)
    with pytest.raises(ConfigError, match="'r1' is at candidate in the same part of the layer"):
        shop.start(name="r2", version=third, first=400_000)
    with pytest.raises(ConfigError, match="has a rollout 'r1' already"):
        shop.start(first=500_000)
    shop.registry.move("shop", StageMove(version=third, stage="candidate"), at_s=1.0, made_by="a test")
    second = shop.start(name="r2", version=third, first=500_000, shadow_requests=0)
    first.step()
    second.step()
    router = read_router(shop.registry, "shop", "shop")
    labels = {router.route("t", f"u{k}").label for k in range(3000)}
    assert labels == {"", "r1:canary:10%", "r1:control:10%", "r2:canary:10%", "r2:control:10%"}
    assert [one.plan.name for one in running_rollouts(shop.registry, "shop")] == ["r1", "r2"]


# --------------------------------------------------------------------------------------------- drills


class KilledError(BaseException):
    """The controller died."""


@dataclass(frozen=True)
class DyingRegistry(VersionRegistry):
    """Registry whose user dies before or after an entry."""

    seq: int
    after: bool

    def append(self, entry: JournalEntry, *, at_s: float, made_by: str) -> None:
        if entry.seq == self.seq and not self.after:
            raise KilledError
        super().append(entry, at_s=at_s, made_by=made_by)
        if entry.seq == self.seq:
            raise KilledError


@pytest.mark.parametrize("rates", [alike, worse])
def test_killed_at_each_entry_the_controller_goes_on_with_the_state_of_its_log(tmp_path: Path, rates) -> None:
    whole = Shop(tmp_path / "whole")
    undisturbed = whole.start(requests=80)
    whole.run(undisturbed, rates, each=120)
    expected = whole.registry.entries("shop", "r1")
    for at, after in itertools.product(range(1, len(expected)), (False, True)):
        shop = Shop(tmp_path / f"{at}{after}")
        driver = shop.start(requests=80)
        driver.tools = replace(driver.tools, registry=DyingRegistry(shop.registry.folder, at, after))
        with pytest.raises(KilledError):
            shop.run(driver, rates, each=120)
        again = shop.resume()
        assert again.seq == at + after
        last = shop.registry.entries("shop", "r1")[-1]
        assert again.state == state_from_json(last, "x")
        assert shop.registry.live("shop") == (shop.new if again.state.stage == "100%" else shop.old)
        shop.run(again, rates, each=120)
        assert shop.registry.entries("shop", "r1") == expected
        assert again.state == undisturbed.state


def test_the_journal_replays_to_the_same_state(shop: Shop) -> None:
    driver = shop.start()
    shop.run(driver, worse)
    entries = shop.registry.entries("shop", "r1")
    assert state_from_json(entries[-1], "x") == driver.state  # floats to the bit
    assert transition_from_json(entries[0]) is None
    with pytest.raises(DataError, match="the journal has a damaged state"):
        state_from_json({"state": {"stage": 1}}, "the journal")
    with pytest.raises(DataError, match="has no rollout 'r9'; known: r1"):
        read_rollout(shop.registry, "shop", "r9")


def test_an_unreachable_registry_leaves_the_last_good_router(shop: Shop) -> None:
    driver = shop.start()
    shop.run(driver, alike, most=3)
    watch = RouterWatch(shop.registry, "shop", "shop", shop.clock)
    before = watch.router()
    assert before.live.version == shop.old
    assert before.ranges
    gone = shop.registry.database.rename(shop.folder / "moved away")
    shop.clock.advance(2)
    assert watch.router() is before
    assert (watch.failures, "no registry at" in watch.fault) == (1, True)
    assert watch.router() is before
    assert watch.failures == 1  # not asked again within the second
    gone.rename(shop.registry.database)
    driver.back("enough")
    shop.clock.advance(2)
    assert watch.router().ranges == ()
    assert (watch.failures, watch.fault) == (0, "")


@pytest.mark.parametrize("skew_s", [-3600.0, 3600.0])
def test_gateways_whose_clocks_differ_cause_no_alarm(shop: Shop, skew_s: float) -> None:
    """Every other unit is served by a gateway whose clock is an hour off."""
    driver = shop.start(requests=10_000)
    shop.run(driver, alike, most=3)
    router = read_router(shop.registry, "shop", "shop")
    base = shop.served
    for number in range(base, base + 3000):
        shop.clock.advance(1)
        at_s = shop.clock.now_s() + (skew_s if number % 2 else 0)
        route = router.route("t", f"u{number}")
        shop.log.append([decision(number, f"u{number}", at_s, route=route.label)])
        if number % 3:
            shop.log.append([outcome(number, 1.0, at_s + 1)])
        if number % 500 == 0:
            driver.step()
    driver.step()
    exposed = driver.state.evidence.count
    shop.clock.advance(7200)
    driver.step()
    assert not driver.state.finished
    assert driver.state.evidence.count >= exposed > 100
    assert driver.state.evidence.peak < math.log(22)
    assert len(driver.feed._open) == 0


def test_a_clock_that_jumps_back_loses_no_unit(shop: Shop) -> None:
    driver = shop.start(requests=10_000)
    shop.run(driver, alike, most=4)
    shop.serve(300, alike)
    driver.step()
    shop.clock.advance(-3600)
    shop.serve(300, alike)
    driver.step()
    again = shop.resume()
    assert again.feed._open == driver.feed._open
    shop.clock.advance(7200)
    driver.step()
    counted = [label for label in shop.labels if label.endswith(":10%")]
    assert driver.state.evidence.count == len(counted) > 100


def test_the_end_of_a_log_is_found_by_bisection() -> None:
    log = ListLog()
    assert end_position(log) == 0
    for count in (1, 1, 5, 90):
        log.append([decision(k, "u", 0.0) for k in range(count)])
        assert end_position(log) == log.records[-1].position
