"""Resolution of a file and a command line to a validated config with the origin of each value.

Belongs here: reading and validating configs, and one message per fault, with the key, its line, the value, the allowed
values and the nearest valid one. Pydantic writes the tag or the type of a union's member between the keys, so its
location of a fault is followed through the annotations of a config. The config classes define keys and values; they are
in the modules that they configure.
"""

import math
import re
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Generic, Literal, TypeVar, Union, cast, get_args, get_origin
from urllib.parse import urlsplit

import annotated_types
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from hone.config.toml import COMMAND_LINE, ConfigDocument, KeyPath, dotted, parse_overrides, read_toml
from hone.core.config import Config, ConfigSetting, is_loopback
from hone.core.errors import SECRET_KEY, ConfigError, hide_passwords, nearest_name
from hone.core.strict_json import Json

# --------------------------------------------------------------------------------------------------------------- schema


@dataclass(frozen=True, slots=True, kw_only=True)
class _SchemaNode:
    """Config classes allowed at a path, the key that distinguishes them, and the schema of elements."""

    models: list[type[BaseModel]] = field(default_factory=list[type[BaseModel]])
    tag: str | None = None
    element: object = None
    user_keyed: bool = False
    """True if elements have keys chosen by the user, not indices."""

    def known_keys(self) -> list[str]:
        """Keys of all models, sorted."""
        return sorted({name for model in self.models for name in model.model_fields})

    def field(self, name: str | int) -> FieldInfo | None:
        return next((model.model_fields[str(name)] for model in self.models if name in model.model_fields), None)

    def tagged_member(self, value: str | int) -> "_SchemaNode":
        """Member of a tagged union with this tag."""
        return _SchemaNode(models=[model for model in self.models if value in _tag_values(model, self.tag or "")])


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeyLocation:
    """Location of an error: the key as the user writes it, its table, and the field if there is one."""

    path: KeyPath
    table: _SchemaNode
    node: _SchemaNode
    field_info: FieldInfo | None
    union: _SchemaNode | None = None
    """All members, if the table is a member of a tagged union."""


def _schema_of(annotation: object, tag: str | None = None) -> _SchemaNode:
    """Convert an annotation: a config, a union of them, a list or dict of them, or a plain value."""
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Annotated:
        notes = [note for note in arguments[1:] if isinstance(note, FieldInfo) and note.discriminator]
        return _schema_of(arguments[0], str(notes[0].discriminator) if notes else tag)
    if origin in (Union, types.UnionType):
        members = [_schema_of(argument, tag) for argument in arguments]
        return _SchemaNode(
            models=[model for member in members for model in member.models],
            tag=tag or next((member.tag for member in members if member.tag), None),
            element=next((member.element for member in members if member.element is not None), None),
            user_keyed=any(member.user_keyed for member in members),
        )
    if origin in (list, tuple, Sequence):
        return _SchemaNode(element=arguments[0])
    if origin in (dict, Mapping):
        return _SchemaNode(element=arguments[1], user_keyed=True)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _SchemaNode(models=[annotation], tag=tag)
    return _SchemaNode()


def _locate_key(model: type[BaseModel], location: Sequence[int | str], *, unknown_key: bool = False) -> _KeyLocation:
    """Follow pydantic's `loc` through `model`, without the names of union members."""
    path: KeyPath = ()
    table = here = _SchemaNode(models=[model])
    info: FieldInfo | None = None
    union: _SchemaNode | None = None
    around: _SchemaNode | None = None
    for depth, part in enumerate(location):
        child = here.field(part)
        if here.tag is not None and here.models:
            around, here = here, here.tagged_member(part)
            continue
        if child is not None:
            inside = _field_schema(child)
        elif here.element is not None and isinstance(part, str) == here.user_keyed:
            inside = _schema_of(here.element)
        elif unknown_key and depth == len(location) - 1:
            inside = _SchemaNode()
        else:
            continue  # pydantic's name of a union member, not a key
        path, table, info, union = (*path, part), here, child, around
        here, around = inside, None
    return _KeyLocation(path=path, table=table, node=here, field_info=info, union=union)


def _field_schema(info: FieldInfo) -> _SchemaNode:
    """Schema of a field, including its union's tag, which pydantic stores apart from the annotation."""
    return _schema_of(info.annotation, str(info.discriminator) if info.discriminator else None)


def _tag_values(model: type[BaseModel], tag: str) -> tuple[Any, ...]:
    """Values of the tag's Literal."""
    info = model.model_fields.get(tag)
    return get_args(info.annotation) if info is not None and get_origin(info.annotation) is Literal else ()


def _bounds_text(info: FieldInfo | None) -> str:
    """Format bounds as `> 0 and <= 1`; empty without bounds."""
    bounds: list[str] = []
    for note in _notes(info):
        match note:
            case annotated_types.Gt(gt=bound):
                bounds.append(f"> {bound}")
            case annotated_types.Ge(ge=bound):
                bounds.append(f">= {bound}")
            case annotated_types.Lt(lt=bound):
                bounds.append(f"< {bound}")
            case annotated_types.Le(le=bound):
                bounds.append(f"<= {bound}")
            case annotated_types.MultipleOf(multiple_of=step):
                bounds.append(f"a multiple of {step}")
            case _:
                pass
    return " and ".join(bounds)


def _notes(info: FieldInfo | None) -> Iterator[object]:
    if info is None:
        return
    yield from info.metadata
    # `Annotated[float, Gt(0)] | None` keeps its bounds inside; those inside a list are its elements'.
    inside = get_args(info.annotation) if get_origin(info.annotation) in (Union, types.UnionType) else ()
    for argument in (info.annotation, *inside):
        if get_origin(argument) is Annotated:
            for note in get_args(argument)[1:]:
                yield from note.metadata if isinstance(note, FieldInfo) else (note,)


def all_keys(model: type[BaseModel], prefix: KeyPath = (), depth: int = 6) -> Iterator[KeyPath]:
    """Keys of a config and of its nested configs."""
    for name, info in model.model_fields.items():
        yield (*prefix, name)
        if depth > 0:
            for child in _field_schema(info).models:
                yield from all_keys(child, (*prefix, name), depth - 1)


# -------------------------------------------------------------------------------------------------------------- explain


# pydantic's type of an error -> expected value
_KINDS: Mapping[str, str] = {
    "float_type": "a number",
    "float_parsing": "a number",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a string",
    "list_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "tuple_type": "a list",
    "none_required": "left out",
}
_BOUNDS = ("greater_than", "greater_than_equal", "less_than", "less_than_equal", "multiple_of")
_SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "multiple_of": "a multiple of"}


def explain(
    error: ValidationError, model: type[BaseModel], document: ConfigDocument, prefix: KeyPath = ()
) -> list[str]:
    """List one message per validation error, in the order of the file, without duplicates.

    `prefix` is the path of `model` in the document: `("stage", 0)` for the config of the first stage.
    """
    faults = [_ValidationFault(details, model, document, prefix) for details in error.errors(include_url=False)]
    faults.sort(key=lambda fault: fault.line)
    # merge `x must be a number, got "a"` and `x must be a list, got "a"`, the errors of a union, into one message
    messages = [fault.message() for fault in faults]
    merged: dict[tuple[str, str], list[str]] = {}
    for message in messages:
        match = re.fullmatch(r"(.*?) must be (.*?)(, got .*)", message, re.DOTALL)
        head, middle, tail = match.groups() if match else (message, "", "")
        merged.setdefault((head, tail), []).append(middle)
    return list(
        dict.fromkeys(
            [
                f"{head} must be {' or '.join(dict.fromkeys(kinds))}{tail}" if tail else head
                for (head, tail), kinds in merged.items()
            ]
        )
    )


class _ValidationFault:
    """One validation error with its document."""

    def __init__(
        self, details: ErrorDetails, model: type[BaseModel], document: ConfigDocument, prefix: KeyPath
    ) -> None:
        self.kind = details["type"]
        self.value: object = details["input"]
        self.text = details["msg"]
        self.context = details.get("ctx", {})
        self.model = model
        self.document = document
        self.prefix = prefix
        self.place: _KeyLocation = _locate_key(model, details["loc"], unknown_key=self.kind == "extra_forbidden")

    @property
    def key(self) -> str:
        return dotted((*self.prefix, *self.place.path))

    @property
    def line(self) -> int:
        """Sort key: the line in the file; the command line comes last."""
        _, _, line = self.document.source_of((*self.prefix, *self.place.path)).rpartition(":")
        return int(line) if line.isdecimal() else sys.maxsize

    @property
    def where(self) -> str:
        """Key and location: `learner.lr in run.toml:7`."""
        path = (*self.prefix, *self.place.path)
        return self._at(path, self.key or "the config")

    def _at(self, path: KeyPath, name: str) -> str:
        source = self.document.source_of(path)
        return f"{name} on the {source}" if source == COMMAND_LINE else f"{name} in {source}"

    def message(self) -> str:
        match self.kind:
            case "extra_forbidden":
                return f"unknown key {self.where}{self._suggestion()}"
            case "missing":
                return self._missing()
            case "union_tag_not_found":
                return f"{self.where} needs {self.place.node.tag} = {self._alternatives()}"
            case "union_tag_invalid":
                return self._unknown_tag()
            case "literal_error" | "enum":
                expected = str(self.context.get("expected", ""))
                known = re.findall(r"'([^']*)'", expected)
                near = _near(self.value, known, quoted=True) if isinstance(self.value, str) else ""
                shown = _shown(self.key, self.value)
                return f"{self.where} must be {expected.replace(chr(39), chr(34))}, got {shown}{near}"
            case "finite_number":
                return f"{self.where} must be a finite number{self._allowed()}, got {_shown(self.key, self.value)}"
            case kind if kind in _BOUNDS or kind in ("string_pattern_mismatch", "too_short"):
                return f"{self.where} must {self._rule()}, got {_shown(self.key, self.value)}"
            case kind if kind in _KINDS:
                return f"{self.where} must be {_KINDS[kind]}{self._allowed()}, got {self._described()}"
            case "value_error" | "assertion_error":
                return f"{self.where}: {self._plain()}"
            case _:
                return f"{self.where}: {self._plain()}, got {_shown(self.key, self.value)}"

    def _rule(self) -> str:
        """The rule of a field in words: no reader of a config should have to read a regular expression."""
        if self.kind == "too_short":
            least = self.context.get("min_length", 1)
            return f"have at least {least} {'entry' if least == 1 else 'entries'}"
        if self.kind in _BOUNDS:
            own = " and ".join(f"{_SIGNS[name]} {bound}" for name, bound in self.context.items() if name in _SIGNS)
            return f"be {_bounds_text(self.place.field_info) or own or self._plain()}"
        extra = self.place.field_info.json_schema_extra if self.place.field_info is not None else None
        rule = extra.get("rule") if isinstance(extra, dict) else None
        return f"be {rule}" if rule else f"match {self.context.get('pattern')}"

    def _plain(self) -> str:
        return re.sub(r"^(Value error, |Assertion failed, |Input should be )", "", self.text)

    def _allowed(self) -> str:
        bounds = _bounds_text(self.place.field_info)
        return f" {bounds}" if bounds else ""

    def _missing(self) -> str:
        info = self.place.field_info
        reason = f" ({info.description.strip().rstrip('.')})" if info is not None and info.description else ""
        models = self.place.node.models
        fields = models[0].model_fields if len(models) == 1 else {}
        table = (*self.prefix, *self.place.path)
        needed = [dotted((*table, name)) for name, field in fields.items() if field.is_required()]
        return f"{self.where} is missing{reason}" + (f"; it needs {', '.join(needed)}" if needed else "")

    def _described(self) -> str:
        hint = ""
        if isinstance(self.value, str) and self.kind.startswith(("float", "int", "bool")) and _is_number(self.value):
            hint = "; remove the quotes"
        return f"{_type_name(self.value)}{_shown(self.key, self.value)}{hint}"

    def _alternatives(self) -> str:
        shape = self.place.node
        names = [value for model in shape.models for value in _tag_values(model, shape.tag or "")]
        return " or ".join(format_value(name) for name in names)

    def _unknown_tag(self) -> str:
        shape = self.place.node
        tag_path = (*self.prefix, *self.place.path, shape.tag or "")
        tag = str(self.context.get("tag", ""))
        known = [str(value) for model in shape.models for value in _tag_values(model, shape.tag or "")]
        return (
            f"{self._at(tag_path, dotted(tag_path))} must be {self._alternatives()}, "
            f"got {format_value(tag)}{_near(tag, known, quoted=True)}"
        )

    def _suggestion(self) -> str:
        """Suggest the nearest key of the same table, or another table with such a key, or list the table's keys."""
        name = str(self.place.path[-1])
        known = self.place.table.known_keys()
        table = (*self.prefix, *self.place.path[:-1])
        close = nearest_name(name, known)
        if close is not None:
            return f"; did you mean {dotted((*table, close))}?"
        if self.place.union is not None and name in self.place.union.known_keys():
            tag = self.place.union.tag or ""
            owners = [
                value
                for model in self.place.union.models
                if name in model.model_fields
                for value in _tag_values(model, tag)
            ]
            own = [value for model in self.place.table.models for value in _tag_values(model, tag)]
            has = " or ".join(f"{tag} = {format_value(owner)}" for owner in owners)
            return f": {tag} = {format_value(own[0])} has no {name}, {has} has"
        elsewhere = [path for path in all_keys(self.model) if path[-1] == name]
        if elsewhere:
            return f"; did you mean {dotted((*self.prefix, *elsewhere[0]))}?"
        return f"; known here: {', '.join(known)}" if known else ""


def format_value(value: object, limit: int = 60) -> str:
    """Format a value as TOML, truncated for a message."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        text = '"' + hide_passwords(value).replace("\n", "\\n") + '"'
    elif isinstance(value, dict):
        text = (
            "{" + ", ".join(f"{key} = {_shown(str(key), child, 20)}" for key, child in list(value.items())[:10]) + "}"
        )
    elif isinstance(value, list):
        text = "[" + ", ".join(format_value(child, 20) for child in value[:10]) + "]"
    else:
        text = "unset" if value is None else str(value)
    return text if len(text) <= limit else text[: limit - 4] + " ..." + text[-1:]


def _shown(key: str, value: object, limit: int = 60) -> str:
    """A value of a key for a message; the values of secrets are not shown."""
    if SECRET_KEY.fullmatch(key.rpartition(".")[2]):
        return "a value that is not shown"
    return format_value(value, limit)


def _type_name(value: object) -> str:
    match value:
        case bool():
            return ""
        case str():
            return "the string "
        case list():
            return "the list "
        case dict():
            return "the table "
        case _:
            return ""


def _is_number(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return text in ("true", "false")


def _near(name: str, known: list[str], *, quoted: bool) -> str:
    close = nearest_name(name, known)
    return "" if close is None else f"; did you mean {format_value(close) if quoted else close}?"


# -------------------------------------------------------------------------------------------------------------- resolve


C = TypeVar("C", bound=Config)

HIGH_LEARNING_RATE = 1.0
SERVER_PREFIX: Final = "openenv:"
"""Beginning of a `source` that is a server."""
ENVIRONMENT_KEYS = ("env.id", "finite.world.id", "finite.world.kind")
"""Keys that name the environment of a config, in order of preference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedConfig(Generic[C]):
    """A validated config, the origin of each dotted key, and warnings that need `--yes`.

    `origins` says `default`, `run.toml:7` or `command line`.
    """

    config: C
    origins: Mapping[str, str]
    warnings: tuple[str, ...] = ()

    def settings(self) -> dict[str, ConfigSetting]:
        """Dotted keys with value and origin, as saved in a run folder."""
        values = cast("dict[str, Json]", self.config.model_dump(mode="json"))
        return {
            (key := dotted(path)): ConfigSetting(value=cast("Json", value), origin=self.origins.get(key, "default"))
            for path, value in leaves(values)
        }

    def non_defaults(self) -> dict[str, ConfigSetting]:
        """Settings that differ from the defaults."""
        return {key: setting for key, setting in self.settings().items() if setting.origin != "default"}

    def recipe_defaults(self) -> dict[str, ConfigSetting]:
        """Defaults of the recipe in partially given tables, where they differ from those of the table's class."""
        tables = {tuple(key.split(".")[:-1]) for key in self.non_defaults()} - {()}
        return {
            key: setting
            for key, setting in self.settings().items()
            if setting.origin == "default"
            and tuple((path := key.split("."))[:-1]) in tables
            and _differs_from_class_default(self.config, path)
        }


def _differs_from_class_default(config: Config, path: Sequence[str]) -> bool:
    """True if a value differs from the default of its table's class."""
    table: object = config
    for part in path[:-1]:
        table = dict(table).get(part) if isinstance(table, Config) else None
    if not isinstance(table, Config) or path[-1] not in type(table).model_fields:
        return False
    field = type(table).model_fields[path[-1]]
    return field.is_required() or field.get_default(call_default_factory=True) != dict(table)[path[-1]]


def load(model: type[C], path: str | Path, overrides: Sequence[str] = ()) -> ResolvedConfig[C]:
    """Read `path`, apply `overrides` (`learner.lr=1e-4`), and validate the result against `model`.

    Raises ConfigError with all errors, one message each.
    """
    return resolve(model, read_document(path, overrides))


def read_document(path: str | Path, overrides: Sequence[str] = ()) -> ConfigDocument:
    """Read the file with the overrides, without validation. Raises ConfigError."""
    return ConfigDocument.from_file(read_toml(path), parse_overrides(overrides))


def resolve(
    model: type[C], document: ConfigDocument, *, at: KeyPath = (), ignore: frozenset[str] = frozenset()
) -> ResolvedConfig[C]:
    """Validate the table at `at` (`("stage", 0)`) of a document against `model`.

    `ignore` names keys of that table that do not belong to `model`, such as the recipe's name. Raises ConfigError with
    all errors, one message each.
    """
    values = {key: value for key, value in table_at(document, at).items() if key not in ignore}
    # raise ConfigError for integers of more than 64 bits, which TOML does not have and no computation takes
    faults = [
        f"{dotted((*at, *path))} in {document.source_of((*at, *path))} must be below 2**63, got {format_value(value)}"
        for path, value in leaves(values)
        if isinstance(value, int) and abs(value) >= 2**63
    ]
    if faults:
        raise ConfigError(*faults)
    warnings = tuple(_suspicious_values(values, document, at))
    try:
        preset = {path for path, _ in leaves(dict(model.preset_values(values)))}
    except ValueError as fault:
        raise ConfigError(f"{document.source_of((*at, 'preset'))}: {fault}", *warnings) from None
    try:
        config = model.model_validate(values)
    except ValidationError as error:
        raise ConfigError(*explain(error, model, document, at), *warnings) from None
    set_paths = {path for path, _ in leaves(values)}

    def origin(path: KeyPath) -> str:
        if path in set_paths:
            return document.source_of((*at, *path))
        if path not in preset:
            return "default"
        return f"preset {format_value(values['preset'])}" if "preset" in values else "set by another key"

    origins = {dotted(path): origin(path) for path, _ in leaves(config.model_dump(mode="json"))}
    return ResolvedConfig(config=config, origins=origins, warnings=warnings)


def table_at(document: ConfigDocument, at: KeyPath) -> dict[str, object]:
    """Table at the path `at`. Raises ConfigError if there is none."""
    place: object = document.values
    for part in at:
        match place:
            case dict() if part in place:
                place = cast("dict[object, object]", place)[part]
            case list() if isinstance(part, int) and part < len(place):
                place = place[part]
            case _:
                raise ConfigError(f"{document.name} has no table {dotted(at)}")
    if not isinstance(place, dict):
        raise ConfigError(f"{dotted(at)} in {document.source_of(at)} must be a table, got {format_value(place)}")
    return cast("dict[str, object]", place)


def leaves(value: object, path: KeyPath = ()) -> Iterator[tuple[KeyPath, object]]:
    """Yield each leaf value with its path. A list of plain values is one value."""
    if isinstance(value, dict) and value:
        for key, child in value.items():
            yield from leaves(child, (*path, key))
    elif isinstance(value, list) and any(isinstance(child, dict) for child in value):
        for index, child in enumerate(value):
            yield from leaves(child, (*path, index))
    elif path:
        yield path, value


def with_location(message: str, origins: Mapping[str, str], values: Mapping[str, ConfigSetting]) -> str:
    """Prefix an error or warning found after validation with the location of its key in the config.

    It says which by beginning with a key of the config (`env.id = "X": ...`), with a string that the config gives
    (`X: ...`), or with words and such a string (`reward function 'X' ...`): `run.toml:7: env.id = "X": ...`. One that
    says nothing is about the world that the config names, if any. The run's own name is no such string: a run may be
    called by a word of the message.
    """
    changed = {key: setting.value for key, setting in values.items() if origins.get(key, "default") != "default"}
    quoted = re.match(r"[a-z ]+'([^']+)'", message)
    for key, value in changed.items():
        names = [name for name in (key, value if key != "name" else "") if isinstance(name, str) and name]
        if any(message.startswith((f"{name}:", f"{name} ")) for name in names) or (quoted and quoted[1] in names):
            return f"{origins[key]}: {message}"
    world = next((key for key in ENVIRONMENT_KEYS if key in changed), None)
    return message if world is None else f"{origins[world]}: {world} = {format_value(changed[world])}: {message}"


def require_consent(warnings: Sequence[str], *, yes: bool) -> None:
    """Raise ConfigError with the warnings unless the user gave `--yes`."""
    if warnings and not yes:
        raise ConfigError(*warnings, "this looks like a mistake; --yes accepts it")


def _suspicious_values(values: Mapping[str, object], document: ConfigDocument, at: KeyPath) -> Iterator[str]:
    for path, value in leaves(values):
        is_rate = path[-1] == "lr" or str(path[-1]).endswith(("_lr", "learning_rate"))
        if is_rate and isinstance(value, int | float) and HIGH_LEARNING_RATE < value < float("inf"):
            key = dotted((*at, *path))
            yield (
                f"{key} = {format_value(value)} ({document.source_of((*at, *path))}) is above {HIGH_LEARNING_RATE:g}: "
                "such a learning rate nearly always diverges"
            )
        if path[-1] == "source" and isinstance(value, str) and value.startswith(SERVER_PREFIX):
            host = urlsplit(value.removeprefix(SERVER_PREFIX)).hostname or ""
            if not is_loopback(host):
                key = dotted((*at, *path))
                yield (
                    f"{key} = {format_value(value)} ({document.source_of((*at, *path))}): whoever runs {host} reads "
                    "what the policy says, and decides what it learns"
                )
