"""The architecture of a decoder transformer, and its translation from and to a Hugging Face `config.json`.

Settings of Llama, Mistral, Qwen2 and Qwen3 models, and the unsupported ones that raise an error.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, cast

from hone.core.errors import DataError, ErrorCollector

ModelFamily: TypeAlias = Literal["llama", "mistral", "qwen2", "qwen3"]
Json: TypeAlias = "dict[str, object]"

FAMILIES: Final = ("llama", "mistral", "qwen2", "qwen3")
_ARCHITECTURES: Final = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
_REQUIRED: Final = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_ROPE_KEYS: Final = ("rope_parameters", "rope_scaling", "rope_theta")
_KNOWN: Final = frozenset(
    (
        *_REQUIRED,
        *_ROPE_KEYS,
        "model_type",
        "architectures",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
        "rms_norm_eps",
        "tie_word_embeddings",
        "attention_bias",
        "mlp_bias",
        "hidden_act",
        "torch_dtype",
        "dtype",
    )
)
_MOE_KEYS: Final = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary positions (Su et al., 2021); `llama3` is the length scaling of Llama 3.1 (Dubey et al., 2024)."""

    theta: float = 10000.0
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192

    def to_hf(self) -> Json:
        """As `rope_parameters` of transformers 5."""
        parameters: Json = {"rope_theta": self.theta, "rope_type": self.kind}
        if self.kind != "default":
            parameters["factor"] = self.factor
        if self.kind == "llama3":
            parameters["low_freq_factor"] = self.low_freq_factor
            parameters["high_freq_factor"] = self.high_freq_factor
            parameters["original_max_position_embeddings"] = self.original_max_positions
        return parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Numbers that fix a decoder's shape. `kv_heads` and `head_dim` default to one per head, `hidden_size / heads`.

    Raises DataError, with every fault, when the numbers do not make a model.
    """

    family: ModelFamily = "qwen3"
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int = 0
    head_dim: int = 0
    max_positions: int = 2048
    norm_eps: float = 1e-6
    rope: RopeConfig = field(default_factory=RopeConfig)
    tie_embeddings: bool = True
    attention_bias: bool = False
    mlp_bias: bool = False
    extra: Mapping[str, object] = field(default_factory=dict[str, object])
    """Keys of a `config.json` that hone does not use, kept to be written back."""

    def __post_init__(self) -> None:
        faults = ErrorCollector(DataError)
        if self.family not in FAMILIES:
            faults.add(f"model family {self.family!r} is not supported; known: {', '.join(FAMILIES)}")
        for name in ("vocab_size", "hidden_size", "intermediate_size", "layers", "heads", "max_positions"):
            if self._number(name) < 1:
                faults.add(f"model {name} must be at least 1, got {self._number(name)}")
        faults.raise_if_any()
        # A frozen dataclass derives its defaults through object.__setattr__.
        if not self.kv_heads:
            object.__setattr__(self, "kv_heads", self.heads)
        if not self.head_dim:
            object.__setattr__(self, "head_dim", self.hidden_size // self.heads)
        if self.heads % self.kv_heads:
            faults.add(f"model heads {self.heads} must be a multiple of kv_heads {self.kv_heads}")
        if self.head_dim < 2 or self.head_dim % 2:
            faults.add(f"model head_dim must be even and at least 2 for rotary positions, got {self.head_dim}")
        faults.raise_if_any()

    def _number(self, name: str) -> int:
        numbers = {
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "layers": self.layers,
            "heads": self.heads,
            "max_positions": self.max_positions,
        }
        return numbers[name]

    @property
    def qk_norm(self) -> bool:
        """True if queries and keys are RMS-normalised per head (Qwen3)."""
        return self.family == "qwen3"

    @property
    def qkv_bias(self) -> bool:
        return self.family == "qwen2" or self.attention_bias

    @property
    def output_bias(self) -> bool:
        """True if the attention's output projection has a bias; Qwen2 has biases on q, k and v only."""
        return self.family != "qwen2" and self.attention_bias

    def to_hf(self, head: Literal["CausalLM", "SequenceClassification"] = "CausalLM") -> Json:
        """The `config.json` of transformers 5, without `dtype`, which depends on the weights."""
        config: Json = dict(self.extra)
        config.update(
            architectures=[f"{_ARCHITECTURES[self.family]}For{head}"],
            model_type=self.family,
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            hidden_act="silu",
            max_position_embeddings=self.max_positions,
            rms_norm_eps=self.norm_eps,
            rope_parameters=self.rope.to_hf(),
            tie_word_embeddings=self.tie_embeddings,
        )
        for token in ("bos_token_id", "eos_token_id"):
            config.setdefault(token, None)  # absent would mean 1 and 2 for some families
        if self.family in ("llama", "qwen3"):
            config["attention_bias"] = self.attention_bias
        if self.family == "llama":
            config["mlp_bias"] = self.mlp_bias
        if self.family == "mistral":
            config.setdefault("sliding_window", None)  # absent would mean a window of 4,096
        return config


def model_config_from_hf(config: Mapping[str, object], *, where: str = "config.json") -> ModelConfig:
    """Read a Hugging Face `config.json`, in the spelling of transformers 4 or 5.

    Raises DataError with every fault at once, each naming the key and its value.
    """
    faults = ErrorCollector(DataError)
    family = config.get("model_type")
    if family not in FAMILIES:
        faults.add(f"{where}: model_type {family!r} is not supported; known: {', '.join(FAMILIES)}")
    _refuse_unsupported(config, where, faults)
    rope = _rope(config, where, faults)
    faults.extend(
        f"{where}: {key} must be a whole number of at least 1, got {config.get(key)!r}"
        for key in _REQUIRED
        if not _is_positive(config.get(key))
    )
    faults.raise_if_any()
    heads = cast(int, config["num_attention_heads"])
    default_kv = 8 if family == "mistral" else heads
    default_dim = 128 if family == "qwen3" else cast(int, config["hidden_size"]) // heads
    return ModelConfig(
        family=cast(ModelFamily, family),
        vocab_size=cast(int, config["vocab_size"]),
        hidden_size=cast(int, config["hidden_size"]),
        intermediate_size=cast(int, config["intermediate_size"]),
        layers=cast(int, config["num_hidden_layers"]),
        heads=heads,
        kv_heads=cast(int, config.get("num_key_value_heads", default_kv) or heads),
        head_dim=cast(int, config.get("head_dim") or default_dim),
        max_positions=cast(int, config.get("max_position_embeddings") or _DEFAULT_POSITIONS[str(family)]),
        norm_eps=float(cast(float, config.get("rms_norm_eps", 1e-6))),
        rope=rope,
        tie_embeddings=bool(config.get("tie_word_embeddings", False)),
        attention_bias=family in ("llama", "qwen3") and bool(config.get("attention_bias", False)),
        mlp_bias=family == "llama" and bool(config.get("mlp_bias", False)),
        extra={
            key: value for key, value in config.items() if key not in _KNOWN and (key, value) not in _UNSET_DEFAULTS
        },
    )


_UNSET_DEFAULTS: Final = (("bos_token_id", None), ("eos_token_id", None))
"""Values that `to_hf` writes for keys missing in `extra`."""
_DEFAULT_POSITIONS: Final = {"llama": 2048, "mistral": 131072, "qwen2": 32768, "qwen3": 32768}


def _is_positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _refuse_unsupported(config: Mapping[str, object], where: str, faults: ErrorCollector) -> None:
    if "auto_map" in config:
        faults.add(
            f"{where}: auto_map {json.dumps(config['auto_map'])} asks to run Python code that came with the model "
            "(trust_remote_code); hone never does. Convert the model to one of: " + ", ".join(FAMILIES)
        )
    if config.get("hidden_act", "silu") != "silu":
        faults.add(f"{where}: hidden_act {config['hidden_act']!r} is not supported; known: 'silu'")
    if config.get("quantization_config") is not None:
        faults.add(f"{where}: quantization_config is not supported; give the unquantised checkpoint")
    if config.get("partial_rotary_factor", 1.0) not in (1.0, None):
        faults.add(f"{where}: partial_rotary_factor {config['partial_rotary_factor']!r} is not supported (only 1.0)")
    faults.extend(
        f"{where}: {key} {config[key]!r}: mixtures of experts are not supported; give a dense model"
        for key in _MOE_KEYS
        if config.get(key)
    )
    window = _active_window(config)
    if window:
        faults.add(
            f"{where}: {window}: sliding-window attention is active and not supported; it can be switched off "
            "(sliding_window: null) where every text is shorter than the window"
        )


def _active_window(config: Mapping[str, object]) -> str:
    """The setting that enables a sliding window, or an empty string."""
    family = config.get("model_type")
    window = config.get("sliding_window", 4096 if family == "mistral" else None)
    layer_types = config.get("layer_types")
    if isinstance(layer_types, list) and set(cast("list[object]", layer_types)) - {"full_attention"}:
        return f"layer_types {sorted({str(kind) for kind in cast('list[object]', layer_types)})}"
    limit = config.get("max_position_embeddings") or _DEFAULT_POSITIONS.get(str(family), 2048)
    if not isinstance(window, int) or not isinstance(limit, int) or window >= limit:
        return ""
    if family in ("qwen2", "qwen3"):
        depth, first = config.get("num_hidden_layers"), config.get("max_window_layers", 28)
        reached = isinstance(depth, int) and isinstance(first, int) and depth > first
        on = bool(config.get("use_sliding_window", False)) and reached and not layer_types
        return f"use_sliding_window with sliding_window {window}" if on else ""
    return f"sliding_window {window} of {limit} positions" if family == "mistral" else ""


def _rope(config: Mapping[str, object], where: str, faults: ErrorCollector) -> RopeConfig:
    """`rope_parameters` (transformers 5), else `rope_theta` and `rope_scaling` (transformers 4)."""
    key = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
    given = config.get(key) or {}
    if not isinstance(given, dict):
        faults.add(f"{where}: {key} must be an object, got {given!r}")
        return RopeConfig()
    settings = cast("dict[str, object]", given)
    kind = settings.get("rope_type", settings.get("type", "default"))
    if kind not in ("default", "linear", "llama3"):
        faults.add(f"{where}: {key}: rope type {kind!r} is not supported; known: default, linear, llama3")
        return RopeConfig()
    needed = {
        "default": (),
        "linear": ("factor",),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    }[cast(str, kind)]
    bad = [name for name in needed if not isinstance(settings.get(name), int | float)]
    faults.extend(f"{where}: {key}.{name} must be a number for rope type {kind!r}" for name in bad)
    theta = settings.get("rope_theta", config.get("rope_theta", 10000.0))
    if not isinstance(theta, int | float) or theta <= 0:
        faults.add(f"{where}: rope_theta must be a number > 0, got {theta!r}")
        return RopeConfig()
    if bad or kind == "default":
        return RopeConfig(theta=float(theta))
    number = {name: float(cast(float, settings[name])) for name in needed}
    if kind == "linear":
        return RopeConfig(theta=float(theta), kind="linear", factor=number["factor"])
    return RopeConfig(
        theta=float(theta),
        kind="llama3",
        factor=number["factor"],
        low_freq_factor=number["low_freq_factor"],
        high_freq_factor=number["high_freq_factor"],
        original_max_positions=int(number["original_max_position_embeddings"]),
    )
