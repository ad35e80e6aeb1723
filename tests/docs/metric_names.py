"""The catalogue of metrics, tests/docs/metrics.toml: read, and turned into a pattern of allowed names.

The standard library only: tests/conftest.py holds every run of the test-suite to it.
"""

import re
import tomllib
from pathlib import Path

CATALOGUE = Path(__file__).with_name("metrics.toml")


def catalogue() -> dict[str, dict[str, tuple[str, str]]]:
    """Group -> metric -> (unit, meaning)."""
    groups = tomllib.loads(CATALOGUE.read_text(encoding="utf-8"))["group"]
    return {group: {name: (unit, meaning) for name, (unit, meaning) in own.items()} for group, own in groups.items()}


def variable_parts() -> dict[str, list[str]]:
    """The values of `{phase}`, `{stop}`, `{part}`; other names in braces stand for a number, or for another metric."""
    return tomllib.loads(CATALOGUE.read_text(encoding="utf-8"))["names"]


def listed() -> re.Pattern[str]:
    """Matches every name that the catalogue lists."""
    parts = {name: "|".join(values) for name, values in variable_parts().items()}
    parts |= {"task": r"\d+", "step": r"\d+", "metric": r".+", "reward": r".+", "fact": r"\w+", "dialogue": r"\w+/\w+"}
    names = [re.sub(r"\\\{(\w+)\\\}", lambda found: f"(?:{parts[found[1]]})", re.escape(name)) for name in all_names()]
    return re.compile("|".join(names))


def all_names() -> list[str]:
    return [name for own in catalogue().values() for name in own]
