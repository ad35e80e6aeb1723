"""Systems of decisions in production, each with its acceptance figures and a negative control that must fail.

A system is a module with

    TITLE                                   its name in tables
    acceptance(*, fast) -> iterator         `AcceptanceLine`s, each told as it is measured, the cheap ones first
    peers() -> iterator, optional           `tables.Row`s beside other libraries, in environments of their own

`fast` takes at most 20 seconds of processor time and decides with fewer repetitions; the bars are the same, or wider by
the error of the fewer repetitions, as the line then says. Bars of processor time are FAST_SLACK times wider, as tests
share their cores, and one machine takes twice the time of another. Every seed is one that chose no setting (100 and
above).
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

FAST_SLACK = 4.0


def slack(*, fast: bool) -> float:
    """How much wider a bar of processor time is."""
    return FAST_SLACK if fast else 1.0


@dataclass(frozen=True, kw_only=True)
class AcceptanceLine:
    """One figure of a system, and whether it meets its bar."""

    figure: str
    value: float
    at_least: float | None = None
    at_most: float | None = None
    negative: bool = False
    """A control that is built wrong on purpose: it must miss the bar of the right one, which `at_least` or `at_most`
    states from the other side."""
    seeds: int = 1
    cpu_s: float = field(default=0.0)
    words: str = ""
    """Repetitions, sizes, the worst seed: what a reader needs to judge the value."""

    @property
    def met(self) -> bool:
        """True if the value is within its bar."""
        above = self.at_least is None or self.value >= self.at_least
        return above and (self.at_most is None or self.value <= self.at_most)

    def as_json(self, system: str) -> str:
        """One line: system, figure, value, threshold, seeds and processor seconds."""
        return json.dumps({"system": system, **asdict(self), "met": self.met})


class CpuSeconds:
    """Processor seconds of a block."""

    def __init__(self) -> None:
        self.spent = 0.0


@contextmanager
def cpu_seconds() -> Iterator[CpuSeconds]:
    """Measure the processor time of a block, that of this process."""
    measured, begin = CpuSeconds(), time.process_time()
    try:
        yield measured
    finally:
        measured.spent = time.process_time() - begin
