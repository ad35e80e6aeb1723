"""Calls of the sandbox: their latency, how many a second, and the battery of hostile programs on the best rung.

Times depend on what else the machine does, so each comes with the processor time of a call, which does not: a call a
second for each 1/x processor seconds. The load is the machine's run queue when the calls began.
"""

import os
import resource
import threading
import time

import numpy as np
from demonstrations import Bar

from hone.sandbox.battery import run_battery
from hone.sandbox.policy import SandboxPolicy
from hone.sandbox.run import CodeSandbox

TITLE = "Sandbox"
SEEDS = (100, 101, 102)
BARS = (
    Bar(figure="median call (ms)", at_most=20),
    Bar(figure="calls a second with 2 processors of their own", at_least=200),
    Bar(figure="hostile programs held, of 23", at_least=23),
    Bar(figure="ordinary programs that ran, of 4", at_least=4),
)
PROGRAM = "import math\nsum(math.sqrt(x) for x in range({seed}))"


def figures(seed: int, *, quick: bool) -> dict[str, float]:
    """Latency and throughput with two warm processes, and what the battery found."""
    calls = 20 if quick else 400
    load = os.getloadavg()[0]
    with CodeSandbox(SandboxPolicy(), zygotes=2) as sandbox:
        program = PROGRAM.format(seed=seed)
        sandbox.run(program)
        seconds: list[float] = []
        for _ in range(calls):
            began = time.perf_counter()
            assert sandbox.run(program).verdict == "ok"
            seconds.append(time.perf_counter() - began)
        rate = _calls_a_second(sandbox, program, calls)
    outcomes = run_battery()
    return {
        "median call (ms)": 1000 * float(np.median(seconds)),
        "95th percentile (ms)": 1000 * float(np.quantile(seconds, 0.95)),
        "calls a second, 2 at a time, on this loaded machine": rate,
        "load": load,
        "calls a second with 2 processors of their own": 2 / _cpu_s_of_a_call(program, calls),
        "hostile programs held, of 23": float(sum(one.good for one in outcomes if one.hostile)),
        "ordinary programs that ran, of 4": float(sum(one.good for one in outcomes if not one.hostile)),
    }


def _calls_a_second(sandbox: CodeSandbox, program: str, calls: int) -> float:
    """Calls a second of two threads that do nothing else."""
    threads = [threading.Thread(target=lambda: [sandbox.run(program) for _ in range(calls)]) for _ in range(2)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 2 * calls / (time.perf_counter() - began)


def _cpu_s_of_a_call(program: str, calls: int) -> float:
    """Processor seconds of a call: of this process, the warm one and all that it forks, which are counted at its end.

    The least of five parts: other processes make caches cold, and so calls dearer.
    """
    parts: list[float] = []
    for _ in range(5):
        few, many = _spent(program, 1), _spent(program, calls // 5 + 1)
        parts.append((many - few) / (calls // 5))
    return min(parts)


def _spent(program: str, calls: int) -> float:
    """Processor seconds of a sandbox that runs a program so often, from its start to its end."""
    before = _cpu_s()
    with CodeSandbox(SandboxPolicy()) as sandbox:
        for _ in range(calls):
            sandbox.run(program)
    return _cpu_s() - before


def _cpu_s() -> float:
    used = [resource.getrusage(which) for which in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
