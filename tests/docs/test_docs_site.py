"""The site: every page has its place in the navigation, and a strict build succeeds."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INCLUDED = {
    "project/contributing.md": "CONTRIBUTING.md",
    "project/benchmarks.md": "benchmarks/RESULTS.md",
    "project/changelog.md": "CHANGELOG.md",
    "index.md": "README.md",
}
"""Pages of the site whose source is outside docs/; `docs/_site/hooks.py` adds them."""


def test_every_page_has_one_place_in_the_navigation() -> None:
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"[:-] (\S+\.md)$", settings[settings.index("\nnav:") :], re.MULTILINE)
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(listed) == sorted(pages | set(INCLUDED))
    hooks = (ROOT / "docs" / "_site" / "hooks.py").read_text(encoding="utf-8")
    assert all(f'"{source}": "{uri}"' in hooks and (ROOT / source).is_file() for uri, source in INCLUDED.items())


def test_lists_and_tables_begin_after_an_empty_line() -> None:
    """The code host needs no empty line before a list or a table, the site does."""
    faults: list[str] = []
    for path in sorted((ROOT / "docs").rglob("*.md")):
        text = re.sub(r"^```.*?^```|^<!--.*?-->$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        before = ""
        for line in text.splitlines():
            starts = re.match(r"(- |\d+\. |\|)", line)
            if starts and before.strip() and not re.match(r"(- |\d+\. |\||  )", before):
                faults.append(f"{path.name}: {line}")
            before = line
    assert faults == []


@pytest.mark.slow
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="needs the extra `docs`")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ, timeout=300, check=False)
    assert answer.returncode == 0, answer.stderr
    assert (tmp_path / "site" / "search" / "search_index.json").stat().st_size > 100_000


def test_files_and_folders_that_pages_name_exist() -> None:
    made_by_a_page = {"src/hone/recipes/text/leaky_clip.py"}
    missing: list[str] = []
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = path.read_text(encoding="utf-8")
        names = re.findall(r"\b(?:tests|benchmarks|examples|src)/[\w/]+\.(?:py|toml|md)\b", text)
        names += re.findall(r"`((?:tests|benchmarks|examples|deploy|src)/[\w/]+)`", text)
        missing += [
            f"{path.name}: {name}" for name in names if name not in made_by_a_page and not (ROOT / name).exists()
        ]
    assert missing == []
