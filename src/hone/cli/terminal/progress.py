"""Progress of a run: one live line on a terminal, otherwise a plain line every few seconds.

Belongs here: the choice of metrics that fit on a line. Implements `hone.run.callbacks.ProgressDisplay`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from hone.cli.terminal.screen import printable
from hone.core.clock import Clock

PLAIN_EVERY_S = 5.0

# Column -> metrics for it, in order of preference.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "score": ("eval/score", "eval/return", "eval/mean"),
    "reward": ("reward/mean", "episodes/return", "return/mean"),
    "loss": ("learner/loss", "loss", "loss/total", "policy/loss"),
    "kl": ("policy/kl_nats",),
    "nll": ("policy/nll_nats",),
    "entropy": ("policy/entropy_nats",),
    "replicas": ("fleet/replicas",),
    "lost": ("fleet/lost",),
}
SPEED: Mapping[str, tuple[str, ...]] = {"tok/s": ("episodes/tokens", "tokens"), "decisions/s": ("episodes/decisions",)}


@dataclass(slots=True, kw_only=True)
class RunProgress:
    """Progress display: steps, time left, and a few metrics."""

    console: Console
    clock: Clock
    live: bool
    plain_every_s: float = PLAIN_EVERY_S
    _total: int = 0
    _title: str = ""
    _began_s: float = 0.0
    _shown_s: float = -math.inf
    _first: int | None = None
    _step: int = 0
    _pending: str = ""
    _columns: list[str] = field(default_factory=list[str])
    _bar: Progress | None = None
    _task: TaskID | None = None

    def start(self, total: int, title: str) -> None:
        """Begin a run of `total` steps; closes the previous one."""
        self.close()
        self._total, self._title, self._first, self._step = total, title, None, 0
        self._began_s, self._shown_s, self._columns = self.clock.monotonic_s(), -math.inf, []
        if not self.live:
            self._say(f"{title}: {total} steps")
            return
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[figures]}"),
            console=self.console,
        )
        self._task = self._bar.add_task(printable(title), total=total, figures="")
        self._bar.start()

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show that step `step` ended with these metrics."""
        if self._first is None:
            self._first = step - 1
        figures = self._figures(metrics, step - max(self._step, self._first))
        self._step = step
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=step, figures=figures)
            return
        now_s = self.clock.monotonic_s()
        width = len(str(self._total))
        line = f"step {step:>{width}}/{self._total}  {figures}{self._time_left(now_s)}".rstrip()
        if step == self._total or now_s - self._shown_s >= self.plain_every_s:
            self._shown_s = now_s
            self._pending = ""
            self._say(line)
        else:
            self._pending = line

    def note(self, text: str) -> None:
        """Print a message that stays on the screen."""
        self._say(text)

    def close(self) -> None:
        """End the display; its last line stays on the screen."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._task = None
        if self._pending:
            self._say(self._pending)
            self._pending = ""

    def _say(self, text: str) -> None:
        self.console.print(Text(printable(text)), soft_wrap=True)

    def _figures(self, metrics: Mapping[str, float], steps: int) -> str:
        """Format the metrics in aligned columns. A column keeps its position once shown."""
        values = {name: value for name, keys in COLUMNS.items() if (value := _first_of(metrics, keys)) is not None}
        step_s = metrics.get("time/step_s", 0.0)
        for name, keys in SPEED.items():
            count = _first_of(metrics, keys)
            if count is not None and step_s > 0 and not values.keys() & SPEED.keys():
                values[name] = count * steps / step_s  # the count is a mean over the steps, the time is their total
        self._columns += [name for name in values if name not in self._columns]
        return "  ".join(
            f"{name} {compact_number(values[name]) if name in values else '':>6}" for name in self._columns
        )

    def _time_left(self, now_s: float) -> str:
        done = self._step - (self._first or 0)
        if self._step >= self._total or done < 1:
            return f"  {compact_duration(now_s - self._began_s)} in all" if self._step >= self._total else ""
        return f"  {compact_duration((now_s - self._began_s) / done * (self._total - self._step))} left"


def compact_number(value: float) -> str:
    """Format a number in at most six characters for usual metrics: 0.123, 12.3, 1234, 1.2e+06, nan."""
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if size == 0:
        return "0"
    if size >= 99_999.5 or size < 0.0005:
        return f"{value:.0e}"
    return f"{value:.3f}" if size < 10 else f"{value:.1f}" if size < 1000 else f"{value:.0f}"


def compact_duration(seconds: float) -> str:
    """Format seconds as 9s, 1m 09s or 2h 03m."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"


def _first_of(metrics: Mapping[str, float], names: tuple[str, ...]) -> float | None:
    return next((metrics[name] for name in names if name in metrics), None)
