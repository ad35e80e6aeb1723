"""Values that differ from a given one: what an honest `==` does not confuse with it."""

import contextlib
import fractions
import types
from collections.abc import Callable, Mapping
from decimal import Decimal
from random import Random
from typing import Any

from hone.sandbox import mirrors
from hone.sandbox.crossing import container_items, fill_container

_DEEPEST = 6
_CHANGES: Mapping[type, Callable[[Any, int], Any]] = {
    bool: lambda value, _: not value,
    int: lambda value, step: value + step,
    float: lambda value, step: value + step if abs(value) < 1e12 else -value,
    complex: lambda value, step: value + step,
    Decimal: lambda value, step: value + step,
    fractions.Fraction: lambda value, step: value + step,
    str: lambda value, step: f"{value}?{step}",
    bytes: lambda value, step: value + str(step).encode(),
}


def change(value: mirrors.Value, chance: Random) -> mirrors.Value:
    """Another value of the same type; the value itself where nothing in it can be changed."""
    return _changed(value, chance, {}, 0)


def _changed(value: mirrors.Value, chance: Random, made: dict[int, Any], depth: int) -> mirrors.Value:
    kind = type(value)
    if (step := _CHANGES.get(kind)) is not None:
        return step(value, chance.randrange(1001, 10**6, 2))
    if id(value) in made or depth > _DEEPEST:
        return made.get(id(value), value)
    if kind in (tuple, frozenset):
        return kind([*(_changed(item, chance, made, depth + 1) for item in value), chance.randrange(10**6)])
    if kind in mirrors.CONTAINERS:
        return _container(value, kind(), kind, chance, made, depth)
    if kind.__module__ in ("builtins", "functools", "types") or isinstance(value, type):
        return value
    return _object(value, kind, chance, made, depth)


def _container(
    value: mirrors.Value, empty: mirrors.Value, base: type, chance: Random, made: dict[int, Any], depth: int
) -> mirrors.Value:
    made[id(value)] = empty
    if base is bytearray:
        empty.extend(value + b"?")
        return empty
    items = container_items(value, base)
    if not issubclass(base, set):
        items = [
            item if issubclass(base, dict) and place % 2 == 0 else _changed(item, chance, made, depth + 1)
            for place, item in enumerate(items)
        ]
    fill_container(empty, base, [*items, *(chance.randrange(10**6) for _ in range(2))])
    return empty


def _object(value: mirrors.Value, kind: type, chance: Random, made: dict[int, Any], depth: int) -> mirrors.Value:
    """A changed copy of an object of a class of one's own, made without its methods."""
    base: mirrors.Value = mirrors.payload_type(kind)
    if base in mirrors.CONTAINERS:
        copied = _container(value, base.__new__(kind), base, chance, made, depth)
    elif base in mirrors.ATOMS:
        copied = base.__new__(kind, _changed(mirrors.atom(value, base), chance, made, depth))
    elif issubclass(base, BaseException):
        return value
    else:
        copied = object.__new__(kind)
    made[id(value)] = copied
    differs = base is not object
    for name, part in _state(value, kind).items():
        other = _changed(part, chance, made, depth + 1)
        differs = differs or other is not part
        object.__setattr__(copied, name, other)
    if not differs:
        made[id(value)] = value
    return made[id(value)]


def _state(value: mirrors.Value, kind: type) -> dict[str, Any]:
    """Attributes of an instance, in its dictionary and in slots."""
    members = {name: member for base in reversed(kind.__mro__) for name, member in base.__dict__.items()}
    slots = {name: slot for name, slot in members.items() if isinstance(slot, types.MemberDescriptorType)}
    state: dict[str, Any] = {}
    for name, slot in slots.items():
        with contextlib.suppress(AttributeError):  # nothing is in this slot
            state[name] = slot.__get__(value)
    try:
        return {**object.__getattribute__(value, "__dict__"), **state}
    except AttributeError:  # it has slots only
        return state
