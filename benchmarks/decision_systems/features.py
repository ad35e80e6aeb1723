"""A feature store in front of the gateway: what was served is what is logged, whatever happens to the store.

Stores in memory, in a file of SQLite and in a Redis server of this machine, through the service and its log. A nightly
job changes rows between decisions and afterwards. The control joins the features when the view is made, from the store
as it is then. Drills: a server that is killed, one that is paused, a job that is killed in the middle of its rows, and
one that holds the file's lock.
"""

import importlib.util
import json
import math
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from log_servers import LogServer, MissingServerError, redis_server

from decision_systems import AcceptanceLine, cpu_seconds, slack
from hone.core.clock import SystemClock
from hone.core.decisions import Decision, Floats
from hone.core.random import generator
from hone.decide.gateway.feature_store import EntityKey
from hone.decide.gateway.opening import OpenedService, open_service, pages
from hone.decide.gateway.requests import DecisionRequest
from hone.decide.simulators.recommendation import SimulatedClock

TITLE = "Feature store"
SEED, VISITORS, STORED = 100, 50, ("spent", "visits", "age_days")
SERVICE = """
[service]
features = ["hour", {stored}]
actions = ["banner", "mail", "none"]
safe_action = "none"
deadline_s = {whole_s}
seed = {seed}

[policy]
kind = "linucb"
floor = 0.05
publish_every = 50

[join]
rule = "first"
"""
TABLE = """
[features]
address = "{address}"
deadline_s = {deadline_s}

[[features.groups]]
name = "visitor"
features = [{stored}]
missing = "safe"
"""
NAMES = ", ".join(f'"{name}"' for name in STORED)


def acceptance(*, fast: bool) -> Iterator[AcceptanceLine]:
    """Figures of the system."""
    rounds = 300 if fast else 3_000
    with redis_of_this_machine() as server:
        addresses = {"memory": ":memory:", "SQLite": "features.db"} | ({"Redis": server.address} if server else {})
        yield from logged_lines(addresses, rounds)
        yield from killed_job_line(2 if fast else 20)
        yield locked_file_line(50 if fast else 500)
        if server is not None:
            yield from server_lines(server, 100 if fast else 1_000)
        yield from speed_lines(addresses, fast=fast)


@contextmanager
def redis_of_this_machine() -> Iterator[LogServer | None]:
    """A Redis server within the block; None, told, where there is none."""
    try:
        if importlib.util.find_spec("redis") is None:
            raise MissingServerError("the client of Redis is not installed: pip install 'hone-rl[redis]'")
        server = redis_server()
    except MissingServerError as missing:
        print(f"the feature store in Redis is left out: {missing}", file=sys.stderr, flush=True)
        yield None
        return
    server.start()
    try:
        yield server
    finally:
        server.remove()


@contextmanager
def service(address: str, *, deadline_s: float = 2.0, clock: SimulatedClock | None = None) -> Iterator[OpenedService]:
    """A service in a folder of its own; empty `address`: requests send all features."""
    with tempfile.TemporaryDirectory() as folder:
        text = SERVICE.format(stored=NAMES, whole_s=4 * deadline_s, seed=SEED)
        if address:
            text += TABLE.format(address=address, deadline_s=deadline_s, stored=NAMES)
        path = Path(folder) / "shop.toml"
        path.write_text(text, encoding="utf-8")
        opened = open_service(path, clock=clock or SystemClock(), tell=list[str]().append)
        try:
            yield opened
        finally:
            opened.close()


def decisions(shop: OpenedService) -> list[Decision]:
    """The decisions of a service's log."""
    return [one.record for one in pages(shop.log) if isinstance(one.record, Decision)]


# ---------------------------------------------------------------------------------------------- what is logged


def serve_changing(shop: OpenedService, rounds: int) -> Floats:
    """Decide for visitors whose rows a job changes now and then -> the whole contexts `[n, d]` as they had to be."""
    random, rows, expected = generator(SEED, "rows"), np.zeros((VISITORS, len(STORED))), list[Floats]()
    for number in range(rounds):
        assert isinstance(shop.clock, SimulatedClock)
        shop.clock.time_s += 1.0
        if number % 10 == 0:  # all rows at first, then those of some visitors
            chosen = np.arange(VISITORS) if number == 0 else random.integers(0, VISITORS, 20)
            rows[chosen] = random.normal(size=(len(chosen), len(STORED)))
            put_rows(shop, rows, chosen.tolist())
        visitor, hour = int(random.integers(VISITORS)), float(random.random())
        decided = shop.decide(f"v{visitor}", {"hour": hour}, id=f"d{number}")
        shop.reward(decided.id, float(random.random() < 0.2 + 0.1 * decided.index))
        expected.append(np.array([hour, *rows[visitor]]))
    return np.array(expected)


def put_rows(shop: OpenedService, rows: Floats, visitors: Sequence[int]) -> None:
    """Store the rows of some visitors, as of now."""
    values = {f"v{one}": dict(zip(STORED, rows[one].tolist(), strict=True)) for one in visitors}
    shop.put_features("visitor", values)


def joined_late(shop: OpenedService, made: Sequence[Decision]) -> Floats:
    """The contexts `[n, d]` of decisions with the features that the store holds now: the join that is wrong."""
    join = shop.service.parts.features
    assert join is not None
    keys = [EntityKey(one.tenant, "visitor", one.unit) for one in made]
    held = join.store.read(dict.fromkeys(keys, STORED))
    rows = ([float(held[key][name].value) for name in STORED] for key in keys)
    return np.array([[one.context[0], *row] for one, row in zip(made, rows, strict=True)])


def replays_that_differ(shop: OpenedService, made: Sequence[Decision], contexts: Floats) -> int:
    """Decisions that their version makes otherwise in other contexts `[n, d]`."""
    again = [shop.replay(replace(one, context=context)) for one, context in zip(made, contexts, strict=True)]
    return sum((a.action, a.logp) != (one.executed, one.executed_logp) for a, one in zip(again, made, strict=True))


def logged_lines(addresses: dict[str, str], rounds: int) -> Iterator[AcceptanceLine]:
    """Logged features beside the rows of the moment, and views beside a store that changes afterwards."""
    wrong = changed = late = differing = differing_late = 0
    with cpu_seconds() as cpu:
        for address in addresses.values():
            with service(address, clock=SimulatedClock()) as shop:
                expected = serve_changing(shop, rounds)
                before, made = shop.view().table, decisions(shop)
                early = joined_late(shop, made)
                wrong += int((before.contexts != expected).any(axis=1).sum())
                differing += replays_that_differ(shop, made, np.array([one.context for one in made]))
                shop.clock.time_s += 1.0  # type: ignore[attr-defined]
                put_rows(shop, generator(SEED, "later").normal(size=(VISITORS, len(STORED))), range(VISITORS))
                after = shop.view().table
                changed += int((after.contexts != before.contexts).any(axis=1).sum())
                afterwards = joined_late(shop, made)
                late += int((afterwards != early).any(axis=1).sum())
                differing_late += replays_that_differ(shop, made, afterwards)
    count, stores = len(addresses) * rounds, ", ".join(addresses)
    words = f"{count:,} decisions; stores: {stores}"
    yield AcceptanceLine(
        figure="logged features that are not those of the moment", value=wrong, at_most=0, cpu_s=cpu.spent, words=words
    )
    yield AcceptanceLine(figure="rows of a view that a changed store changes", value=changed, at_most=0, words=words)
    yield AcceptanceLine(figure="replays that differ", value=differing, at_most=0, words=words)
    yield AcceptanceLine(
        figure="share of rows that a changed store changes, joined when the view is made", value=late / count,
        at_least=0.1, negative=True, words=words,
    )  # fmt: skip
    yield AcceptanceLine(
        figure="share of replays that differ, joined when the view is made", value=differing_late / count, at_least=0.1,
        negative=True, words=words,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------- drills

JOB = """
import json, sys
from pathlib import Path
from hone.cli.main import main
sys.exit(main(["service", sys.argv[1], "--features", sys.argv[2]]))
"""


def killed_job_line(kills: int) -> Iterator[AcceptanceLine]:
    """Jobs that are killed while they store their rows: all of a job's rows are there, or none."""
    torn, reached, random = 0, 0, generator(SEED, "kills")
    with service("features.db") as shop, cpu_seconds() as cpu:
        path, rows = shop.folder.parent / "shop.toml", shop.folder.parent / "rows.jsonl"
        for kill in range(kills):
            values = {f"v{one}": dict.fromkeys(STORED, float(kill)) for one in range(5_000)}
            rows.write_text(json.dumps({"group": "visitor", "rows": values}) + "\n", encoding="utf-8")
            job = subprocess.Popen([sys.executable, "-c", JOB, str(path), str(rows)], stdout=subprocess.DEVNULL)
            while job.poll() is None and not is_locked(shop.folder / "features.db"):
                time.sleep(0.0005)
            time.sleep(float(random.random()) * 0.03)
            reached += job.poll() is None
            os.kill(job.pid, signal.SIGKILL)
            job.wait()
            with closing(sqlite3.connect(shop.folder / "features.db")) as store:
                torn += store.execute("select count(distinct value) from features").fetchone()[0] > 1
    yield AcceptanceLine(
        figure="killed jobs of which the store has a part of the rows", value=torn, at_most=0, cpu_s=cpu.spent,
        words=f"{kills} jobs of 5,000 rows in a file of SQLite, {reached} of them killed while they stored",
    )  # fmt: skip


def is_locked(path: Path) -> bool:
    """True while another process writes to a file of SQLite."""
    with closing(sqlite3.connect(path, timeout=0.0, isolation_level=None)) as probe:
        try:
            probe.execute("begin immediate")
            probe.execute("rollback")
        except sqlite3.OperationalError:
            return True
    return False


def locked_file_line(count: int) -> AcceptanceLine:
    """Decisions while a job holds the file's lock."""
    with service("features.db") as shop, cpu_seconds() as cpu:
        put_rows(shop, np.ones((VISITORS, len(STORED))), range(VISITORS))
        with closing(sqlite3.connect(shop.folder / "features.db", isolation_level=None)) as job:
            job.execute("begin immediate")
            job.execute("update features set value = 2.0")
            for number in range(count):
                shop.decide(f"v{number % VISITORS}", {"hour": 0.5})
            job.execute("rollback")
        other = sum(one.context.tolist() != [0.5, 1.0, 1.0, 1.0] for one in decisions(shop))
    return AcceptanceLine(
        figure="decisions without the stored features while a job holds the lock of the file", value=other, at_most=0,
        cpu_s=cpu.spent, words=f"{count} decisions",
    )  # fmt: skip


def server_lines(server: LogServer, count: int) -> Iterator[AcceptanceLine]:
    """A Redis that is paused, then killed: every request is answered, by the safe action and its own probability."""
    unanswered = wrong = waits = fresh = 0
    with service(server.address, deadline_s=0.05) as shop, cpu_seconds() as cpu:
        put_rows(shop, np.ones((VISITORS, len(STORED))), range(VISITORS))
        join = shop.service.parts.features
        assert join is not None and server.process is not None
        for pause in (True, False):
            if pause:
                os.killpg(server.process.pid, signal.SIGSTOP)
            else:
                server.kill()
            first = len(decisions(shop))
            for number in range(count):
                shop.decide(f"v{number % VISITORS}", {"hour": 0.5})
                waits += pause and join.waited_s >= 0.05
            made = decisions(shop)[first:]
            unanswered += count - len(made)
            safe = (2, 0.0, "fallback: features: visitor late")
            wrong += sum((one.executed, one.executed_logp, one.choice.intervention) != safe for one in made)
            if pause:
                os.killpg(server.process.pid, signal.SIGCONT)
            else:
                server.start()
            fresh += answers_again(shop)
    words = f"{count} decisions by each, deadline 50 ms"
    yield AcceptanceLine(
        figure="requests without an answer while the server is paused or killed", value=unanswered, at_most=0,
        cpu_s=cpu.spent, words=words,
    )  # fmt: skip
    yield AcceptanceLine(
        figure="decisions of these that are not the safe action with its own probability", value=wrong, at_most=0,
        words=words,
    )  # fmt: skip
    yield AcceptanceLine(
        figure="requests that waited for the deadline while the server was paused", value=waits, at_most=2,
        words="one while its answer is out; the client sends once more",
    )  # fmt: skip
    yield AcceptanceLine(
        figure="times that the store is read again after the drill", value=fresh, at_least=2, words="of 2"
    )


def answers_again(shop: OpenedService) -> bool:
    """True if the stored features are joined again, within a while."""
    for _ in range(400):
        if not shop.decide("v0", {"hour": 0.5}).intervention:
            return True
        time.sleep(0.02)
    return False


# ---------------------------------------------------------------------------------------------- speed


def decisions_per_cpu_s(shop: OpenedService, count: int, batch: int) -> float:
    """Decisions for each second of processor time, `batch` of them answered together; of all threads."""
    context = {"hour": 0.5} if shop.config.features else {"hour": 0.5, **dict.fromkeys(STORED, 1.0)}
    requests = [DecisionRequest(unit=f"v{number % VISITORS}", context=context) for number in range(count)]
    with cpu_seconds() as cpu:
        for begin in range(0, count, batch):
            shop.service.answer_many(requests[begin : begin + batch])
    return count / cpu.spent


def speed_lines(addresses: dict[str, str], *, fast: bool) -> Iterator[AcceptanceLine]:
    """Decisions a second of processor time with a store, as a share of those without one."""
    count, repetitions = (200, 3) if fast else (2_000, 7)
    for name, address in addresses.items():
        with service(address) as shop, service("") as plain:
            put_rows(shop, np.ones((VISITORS, len(STORED))), range(VISITORS))
            for batch, bar in ((1, 0.25), (20, 0.45)) if name == "Redis" else ((1, 0.5), (20, 0.6)):
                rates = np.array(  # in turns, as the processor may change its speed
                    [[decisions_per_cpu_s(one, count, batch) for one in (shop, plain)] for _ in range(repetitions)]
                )
                with_store, without = np.median(rates, axis=0)
                yield AcceptanceLine(
                    figure=f"decisions a second of processor time with the store in {name}, share of those without one",
                    value=float(np.median(rates[:, 0] / rates[:, 1])), at_least=bar / math.sqrt(slack(fast=fast)),
                    words=f"answered {batch} at a time: {with_store:,.0f} and {without:,.0f}",
                )  # fmt: skip
