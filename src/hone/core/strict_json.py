"""Strict reading of JSON that a user hands in: what `json.loads` passes over in silence is a fault, with its place.

Faults are keys that an object has twice (`json.loads` keeps the last value), halves of surrogate pairs (which no file
and no tokenizer can hold), whole numbers of more than 4300 digits, and numbers beyond a float's range. NaN and Infinity
are read as numbers, as Python writes them.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias, cast

Json: TypeAlias = "None | bool | int | float | str | list[Json] | dict[str, Json]"
MAX_DIGITS = 4300
"""Digits of a whole number; Python refuses to turn longer ones into text."""
JsonPath: TypeAlias = tuple[str | int, ...]
_ESCAPES = ("\\ud", "\\uD")
"""Beginnings of the escapes that surrogates are written with."""
_KEYS_SHOWN = 5
_CHARACTERS_SHOWN = 40


@dataclass(frozen=True, slots=True)
class JsonFault:
    """Fault of a value inside a document."""

    path: JsonPath
    """Keys and places (from 0) that lead to the value."""
    message: str

    def __str__(self) -> str:
        """Write the path and the message: `messages.0: key 'role' occurs twice`."""
        return f"{'.'.join(map(str, self.path))}: {self.message}" if self.path else self.message


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """Stand-in for a value that cannot be kept."""

    message: str


class _HiddenLossError(ValueError):
    """A value that `json.loads` would pass over in silence; the document is read again for its place."""


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise _HiddenLossError
    return values


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise _HiddenLossError
    return number


def _object(pairs: list[tuple[str, object]]) -> object:
    values = dict(pairs)
    if len(values) == len(pairs):
        return values
    keys = [key for key, _ in pairs]
    twice = ", ".join(repr(key) for key in values if keys.count(key) > 1)
    return _Unreadable(f"key {twice} occurs more than once in an object; keep one of them")


def _integer(digits: str) -> object:
    count = len(digits.lstrip("-"))
    if count <= MAX_DIGITS:
        return int(digits)
    return _Unreadable(
        f"a whole number of {count} digits ({digits[:_CHARACTERS_SHOWN]}...), at most {MAX_DIGITS} can be read; write "
        "it as text"
    )


_SOUND = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite)
_FAULTY = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer)


def parse_json(text: str) -> tuple[object, list[JsonFault]]:
    """The value of a document and its faults, in their order; a value with faults inside must not be used.

    Raises json.JSONDecodeError for text that is no JSON, and RecursionError for one that is nested too deep.
    """
    if not any(escape in text for escape in _ESCAPES):
        try:
            return _SOUND.decode(text), []
        except json.JSONDecodeError:
            raise
        except ValueError:  # a hidden loss, or an integer that Python does not turn into a number
            pass
    value: object = _FAULTY.decode(text)
    return value, list(_faults(value))


def strict_json(text: str | bytes) -> object:
    """The value of a document in UTF-8. Raises ValueError that lists its first faults, or says why it is no JSON."""
    try:
        value, faults = parse_json(text if isinstance(text, str) else text.decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deep to be read") from None
    if faults:
        more = f"; and {len(faults) - _KEYS_SHOWN} more" if len(faults) > _KEYS_SHOWN else ""
        raise ValueError("; ".join(map(str, faults[:_KEYS_SHOWN])) + more)
    return value


def _faults(document: object) -> Iterator[JsonFault]:
    """Faults of a document, without recursion: a document may be nested deeper than Python calls."""
    stack: list[tuple[JsonPath, object]] = [((), document)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, _Unreadable):
            yield JsonFault(path, value.message)
        elif isinstance(value, str):
            yield from _text_faults(path, value)
        elif isinstance(value, float) and math.isinf(value):
            yield JsonFault(path, "a number beyond the range of a float (about 1.8e308)")
        elif isinstance(value, dict):
            members = cast("dict[str, object]", value)
            yield from (fault for key in members for fault in _text_faults(path, key))
            stack.extend(reversed([((*path, key), item) for key, item in members.items()]))
        elif isinstance(value, list):
            items = cast("list[object]", value)
            stack.extend(reversed([((*path, place), item) for place, item in enumerate(items)]))


def _text_faults(path: JsonPath, text: str) -> Iterator[JsonFault]:
    half = next((letter for letter in text if "\ud800" <= letter <= "\udfff"), None)
    if half is not None:
        yield JsonFault(
            path, f"text with half of a surrogate pair (\\u{ord(half):04x}), which no file can hold; write both halves"
        )
