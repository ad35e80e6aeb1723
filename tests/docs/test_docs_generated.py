"""Generated pages are those of the code as it is now."""

from functools import cache

import pytest
from pages import DOCS
from planned_recipes import planned_recipes
from write_pages import FOLDERS, GENERATORS, descriptions

from hone.planner.run_settings import PLANNED_RECIPES
from hone.recipes.registry import DESCRIPTIONS


@cache
def pages_of(script: str) -> dict[str, str]:
    return dict(GENERATORS[script]())


@pytest.mark.parametrize("script", sorted(GENERATORS))
def test_a_generated_page_is_that_of_the_code(script: str) -> None:
    for path, text in pages_of(script).items():
        assert (DOCS / path).read_text(encoding="utf-8") == text, f"{path}: run `python tests/docs/{script}`"


def test_generated_folders_hold_no_page_that_is_left_over() -> None:
    made = {path for script in GENERATORS for path in pages_of(script)}
    there = {path.relative_to(DOCS).as_posix() for folder in FOLDERS for path in (DOCS / folder).glob("*.md")}
    assert there <= made, "run `python tests/docs/write_pages.py`"


def test_the_texts_of_recipes_are_those_of_the_code() -> None:
    assert DESCRIPTIONS.read_text(encoding="utf-8") == descriptions(), "run `python tests/docs/write_pages.py`"


def test_what_plans_know_of_recipes_is_that_of_the_code() -> None:
    assert PLANNED_RECIPES.read_text(encoding="utf-8") == planned_recipes(), "run `python tests/docs/write_pages.py`"
