"""Generated pages: where they are written, and the Markdown that several generators need."""

import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def write(pages: Mapping[str, str]) -> None:
    """Write pages, given by their path below docs/."""
    for path, text in pages.items():
        (DOCS / path).parent.mkdir(parents=True, exist_ok=True)
        (DOCS / path).write_text(text, encoding="utf-8")


def made_by(script: str) -> str:
    """The comment below a generated page's title."""
    return f"<!-- made by `python tests/docs/{script}`: change the code, not this page -->"


def anchor(heading: str) -> str:
    """The anchor of a heading, as GitHub and the site name it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def cell(text: str) -> str:
    """Text inside a table."""
    return " ".join(text.split()).replace("|", "\\|")


def row(*cells: str) -> str:
    return f"| {' | '.join(cell(text) for text in cells)} |"


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "\n".join([row(*header), "|" + "---|" * len(header), *(row(*cells) for cells in rows)])


def fenced(text: str, language: str = "text") -> str:
    return f"```{language}\n{text.strip()}\n```"


def slug(family: str) -> str:
    """`control, on-policy` -> `control_on_policy`: the file of a family of recipes."""
    return re.sub(r"\W+", "_", family.lower()).strip("_")
