"""Processes that should have ended."""

import time
from pathlib import Path


def gone(pid: int, within_s: float = 60.0) -> bool:
    """Whether a process has ended, after waiting for init to reap an orphan that was killed."""
    limit = time.monotonic() + within_s
    while time.monotonic() < limit:
        try:
            if Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] in "ZX":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False
