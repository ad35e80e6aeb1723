"""Steps of robots as bytes: what a device writes, an ingest service stores and a learner reads.

A step is self-contained: observation, action, reward and the next observation stand in one record of fixed length, so
that neither the order of arrival nor a lost record makes another one useless. Layout, little endian:

    seq u64, episode u32, step u32, at_s f64, logp f64, reward f64, version i32, flags u32,
    observation f32 [n], action f32 [a], next observation f32 [n]

Belongs here: the layout and its names, with Python's standard library alone, so that a robot starts at once. Does not:
storage, transport, arrays (a reader makes a numpy type of `RobotSchema.fields`).
"""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Final, NamedTuple, cast

from hone.core.errors import DataError

TERMINATED: Final = 1
"""Flag: the episode ended, and nothing of worth can follow."""
TRUNCATED: Final = 2
"""Flag: a limit cut the episode."""
MOST_NUMBERS: Final = 1 << 16
"""Numbers of an observation, or of an action, at most."""
_HEAD: Final = "QIIdddiI"
_NAMES: Final = ("seq", "episode", "step", "at_s", "logp", "reward", "version", "flags")
_TYPES: Final = ("<u8", "<u4", "<u4", "<f8", "<f8", "<f8", "<i4", "<u4")


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotSchema:
    """Names of the numbers of an observation and of an action, in their order."""

    observation: tuple[str, ...]
    action: tuple[str, ...]
    choices: int = 0
    """Numbered actions 0 .. choices - 1, of which `action` then names the single number; 0: the action is a box."""

    @property
    def hash(self) -> str:
        """Identity of the schema -> 16 hexadecimal digits."""
        return blake2b(self.as_json().encode(), digest_size=8).hexdigest()

    def as_json(self) -> str:
        """The schema as JSON, the same text for equal schemas."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "RobotSchema":
        """Read what `as_json` wrote. Raises DataError."""
        try:
            tree = cast("Mapping[str, Sequence[str]]", json.loads(text))
            return cls(
                observation=tuple(map(str, tree["observation"])), action=tuple(map(str, tree["action"])),
                choices=int(cast("int", tree["choices"])),
            )  # fmt: skip
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{text!r:.80} is no schema of a robot: {error!r}") from error

    @property
    def layout(self) -> struct.Struct:
        """Layout of a record."""
        return struct.Struct(f"<{_HEAD}{2 * len(self.observation) + len(self.action)}f")

    @property
    def fields(self) -> list[tuple[str, str] | tuple[str, str, tuple[int, ...]]]:
        """Names, types and shapes of a record's parts, as numpy's `dtype` takes them."""
        seen, acted = (len(self.observation),), (len(self.action),)
        return [
            *zip(_NAMES, _TYPES, strict=True),
            ("observation", "<f4", seen), ("action", "<f4", acted), ("next_observation", "<f4", seen),
        ]  # fmt: skip

    def differences(self, other: "RobotSchema") -> list[str]:
        """Differences of another schema from this one, in words."""
        words: list[str] = []
        for part, ours, theirs in (
            ("observation", self.observation, other.observation),
            ("action", self.action, other.action),
        ):
            lacks, adds = [one for one in ours if one not in theirs], [one for one in theirs if one not in ours]
            words += [f"{part} lacks {', '.join(lacks)}"] if lacks else []
            words += [f"{part} has {', '.join(adds)} besides"] if adds else []
            words += [f"{part} has another order"] if ours != theirs and not lacks and not adds else []
        words += [f"choices {other.choices}, not {self.choices}"] if self.choices != other.choices else []
        return words


class RobotStep(NamedTuple):
    """A step: what was seen, done and paid, and what was seen next."""

    episode: int
    step: int
    at_s: float
    """Seconds since the epoch, by the robot's clock."""
    logp: float
    """nats: log-probability, or log-density, of the action under the policy that acted; NaN where it is unknown."""
    reward: float
    version: int
    """Number of the policy that acted."""
    flags: int
    observation: Sequence[float]
    action: Sequence[float]
    next_observation: Sequence[float]


def pack_step(schema: RobotSchema, layout: struct.Struct, seq: int, one: RobotStep) -> bytes:
    """The record of a step. Raises DataError that names the part of a wrong length, or what is not finite."""
    faults = [
        f"{name} has {len(numbers)} numbers, the schema names {wanted}"
        for name, numbers, wanted in (
            ("observation", one.observation, len(schema.observation)),
            ("action", one.action, len(schema.action)),
            ("next_observation", one.next_observation, len(schema.observation)),
        )
        if len(numbers) != wanted
    ]
    numbers = (*one.observation, *one.action, *one.next_observation)
    if not faults:
        wrong = [place for place, number in enumerate(numbers) if not math.isfinite(number)]
        names = (*schema.observation, *schema.action, *(f"next {name}" for name in schema.observation))
        faults += [f"{names[place]} is {numbers[place]}" for place in wrong]
        faults += [] if math.isfinite(one.reward) else [f"reward is {one.reward}"]
    if not faults and schema.choices and not (0 <= one.action[0] < schema.choices and one.action[0] % 1 == 0):
        faults = [f"action is {one.action[0]}, expected 0 .. {schema.choices - 1}"]
    if faults:
        raise DataError(f"step {one.step} of episode {one.episode}: {'; '.join(faults)}; nothing was stored")
    return layout.pack(seq, *one[:7], *numbers)


def number_row(values: object) -> list[float]:
    """Numbers of a list, of an array of any library, or one number, flattened -> `[n]`. Raises TypeError."""
    if isinstance(values, int | float):
        return [float(values)]
    if not isinstance(values, list | tuple):
        return number_row(memoryview(cast("bytes", values)).tolist())
    flat: list[float] = []
    for one in cast("Sequence[object]", values):
        flat += [float(one)] if isinstance(one, int | float) else number_row(one)
    return flat
