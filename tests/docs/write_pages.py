"""Every generated page of docs/: `python tests/docs/write_pages.py` writes them all.

The texts of `hone list recipes` are written with them: a command that only lists imports no recipe.
"""

import json
from dataclasses import asdict

import algorithm_page
import api_page
import commands_page
import config_tables
import metrics_page
import presets_page
import service_page
from pages import DOCS, write
from planned_recipes import planned_recipes

from hone.planner.run_settings import PLANNED_RECIPES
from hone.recipes.registry import DESCRIPTIONS, load_recipe, recipe_families
from hone.run.job import RecipeDescription

GENERATORS = {
    "commands_page.py": commands_page.pages,
    "config_tables.py": config_tables.pages,
    "algorithm_page.py": algorithm_page.pages,
    "metrics_page.py": metrics_page.pages,
    "api_page.py": api_page.pages,
    "presets_page.py": presets_page.pages,
    "service_page.py": service_page.pages,
}
FOLDERS = ("reference/configuration", "reference/algorithms")
"""Folders in which every page is generated."""


def descriptions() -> str:
    """Texts about each of hone's recipes, as JSON."""
    texts = {name: asdict(RecipeDescription.of(load_recipe(name))) for name in recipe_families()}
    return json.dumps(texts, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the pages, and delete generated ones that no generator makes any more."""
    made = {path: text for pages in GENERATORS.values() for path, text in pages().items()}
    write(made)
    DESCRIPTIONS.write_text(descriptions(), encoding="utf-8")
    PLANNED_RECIPES.write_text(planned_recipes(), encoding="utf-8")
    for folder in FOLDERS:
        for path in (DOCS / folder).glob("*.md"):
            if path.relative_to(DOCS).as_posix() not in made:
                path.unlink()


if __name__ == "__main__":
    main()
