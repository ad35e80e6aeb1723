"""Messages between this process and a child: one JSON object on a line.

JSON has no tuples, sets, bytes, dates, or keys that are not text; they are tagged, so that a value arrives as
it was sent. Nothing here can run code, unlike pickle.
"""

import base64
import datetime
import decimal
import json
import sys
from collections.abc import Mapping
from typing import Any, cast

_TAG = "~"
_PLAIN = (str, bool, int, float, type(None))


def encode(message: Mapping[str, object]) -> bytes:
    """One line; raises TypeError naming the type of a value that cannot be sent."""
    return json.dumps(pack(message), separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> object:
    """The message of a line; raises ValueError when it is not one."""
    return unpack(json.loads(line))


def pack(value: object) -> object:
    """A value as JSON can hold it."""
    # Exact types first: a subclass such as numpy's float64 or a str enum is turned into its plain value below.
    if type(value) in _PLAIN:
        return value
    if isinstance(value, list):
        return [pack(item) for item in value]
    if isinstance(value, Mapping):
        if all(type(key) is str for key in value) and _TAG not in value:
            return {key: pack(item) for key, item in value.items()}
        return {_TAG: "dict", "of": [[pack(key), pack(item)] for key, item in value.items()]}
    if isinstance(value, tuple):
        return {_TAG: "tuple", "of": [pack(item) for item in value]}
    return _pack_rare(value)


def _pack_rare(value: object) -> object:
    if isinstance(value, set | frozenset):
        return {_TAG: "set", "of": [pack(item) for item in value]}
    if isinstance(value, bytes):
        return {_TAG: "bytes", "of": base64.b64encode(value).decode()}
    for kind, name in ((datetime.datetime, "datetime"), (datetime.date, "date")):
        if isinstance(value, kind):
            return {_TAG: name, "of": value.isoformat()}
    for kind, name in ((decimal.Decimal, "decimal"), (complex, "complex")):
        if isinstance(value, kind):
            return {_TAG: name, "of": str(value)}
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    numpy: Any = sys.modules.get("numpy")  # if nobody imported it, the value is none of its
    array: Any = value
    if numpy is not None and isinstance(value, numpy.generic | numpy.ndarray):
        return pack(array.tolist())
    raise TypeError(f"a value of type {type(value).__name__} cannot be handed to a process")


def unpack(value: object) -> object:
    """The value that `pack` was given."""
    if isinstance(value, list):
        return [unpack(item) for item in value]
    if not isinstance(value, dict):
        return value
    tag = value.get(_TAG)
    if tag is None:
        return {key: unpack(item) for key, item in value.items()}
    return _untag(str(tag), value["of"])


def _untag(tag: str, of: object) -> object:
    if isinstance(of, list):
        items = [unpack(item) for item in of]
        if tag == "dict":
            return dict(cast("list[tuple[object, object]]", items))
        return tuple(items) if tag == "tuple" else set(items)
    text = str(of)
    if tag == "bytes":
        return base64.b64decode(text)
    if tag == "complex":
        return complex(text)
    if tag == "datetime":
        return datetime.datetime.fromisoformat(text)
    return datetime.date.fromisoformat(text) if tag == "date" else decimal.Decimal(text)
