"""The catalogue of metrics, `run/store/metrics.toml`, as its page and the tests ask it."""

import re
from functools import cache

from hone.run.store.metrics import metric_catalogue


def catalogue() -> dict[str, dict[str, tuple[str, str]]]:
    """Group -> metric -> (unit, meaning)."""
    return {group: dict(own) for group, own in metric_catalogue().groups.items()}


def variable_parts() -> dict[str, list[str]]:
    """The values of `{phase}`, `{stop}`, `{part}`; other names in braces stand for a number, or for another metric."""
    return {name: list(values) for name, values in metric_catalogue().parts.items()}


@cache
def listed() -> re.Pattern[str]:
    """Matches every name that the catalogue lists."""
    return metric_catalogue().pattern()


def all_names() -> list[str]:
    return metric_catalogue().names
