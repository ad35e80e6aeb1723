"""Confinement of a process: what it may not do any more, what it still may, and the filter for older kernels."""

import platform
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.process import confine as module
from hone.process.confine import confine, filter_program

HELD = subprocess.run(
    [sys.executable, "-m", "hone.process.confine"], capture_output=True, text=True, check=True
).stdout.splitlines()
SIGNALS, FOLDERS = (*HELD, "", "")[:2]
signals = pytest.mark.skipif(not SIGNALS, reason="neither Landlock's signal scope nor seccomp here")
folders = pytest.mark.skipif(not FOLDERS, reason="no unprivileged user namespaces here")

PROGRAM = """
import os, signal, subprocess, sys, threading
from pathlib import Path
from hone.process import confine

confine._LANDLOCK_SIGNALS_ABI = int(sys.argv[2])
place, trainer = Path(sys.argv[1]), os.getppid()
os.setsid()
held = confine.confine(trainer)
print(held.gaps, held.protect([str(place / "run")]))

def tried(name, act):
    try:
        act()
    except OSError as error:
        print(name, type(error).__name__, error.errno)
    else:
        print(name, "done")

child = subprocess.Popen(["sleep", "100"])
for name, act in {
    "kill": lambda: os.kill(trainer, 0),
    "killpg": lambda: os.killpg(os.getpgid(trainer), 0),
    "pidfd": lambda: signal.pidfd_send_signal(os.pidfd_open(trainer), 0),
    "overwrite": lambda: (place / "run" / "metrics").write_text("x"),
    "add": lambda: (place / "run" / "more").write_text("x"),
    "remove": lambda: (place / "run" / "metrics").unlink(),
    "rename": lambda: (place / "run").rename(place / "away"),
    "around": lambda: Path(f"/proc/{trainer}/root{place}/run/metrics").write_text("x"),
    "read": lambda: (place / "run" / "metrics").read_text(),
    "beside": lambda: (place / "beside").write_text("x"),
    "cwd": lambda: Path("cache").write_text("x"),
    "own": lambda: os.kill(os.getpid(), 0),
    "child": lambda: (child.kill(), child.wait()),
    "thread": lambda: threading.Thread(target=len, args=("",)).start(),
}.items():
    tried(name, act)
"""


def outcomes(tmp_path: Path, landlock_abi: int) -> dict[str, str]:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics").write_text("kept")
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path), str(landlock_abi)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    first, *rest = result.stdout.splitlines()
    assert first.endswith("[]")
    return dict(line.split(" ", 1) for line in rest)


@signals
@folders
@pytest.mark.parametrize("landlock_abi", [6, 99], ids=["best", "without Landlock's scope"])
def test_a_confined_process_does_all_but_harm(tmp_path: Path, landlock_abi: int) -> None:
    done = outcomes(tmp_path, landlock_abi)
    assert {name: done[name] for name in ("kill", "killpg", "pidfd")} == dict.fromkeys(
        ("kill", "killpg", "pidfd"), "PermissionError 1"
    )
    assert {done[name] for name in ("overwrite", "add", "remove")} == {"OSError 30"}
    assert done["rename"] == "OSError 16"
    assert done["around"].startswith("PermissionError")
    assert {done[name] for name in ("read", "beside", "cwd", "own", "child", "thread")} == {"done"}
    assert (tmp_path / "run" / "metrics").read_text() == "kept"
    assert (tmp_path / "beside").read_text() == "x"


def test_without_a_means_the_gaps_are_told_and_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.sys, "platform", "darwin")
    held = confine(1)
    assert (held.signals, held.folders, len(held.gaps)) == ("", "", 2)
    assert held.protect(["/nowhere"]) == []


ALLOW, REFUSE = 0x7FFF0000, 0x00050001
CALLS = {"kill": (62, 129), "tgkill": (234, 131), "tkill": (200, 130), "pidfd_open": (434, 434), "read": (0, 63)}


def verdict(program: bytes, architecture: int, number: int, arguments: tuple[int, ...]) -> int:
    """An interpreter of the filter's three instructions."""
    data = struct.pack("=IIQ6Q", number, architecture, 0, *(value & 2**64 - 1 for value in arguments))
    lines = [struct.unpack("HBBI", program[at : at + 8]) for at in range(0, len(program), 8)]
    place = held = 0
    while True:
        code, when_equal, otherwise, operand = lines[place]
        if code == 0x06:
            return operand
        if code == 0x20:
            held = struct.unpack_from("=I", data, operand)[0]
        place += 1 + (0 if code == 0x20 else when_equal if held == operand else otherwise)


@given(
    st.sampled_from(["x86_64", "aarch64"]),
    st.sampled_from(sorted(CALLS)),
    st.integers(2, 4_000_000),
    st.integers(2, 4_000_000),
    st.integers(-4_000_000, 4_000_000),
)
def test_the_filter_refuses_the_trainer_its_group_and_everybody(
    machine: str, call: str, trainer: int, group: int, target: int
) -> None:
    program = filter_program(machine, [trainer, -group, -1])
    architecture, column = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}[machine]
    for aimed in (target, trainer, -group, -1):
        refused = call == "tkill" or (call != "read" and aimed in (trainer, -group, -1))
        found = verdict(program, architecture, CALLS[call][column], (aimed, 9, 0, 0, 0, 0))
        assert found == (REFUSE if refused else ALLOW)
    assert verdict(program, 0x40000003, CALLS[call][column], (trainer, 9, 0, 0, 0, 0)) == ALLOW


def test_an_unknown_processor_has_no_filter() -> None:
    assert platform.machine()
    with pytest.raises(OSError, match="no system call numbers of m68k"):
        filter_program("m68k", [1])
