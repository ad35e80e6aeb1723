"""Base class of all configs: typed, frozen, without unknown keys.

A config class is in the module that uses it, has at most about 12 fields, and expresses alternatives as tagged unions.
Its defaults are those of a tested run. Numbers given as strings are rejected, not coerced.
"""

import ipaddress
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, product
from typing import Annotated, Final, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.fields import FieldInfo

from hone.core.strict_json import Json

RENAMED_KEYS: Mapping[str, tuple[str, ...]] = {
    "ahead": ("max_staleness",),
    "alarm_nats": ("max_mismatch_nats",),
    "barren_batches": ("max_unscored_batches",),
    "begin": ("start",),
    "decay": ("lr_decay", "gae_lambda", "trace_lambda"),
    "ending": ("end_probability",),
    "explore": ("exploration",),
    "fall_nats": ("max_decrease_nats",),
    "fall_probability": ("max_decrease",),
    "first": ("start",),
    "judge": ("evaluation",),
    "key_from": ("api_key_env",),
    "last": ("end",),
    "least": ("minimum",),
    "memory": ("capacity", "replay_capacity"),
    "minibatches": ("updates_per_iteration",),
    "most_nats": ("max_nats",),
    "most_rounds": ("max_rounds",),
    "most_second_moment": ("max_second_moment",),
    "order": ("estimator.order",),
    "over": ("decay_env_steps",),
    "patience_s": ("reconnect_timeout_s",),
    "pays": ("rewards",),
    "rise_nats": ("max_increase_nats",),
    "rise_probability": ("max_increase",),
    "scale": ("advantage.scale",),
    "slots": ("max_concurrent",),
    "step": ("step_reward",),
    "target_rate": ("tau",),
    "turns": ("decay_iterations",),
}
"""Old name of a key -> its present names in the tables that have it; one with a dot is a key of an inner table. Old
names are still read: in files, on the command line, in saved runs and in Python. A table that has a key of the old name
keeps it."""
RENAMED_TAGS: Mapping[str, str] = {"epsilon": "epsilon_greedy"}
"""Old name of an alternative of a tagged union -> its present name."""
OLD_NAMES_UNTIL = "0.3"
"""The version of hone that no longer reads them."""

STAGE_PREFIX: Final = "stage:"
"""A value `stage:NAME` names what stage NAME of the same pipeline leaves behind: its policy, its answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSetting:
    """Resolved value and its origin: `default`, `run.toml:7` or `command line`."""

    value: Json
    origin: str = "default"


class Config(BaseModel):
    """Frozen config that rejects unknown keys and wrong types (an int is accepted for a float).

    A partial table is completed from the default of its field, in files, on the command line and in Python:
    `learner = {"minibatches": 2}` changes that key of the recipe's default and no other.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

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
    filled = with_current_names(model, values)
    for name, inherited in _inherited(model, default).items():
        given = filled.get(name)
        if name not in filled:
            if default is not None:
                filled[name] = inherited
        elif isinstance(given, dict) and isinstance(inherited, BaseModel):
            tag = _tag_of(model.model_fields[name])
            own = {tag: dict(inherited)[tag]} if tag is not None else {}
            wanted = {**own, **cast("dict[str, object]", given)}
            if wanted.items() >= own.items():  # nobody names another member
                filled[name] = fill_defaults(type(inherited), wanted, inherited)
    return filled


def with_current_names(model: type[BaseModel], values: Mapping[str, object]) -> dict[str, object]:
    """`values` of one table under the present names of its keys. Raises ValueError for a key given under both names."""
    known = set(_known_paths(model))
    result: dict[str, object] = {}
    moved: list[tuple[str, str, str]] = []
    for key in values:
        name, *inner = map(str, current_key((key,), known))
        if inner:
            moved.append((key, name, inner[0]))
        elif key != name and name in values:
            raise ValueError(f"{key} is the old name of {name}: give only {name}")
        else:
            result[name] = _with_current_tag(model, name, values[key])
    for key, table, name in moved:
        given = result.get(table, {})
        if isinstance(given, BaseModel):
            given = given.model_dump(exclude_unset=True)
        if not isinstance(given, dict) or name in given:
            raise ValueError(f"{key} is the old name of {table}.{name}: give only {table}.{name}")
        result[table] = {**cast("dict[str, object]", given), name: values[key]}
    return result


def _known_paths(model: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    """Keys of a table, and of the tables in it that have a default."""
    for name, info in model.model_fields.items():
        yield (name,)
        if isinstance(info.default, BaseModel):
            yield from ((name, inner) for inner in type(info.default).model_fields)


def _with_current_tag(model: type[BaseModel], name: str, value: object) -> object:
    """The value of a field; of a table that selects an alternative by its old name, with the present one."""
    tag = None if name not in model.model_fields else _tag_of(model.model_fields[name])
    if tag is None or not isinstance(value, dict):
        return value
    return {key: current_tag(item) if key == tag else item for key, item in cast("dict[str, object]", value).items()}


def current_tag(value: object) -> object:
    """The present name of an alternative of a tagged union; any other value as it is."""
    return RENAMED_TAGS.get(value, value) if isinstance(value, str) else value


def current_key(path: tuple[str | int, ...], known: Container[tuple[str | int, ...]]) -> tuple[str | int, ...]:
    """The path of a key under its present names: the first that is in `known`, else the path itself."""
    names = (((part,), *(tuple(name.split(".")) for name in RENAMED_KEYS.get(str(part), ()))) for part in path)
    return next((way for way in map(tuple, map(chain.from_iterable, product(*names))) if way in known), path)


def readable_keys(model: type[BaseModel]) -> set[str]:
    """The keys of a table, present and old names."""
    known = {".".join(path) for path in _known_paths(model)}
    return {key for key, names in RENAMED_KEYS.items() if not known.isdisjoint(names)} | model.model_fields.keys()


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


def _tag_of(field: FieldInfo) -> str | None:
    return str(field.discriminator) if field.discriminator else _tag(field.annotation)


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
