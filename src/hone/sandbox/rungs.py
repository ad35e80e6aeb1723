"""Rungs of confinement, strongest first, and the choice of the one that holds on this machine.

    namespaces  users, files, processes, networks and names of its own: programs see a small root that holds Python's
                libraries read-only, and nothing else. Landlock and the filter of system calls stand behind it.
    landlock    no namespaces needed, as in a container: a user of its own where this process may choose one, Landlock
                for files and networks, the filter for the rest.
    none        limits of time and memory only. Taken only by a policy that says so in words.

Each is tried in a process that is thrown away, never assumed.
"""

import contextlib
import os
import platform
import resource
import signal
import stat
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from hone.process import linux as landlock
from hone.process.linux import (
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUTS,
    MS_BIND,
    MS_NODEV,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
    PR_SET_PDEATHSIG,
    bind_read_only,
    change_root,
    enter_namespaces,
    may_map_users,
    mount,
    mount_read_only,
    prctl,
    set_capabilities,
    try_in_child,
    unmount,
)
from hone.sandbox.frames import delete_folder, new_folder
from hone.sandbox.jail import (
    DEVICES,
    ProgramLimits,
    ProgramUser,
    confine_program,
    library_paths,
    open_to_all,
    prepare_filter,
    set_limits,
)

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
        self._user = ProgramUser(number=None, counted=True)

    def enter(self) -> None:
        """Enter the namespaces; the caller goes on as their first process."""
        prepare_filter(self._limits)
        flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
        if may_map_users():
            first = own_users()
            enter_namespaces(flags, {"uid_map": f"0 {first} 2", "gid_map": f"0 {first} 2"})
            self._user = ProgramUser(number=1, counted=True)
        else:
            enter_namespaces(flags, {"uid_map": f"0 {os.geteuid()} 1", "gid_map": f"0 {os.getegid()} 1"})
            self._user = ProgramUser(number=None, counted=True, others=2)
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
        confine_program(self._limits, self._user, folder, read=("/",))  # its root holds nothing else

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
        self._user = ProgramUser(number=None, counted=False)

    def enter(self) -> None:
        """Choose the user of programs, and see that a program can be confined."""
        prepare_filter(self._limits)
        version, own_user = landlock.abi(), may_map_users()
        if version < (1 if own_user else landlock.TRUNCATE_ABI):
            raise OSError(f"Landlock {version or 'is not in this kernel'}: needs {landlock.TRUNCATE_ABI} (Linux 6.2)")
        if own_user:
            reads_all = not open_to_all(library_paths())
            self._user = ProgramUser(number=own_users(), counted=True, reads_all=reads_all)
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
        confine_program(self._limits, self._user, folder, read=(*library_paths(), *self._limits.readable))

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
        set_limits(self._limits, ProgramUser(number=None, counted=False))

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


def _give(path: str, user: ProgramUser) -> None:
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
