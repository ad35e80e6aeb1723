"""Settings in which configurations differ, as short texts.

Belongs here: the choice of keys, and values in a form that a table can hold.
"""

import json
from collections.abc import Mapping, Sequence

from hone.core.strict_json import Json

ABSENT = "-"
"""Text for a key that a configuration does not have."""
MAX_CHARACTERS = 48
"""Longest text of a value."""


def differing_settings(configs: Sequence[Mapping[str, Json]], *, shared_only: bool) -> list[dict[str, str]]:
    """For each configuration (dotted key -> value) the texts of the keys in which some differ, the same keys in each.

    A table that some configuration lacks is one key with all of its leaves: `rewards.functions.1` instead of its five
    keys. With `shared_only`, only keys that all have: configurations of different recipes have little else in common.
    """
    every = list(dict.fromkeys(key for config in configs for key in config))
    if shared_only:
        every = [key for key in every if all(key in config for config in configs)]
    differing = [key for key in every if len({json.dumps(config.get(key)) for config in configs}) > 1]
    keys = list(dict.fromkeys(_common_table(key, configs) for key in differing))
    return [{key: value_text(config, key) for key in keys} for config in configs]


def value_text(config: Mapping[str, Json], key: str) -> str:
    """The value of a key, or the leaves of a table, in at most 48 characters; `-` where there is none."""
    if key in config:
        return shorten(_plain(config[key]))
    inside = {name[len(key) + 1 :]: value for name, value in config.items() if name.startswith(f"{key}.")}
    told = [f"{name} = {_plain(value)}" for name, value in inside.items() if value not in (None, {}, [])]
    return shorten(", ".join(told)) if inside else ABSENT


def shorten(text: str) -> str:
    """Text of at most 48 characters, its beginning and its end kept."""
    if len(text) <= MAX_CHARACTERS:
        return text
    kept = MAX_CHARACTERS - 1
    return f"{text[: kept - kept // 2]}…{text[len(text) - kept // 2 :]}"


def _plain(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)


def _common_table(key: str, configs: Sequence[Mapping[str, Json]]) -> str:
    """The key, or the outermost table around it that some configuration does not have at all."""
    parts = key.split(".")
    for length in range(1, len(parts)):
        table = ".".join(parts[:length])
        if any(not any(name == table or name.startswith(f"{table}.") for name in config) for config in configs):
            return table
    return key
