"""The pages for users of other libraries name keys that hone has."""

import re
from pathlib import Path

import pytest

from hone.config.resolve import all_keys
from hone.recipes.registry import load_recipe, recipe_names

ROOT = Path(__file__).resolve().parents[2]


def keys_of(recipe: str) -> set[str]:
    return {".".join(map(str, key)) for key in all_keys(load_recipe(recipe).config)}


def table_rows(page: str) -> list[tuple[str, list[str]]]:
    """The head of each table of a page, and hone's keys of each of its rows."""
    found, head = [], ""
    for line in (ROOT / "docs/start" / page).read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|") or set(cells[0]) <= {"-", ""}:
            continue
        if cells[1] == "hone":
            head = cells[0]
        else:
            found.append((head, re.findall(r"`([a-z_.]+)`", cells[1])))
    return found


@pytest.mark.parametrize(
    ("page", "recipes", "least"),
    [
        (
            "coming_from_trl.md",
            {"GRPOConfig": ["grpo", "gspo", "cispo", "sapo", "dapo"], "DPOConfig": ["dpo", "rpo"]},
            30,
        ),
        ("coming_from_stable_baselines3.md", {"PPO": ["ppo"], "DQN": ["dqn", "sac"]}, 20),
    ],
)
def test_every_key_of_the_tables_exists(page: str, recipes: dict[str, list[str]], least: int) -> None:
    rows = table_rows(page)
    assert sum(bool(keys) for _, keys in rows) >= least
    for head, keys in rows:
        known = set(recipe_names()).union(*(keys_of(one) for name, of in recipes.items() if name in head for one in of))
        assert [key for key in keys if key not in known] == [], head
