"""The decision log: its speed on each engine, what `kill -9` leaves, and records that arrive twice and out of order.

The negative controls are two logs that look right and are not: one without the key (source, seq), which stores twice
what is sent twice, and a Redis stream whose entries have their seqs for ids, which refuses what arrives late.
"""

import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import numpy as np
from log_kills import SweepResult, logged_decision, logged_outcome, server_sweep, writer_sweep
from log_servers import LogServer, MissingServerError, postgres_server, redis_server

from decision_systems import AcceptanceLine, cpu_seconds, slack
from hone.core.decisions import DecisionRecord
from hone.decide.log.opening import open_decision_log, open_sqlite_log
from hone.decide.log.protocol import DecisionLog

TITLE = "Decision log"
SEED = 100
BATCH = 100
SERVERS: tuple[tuple[str, Callable[[], LogServer]], ...] = (("PostgreSQL", postgres_server), ("Redis", redis_server))


def acceptance(*, fast: bool) -> Iterator[AcceptanceLine]:
    """Figures of SQLite in both forms; those of the servers in full, where the machine has them."""
    with tempfile.TemporaryDirectory(prefix="hone-log-") as name:
        folder = Path(name)
        yield from _sqlite_speed(folder, events=6_000 if fast else 200_000, full=not fast)
        yield from _any_order(folder, events=1_500 if fast else 20_000)
        yield from _kills("SQLite", partial(writer_sweep, folder / "k.db", seed=SEED), 8 if fast else 100)
        yield _without_a_key(events=1_500 if fast else 20_000)
    yield from _explicit_ids(events=1_000 if fast else 5_000)
    if not fast:
        for engine, make in SERVERS:
            yield from _server(engine, make)


def _records(events: int) -> list[DecisionRecord]:
    """Half decisions of 10 arms and 8 features, half rewards."""
    half = events // 2
    return [logged_decision(seq) for seq in range(half)] + [logged_outcome(seq) for seq in range(half)]


def _append_all(log: DecisionLog, records: Sequence[DecisionRecord]) -> tuple[float, float, float]:
    """Append in batches of 100 -> events a processor second, events a second, 99th percentile of a batch in ms."""
    took: list[float] = []
    with cpu_seconds() as spent:
        for begin in range(0, len(records), BATCH):
            started = time.perf_counter()
            log.append(records[begin : begin + BATCH])
            took.append(time.perf_counter() - started)
    return len(records) / spent.spent, len(records) / sum(took), 1e3 * float(np.quantile(took, 0.99))


def _sqlite_speed(folder: Path, *, events: int, full: bool) -> Iterator[AcceptanceLine]:
    records = _records(events)
    for sync in (False, True) if full else (False,):
        log = open_sqlite_log(folder / f"speed-{sync}.db", full_sync=sync)
        with cpu_seconds() as spent:
            rate, wall_rate, late_ms = _append_all(log, records)
        log.close()
        mode = "FULL" if sync else "NORMAL"
        yield AcceptanceLine(
            figure=f"SQLite, synchronous={mode}: events a processor second", value=round(rate), cpu_s=spent.spent,
            at_least=None if sync else 50_000 / slack(fast=not full),
            words=f"batches of {BATCH}, {events} events; {wall_rate:.0f} events/s by the clock, p99 {late_ms:.1f} ms",
        )  # fmt: skip


def _shuffled(events: int) -> list[DecisionRecord]:
    """Records in random order, with a third sent again: windows of uploads that were doubled."""
    records, random = _records(events), np.random.default_rng(SEED)
    order = random.permutation(len(records))
    return [records[place] for place in [*order, *order[: len(order) // 3]]]


def _any_order(folder: Path, *, events: int) -> Iterator[AcceptanceLine]:
    sent = _shuffled(events)
    with cpu_seconds() as spent:
        log = open_decision_log(folder / "order.db")
        for begin in range(0, len(sent), BATCH):
            log.append(sent[begin : begin + BATCH])
        counts, marks = log.counts(), log.watermarks()
        log.close()
    stored = counts.decisions + counts.outcomes
    wrong = abs(stored - events) + abs(counts.repeated - (len(sent) - events)) + sum(one.missing for one in marks)
    yield AcceptanceLine(
        figure="SQLite: records stored twice, lost or counted wrong", value=wrong, at_most=0, cpu_s=spent.spent,
        words=f"{events} records in random order, a third of them sent again",
    )  # fmt: skip


def _kills(engine: str, sweep: Callable[..., SweepResult], kills: int) -> Iterator[AcceptanceLine]:
    with cpu_seconds() as spent:
        result = sweep(kills=kills)
    yield AcceptanceLine(
        figure=f"{engine}: acknowledged records lost, or stored twice or in part, after kill -9",
        value=result.lost + result.twice + result.torn, at_most=0, cpu_s=spent.spent,
        words=f"{result.kills} kills at random moments, {result.acked} records acknowledged",
    )  # fmt: skip


def _without_a_key(*, events: int) -> AcceptanceLine:
    """Duplicates of a log that has no key (source, seq), sent the same records."""
    sent = _shuffled(events)
    table = sqlite3.connect(":memory:")
    table.execute("create table records (source text, seq integer)")
    table.executemany("insert into records values (?, ?)", [(one.source, one.seq) for one in sent])
    twice = table.execute("select count(*) - count(distinct source || ':' || seq) from records").fetchone()[0]
    table.close()
    return AcceptanceLine(
        figure="records stored twice by a log without (source, seq)", value=twice, at_least=1, negative=True,
        words=f"{events} records, a third of them sent again",
    )  # fmt: skip


def _explicit_ids(*, events: int) -> Iterator[AcceptanceLine]:
    """Share that a Redis stream keeps of records in random order, with and without ids made of seqs."""
    try:
        with _running(redis_server) as server:
            order = np.random.default_rng(SEED).permutation(events)
            kept = _kept_by_explicit_ids(server.address, order) / events
            log = open_decision_log(server.address)
            _append_all(log, [logged_decision(int(seq)) for seq in order])
            held = log.counts().decisions / events
            log.close()
    except (MissingServerError, ImportError) as missing:
        print(f"log: the control with Redis is left out: {missing}")
        return
    words = f"{events} records in random order"
    yield AcceptanceLine(figure="Redis: share of records kept", value=held, at_least=1.0, words=words)
    yield AcceptanceLine(
        figure="share kept by a Redis stream with ids made of seqs", value=kept, at_most=0.5, negative=True, words=words
    )


def _kept_by_explicit_ids(address: str, order: Iterable[int]) -> int:
    import redis  # noqa: PLC0415 - an extra

    with redis.Redis.from_url(address) as client:
        for seq in order:
            with suppress(redis.ResponseError):  # the id is below the last one
                client.xadd("naive", {"seq": int(seq)}, id=f"{seq + 1}-0")
        return int(client.xlen("naive"))


@contextmanager
def _running(make: Callable[[], LogServer]) -> Iterator[LogServer]:
    server = make()
    try:
        server.start()
        yield server
    finally:
        server.remove()


def _server(engine: str, make: Callable[[], LogServer]) -> Iterator[AcceptanceLine]:
    """Speed of a server's log, and kill sweeps of its writers and of itself; each on an empty server."""
    try:
        with _running(make) as server:
            log = open_decision_log(server.address)
            with cpu_seconds() as spent:
                _, rate, late_ms = _append_all(log, _records(20_000))
            log.close()
            yield AcceptanceLine(
                figure=f"{engine}: events a second, by the clock", value=round(rate), cpu_s=spent.spent,
                words=f"batches of {BATCH}, one connection, each flushed; p99 of a batch {late_ms:.1f} ms",
            )  # fmt: skip
        with _running(make) as server:
            yield from _kills(f"{engine}, writer", partial(writer_sweep, server.address, seed=SEED, spread_s=0.2), 30)
        with _running(make) as server:
            yield from _kills(f"{engine}, server", partial(server_sweep, server, seed=SEED), 20)
    except (MissingServerError, ImportError) as missing:
        print(f"log: {engine} is left out: {missing}")
