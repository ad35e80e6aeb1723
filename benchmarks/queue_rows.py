"""Rows of the queue of runs, of which `training_service.py` is the program: its speed, shares, ledger, and what breaks
without its rules. Time is simulated but for the speed, which is in processor seconds."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from manual_clock import ManualClock
from tables import Row

from hone.core.clock import SystemClock
from hone.run.queue.database import open_queue_database
from hone.run.queue.job_queue import LostLeaseError, RunQueue

WEIGHTS = (1.0, 1.0, 2.0, 4.0) * 2
BAR_POINTS = 1.5
"""Points between a share and its entitlement."""


def cpu_s(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


class SimulatedSlots:
    """Workers of a queue under a clock that only this class moves."""

    def __init__(self, queue: RunQueue, clock: ManualClock, slots: int) -> None:
        self.queue, self.clock, self.slots = queue, clock, slots
        self.draws, self.busy_us = np.random.default_rng(0), 0

    def run(self, until_s: float) -> float:
        """Serve tenants that always have jobs; returns the part of the slots' time that was used."""
        running: list[tuple[float, int, int, float]] = []
        began = self.clock.now_s()
        while self.clock.now_s() < began + until_s:
            for one in self.queue.shares():
                for _ in range(max(0, 12 - one.queued)):
                    self.queue.submit(one.name, "job", ["x.toml"])
            while len(running) < self.slots and (job := self.queue.claim("w")) is not None:
                seconds = float(self.draws.exponential(10.0 * (1 + job.id % 3)))
                running.append((self.clock.now_s() + seconds, job.id, job.token, self.clock.now_s()))
            end, job_id, token, start = min(running)
            self.clock.advance(end - self.clock.now_s())
            self.queue.finish(job_id, token, "done")
            self.busy_us += round(self.clock.now_s() * 1e6) - round(start * 1e6)
            running.remove((end, job_id, token, start))
        for _, job_id, token, start in running:
            self.queue.finish(job_id, token, "done")
            self.busy_us += round(self.clock.now_s() * 1e6) - round(start * 1e6)
        return self.busy_us / 1e6 / self.slots / (self.clock.now_s() - began)


def largest_error(used: Sequence[float]) -> float:
    """Points between shares and entitlements."""
    return 100 * max(abs(one / sum(used) - weight / sum(WEIGHTS)) for one, weight in zip(used, WEIGHTS, strict=True))


def queue_rows(folder: Path) -> Iterator[Row]:
    """The queue on SQLite: its speed, shares of eight tenants, its ledger, and what breaks without its rules."""
    queue = RunQueue(open_queue_database(str(folder / "speed.db")), SystemClock())
    for place in range(20_000):
        queue.submit(f"t{place % 8}", f"j{place}", ["x.toml"])
    spent = cpu_s(lambda: [queue.claim("w") for _ in range(10_000)])
    yield Row(row="queue: claims of 20,000 jobs of 8 tenants, SQLite", value=10_000 / spent, unit="a CPU s",
              bar=">= 10000", met=10_000 / spent >= 10_000)  # fmt: skip
    queue.close()
    clock = ManualClock()
    queue = RunQueue(open_queue_database(str(folder / "shares.db")), clock, lease_s=1e6)
    for place, weight in enumerate(WEIGHTS):
        queue.set_tenant(f"t{place}", weight=weight)
    slots = SimulatedSlots(queue, clock, 16)
    utilisation = slots.run(20_000.0)
    error = largest_error([one.used_us for one in queue.shares()])
    yield Row(row="queue: 8 tenants 1:1:2:4, 16 slots, largest difference", value=error, unit="points",
              bar=f"<= {BAR_POINTS}", met=error <= BAR_POINTS)  # fmt: skip
    yield Row(row="queue: slots in use", value=utilisation, unit="of their time", bar=">= 0.96",
              met=utilisation >= 0.96)  # fmt: skip
    ledger = sum(one.to_us - one.from_us for one in queue.claims())
    apart = abs(ledger - sum(one.used_us for one in queue.shares())) + abs(ledger - slots.busy_us)
    yield Row(row="queue: ledger against tenants and against workers", value=apart, unit="us", bar="0", met=apart == 0)
    # First come, first served: every tenant sends as many.
    used = np.bincount(np.arange(8_000) % 8, np.random.default_rng(0).exponential(10.0, 8_000))
    fifo = largest_error(used.tolist())
    yield Row(row="negative control: first come, first served", value=fifo, unit="points", bar=f"> {BAR_POINTS}",
              met=fifo > BAR_POINTS)  # fmt: skip
    queue.close()
    yield from fencing(folder)


def fencing(folder: Path) -> Iterator[Row]:
    """A worker that was away for longer than its lease writes nothing; by the job's number alone it would."""
    clock = ManualClock()
    queue = RunQueue(open_queue_database(str(folder / "fencing.db")), clock, lease_s=10.0)
    refused = written = 0
    for place in range(100):
        queue.submit("a", f"j{place}", ["x.toml"])
        late = queue.claim("late")
        clock.advance(11.0)
        new = queue.claim("new")
        assert late is not None and new is not None and late.id == new.id
        try:
            queue.finish(late.id, late.token, "failed")
        except LostLeaseError:
            refused += 1
        newest = next(one.token for one in queue.jobs() if one.id == late.id)  # without a token of its own
        queue.finish(late.id, newest, "failed")
        written += 1
        try:
            queue.finish(new.id, new.token, "done")
        except LostLeaseError:
            continue
    yield Row(row="queue: late workers refused", value=refused, unit="of 100", bar="100", met=refused == 100)
    lost = sum(one.state == "failed" for one in queue.jobs())
    yield Row(row="negative control: results overwritten without fencing", value=lost, unit=f"of {written}", bar="> 0",
              met=lost > 0)  # fmt: skip
    queue.close()
