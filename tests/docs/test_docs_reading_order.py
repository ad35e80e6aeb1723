"""The pages that say in which order to read name files and things that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("page", ["one_grpo_step", "one_ppo_step"])
def test_files_of_the_reading_order_hold_what_the_page_names(page: str) -> None:
    text = (ROOT / "docs" / "project" / f"{page}.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d+ \| `([\w/]+\.py)` \| ([^|]+) \|", text, re.MULTILINE)
    assert len(rows) >= 9
    for file, names in rows:
        tree = ast.parse((ROOT / "src" / "hone" / file).read_text(encoding="utf-8"))
        there = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        assert set(re.findall(r"`(\w+)`", names)) <= there, file
