"""Versions of the registry that a service serves: brought live, taken back, damaged."""

from pathlib import Path

import pytest
from manual_clock import ManualClock

from hone.core.decisions import Decision
from hone.decide.bandits.greedy import EpsilonGreedyPolicy
from hone.decide.bandits.models import BetaBernoulliPosterior
from hone.decide.bandits.saving import save_policy
from hone.decide.gateway.opening import OpenedService, open_service, pages
from hone.decide.registry import StageMove, VersionOrigin, VersionRegistry, open_registry

SHOP = """
[service]
actions = ["a", "b", "c"]

[policy]
kind = "linucb"
"""


@pytest.fixture
def registry(tmp_path: Path) -> VersionRegistry:
    save_policy(EpsilonGreedyPolicy(BetaBernoulliPosterior(3), 0.3), tmp_path / "policy")
    return open_registry(tmp_path / "shop" / "registry", create=True)


def opened(tmp_path: Path, lines: list[str]) -> OpenedService:
    (tmp_path / "shop.toml").write_text(SHOP, encoding="utf-8")
    return open_service(tmp_path / "shop.toml", clock=ManualClock(1_700_000_000.0), tell=lines.append)


def bring_live(registry: VersionRegistry, policy: Path) -> str:
    version = registry.add(policy, VersionOrigin(), at_s=1.0, made_by="a test").id
    registry.move("shop", StageMove(version=version, stage="live"), at_s=2.0, made_by="a test")
    return version


def wait(shop: OpenedService) -> None:
    """Let the service look at the registry again."""
    assert isinstance(shop.clock, ManualClock)
    shop.clock.advance(2.0)
    shop.service.tick()


def test_a_live_version_of_the_registry_answers_and_its_decisions_replay(tmp_path: Path, registry) -> None:
    shop = opened(tmp_path, [])
    own = shop.decide("u").version
    version = bring_live(registry, tmp_path / "policy")
    wait(shop)
    drawn = [shop.decide(f"u{number}") for number in range(50)]
    assert {one.version for one in drawn} == {version} != {own}
    assert min(one.probability for one in drawn) > 0.099  # the floor of the shipped policy, 0.3 over three actions
    for record in (logged.record for logged in pages(shop.log)):
        assert isinstance(record, Decision)
        choice = shop.replay(record)
        assert (choice.action, choice.logp) == (record.executed, record.executed_logp)
    shop.close()


def test_a_damaged_version_is_told_and_the_own_policy_answers(tmp_path: Path, registry) -> None:
    version = bring_live(registry, tmp_path / "policy")
    (registry.folder / "versions" / version / "policy.json").write_text("{", encoding="utf-8")
    lines: list[str] = []
    shop = opened(tmp_path, lines)
    assert shop.decide("u").version == shop.policies.tenants["default"].live.name
    assert any("version_unreadable" in line and version in line for line in lines)
    shop.close()


def test_a_registry_that_is_gone_leaves_the_last_good_assignment(tmp_path: Path, registry) -> None:
    version = bring_live(registry, tmp_path / "policy")
    lines: list[str] = []
    shop = opened(tmp_path, lines)
    registry.database.rename(tmp_path / "elsewhere")
    wait(shop)
    assert shop.decide("u").version == version
    assert any("registry_unreachable" in line for line in lines)
    shop.close()
