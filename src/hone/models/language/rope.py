"""Rotary positions in a Hugging Face `config.json`: the scalings for longer contexts that hone computes, and their
keys.

transformers 5 writes them as `rope_parameters`, transformers 4 as `rope_theta` and `rope_scaling`.
"""

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hone.core.errors import DataError, ErrorCollector

RopeKind: TypeAlias = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope"]

_READ: Final[Mapping[str, tuple[str, ...]]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": (
        "factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor", "mscale",
        "mscale_all_dim", "truncate",
    ),
    "longrope": ("short_factor", "long_factor", "factor", "original_max_position_embeddings", "attention_factor"),
}  # fmt: skip
"""Rope type -> the settings that it depends on, besides `rope_theta`."""
_WITHOUT_EFFECT: Final = ("rope_type", "type", "rope_theta", "original_max_position_embeddings", "finetuned")
"""Settings that are read for every type, or change nothing where a type does not read them."""
_OFF: Final = {"partial_rotary_factor": 1.0, "factor": 1.0, "attention_factor": 1.0, "attn_factor": 1.0}
"""Settings that a type does not read -> the value at which they change nothing."""
_BY_LENGTH: Final = ("dynamic", "longrope")
"""Types whose rotation of a token depends on the length of its whole text."""
_PARTIAL: Final = "partial_rotary_factor"
_QUERY_BETA: Final = "llama_4_scaling_beta"


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary positions (Su et al., 2021), and how their frequencies are scaled to a longer context: `linear` (Chen et
    al., 2023), `dynamic` (by the length of the text), `llama3` (Dubey et al., 2024), `yarn` (Peng et al., 2024),
    `longrope` (Ding et al., 2024)."""

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
    """Factor of `yarn` and `longrope` on queries and keys; None: derived from `factor` (`scale`)."""
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    """Round the borders between the frequencies of `yarn` to whole features."""
    short_factor: tuple[float, ...] = ()
    """Divisor of each frequency in `longrope`, for texts of at most `original_max_positions`."""
    long_factor: tuple[float, ...] = ()
    """The same for longer texts, from their first token on."""
    fraction: float = 1.0
    """Part of each head's features that turns, from the first on."""
    query_beta: float = 0.0
    """Queries at position p are multiplied by `1 + beta ln(1 + floor(p / original_max_positions))` (Llama 4)."""

    @property
    def by_length(self) -> bool:
        """True if a token's rotation depends on the length of its whole text."""
        return self.kind in _BY_LENGTH

    @property
    def scale(self) -> float:
        """Factor on the rotated queries and keys: 1; in `yarn` `attention_factor` or `1 + 0.1 ln factor`; in `longrope`
        `attention_factor` or `sqrt(1 + ln factor / ln original_max_positions)`."""
        if self.kind not in ("yarn", "longrope"):
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.kind == "longrope":
            return math.sqrt(1 + math.log(max(1.0, self.factor)) / math.log(self.original_max_positions))
        if self.mscale and self.mscale_all_dim:
            return self._temperature(self.mscale) / self._temperature(self.mscale_all_dim)
        return self._temperature(1.0)

    @property
    def latent_scale(self) -> float:
        """Factor on the scores of latent attention: (0.1 mscale_all_dim ln factor + 1)^2 where the context is
        scaled."""
        return self._temperature(self.mscale_all_dim) ** 2 if self.mscale_all_dim else 1.0

    def faults(self, head_dim: int) -> Iterator[str]:
        """What does not fit heads of so many features."""
        turned = int(head_dim * self.fraction)
        if turned < 2 or turned % 2:
            yield (
                f"model partial_rotary_factor {self.fraction} turns {turned} of head_dim {head_dim} features; it must "
                "be an even number above 0"
            )
        for name, factors in (("short_factor", self.short_factor), ("long_factor", self.long_factor)):
            if self.kind == "longrope" and len(factors) != turned // 2:
                yield f"model rope {name} must have {turned // 2} numbers, one for each pair, got {len(factors)}"

    def _temperature(self, weight: float) -> float:
        return 1.0 if self.factor <= 1 else 0.1 * weight * math.log(self.factor) + 1.0

    def to_hf(self) -> dict[str, object]:
        """As `rope_parameters` of transformers 5."""
        parameters: dict[str, object] = {"rope_theta": self.theta, "rope_type": self.kind}
        if self.kind != "default":
            parameters["factor"] = self.factor
        if self.fraction != 1:
            parameters[_PARTIAL] = self.fraction
        if self.query_beta:
            parameters[_QUERY_BETA] = self.query_beta
        if self.kind == "llama3":
            parameters["low_freq_factor"] = self.low_freq_factor
            parameters["high_freq_factor"] = self.high_freq_factor
        if self.kind in ("llama3", "yarn", "longrope") or self.query_beta:
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
        if self.kind == "longrope":
            parameters |= {"short_factor": [*self.short_factor], "long_factor": [*self.long_factor]}
            parameters |= {} if self.attention_factor is None else {"attention_factor": self.attention_factor}
        return parameters


def rope_frequencies(rope: RopeConfig | None, head_dim: int, length: int = 0) -> Tensor:
    """Radians per position of each pair, `[head_dim / 2]` float32, for a text of `length` tokens; 0 for pairs that do
    not turn.

    theta^(-2i/d) (Su et al., 2021). `linear` divides all of them by `factor` (Chen et al., 2023). `dynamic` raises
    theta by the length beyond the context. `llama3` divides the frequencies whose wavelength exceeds the original
    context by `factor`, leaves short wavelengths unchanged and interpolates linearly between (Dubey et al., 2024);
    `yarn` does so with borders in rotations within the original context, and interpolates along the features (Peng et
    al., 2024). `longrope` divides each by a number of its own (Ding et al., 2024).
    """
    if rope is None:
        return torch.from_numpy(np.zeros(head_dim // 2, np.float32))
    turned, theta = int(head_dim * rope.fraction), rope.theta
    if rope.kind == "dynamic":
        longest = max(length, rope.original_max_positions) / rope.original_max_positions
        theta = theta * (rope.factor * longest - (rope.factor - 1)) ** (turned / (turned - 2))
    wavelengths = theta ** (_counted(0, turned, 2) / turned)
    frequencies = 1.0 / wavelengths
    if rope.kind == "linear":
        frequencies = frequencies / rope.factor
    if rope.kind == "llama3":
        frequencies = _llama3(rope, frequencies)
    if rope.kind == "yarn":
        kept = 1 - _yarn_ramp(rope, turned)
        frequencies = 1.0 / (rope.factor * wavelengths) * (1 - kept) + frequencies * kept
    if rope.kind == "longrope":
        divisors = rope.long_factor if length > rope.original_max_positions else rope.short_factor
        frequencies = 1.0 / (torch.from_numpy(np.array(divisors, np.float32)) * wavelengths)
    return functional.pad(frequencies, (0, head_dim // 2 - len(frequencies)))


def _llama3(rope: RopeConfig, frequencies: Tensor) -> Tensor:
    wavelength = 2 * math.pi / frequencies
    low = rope.original_max_positions / rope.low_freq_factor
    high = rope.original_max_positions / rope.high_freq_factor
    blend = (rope.original_max_positions / wavelength - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - blend) * frequencies / rope.factor + blend * frequencies
    scaled = torch.where(wavelength > low, frequencies / rope.factor, blended)
    return torch.where(wavelength < high, frequencies, scaled)


def _yarn_ramp(rope: RopeConfig, head_dim: int) -> Tensor:
    """0 for pairs that turn `beta_fast` times or more within the original context, 1 for `beta_slow` or less."""

    def border(rotations: float) -> float:
        """Feature whose pair turns `rotations` times."""
        return head_dim * math.log(rope.original_max_positions / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = border(rope.beta_fast), border(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    span = high - low if high != low else 0.001
    return ((_counted(0, head_dim // 2, 1) - low) / span).clamp(0, 1)


def _counted(start: int, end: int, step: int) -> Tensor:
    """`torch.arange` in float32 by numpy: torch's own, on the device "meta" where parameters are only counted, imports
    the compiler, which takes two seconds."""
    return torch.from_numpy(np.arange(start, end, step, dtype=np.float32))


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeRules:
    """What a family of models reads besides the settings of a scaling, and where transformers has defaults for it."""

    theta: float = 10000.0
    """`rope_theta` of a file without one."""
    fraction: float | None = None
    """`partial_rotary_factor` of a file without one; None: not read."""
    original: int | None = None
    """`original_max_position_embeddings` of a file without one; None: none."""
    aliases: Mapping[str, RopeKind] = field(default_factory=dict[str, RopeKind])
    """Names of scalings that stand for another one."""
    query_beta: bool = False
    """Whether `llama_4_scaling_beta` is read."""
    ignored: tuple[str, ...] = ()
    """Settings that change nothing for texts."""


def rope_from_hf(
    config: Mapping[str, object], *, where: str, faults: ErrorCollector, rules: RopeRules | None = None
) -> RopeConfig:
    """Read the rotary positions of a `config.json`, and add what is wrong to `faults`.

    Where both spellings are given, transformers takes `rope_scaling`; here they must agree.
    """
    rules = rules or RopeRules()
    spellings = [key for key in ("rope_scaling", "rope_parameters") if config.get(key)]
    own = ErrorCollector(DataError)
    if not spellings:
        fraction = _fraction({}, config, rules, where, own)
        faults.extend(own.messages)
        return RopeConfig(theta=_theta({}, config, rules, where, faults), fraction=fraction)
    read = [_RopeReader(config, key, where, own, rules).read() for key in spellings]
    faults.extend(own.messages)
    first, other = read[0], read[-1]
    if not own.messages and other not in (first, RopeConfig(theta=first.theta, fraction=first.fraction)):
        faults.add(
            f"{where}: rope_scaling {config['rope_scaling']!r} and rope_parameters {config['rope_parameters']!r} "
            "disagree (each has rope_theta from itself, else from the key beside it, else 10000); keep the right one"
        )
    return first


def is_number(value: object) -> bool:
    """True for a finite number that is not a boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _theta(
    settings: Mapping[str, object], config: Mapping[str, object], rules: RopeRules, where: str, faults: ErrorCollector
) -> float:
    theta = settings.get("rope_theta", config.get("rope_theta", rules.theta))
    if is_number(theta) and cast(float, theta) > 0:
        return float(cast(float, theta))
    faults.add(f"{where}: rope_theta must be a number > 0, got {theta!r}")
    return 10000.0


def _fraction(
    settings: Mapping[str, object], config: Mapping[str, object], rules: RopeRules, where: str, faults: ErrorCollector
) -> float:
    """Part of each head that turns; from the key beside the settings where they have none."""
    if rules.fraction is None:
        return 1.0
    fraction = settings.get(_PARTIAL, config.get(_PARTIAL))
    fraction = rules.fraction if fraction is None else fraction
    if is_number(fraction) and 0 < cast(float, fraction) <= 1:
        return float(cast(float, fraction))
    faults.add(f"{where}: {_PARTIAL} must be above 0 and at most 1, got {fraction!r}")
    return 1.0


class _RopeReader:
    """Reader of one spelling, the object `config[key]`."""

    def __init__(
        self, config: Mapping[str, object], key: str, where: str, faults: ErrorCollector, rules: RopeRules
    ) -> None:
        self.config, self.key, self.where, self.faults, self.rules = config, key, where, faults, rules

    def read(self) -> RopeConfig:
        value = self.config[self.key]
        if not isinstance(value, dict):
            self._refuse(f"must be an object, got {value!r}")
            return RopeConfig()
        settings = cast("dict[str, object]", value)
        kind = settings.get("rope_type", settings.get("type", "default"))
        if settings.get("type", kind) != kind:
            self._refuse(f"has rope_type {kind!r} and type {settings['type']!r}; keep the right one")
        kind = self.rules.aliases.get(kind, kind) if isinstance(kind, str) else kind
        if not isinstance(kind, str) or kind not in _READ:
            self._refuse(f"rope type {kind!r} is not supported; known: {', '.join(_READ)}")
            return RopeConfig()
        self._check_names(settings, kind)
        return self._of_kind(settings, cast(RopeKind, kind))

    def _of_kind(self, settings: Mapping[str, object], kind: RopeKind) -> RopeConfig:
        own = ErrorCollector(DataError)
        theta = _theta(settings, self.config, self.rules, self.where, own)
        rope = RopeConfig(theta=theta, fraction=_fraction(settings, self.config, self.rules, self.where, own))
        numbers = _NumberReader(settings, f"{self.where}: {self.key}", kind, own)
        if kind != "default":
            derived = kind == "longrope" and settings.get("factor") is None
            rope = replace(rope, kind=kind, factor=1.0 if derived else numbers.read("factor"))
        if self.rules.query_beta and settings.get(_QUERY_BETA):
            rope = replace(rope, query_beta=numbers.read(_QUERY_BETA))
        if kind in ("llama3", "yarn", "longrope") or rope.query_beta:
            rope = replace(rope, original_max_positions=self._original(settings, kind, own))
        if kind == "dynamic":
            rope = replace(rope, original_max_positions=self._positions(kind, own))
        if kind == "longrope":
            rope = self._longrope(rope, settings, numbers, own)
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
        beside = self.config.get(name) or self.rules.original
        source = settings if beside is None else {name: beside}
        return int(_NumberReader(source, f"{self.where}: {self.key}", kind, own).read(name))

    def _positions(self, kind: str, own: ErrorCollector) -> int:
        """Length that the model is for."""
        return int(_NumberReader(self.config, self.where, kind, own).read("max_position_embeddings"))

    def _longrope(
        self, rope: RopeConfig, settings: Mapping[str, object], numbers: "_NumberReader", own: ErrorCollector
    ) -> RopeConfig:
        lists = dict[str, tuple[float, ...]]()
        for name in ("short_factor", "long_factor"):
            value = settings.get(name)
            values = cast("list[object]", value) if isinstance(value, list) else [None]
            if not all(is_number(one) and cast(float, one) > 0 for one in values):
                own.add(self._told(f"{name} must be a list of numbers > 0 for rope type 'longrope', got {value!r}"))
                values = []
            lists[name] = tuple(float(cast(float, one)) for one in values)
        if settings.get("factor") is None:
            rope = replace(rope, factor=self._positions("longrope", own) / rope.original_max_positions)
        return replace(
            rope,
            **lists,
            attention_factor=None if settings.get("attention_factor") is None else numbers.read("attention_factor"),
        )

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
        extra = (_PARTIAL,) if self.rules.fraction is not None else ()
        extra += (_QUERY_BETA, "max_position_embeddings") if self.rules.query_beta else ()
        extra += self.rules.ignored
        for name, value in settings.items():
            read = name in _READ[kind] or name in extra or name in _WITHOUT_EFFECT
            if read or value is None or value == _OFF.get(name, object()):
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
