"""Rungs of confinement, strongest first, and the choice of the one that holds on this machine.

    namespaces  users, files, processes, networks and names of its own: programs see a small root that holds Python's
                libraries read-only, and nothing else. Landlock and the filter of system calls stand behind it.
    landlock    no namespaces needed, as in a container: a user of its own where this process may choose one, Landlock
                for files and networks, the filter for the rest.
    none        limits of time and memory only. Taken only by a policy that says so in words.

Each is tried in a process that is thrown away, never assumed. A program is confined by itself and for good: limits,
user, files, system calls.
"""

import contextlib
import functools
import os
import platform
import resource
import signal
import stat
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hone.process import linux as landlock
from hone.process.linux import (
    ALLOW,
    CAP_DAC_READ_SEARCH,
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUTS,
    JUMP_BITS,
    JUMP_EQUAL,
    KILL,
    MS_BIND,
    MS_NODEV,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
    PR_SET_NO_NEW_PRIVS,
    PR_SET_PDEATHSIG,
    REFUSE,
    UNKNOWN,
    CallNumbers,
    FilterLine,
    assemble,
    bind_read_only,
    change_root,
    enter_namespaces,
    install_filter,
    load_argument,
    may_map_users,
    mount,
    mount_read_only,
    prctl,
    set_capabilities,
    try_in_child,
    unmount,
)
from hone.sandbox.frames import delete_folder, new_folder

# --------------------------------------------------------------------------------------------------------- system calls
# System calls that a program in the sandbox may make; every other one is refused.
#
# Allowed is what computing, files, threads and pipes need. Not allowed: networks, other processes, mounts, users, modes
# of files, kernel memory, io_uring, tracing, and whatever a later kernel brings.


_CLONE_THREAD, _CLONE_NEW = 0x10000, 0x7E020080
_OWNER_OF_SIGNALS = (8, 10, 15)
"""F_SETOWN, F_SETSIG, F_SETOWN_EX: a descriptor that is ready would signal any process."""
_TERMINAL_QUESTIONS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""
_NAME_OF_THREAD = (15, 16)
_AF_UNIX = 1


@functools.cache
def _allowed_calls(*, programs: bool, signals_to: int | None) -> bytes:
    """Filter of a process: `programs` may be started, signals be sent to this process, with None to all.

    Raises OSError for a processor whose calls are not known.
    """
    signals = [ALLOW] if signals_to is None else _where(0, (signals_to,))
    # refuse a call whose argument is one of `values`
    tests = [(JUMP_EQUAL, 0, 1, value) for value in _OWNER_OF_SIGNALS]
    # allow threads, and processes with `programs`; never namespaces
    last = [] if programs else [(JUMP_BITS, 1, 0, _CLONE_THREAD), REFUSE]
    conditions: dict[str, tuple[CallNumbers, Sequence[FilterLine]]] = {
        "ioctl": ((16, 29), _where(1, _TERMINAL_QUESTIONS)),
        "fcntl": ((72, 25), [load_argument(1), *(line for test in tests for line in (test, REFUSE)), ALLOW]),
        "prctl": ((157, 167), _where(0, _NAME_OF_THREAD)),
        "prlimit64": ((302, 261), _where(0, (0,))),
        "socketpair": ((53, 199), _where(0, (_AF_UNIX,))),
        "kill": ((62, 129), signals),
        "tgkill": ((234, 131), signals),
        "clone": ((56, 220), [load_argument(0), (JUMP_BITS, 0, 1, _CLONE_NEW), REFUSE, *last, ALLOW]),
        "clone3": ((435, 435), [UNKNOWN]),  # its flags are behind a pointer
    }
    allowed = {**_CALLS, **(_PROGRAM_CALLS if programs else {})}
    calls = {**{name: (numbers, [ALLOW]) for name, numbers in allowed.items()}, **conditions}
    return assemble(os.uname().machine, calls, otherwise=REFUSE, foreign=KILL)


def _where(argument: int, values: Sequence[int]) -> list[FilterLine]:
    """Allow a call whose argument is one of `values`."""
    tests = [(JUMP_EQUAL, 0, 1, value) for value in values]
    return [load_argument(argument), *(line for test in tests for line in (test, ALLOW)), REFUSE]


# fmt: off
_CALLS: Mapping[str, CallNumbers] = {
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67),
    "pwrite64": (18, 68), "preadv": (295, 69), "pwritev": (296, 70), "open": (2, None), "openat": (257, 56),
    "close": (3, 57), "close_range": (436, 436), "stat": (4, None), "fstat": (5, 80), "lstat": (6, None),
    "newfstatat": (262, 79), "statx": (332, 291), "lseek": (8, 62), "access": (21, None),
    "faccessat": (269, 48), "faccessat2": (439, 439), "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24),
    "flock": (73, 32), "fsync": (74, 82), "fdatasync": (75, 83), "ftruncate": (77, 46), "truncate": (76, 45),
    "getdents": (78, None), "getdents64": (217, 61), "getcwd": (79, 17), "chdir": (80, 49),
    "fchdir": (81, 50), "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276),
    "mkdir": (83, None), "mkdirat": (258, 34), "rmdir": (84, None), "symlink": (88, None),
    "symlinkat": (266, 36), "readlink": (89, None), "readlinkat": (267, 78), "unlink": (87, None),
    "unlinkat": (263, 35), "umask": (95, 166), "copy_file_range": (326, 285), "sendfile": (40, 71),
    "fallocate": (285, 47), "fadvise64": (221, 223), "statfs": (137, 43), "fstatfs": (138, 44),
    "poll": (7, None), "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72),
    "epoll_create": (213, None), "epoll_create1": (291, 20), "epoll_ctl": (233, 21),
    "epoll_wait": (232, None), "epoll_pwait": (281, 22), "eventfd2": (290, 19), "pipe": (22, None),
    "pipe2": (293, 59),
    "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "mremap": (25, 216), "madvise": (28, 233),
    "brk": (12, 214), "membarrier": (324, 283),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "rt_sigpending": (127, 136), "rt_sigtimedwait": (128, 137), "rt_sigsuspend": (130, 133),
    "sigaltstack": (131, 132), "pause": (34, None),
    "sched_yield": (24, 124), "nanosleep": (35, 101), "clock_nanosleep": (230, 115),
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "gettimeofday": (96, 169), "time": (201, None),
    "times": (100, 153), "getitimer": (36, 102), "setitimer": (38, 103), "alarm": (37, None),
    "getpid": (39, 172), "getppid": (110, 173), "gettid": (186, 178), "getuid": (102, 174),
    "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177), "getresuid": (118, 148),
    "getresgid": (120, 150), "getgroups": (115, 158), "getpgrp": (111, None), "getpgid": (121, 155),
    "getsid": (124, 156), "uname": (63, 160), "sysinfo": (99, 179), "getrlimit": (97, 163),
    "getrusage": (98, 165), "getrandom": (318, 278), "sched_getaffinity": (204, 123),
    "sched_getparam": (143, 121), "sched_getscheduler": (145, 120), "sched_get_priority_max": (146, 125),
    "sched_get_priority_min": (147, 126), "getcpu": (309, 168),
    "set_tid_address": (218, 96), "set_robust_list": (273, 99), "futex": (202, 98), "rseq": (334, 293),
    "arch_prctl": (158, None), "exit": (60, 93), "exit_group": (231, 94), "wait4": (61, 260),
    "waitid": (247, 95), "restart_syscall": (219, 128),
    "sendto": (44, 206), "recvfrom": (45, 207), "sendmsg": (46, 211), "recvmsg": (47, 212),
    "shutdown": (48, 210), "getsockopt": (55, 209), "getsockname": (51, 204), "getpeername": (52, 205),
}
_PROGRAM_CALLS: Mapping[str, CallNumbers] = {
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "setsid": (112, 157), "setpgid": (109, 154),
    "pidfd_open": (434, 434),
}
# fmt: on
"""Calls by name: numbers on x86-64 and on ARM, from the kernel's headers."""


# ----------------------------------------------------------------------------------------------------------------- jail


DEVICES = ("/dev/null", "/dev/zero", "/dev/full")
_SYSTEM_PATHS = (
    "/usr/lib",
    "/usr/lib64",
    "/lib",
    "/lib64",
    "/usr/share/zoneinfo",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/dev/urandom",
    "/dev/random",
)
_OPEN_FILES = 64
_THREADS = 64
_PR_SET_KEEPCAPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramLimits:
    """Limits of a program as the sandbox's own processes take them."""

    cpu_s: float
    wall_s: float
    memory_bytes: int
    processes: int
    file_bytes: int
    output_bytes: int
    readable: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProgramUser:
    """User of programs, and how its processes are counted."""

    number: int | None
    """A user that nobody else is; None: the caller's own."""
    counted: bool
    """Only processes of this sandbox count towards the limit of processes."""
    others: int = 0
    """Processes of the sandbox itself among them."""
    reads_all: bool = False
    """It may pass folders that are closed to others: Landlock alone decides what it reads."""


@functools.cache
def library_paths() -> tuple[str, ...]:
    """Folders of Python's and the system's libraries."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    own = (sysconfig.get_path(name) for name in names)
    return tuple(dict.fromkeys([*own, *_SYSTEM_PATHS]))


def _set_limits(limits: ProgramLimits, user: _ProgramUser) -> None:
    """Set the limits of resources that the kernel counts for each process."""
    seconds = int(limits.cpu_s) + 2  # the supervisor counts closer; this holds if it cannot
    wanted = {
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_AS: limits.memory_bytes,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        resource.RLIMIT_CORE: 0,
    }
    if user.counted:
        wanted[resource.RLIMIT_NPROC] = user.others + (_THREADS if limits.processes == 1 else limits.processes)
    for kind, value in wanted.items():
        hard = resource.getrlimit(kind)[1]
        least = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (least, least))


def _signals_allowed(version: int) -> int | None:
    """The only process that may be signalled: the caller; None where Landlock of this version keeps signals inside."""
    return None if version >= landlock.SIGNALS_ABI else os.getpid()


def _prepare_filter(limits: ProgramLimits) -> None:
    """Assemble the filter before programs are forked. Raises OSError for an unknown processor."""
    _allowed_calls(programs=limits.processes > 1, signals_to=_signals_allowed(landlock.abi()))


def _confine_program(limits: ProgramLimits, user: _ProgramUser, folder: str, read: Sequence[str]) -> None:
    """Confine this process to files below `read` and `folder`; it can neither leave nor raise a limit.

    Raises OSError: it is not confined.
    """
    _set_limits(limits, user)
    if user.number is not None:
        prctl(_PR_SET_KEEPCAPS, int(user.reads_all))
        os.setgroups([])
        os.setresgid(user.number, user.number, user.number)
        os.setresuid(user.number, user.number, user.number)
    set_capabilities(1 << CAP_DAC_READ_SEARCH if user.reads_all else 0)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # no program outlives its supervisor; a change of the user clears it
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    version, programs = landlock.abi(), limits.processes > 1
    if version:
        landlock.restrict_files(read=read, write=(*([folder] if folder else []), *DEVICES), programs=programs)
    install_filter(_allowed_calls(programs=programs, signals_to=_signals_allowed(version)))


# ---------------------------------------------------------------------------------------------------------------- rungs


_OWN_USERS = ((2_000_000_000, 1 << 30), (20_000, 1 << 14))
"""First user number of programs, and how many pairs of them there are: where every number exists, and in a container
with 65,536 of them."""
_OWN_USER_DRAWS = 8
_WORK = "/run/program"
_ROOT_BYTES = 1 << 20


class ConfinementRung(Protocol):
    """A way to confine programs. The methods are called in the zygote, but for `confine`."""

    name: str

    def enter(self) -> None:
        """Confine what is confined once, for all programs. Raises OSError: this rung does not hold here."""

    def open_folder(self) -> str:
        """Path of a new, empty work folder."""
        ...

    def own(self, path: str) -> None:
        """Give a file in the work folder to programs."""

    def confine(self, folder: str) -> None:
        """Confine this process, which is to run a program, for good; an empty folder is none. Raises OSError."""

    def clean_up(self, folder: str) -> None:
        """Kill every process that a program left, and delete the folder."""


class _NamespaceRung:
    """Namespaces of users, mounts, processes, networks and names."""

    name = "namespaces"

    def __init__(self, limits: ProgramLimits) -> None:
        self._limits = limits
        self._user = _ProgramUser(number=None, counted=True)

    def enter(self) -> None:
        """Enter the namespaces; the caller goes on as their first process."""
        _prepare_filter(self._limits)
        flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
        if may_map_users():
            first = own_users()
            enter_namespaces(flags, {"uid_map": f"0 {first} 2", "gid_map": f"0 {first} 2"})
            self._user = _ProgramUser(number=1, counted=True)
        else:
            enter_namespaces(flags, {"uid_map": f"0 {os.geteuid()} 1", "gid_map": f"0 {os.getegid()} 1"})
            self._user = _ProgramUser(number=None, counted=True, others=2)
        self._build_root()
        if child := os.fork():
            # be the outer end of a process that is the first of its namespace: end as it ends
            os.closerange(3, 64)  # the channel is the child's
            _, status = os.waitpid(child, 0)
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    def _build_root(self) -> None:
        """Change to a root that holds the readable paths, devices, and a place for the work folder."""
        paths = [path for path in (*library_paths(), *self._limits.readable, *DEVICES) if Path(path).exists()]
        places = {path: os.open(path, os.O_PATH) for path in paths}  # before the user changes: its own folders
        if self._user.number is not None:
            os.setgroups([])
            os.setresgid(0, 0, 0)
            os.setresuid(0, 0, 0)
        mount("", "/", "", MS_REC | MS_PRIVATE)
        root = tempfile.gettempdir()
        mount("hone", root, "tmpfs", MS_NOSUID | MS_NODEV, f"size={_ROOT_BYTES},mode=0755")
        for path in sorted(paths, key=len):
            _bind(places[path], root + path, writable=path in DEVICES)
        for place in places.values():
            os.close(place)
        Path(root + _WORK).mkdir(parents=True, exist_ok=True)
        if not Path(root + "/tmp").exists():  # a readable path may be in it
            Path(root + "/tmp").symlink_to(_WORK)  # programs write there by habit
        change_root(root)
        mount_read_only("/")

    def open_folder(self) -> str:
        """Mount an empty folder in memory, of the size that programs may write."""
        owner = self._user.number or 0
        size = f"size={self._limits.file_bytes},nr_inodes=4096,mode=0700,uid={owner},gid={owner}"
        mount("hone", _WORK, "tmpfs", MS_NOSUID | MS_NODEV, size)
        return _WORK

    def own(self, path: str) -> None:
        """Give a file to programs."""
        _give(path, self._user)

    def confine(self, folder: str) -> None:
        """Confine this process by user, Landlock (where the kernel has it) and the filter of system calls."""
        _confine_program(self._limits, self._user, folder, read=("/",))  # its root holds nothing else

    def clean_up(self, folder: str) -> None:
        """Kill all other processes of the namespace, and take the folder away."""
        # kill and reap every process that this one may signal; itself it cannot
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        _reap()
        unmount(folder)


class _LandlockRung:
    """Landlock, the filter of system calls and, where this process may choose it, a user of its own."""

    name = "landlock"

    def __init__(self, limits: ProgramLimits) -> None:
        self._limits = limits
        self._user = _ProgramUser(number=None, counted=False)

    def enter(self) -> None:
        """Choose the user of programs, and see that a program can be confined."""
        _prepare_filter(self._limits)
        version, own_user = landlock.abi(), may_map_users()
        if version < (1 if own_user else landlock.TRUNCATE_ABI):
            raise OSError(f"Landlock {version or 'is not in this kernel'}: needs {landlock.TRUNCATE_ABI} (Linux 6.2)")
        if own_user:
            folders = {folder for path in library_paths() for folder in Path(path).resolve().parents}
            # Other users may not pass every folder that leads to the libraries.
            reads_all = not all(folder.stat().st_mode & 0o001 for folder in folders if folder.exists())
            self._user = _ProgramUser(number=own_users(), counted=True, reads_all=reads_all)
        elif self._limits.processes > 1:
            raise OSError("processes > 1 needs namespaces, or a user of its own: what a program left would stay")

    def open_folder(self) -> str:
        """Make a folder among the temporary ones."""
        folder = new_folder()
        self.own(folder)
        return folder

    def own(self, path: str) -> None:
        """Give a file to programs."""
        _give(path, self._user)

    def confine(self, folder: str) -> None:
        """Confine this process."""
        _confine_program(self._limits, self._user, folder, read=(*library_paths(), *self._limits.readable))

    def clean_up(self, folder: str) -> None:
        """Kill all processes of the user that only programs have, and delete the folder."""
        if (user := self._user.number) is not None and self._limits.processes > 1:
            killer = os.fork()
            if killer == 0:
                os.setresuid(user, user, user)
                with contextlib.suppress(OSError):
                    os.kill(-1, signal.SIGKILL)
                os._exit(0)
        _reap()
        delete_folder(folder)


class _NoRung:
    """Limits of resources alone: programs run as the caller."""

    name = "none"

    def __init__(self, limits: ProgramLimits) -> None:
        self._limits = limits

    def enter(self) -> None:
        """Do nothing."""

    def open_folder(self) -> str:
        """Make a folder among the temporary ones."""
        return new_folder()

    def own(self, path: str) -> None:
        """Leave a file as it is."""

    def confine(self, folder: str) -> None:
        """Limit resources."""
        del folder
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        _set_limits(self._limits, _ProgramUser(number=None, counted=False))

    def clean_up(self, folder: str) -> None:
        """Delete the folder. Processes that a program left end with the zygote."""
        delete_folder(folder)


def choose_rung(limits: ProgramLimits, wanted: str, *, unsafe: bool) -> tuple[ConfinementRung | None, list[str]]:
    """Enter the strongest rung that holds, or the wanted one; None where none does, and why the stronger do not."""
    ladder: Sequence[Callable[[ProgramLimits], ConfinementRung]] = (_NamespaceRung, _LandlockRung)
    if sys.platform != "linux":
        return None, [f"{platform.system()} has no means for it"]
    reasons: list[str] = []
    for build in ladder:
        rung = build(limits)
        if wanted not in ("best", rung.name):
            continue
        if reason := try_in_child(lambda rung=rung: _try_rung(rung)):
            reasons.append(f"{rung.name}: {reason}")
            continue
        rung.enter()
        return rung, reasons
    return (_NoRung(limits) if unsafe else None), reasons


def _try_rung(rung: ConfinementRung) -> None:
    rung.enter()
    folder = rung.open_folder()
    try:
        if reason := try_in_child(lambda: rung.confine(folder)):
            raise OSError(reason)
    finally:
        rung.clean_up(folder)


def own_users() -> int:
    """First of two user numbers that belong to nobody else, by chance.

    The kernel counts a user's processes over all containers of a machine, in which process numbers repeat: users that
    were numbered by process would share one limit. Raises OSError where no such numbers exist.
    """
    for base, pairs in _OWN_USERS:
        for _ in range(_OWN_USER_DRAWS):
            first = base + 2 * (int.from_bytes(os.urandom(4), "little") % pairs)
            if not any(try_in_child(lambda user=user: _become_unused(user)) for user in (first, first + 1)):
                return first
    raise OSError("no user numbers that programs could have")


def _become_unused(user: int) -> None:
    """Become a user. Raises OSError where the number does not exist, or already has processes anywhere."""
    resource.setrlimit(resource.RLIMIT_NPROC, (2, 2))
    os.setresuid(user, user, user)
    set_capabilities(0)  # the limit does not bind a process that may raise it
    if (child := os.fork()) == 0:  # the second process of this user, or one too many
        os._exit(0)
    os.waitpid(child, 0)


def _give(path: str, user: _ProgramUser) -> None:
    if user.number is not None:
        os.chown(path, user.number, user.number)


def _bind(place: int, target: str, *, writable: bool) -> None:
    """Mount an open path at `target`, which is made."""
    if stat.S_ISDIR(os.fstat(place).st_mode):
        Path(target).mkdir(parents=True, exist_ok=True)
    else:
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        Path(target).touch()
    source = f"/proc/self/fd/{place}"
    if writable:
        mount(source, target, "", MS_BIND)
    else:
        bind_read_only(source, target)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
