"""A controller on a real log, killed by SIGKILL at random moments: its state is always that of its journal."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
from manual_clock import ManualClock
from rollout_shop import Shop, alike, worse

from hone.decide.log.opening import open_decision_log
from hone.decide.rollout.controller import ROLLED_BACK, version_stage
from hone.decide.rollout.driver import read_rollout, state_from_json


def killed_after(seconds: float, shop: Shop, rates) -> None:
    """Run the rollout in a child, and kill it."""
    child = os.fork()
    if child == 0:
        shop.log = open_decision_log(shop.folder / "decisions.db")
        shop.run(shop.start(requests=100), rates, each=30)
        time.sleep(60)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


@pytest.mark.parametrize("kills", [3, pytest.param(100, marks=pytest.mark.slow)])
def test_killed_at_random_moments(tmp_path: Path, kills: int) -> None:
    moments = random.Random(100)
    for kill in range(kills):
        shop, rates = Shop(tmp_path / str(kill)), (alike, worse)[kill % 2]
        killed_after(moments.uniform(0.02, 0.8), shop, rates)
        shop.log = open_decision_log(shop.folder / "decisions.db")
        shop.clock = ManualClock(1e6)
        shop.served = 100_000  # units that nobody has seen
        if not shop.registry.rollouts("shop"):
            continue  # killed before it began: nothing is half-done
        recorded = read_rollout(shop.registry, "shop", "r1")
        assert shop.registry.stage("shop", shop.new) == version_stage(recorded.state.stage)
        again = shop.resume()
        assert again.state == state_from_json(shop.registry.entries("shop", "r1")[-1], "x")
        shop.run(again, rates)
        assert again.state.stage == ("100%" if rates is alike else ROLLED_BACK)
        assert shop.registry.live("shop") == (shop.new if rates is alike else shop.old)
        assert again.state.evidence.both_arms == 0
        shop.log.close()
