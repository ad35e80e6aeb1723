"""Programs in the sandbox: values, output, errors, limits; and that nothing stays of them."""

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hone.core.errors import ConfigError
from hone.process import linux as landlock
from hone.sandbox import run
from hone.sandbox.frames import UNSAFE_WORDS, SandboxPolicy
from hone.sandbox.run import CodeSandbox, close_shared, run_python

POLICY = SandboxPolicy(cpu_s=0.5, wall_s=30.0, output_bytes=20_000)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[CodeSandbox]:
    with CodeSandbox(POLICY) as opened:
        yield opened


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("1 + 1", 2),
        ("x = 3", None),
        ("(1, [2.5, None], {3: 'a'}, {4}, b'b', 1j)", (1, [2.5, None], {3: "a"}, {4}, b"b", 1j)),
        ("import numpy as np\nnp.arange(3)", [0, 1, 2]),
        ("import collections\ncollections.Counter('aab')", {"a": 2, "b": 1}),
        ("input() + input()", "ab"),
        ("open('data/numbers.txt').read()", "1 2"),
        ("import os\nopen('new', 'w').write('x'), sorted(os.listdir('.'))", (1, ["data", "new"])),
        ("import sys\nsys.exit()", None),
        ("__name__", "__main__"),
        ("from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\nA(3).x", 3),
    ],
)
def test_the_value_of_the_last_expression_comes_back(sandbox: CodeSandbox, code: str, value: object) -> None:
    result = sandbox.run(code, stdin="a\nb\n", files={"data/numbers.txt": "1 2"})
    assert (result.verdict, result.value, result.error) == ("ok", value, "")
    assert type(result.value) is type(value)


def test_what_is_no_plain_data_is_shown_only(sandbox: CodeSandbox) -> None:
    result = sandbox.run("class A:\n    def __repr__(self): return 'an A'\nA()")
    assert (result.verdict, result.value, result.shown) == ("ok", None, "an A")


def test_threads_are_waited_for_and_output_is_kept_apart(sandbox: CodeSandbox) -> None:
    code = "import sys, threading, time\ndef f():\n    time.sleep(0.05)\n    print('late')\n"
    result = sandbox.run(code + "threading.Thread(target=f).start()\nprint('soon')\nprint('oh', file=sys.stderr)")
    assert (result.verdict, result.stdout, result.stderr) == ("ok", "soon\nlate\n", "oh\n")


@pytest.mark.parametrize(
    ("code", "verdict", "told"),
    [
        ("def f():\n    return 1 / 0\nf()", "error", "ZeroDivisionError: division by zero"),
        ("x = (", "error", "SyntaxError"),
        ("import sys\nsys.exit(3)", "error", "SystemExit: 3"),
        ("import os\nos._exit(0)", "error", "ended with code 0 before the program did"),
        ("raise KeyboardInterrupt", "error", "KeyboardInterrupt"),
        ("class A:\n    def __repr__(self): return 1 / 0\nA()", "error", "ended with code 1 before the program did"),
        ("def f(): f()\nf()", "error", "RecursionError"),
        ("bytearray(10**10)", "memory", "MemoryError"),
        # Zeros that are never written to take room and no time: not the limit of time is to end it.
        ("x = []\nwhile True: x.append(bytes(10**6))", "memory", "MemoryError"),
        ("while True: pass", "timeout", "0.5 s of processor time"),
        ("while True: print('x' * 1000)", "output", "killed after 20000 bytes"),
        ("'x' * 10**6", "output", "killed after 20000 bytes"),
        ("import os\nos.kill(os.getpid(), 9)", "killed", "SIGKILL"),
        ("import ctypes\nctypes.string_at(0)", "killed", "SIGSEGV"),
    ],
)
def test_every_other_end_has_its_verdict(sandbox: CodeSandbox, code: str, verdict: str, told: str) -> None:
    result = sandbox.run(code)
    assert (result.verdict, told in result.error) == (verdict, True), result
    assert "hone" not in result.error
    assert sandbox.run("1").value == 1


def test_the_same_program_gives_the_same_numbers(sandbox: CodeSandbox) -> None:
    code = "import random, numpy\n[random.random(), float(numpy.random.random()), hash('a'), list({'a', 'b', 'c'})]"
    assert sandbox.run(code).value == sandbox.run(code).value


def test_names_of_files_stay_inside(sandbox: CodeSandbox) -> None:
    with pytest.raises(ConfigError, match=r"'\.\./x'.*\n.*'/etc/x'"):
        sandbox.run("1", files={"../x": "", "fine": "", "/etc/x": ""})


def test_a_program_that_sleeps_is_killed_by_the_clock() -> None:
    with CodeSandbox(SandboxPolicy(cpu_s=50.0, wall_s=0.5)) as short:
        result = short.run("import time\ntime.sleep(1000)")
    assert (result.verdict, result.cpu_s < 50.0) == ("timeout", True), "it is not its processor time that ran out"


LIMITED = """
import resource
from hone.sandbox.frames import SandboxPolicy
from hone.sandbox.run import run_python
for kind, value in ((resource.RLIMIT_NOFILE, 48), (resource.RLIMIT_AS, 3 << 30), (resource.RLIMIT_FSIZE, 1 << 22)):
    resource.setrlimit(kind, (value, value))
print(run_python("import threading\\nthreading.Thread(target=print, args=('works',)).start()", SandboxPolicy()))
"""


def test_it_works_under_limits_of_its_own_process(sandbox: CodeSandbox) -> None:
    result = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, check=False)
    assert "verdict='ok', stdout='works" in result.stdout, result.stderr + result.stdout


def test_warm_processes_are_replaced_after_many_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_CALLS_A_ZYGOTE", 2)
    before = open_descriptors()
    parents = []
    with CodeSandbox(POLICY) as short:
        for _ in range(5):
            short.probe()
            child = short._all[0]._child
            assert child is not None
            parents.append(child.pid)
            assert short.run("1").value == 1
    assert [parents.index(pid) for pid in parents] == [0, 0, 2, 2, 4]
    assert open_descriptors() == before


def open_descriptors() -> list[str]:
    gc.collect()  # files that an earlier test left in circles would be closed between two counts
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


def test_a_lost_process_is_replaced_and_nothing_stays_open() -> None:
    before = open_descriptors()
    with CodeSandbox(POLICY) as sandbox:
        sandbox.probe()
        child = sandbox._all[0]._child
        assert child is not None
        os.kill(child.pid, 9)
        assert sandbox.run("2").value == 2
        threads = [threading.Thread(target=sandbox.run, args=("3",)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert open_descriptors() == before


def test_run_python_keeps_a_warm_process_of_each_policy() -> None:
    try:
        assert [run_python(f"{number}", POLICY).value for number in range(2)] == [0, 1]
    finally:
        close_shared()


FILTERED = """
import os, sys
from hone.process.linux import PR_SET_NO_NEW_PRIVS, prctl
from hone.process.linux import ALLOW, REFUSE, assemble, install_filter
from hone.process import linux as landlock
from hone.sandbox import run
from hone.sandbox.frames import UNSAFE_WORDS, SandboxPolicy
from hone.sandbox.run import CodeSandbox

numbers = {"unshare": (272, 97), "landlock": (444, 444)}
refused = {name: (numbers[name], [REFUSE]) for name in sys.argv[1].split()}
prctl(PR_SET_NO_NEW_PRIVS, 1)
install_filter(assemble(os.uname().machine, refused, otherwise=ALLOW, foreign=ALLOW))
for policy in (SandboxPolicy(), SandboxPolicy(if_no_rung=UNSAFE_WORDS)):
    with CodeSandbox(policy) as sandbox:
        result = sandbox.run("__import__('os').path.exists('/etc/passwd')")
        print(sandbox.probe().rung, result.verdict, result.value, result.error)
"""


def in_a_lesser_machine(refused: str) -> list[str]:
    """Verdicts where some system calls are refused, as in a container."""
    result = subprocess.run([sys.executable, "-c", FILTERED, refused], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_without_a_rung_nothing_runs_unless_the_policy_says_so() -> None:
    refused, forced = in_a_lesser_machine("unshare landlock")
    assert refused.startswith(" refused None this machine cannot confine programs (namespaces: ")
    assert f'if_no_rung = "{UNSAFE_WORDS}" runs them as you' in refused
    assert forced == "none ok True "


@pytest.mark.skipif(landlock.abi() < landlock.TRUNCATE_ABI, reason="no Landlock here")
def test_without_namespaces_landlock_confines() -> None:
    assert in_a_lesser_machine("unshare") == ["landlock ok True "] * 2
