"""Policies that are mixtures, in a service: time windows with weights, and versions that a bandit sends traffic to."""

import math
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from gateway_process import serving
from manual_clock import ManualClock

from hone.cli.main import main
from hone.core.decisions import ActionSet, Decision
from hone.core.errors import ConfigError, DataError
from hone.decide.bandits.greedy import EpsilonGreedyPolicy
from hone.decide.bandits.models import ArmMeans, LinearGaussianPosterior
from hone.decide.bandits.policy import BanditPolicy
from hone.decide.bandits.saving import load_policy, policy_hash, save_policy
from hone.decide.bandits.wrappers import EpsilonFloor, Routed
from hone.decide.gateway.log_learner import LogLearner
from hone.decide.gateway.opening import OpenedService, open_service, pages
from hone.decide.registry import VersionOrigin, open_registry
from hone.run.store.codec import state_bytes

NOW_S = 1_700_000_000.0
ARMS = ActionSet(names=("a", "b", "c"))
HEAD = """
[service]
features = ["age"]
actions = ["a", "b", "c"]
safe_action = "c"

[join]
rule = "first"
low = 0.0
high = 1.0
"""
WINDOWS = (
    HEAD
    + """
[policy]
kind = "epsilon_greedy"
floor = 0.1
publish_every = 20

[policy.windows]
lengths = [10, 200, 0]
"""
)
TRAFFIC = (
    HEAD
    + """
[policy]
kind = "traffic"
publish_every = 20

[policy.versions]
old = "old"
new = "new"
"""
)
BOTH = pytest.mark.parametrize("text", [WINDOWS, TRAFFIC], ids=["windows", "traffic"])


def version(best: int, epsilon: float = 0.2, arms: int = 3) -> BanditPolicy:
    """Epsilon-greedy that thinks arm `best` the best one."""
    model = ArmMeans(arms)
    names = ActionSet(names=tuple(map(str, range(arms))))
    model.observe(np.zeros((1, 1)), np.array([best]), np.ones(1), np.ones(1), names)
    return EpsilonGreedyPolicy(model, epsilon)


def opened(folder: Path, text: str, lines: list[str] | None = None, now_s: float = NOW_S) -> OpenedService:
    folder.mkdir(exist_ok=True)
    (folder / "shop.toml").write_text(text)
    for place, name in enumerate(("old", "new")):
        save_policy(version(place), folder / name)
    tell: Callable[[str], None] = print if lines is None else lines.append
    return open_service(folder / "shop.toml", clock=ManualClock(now_s), tell=tell)


def serve(shop: OpenedService, first: int, last: int) -> None:
    """Arm b pays .8, the others .2, by a pattern; every third decision is of two of the three actions."""
    for number in range(first, last):
        offered = [None, ["b", "a"], ["c", "b"]][number % 9 // 3 if number % 3 == 0 else 0]
        decided = shop.decide(f"u{number}", [number % 5 / 5], offered, id=f"d{number}")
        pays = 4 if decided.action == "b" else 1
        shop.reward(decided.id, float(number % 5 < pays))


def learner_of(shop: OpenedService) -> LogLearner:
    assert shop.service.parts.learner is not None
    return shop.service.parts.learner


def learnt(shop: OpenedService) -> bytes:
    learning = shop.policies.tenants["default"].learning
    assert learning is not None
    return state_bytes(learning.learner.state()).tobytes()


def decisions(shop: OpenedService) -> list[Decision]:
    return [one.record for one in pages(shop.log) if isinstance(one.record, Decision)]


def parts_of(policy: BanditPolicy) -> Routed:
    assert isinstance(policy, Routed)
    return policy


@BOTH
def test_every_decision_is_logged_with_the_probability_of_the_mixture_and_replays_to_the_bit(
    tmp_path: Path, text: str
) -> None:
    shop, lines = opened(tmp_path, text, lines := []), lines
    serve(shop, 0, 130)
    made = decisions(shop)
    names = {one.version for one in made}
    assert len(names) > 4 and not lines
    for one in made:
        mixture = parts_of(load_policy(tmp_path / "shop" / "versions" / one.version))
        mass = np.zeros(3)
        for share, part in zip(mixture.shares, mixture.policies, strict=True):
            mass += share * np.exp(part.logp(one.context, ARMS))
        offered = [mass[ARMS.names.index(name)] for name in one.actions.names]
        assert math.exp(one.executed_logp) == pytest.approx(offered[one.executed] / sum(offered), rel=1e-12)
        again = shop.replay(one)
        assert (again.action, again.logp) == (one.executed, one.executed_logp)
    counts = [one.actions.names[one.executed] for one in made[-40:]]
    assert counts.count("b") > 20  # it learnt
    shop.close()


@BOTH
def test_a_restart_from_a_checkpoint_and_one_from_the_whole_log_go_on_to_the_bit(tmp_path: Path, text: str) -> None:
    shop = opened(tmp_path, text)
    serve(shop, 0, 70)
    shop.close()
    shop = opened(tmp_path, text)
    assert learner_of(shop).records == 0  # nothing was read again
    serve(shop, 70, 150)
    ends = learnt(shop)
    for name in ("killed", "whole"):  # both have the log as it is now: one with the checkpoint of the first 70
        (tmp_path / name / "shop").mkdir(parents=True)
        with closing(sqlite3.connect(tmp_path / "shop" / "decisions.db")) as source:
            source.execute(f"vacuum into '{tmp_path / name / 'shop' / 'decisions.db'}'")
    shop.close()
    with closing(sqlite3.connect(tmp_path / "whole" / "shop" / "decisions.db")) as log:
        log.execute("delete from learnt")
        log.execute("delete from leases")
        log.commit()
    for name, records in (("killed", 160), ("whole", 300)):
        again = opened(tmp_path / name, text, now_s=NOW_S + 1000.0)
        assert learner_of(again).records == records
        assert learnt(again) == ends
        again.close()


def test_traffic_goes_to_the_better_version_and_its_share_is_a_metric(tmp_path: Path) -> None:
    shop = opened(tmp_path, TRAFFIC)
    assert 'hone_policy_share{tenant="default",part="old"} 0.5' in shop.service.counters_text()
    serve(shop, 0, 200)
    learning = shop.policies.tenants["default"].learning
    assert learning is not None and learning.learner.shares["new"] > 0.8
    lines = [line.rpartition(" ") for line in shop.service.counters_text().splitlines()]
    values = {name: float(value) for name, _, value in lines if name.startswith("hone_policy_share")}
    assert values == {
        f'hone_policy_share{{tenant="default",part="{name}"}}': pytest.approx(share, rel=1e-6)
        for name, share in learning.learner.shares.items()
    }
    shop.close()


def test_a_version_of_the_registry_takes_part_by_its_folder(tmp_path: Path) -> None:
    opened(tmp_path, TRAFFIC).close()
    registry = open_registry(tmp_path / "shop" / "registry", create=True)
    number = registry.add(tmp_path / "new", VersionOrigin(), at_s=NOW_S, made_by="a test").id
    shop = opened(tmp_path, TRAFFIC.replace('new = "new"', f'shipped = "shop/registry/versions/{number}"'))
    learning = shop.policies.tenants["default"].learning
    assert learning is not None and list(learning.learner.shares) == ["old", "shipped"]
    shop.close()


def test_a_shield_and_the_threshold_of_confidence_are_part_of_what_traffic_weighs(tmp_path: Path) -> None:
    text = TRAFFIC.replace('safe_action = "c"', 'safe_action = "c"\nmin_confidence = 0.6')
    shop = opened(tmp_path, text)
    first = shop.decide("u", [0.0], id="first")  # half and half of two versions: neither action is likely enough
    assert (first.action, first.logp, first.intervention) == ("c", 0.0, "fallback: low confidence")
    learning = shop.policies.tenants["default"].learning
    assert learning is not None
    shop.reward("first", 1.0)
    assert not np.asarray(learning.learner.state()["sums"]).any()  # the safe action teaches nothing
    shop.close()


def test_a_changed_version_is_other_work_and_a_file_without_windows_keeps_its_checkpoint(tmp_path: Path) -> None:
    shop = opened(tmp_path / "one", TRAFFIC)
    before = learner_of(shop).work
    shop.close()
    save_policy(version(2), tmp_path / "one" / "x")
    shop = opened(tmp_path / "one", TRAFFIC.replace('"new"', '"x"'))
    moved = learner_of(shop).work
    shop.close()
    shutil.rmtree(tmp_path / "one" / "x")
    save_policy(version(0, 0.3), tmp_path / "one" / "x")
    shop = opened(tmp_path / "one", TRAFFIC.replace('"new"', '"x"'))
    assert len({before, moved, learner_of(shop).work}) == 3
    shop.close()
    plain = HEAD.replace('safe_action = "c"\n', "").replace("low = 0.0\nhigh = 1.0\n", "")
    plain = plain.replace('rule = "first"', 'rule = "sum"\nwindow_s = 30.0').replace(
        "[join]", 'tenants = ["north", "south"]\n\n[policy]\nkind = "linucb"\npublish_every = 25\n\n[join]'
    )
    shop = opened(tmp_path / "plain", plain)
    # the value of the version of hone before windows: a service that is upgraded goes on from its checkpoint
    assert learner_of(shop).work == "75d6bb1fef3dd906ea0b15b7c391f9af1c65249c40a4135cf641947b650e44fa"
    shop.close()


def test_the_floor_is_in_every_version_and_zero_leaves_them_as_they_are(tmp_path: Path) -> None:
    for floor, least in ((0.02, 0.2 / 3 * 0.98 + 0.02 / 3), (0.0, 0.2 / 3)):
        shop = opened(tmp_path / str(floor), TRAFFIC.replace("publish_every", f"floor = {floor}\npublish_every"))
        served = shop.policies.tenants["default"].live.policy
        assert np.exp(served.logp(np.zeros(1), ARMS)).min() == pytest.approx(least, rel=1e-12)
        live = parts_of(load_policy(tmp_path / str(floor) / "shop" / "versions" / shop.policies.shelf.named(
            shop.policies.tenants["default"].live.name)))  # fmt: skip
        expected = EpsilonFloor(version(0), floor) if floor else version(0)
        assert policy_hash(live.policies[0]) == policy_hash(expected)
        shop.close()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("lengths = [10, 200, 0]", "lengths = [1, 200]", "needs different windows of 2 rewards or more, or 0 for all"),
        ("lengths = [10, 200, 0]", "lengths = [10, 10]", "needs different windows"),
        ("lengths = [10, 200, 0]", "lengths = [10]", "policy.windows.lengths"),
        ("lengths = [10, 200, 0]", "lengths = [2, 0]\nshare = 0", "policy.windows.share"),
        ("floor = 0.1", "discount = 0.9", "leave out discount 0.9"),
    ],
)
def test_windows_that_are_none_are_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace(".", r"\.")):
        opened(tmp_path, WINDOWS.replace(old, new))
    opened(tmp_path, WINDOWS.replace("[10, 200, 0]", "[2, 0]").replace("floor = 0.1", "discount = 1.0")).close()


def test_every_version_that_cannot_serve_is_named_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    save_policy(version(0, arms=2), tmp_path / "two")
    model = LinearGaussianPosterior(3, 4)
    save_policy(EpsilonGreedyPolicy(model, 0.1), tmp_path / "wide")
    text = TRAFFIC.replace('old = "old"\nnew = "new"', 'gone = "gone"\ntwo = "two"\nwide = "wide"')
    (tmp_path / "shop.toml").write_text(text)
    with pytest.raises(DataError) as refused:
        open_service(tmp_path / "shop.toml", clock=ManualClock(NOW_S), tell=print)
    assert [line.partition(":")[0] for line in refused.value.messages] == ["shop.toml"] * 3
    reasons = ("no such folder", "3 actions, and the model has learnt about 2", "a context of 1 features")
    assert all(words in line for line, words in zip(refused.value.messages, reasons, strict=True))
    assert not (tmp_path / "shop").exists()  # nothing was made
    assert main(["serve", str(tmp_path / "shop.toml"), "--dry-run"]) == 2
    shown = capsys.readouterr().err
    assert all(f"version '{name}'" in shown for name in ("gone", "two", "wide"))


@BOTH
def test_the_plan_says_what_is_mixed(tmp_path: Path, text: str, capsys: pytest.CaptureFixture) -> None:
    opened(tmp_path, text).close()
    assert main(["serve", str(tmp_path / "shop.toml"), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    words = {
        WINDOWS: "policy     epsilon_greedy over windows of the latest 10, the latest 200, all rewards, mixed by their "
        "errors, floor 0.1, every action has probability 0.0333 or more; a version every 20 rewards",
        TRAFFIC: "policy     traffic between old, new by their rewards, each has 0.05 of it or more, floor 0.02; a "
        "mixture every 20 rewards",
    }
    assert words[text] in shown
    assert "one wrong reward" not in shown  # [join] has bounds


def test_traffic_needs_two_versions_and_bounds_of_rewards(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(ConfigError, match=r"policy\.versions"):
        opened(tmp_path, TRAFFIC.replace('new = "new"\n', ""))
    opened(tmp_path, TRAFFIC.replace("low = 0.0\n", "")).close()
    assert main(["serve", str(tmp_path / "shop.toml"), "--dry-run"]) == 0
    assert "missing    [join] low and high: one wrong reward can turn the policy" in capsys.readouterr().out


def test_a_served_process_divides_the_traffic_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    opened(tmp_path, TRAFFIC).close()
    logged: list[float] = []
    for first in (0, 30):
        with serving(tmp_path / "shop.toml") as server:
            for number in range(first, first + 30):
                status, decided = server.post("/v1/decide", {"unit": "u", "context": [0.0], "id": f"d{number}"})
                assert status == 200
                logged.append(decided["logp"])
                server.post("/v1/reward", {"id": f"d{number}", "value": float(decided["action"] == "b")})
            server.kill()
    shop = opened(tmp_path, TRAFFIC, now_s=NOW_S + 1e6)
    assert [one.executed_logp for one in decisions(shop)] == logged
    learning = shop.policies.tenants["default"].learning
    assert learning is not None and learning.learner.shares["new"] > 0.7
    assert np.asarray(learning.learner.state()["sums"])[0].sum() > 50  # all 60 rewards of both processes
    shop.close()
