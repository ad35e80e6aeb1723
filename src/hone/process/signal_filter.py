"""Seccomp filter against signals to one process, for kernels without Landlock's signal scope.

The filter sees numbers, not processes: it refuses the system calls that would signal or trace the process of this
number, its group, or everybody, and those that name a process in a way that it cannot see.
"""

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Mapping, Sequence

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_RETURN_ERROR, _RETURN_ALLOW = 0x00050000 | errno.EPERM, 0x7FFF0000
_LOAD, _JUMP_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
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
    if machine not in _ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no system call numbers of {machine}")
    column = list(_ARCHITECTURES).index(machine)
    program = [(_LOAD, 0, 0, _ARCHITECTURE_AT), (_JUMP_EQUAL, 1, 0, _ARCHITECTURES[machine]), _ALLOW]
    program.append((_LOAD, 0, 0, _NUMBER_AT))
    for call in _CALLS.values():
        body = _refusal(call[2], refused)
        program += [(_JUMP_EQUAL, 0, len(body), call[column]), *body]
    program.append(_ALLOW)
    return b"".join(struct.pack("HBBI", *line) for line in program)


_ALLOW = (_RETURN, 0, 0, _RETURN_ALLOW)


def _refusal(argument: int | None, refused: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """Instructions that return: an error where the argument is one of `refused`, else leave."""
    error = (_RETURN, 0, 0, _RETURN_ERROR)
    if argument is None:
        return [error]
    tests = [(_JUMP_EQUAL, 0, 1, value & 0xFFFFFFFF) for value in refused]
    return [
        (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * argument),
        *(line for test in tests for line in (test, error)),
        _ALLOW,
    ]


class _FilterProgram(ctypes.Structure):
    _fields_ = (("count", ctypes.c_ushort), ("lines", ctypes.c_void_p))


def signal_filter(process: int, group: int) -> None:
    """Refuse this process, and those that it starts, signals to `process`, its `group` and everybody, for good.

    Raises OSError where the system has no such filter. The process must have given up new privileges.
    """
    program = filter_program(platform.machine(), [process, -group, -1])
    lines = ctypes.create_string_buffer(program, len(program))
    held = _FilterProgram(len(program) // 8, ctypes.addressof(lines))
    libc = ctypes.CDLL(None, use_errno=True)
    pointer = ctypes.cast(ctypes.byref(held), ctypes.c_void_p)
    if libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), pointer, ctypes.c_ulong(0), ctypes.c_ulong(0)):
        code = ctypes.get_errno()
        raise OSError(code, f"seccomp: {os.strerror(code)}")
