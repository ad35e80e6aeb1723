"""Which recipes belong together, for people who look for one.

Belongs here: families, and how a recipe's own description says which is its.
"""

from collections.abc import Mapping

from hone.train.job import Entry
from hone.train.registry import load_recipe, recipe_names

TEXT, ON_POLICY, REPLAY, TABULAR, OFFLINE, BANDITS = (
    "language models",
    "control, on-policy",
    "control, from replay",
    "tabular",
    "offline",
    "bandits",
)
FAMILIES = (TEXT, ON_POLICY, REPLAY, TABULAR, OFFLINE, BANDITS)


def family_of(entry: Entry) -> str:
    """By where its episodes come from, and by what steps it."""
    source, parts = entry.parts.source, (*entry.parts.credit, *entry.parts.loss)
    if any(part.__module__.startswith("hone.tabular") for part in parts):
        return TABULAR
    if "arms" in source:
        return BANDITS
    if "text" in source or "examples" in source:
        return TEXT
    if source.startswith("Logged("):
        return OFFLINE
    return REPLAY if source.startswith("Replay(") else ON_POLICY


def families() -> Mapping[str, Mapping[str, Entry]]:
    """Every recipe by its name, by family; families without one are left out."""
    entries = {name: load_recipe(name) for name in recipe_names()}
    grouped = {family: {n: e for n, e in entries.items() if family_of(e) == family} for family in FAMILIES}
    return {family: members for family, members in grouped.items() if members}
