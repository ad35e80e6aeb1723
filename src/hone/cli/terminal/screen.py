"""What the commands write: aligned rows and tables, with colour on a terminal and without anywhere else.

Belongs here: everything that knows about terminals, widths and control codes, but the progress display.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH_WITHOUT_TERMINAL = 160


def is_plain(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """No control codes: not a terminal, TERM=dumb, or NO_COLOR set (https://no-color.org)."""
    return not stream.isatty() or environment.get("TERM", "") in ("dumb", "") or bool(environment.get("NO_COLOR"))


class PipeConsole(Console):
    """rich's console, which leaves it to `main` what happens when nobody reads any more."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def make_console(stream: TextIO, environment: Mapping[str, str] = os.environ) -> Console:
    """A console that writes control codes only where they are wanted."""
    if not is_plain(stream, environment):
        return PipeConsole(file=stream, highlight=False)
    columns = environment.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() and int(columns) > 0 else None
    if width is None and not stream.isatty():
        width = WIDTH_WITHOUT_TERMINAL
    return PipeConsole(
        file=stream, highlight=False, force_terminal=False, color_system=None, no_color=True, width=width
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalScreen:
    """Where a command says what it found."""

    console: Console

    def line(self, text: str = "") -> None:
        """One line, never wrapped: it may be a path that somebody copies."""
        self.console.print(Text(printable(text)), soft_wrap=True)

    def title(self, text: str) -> None:
        self.console.print(Text(printable(text), style="bold"), soft_wrap=True)

    def rows(self, rows: Sequence[Sequence[str]]) -> None:
        """Aligned columns without a header; the first names what the second says, the rest is in the background."""
        if not rows:
            return
        table = Table.grid(padding=(0, 2))
        for index in range(max(len(row) for row in rows)):
            table.add_column(style=("cyan", "", "dim")[min(index, 2)], overflow="fold")
        for row in rows:
            table.add_row(*(Text(printable(cell)) for cell in row))
        self.console.print(table)

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Columns under a header."""
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
        for name in header:
            table.add_column(name, overflow="fold")
        for row in rows:
            table.add_row(*(Text(printable(cell)) for cell in row))
        self.console.print(table)

    def shaded_grid(self, rows: Sequence[Sequence[str]], shares: Sequence[float | None]) -> None:
        """A grid of signs; where there is colour, the larger a cell's share (0 to 1) the bluer its background."""
        places = iter(shares)
        for row in rows:
            line = Text("  ")
            for sign in row:
                share = next(places)
                line.append(f" {printable(sign)} ", style="" if share is None else _shade(share))
            self.console.print(line, soft_wrap=True)


def _shade(share: float) -> str:
    dark = round(235 - 150 * min(max(share, 0.0), 1.0))
    return f"black on rgb({dark},{min(255, dark + 20)},255)"


def standard_screen() -> TerminalScreen:
    return TerminalScreen(console=make_console(sys.stdout))


def printable(text: str) -> str:
    """The text with control characters spelled out: what a file says must not steer a terminal."""
    return "".join(
        character if character.isprintable() or character in "\n\t" else character.encode("unicode_escape").decode()
        for character in text
    )
