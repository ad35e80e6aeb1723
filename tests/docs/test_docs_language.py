"""Pages are in plain English: few clauses that begin with what, who or whose, and none of hone's old riddles."""

import re
from collections.abc import Iterator

import pytest
from pages import DOCS, ROOT
from write_pages import GENERATORS

PER_THOUSAND = 3.0
CLAUSE = re.compile(r"\b(?:what|who|whose|whoever|whatever)\b", re.IGNORECASE)
OLD_WORDS = re.compile(
    r"\b(?:whoever acted|lived through|slow cop(?:y|ies)|slow critics?|turns? of the loop|steps of the world|mends?)\b"
)


def pages() -> Iterator[tuple[str, str]]:
    """Name and text of every page; generated ones as the code makes them now."""
    made = {path: text for generate in GENERATORS.values() for path, text in generate().items()}
    yield from made.items()
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]:
        if path.name in ("README.md", "CONTRIBUTING.md") or path.relative_to(DOCS).as_posix() not in made:
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def prose_of(text: str) -> str:
    """Without blocks of code and names of code."""
    return re.sub(r"`[^`\n]*`", "x", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def test_pages_say_things_directly() -> None:
    faults: list[str] = []
    for name, text in pages():
        prose = prose_of(text)
        clauses, words = len(CLAUSE.findall(prose)), len(re.findall(r"[A-Za-z']+", prose))
        if clauses * 1000 > PER_THOUSAND * words:
            faults.append(f"{name}: {clauses} clauses with what, who or whose in {words} words")
        faults += [f"{name}: {word!r}" for word in OLD_WORDS.findall(prose)]
    assert faults == []


@pytest.mark.parametrize(("text", "prose"), [("a `what` b", "a x b"), ("```text\nwho\n```\nc", "\nc")])
def test_code_is_no_prose(text: str, prose: str) -> None:
    assert prose_of(text) == prose
