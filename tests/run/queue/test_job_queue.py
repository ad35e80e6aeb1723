"""The queue of jobs: claims, leases, fencing, shares, and a ledger that conserves. Time is an argument."""

import operator
import sqlite3
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from log_servers import MissingServerError, postgres_server
from manual_clock import ManualClock

from hone.core.errors import DataError
from hone.run.queue.database import open_queue_database
from hone.run.queue.job_queue import LostLeaseError, RunQueue, faded
from hone.run.queue.use import ClaimUse


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


OpenQueue = Callable[..., RunQueue]


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """Address of a server of this machine."""
    pytest.importorskip("psycopg", reason="needs the extra `postgres`")
    try:
        server = postgres_server()
    except MissingServerError as missing:
        pytest.skip(str(missing))
    try:
        server.start()
        yield server.address
    finally:
        server.remove()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def open_queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenQueue]:
    """Opens the same empty queue, as often as it is called; every test runs on both kinds of database."""
    address = str(tmp_path / "queue.db")
    if request.param == "postgres":
        import psycopg

        address = request.getfixturevalue("postgres")
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute("set client_min_messages to warning")
            connection.execute("drop schema if exists hone_queue cascade")
    opened: list[RunQueue] = []

    def make(clock: ManualClock, **settings: float) -> RunQueue:
        opened.append(RunQueue(open_queue_database(address), clock, **settings))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


@pytest.fixture
def queue(open_queue: OpenQueue, clock: ManualClock) -> RunQueue:
    return open_queue(clock, lease_s=10.0)


def test_jobs_of_a_tenant_go_by_priority_then_by_age(queue: RunQueue) -> None:
    for name, priority in (("a", 0), ("b", 5), ("c", 0), ("d", 5)):
        queue.submit("red", name, [f"{name}.toml"], priority=priority)
    assert [queue.claim("w").name for _ in range(4)] == ["b", "d", "a", "c"]
    assert queue.claim("w") is None


def test_a_job_comes_back_when_its_worker_gives_no_sign_and_the_zombie_writes_nothing(
    queue: RunQueue, clock: ManualClock
) -> None:
    queue.submit("red", "a", ["a.toml"])
    first = queue.claim("one")
    clock.advance(9.0)
    assert queue.heartbeat(first.id, first.token) == ""
    clock.advance(10.5)
    second = queue.claim("two")
    assert (second.id, second.token, second.attempts) == (first.id, first.token + 1, 2)
    for late in (lambda: queue.heartbeat(first.id, first.token), lambda: queue.finish(first.id, first.token, "done")):
        with pytest.raises(LostLeaseError, match=r"job 1 is not held by claim 1 any more"):
            late()
    assert queue.jobs()[0].state == "running" and queue.jobs()[0].worker == "two"
    clock.advance(1.0)
    queue.finish(second.id, second.token, "done")
    with pytest.raises(LostLeaseError):
        queue.finish(second.id, second.token, "failed")
    (share,) = queue.shares()
    assert share.used_us == 19_000_000 + 1_000_000, "9 + 10 s of the lease that ran out, and 1 s"


def test_without_the_token_a_zombie_would_write(queue: RunQueue, clock: ManualClock) -> None:
    """The negative control: the same late answer with the newest token goes through."""
    queue.submit("red", "a", ["a.toml"])
    queue.claim("one")
    clock.advance(11.0)
    second = queue.claim("two")
    queue.finish(second.id, second.token, "done")
    assert queue.jobs()[0].state == "done"


def serve(
    queue: RunQueue, clock: ManualClock, slots: int, until_s: float, seconds: Callable[[str], float]
) -> dict[str, float]:
    """Slot-seconds by tenant of so many workers that always find a job."""
    running: list[tuple[float, int, int, str]] = []
    names = [one.name for one in queue.shares()]
    while clock.now_s() < until_s:
        for one in queue.shares():
            for _ in range(20 if one.queued < slots else 0):
                queue.submit(one.name, "job", ["x.toml"])
        while len(running) < slots and (job := queue.claim("w")) is not None:
            running.append((clock.now_s() + seconds(job.tenant), job.id, job.token, job.tenant))
        end, job_id, token, _ = min(running)
        clock.advance(end - clock.now_s())
        queue.finish(job_id, token, "done")
        running.remove(min(running))
    used = {one.name: one.used_us / 1e6 for one in queue.shares()}
    return {name: used[name] for name in names}


def test_shares_follow_weights_though_jobs_differ_in_length(open_queue: OpenQueue, clock: ManualClock) -> None:
    queue = open_queue(clock, lease_s=1e6)
    weights = {"a": 1.0, "b": 1.0, "c": 2.0, "d": 4.0}
    for name, weight in weights.items():
        queue.set_tenant(name, weight=weight)
    length = {"a": 30.0, "b": 5.0, "c": 11.0, "d": 7.0}
    used = serve(queue, clock, 4, clock.now_s() + 6_000, length.__getitem__)
    for name, weight in weights.items():
        assert used[name] / sum(used.values()) == pytest.approx(weight / 8, abs=0.015), used


def test_use_fades_by_half_in_a_half_life(open_queue: OpenQueue, clock: ManualClock) -> None:
    assert faded(0, 10, 10, 1e12) == pytest.approx(10, rel=1e-6)
    assert faded(0, 1, 1 + 3600, 3600) == pytest.approx(0.5, rel=1e-3)
    by_steps = sum(2 ** -((500 - (place + 0.5) / 100) / 100) / 100 for place in range(100 * 100))
    assert faded(0, 100, 500, 100) == pytest.approx(by_steps, rel=1e-6)
    queue = open_queue(clock, half_life_s=100.0, lease_s=1e6)
    for name in ("early", "late"):
        queue.submit(name, "x", ["x.toml"])
    queue.submit("early", "y", ["y.toml"])
    first = queue.claim("w")
    assert first.tenant == "early"
    clock.advance(60.0)
    queue.finish(first.id, first.token, "done")
    clock.advance(2000.0)
    second = queue.claim("w")
    clock.advance(1.0)
    queue.finish(second.id, second.token, "done")
    queue.submit("late", "z", ["z.toml"])
    assert second.tenant == "late" and queue.claim("w").tenant == "early", "60 s of long ago weigh less than one of now"


def test_a_job_is_asked_to_yield_where_another_tenant_waits_and_cancelled_on_wish(
    queue: RunQueue, clock: ManualClock
) -> None:
    queue.submit("red", "long", ["a.toml"])
    job = queue.claim("w")
    for _ in range(5):
        clock.advance(9.0)
        assert queue.heartbeat(job.id, job.token) == "", "nobody waits: it may use more than its share"
    queue.submit("blue", "b", ["b.toml"])
    assert "next of its tenant's" in queue.admissions()[2].why
    clock.advance(1.0)
    assert queue.heartbeat(job.id, job.token) == "yield"
    queue.finish(job.id, job.token, "queued", "gave way at a checkpoint")
    assert queue.claim("w").tenant == "blue"
    assert "before it" not in queue.admissions()[1].why
    assert queue.cancel(job.id) == "cancelled"
    with pytest.raises(DataError, match=r"job 1 is cancelled already"):
        queue.cancel(job.id)
    assert queue.cancel(2) == "running"
    running = queue.jobs()[1]
    assert queue.heartbeat(running.id, running.token) == "cancel"


def test_a_bound_of_jobs_at_the_same_time(queue: RunQueue) -> None:
    queue.set_tenant("red", slots=1)
    for name in ("a", "b"):
        queue.submit("red", name, ["x.toml"])
    assert queue.claim("w").name == "a" and queue.claim("w") is None
    assert queue.admissions()[2].why == "red runs 1 jobs, the most that it may"
    with pytest.raises(DataError, match=r"weight must be above 0"):
        queue.set_tenant("red", weight=0.0)


@examples(25)
@given(
    st.lists(st.tuples(st.sampled_from(["claim", "beat", "finish", "back", "wait"]), st.integers(0, 7)), max_size=40)
)
def test_the_ledger_conserves_whatever_happens(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[str, int]]
) -> None:
    """Claims of one job never overlap, and use in all is the time that claims were alive, to the microsecond."""
    clock = ManualClock()
    queue = RunQueue(open_queue_database(str(tmp_path_factory.mktemp("q") / "queue.db")), clock, lease_s=10.0)
    for number in range(3):
        queue.submit("ab"[number % 2], f"j{number}", ["x.toml"])
    claims = []
    for what, number in events:
        held = claims[number % len(claims)] if claims else None
        try:
            if what == "claim" and (job := queue.claim("w")) is not None:
                claims.append(job)
            elif what == "wait":
                clock.advance(number * 1.7)
            elif held is not None and what == "beat":
                queue.heartbeat(held.id, held.token, amounts(number))
            elif held is not None:
                queue.finish(held.id, held.token, "done" if what == "finish" else "queued", "", amounts(2 * number))
        except LostLeaseError:
            continue
    check_conserved(queue)
    queue.close()


def amounts(number: int) -> ClaimUse:
    return ClaimUse(core_us=number * 1_000_003, tokens=number * 11, bytes=number * 4096, steps=number)


def test_a_claim_is_charged_what_it_used_once_and_a_late_one_nothing(queue: RunQueue, clock: ManualClock) -> None:
    """Signs of life bring totals, of which the growth is charged; a total that shrank takes nothing back."""
    queue.submit("red", "a", ["a.toml"])
    first = queue.claim("w")
    queue.heartbeat(first.id, first.token, amounts(3))
    queue.heartbeat(first.id, first.token, amounts(3))
    queue.heartbeat(first.id, first.token, amounts(2))
    clock.advance(10.5)
    second = queue.claim("w")
    with pytest.raises(LostLeaseError):
        queue.finish(first.id, first.token, "done", "", amounts(100))
    queue.finish(second.id, second.token, "done", "", amounts(5))
    assert [one.use for one in queue.claims()] == [amounts(3), amounts(5)]
    assert queue.shares()[0].use == amounts(8)


def test_a_queue_of_an_earlier_version_opens_and_counts_from_now_on(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "queue.db"
    queue = RunQueue(open_queue_database(str(path)), clock)
    queue.submit("red", "a", ["a.toml"])
    queue.claim("w")
    queue.close()
    with sqlite3.connect(path) as old:
        for table in ("tenants", "used"):
            for column in ("core_us", "tokens", "bytes", "steps"):
                old.execute(f"alter table {table} drop column {column}")
    queue = RunQueue(open_queue_database(str(path)), clock)
    queue.finish(1, 1, "done", "", amounts(2))
    assert queue.claims()[0].use == amounts(2)
    check_conserved(queue)
    queue.close()


def check_conserved(queue: RunQueue) -> None:
    """Spans of a job do not overlap, their sum is what tenants used, and tenants count their jobs."""
    spans = sorted(queue.claims(), key=lambda one: (one.job, one.from_us))
    for one, two in pairwise(spans):
        assert one.job != two.job or one.to_us <= two.from_us
    assert sum(one.to_us - one.from_us for one in spans) == sum(one.used_us for one in queue.shares())
    assert all(one.to_us >= one.from_us for one in spans)
    for name in ("core_us", "tokens", "bytes", "steps"):
        charged = sum(operator.attrgetter(name)(one.use) for one in spans)
        assert charged == sum(operator.attrgetter(name)(one.use) for one in queue.shares()), name
    states = [(job.tenant, job.state) for job in queue.jobs()]
    for share in queue.shares():
        counted = states.count((share.name, "queued")), states.count((share.name, "running"))
        assert (share.queued, share.running) == counted


def test_an_admission_is_what_then_happens(open_queue: OpenQueue, clock: ManualClock) -> None:
    """Every job's forecast, of one slot and jobs of one length, is when it starts."""
    queue = open_queue(clock, lease_s=1e6)
    queue.set_tenant("b", weight=1.7)
    for number in range(9):
        queue.submit("ab"[number % 2], f"j{number}", ["x.toml"], priority=number % 3)
    job = queue.claim("w")
    assert job is not None
    assert all(one.wait_s is None for one in queue.admissions().values()), "nothing ended yet"
    clock.advance(10.0)
    queue.finish(job.id, job.token, "done")
    job = queue.claim("w")
    now, expected = clock.now_s(), queue.admissions()
    assert sorted(one.before for one in expected.values()) == list(range(7))
    for place in range(7):
        clock.advance(10.0)
        queue.finish(job.id, job.token, "done")
        job = queue.claim("w")
        assert job is not None and expected[job.id].before == place
        assert expected[job.id].wait_s == pytest.approx(clock.now_s() - now)


def test_another_half_life_orders_tenants_anew(open_queue: OpenQueue, clock: ManualClock) -> None:
    queue = open_queue(clock, half_life_s=1e9, lease_s=1e6)
    for tenant, seconds in (("old", 50.0), ("new", 5.0)):
        queue.submit(tenant, "x", ["x.toml"])
        job = queue.claim("w")
        clock.advance(seconds)
        queue.finish(job.id, job.token, "done")
        clock.advance(1000.0 if tenant == "old" else 0.0)
        queue.submit(tenant, "y", ["x.toml"])
    short = open_queue(clock, half_life_s=100.0, lease_s=1e6)
    assert [one.faded_s < 1 for one in short.shares()] == [False, True]
    assert short.claim("w").tenant == "old", "its 50 s have faded to 0.05"
    again = open_queue(clock, half_life_s=1e9, lease_s=1e6)
    assert again.claim("w").tenant == "new"


def test_slots_that_are_free_at_once_go_to_several_tenants(queue: RunQueue) -> None:
    for number in range(4):
        queue.submit("red", f"r{number}", ["x.toml"])
        queue.submit("blue", f"b{number}", ["x.toml"])
    assert [queue.claim("w").tenant for _ in range(4)] == ["blue", "red", "blue", "red"]


def test_a_worker_may_take_one_job_alone_within_its_tenants_bound(queue: RunQueue) -> None:
    queue.set_tenant("red", slots=1)
    for name in ("a", "b"):
        queue.submit("red", name, ["x.toml"])
    assert queue.claim("w", only=3) is None
    second = queue.claim("w", only=2)
    assert second is not None and second.name == "b" and queue.claim("w", only=2) is None
    assert queue.claim("w", only=1) is None, "red runs as many as it may"
    queue.finish(second.id, second.token, "done")
    assert queue.claim("w", only=1) is not None
