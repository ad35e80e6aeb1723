"""Values that differ from a given one: what an honest `==` does not confuse with it."""

import contextlib
import fractions
import sys
import types
from array import array
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from hone.sandbox import mirrors
from hone.sandbox.crossing import container_items, fill_container

_DEEPEST = 6
_CHANGES: Mapping[type, Callable[[Any, int], Any]] = {
    bool: lambda value, _: not value,
    int: lambda value, step: value + step,
    float: lambda value, step: value + step * (1 + abs(value) / 16) if abs(value) < float("inf") else 0.0,
    complex: lambda value, step: value + step,
    Decimal: lambda value, step: value + step,
    fractions.Fraction: lambda value, step: value + step,
    str: lambda value, step: f"{value[:-1]}{chr(ord('!') + step % 13)}",
    bytes: lambda value, step: value[:-1] + bytes([ord("!") + step % 13]),
}


def change(value: mirrors.Value, step: int) -> mirrors.Value:
    """Another value of the same type, which differs by `step` wherever it can; the value itself where nothing can."""
    return _changed(value, step, {}, 0)


def _changed(value: mirrors.Value, step: int, made: dict[int, Any], depth: int) -> mirrors.Value:
    kind = type(value)
    if (shift := _CHANGES.get(kind)) is not None:
        return shift(value, step)
    if id(value) in made or depth > _DEEPEST:
        return made.get(id(value), value)
    if kind is array:
        return array(value.typecode, [*value[:-1]]) if value else value
    if kind in (tuple, frozenset):
        return kind(_changed_items(list(value), kind, step, made, depth))
    if kind in mirrors.CONTAINERS:
        return _container(value, kind(), kind, step, made, depth)
    if kind.__module__ in ("builtins", "functools", "types") or isinstance(value, type):
        return value
    if "numpy" in sys.modules and isinstance(value, sys.modules["numpy"].ndarray):
        with contextlib.suppress(TypeError):  # an array of texts, or one that its class does not let change
            return value ^ True if value.dtype.kind == "b" else value + step
        return value
    return _object(value, kind, step, made, depth)


def _container(
    value: mirrors.Value, empty: mirrors.Value, base: type, step: int, made: dict[int, Any], depth: int
) -> mirrors.Value:
    made[id(value)] = empty
    if base is bytearray:
        empty.extend(value + b"?")
        return empty
    fill_container(empty, base, _changed_items(container_items(value, base), base, step, made, depth))
    return empty


def _changed_items(items: list[Any], base: type, step: int, made: dict[int, Any], depth: int) -> list[Any]:
    """As many other items, where there are any that can be changed: keys of a dict stay, one of a set is exchanged."""
    if base in (set, frozenset):
        return [*items[1:], step]
    pairs = issubclass(base, dict)
    changed = [
        item if pairs and place % 2 == 0 else _changed(item, step, made, depth + 1) for place, item in enumerate(items)
    ]
    same = all(one is other for one, other in zip(items, changed, strict=True))
    return [*changed, step, step] if same else changed


def _object(value: mirrors.Value, kind: type, step: int, made: dict[int, Any], depth: int) -> mirrors.Value:
    """A changed copy of an object of a class of one's own, made without its methods."""
    base: mirrors.Value = mirrors.payload_type(kind)
    if base in mirrors.CONTAINERS:
        copied = _container(value, base.__new__(kind), base, step, made, depth)
    elif base in mirrors.ATOMS:
        copied = base.__new__(kind, _changed(mirrors.atom(value, base), step, made, depth))
    elif issubclass(base, BaseException):
        return value
    else:
        try:
            copied = object.__new__(kind)
        except TypeError:  # a class written in C
            return value
    made[id(value)] = copied
    differs = base is not object
    for name, part in _state(value, kind).items():
        other = _changed(part, step, made, depth + 1)
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
