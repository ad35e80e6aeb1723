"""System calls of Linux for confined processes: namespaces, mounts, capabilities, Landlock, filters of system calls.

Belongs here: one function for each call, without a decision on which to use. `confine` decides for reward functions,
which may do all but harm the run; `hone.sandbox` for code that nobody should trust. Landlock needs no privileges (Linux
5.13; networks from 6.7, signals and abstract sockets from 6.12); what a kernel does not know is left out, so ask `abi`
first. A filter (seccomp) looks at the number of a call and then at its arguments as numbers; it cannot follow a
pointer.
"""

import ctypes
import errno
import functools
import os
import stat
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 4, 38
CAP_DAC_READ_SEARCH, CAP_SETGID, CAP_SETUID, CAP_SYS_PTRACE, CAP_SYS_ADMIN = 2, 6, 7, 19, 21
_CAPABILITY_VERSION = 0x20080522
_MOUNT_FLAGS = {2: 2, 4: 4, 8: 8, 1024: 1024, 4096: 1 << 21}
"""Flags of Linux's `statvfs` (no setuid, devices, programs or access times; relative access times) -> those of
`mount`: a mount that is made read-only must keep its others."""
_CapabilityHeader, _CapabilitySets = ctypes.c_uint32 * 2, ctypes.c_uint32 * 6
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}


def try_in_child(attempt: Callable[[], None]) -> str:
    """Run `attempt` in a child; empty, or why it failed."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            attempt()
        except BaseException as error:  # noqa: BLE001 - the parent decides
            os.write(writer, (str(error) or type(error).__name__).encode()[:400])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        reason = answer.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    return reason or ("" if status == 0 else f"the attempt ended with status {status}")


def enter_namespaces(flags: int, maps: Mapping[str, str]) -> None:
    """Enter a new user namespace and those of `flags`; `maps` are its `uid_map` and `gid_map`. Raises OSError.

    The maps of a privileged process (`may_map_users`) are written from outside, those of another may map only itself.
    """
    privileged = may_map_users()
    reader, writer = os.pipe()
    process, helper = os.getpid(), os.fork()
    if helper == 0:
        os.close(writer)
        os._exit(_write_maps(process, maps, privileged=privileged) if os.read(reader, 1) else 0)
    os.close(reader)
    try:
        _check(_libc().unshare(CLONE_NEWUSER | flags), "unshare")
        os.write(writer, b"1")
    finally:
        os.close(writer)
        _, status = os.waitpid(helper, 0)
    if code := os.waitstatus_to_exitcode(status):
        raise OSError(code, f"mapping users: {os.strerror(code)}")


def _write_maps(process: int, maps: Mapping[str, str], *, privileged: bool) -> int:
    """Write the user and group maps of a process that entered a namespace; the number of an error, or 0."""
    try:
        if not privileged:
            Path(f"/proc/{process}/setgroups").write_text("deny", encoding="ascii")
        for name, lines in maps.items():
            Path(f"/proc/{process}/{name}").write_text(lines, encoding="ascii")
    except OSError as error:
        return error.errno or 1
    return 0


def same_users() -> dict[str, str]:
    """Maps of a user namespace with the same users and groups: all for a privileged process, else only its own."""
    if may_map_users():
        maps: dict[str, str] = {}
        for name in ("uid_map", "gid_map"):
            rows = [line.split() for line in Path(f"/proc/self/{name}").read_text(encoding="ascii").splitlines()]
            maps[name] = "\n".join(f"{inside} {inside} {count}" for inside, _, count in rows)
        return maps
    return {name: f"{own} {own} 1" for name, own in (("uid_map", os.geteuid()), ("gid_map", os.getegid()))}


def may_map_users() -> bool:
    """True if this process may map any users of its namespace into a new one, and become any of them."""
    capabilities = effective_capabilities()
    return bool(capabilities >> CAP_SETUID & 1 and capabilities >> CAP_SETGID & 1)


def mount_read_only(path: str) -> None:
    """Mount a folder over itself, read-only. Raises OSError."""
    bind_read_only(path, path)


def bind_read_only(source: str, path: str) -> None:
    """Mount `source` at `path`, read-only. Raises OSError."""
    mount(source, path, "", MS_BIND | MS_REC)
    flags = os.statvfs(path).f_flag
    kept = sum(bit for stat, bit in _MOUNT_FLAGS.items() if flags & stat)
    mount("", path, "", MS_BIND | MS_REMOUNT | MS_RDONLY | kept)


def mount(source: str, path: str, kind: str, flags: int, options: str = "") -> None:
    """`mount(2)`; an empty text is a null pointer. Raises OSError."""
    texts = [os.fsencode(text) or None for text in (source, path, kind, options)]
    _check(_libc().mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]), f"mount on {path}")


def unmount(path: str) -> None:
    """Take a mount away, also while it is in use. Raises OSError."""
    _check(_libc().umount2(os.fsencode(path), MNT_DETACH), f"unmount {path}")


def change_root(path: str) -> None:
    """Make a mounted folder the root of this mount namespace; nothing of the old one stays. Raises OSError."""
    os.chdir(path)
    here = ctypes.c_char_p(b".")
    number = _PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise OSError(f"no number of pivot_root for {os.uname().machine}")
    _check(_libc().syscall(ctypes.c_long(number), here, here), "pivot_root")
    unmount(".")
    os.chdir("/")


def effective_capabilities() -> int:
    """Capabilities of this process, a bit each."""
    status = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")
    return next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:")), 0)


def set_capabilities(mask: int) -> None:
    """Keep only these capabilities. Raises OSError."""
    header = _CapabilityHeader(_CAPABILITY_VERSION, 0)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    data = _CapabilitySets(low, low, 0, high, high, 0)  # effective, permitted, inheritable
    _check(_libc().capset(header, data), "capset")


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process."""
    _libc().prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))


def _syscall(number: int, first: object, *rest: int) -> int:
    """Result of a system call; negative for an error."""
    return int(_libc().syscall(ctypes.c_long(number), first, *(ctypes.c_long(value) for value in rest)))


@functools.cache
def _libc() -> ctypes.CDLL:
    """The C library."""
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    """Raise the OSError of a call that failed."""
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


# ------------------------------------------------------------------------------------------------------------- landlock


_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446
_VERSION_QUERY = 1
_PATH_BENEATH = 1
SIGNALS_ABI, NETWORK_ABI, TRUNCATE_ABI = 6, 4, 3
SCOPE_ABSTRACT_SOCKETS, SCOPE_SIGNALS = 1, 2
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_FOLDER = 1, 2, 4, 8
_ALL_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
"""Version -> rights on files that it knows."""
_DEVICES_AND_SOCKETS = 1 << 6 | 1 << 9 | 1 << 10 | 1 << 11
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | 1 << 14
_ALL_NETWORK = 3


def abi() -> int:
    """Version of Landlock in this kernel; 0 where it has none."""
    return max(0, _syscall(_CREATE, None, 0, _VERSION_QUERY))


def restrict_scopes(scopes: int) -> bool:
    """Restrict this process to `scopes` and nothing else; False if that fails."""
    ruleset = _create(0, 0, scopes)
    if ruleset < 0:
        return False
    held = _syscall(_RESTRICT, ruleset, 0) == 0
    os.close(ruleset)
    return held


def restrict_files(*, read: Iterable[str], write: Iterable[str], programs: bool) -> None:
    """Keep this process to files below `read` and `write`; no network, no signals or abstract sockets outside.

    Paths that do not exist are left out. `programs`: those below `read` may be started. Raises OSError.
    """
    version = abi()
    rights = _ALL_RIGHTS[min(version, max(_ALL_RIGHTS))]
    scopes = SCOPE_ABSTRACT_SOCKETS | SCOPE_SIGNALS if version >= SIGNALS_ABI else 0
    ruleset = _create(rights, _ALL_NETWORK if version >= NETWORK_ABI else 0, scopes)
    _check(min(ruleset, 0), "landlock_create_ruleset")
    try:
        for path in read:
            _allow(ruleset, path, _READ_FILE | _READ_FOLDER | (_EXECUTE if programs else 0))
        for path in write:
            _allow(ruleset, path, rights & ~_EXECUTE & ~_DEVICES_AND_SOCKETS)
        _check(_syscall(_RESTRICT, ruleset, 0), "landlock_restrict_self")
    finally:
        os.close(ruleset)


def _create(files: int, network: int, scopes: int) -> int:
    attributes = (ctypes.c_uint64 * 3)(files, network, scopes)
    used = 3 if scopes else 2 if network else 1  # an older kernel refuses fields that it does not know
    return _syscall(_CREATE, attributes, 8 * used, 0)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= _FILE_RIGHTS
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, place), 12)
        numbers = (ctypes.c_long(_ADD_RULE), ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH))
        _check(int(_libc().syscall(*numbers, rule, ctypes.c_uint(0))), f"landlock_add_rule for {path}")
    finally:
        os.close(place)


# -------------------------------------------------------------------------------------------------------------- seccomp


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
    if _libc().prctl(_PR_SET_SECCOMP, mode, pointer, zero, zero):
        code = ctypes.get_errno()
        raise OSError(code, f"seccomp: {os.strerror(code)}")
