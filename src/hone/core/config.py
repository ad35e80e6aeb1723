"""Base class of all configs: typed, frozen, without unknown keys.

A config class is in the module that uses it, has at most about 12 fields, and expresses alternatives as tagged unions.
Its defaults are those of a tested run. Numbers given as strings are rejected, not coerced.
"""

from collections.abc import Container, Mapping
from itertools import product
from typing import Annotated, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.fields import FieldInfo

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
    "over": ("decay_env_steps",),
    "patience_s": ("reconnect_timeout_s",),
    "pays": ("rewards",),
    "rise_nats": ("max_increase_nats",),
    "rise_probability": ("max_increase",),
    "slots": ("max_concurrent",),
    "step": ("step_reward",),
    "target_rate": ("tau",),
    "turns": ("decay_iterations",),
}
"""Old name of a key -> its present names in the tables that have it. Old names are still read: in files, on the command
line, in saved runs and in Python."""
RENAMED_TAGS: Mapping[str, str] = {"epsilon": "epsilon_greedy"}
"""Old name of an alternative of a tagged union -> its present name."""
OLD_NAMES_UNTIL = "0.3"
"""The version of hone that no longer reads them."""


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
        return fill_defaults(cls, cast("dict[str, object]", given)) if isinstance(given, dict) else given


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
    current = {key: current_key((key,), {(name,) for name in model.model_fields})[0] for key in values}
    for old, new in current.items():
        if old != new and new in values:
            raise ValueError(f"{old} is the old name of {new}: give only {new}")
    return {str(current[key]): with_current_tag(model, str(current[key]), value) for key, value in values.items()}


def with_current_tag(model: type[BaseModel], name: str, value: object) -> object:
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
    names = ((part, *RENAMED_KEYS.get(str(part), ())) for part in path)
    return next((way for way in product(*names) if way in known), path)


def readable_keys(model: type[BaseModel]) -> set[str]:
    """The keys of a table, present and old names."""
    old = {key for key, names in RENAMED_KEYS.items() if not model.model_fields.keys().isdisjoint(names)}
    return old | model.model_fields.keys()


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
