"""The contract of outcomes: a declared range that refuses or clips, bounds by quantiles, and the count of each."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from decision_records import decision
from manual_clock import ManualClock

from hone.cli.main import main
from hone.core.errors import ConfigError
from hone.decide.gateway.log_learner import LogLearner
from hone.decide.gateway.online_policies import JoinedReward, RewardQuantiles
from hone.decide.gateway.opening import OpenedService, open_service
from hone.decide.gateway.requests import RequestError
from hone.decide.joins.view import JoinConfig

SHOP = """
[service]
features = ["age"]
actions = ["a", "b"]

[policy]
kind = "{kind}"
publish_every = 20
{policy}

[join]
rule = "{rule}"
window_s = 20
{join}
"""


def opened(
    tmp_path: Path, join: str = "", policy: str = "", rule: str = "first", kind: str = "linucb"
) -> OpenedService:
    (tmp_path / "shop.toml").write_text(SHOP.format(join=join, policy=policy, rule=rule, kind=kind))
    return open_service(tmp_path / "shop.toml", clock=ManualClock(1.7e9), tell=print)


def run(shop: OpenedService, first: int, last: int, wrong: float | None = None) -> float:
    """Rewards of 0 for `a` and 1 for `b`; the `wrong` one is told for the first `a` -> share of `b`."""
    assert isinstance(shop.clock, ManualClock)
    right = 0
    for number in range(first, last):
        shop.clock.advance(1.0)
        decided = shop.decide(f"u{number}", [number % 7 / 7], id=f"d{number}")
        right += decided.action == "b"
        value = float(decided.action == "b")
        if wrong is not None and decided.action == "a":
            value, wrong = wrong, None
        try:
            shop.reward(decided.id, value)
        except RequestError as refused:
            assert refused.code == "out_of_range"
    return right / (last - first)


def learner_of(shop: OpenedService) -> LogLearner:
    assert shop.service.parts.learner is not None
    return shop.service.parts.learner


RANGE = "low = 0.0\nhigh = 1.0\n"


@pytest.mark.parametrize(
    ("join", "policy", "rule", "kind"),
    [
        (RANGE, "", "first", "linucb"),
        (f'{RANGE}beyond = "clip"', "", "sum", "squarecb"),
        ("", "reward_quantiles = [0.05, 0.95]", "first", "linucb"),
        ("", "", "first", "linucb"),  # the fault that a contract prevents
        ("", "", "sum", "squarecb"),
    ],
)
def test_one_wrong_reward_turns_no_policy_that_has_a_contract(
    tmp_path: Path, join: str, policy: str, rule: str, kind: str
) -> None:
    shop = opened(tmp_path, join, policy, rule, kind)
    run(shop, 0, 150)
    share = run(shop, 150, 350, wrong=1e6)
    shop.close()
    assert (share > 0.75) == bool(join or policy), share


def test_a_refused_reward_is_named_counted_and_not_logged(tmp_path: Path) -> None:
    shop = opened(tmp_path, RANGE)
    decided = shop.decide("u", [0.5])
    for value in (1.0000001, -1e-9, 1e308):
        with pytest.raises(
            RequestError, match=r"is out of the range of rewards, 0 to 1 \(\[join\] low, high\)"
        ) as caught:
            shop.reward(decided.id, value)
        assert (caught.value.status, caught.value.field) == (422, "value")
    assert shop.log.counts().outcomes == 0
    for value in (0.0, 1.0):
        shop.reward(decided.id, value)
    shop.reward(decided.id, 1e6, kind="revenue")  # another kind has no range
    assert shop.log.counts().outcomes == 3
    shop.close()


def test_a_clipped_reward_is_logged_as_it_was_told_and_counted(tmp_path: Path) -> None:
    shop = opened(tmp_path, f'{RANGE}beyond = "clip"', rule="sum")
    decided = shop.decide("u", [0.5])
    for value in (1e6, -3.0, 0.25):
        assert shop.reward(decided.id, value).status == "joined"
    values = [one.record.value for one in shop.log.read() if hasattr(one.record, "value")]
    assert values == [1e6, -3.0, 0.25]
    assert learner_of(shop).clipped == 2
    assert "\nhone_learner_clipped 2\n" in shop.service.counters_text()
    view = shop.view(as_of_s=1.8e9)
    assert (view.table.reward.tolist(), view.counts.out_of_range, view.counts.outcomes) == ([1.25], 2, 3)
    shop.close()
    shop = opened(tmp_path, f'{RANGE}beyond = "clip"', rule="sum")
    assert learner_of(shop).clipped == 2
    shop.close()


def test_rewards_that_another_program_logged_beyond_the_range_are_left_out(tmp_path: Path) -> None:
    loose = opened(tmp_path)
    loose.reward(loose.decide("u", [0.5], id="d").id, 1e6)
    loose.close()
    shop = opened(tmp_path, RANGE)
    learning = shop.policies.tenants["default"].learning
    assert learning is not None
    assert (learning.learner.observed, learning.joiner.counts.refused) == (0, 1)
    view = shop.view(as_of_s=1.8e9)
    assert (view.table.reward.tolist(), view.counts.out_of_range) == ([0.0], 1)
    shop.close()


def clipped_by_hand(rewards: list[float], low: float, high: float) -> list[float]:
    """Each reward between the quantiles of the 1,000 before it; the first 100 between their own."""
    results: list[float] = []
    for number, reward in enumerate(rewards):
        seen = sorted(rewards[:100] if number < 100 else rewards[max(0, number - 1000) : number])
        bounds = seen[int(np.ceil(low * (len(seen) - 1)))], seen[int(high * (len(seen) - 1))]
        results.append(min(max(reward, bounds[0]), bounds[1]))
    return results


def test_rewards_count_within_the_quantiles_of_the_latest_ones() -> None:
    rewards = np.random.default_rng(100).normal(5.0, 2.0, 1300).tolist()
    rewards[30], rewards[1100] = -1e6, 1e300
    quantiles = RewardQuantiles(0.1, 0.9, 0.0)
    learnt: list[float] = []
    for number, reward in enumerate(rewards):
        before = len(learnt)
        one = JoinedReward(decision=decision(f"d{number}", 0.0, seq=number), reward=reward)
        learnt += [each.reward for each in quantiles.taken(one)]
        nothing = replace(one, reward=0.0)
        assert quantiles.taken(nothing) == [nothing]  # no outcome: learnt at once, and in no quantile
        assert len(learnt) - before == (0 if number < 99 else 100 if number == 99 else 1)
    expected = clipped_by_hand(rewards, 0.1, 0.9)
    assert learnt == expected
    assert quantiles.clipped == sum(one != other for one, other in zip(rewards, expected, strict=True)) > 200


def test_quantiles_go_on_after_a_restart(tmp_path: Path) -> None:
    policy = "reward_quantiles = [0.1, 0.9]"
    shop = opened(tmp_path, policy=policy)
    rewards = np.random.default_rng(101).normal(5.0, 2.0, 150).tolist()
    for number, reward in enumerate(rewards):
        if number in (60, 120):  # while the first ones wait, and later
            shop.close()
            shop = opened(tmp_path, policy=policy)
        shop.reward(shop.decide(f"u{number}", [0.5]).id, reward)
    learning = shop.policies.tenants["default"].learning
    assert learning is not None and learning.learner.observed == 150
    expected = clipped_by_hand(rewards, 0.1, 0.9)
    assert learner_of(shop).clipped == sum(one != other for one, other in zip(rewards, expected, strict=True)) > 0
    shop.close()


@pytest.mark.parametrize(
    ("join", "policy", "words"),
    [
        ("low = 1.0\nhigh = 0.5", "", "low 1 must be below high 0.5"),
        ("low = 0.5", "", "default 0 is no value from low 0.5 to high inf"),
        ('beyond = "drop"', "", "beyond"),
        ("", "reward_quantiles = [0.9, 0.1]", "needs two levels from 0 to 1, the lower one first"),
        ("", "reward_quantiles = [-0.1, 0.9]", "needs two levels"),
    ],
)
def test_unsound_contracts_are_named(tmp_path: Path, join: str, policy: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        opened(tmp_path, join, policy)


def test_the_plan_tells_the_contract_or_that_there_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for join, policy, words in (
        ("", "", "missing    [join] low and high, or [policy] reward_quantiles: one wrong reward can turn the policy"),
        (f'{RANGE}beyond = "clip"', "", "outcomes   0 to 1; clip others"),
        ("", "reward_quantiles = [0.01, 0.99]", "outcomes   any value, learnt within their quantiles 0.01 and 0.99"),
    ):
        (tmp_path / "shop.toml").write_text(SHOP.format(join=join, policy=policy, rule="sum", kind="linucb"))
        assert main(["serve", str(tmp_path / "shop.toml"), "--dry-run"]) == 0
        plan = capsys.readouterr().out
        assert words in plan and ("one wrong reward" in plan) == (not join and not policy)


def test_bounds_belong_to_the_range() -> None:
    rules = JoinConfig(low=-1.0, high=2.0, beyond="clip")
    assert [rules.accepted(value) for value in (-1.0, 2.0, -1.5, 9.0)] == [-1.0, 2.0, -1.0, 2.0]
    assert [JoinConfig(high=2.0).accepted(value) for value in (2.0, 2.5, -1e300)] == [2.0, None, -1e300]


def test_rewards_that_overflow_the_model_stop_no_answer_and_no_start(tmp_path: Path) -> None:
    shop = opened(tmp_path)
    run(shop, 0, 30)
    for number in range(30, 60):
        decided = shop.decide(f"u{number}", [1.0], id=f"d{number}")
        assert shop.reward(decided.id, (-1.0) ** number * 1.7e308).status == "joined"
    for _ in range(2):
        assert 0.0 < shop.decide("u", [0.5]).probability <= 1.0
        shop.close()
        shop = opened(tmp_path)
    shop.close()


def test_a_version_that_cannot_be_kept_is_told_and_the_one_before_stays(tmp_path: Path) -> None:
    shop = opened(tmp_path)
    lines, before = list[str](), shop.policies.tenants["default"].live.name
    learner_of(shop).tell = lambda code, words: lines.append(f"{code}: {words}")
    (tmp_path / "shop" / "versions").rename(tmp_path / "versions")
    (tmp_path / "shop" / "versions").write_text("no folder")
    run(shop, 0, 25)
    assert shop.policies.tenants["default"].live.name == before
    assert [line.partition(":")[0] for line in lines] == ["snapshot_refused"]
    (tmp_path / "shop" / "versions").unlink()
    run(shop, 25, 50)
    assert shop.policies.tenants["default"].live.name != before and len(lines) == 1
    shop.close()
