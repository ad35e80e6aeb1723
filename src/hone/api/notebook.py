"""A run in a notebook: below its cell it draws its own curves while it goes on.

Belongs here: what is drawn, and whether there is a cell to draw in. The curves are those of the report.
"""

import importlib
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np

from hone.cli.terminal.progress import COLUMNS, compact_duration, compact_number
from hone.core.clock import Clock
from hone.run.report.html import element, styled, text
from hone.run.report.svg import curve_plot

EVERY_S: Final = 1.0
"""Seconds between two drawings: a notebook keeps each in its file until the next."""
NOTES: Final = 5
"""Latest messages that stay below the curves."""
STYLE: Final = """
.hone-run { font: 13px system-ui, sans-serif; max-width: 980px }
.hone-run progress { width: 240px; margin: 0 10px; vertical-align: middle }
.hone-run .curves { display: grid; grid-template-columns: repeat(auto-fill, minmax(280px, 1fr)); gap: 10px 18px }
.hone-run figure { margin: 0 } .hone-run figcaption { font-weight: 600 } .hone-run p { margin: 4px 0; opacity: .8 }
.hone-run svg { display: block; width: 100%; height: auto; overflow: visible }
.hone-run svg text { fill: currentColor; opacity: .65; font-size: 10px }
.hone-run svg .middle { text-anchor: middle } .hone-run svg .end { text-anchor: end }
.hone-run svg .grid { stroke: currentColor; opacity: .15 } .hone-run svg polyline { fill: none }
.hone-run svg .line { stroke: #2f6fde; stroke-width: 1.6 } .hone-run svg .raw { stroke: #2f6fde; opacity: .3 }
.hone-run svg circle { fill: #2f6fde } .hone-run svg .hover rect { fill: transparent }
.hone-run svg .hover circle { opacity: 0 } .hone-run svg .hover:hover circle { opacity: 1 }
"""

Cell: TypeAlias = Callable[[str], Callable[[str], None]]
"""Shows HTML below a notebook's cell; returns a function that shows other HTML in its place."""


def notebook_cell() -> Cell | None:
    """The cell that this program runs in; None outside of a notebook."""
    if "IPython" not in sys.modules:
        return None
    shell: Any = importlib.import_module("IPython").get_ipython()
    if type(shell).__name__ != "ZMQInteractiveShell":  # IPython on a terminal shows no HTML
        return None
    pages: Any = importlib.import_module("IPython.display")

    def show(page: str) -> Callable[[str], None]:
        handle = pages.display(pages.HTML(page), display_id=True)
        return lambda other: handle.update(pages.HTML(other))

    return show


@dataclass(slots=True, kw_only=True)
class NotebookProgress:
    """Display of runs below a notebook's cell, one after another; implements `hone.run.callbacks.ProgressDisplay`."""

    cell: Cell
    clock: Clock
    _title: str = ""
    _total: int = 0
    _first: int | None = None
    """Last step before the first that was shown: a resumed run does not begin at 0."""
    _step: int = 0
    _began_s: float = 0.0
    _shown_s: float = -math.inf
    _steps: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    _values: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """By metric: its finite values, and their steps."""
    _notes: list[str] = field(default_factory=list[str])
    _replace: Callable[[str], None] | None = None

    def start(self, total: int, title: str) -> None:
        """Begin a run of `total` steps, in an output of its own."""
        self.close()
        self._title, self._total, self._first, self._step = title, total, None, 0
        self._began_s, self._steps, self._values, self._notes = self.clock.monotonic_s(), {}, {}, []
        self._replace = self.cell(self._page())

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take in a line of metrics; draw where the last drawing is old."""
        self._first = step - 1 if self._first is None else self._first
        self._step = step
        for names in COLUMNS.values():
            name = next((one for one in names if math.isfinite(metrics.get(one, math.nan))), None)
            if name is not None:
                self._steps.setdefault(name, []).append(step)
                self._values.setdefault(name, []).append(metrics[name])
        if self.clock.monotonic_s() - self._shown_s >= EVERY_S:
            self._draw()

    def note(self, text: str) -> None:
        """Show a message below the curves, or by itself before the first run."""
        self._notes = [*self._notes, text][-NOTES:]
        if self._replace is None:
            self._replace = self.cell(self._page())
        self._draw()

    def close(self) -> None:
        """Draw the end; the drawing stays."""
        if self._replace is not None:
            self._draw()

    def _draw(self) -> None:
        self._shown_s = self.clock.monotonic_s()
        if self._replace is not None:
            self._replace(self._page())

    def _page(self) -> str:
        taken_s, done = self.clock.monotonic_s() - self._began_s, self._step - (self._first or 0)
        time = f"{compact_duration(taken_s)} in all"
        if self._step < self._total:
            time = f"{compact_duration(taken_s / done * (self._total - self._step))} left" if done > 0 else ""
        bar = element("progress", attributes={"value": self._step, "max": max(1, self._total)})
        head = element(
            "div", element("b", text(self._title)), bar, text(f"{self._step}/{self._total}  {time}".rstrip())
        )
        figures = [
            element(
                "figure",
                element("figcaption", text(f"{name}  {compact_number(values[-1])}")),
                curve_plot(np.array(self._steps[name]), np.array(values)),
            )
            for name, values in self._values.items()
        ]
        notes = [element("p", text(note)) for note in self._notes]
        return styled("div", "hone-run", element("style", text(STYLE)), head, styled("div", "curves", *figures), *notes)
