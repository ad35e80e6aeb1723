"""Code blocks of a Markdown page: found, written to files where they have a title, and run.

What becomes of a block, its fence says:
    python         runs, in one namespace per page; with `title="x.py"` it is written to that file and run on its own
    toml title=    is written, and must pass `hone plan`
    console        each line `$ hone ...` or `$ python FILE ...` runs; the lines below it must stand in what it says, in
                   that order, `...` for anything; `exits 2` in the fence is the last command's exit code
    bash           what cannot be run: each line is on a list, with its reason
    jsonl, text    written, if it has a title
"""

import linecache
import re
import runpy
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hone.cli.main import main

FENCE = re.compile(r"^```(?P<language>\w*)(?P<rest>[^\n]*)\n(?P<body>.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)
TITLE = re.compile(r'title="([^"]+)"')
EXITS = re.compile(r"exits (\d+)")
ELLIPSIS = "..."


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    page: str
    line: int
    language: str
    title: str | None
    exit_code: int
    """What the block's last command ends with: 0 unless the fence says `exits N`."""
    body: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A line of a console block, and the lines that the page shows below it."""

    line: str
    shown: tuple[str, ...]


def blocks_of(path: Path, name: str) -> list[Block]:
    text = path.read_text(encoding="utf-8")
    found: list[Block] = []
    for match in FENCE.finditer(text):
        title, code = TITLE.search(match["rest"]), EXITS.search(match["rest"])
        found.append(
            Block(
                page=name,
                line=text.count("\n", 0, match.start()) + 1,
                language=match["language"],
                title=title[1] if title else None,
                exit_code=int(code[1]) if code else 0,
                body=match["body"],
            )
        )
    return found


def commands_of(body: str) -> Iterator[Command]:
    for chunk in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        line, *shown = chunk.rstrip("\n").split("\n")
        yield Command(line=line, shown=tuple(shown))


def run_file(arguments: list[str]) -> int:
    """`python FILE ARGUMENTS...`."""
    before, sys.argv = sys.argv, arguments
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    finally:
        sys.argv = before
    return 0


PROGRAMS: dict[str, Callable[[list[str]], int]] = {"hone": main, "python": run_file}


@dataclass
class Runner:
    """Runs a page's blocks in order, in the current folder, with one namespace."""

    allowed: dict[str, str]
    """Commands that are not run, with the reason."""
    capture: pytest.CaptureFixture[str]
    names: dict[str, object]

    def run(self, block: Block) -> None:
        if block.title is not None:
            path = Path(block.title)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.body, encoding="utf-8")
        match block.language:
            case "python":
                self.execute(block)
            case "toml" if block.title is not None:
                self.command(block, Command(line=f"hone plan {block.title}", shown=()), block.exit_code)
            case "console":
                commands = list(commands_of(block.body))
                assert commands, f"{block.place}: a console block without a line that begins with $"
                for number, command in enumerate(commands, start=1):
                    self.command(block, command, block.exit_code if number == len(commands) else 0)
            case "bash":
                lines = [line.partition("#")[0].strip() for line in block.body.splitlines()]
                unknown = [line for line in lines if line and line not in self.allowed]
                assert unknown == [], f"{block.place}: show what can be run as `$ hone ...` in a console block"
            case "text" | "jsonl" | "csv":
                pass
            case other:
                pytest.fail(f"{block.place}: nothing runs a block of {other or 'no language'}")

    def execute(self, block: Block) -> None:
        names = self.names if block.title is None else {"__name__": Path(block.title).stem}
        name = f"<{block.place}>"
        lines = block.body.splitlines(keepends=True)
        linecache.cache[name] = (len(block.body), None, lines, name)  # as a notebook does: functions have a text
        exec(compile(block.body, name, "exec"), names)

    def command(self, block: Block, command: Command, exit_code: int) -> None:
        if command.line in self.allowed:
            return
        program, *arguments = shlex.split(command.line)
        assert program in PROGRAMS, f"{block.place}: {command.line!r} is neither run nor on the list of what cannot be"
        self.capture.readouterr()
        code = PROGRAMS[program](arguments)
        captured = self.capture.readouterr()
        said = captured.out + captured.err
        assert code == exit_code, f"{block.place}: {command.line!r} ended with {code}, not {exit_code}:\n{said}"
        missing = not_said(command.shown, said)
        assert missing is None, f"{block.place}: {command.line!r} does not say {missing!r} (there); it said:\n{said}"


def not_said(shown: tuple[str, ...], said: str) -> str | None:
    """The first shown line that does not follow in what was said, spaces aside; `...` stands for anything."""
    spoken = iter([" ".join(line.split()) for line in said.splitlines()])
    for line in shown:
        parts = [" ".join(part.split()) for part in line.split(ELLIPSIS)]
        if not any(parts):
            continue
        pattern = re.compile(".*".join(re.escape(part) for part in parts))
        if not any(pattern.search(one) for one in spoken):
            return line
    return None
