"""Calls of the sandbox: their latency, how many a second, and the battery of hostile programs on the best rung.

Times by the clock depend on what else the machine does, so they come with its load, the number of processes that want
to run, and with the processor time of a call. Each is the best of five parts: other processes only make calls dearer.
"""

import os
import resource
import threading
import time

import numpy as np
from demonstrations import Bar

from hone.sandbox.battery import run_battery
from hone.sandbox.frames import SandboxPolicy
from hone.sandbox.run import CodeSandbox

TITLE = "Sandbox"
SEEDS = (100, 101, 102)
BARS = (
    Bar(figure="median call by the clock (ms)", at_most=20),
    Bar(figure="calls a second of two free processors, from the processor time", at_least=200),
    Bar(figure="hostile programs held, of 23", at_least=23),
    Bar(figure="ordinary programs that ran, of 4", at_least=4),
)
_PARTS = 5
PROGRAM = "import math\nsum(math.sqrt(x) for x in range({seed}))"


def figures(seed: int, *, quick: bool) -> dict[str, float]:
    """Latency and throughput with two warm processes, and what the battery found."""
    calls = 4 if quick else 40
    load = os.getloadavg()[0]
    with CodeSandbox(SandboxPolicy(), zygotes=2) as sandbox:
        program = PROGRAM.format(seed=seed)
        sandbox.run(program)
        seconds = [_seconds(sandbox, program, calls) for _ in range(_PARTS)]
        rate = max(_calls_a_second(sandbox, program, calls) for _ in range(_PARTS))
    cpu_s = min(_cpu_s_of_a_call(program, calls) for _ in range(_PARTS))
    outcomes = run_battery()
    best = min(seconds, key=np.median)
    return {
        "median call by the clock (ms)": 1000 * float(np.median(best)),
        "95th percentile (ms)": 1000 * float(np.quantile(best, 0.95)),
        "processor time of a call (ms)": 1000 * cpu_s,
        "calls a second of two threads by the clock": rate,
        "calls a second of two free processors, from the processor time": 2 / cpu_s,
        "load of the two processors": load,
        "hostile programs held, of 23": float(sum(one.good for one in outcomes if one.hostile)),
        "ordinary programs that ran, of 4": float(sum(one.good for one in outcomes if not one.hostile)),
    }


def _seconds(sandbox: CodeSandbox, program: str, calls: int) -> list[float]:
    """Seconds of calls, one after another."""
    seconds: list[float] = []
    for _ in range(calls):
        began = time.perf_counter()
        assert sandbox.run(program).verdict == "ok"
        seconds.append(time.perf_counter() - began)
    return seconds


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
    """Processor seconds of a call: of this process, the warm one and all that it forks, counted when that ends."""
    return (_spent(program, calls + 1) - _spent(program, 1)) / calls


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
