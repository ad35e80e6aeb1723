"""Confinement of a process that runs a user's code: it signals nothing outside, and cannot write into some folders.

Two limits, each by the mildest means that the system offers. Everything else stays as it was: files, network, programs
and threads. Where a means is missing the limit is not held, and its description says why.

    signals   Landlock's signal scope (Linux 6.12), which covers all processes outside; else a seccomp filter (x86-64
              and ARM) against the parent process only
    folders   a user and mount namespace, in which they are mounted read-only once they are known (`protect`)

`python -m hone.process.confine` prints what holds here. Both limits also keep the process from tracing others.
"""

import contextlib
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hone.process import linux as landlock
from hone.process.linux import (
    ALLOW,
    CAP_SYS_ADMIN,
    CAP_SYS_PTRACE,
    CLONE_NEWNS,
    JUMP_EQUAL,
    PR_SET_DUMPABLE,
    PR_SET_NO_NEW_PRIVS,
    REFUSE,
    FilterLine,
    assemble,
    effective_capabilities,
    enter_namespaces,
    install_filter,
    load_argument,
    mount_read_only,
    prctl,
    same_users,
    set_capabilities,
    try_in_child,
)

# -------------------------------------------------------------------------------------------------------- signal filter
# Seccomp filter against signals to one process, for kernels without Landlock's signal scope.
#
# The filter sees numbers, not processes: it refuses the system calls that would signal or trace the process of this
# number, its group, or everybody, and those that name a process in a way that it cannot see.


_CALLS: Mapping[str, tuple[int, int, int | None]] = {
    "kill": (62, 129, 0),
    "tgkill": (234, 131, 0),
    "tkill": (200, 130, None),
    "rt_sigqueueinfo": (129, 138, 0),
    "rt_tgsigqueueinfo": (297, 240, 0),
    "pidfd_open": (434, 434, 0),
    "pidfd_send_signal": (424, 424, None),
    "ptrace": (101, 117, 1),
    "process_vm_writev": (311, 271, 0),
    "prlimit64": (302, 261, 0),
}
"""System call -> its number on x86-64 and on ARM, and the argument that names a process; None: always refused."""


def filter_program(machine: str, refused: Sequence[int]) -> bytes:
    """Instructions of the filter, which refuses `_CALLS` on the processes and groups `refused`. Raises OSError for a
    processor whose system calls are not known."""
    return assemble(
        machine,
        {
            name: (call[:2], [REFUSE] if call[2] is None else _refusal(call[2], refused))
            for name, call in _CALLS.items()
        },
        otherwise=ALLOW,
        foreign=ALLOW,
    )


def _refusal(argument: int, refused: Sequence[int]) -> list[FilterLine]:
    """Instructions that refuse a call whose argument is one of `refused`."""
    tests = [(JUMP_EQUAL, 0, 1, value & 0xFFFFFFFF) for value in refused]
    return [load_argument(argument), *(line for test in tests for line in (test, REFUSE)), ALLOW]


# -------------------------------------------------------------------------------------------------------------- confine


_LANDLOCK_SIGNALS_ABI = landlock.SIGNALS_ABI


@dataclass(slots=True, kw_only=True)
class Confinement:
    """The limits of this process, as far as they hold."""

    signals: str
    """Means that keeps it from signalling others; empty: none does."""
    folders: str
    """Means by which `protect` works; empty: it does not."""
    gaps: list[str]
    """Limits that are not held, and why."""
    _capabilities: int = 0

    def protect(self, paths: Sequence[str]) -> list[str]:
        """Make folders read-only for this process and those that it starts, for good; what failed. Call it once."""
        if not self.folders:
            return []
        faults: list[str] = []
        for path in paths:
            try:
                mount_read_only(path)
            except OSError as error:
                faults.append(f"{path} stays writable: {error.strerror}")
        os.chdir(Path.cwd())  # by its path: the working directory may be inside
        set_capabilities(self._capabilities & ~(1 << CAP_SYS_ADMIN) & ~(1 << CAP_SYS_PTRACE))
        prctl(PR_SET_DUMPABLE, 1)
        return faults


def confine(parent: int) -> Confinement:
    """Confine this process, which has one thread, against `parent` and all others; it may then `protect` folders.

    Raises nothing: a limit that cannot be held is a gap.
    """
    if sys.platform != "linux":
        gap = f"{platform.system()} has no means for it"
        return Confinement(
            signals="", folders="", gaps=[f"signals are not kept in: {gap}", f"folders stay writable: {gap}"]
        )
    capabilities = effective_capabilities()
    gaps: list[str] = []
    if not (reason := try_in_child(_try_folder)):
        try:
            enter_namespaces(CLONE_NEWNS, same_users())
        except OSError as error:
            reason = str(error)
    if reason:
        gaps.append(f"the run's folder stays writable: {reason}")
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    signals = _keep_signals_in(parent)
    if not signals:
        gaps.append("the trainer can be signalled: no Landlock from Linux 6.12, and no seccomp filter")
    return Confinement(
        signals=signals, folders="" if reason else "mount namespace", gaps=gaps, _capabilities=capabilities
    )


def _keep_signals_in(parent: int) -> str:
    """Keep this process from signalling others; the means, or empty."""
    if landlock.abi() >= _LANDLOCK_SIGNALS_ABI and landlock.restrict_scopes(landlock.SCOPE_SIGNALS):
        return "Landlock"
    with contextlib.suppress(OSError):
        group = os.getpgid(parent)
        install_filter(filter_program(platform.machine(), [parent, -group, -1]))
        return "seccomp"
    return ""


def _try_folder() -> None:
    """Make the working directory read-only, in a process that is thrown away. Raises OSError."""
    enter_namespaces(CLONE_NEWNS, same_users())
    mount_read_only(str(Path.cwd()))


def main() -> None:
    """Print the means that hold here, one a line: of signals and of folders; empty where there is none."""
    held = confine(os.getppid())
    sys.stdout.write(f"{held.signals}\n{held.folders}\n")


if __name__ == "__main__":
    main()
