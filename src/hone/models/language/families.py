"""What a family of decoders fixes, its keys and defaults in transformers, and the switches that a `config.json` sets.

One decoder computes all of them: they differ in where norms stand, in what attention sees, and in a few factors.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, cast

from hone.core.errors import DataError, ErrorCollector
from hone.models.language.rope import RopeRules, is_number

ModelFamily: TypeAlias = Literal[
    "llama", "mistral", "ministral3", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "smollm3", "olmo2", "olmo3",
    "granite", "glm", "glm4", "cohere", "cohere2", "youtu", "minicpm3", "qwen3_5_text", "qwen3_moe", "mixtral", "olmoe",
    "deepseek_v3",
]  # fmt: skip
NormKind: TypeAlias = Literal["rms", "rms_wide", "rms_plus_one", "layer"]
"""`rms_wide`: the weight is multiplied in float32, before rounding; `rms_plus_one`: so is 1 + weight; `layer`: the mean
is taken off before."""
FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyDesign:
    """A family: parts that all of its models share, and how transformers reads their `config.json`."""

    architecture: str
    """Name of its classes in transformers, without `ForCausalLM`."""
    positions: int
    """`max_position_embeddings` of a file without one."""
    kv_heads: int | None = None
    """`num_key_value_heads` of a file without the key; None: as many as heads."""
    head_dim: int | None = None
    """`head_dim` of a file without one; None: hidden_size / heads."""
    norm_eps: float = 1e-6
    tied: bool = False
    """`tie_word_embeddings` of a file without the key."""
    flags: tuple[str, ...] = ()
    """Keys that are true or false and followed, besides `tie_word_embeddings`."""
    attention_bias: bool = False
    """`attention_bias` of a file without the key."""
    output_bias: bool = True
    """Whether those biases are on the attention's output projection too."""
    qkv_bias: bool = False
    """Queries, keys and values have biases in every model."""
    qk_norm: Literal["none", "head", "whole"] = "none"
    """RMS norm of queries and keys: head by head, or over all heads together."""
    norm: NormKind = "rms"
    norms: tuple[str | None, str | None, str | None, str | None] = (
        "input_layernorm", None, "post_attention_layernorm", None
    )  # fmt: skip
    """Names of the norms before and after attention, and before and after the MLP; None: there is none."""
    parallel: bool = False
    """Attention and MLP read the same norm, and are added together."""
    gelu: bool = False
    """The gate is a GELU in its form with tanh, in place of SiLU."""
    fused: tuple[str, ...] = ()
    """Linear layers that a checkpoint stores as one: `qkv_proj`, `gate_up_proj`."""
    neighbours: bool = False
    """Rotary pairs are neighbouring features in a checkpoint; else halves of the part that turns."""
    rope: RopeRules = field(default_factory=RopeRules)
    local_theta: float | None = None
    """`rope_theta` of layers with a window, which have rotary positions of their own; None: all have the same."""
    window: int | None = None
    """`sliding_window` of a file without the key."""
    windowed: Literal["never", "always", "above", "pattern", "types"] = "never"
    """Layers with a window: none; all where there is one; those from `max_window_layers` on where
    `use_sliding_window`; all but every n-th; those that `layer_types` names."""
    pattern: int = 0
    """n of `pattern`."""
    numbers: Mapping[str, float | None] = field(default_factory=dict[str, "float | None"])
    """Factors and bounds that it reads -> what they are in a file without the key."""
    eps_key: str = "rms_norm_eps"
    ignored: tuple[str, ...] = ()
    """Keys of its files that change no output."""
    latent: Mapping[str, int | None] = field(default_factory=dict[str, "int | None"])
    """Sizes of latent attention that it reads -> what they are in a file without the key; empty: keys and values are
    heads."""
    delta: Mapping[str, int] = field(default_factory=dict[str, int])
    """Sizes of layers of linear attention that it reads -> what they are in a file without the key; empty: it has no
    such layers. Where it has, all are but every n-th, or those of `layer_types`, and the others have a gate."""

    @property
    def reads_layer_types(self) -> bool:
        """Whether `layer_types` of a file is followed."""
        return self.windowed in ("above", "pattern", "types") or bool(self.delta)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of layers that `layer_types` of a file may name."""
        if self.delta:
            return FULL, LINEAR
        return (FULL, SLIDING) if self.reads_layer_types else (FULL,)

    @property
    def keys(self) -> frozenset[str]:
        """Keys that are read here besides those of every family."""
        keys = {*self.flags, *self.numbers, *self.ignored, *self.latent, *self.delta, self.eps_key}
        if self.rope.fraction is not None:
            keys.add("partial_rotary_factor")
        if self.gelu:
            keys.add("hidden_activation")
        if self.local_theta is not None:
            keys.add("rope_local_base_freq")
        if self.windowed == "pattern":
            keys |= {"sliding_window_pattern", "_sliding_window_pattern"}
        if self.windowed == "types":
            keys |= {"no_rope_layers", "no_rope_layer_interval"}
        return frozenset(keys)


_GEMMA: Final = (
    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"
)  # fmt: skip
_OLMO: Final = (None, "post_attention_layernorm", None, "post_feedforward_layernorm")
_GLM_ROPE: Final = RopeRules(fraction=0.5)

FAMILY_DESIGNS: Final[Mapping[str, FamilyDesign]] = {
    "llama": FamilyDesign(architecture="Llama", positions=2048, flags=("attention_bias", "mlp_bias")),
    "mistral": FamilyDesign(architecture="Mistral", positions=131072, kv_heads=8, window=4096, windowed="always"),
    "ministral3": FamilyDesign(
        architecture="Ministral3", positions=262144, kv_heads=8, head_dim=128, norm_eps=1e-5, windowed="always",
        rope=RopeRules(query_beta=True),
    ),
    "qwen2": FamilyDesign(architecture="Qwen2", positions=32768, qkv_bias=True, window=4096, windowed="above"),
    "qwen3": FamilyDesign(
        architecture="Qwen3", positions=32768, head_dim=128, flags=("attention_bias",), qk_norm="head", window=4096,
        windowed="above",
    ),
    "gemma2": FamilyDesign(
        architecture="Gemma2", positions=8192, kv_heads=4, head_dim=256, tied=True, flags=("attention_bias",),
        norm="rms_plus_one", norms=_GEMMA, gelu=True, window=4096, windowed="pattern", pattern=2,
        numbers={"query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        ignored=("hidden_act",),
    ),
    "gemma3_text": FamilyDesign(
        architecture="Gemma3", positions=131072, kv_heads=4, head_dim=256, tied=True, flags=("attention_bias",),
        norm="rms_plus_one", norms=_GEMMA, gelu=True, qk_norm="head", window=4096, windowed="pattern", pattern=6,
        rope=RopeRules(theta=1e6), local_theta=1e4,
        numbers={"query_pre_attn_scalar": 256, "final_logit_softcapping": None},
        ignored=("hidden_act", "attn_logit_softcapping"),  # transformers reads the latter, and does not use it
    ),
    "phi3": FamilyDesign(
        architecture="Phi3", positions=4096, norm_eps=1e-5, fused=("qkv_proj", "gate_up_proj"), windowed="always",
        rope=RopeRules(fraction=1.0, original=4096, aliases={"su": "longrope", "yarn": "longrope"}),
    ),
    "smollm3": FamilyDesign(
        architecture="SmolLM3", positions=32768, kv_heads=4, tied=True, flags=("attention_bias", "mlp_bias"),
        windowed="types", rope=RopeRules(theta=2e6),
    ),
    "olmo2": FamilyDesign(
        architecture="Olmo2", positions=2048, norm_eps=1e-5, flags=("attention_bias",), qk_norm="whole",
        norm="rms_wide", norms=_OLMO,
    ),
    "olmo3": FamilyDesign(
        architecture="Olmo3", positions=2048, norm_eps=1e-5, flags=("attention_bias",), qk_norm="whole",
        norm="rms_wide", norms=_OLMO, window=4096, windowed="pattern", pattern=4, rope=RopeRules(theta=5e5),
        local_theta=5e5,
    ),
    "granite": FamilyDesign(
        architecture="Granite", positions=2048, flags=("attention_bias", "mlp_bias"),
        numbers={"embedding_multiplier": 1, "residual_multiplier": 1, "attention_multiplier": 1, "logits_scaling": 1},
    ),
    "glm": FamilyDesign(
        architecture="Glm", positions=131072, kv_heads=2, head_dim=128, norm_eps=1.5625e-7, flags=("attention_bias",),
        attention_bias=True, output_bias=False, fused=("gate_up_proj",), neighbours=True, rope=_GLM_ROPE,
    ),
    "glm4": FamilyDesign(
        architecture="Glm4", positions=131072, kv_heads=2, head_dim=128, norm_eps=1.5625e-7, flags=("attention_bias",),
        attention_bias=True, output_bias=False, fused=("gate_up_proj",), neighbours=True, rope=_GLM_ROPE,
        norms=("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"),
    ),
    "cohere": FamilyDesign(
        architecture="Cohere", positions=8192, norm_eps=1e-5, tied=True, flags=("attention_bias", "use_qk_norm"),
        norm="layer", norms=("input_layernorm", None, None, None), parallel=True, neighbours=True,
        rope=RopeRules(theta=5e5), numbers={"logit_scale": 0.0625}, eps_key="layer_norm_eps",
    ),
    "cohere2": FamilyDesign(
        architecture="Cohere2", positions=8192, norm_eps=1e-5, tied=True, flags=("attention_bias",), norm="layer",
        norms=("input_layernorm", None, None, None), parallel=True, neighbours=True, window=4096, windowed="pattern",
        pattern=4, numbers={"logit_scale": 0.0625}, eps_key="layer_norm_eps",
    ),
    "youtu": FamilyDesign(
        architecture="Youtu", positions=131072, tied=True, flags=("attention_bias",), neighbours=True,
        latent={"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
                "v_head_dim": 128},
        ignored=("qk_head_dim", "embedding_initializer_range"),
    ),
    "minicpm3": FamilyDesign(
        architecture="MiniCPM3", positions=32768, norm_eps=1e-5, tied=True, flags=("attention_bias", "mlp_bias"),
        latent={"q_lora_rank": 768, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32,
                "v_head_dim": None},
        numbers={"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256}, ignored=("qk_head_dim",),
    ),
    "deepseek_v3": FamilyDesign(
        architecture="DeepseekV3", positions=4096, flags=("attention_bias",), neighbours=True,
        latent={"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
                "v_head_dim": 128},
        ignored=("qk_head_dim", "ep_size", "aux_loss_alpha", "seq_aux", "num_nextn_predict_layers"),
    ),
    "qwen3_5_text": FamilyDesign(
        architecture="Qwen3_5", positions=32768, kv_heads=4, head_dim=256, flags=("attention_bias",), qk_norm="head",
        norm="rms_plus_one", rope=RopeRules(fraction=0.25, ignored=("mrope_section", "mrope_interleaved")),
        delta={"linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
               "linear_num_key_heads": 16, "linear_num_value_heads": 32, "full_attention_interval": 4},
        ignored=("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mlp_only_layers"),
    ),
    "qwen3_moe": FamilyDesign(
        architecture="Qwen3Moe", positions=32768, kv_heads=4, flags=("attention_bias",), qk_norm="head", window=4096,
        windowed="always",
    ),
    "mixtral": FamilyDesign(
        architecture="Mixtral", positions=131072, kv_heads=8, norm_eps=1e-5, windowed="always",
        rope=RopeRules(theta=1e6),
    ),
    "olmoe": FamilyDesign(
        architecture="Olmoe", positions=4096, norm_eps=1e-5, flags=("attention_bias",), qk_norm="whole"
    ),
}  # fmt: skip
"""Every family that the decoder computes."""
FAMILIES: Final = tuple(FAMILY_DESIGNS)
FOREIGN: Final = "transformers"
"""Family of models that transformers computes, because the decoder does not know their `model_type`."""
FOREIGN_DESIGN: Final = FamilyDesign(
    architecture="",
    positions=2048,
    numbers={"logit_scale": None, "logits_scaling": None, "final_logit_softcapping": None},
)


def foreign_sizes(config: Mapping[str, object], *, where: str) -> dict[str, int] | None:
    """Sizes of a causal language model that transformers has, by the names of `ModelConfig`; None where it has none.

    Raises DataError where transformers does not take the config."""
    # Imported here: transformers takes seconds, which every command would wait for.
    from huggingface_hub.errors import StrictDataclassError  # noqa: PLC0415
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: PLC0415
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING  # noqa: PLC0415

    kind = config.get("model_type")
    if (
        not isinstance(kind, str)
        or kind not in CONFIG_MAPPING
        or CONFIG_MAPPING[kind] not in MODEL_FOR_CAUSAL_LM_MAPPING
    ):
        return None
    try:
        own = CONFIG_MAPPING[kind].from_dict(dict(config)).get_text_config()
    except (StrictDataclassError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{where}: transformers does not take this config of model_type {kind!r}: {error}") from error
    # A family names its sizes as it likes; its class maps them to the common names, or has none.
    keys = {**own.to_dict(), **{name: own.to_dict().get(real) for name, real in own.attribute_map.items()}}
    hidden, heads = keys.get("hidden_size"), keys.get("num_attention_heads")
    sizes = {
        "vocab_size": keys.get("vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": keys.get("intermediate_size") or keys.get("n_inner") or 4 * cast(int, hidden or 0),
        "layers": keys.get("num_hidden_layers"),
        "heads": heads or 1,
        "kv_heads": keys.get("num_key_value_heads") or heads or 1,
        "head_dim": keys.get("head_dim") or cast(int, hidden or 0) // cast(int, heads or 1),
        "max_positions": keys.get("max_position_embeddings") or FOREIGN_DESIGN.positions,
    }
    return {name: value for name, value in sizes.items() if isinstance(value, int)}


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentSizes:
    """Features of latent attention (MLA; DeepSeek-V2, 2024): keys and values of all heads are products of one latent
    for each token, beside one rotary key."""

    query_rank: int | None
    """Features of the latent that the queries are made of; None: they are made of the stream itself."""
    rank: int
    """Features of the latent that keys and values are made of."""
    plain: int
    """Features of a head's query and key that do not turn."""
    turned: int
    """Features that turn; the key has them once for all heads."""
    value: int
    """Features of a head's value."""

    @property
    def query(self) -> int:
        """Features of a head's query."""
        return self.plain + self.turned

    @property
    def cached(self) -> int:
        """Features of a token's key as attention has it: the rotary key, and the latent."""
        return self.turned + self.rank


def latent_sizes(family: str, keys: Mapping[str, object], *, head_width: int) -> LatentSizes | None:
    """The sizes of a model whose checked keys these are; values have `head_width` features where they say nothing."""
    design = FAMILY_DESIGNS.get(family, FOREIGN_DESIGN)
    if not design.latent:
        return None
    sizes = {key: cast("int | None", keys.get(key, default)) for key, default in design.latent.items()}
    known = [sizes["kv_lora_rank"], sizes["qk_nope_head_dim"], sizes["qk_rope_head_dim"]]
    rank, plain, turned = (cast(int, size) for size in known)
    value = sizes["v_head_dim"] or head_width
    return LatentSizes(query_rank=sizes["q_lora_rank"], rank=rank, plain=plain, turned=turned, value=value)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSizes:
    """Sizes of linear attention by the gated delta rule, and the layers that have it."""

    inputs: int
    """Tokens that the convolution of a channel sees: the last ones, its own among them."""
    key: int
    """Features of a query and a key."""
    value: int
    """Features of a value."""
    groups: int
    """Heads of queries and keys."""
    heads: int
    """Heads of values, each with a state of `key * value` numbers."""
    layers: tuple[bool, ...]
    """Whether each layer is of linear attention; the others have keys and values."""

    @property
    def keys(self) -> int:
        """Features of all keys."""
        return self.groups * self.key

    @property
    def values(self) -> int:
        """Features of all values."""
        return self.heads * self.value

    @property
    def channels(self) -> int:
        """Features that the convolutions are of: all queries, keys and values."""
        return 2 * self.keys + self.values

    @property
    def kept(self) -> int:
        """Numbers that a text leaves behind in a layer: the last inputs, and a state for each head."""
        return self.inputs * self.channels + self.key * self.values


def delta_sizes(family: str, keys: Mapping[str, object], *, layers: int) -> DeltaSizes | None:
    """The sizes of a model whose checked keys these are; None for a family without linear attention."""
    design = FAMILY_DESIGNS.get(family, FOREIGN_DESIGN)
    if not design.delta:
        return None
    sizes = [cast(int, keys.get(key, default)) for key, default in design.delta.items()]
    kinds = cast("list[str] | None", keys.get("layer_types")) or [
        LINEAR if (number + 1) % sizes[5] else FULL for number in range(layers)
    ]
    return DeltaSizes(
        inputs=sizes[0], key=sizes[1], value=sizes[2], groups=sizes[3], heads=sizes[4],
        layers=tuple(kind == LINEAR for kind in kinds[:layers]),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSwitches:
    """What the keys of one model switch, beside its sizes."""

    windows: tuple[int | None, ...]
    """Each layer's window: a token sees itself and so many tokens before it, less one; None: all."""
    turns: tuple[Literal["main", "local", "none"], ...]
    """Each layer's rotary positions."""
    score_scale: float
    """Factor on the products of queries and keys."""
    score_cap: float | None = None
    """Scores s become `cap tanh(s / cap)`."""
    embedding_factor: float = 1.0
    residual_factor: float = 1.0
    """Factor on the outputs of attention and MLP."""
    logit_factor: float = 1.0
    logit_cap: float | None = None
    """Logits z become `cap tanh(z / cap)`."""


def layer_switches(
    family: str,
    keys: Mapping[str, object],
    *,
    layers: int,
    hidden_size: int,
    query_dim: int,
    max_positions: int,
    score_factor: float = 1.0,
) -> LayerSwitches:
    """The switches of a model whose checked keys these are. `query_dim`: features of a head's query."""
    design = FAMILY_DESIGNS.get(family, FOREIGN_DESIGN)

    def number(key: str) -> float | None:
        value = keys.get(key, design.numbers[key]) if key in design.numbers else None
        return None if value is None else float(cast(float, value))

    sliding = _sliding_layers(design, keys, layers)
    window = cast("int | None", keys.get("sliding_window"))
    width = None if window is None or window >= max_positions else window
    scale = number("attention_multiplier") or (number("query_pre_attn_scalar") or query_dim) ** -0.5
    depth, base = number("scale_depth") or layers**0.5, number("dim_model_base") or hidden_size
    return LayerSwitches(
        windows=tuple(width if slides else None for slides in sliding),
        turns=_turns(design, keys, sliding),
        score_scale=scale * score_factor,
        score_cap=number("attn_logit_softcapping"),
        embedding_factor=(
            number("embedding_multiplier") or number("scale_emb") or (hidden_size**0.5 if design.gelu else 1.0)
        ),
        residual_factor=number("residual_multiplier") or depth / layers**0.5,
        logit_factor=(number("logit_scale") or (base / hidden_size if base else 1.0))
        / (number("logits_scaling") or 1.0),
        logit_cap=number("final_logit_softcapping"),
    )


def _turns(
    design: FamilyDesign, keys: Mapping[str, object], sliding: Sequence[bool]
) -> tuple[Literal["main", "local", "none"], ...]:
    """Rotary positions of each layer."""
    if design.architecture == "Cohere2":
        return tuple("main" if slides else "none" for slides in sliding)
    if design.windowed == "types":
        return tuple("main" if turned else "none" for turned in _rotary_layers(keys, len(sliding)))
    return tuple("local" if design.local_theta is not None and slides else "main" for slides in sliding)


def _rotary_layers(keys: Mapping[str, object], layers: int) -> list[bool]:
    """Whether each layer of a SmolLM3 has rotary positions."""
    flags = cast("list[int] | None", keys.get("no_rope_layers"))
    every = cast(int, keys.get("no_rope_layer_interval", 4))
    return [bool((number + 1) % every) if flags is None else bool(flags[number]) for number in range(layers)]


def _sliding_layers(design: FamilyDesign, keys: Mapping[str, object], layers: int) -> list[bool]:
    """Whether each layer has a window, where the model has one."""
    window, kinds = keys.get("sliding_window"), keys.get("layer_types")
    if design.reads_layer_types and kinds is not None:
        return [kind == SLIDING for kind in cast("list[str]", kinds)[:layers]]
    match design.windowed:
        case "always":
            slides = bool(keys.get("use_sliding_window", False)) if design.architecture == "Qwen3Moe" else True
            return [slides and window is not None] * layers
        case "above":
            first = cast(int, keys.get("max_window_layers", 28))
            slides = bool(keys.get("use_sliding_window", False)) and window is not None
            return [slides and number >= first for number in range(layers)]
        case "pattern":
            every = cast(int, keys.get("sliding_window_pattern", keys.get("_sliding_window_pattern")) or design.pattern)
            return [bool((number + 1) % every) for number in range(layers)]
        case "types":
            slides = bool(keys.get("use_sliding_window", False)) and window is not None
            return [slides and not turned for turned in _rotary_layers(keys, layers)]
        case _:
            return [False] * layers


def check_switches(config: Mapping[str, object], family: str, where: str, faults: ErrorCollector) -> None:
    """Add to `faults` each switch of a family at a value that it cannot have."""
    design, layers = FAMILY_DESIGNS[family], config.get("num_hidden_layers")
    count = layers if isinstance(layers, int) else 0
    for key, default in design.numbers.items():
        value = config.get(key, default)
        if not (value is None and "softcapping" in key) and not (is_number(value) and cast(float, value) > 0):
            faults.add(f"{where}: {key} must be a number > 0, got {value!r}")
    faults.extend(_size_faults(config, design, where))
    window = config.get("sliding_window")
    if design.windowed == "never":
        limit = config.get("max_position_embeddings") or design.positions
        if isinstance(window, int) and isinstance(limit, int) and window >= limit:
            window = None  # it hides nothing
        if window is not None:
            faults.add(f"{where}: sliding_window {window!r} is not read for model_type {family!r}; set it to null")
    elif window is not None and (not isinstance(window, int) or isinstance(window, bool) or window < 1):
        faults.add(f"{where}: sliding_window must be a whole number of at least 1, got {window!r}")
    faults.extend(_type_list_faults(config, design, count, where))
    for key in ("max_window_layers", "sliding_window_pattern", "_sliding_window_pattern", "no_rope_layer_interval"):
        value, least = config.get(key), 0 if key == "max_window_layers" else 1
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            faults.add(f"{where}: {key} must be a whole number of at least {least}, got {value!r}")
    gates = config.get("hidden_activation")
    if design.gelu and gates not in (None, "gelu_pytorch_tanh"):
        faults.add(f"{where}: hidden_activation {gates!r} is not supported; known: 'gelu_pytorch_tanh'")


def _size_faults(config: Mapping[str, object], design: FamilyDesign, where: str) -> Iterator[str]:
    """Sizes of latent and of linear attention that cannot be."""
    sizes = {key: config.get(key, default) for key, default in {**design.latent, **design.delta}.items()}
    for key, value in sizes.items():
        if value is None and key in ("q_lora_rank", "v_head_dim"):
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            yield f"{where}: {key} must be a whole number of at least 1, got {value!r}"
    heads, groups = sizes.get("linear_num_value_heads"), sizes.get("linear_num_key_heads")
    if isinstance(heads, int) and isinstance(groups, int) and groups > 0 and heads % groups:
        yield f"{where}: linear_num_value_heads ({heads}) must be a multiple of linear_num_key_heads ({groups})"


def _type_list_faults(config: Mapping[str, object], design: FamilyDesign, count: int, where: str) -> Sequence[str]:
    kinds, faults = config.get("layer_types"), list[str]()
    known = design.kinds
    listed = cast("list[object]", kinds) if isinstance(kinds, list) else []
    if kinds is not None and not (len(listed) == count and all(kind in known for kind in listed)):
        faults.append(
            f"{where}: layer_types {kinds!r} must be {' or '.join(known)} for each of the num_hidden_layers ({count}): "
            "other kinds of attention are not supported"
        )
    elif design.windowed == "above" and SLIDING in listed and not config.get("use_sliding_window", False):
        faults.append(f"{where}: layer_types has {SLIDING}, and use_sliding_window is not true; make them agree")
    elif SLIDING in listed and config.get("sliding_window") is None:
        faults.append(f"{where}: layer_types has {SLIDING}, and sliding_window is null; give the window")
    rotary = config.get("no_rope_layers")
    if design.windowed == "types" and rotary is not None:
        flags = cast("list[object]", rotary) if isinstance(rotary, list) else []
        if len(flags) != count or not all(one in (0, 1) for one in flags):
            faults.append(
                f"{where}: no_rope_layers must be 0 or 1 for each of the num_hidden_layers ({count}), got {rotary!r}"
            )
    return faults
