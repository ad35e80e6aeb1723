"""Rotary positions in a Hugging Face `config.json`: the scalings for longer contexts that hone computes, and their
keys.

transformers 5 writes them as `rope_parameters`, transformers 4 as `rope_theta` and `rope_scaling`.
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias, cast

from hone.core.errors import DataError, ErrorCollector

RopeKind: TypeAlias = Literal["default", "linear", "llama3", "yarn"]

_READ: Final[Mapping[str, tuple[str, ...]]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": (
        "factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor", "mscale",
        "mscale_all_dim", "truncate",
    ),
}  # fmt: skip
"""Rope type -> the settings that it depends on, besides `rope_theta`."""
_WITHOUT_EFFECT: Final = ("rope_type", "type", "rope_theta", "original_max_position_embeddings", "finetuned")
"""Settings that are read for every type, or change nothing where a type does not read them."""
_OFF: Final = {"partial_rotary_factor": 1.0, "factor": 1.0, "attention_factor": 1.0, "attn_factor": 1.0}
"""Settings that a type does not read -> the value at which they change nothing."""
_BY_LENGTH: Final = ("dynamic", "longrope", "su")
"""Types whose rotation of a token depends on the length of its whole text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary positions (Su et al., 2021), and how their frequencies are scaled to a longer context: `linear` (Chen et
    al., 2023), `llama3` (Dubey et al., 2024), `yarn` (Peng et al., 2024)."""

    theta: float = 10000.0
    kind: RopeKind = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192
    beta_fast: float = 32.0
    """Rotations within the original context from which on `yarn` leaves a frequency unchanged."""
    beta_slow: float = 1.0
    """Rotations up to which `yarn` divides a frequency by `factor`."""
    attention_factor: float | None = None
    """Factor of `yarn` on queries and keys; None: derived from `factor` (`scale`)."""
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    """Round the borders between the frequencies of `yarn` to whole features."""

    @property
    def scale(self) -> float:
        """Factor on the rotated queries and keys: 1, and in `yarn` `attention_factor` or `1 + 0.1 ln factor`."""
        if self.kind != "yarn":
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._temperature(self.mscale) / self._temperature(self.mscale_all_dim)
        return self._temperature(1.0)

    def _temperature(self, weight: float) -> float:
        return 1.0 if self.factor <= 1 else 0.1 * weight * math.log(self.factor) + 1.0

    def to_hf(self) -> dict[str, object]:
        """As `rope_parameters` of transformers 5."""
        parameters: dict[str, object] = {"rope_theta": self.theta, "rope_type": self.kind}
        if self.kind != "default":
            parameters["factor"] = self.factor
        if self.kind == "llama3":
            parameters["low_freq_factor"] = self.low_freq_factor
            parameters["high_freq_factor"] = self.high_freq_factor
        if self.kind in ("llama3", "yarn"):
            parameters["original_max_position_embeddings"] = self.original_max_positions
        if self.kind == "yarn":
            parameters |= {"beta_fast": self.beta_fast, "beta_slow": self.beta_slow}
            parameters |= {"truncate": False} if not self.truncate else {}
            optional = (
                ("attention_factor", self.attention_factor),
                ("mscale", self.mscale),
                ("mscale_all_dim", self.mscale_all_dim),
            )
            parameters |= {name: value for name, value in optional if value is not None}
        return parameters


def rope_from_hf(config: Mapping[str, object], *, where: str, faults: ErrorCollector) -> RopeConfig:
    """Read the rotary positions of a `config.json`, and add what is wrong to `faults`.

    Where both spellings are given, transformers takes `rope_scaling`; here they must agree.
    """
    spellings = [key for key in ("rope_scaling", "rope_parameters") if config.get(key)]
    if not spellings:
        return RopeConfig(theta=_theta({}, config, where, faults))
    own = ErrorCollector(DataError)
    read = [_RopeReader(config, key, where, own).read() for key in spellings]
    faults.extend(own.messages)
    first, other = read[0], read[-1]
    if not own.messages and other not in (first, RopeConfig(theta=first.theta)):
        faults.add(
            f"{where}: rope_scaling {config['rope_scaling']!r} and rope_parameters {config['rope_parameters']!r} "
            "disagree (each has rope_theta from itself, else from the key beside it, else 10000); keep the right one"
        )
    return first


def is_number(value: object) -> bool:
    """True for a finite number that is not a boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _theta(settings: Mapping[str, object], config: Mapping[str, object], where: str, faults: ErrorCollector) -> float:
    theta = settings.get("rope_theta", config.get("rope_theta", 10000.0))
    if is_number(theta) and cast(float, theta) > 0:
        return float(cast(float, theta))
    faults.add(f"{where}: rope_theta must be a number > 0, got {theta!r}")
    return 10000.0


class _RopeReader:
    """Reader of one spelling, the object `config[key]`."""

    def __init__(self, config: Mapping[str, object], key: str, where: str, faults: ErrorCollector) -> None:
        self.config, self.key, self.where, self.faults = config, key, where, faults

    def read(self) -> RopeConfig:
        value = self.config[self.key]
        if not isinstance(value, dict):
            self._refuse(f"must be an object, got {value!r}")
            return RopeConfig()
        settings = cast("dict[str, object]", value)
        kind = settings.get("rope_type", settings.get("type", "default"))
        if settings.get("type", kind) != kind:
            self._refuse(f"has rope_type {kind!r} and type {settings['type']!r}; keep the right one")
        if not isinstance(kind, str) or kind not in _READ:
            why = ": it rotates a token by the length of its whole text, which grows as text is generated"
            why = why if kind in _BY_LENGTH else ""
            self._refuse(f"rope type {kind!r} is not supported{why}; known: {', '.join(_READ)}")
            return RopeConfig()
        self._check_names(settings, kind)
        return self._of_kind(settings, cast(RopeKind, kind))

    def _of_kind(self, settings: Mapping[str, object], kind: RopeKind) -> RopeConfig:
        own = ErrorCollector(DataError)
        theta = _theta(settings, self.config, self.where, own)
        rope = RopeConfig(theta=theta)
        numbers = _NumberReader(settings, f"{self.where}: {self.key}", kind, own)
        if kind != "default":
            rope = replace(rope, kind=kind, factor=numbers.read("factor"))
        if kind in ("llama3", "yarn"):
            rope = replace(rope, original_max_positions=self._original(settings, kind, own))
        if kind == "llama3":
            low, high = numbers.read("low_freq_factor"), numbers.read("high_freq_factor")
            if low >= high and not own.messages:
                own.add(self._told(f"low_freq_factor {low} must be below high_freq_factor {high}"))
            rope = replace(rope, low_freq_factor=low, high_freq_factor=high)
        if kind == "yarn":
            if theta <= 1 and not own.messages:
                own.add(self._told(f"rope_theta must be above 1 for rope type 'yarn', got {theta}"))
            rope = self._yarn(rope, settings, numbers, own)
        self.faults.extend(own.messages)
        return RopeConfig() if own.messages else rope

    def _original(self, settings: Mapping[str, object], kind: str, own: ErrorCollector) -> int:
        """Length of the original context; like transformers, from the key beside the object first."""
        name = "original_max_position_embeddings"
        beside = self.config.get(name)
        source = settings if beside is None else {name: beside}
        return int(_NumberReader(source, f"{self.where}: {self.key}", kind, own).read(name))

    def _yarn(
        self, rope: RopeConfig, settings: Mapping[str, object], numbers: "_NumberReader", own: ErrorCollector
    ) -> RopeConfig:
        truncate = settings.get("truncate", True)
        if not isinstance(truncate, bool):
            own.add(self._told(f"truncate must be true or false, got {truncate!r}"))
        return replace(
            rope,
            # Like transformers: null and 0 mean the default.
            beta_fast=numbers.read("beta_fast") if settings.get("beta_fast") else rope.beta_fast,
            beta_slow=numbers.read("beta_slow") if settings.get("beta_slow") else rope.beta_slow,
            mscale=numbers.read("mscale") if settings.get("mscale") else None,
            mscale_all_dim=numbers.read("mscale_all_dim") if settings.get("mscale_all_dim") else None,
            attention_factor=None if settings.get("attention_factor") is None else numbers.read("attention_factor"),
            truncate=bool(truncate),
        )

    def _check_names(self, settings: Mapping[str, object], kind: str) -> None:
        for name, value in settings.items():
            if name in _READ[kind] or name in _WITHOUT_EFFECT or value is None or value == _OFF.get(name, object()):
                continue
            reads = ", ".join(("rope_theta", *_READ[kind]))
            self._refuse(f"{name} = {value!r} is not a setting of rope type {kind!r}, which reads {reads}; remove it")

    def _told(self, fault: str) -> str:
        return f"{self.where}: {self.key}: {fault}"

    def _refuse(self, fault: str) -> None:
        self.faults.add(self._told(fault))


@dataclass(frozen=True, slots=True)
class _NumberReader:
    """Reader of positive numbers; 1 in the place of a wrong one, which is added to `faults`."""

    settings: Mapping[str, object]
    where: str
    kind: str
    faults: ErrorCollector

    def read(self, name: str) -> float:
        value = self.settings.get(name)
        if is_number(value) and cast(float, value) > 0:
            return float(cast(float, value))
        self.faults.add(f"{self.where}: {name} must be a number > 0 for rope type {self.kind!r}, got {value!r}")
        return 1.0
