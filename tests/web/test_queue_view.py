"""The queue's page: shares, curves, lanes and costs, by hand and against a second program."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from manual_clock import ManualClock
from starlette.testclient import TestClient
from watched_runs import write_queue

from hone.core.errors import DataError
from hone.run.queue.job_queue import TenantShare, UsedSpan
from hone.web.app import WatchParts, make_app
from hone.web.guard import AccessRules
from hone.web.queue_view import lanes_of, queue_view, share_curves
from hone.web.runs import RunListing


@pytest.fixture
def address(tmp_path: Path) -> str:
    return write_queue(tmp_path / "queue.db")


def test_values_by_hand(address: str) -> None:
    view = queue_view(address, ManualClock())
    tenants = {one["name"]: one for one in view["tenants"]}
    assert (tenants["red"]["entitled"], tenants["blue"]["entitled"]) == (0.25, 0.75)
    assert tenants["red"]["used"] == pytest.approx(40 / 60) and tenants["blue"]["seconds"] == 20.0
    assert (tenants["blue"]["running"], tenants["blue"]["queued"]) == (1, 1)
    jobs = {one["name"]: one for one in view["jobs"]}
    assert tenants["blue"]["use"] == "0.0 core-seconds, 0 steps, 0 tokens, 0.0 MiB"
    assert (jobs["r"]["seconds"], jobs["r"]["claims"], jobs["r"]["state"]) == (40.0, 2, "done")
    assert jobs["b"]["part"] == pytest.approx(20 / 60)
    assert jobs["c"]["why"] == "blue runs 1 jobs, the most that it may" and jobs["c"]["wait_s"] == pytest.approx(40.0)
    assert [(one["name"], one["from_s"], one["to_s"], one["lane"]) for one in view["spans"]] == [
        ("r", 0.0, 30.0, 0), ("r", 30.0, 40.0, 0), ("b", 40.0, 60.0, 0),
    ]  # fmt: skip
    assert view["curves"]["x"][-1] == 60.0
    assert view["curves"]["used"]["red"][-1] == pytest.approx(40 / 60)


def test_a_queue_that_is_not_there_is_named_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no queue .*none.db; hone queue submit makes one"):
        queue_view(str(tmp_path / "none.db"), ManualClock())
    assert not (tmp_path / "none.db").exists()


SPANS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20), st.sampled_from("ab")), min_size=1, max_size=25)


@given(SPANS)
def test_lanes_hold_no_two_at_a_time_and_are_as_few_as_can_be(drawn: list[tuple[int, int, str]]) -> None:
    spans = [UsedSpan(token, token, name, start, start + long) for token, (start, long, name) in enumerate(drawn)]
    placed = lanes_of(spans)
    for one, lane in placed:
        for other, second in placed:
            apart = one.to_us <= other.from_us or other.to_us <= one.from_us
            assert lane != second or one is other or apart
    most = max(sum(one.from_us <= at < one.to_us for one in spans) for at in range(71))
    assert len({lane for _, lane in placed}) <= max(1, most) + sum(one.from_us == one.to_us for one in spans)


@given(SPANS)
def test_curves_are_what_was_used_until_then(drawn: list[tuple[int, int, str]]) -> None:
    spans = [UsedSpan(token, token, name, 1000 * start, 1000 * (start + long))
             for token, (start, long, name) in enumerate(drawn)]  # fmt: skip
    shares = [TenantShare(name=name, weight=1.0, slots=0, used_us=0, faded_s=0.0, running=0, queued=0) for name in "ab"]
    curves = share_curves(shares, spans)
    start = min(one.from_us for one in spans)
    for place in (0, 40, 79):
        moment = start + round(curves["x"][place] * 1e6)
        used = {name: sum(max(0, min(one.to_us, moment) - one.from_us) for one in spans if one.tenant == name)
                for name in "ab"}  # fmt: skip
        total = sum(used.values())
        for name in "ab":
            value = curves["used"][name][place]
            assert (value is None) if not total else value == pytest.approx(used[name] / total)


def test_the_page_has_a_queue_where_one_is_named(address: str, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    rules = AccessRules(token="a-token-of-the-tests", hosts=("127.0.0.1:8090",))
    for queue in ("", address):
        listing = RunListing(tmp_path / "runs", tmp_path / "cache", ManualClock())
        parts = WatchParts(listing=listing, clock=ManualClock(), queue=queue)
        http = TestClient(make_app(parts, rules), base_url="http://127.0.0.1:8090")
        http.get("/", params={"token": rules.token})
        assert http.get("/api/runs").json()["has_queue"] is bool(queue)
        tenants = http.get("/api/queue").json()["tenants"]
        assert [one["name"] for one in tenants or []] == (["blue", "red"] if queue else [])
