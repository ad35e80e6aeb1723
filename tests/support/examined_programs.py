"""Programs and the tests that they face, from text files: `### name`, a program, `+++` and a setup, `---` and tests."""

from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parents[1] / "sandbox" / "examined"


@dataclass(frozen=True)
class ExaminedProgram:
    """A program and its tests."""

    name: str
    code: str
    setup: str
    tests: list[str]


def read_programs(file: str) -> list[ExaminedProgram]:
    """The programs of a file under tests/sandbox/examined."""
    programs: list[ExaminedProgram] = []
    for block in ("\n" + (_FOLDER / file).read_text(encoding="utf-8")).split("\n### ")[1:]:
        name, _, text = block.partition("\n")
        head, *tests = text.split("---\n")
        code, _, setup = head.partition("+++\n")
        programs.append(ExaminedProgram(name, code, setup, tests))
    return programs
