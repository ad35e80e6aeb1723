"""Landlock: folders that a process and its descendants may read or write, no network, no signals to others; for good.

Needs no privileges (Linux 5.13; networks from 6.7, signals and abstract sockets from 6.12). What a kernel does not know
is left out, so ask `abi` first.
"""

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

from hone.process.linux import check, libc, syscall

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
    return max(0, syscall(_CREATE, None, 0, _VERSION_QUERY))


def restrict_scopes(scopes: int) -> bool:
    """Restrict this process to `scopes` and nothing else; False if that fails."""
    ruleset = _create(0, 0, scopes)
    if ruleset < 0:
        return False
    held = syscall(_RESTRICT, ruleset, 0) == 0
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
    check(min(ruleset, 0), "landlock_create_ruleset")
    try:
        for path in read:
            _allow(ruleset, path, _READ_FILE | _READ_FOLDER | (_EXECUTE if programs else 0))
        for path in write:
            _allow(ruleset, path, rights & ~_EXECUTE & ~_DEVICES_AND_SOCKETS)
        check(syscall(_RESTRICT, ruleset, 0), "landlock_restrict_self")
    finally:
        os.close(ruleset)


def _create(files: int, network: int, scopes: int) -> int:
    attributes = (ctypes.c_uint64 * 3)(files, network, scopes)
    used = 3 if scopes else 2 if network else 1  # an older kernel refuses fields that it does not know
    return syscall(_CREATE, attributes, 8 * used, 0)


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
        check(int(libc().syscall(*numbers, rule, ctypes.c_uint(0))), f"landlock_add_rule for {path}")
    finally:
        os.close(place)
