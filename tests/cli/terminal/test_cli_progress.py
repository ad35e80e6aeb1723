"""The progress display, driven by a clock of the test's own."""

import contextlib
import fcntl
import io
import math
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from manual_clock import ManualClock
from rich.console import Console

from hone.cli.main import main
from hone.cli.terminal.progress import RunProgress, WorkDisplay, compact_duration, compact_number
from hone.cli.terminal.screen import TerminalScreen, make_console, printable
from hone.core.clock import counted, listening, long_work


def plain(clock: ManualClock) -> tuple[RunProgress, io.StringIO]:
    out = io.StringIO()
    return RunProgress(console=make_console(out, {}), clock=clock, live=False), out


def test_plain_lines_come_every_few_seconds_and_the_last_always() -> None:
    clock = ManualClock()
    progress, out = plain(clock)
    progress.start(100, "run (grpo)")
    for step in range(1, 101):
        clock.advance(0.5)
        progress.update(step, {"reward/mean": step / 100, "episodes/tokens": 1000.0, "time/step_s": 0.5})
    progress.note("saved\x1b[31m")
    progress.close()
    lines = out.getvalue().splitlines()
    assert lines[0] == "run (grpo): 100 steps"
    assert lines[1] == "step   1/100  reward  0.010  tok/s   2000  50s left"
    assert lines[2] == "step  11/100  reward  0.110  tok/s   2000  44s left"
    assert lines[-2] == "step 100/100  reward  1.000  tok/s   2000  50s in all"
    assert lines[-1] == r"saved\x1b[31m"
    assert len(lines) == 1 + 10 + 1 + 1


def test_time_left_counts_from_the_step_that_was_resumed() -> None:
    clock = ManualClock()
    progress, out = plain(clock)
    progress.start(100, "run")
    clock.advance(2)
    progress.update(51, {})
    assert out.getvalue().splitlines()[-1] == "step  51/100    1m 38s left"


def test_what_was_not_shown_is_said_when_a_run_ends_early() -> None:
    clock = ManualClock()
    progress, out = plain(clock)
    progress.start(10, "run")
    progress.update(1, {})
    clock.advance(1)
    progress.update(2, {"learner/loss": 0.5})
    assert "step  2/10" not in out.getvalue()
    progress.close()
    progress.close()
    assert out.getvalue().count("step  2/10  loss  0.500") == 1


def test_columns_keep_their_place() -> None:
    clock = ManualClock()
    progress, out = plain(clock)
    progress.start(3, "run")
    for step, metrics in enumerate([{"eval/score": 0.1, "learner/loss": 2.0}, {"learner/loss": 1.0}], start=1):
        progress.update(step, metrics)
        clock.advance(10)
    first, second = out.getvalue().splitlines()[1:]
    assert first.index("loss") == second.index("loss")


@pytest.mark.parametrize("width", [20, 80])
def test_a_terminal_gets_a_live_line(width: int) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, height=10)
    progress = RunProgress(console=console, clock=ManualClock(), live=True)
    progress.start(2, "run [bold]x")
    progress.update(1, {"reward/mean": 0.25})
    progress.note("a note [/nonsense]")
    progress.update(2, {"reward/mean": 0.5})
    progress.close()
    assert "\x1b[" in out.getvalue() and "a note [/nonsense]" in out.getvalue()


@given(st.floats(min_value=-1e300, max_value=1e300) | st.sampled_from([math.nan, math.inf, -math.inf]))
def test_figures_are_short(value: float) -> None:
    text = compact_number(value)
    assert len(text) <= 7
    if math.isfinite(value) and abs(value) >= 0.0005:
        assert math.isclose(float(text), value, rel_tol=0.5)


def test_figures_and_durations_by_hand() -> None:
    assert [compact_number(value) for value in (0, 0.12345, 12.34, 1234.5, 123456, 1e-5, float("nan"))] == [
        "0", "0.123", "12.3", "1234", "1e+05", "1e-05", "nan",
    ]  # fmt: skip
    assert [compact_duration(value) for value in (0, 59.4, 69, 7380)] == ["0s", "59s", "1m 09s", "2h 03m"]


def test_screens_show_text_as_it_is() -> None:
    out = io.StringIO()
    screen = TerminalScreen(console=make_console(out, {}))
    screen.title("a [bold]title[/nothing]")
    screen.rows([("key", "value\x1b[31m", "origin"), ("longer key", "v")])
    screen.table(("run", "step"), [("x", "1")])
    screen.rows([])
    assert out.getvalue().splitlines()[0] == "a [bold]title[/nothing]"
    assert r"value\x1b[31m" in out.getvalue() and "\x1b" not in out.getvalue()
    assert printable("tab\tline\nbell\x07 \u202e") == "tab\tline\nbell\\x07 \\u202e"


# ------------------------------------------------------------------------------------------------------ other long work


def work_lines(total: int | None, items: int, seconds: float) -> list[str]:
    """Plain lines of work with items of some seconds each."""
    clock, out = ManualClock(), io.StringIO()
    display = WorkDisplay(console=make_console(out, {}), clock=clock, live=False)
    with listening(display.show):
        for _ in counted(range(items), "answers", total):
            clock.advance(seconds)
        clock.advance(100)
        list(counted("a", "letters"))
    return out.getvalue().splitlines()


def test_work_appears_after_two_seconds_and_then_every_five() -> None:
    assert work_lines(100, 100, 0.019) == [], "1.9 seconds are not worth a line"
    lines = work_lines(40, 40, 0.5)
    assert lines[0] == "answers 4/40  18s left", "at two seconds, not before"
    assert lines[1] == "answers 14/40  13s left"
    assert lines[-1] == "answers 40/40  20s in all"
    assert len(lines) == 5
    unknown = work_lines(None, 2, 3.0)
    assert unknown == ["answers 1/2  3s left", "answers 2/2  6s in all"]


def test_work_without_a_number_of_all_has_no_time_left() -> None:
    clock, out = ManualClock(), io.StringIO()
    display = WorkDisplay(console=make_console(out, {}), clock=clock, live=False)
    with listening(display.show), long_work("iterations") as work:
        clock.advance(2)
        work.advance(0)
        clock.advance(5)
        work.advance(7_000)
    assert out.getvalue().splitlines() == ["iterations 0", "iterations 7,000", "iterations 7,000  7s in all"]


def test_live_work_goes_away_and_an_error_ends_it() -> None:
    clock, out = ManualClock(), io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    display = WorkDisplay(console=console, clock=clock, live=True)
    with pytest.raises(ZeroDivisionError), listening(display.show):
        for _ in counted(range(3), "an[swers]"):
            clock.advance(3)
            if clock.monotonic_s() > 5:
                1 / 0  # noqa: B018
    shown = out.getvalue()
    assert "an[swers] 1/3" in shown
    assert "6s left" in shown
    assert shown.endswith("\x1b[2K"), "the line is gone before the error is printed"
    assert display == WorkDisplay(console=console, clock=clock, live=True), "as before"


def test_a_live_run_shows_the_work_of_a_step_in_its_own_line() -> None:
    clock, out = ManualClock(), io.StringIO()
    progress = RunProgress(console=Console(file=out, force_terminal=True, width=200), clock=clock, live=True)
    others: list[str] = []
    with listening(lambda work: others.append(work.title)):
        progress.start(3, "run")
        progress.update(1, {"reward/mean": 0.5})
        with long_work("prompts answered", 4) as work:
            clock.advance(3)
            work.advance(2)
            assert progress._bar is not None
            assert progress._bar.tasks[0].fields["figures"].endswith("reward  0.500  prompts answered 2/4  3s left")
        assert progress._bar.tasks[0].fields["figures"].endswith("reward  0.500")
        progress.close()
        list(counted("a", "letters"))
    assert others == ["letters"] * 3


def test_a_run_without_a_terminal_tells_of_long_work_where_no_line_came_for_ten_seconds() -> None:
    clock = ManualClock()
    progress, out = plain(clock)
    progress.start(3, "run")
    for step in (1, 2, 3):
        for _ in counted(range(4), "prompts answered"):
            clock.advance(9.9 / 4 if step < 3 else 6.0)
        progress.update(step, {})
    assert [line for line in out.getvalue().splitlines() if "prompts" in line] == [
        "prompts answered 2/4  12s left", "prompts answered 4/4",
    ]  # fmt: skip


def test_a_command_shows_its_long_work_on_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hone.cli.terminal.progress.WORK_AFTER_S", 0.0)
    monkeypatch.setattr(
        "hone.cli.commands.show.run", lambda call: len(list(counted(call.text("run"), "letters"))) and 0
    )
    assert main(["show", "ab"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[0] == "letters 0/2"
    assert captured.err.splitlines()[-1].startswith("letters 2/2  ")


# ------------------------------------------------------------------------------------------- beside lines on a terminal


PRINTS = """
import sys, time
from hone.cli.terminal import progress
from hone.cli.terminal.screen import make_console, standard_screen
from hone.core.clock import SystemClock, counted, listening
progress.WORK_AFTER_S = 0.0
screen = standard_screen()
display = progress.WorkDisplay(console=make_console(sys.stderr), clock=SystemClock(), live=True)
with listening(display.show):
    for number in counted(range(6), "experiments"):
        time.sleep(0.03)
        screen.line(f"experiment {number} " + "x" * 30)
        screen.table(("name", "value"), [("a", str(number))])
screen.line("the end")
"""


def on_a_terminal(program: str, *, results: Path | None = None) -> tuple[list[str], str]:
    """Rows that a terminal of 60 columns shows at last, and all that it got; `results` is where standard output goes
    in place of the terminal."""
    control, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 60, 0, 0))
    with contextlib.ExitStack() as stack:
        out = terminal if results is None else stack.enter_context(results.open("wb"))
        environment = {**os.environ, "TERM": "xterm", "NO_COLOR": ""}
        process = subprocess.Popen([sys.executable, "-c", program], stdout=out, stderr=terminal, env=environment)
        os.close(terminal)
    got = b""
    with contextlib.suppress(OSError):  # the end of a terminal is an error
        while data := os.read(control, 65536):
            got += data
    os.close(control)
    assert process.wait() == 0, got.decode()
    rows, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", got.decode()):
        match part[-1]:
            case "\n":
                row += 1
                rows += [""] * (row + 1 - len(rows))
            case "\r":
                column = 0
            case "K" if part.startswith("\x1b"):
                rows[row] = ""
            case "A" if part.startswith("\x1b"):
                row -= int(part[2:-1] or 1)
            case _ if not part.startswith("\x1b"):
                rows[row] = rows[row][:column].ljust(column) + part + rows[row][column + len(part) :]
                column += len(part)
    return [one.rstrip() for one in rows if one.strip()], got.decode()


def test_lines_of_a_command_stay_whole_beside_the_live_line_of_its_work(tmp_path: Path) -> None:
    expected = [
        line for number in range(6) for line in (f"experiment {number} {'x' * 30}", "name  value", f"a     {number}")
    ]
    rows, got = on_a_terminal(PRINTS)
    assert "experiments 5/6" in got, "the live line was there"
    assert rows == [*expected, "the end"]
    rows, got = on_a_terminal(PRINTS, results=tmp_path / "results")
    assert "experiments 5/6" in got
    assert rows == []
    assert [line.rstrip() for line in (tmp_path / "results").read_text().splitlines()] == [*expected, "the end"]
