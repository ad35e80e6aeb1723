"""Filters of system calls (seccomp): their instructions, and their installation for this process and its descendants.

A filter looks at the number of a call and then at its arguments as numbers; it cannot follow a pointer.
"""

import ctypes
import errno
import os
import struct
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from hone.process.linux import libc

FilterLine: TypeAlias = tuple[int, int, int, int]
"""An instruction: code, lines to skip if true and if false, operand."""
CallNumbers: TypeAlias = tuple[int | None, int | None]
"""Number of a call on x86-64 and on ARM; None where it does not exist."""

LOAD, JUMP_EQUAL, JUMP_BITS, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW: FilterLine = (RETURN, 0, 0, 0x7FFF0000)
REFUSE: FilterLine = (RETURN, 0, 0, 0x00050000 | errno.EPERM)
UNKNOWN: FilterLine = (RETURN, 0, 0, 0x00050000 | errno.ENOSYS)
"""The call does not exist: C libraries then fall back to an older one."""
KILL: FilterLine = (RETURN, 0, 0, 0x80000000)
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def load_argument(place: int) -> FilterLine:
    """Load the lower half of an argument, counted from 0."""
    return LOAD, 0, 0, _ARGUMENTS_AT + 8 * place


def assemble(
    machine: str,
    calls: Mapping[str, tuple[CallNumbers, Sequence[FilterLine]]],
    *,
    otherwise: FilterLine,
    foreign: FilterLine,
) -> bytes:
    """Instructions that run the lines of a call, which return, and else return `otherwise`; `foreign` for calls of
    another processor's numbering. Raises OSError for a processor whose numbers are not known."""
    if machine not in _ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no system call numbers of {machine}")
    column = list(_ARCHITECTURES).index(machine)
    program = [(LOAD, 0, 0, _ARCHITECTURE_AT), (JUMP_EQUAL, 1, 0, _ARCHITECTURES[machine]), foreign]
    program.append((LOAD, 0, 0, _NUMBER_AT))
    for numbers, lines in calls.values():
        number = numbers[column]
        if number is not None:
            program += [(JUMP_EQUAL, 0, len(lines), number), *lines]
    program.append(otherwise)
    return b"".join(struct.pack("HBBI", *line) for line in program)


class _FilterProgram(ctypes.Structure):
    _fields_ = (("count", ctypes.c_ushort), ("lines", ctypes.c_void_p))


def install_filter(program: bytes) -> None:
    """Apply a filter for good. The process must have given up new privileges. Raises OSError."""
    lines = ctypes.create_string_buffer(program, len(program))
    held = _FilterProgram(len(program) // 8, ctypes.addressof(lines))
    pointer = ctypes.cast(ctypes.byref(held), ctypes.c_void_p)
    mode, zero = ctypes.c_ulong(_SECCOMP_MODE_FILTER), ctypes.c_ulong(0)
    if libc().prctl(_PR_SET_SECCOMP, mode, pointer, zero, zero):
        code = ctypes.get_errno()
        raise OSError(code, f"seccomp: {os.strerror(code)}")
