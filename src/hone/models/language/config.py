"""The architecture of a decoder transformer, and its translation from and to a Hugging Face `config.json`.

The keys that every family has, and the unsupported ones that raise an error. What is a family's own stands in
families.py, and what a mixture of experts has in expert_config.py.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias, cast

from hone.core.errors import DataError, ErrorCollector
from hone.models.language.expert_config import (
    EXPERT_FAMILIES,
    SELECTION_BIAS,
    WRITTEN_KEYS,
    ExpertsConfig,
    expert_keys,
    experts_from_hf,
)
from hone.models.language.families import (
    FAMILIES,
    FAMILY_DESIGNS,
    FOREIGN,
    FOREIGN_DESIGN,
    FULL,
    SLIDING,
    DeltaSizes,
    FamilyDesign,
    LatentSizes,
    LayerSwitches,
    ModelFamily,
    check_switches,
    delta_sizes,
    foreign_sizes,
    latent_sizes,
    layer_switches,
)
from hone.models.language.packed_attention import AttentionLimits
from hone.models.language.rope import RopeConfig, is_number, rope_from_hf

# ---------------------------------------------------------------------------------------------------------- config keys


SIZES: Final = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
"""Keys that every config must have."""
_OPTIONAL_SIZES: Final = ("num_key_value_heads", "head_dim", "max_position_embeddings")
_ROPE: Final = ("rope_parameters", "rope_scaling", "rope_theta", "original_max_position_embeddings")
_READ: Final = frozenset((*SIZES, *_OPTIONAL_SIZES, *_ROPE, "model_type", "tie_word_embeddings"))
_WINDOW: Final = frozenset(("sliding_window", "use_sliding_window", "max_window_layers", "layer_types"))

_METADATA: Final = """
    architectures attn_implementation cache_implementation custom_generate dtype id2label initializer_range
    is_llama_config label2id language license
    max_sequence_length model_max_length model_name name_or_path num_labels problem_type seq_length
    task_specific_params tokenizer_class torch_dtype transformers.js_config transformers_version unsloth_fixed
    unsloth_version
"""
_TOKEN_IDS: Final = """
    bos_token_id decoder_start_token_id eos_token_id forced_bos_token_id forced_eos_token_id pad_token_id sep_token_id
    unk_token_id
"""
_OUTPUTS: Final = """
    output_attentions output_hidden_states output_logits output_scores return_dict return_dict_in_generate
    tie_last_hidden_states torchscript use_cache
"""
_EXECUTION: Final = "chunk_size_feed_forward pretraining_tp tf_legacy_loss use_bfloat16 use_flash_attn"
_TRAINING: Final = """
    attention_dropout classifier_dropout embd_pdrop finetuning_task gradient_checkpointing hidden_dropout
    neftune_noise_alpha resid_pdrop
"""
_SAMPLING: Final = """
    bad_words_ids begin_suppress_tokens diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size
    exponential_decay_length_penalty length_penalty max_length max_new_tokens min_length no_repeat_ngram_size
    num_beam_groups num_beams num_return_sequences remove_invalid_values repetition_penalty suppress_tokens temperature
    top_k top_p typical_p
"""
_WITHOUT_EFFECT: Final = frozenset(
    word for words in (_METADATA, _TOKEN_IDS, _OUTPUTS, _EXECUTION, _TRAINING, _SAMPLING) for word in words.split()
)
"""Keys that do not change the logits of a model that is not in training."""

_ONE: Final = (1, 1.0)
_OFF: Final[Mapping[str, Sequence[object]]] = {
    "hidden_act": ("silu",), "rms_norm_eps": (), "use_bidirectional_attention": (False,),
    "full_attn_mod": _ONE, "interpolate_factor": _ONE,
    "partial_rotary_factor": _ONE, "rotary_pct": _ONE, "rotary_percent": _ONE,
    "rope_interleaved": (False,), "rope_interleave": (False,), "use_mrope": (False,), "alibi": (False,),
    "is_causal": (True,),
    "attention_bias": (False,), "qkv_bias": (False,), "use_bias": (False,), "bias": (False,), "mlp_bias": (False,),
    "lm_head_bias": (False,), "use_qk_norm": (False,), "qk_norm": (False,), "qk_layernorm": (False,),
    "attn_logit_softcapping": (), "final_logit_softcapping": (), "query_pre_attn_scalar": (),
    "attention_multiplier": (), "attention_chunk_size": (), "attn_temperature_tuning": (False,),
    "embedding_multiplier": _ONE, "residual_multiplier": _ONE, "logits_scaling": _ONE, "logit_scale": _ONE,
    "scale_emb": _ONE,
    "use_parallel_residual": (False,), "is_encoder_decoder": (False,), "is_decoder": (False, True),
    "add_cross_attention": (False,), "tie_encoder_decoder": (False,),
    "pruned_heads": ({},), "per_layer_config": ({},), "quantization_config": (), "compression_config": (),
    "no_rope_layers": ([],), "num_kv_shared_layers": (0,),
    "num_experts": (0, False), "num_local_experts": (0, False), "n_routed_experts": (0, False), "clip_qkv": (),
}  # fmt: skip
"""Key -> the values at which it changes nothing; null always does."""
_OFF_IN_FAMILY: Final[Mapping[tuple[str, str], Sequence[object]]] = {
    ("qwen2", "attention_bias"): (False, True),  # not read: queries, keys and values always have biases
    ("qwen2", "qkv_bias"): (True,),
    ("qwen3", "use_qk_norm"): (True,),
    ("qwen3", "qk_norm"): (True,),
    ("qwen3_moe", "use_qk_norm"): (True,),
    ("qwen3_moe", "qk_norm"): (True,),
    ("olmoe", "use_qk_norm"): (True,),
    ("olmoe", "qk_norm"): (True,),
    ("youtu", "rope_interleave"): (True,),
    ("deepseek_v3", "rope_interleave"): (True,),
    ("qwen3_5_text", "attn_output_gate"): (True,),
    ("qwen3_5_text", "mamba_ssm_dtype"): ("float32",),
}
_NO_EXPERTS: Final = f"families with experts: {', '.join(EXPERT_FAMILIES)}; give one of them, or a dense model"
_HINTS: Final = {
    "quantization_config": "give the unquantised checkpoint",
    "compression_config": "give the unquantised checkpoint",
    "num_experts": _NO_EXPERTS,
    "num_local_experts": _NO_EXPERTS,
    "n_routed_experts": _NO_EXPERTS,
}


def _check_keys(config: Mapping[str, object], family: str, where: str, faults: ErrorCollector) -> None:
    """Add to `faults` each key that has the wrong type, changes the forward pass in a way that hone does not follow, or
    is unknown."""
    experts, design = expert_keys(family), FAMILY_DESIGNS.get(family, FAMILY_DESIGNS["llama"])
    flags = (*design.flags, "tie_word_embeddings", "use_sliding_window")
    flags += tuple(key for key in ("norm_topk_prob", SELECTION_BIAS) if key in experts)
    faults.extend(_type_faults(config, flags, design.eps_key, where))
    for key, value in config.items():
        if key in _READ or key in _WINDOW or key in flags or key in experts or key in design.keys:
            continue
        if value is None or key.startswith("_"):
            continue  # an underscore begins transformers' own notes: where a model came from, how it was run
        if key == "auto_map":
            # Code that came with a model; transformers took it over where its classes are named the same.
            classes = cast("dict[str, object]", value).values() if isinstance(value, dict) else [value]
            if not all(str(one).rpartition(".")[2].startswith(design.architecture) for one in classes):
                faults.add(
                    f"{where}: auto_map {json.dumps(value)} asks to run Python code that came with the model "
                    f"(trust_remote_code); hone never does. Convert the model to one of: {', '.join(FAMILIES)}"
                )
        else:
            off = _OFF_IN_FAMILY.get((family, key), _OFF.get(key))
            if off is None and key not in _WITHOUT_EFFECT:
                faults.add(
                    f"{where}: unknown key {key} {value!r}: hone cannot tell whether it changes the model's outputs; "
                    "remove it from the file if it does not"
                )
            elif off is not None and not any(_same(value, one) for one in off):
                faults.add(f"{where}: {key} {value!r} is not supported{_known(key, off)}")
    if family in FAMILY_DESIGNS:
        check_switches(config, family, where, faults)


def _type_faults(config: Mapping[str, object], flags: Sequence[str], eps_key: str, where: str) -> list[str]:
    sizes = [(key, config.get(key)) for key in SIZES]
    sizes += [(key, config[key]) for key in _OPTIONAL_SIZES if config.get(key) is not None]
    faults = [
        f"{where}: {key} must be a whole number of at least 1, got {value!r}"
        for key, value in sizes
        if not isinstance(value, int) or isinstance(value, bool) or value < 1
    ]
    faults += [
        f"{where}: {key} must be true or false, got {config[key]!r}"
        for key in flags
        if config.get(key) is not None and not isinstance(config[key], bool)
    ]
    eps = config.get(eps_key, 1e-6)
    if not is_number(eps) or cast(float, eps) < 0:
        faults.append(f"{where}: {eps_key} must be a number of at least 0, got {eps!r}")
    return faults


def _known(key: str, off: Sequence[object]) -> str:
    if key in _HINTS:
        return f"; {_HINTS[key]}"
    return f"; known: {', '.join(map(repr, off)) or 'null'}"


def _same(value: object, other: object) -> bool:
    """Equality of JSON values, in which true is not 1."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


# --------------------------------------------------------------------------------------------------------------- config


Json: TypeAlias = "dict[str, object]"

_WRITTEN: Final = (
    "architectures", "model_type", "dtype", "torch_dtype", "vocab_size", "hidden_size", "intermediate_size",
    "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act",
    "max_position_embeddings", "rope_parameters", "rope_scaling", "rope_theta", "tie_word_embeddings",
    "attention_bias", "mlp_bias", "auto_map", "rope_local_base_freq",
)  # fmt: skip
"""Keys that a saved `config.json` has from the fields; every other key is kept as it was read."""
_OF_LAYERS: Final = ("layer_types", "no_rope_layers")
"""Keys that list something of each layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Numbers that fix a decoder's shape. `kv_heads` and `head_dim` default to one per head, `hidden_size / heads`;
    with latent attention they are one, and the features of its cached key.

    Raises DataError, with every fault, when the numbers do not make a model.
    """

    family: ModelFamily | Literal["transformers"] = "qwen3"
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
    local_rope: RopeConfig | None = None
    """Rotary positions of layers with a window, in families where they have their own."""
    tie_embeddings: bool = True
    attention_bias: bool = False
    mlp_bias: bool = False
    experts: ExpertsConfig | None = None
    """The mixture of experts in place of each MLP; None: dense."""
    extra: Mapping[str, object] = field(default_factory=dict[str, object])
    """Further keys of a `config.json`, written back as they are: the family's switches, and what changes no output."""
    switches: LayerSwitches = field(init=False)
    """What the keys of `extra` switch."""
    latent: LatentSizes | None = field(init=False)
    """Sizes of latent attention; None: keys and values are heads."""
    delta: DeltaSizes | None = field(init=False)
    """Sizes of layers of linear attention; None: there are none."""
    left_out: str = field(default="", compare=False)
    """What of the checkpoint is not read, such as its vision tower; empty: nothing."""

    def __post_init__(self) -> None:
        faults = ErrorCollector(DataError)
        if self.family not in (*FAMILIES, FOREIGN):
            faults.add(f"model family {self.family!r} is not supported; known: {', '.join(FAMILIES)}")
        for name in ("vocab_size", "hidden_size", "intermediate_size", "layers", "heads", "max_positions"):
            if self._number(name) < 1:
                faults.add(f"model {name} must be at least 1, got {self._number(name)}")
        faults.raise_if_any()
        # A frozen dataclass derives its defaults through object.__setattr__.
        latent = latent_sizes(self.family, self.extra, head_width=self.hidden_size // self.heads)
        derived = {"latent": latent, "delta": delta_sizes(self.family, self.extra, layers=self.layers)}
        derived |= {} if latent is None else {"kv_heads": 1, "head_dim": latent.cached}
        for name, value in derived.items():
            object.__setattr__(self, name, value)
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
        faults.extend(self.rope.faults(self.rotary_dim))
        faults.raise_if_any()
        if self.design.local_theta is not None and self.local_rope is None:
            object.__setattr__(self, "local_rope", RopeConfig(theta=self.design.local_theta))
        switches = layer_switches(
            self.family, self.extra, layers=self.layers, hidden_size=self.hidden_size,
            query_dim=self.head_dim if latent is None else latent.query, max_positions=self.max_positions,
            score_factor=1.0 if latent is None else self.rope.latent_scale,
        )  # fmt: skip
        object.__setattr__(self, "switches", switches)

    def _add_expert_faults(self, faults: ErrorCollector) -> None:
        mixture = self.family in EXPERT_FAMILIES
        if mixture == (self.experts is None):
            fault = "needs experts" if mixture else "has no experts"
            faults.add(f"model family {self.family!r} {fault}; families with experts: {', '.join(EXPERT_FAMILIES)}")
        if self.experts is None:
            return
        self.experts.add_faults(faults)
        if not 0 <= self.experts.dense_layers < self.layers:
            faults.add(
                f"model experts.dense_layers {self.experts.dense_layers} (first_k_dense_replace) must be below the "
                f"{self.layers} layers (num_hidden_layers): a mixture has layers with experts"
            )
        own = replace(self.experts, count=1, per_token=1, width=1, normalise_gates=True, selection_bias=False)
        if self.family != "deepseek_v3" and own != ExpertsConfig(count=1, per_token=1, width=1):
            faults.add(f"model family {self.family!r} has no sigmoid, groups, factor, shared experts or dense layers")
        kind = self.experts.sigmoid and self.experts.selection_bias and self.experts.shared > 0
        if self.family == "deepseek_v3" and not kind:
            faults.add("model family 'deepseek_v3' has sigmoid, selection_bias and at least one of experts.shared")
        if self.family not in ("qwen3_moe", "deepseek_v3") and self.experts.width != self.intermediate_size:
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
    def design(self) -> FamilyDesign:
        """What the family fixes."""
        return FAMILY_DESIGNS.get(self.family, FOREIGN_DESIGN)

    @property
    def by_texts(self) -> bool:
        """True if transformers computes the model, each text whole, without keys and values of the engine."""
        return self.family == FOREIGN

    @property
    def qk_norm(self) -> bool:
        """True if queries and keys are normalised (Qwen3, OLMo)."""
        return self.design.qk_norm != "none" or self.extra.get("use_qk_norm") is True

    @property
    def qk_norm_whole(self) -> bool:
        """True if that norm is over all heads together (OLMo) and not head by head."""
        return self.design.qk_norm == "whole"

    @property
    def mlp_width(self) -> int:
        """Inner features of a layer's MLP, or of each of its experts."""
        return self.intermediate_size if self.experts is None else self.experts.width

    @property
    def dense_layers(self) -> int:
        """Layers before the first one with experts; all of a dense model."""
        return self.layers if self.experts is None else self.experts.dense_layers

    @property
    def routed_layers(self) -> int:
        """Layers with experts."""
        return self.layers - self.dense_layers

    def experts_of(self, layer: int) -> ExpertsConfig | None:
        """The mixture of a layer; None: it has an MLP."""
        return self.experts if layer >= self.dense_layers else None

    @property
    def rotary_dim(self) -> int:
        """Features of a query and a key that rotary positions are for, of which a part may not turn."""
        return self.head_dim if self.latent is None else self.latent.turned

    def is_linear(self, layer: int) -> bool:
        """Whether a layer is of linear attention, which has a state in the place of keys and values."""
        return self.delta is not None and self.delta.layers[layer]

    def cached_layers_before(self, layer: int) -> int:
        """Layers before a layer that have keys and values."""
        return sum(not self.is_linear(number) for number in range(layer))

    @property
    def cached_layers(self) -> int:
        """Layers that have keys and values."""
        return self.cached_layers_before(self.layers)

    @property
    def state_numbers(self) -> int:
        """Numbers of the states that a text leaves behind in the layers of linear attention, and how many of its tokens
        they have seen; 0: it has no such layers."""
        return 0 if self.delta is None else 1 + sum(self.delta.layers) * self.delta.kept

    @property
    def qkv_bias(self) -> bool:
        return self.design.qkv_bias or self.attention_bias

    @property
    def output_bias(self) -> bool:
        """True if the attention's output projection has a bias; Qwen2 and GLM have biases on q, k and v only."""
        return self.attention_bias and self.design.output_bias

    @property
    def ropes(self) -> tuple[RopeConfig | None, ...]:
        """Tables of rotary positions; None: no rotation."""
        known = {"main": self.rope, "local": self.local_rope, "none": None}
        return tuple(known[name] for name in dict.fromkeys(self.switches.turns))

    @property
    def rope_tables(self) -> tuple[int, ...]:
        """Each layer's table among `ropes`."""
        order = list(dict.fromkeys(self.switches.turns))
        return tuple(order.index(name) for name in self.switches.turns)

    @property
    def limits(self) -> AttentionLimits:
        """What attention sees, by layer."""
        return AttentionLimits(windows=self.switches.windows, score_cap=self.switches.score_cap)

    @property
    def score_cap(self) -> float | None:
        """Bound c of the scores s of attention, c tanh(s / c); None: none."""
        return self.switches.score_cap

    def window(self, layer: int) -> int | None:
        """A token of this layer sees itself and so many tokens before it, less one; None: all."""
        return self.switches.windows[layer]

    @property
    def uncompiled(self) -> str | None:
        """What of this model the compiled runner does not compute; None: it computes all of it."""
        if self.by_texts:
            return f"model_type {self.extra.get('model_type')!r}, whose module is transformers' own"
        if self.latent is not None:
            return f"{self.family}'s latent attention"
        if self.delta is not None:
            return f"{self.family}'s linear attention"
        layer_norm = self.qk_norm and self.design.norm == "layer"
        return f"{self.family}'s norms of queries and keys, a weight for each head" if layer_norm else None

    @property
    def compiled_switches(self) -> dict[str, float]:
        """Switches by the names that the compiled runner has for them (engine/native/source/abi.h)."""
        switches, design = self.switches, self.design
        return {
            "centred": int(design.norm == "layer"),
            "parallel": int(design.parallel),
            "gelu": int(design.gelu),
            "query_original": self.rope.original_max_positions,
            "query_beta": self.rope.query_beta,
            "embedding_factor": switches.embedding_factor,
            "residual_factor": switches.residual_factor,
            "score_cap": switches.score_cap or 0.0,
            "logit_cap": switches.logit_cap or 0.0,
        }

    @property
    def by_length(self) -> bool:
        """True if a token's rotation depends on the length of its whole text."""
        return self.rope.by_length

    def to_hf(self, head: Literal["CausalLM", "SequenceClassification", "TokenClassification"] = "CausalLM") -> Json:
        """The `config.json` of transformers 5, without `dtype`, which depends on the weights."""
        config: Json = dict(self.extra)
        if self.by_texts:
            return config
        config.update(
            architectures=[f"{self.design.architecture}For{head}"],
            model_type=self.family,
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            max_position_embeddings=self.max_positions,
            rope_parameters=self.rope.to_hf(),
            tie_word_embeddings=self.tie_embeddings,
        )
        config[self.design.eps_key] = self.norm_eps
        if self.latent is not None:
            config |= {"num_key_value_heads": self.heads, "head_dim": self.latent.turned}
        if self.local_rope is not None:
            config["rope_parameters"] = {FULL: self.rope.to_hf(), SLIDING: self.local_rope.to_hf()}
        if self.design.rope.fraction is not None:
            config["partial_rotary_factor"] = self.rope.fraction
        if self.rope.kind == "longrope":  # read before that in rope_parameters
            config["original_max_position_embeddings"] = self.rope.original_max_positions
        config |= {"hidden_activation": "gelu_pytorch_tanh"} if self.design.gelu else {"hidden_act": "silu"}
        for token in ("bos_token_id", "eos_token_id"):
            config.setdefault(token, None)  # absent would mean 1 and 2 for some families
        for flag, value in (("attention_bias", self.attention_bias), ("mlp_bias", self.mlp_bias)):
            if flag in self.design.flags:
                config[flag] = value
        if self.design.window is not None:
            config.setdefault("sliding_window", None)  # absent would mean a window
        listed = {key: cast("list[object]", config[key]) for key in _OF_LAYERS if isinstance(config.get(key), list)}
        config |= {key: values[: self.layers] for key, values in listed.items()}
        return config | ({} if self.experts is None else self.experts.to_hf(self.family))


_TEXT_PARTS: Final = {"qwen3_5": "qwen3_5_text"}
"""Models of text and pictures -> the family of their `text_config`, which is all that is read of them."""


def model_config_from_hf(config: Mapping[str, object], *, where: str = "config.json") -> ModelConfig:
    """Read a Hugging Face `config.json`, in the spelling of transformers 4 or 5.

    Raises DataError with every fault at once, each naming the key and its value: a key is read, known not to change the
    model's outputs, or refused.
    """
    faults = ErrorCollector(DataError)
    part = config.get("text_config")
    if (family := _TEXT_PARTS.get(str(config.get("model_type")))) and isinstance(part, dict):
        beside = {key: config[key] for key in ("tie_word_embeddings", "quantization_config") if key in config}
        text = {**cast(Json, part), **beside, "model_type": family}
        inner = model_config_from_hf(text, where=f"{where}: text_config")
        return replace(inner, left_out=f"the vision tower of a {config['model_type']}, and every image")
    family = str(config.get("model_type"))
    design = FAMILY_DESIGNS.get(family, FAMILY_DESIGNS["llama"])
    if family not in FAMILY_DESIGNS and (sizes := foreign_sizes(config, where=where)) is not None:
        if config.get("quantization_config") is not None:
            raise DataError(f"{where}: quantization_config is not supported; {_HINTS['quantization_config']}")
        return ModelConfig(family=FOREIGN, extra=dict(config), tie_embeddings=False, **sizes)  # type: ignore[arg-type]
    if family not in FAMILY_DESIGNS:
        faults.add(f"{where}: model_type {config.get('model_type')!r} is not supported; known: {', '.join(FAMILIES)}")
    if design.window is not None and "sliding_window" not in config:
        config = {**config, "sliding_window": design.window}
    _check_keys(config, family, where, faults)
    ropes = _ropes(config, design, where, faults)
    experts = experts_from_hf(config, family, where=where, faults=faults)
    faults.raise_if_any()
    try:
        return _model_config(config, design, ropes, experts)
    except DataError as error:
        raise DataError(*(f"{where}: {message}" for message in error.messages)) from None


def _ropes(
    config: Mapping[str, object], design: FamilyDesign, where: str, faults: ErrorCollector
) -> tuple[RopeConfig, RopeConfig | None]:
    """Rotary positions, and those of layers with a window where they have their own."""
    if design.local_theta is None:
        return rope_from_hf(config, where=where, faults=faults, rules=design.rope), None
    both = config.get("rope_parameters")
    parts = cast("dict[str, object]", both) if isinstance(both, dict) else {}
    if set(parts) - {FULL, SLIDING}:
        faults.add(f"{where}: rope_parameters must have {FULL} and {SLIDING}, got {', '.join(parts)}")
        return RopeConfig(), None
    plain = {key: value for key, value in config.items() if key != "rope_parameters"}
    local = {key: value for key, value in plain.items() if key not in ("rope_scaling", "rope_theta")}
    local |= {"rope_theta": config.get("rope_local_base_freq", design.local_theta)}
    read = [
        rope_from_hf(beside | part, where=where, faults=faults, rules=design.rope)
        for beside, part in (
            (plain, {"rope_parameters": parts.get(FULL)}),
            (local, {"rope_parameters": parts.get(SLIDING)}),
        )
    ]
    return read[0], read[1]


def _model_config(
    config: Mapping[str, object],
    design: FamilyDesign,
    ropes: tuple[RopeConfig, RopeConfig | None],
    experts: ExpertsConfig | None,
) -> ModelConfig:
    family, heads = str(config["model_type"]), cast(int, config["num_attention_heads"])
    written = {*_WRITTEN, design.eps_key, *(WRITTEN_KEYS if experts is not None else ())} - {*design.ignored}
    written |= {"hidden_activation"} if design.gelu else set()
    written |= {"partial_rotary_factor"} if design.rope.fraction is not None else set()
    default_dim = design.head_dim or cast(int, config["hidden_size"]) // heads

    def flag(key: str, default: bool) -> bool:  # noqa: FBT001 - of one line each
        return key in design.flags and bool(config.get(key, default))

    return ModelConfig(
        family=cast(ModelFamily, family),
        vocab_size=cast(int, config["vocab_size"]),
        hidden_size=cast(int, config["hidden_size"]),
        intermediate_size=cast(int, config["intermediate_size"]),
        layers=cast(int, config["num_hidden_layers"]),
        heads=heads,
        kv_heads=cast(int, config.get("num_key_value_heads", design.kv_heads or heads) or heads),
        head_dim=cast(int, config.get("head_dim") or default_dim),
        max_positions=cast(int, config.get("max_position_embeddings") or design.positions),
        norm_eps=float(cast(float, config.get(design.eps_key, design.norm_eps))),
        rope=ropes[0],
        local_rope=ropes[1],
        tie_embeddings=bool(config.get("tie_word_embeddings", design.tied)),
        attention_bias=flag("attention_bias", design.attention_bias),
        mlp_bias=flag("mlp_bias", False),
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
