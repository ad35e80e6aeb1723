"""Checkpoints of a service's learning: a restart from one is the restart from the whole log, to the bit."""

import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from manual_clock import ManualClock

from hone.core.state import substate
from hone.decide.gateway.online_policies import TenantLearning
from hone.decide.gateway.opening import OpenedService, open_service
from hone.decide.gateway.saved_learning import EVERY_S

SHOP = """
[service]
features = ["age"]
actions = ["a", "b", "c"]
tenants = ["north", "south"]
remember = 20

[policy]
kind = "linucb"
publish_every = 25

[join]
rule = "sum"
window_s = 30.0
"""


def opened(folder: Path, lines: list[str], text: str = SHOP, now_s: float = 1_700_000_000.0) -> OpenedService:
    (folder / "shop.toml").write_text(text)
    return open_service(folder / "shop.toml", clock=ManualClock(now_s), tell=lines.append)


def serve(shop: OpenedService, first: int, last: int) -> None:
    """Decisions of both tenants, one a second; rewards come twice, late, early, or not at all."""
    assert isinstance(shop.clock, ManualClock)
    for number in range(first, last):
        shop.clock.advance(1.0)
        tenant = "north" if number % 3 else "south"
        if number % 11 == 0:
            shop.reward(f"d{number}", 0.5, tenant=tenant)  # before its decision
        shop.decide(f"u{number}", [number % 7 / 7], tenant=tenant, id=f"d{number}")
        back = number - number % 5
        shop.reward(f"d{back}", float(number % 2), tenant="north" if back % 3 else "south")


def learnt(shop: OpenedService) -> list:
    """Everything that learners and joins hold, as bytes."""
    found: list = []
    for name, serving in shop.policies.tenants.items():
        one = serving.learning
        assert isinstance(one, TenantLearning)
        state = one.learner.state()
        arrays = {key: np.asarray(value).tobytes() for key, value in substate(state, "model").items()}
        opened_ids = [(key, value) for key, value in one.joiner.open_values()]
        found.append((name, state["observed"], arrays, opened_ids, list(one.joiner.early_rewards()), one.joiner.counts,
                      serving.live.name, one.last and one.last[0].tobytes()))  # fmt: skip
    return found


def reads(shop: OpenedService) -> int:
    """Records that the restart learnt from."""
    return next(one for one in shop.service.parts.listeners if type(one).__name__ == "LearningCheckpoints").observed


def both_ways(tmp_path: Path, text: str = SHOP) -> tuple[list, list, int]:
    """What a restart from a checkpoint has, and one from the whole log; the records that the first one read."""
    shutil.copytree(tmp_path / "shop", tmp_path / "whole" / "shop", ignore=shutil.ignore_patterns("learned", "lock"))
    results: list[tuple[list, int]] = []
    lines: list[str] = []
    for folder in (tmp_path, tmp_path / "whole"):
        shop = opened(folder, lines, text, 1_700_001_000.0)
        results.append((learnt(shop), reads(shop)))
        shop.close()
    assert not lines
    return results[0][0], results[1][0], results[0][1]


@pytest.mark.parametrize("rule", ["sum", "first"])
def test_a_restart_from_a_checkpoint_is_one_from_the_whole_log_to_the_bit(tmp_path: Path, rule: str) -> None:
    lines: list[str] = []
    text = SHOP.replace('"sum"', f'"{rule}"')
    shop = opened(tmp_path, lines, text)
    serve(shop, 0, 70)
    shop.clock.advance(EVERY_S)  # type: ignore[attr-defined]
    serve(shop, 70, 120)  # a tick saves at the first of them
    before = learnt(shop)
    shutil.copytree(tmp_path / "shop", tmp_path / "killed" / "shop", ignore=shutil.ignore_patterns("lock"))
    shop.close()
    saved, whole, count = both_ways(tmp_path / "killed", text)  # nothing was saved at the end
    assert saved == whole
    assert [one[:6] for one in saved] == [one[:6] for one in before]
    assert 0 < count < 200


def test_a_service_that_was_stopped_starts_without_learning_again(tmp_path: Path) -> None:
    lines: list[str] = []
    for first in (0, 60, 120):
        shop = opened(tmp_path, lines, now_s=1_700_000_000.0 + 10 * first)
        assert reads(shop) == 0
        serve(shop, first, first + 60)
        answer = shop.decide("u", [0.5], tenant="north", id=f"again-{first}")
        shop.close()
        shop = opened(tmp_path, lines, now_s=1_700_000_100.0 + 10 * first)
        assert shop.decide("u", [0.5], tenant="north", id=f"again-{first}") == answer
        shop.close()
    saved, whole, _ = both_ways(tmp_path)
    assert saved == whole
    assert not lines
    assert len(list((tmp_path / "shop" / "learned").iterdir())) == 2


def test_a_kill_while_a_checkpoint_is_written_leaves_the_one_before(tmp_path: Path) -> None:
    lines: list[str] = []
    shop = opened(tmp_path, lines)
    serve(shop, 0, 40)
    shop.close()
    child = os.fork()
    if child == 0:
        os.environ["HONE_FAILPOINT"] = "learning.before_rename:kill"
        shop = opened(tmp_path, lines, now_s=1_700_000_040.0)
        serve(shop, 40, 60)
        shop.close()
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    saved, whole, count = both_ways(tmp_path)
    assert saved == whole
    assert count == 20 * 2 + 2


def test_a_checkpoint_counts_for_nothing_after_an_erasure_another_config_or_damage(tmp_path: Path) -> None:
    lines: list[str] = []
    shop = opened(tmp_path, lines)
    serve(shop, 0, 40)
    shop.close()
    learned = tmp_path / "shop" / "learned"
    shop = opened(tmp_path, lines, SHOP.replace('"linucb"', '"linucb"\nnoise = 0.5'))
    assert reads(shop) > 80
    shop.log.erase("north", "u1")
    shop.close()
    shop = opened(tmp_path, lines, SHOP.replace('"linucb"', '"linucb"\nnoise = 0.5'))
    assert reads(shop) > 80
    shop.close()
    assert not lines
    for folder in learned.iterdir():
        (folder / "state.safetensors").write_bytes(b"torn")
    shop = opened(tmp_path, lines, SHOP.replace('"linucb"', '"linucb"\nnoise = 0.5'))
    assert reads(shop) > 80
    assert "learning_unreadable" in lines[0]
    shop.close()
