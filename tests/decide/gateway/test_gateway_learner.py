"""The learner of a log: a checkpoint and what follows are the whole log, to the bit; two gateways learn like one."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from decision_records import decision, outcome
from log_servers import MissingServerError, postgres_server, redis_server
from manual_clock import ManualClock, TickingClock

from hone.core.decisions import ActionSet, Decision, Outcome, schema_hash
from hone.core.state import substate
from hone.decide.gateway.log_learner import CHECKPOINT_S, LEASE_S, LOOK_S, LogLearner, is_dead, process_mark
from hone.decide.gateway.log_writer import WriteAfter
from hone.decide.gateway.online_policies import TenantLearning
from hone.decide.gateway.opening import OpenedService, open_service, pages
from hone.decide.gateway.service import TICK_S
from hone.decide.joins.join import build_view
from hone.decide.joins.view import JoinConfig
from hone.decide.log.opening import open_decision_log
from hone.decide.log.protocol import DecisionLog, RecordClaim

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
OTHER = SHOP.replace('"linucb"', '"linucb"\nnoise = 0.5')


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


def learner_of(shop: OpenedService) -> LogLearner:
    assert shop.service.parts.learner is not None
    return shop.service.parts.learner


def learnt(shop: OpenedService) -> list:
    """Everything that learners and joins hold, as bytes, with the version that serves."""
    results: list = []
    for name, serving in shop.policies.tenants.items():
        one = serving.learning
        assert isinstance(one, TenantLearning)
        state = one.learner.state()
        arrays = {key: np.asarray(value).tobytes() for key, value in substate(state, "model").items()}
        opened_ids = list(one.joiner.open_values())
        results.append((name, state["observed"], arrays, opened_ids, list(one.joiner.early_rewards()),
                        one.joiner.counts, one.last and one.last.id, serving.live.name))  # fmt: skip
    return results


def without_states(log: Path) -> None:
    """Delete what was learnt from a log, and leases on it."""
    connection = sqlite3.connect(log)
    for table in ("learnt", "leases"):
        connection.execute(f"delete from {table}")
    connection.commit()
    connection.close()


def both_ways(tmp_path: Path, text: str = SHOP) -> tuple[list, list, int]:
    """What a restart from a checkpoint has, and one from the whole log; the records that the first one read."""
    shutil.copytree(tmp_path / "shop", tmp_path / "whole" / "shop", ignore=shutil.ignore_patterns("lock"))
    without_states(tmp_path / "whole" / "shop" / "decisions.db")
    results: list[tuple[list, int]] = []
    lines: list[str] = []
    for folder in (tmp_path, tmp_path / "whole"):
        shop = opened(folder, lines, text, 1_700_001_000.0)
        results.append((learnt(shop), learner_of(shop).records))
        shop.close()
    assert not lines
    return results[0][0], results[1][0], results[0][1]


@pytest.mark.parametrize("rule", ["sum", "first"])
def test_a_restart_from_a_checkpoint_is_one_from_the_whole_log_to_the_bit(tmp_path: Path, rule: str) -> None:
    lines: list[str] = []
    text = SHOP.replace('"sum"', f'"{rule}"')
    shop = opened(tmp_path, lines, text)
    serve(shop, 0, 70)
    shop.clock.advance(CHECKPOINT_S)  # type: ignore[attr-defined]
    serve(shop, 70, 120)  # a tick saves at the first of them
    before = learnt(shop)
    shop.log.counts()  # the thread that saves has the log's lock before this one, or has not begun
    learner_of(shop)._thread.shutdown(wait=True)
    (tmp_path / "killed" / "shop").mkdir(parents=True)
    source, target = sqlite3.connect(tmp_path / "shop" / "decisions.db"), tmp_path / "killed" / "shop" / "decisions.db"
    source.execute(f"vacuum into '{target}'")
    source.close()
    shutil.copy(tmp_path / "shop" / "instance", tmp_path / "killed" / "shop")
    saved, whole, count = both_ways(tmp_path / "killed", text)  # nothing was saved at the end
    assert saved == whole
    assert [one[:7] for one in saved] == [one[:7] for one in before]
    assert 0 < count < 200


def test_a_service_that_was_stopped_starts_without_learning_again(tmp_path: Path) -> None:
    lines: list[str] = []
    for first in (0, 60, 120):
        shop = opened(tmp_path, lines, now_s=1_700_000_000.0 + 10 * first)
        assert learner_of(shop).records == 0
        serve(shop, first, first + 60)
        answer = shop.decide("u", [0.5], tenant="north", id=f"again-{first}")
        shop.close()
        shop = opened(tmp_path, lines, now_s=1_700_000_100.0 + 10 * first)
        assert shop.decide("u", [0.5], tenant="north", id=f"again-{first}") == answer
        shop.close()
    saved, whole, _ = both_ways(tmp_path)
    assert saved == whole
    assert not lines


def test_a_kill_while_a_checkpoint_is_saved_leaves_the_one_before(tmp_path: Path) -> None:
    lines: list[str] = []
    shop = opened(tmp_path, lines)
    serve(shop, 0, 40)
    shop.close()
    child = os.fork()
    if child == 0:
        shop = opened(tmp_path, lines, SHOP.replace("25", "1000"), now_s=1_700_000_040.0)
        serve(shop, 40, 60)
        os.environ["HONE_FAILPOINT"] = "decisions.before_learnt:kill"
        shop.close()
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    saved, whole, count = both_ways(tmp_path)
    assert saved == whole
    assert count == 20 * 2 + 2


def test_a_checkpoint_counts_for_nothing_under_another_config_or_damaged(tmp_path: Path) -> None:
    lines: list[str] = []
    shop = opened(tmp_path, lines)
    serve(shop, 0, 40)
    shop.close()
    shop = opened(tmp_path, lines, OTHER)
    assert learner_of(shop).records > 80
    shop.close()
    assert not lines
    connection = sqlite3.connect(tmp_path / "shop" / "decisions.db")
    connection.execute("update learnt set body = ? where name = 'checkpoint'", (b"torn" * 9,))
    connection.commit()
    connection.close()
    shop = opened(tmp_path, lines, OTHER)
    assert learner_of(shop).records > 80
    assert "learning_unreadable" in lines[0]
    shop.close()


def test_a_start_that_takes_longer_than_a_lease_keeps_it(tmp_path: Path) -> None:
    (tmp_path / "shop.toml").write_text(SHOP.replace('"sum"', '"first"'))
    log = open_decision_log(tmp_path / "shop" / "decisions.db")
    schema, arms = schema_hash(["age"]), ActionSet(names=("a", "b", "c"))
    log.append([
        decision(f"d{n}", 1.7e9 + n, seq=n, tenant="north", context=[0.5], actions=arms, schema=schema)
        for n in range(6000)
    ])  # fmt: skip
    log.append([outcome(f"d{n}", 1.7e9 + n, float(n % 2), seq=n, tenant="north") for n in range(6000)])
    lines: list[str] = []
    clock = TickingClock(1_700_000_000.0)
    shop = open_service(tmp_path / "shop.toml", clock=clock, tell=lines.append)
    assert clock.time_s > 1_700_000_000.0 + LEASE_S
    assert learner_of(shop).records == 12_000
    assert learnt(shop)[0][1] == 6000
    assert shop.decide("u", [0.5], tenant="north").version == learnt(shop)[0][-1] != learnt(shop)[1][-1]
    assert not lines
    shop.close()
    log.close()


def test_an_erasure_reaches_a_service_that_runs(tmp_path: Path) -> None:
    lines: list[str] = []
    shop = opened(tmp_path, lines)
    serve(shop, 0, 40)
    shop.log.erase("north", "u1")
    before = learnt(shop)
    shop.clock.advance(LEASE_S)  # type: ignore[attr-defined]
    shop.service.tick()
    assert any("learns from now on" in line for line in lines)
    after = learnt(shop)
    assert before[0][1:3] != after[0][1:3] and before[1][1:3] == after[1][1:3]
    shop.close()
    lines.clear()
    saved, whole, _ = both_ways(tmp_path)
    assert saved == whole and saved[0][1:3] == after[0][1:3]


# ----------------------------------------------------------------------------------------------------- several gateways


@pytest.fixture
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Address of an empty log of each engine."""
    if request.param == "sqlite":
        yield str(tmp_path / "shared.db")
        return
    pytest.importorskip("psycopg" if request.param == "postgres" else "redis")
    try:
        server = postgres_server() if request.param == "postgres" else redis_server()
    except MissingServerError as missing:
        pytest.skip(str(missing))
    try:
        server.start()
        yield server.address
    finally:
        server.remove()


def gateways(
    tmp_path: Path, lines: list[str], text: str = SHOP, count: int = 2, address: str = "", log: str = ""
) -> list[OpenedService]:
    """Gateways of one log, with a common clock."""
    clock = ManualClock(1_700_000_000.0)
    shops: list[OpenedService] = []
    for place in range(count):
        folder = tmp_path / f"gateway-{place}"
        folder.mkdir()
        (folder / "shop.toml").write_text(f'{text}\n[log]\naddress = "{address or tmp_path / "shared.db"}"\n{log}')
        shops.append(open_service(folder / "shop.toml", clock=clock, tell=lines.append))
        learner_of(shops[-1]).apart = False  # so that each tick has its effect at once
    return shops


def shared(shops: list[OpenedService], first: int, last: int) -> list[str]:
    """Decisions by turns, each rewarded at the other gateway; -> versions that served them."""
    versions: list[str] = []
    for number in range(first, last):
        shops[0].clock.advance(TICK_S)  # type: ignore[attr-defined]
        one, other = shops[number % len(shops)], shops[(number + 1) % len(shops)]
        decided = one.decide(f"u{number}", [number % 7 / 7], tenant="north", id=f"d{number}")
        versions.append(decided.version)
        assert other.reward(f"d{number}", float(decided.index == 1), tenant="north").status == "joined"
    return versions


def whole_log(tmp_path: Path, log: DecisionLog, text: str = SHOP) -> list:
    """What one gateway learns from the whole log of `gateways`."""
    copy = open_decision_log(tmp_path / "copy.db")
    copy.append([logged.record for logged in pages(log)])
    copy.close()
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "shop.toml").write_text(f'{text}\n[log]\naddress = "{tmp_path / "copy.db"}"\n')
    shop = open_service(tmp_path / "one" / "shop.toml", clock=ManualClock(1_700_009_000.0), tell=print)
    try:
        return learnt(shop)
    finally:
        shop.close()


@pytest.mark.parametrize("address", ["sqlite", "postgres", "redis"], indirect=True)
def test_two_gateways_learn_like_one_and_serve_the_same_versions(tmp_path: Path, address: str) -> None:
    lines: list[str] = []
    text = SHOP if "postgres" in address else SHOP.replace('"sum"', '"first"')
    shops = gateways(tmp_path, lines, text, address=address)
    assert [learner_of(shop).lease is not None for shop in shops] == [True, False]
    assert "learns (epoch 1); this one serves its versions" in lines[0]
    versions = shared(shops, 0, 120)
    assert len(set(versions)) >= 3
    assert {*versions[0::2]} == {*versions[1::2]}
    for shop in shops:
        shop.clock.advance(TICK_S)  # type: ignore[attr-defined]
        shop.service.tick()
    assert [one[:7] for one in learnt(shops[0])] == [one[:7] for one in whole_log(tmp_path, shops[0].log, text)]
    live = [shop.policies.tenants["north"].live.name for shop in shops]
    assert live[0] == live[1]
    for place, shop in enumerate(shops):
        assert f"\nhone_learner {1 - place}\n" in shop.service.counters_text()
        own = [one.record for one in shop.log.read(0, 1000) if one.record.source == shop.service.parts.rules.source]
        decisions = [one for one in own if isinstance(one, Decision)]
        assert [shop.replay(one).logp for one in decisions] == [one.executed_logp for one in decisions]
        assert len(decisions) == 60
        shop.close()
    assert len(lines) == 1


@pytest.mark.parametrize("address", ["sqlite", "redis"], indirect=True)
def test_a_learner_that_dies_is_replaced_and_its_late_version_is_refused(tmp_path: Path, address: str) -> None:
    lines: list[str] = []
    dead, alive = shops = gateways(tmp_path, lines, address=address)
    shared(shops, 0, 90)
    learner_of(dead)._save_checkpoint()
    writing = learner_of(dead)._writing
    assert writing is not None
    writing.result()
    shared(shops, 90, 120)
    clock = dead.clock
    assert isinstance(clock, ManualClock)
    leads: list[bool] = []
    for number in range(120, 180):  # the learner is stopped; the other one goes on
        clock.advance(TICK_S)
        alive.decide(f"u{number}", [number % 7 / 7], tenant="north", id=f"d{number}")
        alive.reward(f"d{number}", 1.0, tenant="north")
        leads.append(learner_of(alive).lease is not None)
    assert leads == sorted(leads) and LEASE_S - 4 <= leads.index(True) <= LEASE_S + 4
    assert any("learns from now on (epoch 2)" in line for line in lines)
    assert learner_of(alive).records < 2 * 180  # it began with the checkpoint
    published = alive.policies.tenants["north"].live.name
    before = dead.policies.tenants["north"].live.name
    learning = dead.policies.tenants["north"].learning
    assert learning is not None
    learning.unpublished = 10**6
    learner_of(dead)._publish("north")  # awake again, before it looks at its lease
    assert "the lease of epoch 1 has run out" in lines[-1]
    assert dead.policies.tenants["north"].live.name == before
    dead.service.tick()
    assert learner_of(dead).lease is None
    assert dead.policies.tenants["north"].live.name == published
    alive.service.tick()
    assert [one[:7] for one in learnt(alive)] == [one[:7] for one in whole_log(tmp_path, alive.log)]
    for shop in shops:
        shop.close()


def test_a_log_that_does_not_answer_delays_no_answer_that_does_not_need_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    (shop,) = gateways(tmp_path, lines, count=1, log='durable = "after"\n')
    learner = learner_of(shop)
    learner.apart, learner.position = True, 0
    asked, answer, read = threading.Event(), threading.Event(), LogLearner._read_on

    def stuck(learner: LogLearner, *, wholly: bool = False) -> None:
        asked.set()
        answer.wait(300)
        read(learner, wholly=wholly)

    monkeypatch.setattr(LogLearner, "_read_on", stuck)
    shop.service.tick()
    assert asked.wait(300)
    for number in range(30):
        shop.clock.advance(TICK_S)  # type: ignore[attr-defined]
        shop.decide(f"u{number}", [0.5], tenant="north")
        shop.reward(f"d{number}", 1.0, tenant="north")
    answer.set()
    shop.close()
    lines.clear()
    (folder,) = tmp_path.glob("gateway-*")
    shop = open_service(folder / "shop.toml", clock=shop.clock, tell=lines.append)
    assert learnt(shop)[0][5].early == 30 and not lines
    shop.close()


def test_a_learner_that_stops_hands_over_at_once(tmp_path: Path) -> None:
    lines: list[str] = []
    first, second = shops = gateways(tmp_path, lines)
    shared(shops, 0, 60)
    first.close()
    second.clock.advance(LEASE_S / 2)  # type: ignore[attr-defined]
    second.service.tick()
    assert learner_of(second).lease is not None
    assert learner_of(second).records == 0  # the checkpoint was saved at the end
    second.close()


def follower_of(folder: Path, holder: str, lines: list[str]) -> OpenedService:
    """A gateway on a log whose lease another holder took just before."""
    (shop,) = gateways(folder, lines, count=1)
    work, clock = learner_of(shop).work, shop.clock
    shop.close()
    log = open_decision_log(folder / "shared.db")
    log.take_lease(work, holder.format(source=learner_of(shop).source), now_s=clock.now_s(), lease_s=LEASE_S)
    log.close()
    lines.clear()
    return open_service(folder / "gateway-0" / "shop.toml", clock=clock, tell=lines.append)


def test_a_learner_whose_process_is_dead_is_replaced_at_the_next_look(tmp_path: Path) -> None:
    lines: list[str] = []
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        shop = follower_of(tmp_path, f"other-1@{process_mark(child.pid)}", lines)
        learner, clock = learner_of(shop), shop.clock
        assert isinstance(clock, ManualClock)
        theirs = learner.log.take_lease(learner.work, "nobody", now_s=clock.now_s(), lease_s=LEASE_S)
        for number in range(5):
            clock.advance(LOOK_S)
            shop.decide(f"u{number}", [0.5], tenant="north")
        assert learner.lease is None and "the gateway other-1 learns (epoch 2)" in lines[0]
        child.kill()
        child.wait()
        clock.advance(LOOK_S * 0.9)
        shop.decide("v", [0.5], tenant="north")
        assert learner.lease is None  # no look was due
        clock.advance(LOOK_S * 0.1 + 1e-6)
        shop.decide("w", [0.5], tenant="north")
    assert learner.lease is not None and learner.lease.epoch == theirs.epoch + 1
    assert not learner.log.save_learnt(theirs, {"version north": b"late"}, now_s=clock.now_s())
    assert clock.now_s() < theirs.until_s - LEASE_S / 2 and learner.records == 7
    shop.close()


@pytest.mark.parametrize(
    ("holder", "leads"),
    [
        ("{source}@elsewhere-1", True),  # an earlier process of this gateway: its folder is locked by this one
        ("{source}", True),  # as releases before named it
        pytest.param(
            f"other-1@{process_mark()}", False, id="alive"
        ),  # its number would differ between two test processes
        ("other-1@elsewhere-1", False),  # nothing is known of the processes of other hosts
        ("other-1@-1", False),
        ("other-1", False),
    ],
)
def test_a_lease_is_taken_over_at_once_only_from_a_process_that_is_known_to_be_dead(
    tmp_path: Path, holder: str, leads: bool
) -> None:
    lines: list[str] = []
    shop = follower_of(tmp_path, holder, lines)
    assert (learner_of(shop).lease is not None) is leads and bool(lines) is not leads
    shop.clock.advance(LEASE_S)  # type: ignore[attr-defined]
    shop.service.tick()
    assert learner_of(shop).lease is not None
    shop.close()


def test_processes_without_numbers_are_not_said_to_be_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_dead(process_mark()) and not is_dead("")
    monkeypatch.setattr(Path, "readlink", lambda _: (_ for _ in ()).throw(FileNotFoundError))
    assert process_mark() == f"-{os.getpid()}" and not is_dead("-1") and not is_dead(process_mark())


def test_a_version_is_served_by_the_others_at_their_next_look(tmp_path: Path) -> None:
    first, second = shops = gateways(tmp_path, [], SHOP.replace('"sum"', '"first"'))
    second.service.tick()
    for number in range(25):
        decided = first.decide(f"u{number}", [number % 7 / 7], tenant="north", id=f"d{number}")
        first.reward(f"d{number}", float(decided.index == 1), tenant="north")
    live = [shop.policies.tenants["north"].live for shop in shops]
    assert live[0].name != live[1].name
    for wait_s, level in ((LOOK_S * 0.9, False), (LOOK_S * 0.1 + 1e-6, True)):
        first.clock.advance(wait_s)  # type: ignore[attr-defined]
        second.decide(f"v{level}", [0.5], tenant="north")
        assert (second.policies.tenants["north"].live.name == live[0].name) is level
    for shop in shops:
        shop.close()


def test_gateways_that_learn_otherwise_learn_apart_from_all_records(tmp_path: Path) -> None:
    lines: list[str] = []
    (one,) = gateways(tmp_path, lines, count=1)
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "shop.toml").write_text(f'{OTHER}\n[log]\naddress = "{tmp_path / "shared.db"}"\n')
    other = open_service(folder / "shop.toml", clock=one.clock, tell=lines.append)
    shared([one, other], 0, 60)
    one.service.tick()
    other.service.tick()
    states = [learnt(shop) for shop in (one, other)]
    assert [state[0][1] for state in states] == [states[0][0][1]] * 2
    assert states[0][0][3:6] == states[1][0][3:6]
    assert not lines
    one.close()
    other.close()


def test_decisions_that_the_model_has_no_room_for_are_told_and_left_out(tmp_path: Path) -> None:
    lines: list[str] = []
    (one,) = gateways(tmp_path, lines, SHOP.replace('"sum"', '"first"'), count=1)
    folder = tmp_path / "other"
    folder.mkdir()
    text = SHOP.replace('["a", "b", "c"]', '["x", "y"]').replace('"sum"', '"first"')
    (folder / "shop.toml").write_text(f'{text}\n[log]\naddress = "{tmp_path / "shared.db"}"\n')
    other = open_service(folder / "shop.toml", clock=one.clock, tell=lines.append)
    other.reward(other.decide("u", [0.5], tenant="north").id, 1.0, tenant="north")
    one.service.tick()
    assert learnt(one)[0][1] == 0
    assert "is not declared" in lines[-1]
    one.close()
    other.close()


# ---------------------------------------------------------------------------------------------------------- idempotency


@pytest.mark.parametrize("address", ["sqlite"], indirect=True)
def test_ids_and_keys_are_known_for_ever_on_every_gateway(tmp_path: Path, address: str) -> None:
    lines: list[str] = []
    shops = gateways(tmp_path, lines, address=address)
    first = shops[0].decide("u", [0.5], tenant="north", id="mine")
    shops[0].reward("mine", 1.0, tenant="north", key="order-1")
    shared(shops, 0, 50)  # more than either remembers
    for shop in shops:
        assert shop.decide("u", [0.5], tenant="north", id="mine") == first
        assert shop.reward("mine", 1.0, tenant="north", key="order-1").status == "repeated"
        with pytest.raises(Exception, match="used for another request"):
            shop.decide("v", [0.5], tenant="north", id="mine")
        with pytest.raises(Exception, match="key 'order-1' was used for another reward"):
            shop.reward("mine", 0.5, tenant="north", key="order-1")
    records = shops[0].log.counts()
    shops[1].log.retire([one.position for one in shops[1].log.read(0, 1)])
    with pytest.raises(Exception, match="its answer cannot be given again"):
        shops[1].decide("u", [0.5], tenant="north", id="mine")
    assert shops[0].log.counts().outcomes == records.outcomes == 51
    for shop in shops:
        shop.close()


@pytest.mark.parametrize("address", ["sqlite", "postgres"], indirect=True)
def test_an_id_that_another_gateway_takes_at_the_same_moment_gets_its_answer(tmp_path: Path, address: str) -> None:
    lines: list[str] = []
    shops = gateways(tmp_path, lines, address=address)
    recent = shops[1].service.parts.recent
    recall, theirs = recent.recall, []

    def late(requests, find, *, names: bool) -> None:
        """Both are told to a gateway after the other one has asked for them."""
        recall(requests, find, names=names)
        if not theirs:
            theirs.append(shops[0].decide("u", [0.5], tenant="north", id="same"))
            theirs.append(shops[0].reward("same", 1.0, tenant="north", key="k"))

    recent.recall = late  # type: ignore[method-assign]
    mine = shops[1].decide("u", [0.5], tenant="north", id="same")
    theirs.pop()
    assert mine == theirs[0]
    theirs.clear()
    shops[0].reward("same", 1.0, tenant="north", key="k2")
    assert shops[1].reward("same", 1.0, tenant="north", key="k2").status == "repeated"
    assert (shops[0].log.counts().decisions, shops[0].log.counts().outcomes) == (1, 2)
    assert [mark.missing for mark in shops[0].log.watermarks()] == [0]
    for shop in shops:
        shop.close()


def test_names_that_two_gateways_took_before_either_was_in_the_log_count_once(tmp_path: Path) -> None:
    log, told = open_decision_log(tmp_path / "log.db"), list[str]()
    writer = WriteAfter(log, capacity=10, tell=lambda code, words: told.append(code), clock=ManualClock())
    claims = [RecordClaim(place=0), RecordClaim(place=1, key="k", digest=b"x")]
    mine = [decision("d", 1.0, seq=0, source="b"), outcome("d", 2.0, seq=1, source="b"),
            outcome("d", 2.5, 0.5, seq=2, source="b")]  # fmt: skip
    writer.write(mine, claims)
    log.append([decision("d", 1.0, seq=0, source="a"), outcome("d", 2.0, seq=1, source="a")], claims)
    writer.start().close()
    records = [one.record for one in log.read()]
    assert [one.kind for one in records if isinstance(one, Outcome)] == ["reward", "repeated:reward", "reward"]
    assert [(mark.source, mark.watermark, mark.missing) for mark in log.watermarks()] == [("a", 1, 0), ("b", 2, 0)]
    assert told == ["record_repeated"] * 2
    view = build_view(records, as_of_s=1e6, join=JoinConfig(), tenant="shop")
    assert (view.table.reward.tolist(), view.counts.other_kinds) == ([1.5], 1)
    (batch,) = writer.flushed()
    assert (len(batch.records), writer.flushed()) == (3, [])
    log.close()
