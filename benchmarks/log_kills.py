"""Kill sweeps of a decision log: a writer, or the server under it, dies at random moments.

What was acknowledged must be there, once.

Writers are processes of their own that append numbered records and tell each acknowledgement through a pipe. The next
writer sends the last batches again, as a client that does not know what arrived would.
"""

import multiprocessing
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from log_servers import LogServer

from hone.core.decisions import ActionSet, Choice, Decision, DecisionRecord, Outcome
from hone.core.errors import ResourceError
from hone.decide.log.opening import open_decision_log
from hone.decide.log.protocol import DecisionLog

ARMS = ActionSet(names=tuple(f"arm {number}" for number in range(10)))
BATCH = 20
START_S = 60.0


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """What a sweep found."""

    kills: int
    acked: int
    lost: int
    """Acknowledged records that the log does not have."""
    twice: int
    """Records that the log has more than once."""
    torn: int
    """Batches of which the log has a part."""


def logged_decision(seq: int, source: str = "gateway") -> Decision:
    """A decision of 10 arms and 8 features, as a gateway logs it."""
    values = np.arange(8.0) + seq
    return Decision(
        id=f"{source}-{seq:012d}", tenant="shop", unit=f"u{seq % 1000}", at_s=1.7e9 + seq * 1e-3, context=values,
        actions=ARMS, choice=Choice(action=seq % 10, logp=-2.25, scores=np.arange(10.0)), executed=seq % 10,
        executed_logp=-2.25, version="a" * 64, route="menu/b/5", draw_key=seq << 64, schema="0123456789abcdef",
        latency_s=2e-5, source=source, seq=seq,
    )  # fmt: skip


def logged_outcome(seq: int, source: str = "till") -> Outcome:
    """The reward of a decision."""
    return Outcome(
        decision_id=f"gateway-{seq:012d}", tenant="shop", value=seq / 7, at_s=1.7e9 + seq, source=source, seq=seq
    )


def batch_from(first: int) -> list[DecisionRecord]:
    """The batch that begins with a seq."""
    return [logged_decision(seq) for seq in range(first, first + BATCH)]


def write_until_killed(address: str, first: int, acks: Connection, failpoint: str) -> None:
    """Append batches and tell how many records are acknowledged, until somebody kills this process."""
    if failpoint:
        os.environ["HONE_FAILPOINT"] = failpoint
    log = open_decision_log(address)
    while True:
        log.append(batch_from(first))
        first += BATCH
        acks.send_bytes(first.to_bytes(8, "little"))


def writer_sweep(
    address: str | Path, *, kills: int, seed: int, failpoints: Sequence[str] = (), spread_s: float = 0.03
) -> SweepResult:
    """Kill a writer `kills` times at random moments within `spread_s`, then once at each failpoint."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["log_kills", "hone.decide.log.opening"])
    random, acked = np.random.default_rng(seed), 0
    for place in [""] * kills + list(failpoints):
        receiver, sender = context.Pipe(duplex=False)
        first = max(0, acked - 2 * BATCH)
        child = context.Process(target=write_until_killed, args=(str(address), first, sender, place))
        child.start()
        sender.close()
        if place:
            child.join(START_S)
        else:
            if random.random() < 0.8:  # otherwise it may die while it opens the log
                receiver.poll(START_S)
            time.sleep(random.uniform(0, spread_s))
            child.kill()
            child.join()
        acked = max(acked, _last_ack(receiver))
        receiver.close()
    log = open_decision_log(address)
    try:
        return judged(log, kills + len(failpoints), acked)
    finally:
        log.close()


def _last_ack(receiver: Connection) -> int:
    acked = 0
    try:
        while receiver.poll(0):
            acked = int.from_bytes(receiver.recv_bytes(), "little")
    except (EOFError, ConnectionResetError):
        pass
    return acked


def server_sweep(server: LogServer, *, kills: int, seed: int) -> SweepResult:
    """Kill the server `kills` times at random moments of a writer's appends, and start it again."""
    random, log = np.random.default_rng(seed), open_decision_log(server.address)
    acked, done = 0, threading.Event()

    def write() -> None:
        nonlocal acked
        while not done.is_set():
            try:
                log.append(batch_from(acked))
            except ResourceError:
                time.sleep(0.01)
            else:
                acked += BATCH

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(kills):
            before = acked
            while acked < before + 5 * BATCH:
                time.sleep(0.001)
            time.sleep(random.uniform(0, 0.02))
            server.kill()
            server.start()
    finally:
        done.set()
        writer.join()
    try:
        return judged(log, kills, acked)
    finally:
        log.close()


def judged(log: DecisionLog, kills: int, acked: int) -> SweepResult:
    """Compare a log with what it acknowledged."""
    seqs: list[int] = []
    after = 0
    while page := log.read(after, 5000):
        after = page[-1].position
        seqs += [one.record.seq for one in page]
    present = set(seqs)
    parts = {seq // BATCH for seq in present}
    return SweepResult(
        kills=kills, acked=acked, lost=len(set(range(acked)) - present), twice=len(seqs) - len(present),
        torn=sum(len(present & set(range(BATCH * part, BATCH * (part + 1)))) != BATCH for part in parts),
    )  # fmt: skip
