"""Keys of a Hugging Face `config.json`: those that hone reads, those without an effect on the forward pass, and those
that would change it. Every other key is refused, since nobody can tell what it does.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, cast

from hone.core.errors import ErrorCollector
from hone.models.language.expert_config import EXPERT_FAMILIES, expert_flags, expert_keys
from hone.models.language.rope import is_number

SIZES: Final = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
"""Keys that every config must have."""
DEFAULT_POSITIONS: Final = {
    "llama": 2048, "mistral": 131072, "qwen2": 32768, "qwen3": 32768,
    "qwen3_moe": 32768, "mixtral": 131072, "olmoe": 4096,
}  # fmt: skip
DEFAULT_WINDOW: Final = 4096
"""Window of a mistral without `sliding_window`."""

_OPTIONAL_SIZES: Final = ("num_key_value_heads", "head_dim", "max_position_embeddings")
_ROPE: Final = ("rope_parameters", "rope_scaling", "rope_theta", "original_max_position_embeddings")
_READ: Final = frozenset((*SIZES, *_OPTIONAL_SIZES, *_ROPE, "model_type", "rms_norm_eps", "tie_word_embeddings"))
_WINDOW: Final = frozenset(("sliding_window", "use_sliding_window", "max_window_layers", "layer_types"))
_FLAGS: Final[Mapping[str, tuple[str, ...]]] = {
    "llama": ("attention_bias", "mlp_bias", "tie_word_embeddings"),
    "mistral": ("tie_word_embeddings",),
    "qwen2": ("tie_word_embeddings",),
    "qwen3": ("attention_bias", "tie_word_embeddings"),
    "qwen3_moe": ("attention_bias", "tie_word_embeddings"),
    "mixtral": ("tie_word_embeddings",),
    "olmoe": ("attention_bias", "tie_word_embeddings"),
}
"""Family -> the keys that are true or false and that hone follows."""

_METADATA: Final = """
    _attn_implementation _attn_implementation_autoset _commit_hash _flash_attn_2_enabled _name_or_path architectures
    attn_implementation custom_generate dtype id2label initializer_range is_llama_config label2id language license
    max_sequence_length model_max_length model_name name_or_path num_labels problem_type seq_length task_specific_params
    tokenizer_class torch_dtype transformers.js_config transformers_version unsloth_fixed unsloth_version
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
    "hidden_act": ("silu",),
    "partial_rotary_factor": _ONE, "rotary_pct": _ONE, "rotary_percent": _ONE,
    "rope_interleaved": (False,), "use_mrope": (False,), "alibi": (False,), "is_causal": (True,),
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
}
_NO_EXPERTS: Final = f"families with experts: {', '.join(EXPERT_FAMILIES)}; give one of them, or a dense model"
_HINTS: Final = {
    "quantization_config": "give the unquantised checkpoint",
    "compression_config": "give the unquantised checkpoint",
    "num_experts": _NO_EXPERTS,
    "num_local_experts": _NO_EXPERTS,
    "n_routed_experts": _NO_EXPERTS,
}


def check_keys(config: Mapping[str, object], family: str, where: str, faults: ErrorCollector) -> None:
    """Add to `faults` each key that has the wrong type, changes the forward pass in a way that hone does not follow, or
    is unknown."""
    flags = (*_FLAGS.get(family, ()), *expert_flags(family))
    experts = expert_keys(family)
    faults.extend(_type_faults(config, flags, where))
    for key, value in config.items():
        if value is None or key in _READ or key in _WINDOW or key in flags or key in experts:
            continue
        if key == "auto_map":
            faults.add(_code_fault(value, where))
        else:
            off = _OFF_IN_FAMILY.get((family, key), _OFF.get(key))
            if off is None and key not in _WITHOUT_EFFECT:
                faults.add(
                    f"{where}: unknown key {key} {value!r}: hone cannot tell whether it changes the model's outputs; "
                    "remove it from the file if it does not"
                )
            elif off is not None and not any(_same(value, one) for one in off):
                faults.add(f"{where}: {key} {value!r} is not supported{_known(key, off)}")
    faults.extend(f"{where}: {fault}" for fault in _window_faults(config, family))


def _type_faults(config: Mapping[str, object], flags: Sequence[str], where: str) -> list[str]:
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
    eps = config.get("rms_norm_eps", 1e-6)
    if not is_number(eps) or cast(float, eps) < 0:
        faults.append(f"{where}: rms_norm_eps must be a number of at least 0, got {eps!r}")
    return faults


def _code_fault(value: object, where: str) -> str:
    return (
        f"{where}: auto_map {json.dumps(value)} asks to run Python code that came with the model (trust_remote_code); "
        f"hone never does. Convert the model to one of: {', '.join(_FLAGS)}"
    )


def _known(key: str, off: Sequence[object]) -> str:
    if key in _HINTS:
        return f"; {_HINTS[key]}"
    return f"; known: {', '.join(map(repr, off)) or 'null'}"


def _same(value: object, other: object) -> bool:
    """Equality of JSON values, in which true is not 1."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _window_faults(config: Mapping[str, object], family: str) -> Iterator[str]:
    """The settings that enable a sliding window."""
    layers, kinds = config.get("num_hidden_layers"), config.get("layer_types")
    if kinds is not None and kinds != ["full_attention"] * (layers if isinstance(layers, int) else 0):
        yield (
            f"layer_types {kinds!r} must be full_attention for each of the num_hidden_layers ({layers!r}): other "
            "kinds of attention are not supported"
        )
    if family == "qwen3_moe" and not config.get("use_sliding_window", False):
        return
    unlimited = family in ("llama", "mixtral", "olmoe")
    window = config.get("sliding_window", None if unlimited else DEFAULT_WINDOW)
    limit = config.get("max_position_embeddings") or DEFAULT_POSITIONS.get(family, 2048)
    if window is None or (isinstance(window, int) and isinstance(limit, int) and window >= limit):
        return
    said = f"sliding_window {window!r} of {limit} positions"
    if family in ("qwen2", "qwen3"):
        first = config.get("max_window_layers", 28)
        reached = not isinstance(layers, int) or not isinstance(first, int) or layers > first
        if not config.get("use_sliding_window", False) or not reached or kinds is not None:
            return
        said = f"use_sliding_window with sliding_window {window!r}"
    yield (
        f"{said}: sliding-window attention is active and not supported; it can be switched off (sliding_window: null) "
        "where every text is shorter than the window"
    )
