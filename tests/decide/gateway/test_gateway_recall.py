"""Drift that comes back: the service's monitor makes an older version live again, and the service serves it."""

from pathlib import Path

from manual_clock import ManualClock

from hone.core.random import key
from hone.decide.bandits.greedy import EpsilonGreedyPolicy
from hone.decide.bandits.models import BetaBernoulliPosterior
from hone.decide.bandits.saving import save_policy
from hone.decide.gateway.opening import OpenedService, open_service
from hone.decide.registry import StageMove, VersionOrigin, VersionRegistry, open_registry

SHOP = """
[service]
actions = ["a", "b"]
deadline_s = 60.0  # busy machines wake threads late

[policy]
kind = "uniform"

[monitor]
act = "recall"
arl = 2000
settle = 50
feature_window = 0
"""


def season(folder: Path, registry: VersionRegistry, name: str, rates: list[float], at_s: float) -> str:
    """A version that believes in `rates`, made live."""
    belief = BetaBernoulliPosterior(2)
    belief.alpha[:], belief.beta[:] = [100 * one for one in rates], [100 * (1 - one) for one in rates]
    save_policy(EpsilonGreedyPolicy(belief, 0.6), folder / name)
    version = registry.add(folder / name, VersionOrigin(), at_s=at_s, made_by="a test").id
    registry.move("shop", StageMove(version=version, stage="live"), at_s=at_s, made_by="a test")
    return version


def serve(shop: OpenedService, count: int, rates: list[float], first: int) -> set[str]:
    """Decisions with their rewards -> the versions that made the last fifty."""
    versions: list[str] = []
    for number in range(first, first + count):
        assert isinstance(shop.clock, ManualClock)
        shop.clock.advance(0.1)
        decided = shop.decide(f"u{number}")
        shop.reward(decided.id, float(key(1, "visitor", number) % 1000 < 1000 * rates[decided.index]))
        versions.append(decided.version)
    return set(versions[-50:])


def test_a_season_that_comes_back_is_answered_by_the_version_that_knows_it(tmp_path: Path) -> None:
    summer, winter = [0.9, 0.1], [0.1, 0.9]
    registry = open_registry(tmp_path / "shop" / "registry", create=True)
    old = season(tmp_path, registry, "summer", summer, 1.0)
    new = season(tmp_path, registry, "winter", winter, 2.0)
    (tmp_path / "shop.toml").write_text(SHOP)
    lines: list[str] = []
    shop = open_service(tmp_path / "shop.toml", clock=ManualClock(1_700_000_000.0), tell=lines.append)
    assert serve(shop, 200, winter, 0) == {new}
    assert serve(shop, 250, summer, 200) == {old}
    assert registry.live("shop") == old
    assert [row.kind for row in registry.evidence(old)] == ["recall"]
    assert any('"act\\": \\"recall' in line for line in lines)
    assert (tmp_path / "shop" / "alarms.jsonl").is_file()
    assert serve(shop, 100, summer, 450) == {old}  # no second recall: the residual is near 0 again
    assert len(registry.moves("shop")) == 3
    shop.close()
