"""Seccomp filter against signals to one process, for kernels without Landlock's signal scope.

The filter sees numbers, not processes: it refuses the system calls that would signal or trace the process of this
number, its group, or everybody, and those that name a process in a way that it cannot see.
"""

import platform
from collections.abc import Mapping, Sequence

from hone.process.seccomp import ALLOW, JUMP_EQUAL, REFUSE, FilterLine, assemble, install_filter, load_argument

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


def signal_filter(process: int, group: int) -> None:
    """Refuse this process, and those that it starts, signals to `process`, its `group` and everybody, for good.

    Raises OSError where the system has no such filter. The process must have given up new privileges.
    """
    install_filter(filter_program(platform.machine(), [process, -group, -1]))
