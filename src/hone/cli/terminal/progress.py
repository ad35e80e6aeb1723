"""Progress of a run, and of other long work: a live line on a terminal, otherwise a plain line every few seconds.

Belongs here: what fits on a line, such as the choice of metrics. `RunProgress` implements
`hone.run.callbacks.ProgressDisplay`, and shows long work of the run's steps in its own line.
"""

import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from hone.cli.terminal.screen import LIVE, printable
from hone.core.clock import Clock, LongWork, listening

PLAIN_EVERY_S = 5.0
WORK_AFTER_S = 2.0
"""Seconds after which long work is shown: what is done before needs no line."""

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
    _figures_shown: str = ""
    _listening: ExitStack = field(default_factory=ExitStack)
    _work_began_s: float | None = None
    """When the long work of a step that goes on began."""

    def start(self, total: int, title: str) -> None:
        """Begin a run of `total` steps; closes the previous one."""
        self.close()
        self._total, self._title, self._first, self._step = total, title, None, 0
        self._began_s, self._shown_s, self._columns = self.clock.monotonic_s(), -math.inf, []
        self._listening.enter_context(listening(self._show_work))
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
            self._figures_shown = figures
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
        self._listening.close()
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._task = None
        if self._pending:
            self._say(self._pending)
            self._pending = ""

    def _show_work(self, work: LongWork) -> None:
        """Show work of a step beside the figures of the step before; without a bar, where no line came for long."""
        now_s = self.clock.monotonic_s()
        if self._work_began_s is None:
            self._work_began_s = now_s
        taken_s = now_s - self._work_began_s
        if self._bar is not None and self._task is not None:
            more = "" if work.is_over else f"  {_work_line(work, taken_s)}"
            self._bar.update(self._task, figures=f"{self._figures_shown}{more}")
        elif not work.is_over and min(taken_s, now_s - self._shown_s) >= 2 * self.plain_every_s:
            self._shown_s = now_s
            self._say(f"{_work_line(work, taken_s)}")
        if work.is_over:
            self._work_began_s = None

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


# ------------------------------------------------------------------------------------------------------ other long work


@dataclass(slots=True, kw_only=True)
class WorkDisplay:
    """Display of long work that is no run: evaluations, sweeps, estimates, proofs, exports. It appears after
    `WORK_AFTER_S`; a live line goes away with the work, plain ones stay."""

    console: Console
    """Writes to standard error, as standard output has the results of a command alone."""
    clock: Clock
    live: bool
    _began_s: float | None = None
    """When the work began; None between two."""
    _shown_s: float | None = None
    """When the last line was shown; None: not yet."""
    _bar: Progress | None = None
    _task: TaskID | None = None

    def show(self, work: LongWork) -> None:
        """Show how far the work is."""
        now_s = self.clock.monotonic_s()
        if self._began_s is None:
            self._began_s = now_s
        if work.is_over:
            self._end(work, now_s)
        elif self._shown_s is None:
            if self._taken_s(now_s) >= WORK_AFTER_S:
                self._show(work, now_s)
        elif self._bar is not None or now_s - self._shown_s >= PLAIN_EVERY_S:
            self._show(work, now_s)

    def _show(self, work: LongWork, now_s: float) -> None:
        self._shown_s = now_s
        if not self.live:
            self._say(_work_line(work, self._taken_s(now_s)))
            return
        if self._bar is None:
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=20),
                TextColumn("{task.fields[left]}"),
                console=self.console,
                transient=True,
                redirect_stdout=False,  # results go where standard output goes, and `TerminalScreen` keeps them whole
            )
            self._task = self._bar.add_task("", total=work.total, left="")
            self._bar.start()
            LIVE.set(self._bar)
        assert self._task is not None
        words, _, left = _work_line(work, self._taken_s(now_s)).partition("  ")
        self._bar.update(self._task, description=printable(words), completed=work.done, total=work.total, left=left)

    def _end(self, work: LongWork, now_s: float) -> None:
        if self._bar is not None:
            LIVE.set(None)
            self._bar.stop()
        elif self._shown_s is not None:
            self._say(_work_line(work, self._taken_s(now_s)))
        self._bar = self._task = self._shown_s = self._began_s = None

    def _taken_s(self, now_s: float) -> float:
        return 0.0 if self._began_s is None else now_s - self._began_s

    def _say(self, text: str) -> None:
        self.console.print(Text(printable(text)), soft_wrap=True)


def _work_line(work: LongWork, taken_s: float) -> str:
    """How far work is that has taken `taken_s` seconds, as `answers 12/64  9s left`."""
    words = f"{work.title} {work.done:,}" + ("" if work.total is None else f"/{work.total:,}")
    if work.is_over:
        return f"{words}  {compact_duration(taken_s)} in all"
    if work.total is None or not 0 < work.done < work.total:
        return words
    return f"{words}  {compact_duration(taken_s / work.done * (work.total - work.done))} left"


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
