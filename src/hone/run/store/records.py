"""Frozen dataclasses as JSON and back, field by field; numbers that are not finite are null.

Belongs here: the conversion. Values are read strictly: a missing field, or one of another type, is a DataError that
names the file and the place.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar, cast

from pydantic import BeforeValidator, TypeAdapter, ValidationError

from hone.core.errors import DataError
from hone.core.strict_json import Json
from hone.run.store.durable import read_json, to_json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")

Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""A float of a record that is NaN where the file has null."""


def record_json(record: "DataclassInstance") -> dict[str, Json]:
    """Convert a frozen dataclass, and those in it, to JSON values under the names of their fields."""
    return {name: _plain(value) for name, value in asdict(record).items()}


def _plain(value: object) -> Json:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(key): _plain(inner) for key, inner in cast("Mapping[object, object]", value).items()}
        case list() | tuple():
            return [_plain(inner) for inner in cast("list[object]", value)]
        case _:
            return cast("Json", value)


def read_record(kind: type[T], path: Path) -> T | None:
    """Read a dataclass, or a list of them (`list[Row]`), from a JSON file; None without the file.

    Keys that are no field are ignored. Raises DataError for a damaged file.
    """
    return parse_record(kind, read_json(path), path) if path.exists() else None


def parse_record(kind: type[T], value: Json, path: Path) -> T:
    """Convert JSON values from `path` to a dataclass or a list of them. Raises DataError with every fault."""
    try:
        return TypeAdapter(kind).validate_json(to_json(value), strict=True)
    except ValidationError as error:
        faults = [
            f"{path}: {'.'.join(map(str, fault['loc'])) or 'the file'}: {fault['msg']}" for fault in error.errors()
        ]
        raise DataError(*faults) from None
