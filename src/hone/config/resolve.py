"""Resolution of a file and a command line to a validated config with the origin of each value.

Belongs here: reading and validating configs. The config classes define keys and values; they are in the modules that
they configure.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar, cast
from urllib.parse import urlsplit

from pydantic import ValidationError

from hone.config.explain import explain, format_value
from hone.config.overrides import ConfigDocument, dotted, parse_overrides
from hone.config.schema import all_keys
from hone.config.toml import KeyPath, read_toml
from hone.core.addresses import is_loopback
from hone.core.config import Config, ConfigSetting
from hone.core.errors import ConfigError
from hone.core.strict_json import Json

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
        given = {tuple(key.split(".")[:-1]) for key in self.non_defaults()} - {()}
        return {
            key: setting
            for key, setting in self.settings().items()
            if setting.origin == "default"
            and tuple((path := key.split("."))[:-1]) in given
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
    document.rename_keys(table_at(document, at), at, frozenset(all_keys(model)), ())
    values = {key: value for key, value in table_at(document, at).items() if key not in ignore}
    _refuse_endless_numbers(values, document, at)
    warnings = tuple(_suspicious_values(values, document, at))
    try:
        preset = {path for path, _ in leaves(dict(model.preset_values(values)))}
    except ValueError as fault:
        raise ConfigError(f"{document.source_of((*at, 'preset'))}: {fault}", *warnings) from None
    try:
        config = model.model_validate(values)
    except ValidationError as error:
        raise ConfigError(*explain(error, model, document, at), *warnings) from None
    given = {path for path, _ in leaves(values)}

    def origin(path: KeyPath) -> str:
        if path in given:
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

    It says which by beginning with a key of the config (`env.id = "X": ...`) or with a string that the config gives
    (`X: ...`): `run.toml:7: env.id = "X": ...`. One that says nothing is about the world that the config
    names, if any.
    """
    given = {key: setting.value for key, setting in values.items() if origins.get(key, "default") != "default"}
    for key, value in given.items():
        if any(_begins(message, name) for name in (key, value)):
            return f"{origins[key]}: {message}"
    world = next((key for key in ENVIRONMENT_KEYS if key in given), None)
    return message if world is None else f"{origins[world]}: {world} = {format_value(given[world])}: {message}"


def _begins(message: str, name: object) -> bool:
    return isinstance(name, str) and bool(name) and message.startswith((f"{name}:", f"{name} "))


def require_consent(warnings: Sequence[str], *, yes: bool) -> None:
    """Raise ConfigError with the warnings unless the user gave `--yes`."""
    if warnings and not yes:
        raise ConfigError(*warnings, "this looks like a mistake; --yes accepts it")


def _refuse_endless_numbers(values: Mapping[str, object], document: ConfigDocument, at: KeyPath) -> None:
    """Raise ConfigError for integers of more than 64 bits, which TOML does not have and no computation takes."""
    faults = [
        f"{dotted((*at, *path))} in {document.source_of((*at, *path))} must be below 2**63, got {format_value(value)}"
        for path, value in leaves(values)
        if isinstance(value, int) and abs(value) >= 2**63
    ]
    if faults:
        raise ConfigError(*faults)


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
