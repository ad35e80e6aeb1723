"""Base class of all configs: typed, frozen, without unknown keys.

A config class is in the module that uses it, has at most about 12 fields, and expresses alternatives as tagged unions.
Its defaults are those of a tested run. Numbers given as strings are rejected, not coerced.
"""

import ipaddress
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from typing import Annotated, Final, TypeVar, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.fields import FieldInfo

from hone.core.strict_json import Json

T = TypeVar("T")
STAGE_PREFIX: Final = "stage:"
"""A value `stage:NAME` names what stage NAME of the same pipeline leaves behind: its policy, its answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSetting:
    """Resolved value and its origin: `default`, `run.toml:7` or `command line`."""

    value: Json
    origin: str = "default"


@dataclass(frozen=True, slots=True)
class _NewDefault:
    value: object
    sentence: str | None


def new_default(value: T, sentence: str | None = None) -> T:
    """Another default of an inherited key; its type, its bounds and, unless given, its sentence stay.

    `rollout_steps = new_default(32)` in a subclass of a config.
    """
    return cast("T", _NewDefault(value, sentence))


class Config(BaseModel):
    """Frozen config that rejects unknown keys and wrong types (an int is accepted for a float).

    A partial table is completed from the default of its field, in files, on the command line and in Python:
    `learner = {"minibatches": 2}` changes that key of the recipe's default and no other.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True,
        ignored_types=(_NewDefault,),
    )  # fmt: skip

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: object) -> None:
        changed = {key: one for key, info in cls.model_fields.items() if isinstance(one := info.default, _NewDefault)}
        for key, one in changed.items():
            inherited = next(
                base for base in cls.__mro__[1:] if issubclass(base, BaseModel) and key in base.model_fields
            )
            cls.model_fields[key] = info = copy(inherited.model_fields[key])
            info.default, info.description = one.value, one.sentence or info.description
        if changed:
            cls.model_rebuild(force=True)

    @model_validator(mode="before")
    @classmethod
    def _completed(cls, given: object) -> object:
        if not isinstance(given, dict):
            return given
        values = cast("dict[str, object]", given)
        return fill_defaults(cls, with_values(values, cls.preset_values(values)))

    @classmethod
    def preset_values(cls, given: Mapping[str, object]) -> Mapping[str, object]:
        """Values, in tables, that a key of `given` sets for keys that `given` leaves out: none, in most configs."""
        del given
        return {}


def with_values(given: Mapping[str, object], values: Mapping[str, object]) -> dict[str, object]:
    """`given` completed by `values`, table by table; of a key in both, what was given stays."""
    result = dict(given)
    for key, value in values.items():
        own = result.setdefault(key, value)
        if isinstance(value, Mapping) and isinstance(own, Mapping):
            inner = cast("Mapping[str, object]", own), cast("Mapping[str, object]", value)
            result[key] = with_values(*inner)
    return result


def fill_defaults(
    model: type[BaseModel], values: Mapping[str, object], default: BaseModel | None = None
) -> dict[str, object]:
    """Complete tables that are given in part from the value that the field would have without them.

    So `[learner]` with one key changes that key only, although the field's default differs from the class's defaults;
    and a tagged union keeps its default member while nobody names another.
    """
    filled = dict(values)
    for name, inherited in _inherited(model, default).items():
        value = filled.get(name)
        if name not in filled:
            if default is not None:
                filled[name] = inherited
        elif isinstance(value, dict) and isinstance(inherited, BaseModel):
            field = model.model_fields[name]
            tag = str(field.discriminator) if field.discriminator else _tag(field.annotation)
            own = {tag: dict(inherited)[tag]} if tag is not None else {}
            wanted = {**own, **cast("dict[str, object]", value)}
            if wanted.items() >= own.items():  # nobody names another member
                filled[name] = fill_defaults(type(inherited), wanted, inherited)
    return filled


def _inherited(model: type[BaseModel], default: BaseModel | None) -> dict[str, object]:
    """The values that hold while nobody says otherwise: of the instance that is the default, else of the class."""
    if default is not None:
        return {
            name: value for name, value in default if name in default.model_fields_set or isinstance(value, BaseModel)
        }
    return {
        name: info.get_default(call_default_factory=True)
        for name, info in model.model_fields.items()
        if isinstance(info.default, BaseModel) or info.default_factory is not None
    }


def _tag(annotation: object) -> str | None:
    """The key that tells the members of a union apart, where one stands inside `... | None`."""
    notes = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
    here = next((str(note.discriminator) for note in notes if isinstance(note, FieldInfo) and note.discriminator), None)
    return here or next((tag for inner in get_args(annotation) if (tag := _tag(inner)) is not None), None)


# ------------------------------------------------------------------------------------------------------------ addresses


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
