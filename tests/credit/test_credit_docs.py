"""Every credit says its formula and its source, and stands in the table of docs/concepts/credit.md."""

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import hone.credit

PAGE = Path(__file__).resolve().parents[2] / "docs" / "concepts" / "credit.md"
TOOLS = {"columns", "grouping"}
"""Modules of helpers, which are not credits."""
HELPERS = {"scored_decisions", "last_decisions", "values_around", "estimate_kl", "with_scores", "environment_offsets"}


def credits_() -> dict[str, object]:
    """Public functions whose first argument is episodes, with their docstrings."""
    found: dict[str, object] = {}
    for info in pkgutil.iter_modules(hone.credit.__path__):
        if info.name in TOOLS:
            continue
        module = importlib.import_module(f"hone.credit.{info.name}")
        for name, thing in vars(module).items():
            own = inspect.isfunction(thing) and thing.__module__ == module.__name__ and not name.startswith("_")
            if own and name not in HELPERS and next(iter(inspect.signature(thing).parameters), "") == "episodes":
                found[name] = thing
    return found


def test_the_page_names_them_all() -> None:
    page = PAGE.read_text(encoding="utf-8")
    missing = [name for name in credits_() if f"`{name}`" not in page]
    assert missing == []
    assert len(credits_()) > 30


def test_a_credit_states_its_formula_and_its_source() -> None:
    for name, credit in credits_().items():
        parameters = list(inspect.signature(credit).parameters)  # type: ignore[arg-type]
        if parameters[1:2] not in (["values"], ["_values"]):
            continue
        text = inspect.getdoc(credit) or ""
        formula = re.search(r"(A|G|A_t|A_i|A_\{i,t\}|delta_t|r)\b[^.]* = |return|r \+", text)
        assert formula, f"{name}: no formula"
        decoration = "credit" in parameters
        assert (
            decoration or name in {"reward_as_advantage", "optimal_token_baseline"} or re.search(r"(19|20)\d\d", text)
        ), f"{name}: no year of a source"
