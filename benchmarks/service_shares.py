"""Shares of tenants of the training service that all have work: a queue that was full from the start, and clients that
send and wait."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import httpx2
import numpy as np
from queue_rows import BAR_POINTS, WEIGHTS
from service_parts import PREFIX, new_session, open_store, row_message, served, tenants_of
from starlette.testclient import TestClient
from tables import Row

from hone.text.training_service.rows import RowModel, RowResult, TrainedRow
from hone.text.training_service.run_training_service import TrainingService

SIZES = (16, 24, 40, 64)
"""Tokens of a row, tenant after tenant."""
AHEAD = 3
"""Calls that a client has sent and not seen the result of."""


def shares_of_service(folder: Path, base: Path) -> Iterator[Row]:
    """Eight tenants that always have work: shares of core-seconds while all of them wait, and the part of the training
    thread's time that was theirs. Half of them send rows one by one, the others eight at once, of other lengths."""
    service = open_store(folder, base, tenants_of(WEIGHTS))
    http, calls = TestClient(service.routes.app()), 240

    def post(tenant: int, path: str, body: bytes | dict[str, object]) -> dict[str, str]:
        sent = {"content": body} if isinstance(body, bytes) else {"json": body}
        return http.post(f"{PREFIX}/{path}", headers={"x-api-key": f"t{tenant}"}, **sent).json()

    for tenant in range(len(WEIGHTS)):
        session = post(tenant, "create_session", {})["session_id"]
        body = {"session_id": session, "model_seq_id": 0, "base_model": "base", "lora_config": {"rank": 4, "seed": 1}}
        model = post(tenant, "create_model", body)["model_id"]
        rows = 8 if tenant % 2 else 1
        for seq in range(1, calls // rows * int(max(2.0, WEIGHTS[tenant])) // 2 + 1):
            post(tenant, "forward_backward", row_message(model, seq, SIZES[tenant % len(SIZES)], rows))
    turns, spent_at = service.desk.turns, 0.0
    service.start()
    clock = time.pthread_getcpuclockid(service.trainer.thread._thread.ident)
    began = time.clock_gettime(clock)
    while True:
        time.sleep(0.02)
        with service.desk.wake:
            waiting, spent = turns.counts(), dict(turns.spent_s)
            busy = time.clock_gettime(clock) - began
        if len(waiting) < len(WEIGHTS):
            break
        work, spent_at = {name: spent.get(name, 0.0) * weight for name, weight in turns.weights.items()}, busy
    used = sum(work.values())
    off = max(abs(work[f"t{place}"] / used - weight / sum(WEIGHTS)) for place, weight in enumerate(WEIGHTS))
    yield Row(row="service: 8 tenants 1:1:2:4, largest difference", value=100 * off, unit="points",
              bar=f"<= {BAR_POINTS}", met=100 * off <= BAR_POINTS)  # fmt: skip
    share = used / spent_at
    billed = sum(amount for (_, what), amount in service.desk.ledger.usage().items() if what == "core_s")
    whole = time.clock_gettime(clock) - began
    yield Row(row="service: work of tenants in the training thread's time", value=share, unit="of CPU s",
              bar=">= 0.97", met=share >= 0.97)  # fmt: skip
    yield Row(row="service: core-seconds on bills in the training thread's time", value=billed / whole,
              unit="of CPU s", bar="0.97 to 1.03", met=0.97 <= billed / whole <= 1.03)  # fmt: skip
    service.close()


@dataclass(slots=True, eq=False)
class Work:
    """What the training thread did so far."""

    clock: int = 0
    tokens: int = 0

    def now(self) -> np.ndarray:
        """Its CPU seconds, and the tokens of its passes that are over."""
        return np.array([time.clock_gettime(self.clock), self.tokens])

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the tokens of every pass."""
        compute = RowModel.compute

        def count(model: RowModel, rows: Sequence[TrainedRow], *, gradients: bool) -> list[RowResult]:
            try:
                return compute(model, rows, gradients=gradients)
            finally:
                self.tokens += sum(len(row.tokens) for row in rows)

        with patch.object(RowModel, "compute", count):
            yield


@dataclass(slots=True, eq=False)
class LiveClient:
    """A tenant that always has `AHEAD` calls at the service, and what the training thread did while each waited."""

    tenant: int
    url: str
    work: Work
    until: threading.Event
    waits: list[np.ndarray] = field(default_factory=list[np.ndarray])

    def run(self) -> None:
        with httpx2.Client(base_url=self.url, headers={"x-api-key": f"t{self.tenant}"}, timeout=300) as http:
            model, number, sent = new_session(http), 0, list[tuple[np.ndarray, dict[str, str]]]()
            rows = 4 if self.tenant % 2 else 1
            while not self.until.is_set():
                while len(sent) < AHEAD:
                    number += 1
                    body, began = row_message(model, number, SIZES[self.tenant % 4], rows), self.work.now()
                    sent.append((began, http.post("/forward_backward", content=body).json()))
                began, promise = sent.pop(0)
                while http.post("/retrieve_future", json=promise).status_code == 408:
                    continue
                self.waits.append(self.work.now() - began)


def live_shares(folder: Path, base: Path, seconds: float) -> Iterator[Row]:
    """Eight tenants that send and wait, for some minutes: shares of core-seconds, how busy the training thread was, and
    waits. A call's bound is what the call and those before it take at the tenant's share, and two turns.

    A turn is a full pass of 512 tokens. Waits in tokens are the order's alone; those in seconds have in them that the
    price of a token changes, which the order does not."""
    service = open_store(folder, base, tenants_of(WEIGHTS))
    work = Work()
    with served(service) as url, work.counted():
        work.clock = time.pthread_getcpuclockid(service.trainer.thread._thread.ident)  # type: ignore[arg-type]
        until = threading.Event()
        clients = [LiveClient(place, url, work, until) for place in range(len(WEIGHTS))]
        threads = [threading.Thread(target=one.run) for one in clients]
        for one in threads:
            one.start()
        while min(len(one.waits) for one in clients) < AHEAD:  # the first ones came while models were made
            time.sleep(0.1)
        before, began, waited = work_of(service), work.now(), [len(one.waits) for one in clients]
        idle, looks, end = 0, 0, time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.05)
            with service.desk.wake:
                idle += not any(one.kind == "forward_backward" for one in service.desk.waiting.values())
                looks += 1
        after, done = work_of(service), work.now() - began
        waits = [np.array(one.waits[first:]) for one, first in zip(clients, waited, strict=True)]
        until.set()
        for one in threads:
            one.join()
    used = np.array([after[name] - before[name] for name in sorted(after)])
    shares, due = used / used.sum(), np.array(WEIGHTS) / sum(WEIGHTS)
    off = 100 * float(np.abs(shares - due).max())
    minutes = f"{seconds / 60:.0f} minutes"
    yield Row(row=f"service: 8 live clients 1:1:2:4, {minutes}, largest difference", value=off, unit="points",
              bar=f"<= {BAR_POINTS}", met=bool(off <= BAR_POINTS))  # fmt: skip
    share = float(used.sum() / done[0])
    yield Row(row="the same: work of tenants in the training thread's time", value=share, unit="of CPU s",
              bar=">= 0.96", met=share >= 0.96)  # fmt: skip
    busy = 1 - idle / looks
    yield Row(row="the same: looks at which a call was there", value=busy, unit=f"of {looks}", bar=">= 0.96",
              met=busy >= 0.96)  # fmt: skip
    tokens = np.array([SIZES[place % 4] * (4 if place % 2 else 1) for place in range(len(WEIGHTS))])
    prices = np.array([amount / len(own) for amount, own in zip(used, waits, strict=True)])
    for column, (measure, call, turn, bar) in enumerate((
        ("seconds", prices, 512 * done[0] / done[1], None), ("tokens", tokens, 512.0, "<= 2"),
    )):  # fmt: skip
        late = np.array([np.percentile(own[:, column], 95) for own in waits])
        over = (late - AHEAD * call / due) / turn
        yield Row(row=f"the same: p95 wait of a call beyond its tenant's share, in {measure}, the longest",
                  value=float(over.max()), unit="turns", low=float(over.min()), high=float(over.max()), bar=bar,
                  met=None if bar is None else bool(over.max() <= 2))  # fmt: skip
    yield Row(row="the same: calls", value=sum(len(one) for one in waits), unit="calls")


def work_of(service: TrainingService) -> dict[str, float]:
    """Core-seconds on tenants' bills so far."""
    return {tenant: amount for (tenant, what), amount in service.desk.ledger.usage().items() if what == "core_s"}
