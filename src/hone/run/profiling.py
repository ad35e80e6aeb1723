"""Profile of a run under way: samples of the stack of the thread that trains, and its memory after each step.

Belongs here: sampling, and the figures of what was sampled. A sample is the stack of Python functions below the
training loop; time in a library counts for the function that called it. Sampling reads frames and changes no number of
the run.
"""

import os
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Final, NamedTuple

import numpy as np

from hone.run.loop import train

EVERY_S: Final = 0.005
"""Between two samples: below 1% of the run's time."""
ROOT: Final = train.__code__
Stack = tuple[str, ...]
"""Names of functions, the training loop first."""


@dataclass(slots=True)
class StackSamples:
    """Counts of the stacks that were seen."""

    root: CodeType = ROOT
    counts: Counter[Stack] = field(default_factory=Counter[Stack])
    _names: dict[CodeType, str] = field(default_factory=dict[CodeType, str])

    def take(self, frame: FrameType | None) -> None:
        """Count the stack of a frame, from `root` on; nothing where `root` is not on it."""
        stack: list[str] = []
        while frame is not None:
            code = frame.f_code
            if code not in self._names:
                self._names[code] = f"{_module(code.co_filename)}:{code.co_qualname}"
            if not code.co_filename.startswith("<frozen importlib"):  # an import counts for the function that imports
                stack.append(self._names[code])
            if code is self.root:
                self.counts[tuple(reversed(stack))] += 1
                return
            frame = frame.f_back


def _module(file: str) -> str:
    """Module of a source file, in short: what follows `src` or `site-packages`."""
    parts = Path(file).with_suffix("").parts
    for above in ("site-packages", "src"):
        if above in parts:
            return ".".join(parts[len(parts) - parts[::-1].index(above) :])
    return parts[-1] if parts else file


class StackSampler:
    """Samples the calling thread's stack while the block is carried out."""

    def __init__(self, samples: StackSamples, *, every_s: float = EVERY_S) -> None:
        self.samples = samples
        self._every_s = every_s
        self._thread_id = threading.get_ident()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="profile", daemon=True)

    def _sample(self) -> None:
        while not self._ended.wait(self._every_s):
            self.samples.take(sys._current_frames().get(self._thread_id))

    def __enter__(self) -> StackSamples:
        self._thread.start()
        return self.samples

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


class _FunctionTime(NamedTuple):
    """Shares of all samples."""

    name: str
    own: float
    """In the function itself, and libraries that it calls."""
    whole: float
    """With the functions that it calls."""


def function_times(counts: Counter[Stack]) -> list[_FunctionTime]:
    """Functions by their own time, largest first; a function that calls itself counts once."""
    total = counts.total()
    own: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    for stack, count in counts.items():
        own[stack[-1]] += count
        for name in set(stack):
            whole[name] += count
    return [
        _FunctionTime(name, own[name] / total, whole[name] / total)
        for name in sorted(whole, key=lambda n: (-own[n], n))
    ]


def resident_bytes() -> int:
    """Resident memory of this process; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


class MemorySlope(NamedTuple):
    """Growth of memory over the second half of a run's steps."""

    bytes_per_step: float
    half_width: float
    """Half the width of the 95% interval."""
    is_steady: bool = True
    """Each quarter of these steps has a higher mean than the one before: no single buffer or import."""

    @property
    def grows(self) -> bool:
        """Whether the interval lies above 0, and the growth is steady."""
        return self.is_steady and self.bytes_per_step - self.half_width > 0


def memory_slope(sizes: Sequence[float]) -> MemorySlope | None:
    """Least-squares slope of the second half of `sizes` `[steps]`, bytes a step, with an interval of 1.96 standard
    errors; None for fewer than three points."""
    y = np.asarray(sizes[len(sizes) // 2 :], np.float64)
    if len(y) < 3:
        return None
    x = np.arange(len(y)) - (len(y) - 1) / 2
    spread = float(x @ x)
    slope = float(x @ y) / spread
    rest = y - y.mean() - slope * x
    error = float(np.sqrt(rest @ rest / (len(y) - 2) / spread))
    quarters = [float(part.mean()) for part in np.array_split(y, min(4, len(y)))]
    return MemorySlope(slope, 1.96 * error, all(before < after for before, after in pairwise(quarters)))
