"""The gateway: latency in process and over HTTP, a flooding tenant, answers while policies fail, memory.

Seconds are processor seconds of the server, which a busy machine does not change; the full form adds the wall clock of
a quiet one.
"""

import math
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from gateway_load import FLOOD_CONNECTIONS, FLOOD_SERVICE, SHOP, FloodResult, ServedProcess, flood, load

from decision_systems import AcceptanceLine, cpu_seconds, slack
from hone.core.clock import SystemClock
from hone.core.decisions import ActionSet, Choice, Floats
from hone.decide.gateway.fallback_chain import FallbackChain, GuardedPolicy, SafeDefault, ServingVersion
from hone.decide.gateway.opening import OpenedService, open_service
from hone.decide.monitor.monitor import resident_bytes

TITLE = "Gateway"
LINUCB = 'kind = "linucb"'
SLOW_LINUCB = f"{LINUCB}\npublish_every = 1000"


def acceptance(*, fast: bool) -> Iterator[AcceptanceLine]:
    """Lines of the gateway."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shop.toml"
        path.write_text(SHOP, encoding="utf-8")
        yield from in_process(path, 500 if fast else 20_000, fast=fast)
        yield from over_http(path, 400 if fast else 20_000, fast=fast)
        yield from failing_policies(300 if fast else 5000)
        if not fast:  # another process's memory, and more decisions than 20 seconds hold
            yield from memory(Path(folder), 1_000_000)
        yield from flooded(Path(folder), 1.0 if fast else 20.0, fast=fast)


def opened_service(path: Path) -> OpenedService:
    """The service of a file; log lines go nowhere."""
    return open_service(path, clock=SystemClock(), tell=_ignored)


def _ignored(line: str) -> None:
    del line


def context_of(number: int) -> Floats:
    """Eight features."""
    return np.cos(np.arange(8.0) + number)


def in_process(path: Path, count: int, *, fast: bool) -> Iterator[AcceptanceLine]:
    """Processor time of one decision with a durable log: LinUCB, 10 actions, 8 features, rewards learnt."""
    opened = opened_service(path)
    spent: list[float] = []
    with cpu_seconds() as cpu:
        for number in range(count):
            began = time.process_time()
            decided = opened.decide(f"u{number}", context_of(number))
            spent.append(time.process_time() - began)
            opened.reward(decided.id, float(decided.index == number % 10))
    opened.close()
    yield AcceptanceLine(
        figure="a decision in process with a durable log, processor time p50, us", value=1e6 * statistics.median(spent),
        at_most=400.0 * slack(fast=fast), cpu_s=cpu.spent, words=f"{count} decisions, LinUCB, 10 actions, SQLite",
    )  # fmt: skip


def over_http(path: Path, count: int, *, fast: bool) -> Iterator[AcceptanceLine]:
    """Processor time of the server, and in the full form wall-clock latency."""
    with ServedProcess(path) as server:
        load(server, count // 4, connections=1)
        alone = load(server, count, connections=1)
        together = load(server, count, connections=16)
    yield AcceptanceLine(
        figure="decisions a second of one core over HTTP, durable log", value=1 / together.cpu_s,
        at_least=1500.0 / slack(fast=fast), cpu_s=together.cpu_s * count,
        words=f"{count} decisions over 16 connections",
    )  # fmt: skip
    if not fast:
        waits = np.array(alone.waits_s)
        for percent, bar_ms in ((50, 0.5), (99, 10.0)):
            yield AcceptanceLine(
                figure=f"a decision over HTTP, durable log, p{percent}, ms", cpu_s=alone.cpu_s * count,
                value=1000 * float(np.percentile(waits, percent)), at_most=bar_ms,
                words=f"wall clock of {count} decisions, one connection; a quiet machine",
            )  # fmt: skip


class FaultyPolicy:
    """A policy that raises, gives no number, or stalls, one decision after another."""

    def __init__(self, stall_s: float) -> None:
        self.calls = 0
        self._stall_s = stall_s

    def logp(self, context: Floats, actions: ActionSet) -> Floats:
        """Uniform."""
        del context
        return np.full(len(actions), -math.log(len(actions)))

    def logp_rows(self, contexts: Floats, actions: ActionSet) -> Floats:
        """Uniform."""
        return np.tile(self.logp(contexts, actions), (len(contexts), 1))

    def act(self, context: Floats, actions: ActionSet, draw_key: int) -> Choice:
        """Fail in one of three ways."""
        del context, actions, draw_key
        self.calls += 1
        if self.calls % 3 == 0:
            time.sleep(self._stall_s)
        if self.calls % 3 == 1:
            raise RuntimeError("no model")
        return Choice(action=0, logp=math.nan)


def failing_policies(count: int) -> Iterator[AcceptanceLine]:
    """Share of requests that are answered soundly, in time, while the policy fails at every one."""
    clock, actions = SystemClock(), ActionSet(names=("a", "b", "c"))
    default = SafeDefault()
    safe = ServingVersion(name=default.version, policy=default)
    policy = FaultyPolicy(stall_s=0.2)
    guard = GuardedPolicy(policy, clock).start()
    guarded = FallbackChain((ServingVersion(name="faulty", policy=policy, guard=guard), safe), clock)
    bare = FallbackChain((ServingVersion(name="faulty", policy=FaultyPolicy(stall_s=0.2)), safe), clock)
    with cpu_seconds() as cpu:
        answered = [answers(guarded, actions, key << 75, deadline_s=0.05) for key in range(count)]
    guard.close()
    yield AcceptanceLine(
        figure="answers under exceptions and stalls", value=sum(answered) / count, at_least=1.0, cpu_s=cpu.spent,
        words=f"{count} requests, deadline 50 ms, each logged with the distribution that it was drawn from",
    )  # fmt: skip
    tries = 6
    with cpu_seconds() as cpu:
        answered = [answers(bare, actions, key << 75, deadline_s=0.05) for key in range(tries)]
    yield AcceptanceLine(
        figure="answers in time without a guard", value=sum(answered) / tries, at_most=0.7, negative=True,
        cpu_s=cpu.spent, words=f"{tries} requests, a third of them stalls",
    )  # fmt: skip


def answers(chain: FallbackChain, actions: ActionSet, key: int, *, deadline_s: float) -> bool:
    """True if a sound choice came before twice the deadline (threads wake late on a busy machine)."""
    began_s = time.monotonic()
    served = chain.choose(np.zeros(1), actions, key, began_s + deadline_s)
    sound = served.version == "default:uniform" and served.choice.logp == -math.log(3)
    return sound and time.monotonic() - began_s < max(2 * deadline_s, 0.15)


def memory(folder: Path, count: int) -> Iterator[AcceptanceLine]:
    """Growth of the process's memory over decisions, after its bounded memories are full."""
    path = folder / "slim.toml"
    path.write_text(
        SHOP.replace("[service]", "[service]\nremember = 500").replace(LINUCB, SLOW_LINUCB), encoding="utf-8"
    )
    opened = opened_service(path)
    points: list[tuple[float, float]] = []
    begin = count // 3
    with cpu_seconds() as cpu:
        for number in range(count):
            decided = opened.decide(f"u{number}", context_of(number))
            opened.reward(decided.id, 0.0)
            if number >= begin and number % 100 == 0:
                points.append((float(number), resident_bytes()))
    opened.close()
    done, resident = np.array(points).T
    slope = float(np.polyfit(done, resident, 1)[0])
    yield AcceptanceLine(
        figure="growth of the memory, bytes a 1,000 decisions", value=1000 * slope, cpu_s=cpu.spent,
        at_most=1024.0, words=f"{count} decisions, each rewarded, a version every 1,000; slope of the last two thirds",
    )  # fmt: skip


def flooded(folder: Path, seconds: float, *, fast: bool) -> Iterator[AcceptanceLine]:
    """A flooding tenant beside a calm one, with the limiter and without."""
    path = folder / "flooded.toml"
    results: list[FloodResult] = []
    for text in (FLOOD_SERVICE, FLOOD_SERVICE.replace("per_s = 50", "per_s = 0")):
        path.write_text(text, encoding="utf-8")
        with ServedProcess(path) as server:
            results.append(flood(server, seconds))
    limited, free = results
    words = f"{seconds:g} s of {FLOOD_CONNECTIONS} connections that repeat at once; allowed: 50 a second, 10 at once"
    bar = 50.0 + 10.0 / seconds + 3.0
    yield AcceptanceLine(
        figure="decisions a second that a flooding tenant gets", value=limited.decided_per_s, at_most=bar, words=words
    )
    yield AcceptanceLine(
        figure="decisions a second without the limiter", value=free.decided_per_s, at_least=bar, negative=True,
        words="the same flood",
    )  # fmt: skip
    if not fast:
        yield AcceptanceLine(
            figure="p99 of the other tenant under the flood, times its own", at_most=2.0,
            value=limited.flooded_p99_s / limited.quiet_p99_s, words="wall clock; a quiet machine",
        )  # fmt: skip
        yield AcceptanceLine(
            figure="p99 of the other tenant without the limiter, times its own", at_least=2.0, negative=True,
            value=free.flooded_p99_s / free.quiet_p99_s, words="wall clock; a quiet machine",
        )  # fmt: skip
