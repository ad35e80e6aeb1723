"""Memory of a service that publishes versions for as long as it runs."""

import gc
import sys
from pathlib import Path

import pytest
from manual_clock import ManualClock

from hone.decide.gateway.opening import OpenedService, open_service
from hone.decide.log import relational as shared_parts

SHOP = """
[service]
features = ["age"]
actions = ["a", "b", "c"]
remember = 20

[policy]
kind = "linucb"
publish_every = 1

[join]
rule = "first"
"""


def decide(shop: OpenedService, first: int, last: int) -> None:
    for number in range(first, last):
        decided = shop.decide(f"u{number}", [number % 7 / 7])
        shop.reward(decided.id, float(decided.index == 1))


def test_memory_does_not_grow_with_the_versions_that_were_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_parts, "_CACHED", 32)  # so that it is full soon
    (tmp_path / "shop.toml").write_text(SHOP)
    shop = open_service(tmp_path / "shop.toml", clock=ManualClock(1_700_000_000.0), tell=print)
    decide(shop, 0, 200)
    gc.collect()
    before = sys.getallocatedblocks()
    decide(shop, 200, 500)
    gc.collect()
    grown = sys.getallocatedblocks() - before
    shop.close()
    assert grown < 700, "a version leaves a trace in memory"  # its labels alone are three blocks
