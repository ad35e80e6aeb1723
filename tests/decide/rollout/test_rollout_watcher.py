"""Watchers of a registry's rollouts: one leads, another goes on when it stops or dies."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rollout_shop import Shop, alike, worse

from hone.core.decisions import Choice, Evidence
from hone.decide.rollout.driver import read_rollout
from hone.decide.rollout.watcher import LEASES, RolloutWatcher

EVERY_S = 60.0


def watcher(shop: Shop, holder: str, told: list[str] | None = None) -> RolloutWatcher:
    lines: list[str] = [] if told is None else told
    return RolloutWatcher(
        tools=shop.tools(), service="shop", holder=holder, every_s=EVERY_S,
        tell=lambda code, words: lines.append(f"{code}: {words}"),
    )  # fmt: skip


def watch(shop: Shop, one: RolloutWatcher, rates=alike, most: int = 40) -> list[str]:
    """Serve and look until the rollout ends -> the stages that it came to."""
    stages: list[str] = []
    for _ in range(most):
        stages += [transition.after for transition in one.look()]
        if read_rollout(shop.registry, "shop", "r1").state.finished:
            break
        shop.serve(100, rates)
    return stages


def test_a_watcher_brings_an_equal_version_to_the_end_and_a_worse_one_back(tmp_path: Path) -> None:
    for name, rates, end in (("good", alike, "100%"), ("bad", worse, "rolled_back")):
        shop = Shop(tmp_path / name)
        shop.start()
        told: list[str] = []
        assert watch(shop, watcher(shop, "a", told), rates)[-1] == end
        assert told[0] == "rollout_watch: rollouts of shop are watched by this process"
        assert f"-> {end}: " in told[-1]


def test_one_of_two_watchers_leads_and_the_other_goes_on_when_it_stops_looking(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.start()
    told: list[str] = []
    first, second = watcher(shop, "a"), watcher(shop, "b", told)
    assert [one.after for one in first.look()] == ["shadow"]
    shop.serve(100, alike)
    assert second.look() == []
    assert told == ["rollout_watch: rollouts of shop are watched by another process, a"]
    shop.clock.advance(LEASES * EVERY_S)
    assert [one.after for one in second.look()] == ["10%"]
    shop.serve(100, alike)
    assert first.look() == []  # it comes back, and finds that another one leads
    second.stop()
    shop.serve(100, alike)
    first.look()
    assert first.leading


def test_a_leader_that_is_killed_inside_a_move_leaves_the_journal_to_the_next(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.start()
    child = os.fork()
    if child == 0:  # the leader; dies between the entry and its commit
        os.environ["HONE_FAILPOINT"] = "registry.before_commit:kill"
        watcher(shop, "leader").look()
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert read_rollout(shop.registry, "shop", "r1").state.stage == "candidate"
    second = watcher(shop, "second")
    assert second.look() == []
    shop.clock.advance(LEASES * EVERY_S + 1.0)
    assert watch(shop, second) == ["shadow", "10%", "50%", "100%"]
    assert shop.registry.live("shop") == shop.new


def test_a_rollout_that_misses_evidence_stays_is_told_once_and_goes_on_with_it(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.registry.add_evidence(shop.new, evidence("ok"))
    shop.start(needs=("offline",))
    shop.registry.add_evidence(shop.new, evidence("weak"))
    told: list[str] = []
    one = watcher(shop, "a", told)
    assert watch(shop, one, most=4) == ["shadow"]
    assert [line for line in told if "rollout_stays" in line] == [told[-1]]
    assert "evidence offline: weak" in told[-1]
    shop.registry.add_evidence(shop.new, evidence("ok"))
    assert watch(shop, one) == ["10%", "50%", "100%"]


def evidence(verdict) -> Evidence:
    return Evidence(kind="offline", verdict=verdict, words="by a test", made_by="a test", at_s=0.0)


def test_a_lease_is_extended_by_its_holder_and_ended_by_nobody_else(tmp_path: Path) -> None:
    registry = Shop(tmp_path).registry
    assert registry.take_lease("w", "a", now_s=0.0, lease_s=10.0) == "a"
    assert registry.take_lease("w", "b", now_s=10.0, lease_s=10.0) == "a"
    assert registry.take_lease("w", "a", now_s=10.0, lease_s=10.0) == "a"
    registry.give_lease_back("w", "b")
    assert registry.take_lease("w", "b", now_s=20.0, lease_s=10.0) == "a"
    assert registry.take_lease("v", "b", now_s=20.0, lease_s=10.0) == "b"
    registry.give_lease_back("w", "a")
    assert registry.take_lease("w", "b", now_s=20.0, lease_s=10.0) == "b"


class FailingPolicy:
    """A version that cannot decide."""

    def logp(self, context, actions):
        raise RuntimeError("no model")

    def logp_rows(self, contexts, actions):
        raise RuntimeError("no model")

    def act(self, context, actions, draw_key) -> Choice:
        raise RuntimeError("no model")


class SurePolicy(FailingPolicy):
    """A version that always takes one action: this log has no other."""

    def __init__(self, logp: list[float]) -> None:
        self._logp = np.array(logp)

    def logp(self, context, actions):
        return self._logp

    def logp_rows(self, contexts, actions):
        return np.tile(self._logp, (len(contexts), 1))


@pytest.mark.parametrize(
    ("policy", "stages", "verdict"),
    [
        (FailingPolicy(), ["shadow", "rolled_back"], "refuse"),
        (SurePolicy([-np.inf, 0.0]), ["shadow", "10%", "50%", "100%"], "weak"),
    ],
)
def test_a_version_is_scored_by_its_shadow_and_goes_back_only_if_it_cannot_decide(
    tmp_path: Path, policy: FailingPolicy, stages: list[str], verdict: str
) -> None:
    shop = Shop(tmp_path)
    shop.start()
    one = watcher(shop, "a")
    one.tools = replace(one.tools, open_policy=lambda version: policy)
    assert watch(shop, one) == stages
    rows = [row for row in shop.registry.evidence(shop.new) if row.kind == "shadow"]
    assert [row.verdict for row in rows] == [verdict]
