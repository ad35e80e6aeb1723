"""Feature stores: values of entities (a visitor, a shop) that other programs compute and the gateway reads.

A value belongs to a tenant, a group of features, an entity and a feature, and carries the time at which it was true. A
value with an earlier time than the one that is held changes nothing, so that rows may arrive in any order and twice.
Belongs here: the table of the service file and the store's protocol. Does not: the stores themselves
(`feature_opening`), the join of a request (`feature_join`).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

from pydantic import Field, field_validator, model_validator

from hone.core.config import Config

# ------------------------------------------------------------------------------------------------------- features table


_GROUP: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class FeatureGroupConfig(Config):
    """Features of one kind of entity, stored and read together."""

    name: str
    """Name of the group: letters, digits, `.`, `_` and `-`."""
    features: list[str] = Field(min_length=1)
    """Features of `[service] features` that are joined from the store; of a category `country=de`, `country`."""
    entity: str = ""
    """Field of a request's context that names the entity; empty: the unit is the entity."""
    stale_s: float = Field(default=0.0, ge=0)
    """A value that is older than this many seconds is not used; 0: values do not age."""
    missing: Literal["safe", "default", "refuse"] = "safe"
    """Where a value is missing or old, or the store does not answer: the safe action is taken, `defaults` stand for the
    value, or the request is refused."""
    defaults: dict[str, float | str] = {}
    """Values that stand for missing ones; of the others 0, or no category."""

    @model_validator(mode="after")
    def _check(self) -> "FeatureGroupConfig":
        if not _GROUP.fullmatch(self.name):
            raise ValueError(f"name {self.name!r:.70} must be 1 to 64 letters, digits, '.', '_' and '-'")
        unknown = sorted(self.defaults.keys() - set(self.features))
        if unknown:
            raise ValueError(f"defaults of {', '.join(map(repr, unknown))}, which are not features of {self.name!r}")
        return self


class FeaturesTableConfig(Config):
    """The feature store of a service, and the groups of features that it reads from there."""

    address: str = "features.db"
    """A file in the service's folder, `:memory:`, or `redis://host:6379/0`."""
    password_env: str = ""
    """Environment variable that holds the server's password, so that this file holds none."""
    deadline_s: float = Field(default=0.01, gt=0, le=10)
    """Seconds that a decision waits for the store, of whatever kind; it must be below `[service] deadline_s`."""
    groups: list[FeatureGroupConfig] = Field(min_length=1)
    """Groups of features."""

    @field_validator("groups")
    @classmethod
    def _distinct(cls, groups: list[FeatureGroupConfig]) -> list[FeatureGroupConfig]:
        for kind, names in (
            ("group", [group.name for group in groups]),
            ("feature", [name for group in groups for name in group.features]),
        ):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"names the {kind} {', '.join(map(repr, twice))} twice")
        return groups

    @property
    def names(self) -> set[str]:
        """Features that are joined from the store."""
        return {name for group in self.groups for name in group.features}

    def faults(self, features: Sequence[str], deadline_s: float) -> list[str]:
        """Contradictions to the service's features and deadline."""
        known = {name.partition("=")[0]: "=" in name for name in features}
        faults = [
            f"[features] group {group.name!r} joins {name!r}, which is not in [service] features"
            for group in self.groups for name in group.features if name not in known
        ]  # fmt: skip
        faults += [
            f"[features] group {group.name!r} has the entity {group.entity!r}, which is a feature, too"
            for group in self.groups if group.entity in known
        ]  # fmt: skip
        faults += [
            f"[features] group {group.name!r} has the default {value!r} of {name!r}, which is a "
            f"{'category' if known[name] else 'number'}"
            for group in self.groups for name, value in group.defaults.items()
            if name in known and isinstance(value, str) != known[name]
        ]  # fmt: skip
        if self.deadline_s >= deadline_s:
            faults.append(
                f"[features] deadline_s {self.deadline_s:g} must be below [service] deadline_s {deadline_s:g}"
            )
        return faults


# ------------------------------------------------------------------------------------------------------- feature stores


FeatureValue: TypeAlias = float | str


class EntityKey(NamedTuple):
    """Identity of an entity in a group of features."""

    tenant: str
    group: str
    entity: str


class StoredFeature(NamedTuple):
    """A value, and the time at which it was true."""

    value: FeatureValue
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureRow:
    """New values of one entity."""

    key: EntityKey
    values: Mapping[str, FeatureValue | None]
    """By feature; None removes the value."""
    at_s: float
    """Seconds since the epoch."""


StoredRows: TypeAlias = dict[EntityKey, dict[str, StoredFeature]]


class FeatureStore(Protocol):
    """Values of entities. Threads may share one."""

    def read(self, wanted: Mapping[EntityKey, Sequence[str]]) -> StoredRows:
        """The wanted features of each entity that are held. Raises ResourceError if the store does not answer."""
        ...

    def put(self, rows: Sequence[FeatureRow]) -> None:
        """Store values, but for those that are older than the one that is held. Raises ResourceError; then some of the
        rows may be stored: put them again."""
        ...

    def erase(self, keys: Sequence[EntityKey]) -> int:
        """Remove everything that is held of entities, whatever its time -> values removed. Raises ResourceError; then
        some may be left: erase them again."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...
