"""Confinement of a process that runs a user's code: it signals nothing outside, and cannot write into some folders.

Two limits, each by the mildest means that the system offers. Everything else stays as it was: files, network, programs
and threads. Where a means is missing the limit is not held, and its description says why.

    signals   Landlock's signal scope (Linux 6.12), which covers all processes outside; else a seccomp filter (x86-64
              and ARM) against the parent process only
    folders   a user and mount namespace, in which they are mounted read-only once they are known (`protect`)

`python -m hone.process.confine` prints what holds here. Both limits also keep the process from tracing others.
"""

import contextlib
import ctypes
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hone.process.signal_filter import signal_filter

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC = 1, 32, 4096, 16384
_MOUNT_FLAGS = {2: 2, 4: 4, 8: 8, 1024: 1024, 4096: 1 << 21}
"""Flags of Linux's `statvfs` (no setuid, devices, programs or access times; relative access times) -> those of
`mount`: a mount that is made read-only must keep its others."""
_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38
_CAP_SETGID, _CAP_SETUID, _CAP_SYS_PTRACE, _CAP_SYS_ADMIN = 6, 7, 19, 21
_CAPABILITY_VERSION = 0x20080522
_LANDLOCK_CREATE, _LANDLOCK_RESTRICT = 444, 446
_LANDLOCK_VERSION_QUERY = 1
_LANDLOCK_SIGNALS_ABI, _LANDLOCK_SCOPE_SIGNAL = 6, 1 << 1


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
                _mount_read_only(path)
            except OSError as error:
                faults.append(f"{path} stays writable: {error.strerror}")
        os.chdir(Path.cwd())  # by its path: the working directory may be inside
        _set_capabilities(self._capabilities & ~(1 << _CAP_SYS_ADMIN) & ~(1 << _CAP_SYS_PTRACE))
        _prctl(_PR_SET_DUMPABLE, 1)
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
    capabilities = _effective_capabilities()
    gaps: list[str] = []
    if not (reason := _in_child(_try_folder)):
        try:
            _enter_namespaces()
        except OSError as error:
            reason = str(error)
    if reason:
        gaps.append(f"the run's folder stays writable: {reason}")
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    signals = _keep_signals_in(parent)
    if not signals:
        gaps.append("the trainer can be signalled: no Landlock from Linux 6.12, and no seccomp filter")
    return Confinement(
        signals=signals, folders="" if reason else "mount namespace", gaps=gaps, _capabilities=capabilities
    )


def _keep_signals_in(parent: int) -> str:
    """Keep this process from signalling others; the means, or empty."""
    version = _syscall(_LANDLOCK_CREATE, None, 0, _LANDLOCK_VERSION_QUERY)
    if version >= _LANDLOCK_SIGNALS_ABI:
        attributes = (ctypes.c_uint64 * 3)(0, 0, _LANDLOCK_SCOPE_SIGNAL)  # files, network, scopes
        ruleset = _syscall(_LANDLOCK_CREATE, attributes, ctypes.sizeof(attributes), 0)
        if ruleset >= 0:
            held = _syscall(_LANDLOCK_RESTRICT, ruleset, 0) == 0
            os.close(ruleset)
            if held:
                return "Landlock"
    with contextlib.suppress(OSError):
        signal_filter(parent, os.getpgid(parent))
        return "seccomp"
    return ""


def _try_folder() -> None:
    """Make the working directory read-only, in a process that is thrown away. Raises OSError."""
    _enter_namespaces()
    _mount_read_only(str(Path.cwd()))


def _in_child(attempt: Callable[[], None]) -> str:
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


def _enter_namespaces() -> None:
    """Enter new user and mount namespaces with the same users and groups. Raises OSError.

    A privileged process keeps all users, written from outside; another one only its own.
    """
    capabilities = _effective_capabilities()
    privileged = bool(capabilities >> _CAP_SETUID & 1 and capabilities >> _CAP_SETGID & 1)
    maps = {
        name: _same_ids(f"/proc/self/{name}") if privileged else f"{own} {own} 1"
        for name, own in (("uid_map", os.geteuid()), ("gid_map", os.getegid()))
    }
    reader, writer = os.pipe()
    process, helper = os.getpid(), os.fork()
    if helper == 0:
        os.close(writer)
        os._exit(_write_maps(process, maps, privileged=privileged) if os.read(reader, 1) else 0)
    os.close(reader)
    try:
        _check(_libc().unshare(_CLONE_NEWUSER | _CLONE_NEWNS), "unshare")
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


def _same_ids(path: str) -> str:
    """The identity map of all ids that a process knows."""
    rows = [line.split() for line in Path(path).read_text(encoding="ascii").splitlines()]
    return "\n".join(f"{inside} {inside} {count}" for inside, _, count in rows)


def _mount_read_only(path: str) -> None:
    """Mount a folder over itself, read-only. Raises OSError."""
    flags = os.statvfs(path).f_flag
    kept = sum(bit for stat, bit in _MOUNT_FLAGS.items() if flags & stat)
    place = os.fsencode(path)
    _check(_libc().mount(place, place, None, _MS_BIND | _MS_REC, None), "mount")
    _check(_libc().mount(None, place, None, _MS_BIND | _MS_REMOUNT | _MS_RDONLY | kept, None), "mount read-only")


def _effective_capabilities() -> int:
    status = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")
    return next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:")), 0)


def _set_capabilities(mask: int) -> None:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    data = (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)  # effective, permitted, inheritable
    _check(_libc().capset(header, data), "capset")


def _prctl(option: int, value: int) -> None:
    _libc().prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))


def _syscall(number: int, first: object, *rest: int) -> int:
    """Result of a system call; negative for an error."""
    return int(_libc().syscall(ctypes.c_long(number), first, *(ctypes.c_long(value) for value in rest)))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def main() -> None:
    """Print the means that hold here, one a line: of signals and of folders; empty where there is none."""
    held = confine(os.getppid())
    sys.stdout.write(f"{held.signals}\n{held.folders}\n")


if __name__ == "__main__":
    main()
