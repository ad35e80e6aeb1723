"""The architecture of a decoder transformer, and its translation from and to a Hugging Face `config.json`.

Settings of Llama, Mistral, Qwen2 and Qwen3 models and of the mixtures of experts Qwen3-MoE, Mixtral and OLMoE, and the
unsupported ones that raise an error.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, cast

from hone.core.errors import DataError, ErrorCollector
from hone.models.language.config_keys import DEFAULT_POSITIONS, check_keys
from hone.models.language.expert_config import EXPERT_FAMILIES, WRITTEN_KEYS, ExpertsConfig, experts_from_hf
from hone.models.language.rope import RopeConfig, rope_from_hf

ModelFamily: TypeAlias = Literal["llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "mixtral", "olmoe"]
Json: TypeAlias = "dict[str, object]"

FAMILIES: Final = ("llama", "mistral", "qwen2", "qwen3", *EXPERT_FAMILIES)
_ARCHITECTURES: Final = {
    "llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3",
    "qwen3_moe": "Qwen3Moe", "mixtral": "Mixtral", "olmoe": "Olmoe",
}  # fmt: skip
_ATTENTION_BIAS: Final = ("llama", "qwen3", "qwen3_moe", "olmoe")
"""Families whose attention may have biases by a key of that name."""
_DEFAULT_KV_HEADS: Final = {"mistral": 8, "mixtral": 8, "qwen3_moe": 4}
"""Key and value heads of a config that does not name them; else as many as heads."""
_WRITTEN: Final = (
    "architectures", "model_type", "dtype", "torch_dtype", "vocab_size", "hidden_size", "intermediate_size",
    "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act",
    "max_position_embeddings", "rms_norm_eps", "rope_parameters", "rope_scaling", "rope_theta", "tie_word_embeddings",
    "attention_bias", "mlp_bias",
)  # fmt: skip
"""Keys that a saved `config.json` has from the fields; every other key is kept as it was read."""


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
    experts: ExpertsConfig | None = None
    """The mixture of experts in place of each MLP; None: dense."""
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
            faults.add(
                f"model heads {self.heads} (num_attention_heads) must be a multiple of kv_heads {self.kv_heads} "
                "(num_key_value_heads)"
            )
        if self.head_dim < 2 or self.head_dim % 2:
            faults.add(f"model head_dim must be even and at least 2 for rotary positions, got {self.head_dim}")
        self._add_expert_faults(faults)
        faults.raise_if_any()

    def _add_expert_faults(self, faults: ErrorCollector) -> None:
        mixture = self.family in EXPERT_FAMILIES
        if mixture == (self.experts is None):
            fault = "needs experts" if mixture else "has no experts"
            faults.add(f"model family {self.family!r} {fault}; families with experts: {', '.join(EXPERT_FAMILIES)}")
        if self.experts is None:
            return
        self.experts.add_faults(faults)
        if self.family != "qwen3_moe" and self.experts.width != self.intermediate_size:
            faults.add(f"model intermediate_size {self.intermediate_size} is the width of an expert of {self.family}; "
                       f"experts.width is {self.experts.width}")  # fmt: skip
        if self.family == "mixtral" and not self.experts.normalise_gates:
            faults.add("model experts.normalise_gates must be true: Mixtral's weights of a token's experts sum to 1")
        if self.family == "olmoe" and self.head_dim != self.hidden_size // self.heads:
            faults.add(f"model head_dim {self.head_dim} must be hidden_size / heads (num_attention_heads) for olmoe, "
                       f"{self.hidden_size // self.heads}")  # fmt: skip

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
    def rotary_scale(self) -> float:
        """Factor on queries and keys besides their rotation; 1 but for YaRN."""
        return self.rope.scale

    @property
    def qk_norm(self) -> bool:
        """True if queries and keys are RMS-normalised (Qwen3, OLMoE)."""
        return self.family in ("qwen3", "qwen3_moe", "olmoe")

    @property
    def qk_norm_whole(self) -> bool:
        """True if that norm is over all heads together (OLMoE) and not head by head."""
        return self.family == "olmoe"

    @property
    def mlp_width(self) -> int:
        """Inner features of a layer's MLP, or of each of its experts."""
        return self.intermediate_size if self.experts is None else self.experts.width

    @property
    def qkv_bias(self) -> bool:
        return self.family == "qwen2" or self.attention_bias

    @property
    def output_bias(self) -> bool:
        """True if the attention's output projection has a bias; Qwen2 has biases on q, k and v only."""
        return self.family != "qwen2" and self.attention_bias

    def to_hf(self, head: Literal["CausalLM", "SequenceClassification", "TokenClassification"] = "CausalLM") -> Json:
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
        if self.family in _ATTENTION_BIAS:
            config["attention_bias"] = self.attention_bias
        if self.family == "llama":
            config["mlp_bias"] = self.mlp_bias
        if self.experts is not None:
            config.update(self.experts.to_hf(self.family))
        if config.get("layer_types") is not None:
            config["layer_types"] = ["full_attention"] * self.layers
        if self.family == "mistral":
            config.setdefault("sliding_window", None)  # absent would mean a window of 4,096
        return config


def model_config_from_hf(config: Mapping[str, object], *, where: str = "config.json") -> ModelConfig:
    """Read a Hugging Face `config.json`, in the spelling of transformers 4 or 5.

    Raises DataError with every fault at once, each naming the key and its value: a key is read, known not to change the
    model's outputs, or refused.
    """
    faults = ErrorCollector(DataError)
    family = config.get("model_type")
    if family not in FAMILIES:
        faults.add(f"{where}: model_type {family!r} is not supported; known: {', '.join(FAMILIES)}")
    check_keys(config, str(family), where, faults)
    if family == "mixtral" and not any(config.get(key) for key in ("rope_theta", "rope_scaling", "rope_parameters")):
        config = {**config, "rope_theta": 1e6}  # its default in transformers
    rope = rope_from_hf(config, where=where, faults=faults)
    experts = experts_from_hf(config, str(family), where=where, faults=faults)
    faults.raise_if_any()
    try:
        return _model_config(config, rope, experts)
    except DataError as error:
        raise DataError(*(f"{where}: {message}" for message in error.messages)) from None


def _model_config(config: Mapping[str, object], rope: RopeConfig, experts: ExpertsConfig | None) -> ModelConfig:
    family = config["model_type"]
    heads = cast(int, config["num_attention_heads"])
    written = (*_WRITTEN, *(WRITTEN_KEYS if experts is not None else ()))
    default_kv = _DEFAULT_KV_HEADS.get(str(family), heads)
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
        max_positions=cast(int, config.get("max_position_embeddings") or DEFAULT_POSITIONS[str(family)]),
        norm_eps=float(cast(float, config.get("rms_norm_eps", 1e-5 if family in ("mixtral", "olmoe") else 1e-6))),
        rope=rope,
        tie_embeddings=bool(config.get("tie_word_embeddings", False)),
        attention_bias=family in _ATTENTION_BIAS and bool(config.get("attention_bias", False)),
        mlp_bias=family == "llama" and bool(config.get("mlp_bias", False)),
        experts=experts,
        extra={
            key: value for key, value in config.items() if key not in written and (key, value) not in _UNSET_DEFAULTS
        },
    )


_UNSET_DEFAULTS: Final = (
    ("bos_token_id", None),
    ("eos_token_id", None),
    ("original_max_position_embeddings", None),
)
"""Values that `to_hf` writes for keys missing in `extra`, or that mean the same as no key."""
