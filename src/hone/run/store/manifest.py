"""Description of a run: its resolved config with the origin of each value, and its manifest.

Belongs here: the contents of `config.json` and `manifest.json`, and the comparison of two configs.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from hone.core.config import ConfigSetting, current_key, current_tag
from hone.core.errors import DataError
from hone.core.strict_json import Json
from hone.run.store.durable import read_json_object, to_json
from hone.run.store.records import parse_record, record_json

V = TypeVar("V")

RUN_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMetadata:
    """Facts about a run besides its config: recorded, shown in the report, compared at a resume."""

    hone_version: str
    dataset_fingerprint: str | None = None
    recipe: str = ""
    machine: str = ""
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    code: Mapping[str, str] | None = None
    """Sha256 of each source file of user code; None if an older hone wrote the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChange:
    """A difference that a resume accepted."""

    after_step: int
    """Last step before it."""
    change: str
    """`learner.lr: 0.01 -> 0.001`, or a line about a source file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Contents of `manifest.json`, which marks a folder as a run and names its format."""

    format: int
    config_hash: str
    created_at: str
    metadata: RunMetadata
    changes: tuple[RunChange, ...] = ()
    """Differences that resumes accepted, in their order."""

    def to_json(self) -> dict[str, Json]:
        """Convert to JSON values."""
        return {
            "format": self.format,
            "config_hash": self.config_hash,
            **record_json(self.metadata),
            "created_at": self.created_at,
            "changes": [record_json(change) for change in self.changes],
        }


def settings_json(config: Mapping[str, ConfigSetting]) -> dict[str, Json]:
    """Contents of `config.json`: dotted key -> value and origin."""
    return {key: {"value": setting.value, "origin": setting.origin} for key, setting in config.items()}


def config_hash(config: Mapping[str, ConfigSetting]) -> str:
    """Hash (sha256) of keys and values, independent of order and origins."""
    values = {key: config[key].value for key in sorted(config)}
    return hashlib.sha256(to_json(values)).hexdigest()


def config_diff(old: Mapping[str, ConfigSetting], new: Mapping[str, ConfigSetting]) -> list[str]:
    """List `key: old -> new` for every differing key, sorted; `(absent)` for a missing side."""
    lines: list[str] = []
    old = with_current_keys(old, new)
    for key in sorted({*old, *new}):
        before = _shown(old, key)
        after = _shown(new, key)
        if before != after:
            lines.append(f"{key}: {before} -> {after}")
    return lines


def with_current_keys(settings: Mapping[str, V], known: Iterable[str]) -> dict[str, V]:
    """Settings of a saved run, in which a key that has been renamed goes by its name among `known` settings."""
    paths = {tuple(key.split(".")) for key in known}
    own = {key: tuple(key.split(".")) for key in settings}
    return {".".join(map(str, current_key(own[key], paths - {own[key]}))): value for key, value in settings.items()}


def _shown(config: Mapping[str, ConfigSetting], key: str) -> str:
    if key not in config:
        return "(absent)"
    value = config[key].value
    return json.dumps(current_tag(value) if key.endswith(".kind") else value)


def read_config(path: Path) -> dict[str, ConfigSetting]:
    """Read `config.json`. Raises DataError naming the file and the key."""
    settings: dict[str, ConfigSetting] = {}
    for key, entry in read_json_object(path).items():
        match entry:
            case {"value": value, "origin": str(origin)}:
                settings[key] = ConfigSetting(value=value, origin=origin)
            case _:
                raise DataError(f"{path}: {key} must contain a value and its origin")
    return settings


def read_manifest(path: Path) -> Manifest:
    """Read `manifest.json`. Raises DataError for a missing or damaged file, and for a newer format."""
    document = read_json_object(path)
    version = document.get("format")
    if isinstance(version, int) and version > RUN_FORMAT:
        raise DataError(f"{path} has run format {version}, this hone reads up to {RUN_FORMAT}; upgrade hone")
    match document:
        case {"format": int(version), "config_hash": str(digest), "created_at": str(created_at), "versions": dict()}:
            facts = parse_record(RunMetadata, document, path)
            changes = tuple(parse_record(list[RunChange], document.get("changes", []), path))
            return Manifest(format=version, config_hash=digest, created_at=created_at, metadata=facts, changes=changes)
        case _:
            raise DataError(f"{path} is not the manifest of a run")
