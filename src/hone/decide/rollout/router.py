"""Assignment of units to versions by hash: no state, so that every gateway and every later reader agree.

    bucket = floor(10^6 * blake2b(salt, tenant, unit) / 2^64)

A layer holds the rollouts of one service; each owns a range of buckets, so that no unit is in two of them. Inside its
range of width W a rollout with share s (s <= 1/2) gives the first s W buckets to the canary and the last s W to the
control slice: both are equally large, both only grow with s, and a unit never changes sides before the rollout ends.
Belongs here: hashing and shares. Does not: when a share changes (`controller`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise
from typing import Final, Literal

from hone.core.errors import ConfigError

BUCKETS: Final = 1_000_000
"""Buckets of a layer: a share is exact to a millionth."""
RouteArm = Literal["live", "control", "canary"]
"""Arm of a unit: `live` is outside of every rollout; `control` and `canary` are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitRoute:
    """Version that a unit is served by, and the reason."""

    arm: RouteArm
    stage: str
    """`shadow`, `1%`, `5%`, ... of the rollout; empty: the unit is in none."""
    version: str
    label: str
    """`rollout:arm:stage`, the `route` of a logged decision; empty: none."""
    shadow: str = ""
    """Version that scores the same request without answering it; empty: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSlice:
    """Range of a layer's buckets that a rollout owns, and its present share."""

    rollout: str
    """Name, part of the logged route."""
    version: str
    """The new version."""
    stage: str
    share: float
    """Part of the range that the canary serves: 0 in the shadow, at most 1/2, or 1 at the end."""
    first: int = 0
    """First bucket of the range."""
    last: int = BUCKETS
    """End of the range, exclusive."""
    shadow: bool = False
    """True: the version scores every request of the range and answers none."""

    def faults(self) -> list[str]:
        """Problems of the slice by itself."""
        name = f"rollout {self.rollout!r}"
        found = [f"{name} needs a name without ':'"] if not self.rollout or ":" in self.rollout else []
        if not 0 <= self.first < self.last <= BUCKETS:
            found.append(f"{name} has the buckets {self.first} to {self.last}; give a range within 0 to {BUCKETS}")
        if not (0 <= self.share <= 0.5 or self.share == 1):
            found.append(
                f"{name} has a share of {self.share:g}; above 1/2 no control slice is as large as the canary: "
                "take a share of at most 0.5, or 1"
            )
        return found

    def size(self) -> int:
        """Buckets of the canary; the control slice has as many, and none at a share of 1."""
        return round(self.share * (self.last - self.first))


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteRange:
    """Buckets `first` to `last` (exclusive) with their route."""

    first: int
    last: int
    route: UnitRoute


@dataclass(frozen=True, slots=True)
class RolloutRouter:
    """Router of one service: pure and immutable; a new stage is a new router. Made by `make_router`."""

    live: UnitRoute
    ranges: tuple[RouteRange, ...] = ()
    """Disjoint ranges of the rollouts; buckets outside of them are served by `live`."""
    salt: bytes = field(default=b"", repr=False)

    def bucket(self, tenant: str, unit: str) -> int:
        """The unit's bucket, 0 to 10^6 - 1: a function of salt, tenant and unit, of nothing else."""
        named = f"{len(tenant)}:{tenant}{unit}".encode("utf-8", "surrogatepass")
        number = int.from_bytes(blake2b(named, digest_size=8, key=self.salt).digest(), "little")
        return number * BUCKETS >> 64

    def route(self, tenant: str, unit: str) -> UnitRoute:
        """The unit's route: the same for the same router, and in the canary for good once it is there."""
        ranges = self.ranges
        if not ranges:
            return self.live
        bucket = self.bucket(tenant, unit)
        for one in ranges:
            if one.first <= bucket < one.last:
                return one.route
        return self.live

    def stopped(self) -> "RolloutRouter":
        """The kill switch: every unit is served by the live version at once."""
        return RolloutRouter(self.live, (), self.salt)


def make_router(*, live: str, salt: str, slices: Sequence[RolloutSlice] = ()) -> RolloutRouter:
    """Router of a layer with the live version and the rollouts' slices. Raises ConfigError with every fault.

    `salt` names the layer: layers with other salts assign independently.
    """
    faults = [fault for one in slices for fault in one.faults()]
    ordered = sorted(slices, key=lambda one: one.first)
    faults += [
        f"rollouts {before.rollout!r} and {after.rollout!r} share the buckets {after.first} to "
        f"{min(before.last, after.last)}: rollouts of a layer exclude each other; give them disjoint ranges"
        for before, after in pairwise(ordered)
        if after.first < before.last
    ]
    if faults:
        raise ConfigError(*faults)
    outside = UnitRoute(arm="live", stage="", version=live, label="")
    ranges = [part for one in ordered for part in _ranges(one, live) if part.first < part.last]
    return RolloutRouter(outside, tuple(ranges), blake2b(salt.encode("utf-8"), digest_size=32).digest())


def _ranges(one: RolloutSlice, live: str) -> list[RouteRange]:
    """Canary, rest and control of a slice, those that are not empty."""
    size = one.size()
    control = one.last if one.share == 1 else one.last - size
    shadow = one.version if one.shadow else ""
    rest = "live" if not one.shadow else "control"
    return [
        RouteRange(first=one.first, last=one.first + size, route=_route(one, "canary", one.version)),
        RouteRange(first=one.first + size, last=control, route=_route(one, rest, live, shadow)),
        RouteRange(first=control, last=one.last, route=_route(one, "control", live)),
    ]


def _route(one: RolloutSlice, arm: RouteArm, version: str, shadow: str = "") -> UnitRoute:
    label = "" if arm == "live" else f"{one.rollout}:{arm}:{one.stage}"
    return UnitRoute(arm=arm, stage=one.stage, version=version, label=label, shadow=shadow)


def split_label(label: str) -> tuple[str, str, str]:
    """Rollout, arm and stage of a logged route; three empty texts for a route of no rollout."""
    parts = label.split(":")
    return (parts[0], parts[1], parts[2]) if len(parts) == 3 else ("", "", "")
