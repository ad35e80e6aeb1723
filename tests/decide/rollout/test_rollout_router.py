"""The router: sticky, monotone, exclusive in a layer, equal slices, and the same on every gateway."""

from collections import Counter
from hashlib import blake2b
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.core.errors import ConfigError
from hone.decide.rollout.router import BUCKETS, RolloutRouter, RolloutSlice, make_router, split_label

SHARES = (0.0, 0.01, 0.05, 0.25, 0.5)
UNITS = [f"u{number}" for number in range(4000)]


def ramp(share: float, *, name: str = "r1", first: int = 0, last: int = BUCKETS) -> RolloutRouter:
    part = RolloutSlice(rollout=name, version="new", stage=f"{share:.0%}", share=share, first=first, last=last)
    return make_router(live="old", salt="shop", slices=[part])


def test_a_bucket_worked_out_by_hand() -> None:
    key = blake2b(b"shop", digest_size=32).digest()
    number = int.from_bytes(blake2b(b"1:tu7", digest_size=8, key=key).digest(), "little")
    assert ramp(0.5).bucket("t", "u7") == number * 1_000_000 // 2**64


def test_a_unit_in_the_canary_stays_there_as_the_share_grows_and_no_unit_changes_sides() -> None:
    arms = {share: [ramp(share).route("t", unit).arm for unit in UNITS] for share in (*SHARES, 1.0)}
    for small, large in pairwise(SHARES):
        for before, after in zip(arms[small], arms[large], strict=True):
            assert before in ("live", after)
    assert set(arms[0.0]) == {"live"}
    assert set(arms[0.5]) == {"canary", "control"}
    assert set(arms[1.0]) == {"canary"}


@pytest.mark.parametrize("share", SHARES[1:])
def test_the_control_slice_is_as_large_as_the_canary(share: float) -> None:
    router = ramp(share)
    sizes = {one.route.arm: one.last - one.first for one in router.ranges}
    assert sizes["canary"] == sizes["control"] == round(share * BUCKETS)
    count = Counter(router.route("t", unit).arm for unit in UNITS)
    assert abs(count["canary"] - share * 4000) < 4 * (4000 * share) ** 0.5
    assert abs(count["control"] - share * 4000) < 4 * (4000 * share) ** 0.5


@given(tenant=st.text(), unit=st.text(), share=st.sampled_from(SHARES))
def test_a_route_is_sticky_and_the_same_on_every_gateway(tenant: str, unit: str, share: float) -> None:
    assert ramp(share).route(tenant, unit) == ramp(share).route(tenant, unit)
    assert 0 <= ramp(share).bucket(tenant, unit) < BUCKETS


def test_tenants_and_units_are_told_apart() -> None:
    router = ramp(0.5)
    assert router.bucket("a", "bc") != router.bucket("ab", "c")
    assert router.bucket("", "1:x") != router.bucket("1", "x")
    assert router.bucket("t", "\ud800") >= 0  # half a surrogate pair is routed too; the gateway refuses it


def test_layers_with_other_salts_are_independent() -> None:
    one = ramp(0.5)
    other = make_router(live="old", salt="other", slices=[RolloutSlice(rollout="r", version="n", stage="", share=0.5)])
    both = Counter((one.route("t", unit).arm, other.route("t", unit).arm) for unit in UNITS)
    assert len(both) == 4
    assert all(abs(count - 1000) < 130 for count in both.values())


def test_two_rollouts_of_a_layer_never_share_a_unit() -> None:
    first = RolloutSlice(rollout="a", version="a1", stage="50%", share=0.5, last=BUCKETS // 2)
    second = RolloutSlice(rollout="b", version="b1", stage="50%", share=0.5, first=BUCKETS // 2)
    router = make_router(live="old", salt="shop", slices=[second, first])
    labels = [router.route("t", unit).label for unit in UNITS]
    assert {label.split(":")[0] for label in labels} == {"a", "b"}
    alone = [make_router(live="old", salt="shop", slices=[one]) for one in (first, second)]
    for unit in UNITS:
        assert sum(one.route("t", unit).arm != "live" for one in alone) == 1


def test_faults_of_a_layer_are_named_together() -> None:
    first = RolloutSlice(rollout="a", version="a1", stage="", share=0.6)
    second = RolloutSlice(rollout="b:c", version="b1", stage="", share=0.5, first=10, last=20)
    third = RolloutSlice(rollout="d", version="b1", stage="", share=0.5, first=20, last=20)
    with pytest.raises(ConfigError) as fault:
        make_router(live="old", salt="shop", slices=[first, second, third])
    text = str(fault.value)
    assert "share of 0.6" in text
    assert "without ':'" in text
    assert "buckets 20 to 20" in text
    assert "rollouts 'a' and 'b:c' share the buckets 10 to 20" in text


def test_a_shadow_scores_every_request_and_answers_none() -> None:
    part = RolloutSlice(rollout="r1", version="new", stage="shadow", share=0, shadow=True)
    routes = [make_router(live="old", salt="shop", slices=[part]).route("t", unit) for unit in UNITS]
    assert {(route.version, route.shadow, route.label) for route in routes} == {("old", "new", "r1:control:shadow")}


def test_the_kill_switch_sends_every_unit_to_the_live_version() -> None:
    routes = {ramp(0.5).stopped().route("t", unit).version for unit in UNITS}
    assert routes == {"old"}
    assert ramp(0.5).stopped().bucket("t", "u1") == ramp(0.5).bucket("t", "u1")


def test_labels_name_rollout_arm_and_stage() -> None:
    labels = {ramp(0.25).route("t", unit).label for unit in UNITS}
    assert labels == {"", "r1:canary:25%", "r1:control:25%"}
    assert split_label("r1:canary:25%") == ("r1", "canary", "25%")
    assert split_label("") == ("", "", "") == split_label("a:b")
