"""Hostile programs that a sandbox must hold, and ordinary ones that it must run: 27 in all.

Each hostile program aims at a target that is set up for it and harms nobody if it is hit: a file with a secret, a
process that sleeps, sockets of this process. Its last expression is true if it got through.
"""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from hone.core.clock import counted
from hone.sandbox.frames import RungName, SandboxPolicy
from hone.sandbox.run import CodeSandbox, SandboxResult

_SECRET = "HONE_BATTERY_SECRET"
_VALUE = "the secret of the battery"
_LIBC = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
_CALL = _LIBC + "arm = os.uname().machine == 'aarch64'\nbuffer = ctypes.create_string_buffer(256)\n"

HOSTILE: Mapping[str, str] = {
    "read a file": "open({file!r}).read() == {value!r}",
    "write a file": "open({target!r}, 'w').write('x') == 1",
    "read /etc/shadow": "len(open('/etc/shadow').read()) > 0",
    "read the caller's environment": "import os\nos.environ.get({secret!r}) == {value!r}",
    "read another process's environment": (
        "any({value!r} in open(f'/proc/{{pid}}/environ').read() for pid in ({caller}, {victim}, 1))"
    ),
    "signal a process": "import os\nos.kill({victim}, 0) is None",
    "trace a process": _LIBC + "libc.ptrace(0x4206, {victim}, None, None) == 0",
    "connect by TCP": "import socket\nsocket.create_connection(('127.0.0.1', {tcp}), timeout=1) is not None",
    "send by UDP": (
        "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {udp})) == 1"
    ),
    "connect to an abstract socket": (
        "import socket\nsocket.socket(socket.AF_UNIX).connect('\\0' + {abstract!r}) is None"
    ),
    "fork 200 times": (
        "import os, signal, time\nchildren = []\nfor _ in range(200):\n    child = os.fork()\n    if child == 0:\n"
        "        time.sleep(2)\n        os._exit(0)\n    children.append(child)\nlen(children) == 200"
    ),
    "take 3 GiB of memory": "len(bytearray(3 << 30)) > 0",
    "write a file of 1 GiB": (
        "block = bytes(1 << 20)\nwith open('big', 'wb') as file:\n    for _ in range(1024):\n"
        "        file.write(block)\nTrue"
    ),
    "compute without end": "while True: pass",
    "sleep without end": "import time\ntime.sleep(3600)",
    "print 200 MiB": "for _ in range(200): print('x' * (1 << 20))\nTrue",
    "leave a process behind": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(5)\n"
        "    os._exit(0)\nTrue"
    ),
    "become another user": "import os\nbefore = os.getuid()\nos.setuid(0 if before else 1)\nos.getuid() != before",
    "mount a folder": _LIBC + "libc.mount(b'none', b'.', b'tmpfs', 0, None) == 0",
    "make a user namespace": _LIBC + "libc.unshare(0x10000000) == 0",
    "open io_uring": _CALL + "libc.syscall(425, 1, buffer) >= 0",
    "count events of the processor": _CALL + "libc.syscall(241 if arm else 298, buffer, 0, -1, -1, 0) >= 0",
    "leave a file behind": (
        "import os\nfor folder in ('.', '/tmp', '/var/tmp', '/dev/shm', os.path.expanduser('~')):\n    try:\n"
        "        open(folder + '/' + {left!r}, 'w').write('x')\n    except OSError:\n        pass\nTrue"
    ),
}
"""Name -> program. The last one is judged by a second program that looks for the file."""
_SLEEPS = "sleep without end"
_PATIENCE_S = 60.0
_LEAVES = "leave a file behind"
_LOOKS = (
    "import os\nany(os.path.exists(folder + '/' + {left!r}) for folder in "
    "('.', '/tmp', '/var/tmp', '/dev/shm', os.path.expanduser('~')))"
)
ORDINARY: Mapping[str, str] = {
    "compute with libraries": (
        "import collections, heapq, json, math, re\nimport numpy\nheap = [3, 1, 2]\nheapq.heapify(heap)\n"
        "json.loads('[1]') == [1] and re.sub('a', 'b', 'a') == 'b' and heap[0] == 1 and int(numpy.arange(4).sum()) == 6"
    ),
    "write and read a file": (
        "import tempfile\nwith tempfile.TemporaryFile('w+') as file:\n    file.write('x')\n    file.seek(0)\n"
        "    text = file.read()\ntext == 'x'"
    ),
    "start threads": (
        "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(4) as pool:\n"
        "    squares = list(pool.map(lambda x: x * x, range(8)))\nsquares[7] == 49"
    ),
    "run coroutines": (
        "import asyncio\nasync def one():\n    await asyncio.sleep(0)\n    return 1\nasyncio.run(one()) == 1"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BatteryOutcome:
    """What came of one program of the battery."""

    name: str
    hostile: bool
    good: bool
    """A hostile program was held, an ordinary one ran."""
    explanation: str
    """Last line of the error, or the verdict."""


def run_battery(rung: RungName = "best", *, seconds: float = 1.0) -> list[BatteryOutcome]:
    """Run all 27 programs on a rung; one that computes or sleeps without end is killed after `seconds`.

    The others have all the time that a busy machine takes: none is held by its clock.
    """
    policy = SandboxPolicy(rung=rung, cpu_s=seconds, wall_s=_PATIENCE_S)
    asleep = SandboxPolicy(rung=rung, cpu_s=seconds, wall_s=seconds)
    with (
        _targets() as targets,
        CodeSandbox(policy, zygotes=3) as sandbox,
        CodeSandbox(asleep) as bedroom,
        ThreadPoolExecutor(4) as pool,
    ):
        place = {_SLEEPS: bedroom}
        hostile = pool.map(lambda name: _attack(place.get(name, sandbox), name, targets), HOSTILE)
        ordinary = pool.map(lambda name: _ordinary(sandbox, name), ORDINARY)
        return list(counted(chain(hostile, ordinary), "programs tried", len(HOSTILE) + len(ORDINARY)))


def _attack(sandbox: CodeSandbox, name: str, targets: Mapping[str, object]) -> BatteryOutcome:
    result = sandbox.run(HOSTILE[name].format(**targets))
    passed = result.verdict == "ok" and result.value is True
    if name == _LEAVES:
        passed = bool(sandbox.run(_LOOKS.format(**targets)).value) or _left(str(targets["left"]))
    held = not passed and result.verdict != "refused"
    return BatteryOutcome(name=name, hostile=True, good=held, explanation=_told(result))


def _ordinary(sandbox: CodeSandbox, name: str) -> BatteryOutcome:
    result = sandbox.run(ORDINARY[name])
    return BatteryOutcome(name=name, hostile=False, good=result.value is True, explanation=_told(result))


def _told(result: SandboxResult) -> str:
    last = result.error.strip().rpartition("\n")[2]
    return last or ("the call failed" if result.value is False else result.verdict)


def _left(name: str) -> bool:
    """True if the file is in a folder that a program might have reached."""
    return any(Path(folder, name).exists() for folder in (tempfile.gettempdir(), "/var/tmp", "/dev/shm", Path.home()))


@contextmanager
def _targets() -> Iterator[dict[str, object]]:
    """What the programs aim at; gone at the end."""
    with tempfile.TemporaryDirectory(prefix="hone-battery-") as folder:
        file = Path(folder, "secret")
        file.write_text(_VALUE, encoding="utf-8")
        file.chmod(0o644)
        Path(folder).chmod(0o755)
        victim = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(60)"], env={**os.environ, _SECRET: _VALUE}
        )
        os.environ[_SECRET] = _VALUE
        abstract = f"hone-battery-{os.getpid()}"
        with (
            socket.socket() as tcp,
            socket.socket(type=socket.SOCK_DGRAM) as udp,
            socket.socket(socket.AF_UNIX) as unix,
        ):
            tcp.bind(("127.0.0.1", 0))
            udp.bind(("127.0.0.1", 0))
            unix.bind("\0" + abstract)
            tcp.listen()
            unix.listen()
            try:
                yield {
                    "file": str(file),
                    "target": str(Path(folder, "written")),
                    "value": _VALUE,
                    "secret": _SECRET,
                    "left": f"hone-battery-left-{os.getpid()}",
                    "caller": os.getpid(),
                    "victim": victim.pid,
                    "tcp": tcp.getsockname()[1],
                    "udp": udp.getsockname()[1],
                    "abstract": abstract,
                }
            finally:
                del os.environ[_SECRET]
                victim.kill()
                victim.wait()
