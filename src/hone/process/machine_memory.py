"""Memory that this process may use: of the machine, its control groups and its own limits."""

import contextlib
import resource
from pathlib import Path

_KIB = 1024


def memory_limit_bytes(root: Path = Path("/")) -> int | None:
    """Bytes that this process may ever use: the least of the machine's memory and the limits set on it; None where
    none is known. `root` is the folder that holds `proc` and `sys`."""
    limits = [_kilobytes(root / "proc/meminfo").get("MemTotal"), *_group_limits(root)]
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    limits.append(None if soft == resource.RLIM_INFINITY else soft)
    return min((limit for limit in limits if limit is not None), default=None)


def resident_bytes(root: Path = Path("/")) -> int:
    """Bytes of this process in memory; 0 where the system does not tell."""
    return _status(root).get("VmRSS", 0)


def peak_resident_bytes(root: Path = Path("/")) -> int:
    """Most bytes of this process in memory since its start, or since `reset_peak_resident`; 0 where unknown."""
    return _status(root).get("VmHWM", 0)


def reset_peak_resident(root: Path = Path("/")) -> None:
    """Begin a new peak at the present size, where the system can: elsewhere the peak stays that since the start."""
    with contextlib.suppress(OSError):
        (root / "proc/self/clear_refs").write_text("5", encoding="ascii")


def _status(root: Path) -> dict[str, int]:
    return _kilobytes(root / "proc/self/status")


def _kilobytes(path: Path) -> dict[str, int]:
    """Bytes by name, of a file with lines `VmRSS:   1024 kB`."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    rows = (line.split() for line in lines)
    return {row[0].rstrip(":"): int(row[1]) * _KIB for row in rows if len(row) >= 2 and row[1].isdecimal()}


def _group_limits(root: Path) -> list[int]:
    """Limits of the control groups that hold this process, of either version."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    limits: list[int] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base, name = (
            ("sys/fs/cgroup/memory", "memory.limit_in_bytes") if controllers else ("sys/fs/cgroup", "memory.max")
        )
        place = Path(path.lstrip("/"))
        for folder in (place, *place.parents):
            text = _text(root / base / folder / name)
            limits += [int(text)] if text.isdecimal() else []
    return limits


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
