"""Output of the commands: aligned rows and tables, with colour on a terminal only.

Belongs here: code that depends on terminals, widths and control codes, except the progress display.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.progress import Progress

WIDTH_WITHOUT_TERMINAL = 160
LIVE: "ContextVar[Progress | None]" = ContextVar("live", default=None)
"""Live line of long work that is on the terminal now."""
WIDEST_WORD = 30
"""Characters of a word beyond which a cell of a table is folded within it."""


def is_plain(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Decide whether to omit control codes: not a terminal, TERM=dumb, or NO_COLOR set (https://no-color.org)."""
    return not stream.isatty() or environment.get("TERM", "") in ("dumb", "") or bool(environment.get("NO_COLOR"))


class _PipeConsole(Console):
    """rich's console, with a closed pipe handled by `main`."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError."""
        raise BrokenPipeError


def make_console(stream: TextIO, environment: Mapping[str, str] = os.environ) -> Console:
    """Make a console that writes control codes only to a terminal that accepts them."""
    if not is_plain(stream, environment):
        return _PipeConsole(file=stream, highlight=False)
    columns = environment.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() and int(columns) > 0 else None
    if width is None and not stream.isatty():
        width = WIDTH_WITHOUT_TERMINAL
    return _PipeConsole(
        file=stream, highlight=False, force_terminal=False, color_system=None, no_color=True, width=width
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalScreen:
    """Output of a command."""

    console: Console

    def line(self, text: str = "", *, style: str = "") -> None:
        """Print one line without wrapping, so that a path can be copied; `style` is a colour of rich's."""
        self._print(Text(printable(text), style=style), soft_wrap=True)

    def title(self, text: str) -> None:
        """Print a line in bold."""
        self._print(Text(printable(text), style="bold"), soft_wrap=True)

    def rows(self, rows: Sequence[Sequence[str]]) -> None:
        """Print aligned columns without a header: name, value, then dimmed notes."""
        if not rows:
            return
        table = Table.grid(padding=(0, 2))
        name_width = min(max(_longest_word(printable(row[0])) for row in rows if row), WIDEST_WORD)
        for index in range(max(len(row) for row in rows)):
            least = name_width if index == 0 else None
            table.add_column(style=("cyan", "", "dim")[min(index, 2)], overflow="fold", min_width=least)
        for row in rows:
            table.add_row(*(Text(printable(cell)) for cell in row))
        self._print(table)

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print columns under a header; on a screen that is too narrow for them, a block of lines for each row."""
        cells = [[printable(cell) for cell in row] for row in (header, *rows)]
        least = [min(max(map(_longest_word, column)), WIDEST_WORD) for column in zip(*cells, strict=True)]
        if len(header) > 2 and sum(least) + 2 * (len(least) - 1) > self.console.width:
            self._blocks(header, rows)
            return
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
        for name, width in zip(header, least, strict=True):
            table.add_column(name, overflow="fold", min_width=width)
        for row in rows:
            table.add_row(*(Text(printable(cell)) for cell in row))
        self._print(table)

    def _print(self, content: Table | Text, *, soft_wrap: bool = False) -> None:
        """Print, the live line of `LIVE` out of the way: it is the last on the same terminal."""
        shown = LIVE.get()
        if shown is not None:
            shown.stop()
        try:
            self.console.print(content, soft_wrap=soft_wrap)
        finally:
            if shown is not None:
                shown.start()

    def _blocks(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print each row as lines of name and value, under its first cell."""
        for first, *others in rows:
            self.title(f"{header[0]} {first}".strip())
            self.rows([(f"  {name}", value) for name, value in zip(header[1:], others, strict=True) if value])

    def shaded_grid(self, rows: Sequence[Sequence[str]], shares: Sequence[float | None]) -> None:
        """Print a grid of symbols; with colour, a cell's background is bluer for a larger share (0 to 1)."""
        places = iter(shares)
        for row in rows:
            line = Text("  ")
            for sign in row:
                style = ""
                if (share := next(places)) is not None:
                    dark = round(235 - 150 * min(max(share, 0.0), 1.0))
                    style = f"black on rgb({dark},{min(255, dark + 20)},255)"
                line.append(f" {printable(sign)} ", style=style)
            self._print(line, soft_wrap=True)


def _longest_word(text: str) -> int:
    return max(map(len, text.split()), default=0)


def standard_screen() -> TerminalScreen:
    """Screen that prints to standard output."""
    return TerminalScreen(console=make_console(sys.stdout))


def printable(text: str) -> str:
    """Escape control characters: text from a file must not control the terminal."""
    return "".join(
        character if character.isprintable() or character in "\n\t" else character.encode("unicode_escape").decode()
        for character in text
    )
