"""Pages are in plain English: few clauses that begin with what, who or whose, and none of hone's old riddles."""

import re
from pathlib import Path

import pytest
from pages import DOCS, ROOT
from write_pages import GENERATORS

PER_THOUSAND = 3.0
CLAUSE = re.compile(r"\b(?:what|who|whose|whoever|whatever)\b", re.IGNORECASE)
OLD_WORDS = re.compile(
    r"\b(?:whoever acted|lived through|slow cop(?:y|ies)|slow critics?|turns? of the loop|steps of the world|mends?)\b"
)
MEASURED = {"project/lab.md"}
"""Pages whose text is written by experiments."""


def written_by_hand() -> list[Path]:
    made = {path for pages in GENERATORS.values() for path in pages()}
    pages = [path for path in sorted(DOCS.rglob("*.md")) if path.relative_to(DOCS).as_posix() not in made | MEASURED]
    return [ROOT / "README.md", *pages]


def prose_of(text: str) -> str:
    """Without blocks of code and names of code."""
    return re.sub(r"`[^`\n]*`", "x", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def test_pages_say_things_directly() -> None:
    faults: list[str] = []
    for path in written_by_hand():
        prose = prose_of(path.read_text(encoding="utf-8"))
        clauses, words = len(CLAUSE.findall(prose)), len(re.findall(r"[A-Za-z']+", prose))
        if clauses * 1000 > PER_THOUSAND * words:
            faults.append(f"{path.relative_to(ROOT)}: {clauses} clauses with what, who or whose in {words} words")
        faults += [f"{path.relative_to(ROOT)}: {word!r}" for word in OLD_WORDS.findall(prose)]
    assert faults == []


@pytest.mark.parametrize(("text", "prose"), [("a `what` b", "a x b"), ("```text\nwho\n```\nc", "\nc")])
def test_code_is_no_prose(text: str, prose: str) -> None:
    assert prose_of(text) == prose
