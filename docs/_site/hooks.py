"""Adaptations of the pages to the site, applied by mkdocs while it builds (`make docs`).

The sources are written for the code host. The site differs in four points: pages from outside docs/ are included,
links to other files of the repository become plain text, code fences lose the words that only the test-suite reads, and
comments are left out.
"""

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
COMMENT = re.compile(r"^<!--.*?-->$", re.MULTILINE | re.DOTALL)
INCLUDED = {
    "CONTRIBUTING.md": "project/contributing.md",
    "benchmarks/RESULTS.md": "project/benchmarks.md",
    "CHANGELOG.md": "project/changelog.md",
    "README.md": "index.md",
}
"""Files outside docs/ -> their place in the site."""
ORIGINS = {uri: path for path, uri in INCLUDED.items()}
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]\n]+(?:\n[^\]\n]+)?)\]\((?P<target>[^)\s]+)\)")
FENCE = re.compile(r"^```(\w+) exits \d+$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside docs/."""
    for path, uri in INCLUDED.items():
        files.append(File.generated(config, uri, content=(ROOT / path).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Adapt fences and links of one page."""
    uri = page.file.src_uri
    origin = ORIGINS.get(uri, f"docs/{uri}")
    text = COMMENT.sub("\n", FENCE.sub(r"```\1", markdown))
    return LINK.sub(lambda match: adapted(match, uri, origin), text)


def adapted(match: re.Match[str], uri: str, origin: str) -> str:
    """The link as the site needs it: relative to the page's place there, or its text where the target is no page."""
    file, mark, anchor = match["target"].partition("#")
    if not file or "://" in file:
        return match[0]
    target = os.path.normpath(os.path.join(os.path.dirname(origin), file))  # noqa: PTH118, PTH120 - not a file's path
    if not (ROOT / target).exists():
        return match[0]  # mkdocs reports it
    place = INCLUDED.get(target) or (target.removeprefix("docs/") if target.startswith("docs/") else None)
    if place is None:
        return match["text"]
    return f"[{match['text']}]({os.path.relpath(place, os.path.dirname(uri))}{mark}{anchor})"  # noqa: PTH120
