"""Writing of a language model as one GGUF file, which llama.cpp and what is built on it load.

Matrices, the tokenizer and the chat template. The file also holds the whole `tokenizer.json`, so that it is read back
without loss.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import tokenizers as hf
import torch
from numpy.typing import NDArray
from torch import Tensor

from hone.core.clock import counted
from hone.core.errors import DataError, ErrorCollector, one_line
from hone.models.language.config import Json, ModelConfig
from hone.models.language.decoder import Decoder
from hone.models.language.gguf_file import (
    ARCHITECTURES,
    LLAMA3,
    PAIRED,
    ROPE_FACTORS,
    GgufWeights,
    gguf_library,
    llama3_factors,
    stored_bytes,
    stored_pieces,
)
from hone.models.language.gguf_tokenizer import (
    BYTE,
    CONTROL,
    NORMAL,
    PROBE,
    SPLITS,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    split_rule,
)
from hone.models.language.tokenizers import Tokenizer
from hone.models.language.weight_names import CheckpointPiece

_BLOCK: Final = 32
"""Numbers of a block of Q8_0, which share a scale."""
_LARGEST_F16: Final = 65504.0
_NO_MERGE: Final = "\u2581 \u2581"
"""A merge that no text has: llama.cpp wants one at least."""


def write_gguf(model: Decoder, tokenizer: Tokenizer, file: Path, weights: GgufWeights, *, name: str) -> None:
    """Write a model with its tokenizer and chat template. Matrices are stored as `weights` (with rows that are no
    multiple of 32 long as F16 in place of Q8_0); the same model gives the same bytes.

    Raises DataError with every fault: settings that llama.cpp has no field for, numbers beyond F16; ResourceError
    without the package `gguf`.
    """
    library, config = gguf_library(), model.config
    if config.family not in ARCHITECTURES:
        raise DataError(
            f"models of the family {config.family!r} are not written as GGUF; known: {', '.join(ARCHITECTURES)}. fix: "
            "export the Hugging Face folder, and convert it with llama.cpp's own tools"
        )
    parameters = model.stored_tensors()
    tokens, stored = _gguf_tokens(tokenizer, config.vocab_size), dict[str, list[CheckpointPiece]]()
    for piece, stored_name, _ in stored_pieces(config):
        stored.setdefault(stored_name, []).append(piece)  # one piece, or those of all experts
    kinds = {name: _kind(parts, parameters, weights) for name, parts in stored.items()}
    faults = ErrorCollector(DataError)
    faults.extend(_config_faults(config))
    too_large = {
        name: f"tensor {name} holds numbers beyond {_LARGEST_F16:g}, the largest of F16; fix: write BF16"
        for name, kind in kinds.items()
        if kind != "F32" and kind != "BF16" and _largest(stored[name], parameters) > _LARGEST_F16
    }
    faults.extend(one_line(too_large, "tensors"))
    faults.raise_if_any()
    writer = library.GGUFWriter(file, ARCHITECTURES[config.family])
    writer.add_name(name)
    _add_config(writer, config)
    writer.add_file_type(library.LlamaFileType[f"MOSTLY_{weights}"])
    _add_tokenizer(writer, tokenizer, tokens)
    factors = None
    if config.rope.kind == "llama3":
        factors = llama3_factors(config.rope, config.head_dim)
        writer.add_tensor_info(ROPE_FACTORS, factors.shape, factors.dtype, factors.nbytes)
    for name, parts in stored.items():
        kind, shape = library.GGMLQuantizationType[kinds[name]], _shape(parts, parameters)
        writer.add_tensor_info(name, shape, np.dtype(np.float32), stored_bytes(kind, shape), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    if factors is not None:
        writer.write_tensor_data(factors)
    for name, parts in counted(stored.items(), "tensors written"):
        numbers = _numbers(parts, parameters, ARCHITECTURES[config.family] in PAIRED)
        writer.write_tensor_data(library.quantize(numbers, library.GGMLQuantizationType[kinds[name]]))
    writer.close()


# --------------------------------------------------------------------------------------------------------------- model


def _rows(piece: CheckpointPiece, parameters: Mapping[str, Tensor]) -> Tensor:
    return parameters[piece.parameter_name].detach()[piece.start : piece.start + piece.rows]


def _shape(parts: Sequence[CheckpointPiece], parameters: Mapping[str, Tensor]) -> tuple[int, ...]:
    shape = tuple(_rows(parts[0], parameters).shape)
    return (len(parts), *shape) if ".experts." in parts[0].checkpoint_name else shape


def _kind(parts: Sequence[CheckpointPiece], parameters: Mapping[str, Tensor], weights: GgufWeights) -> str:
    shape = _shape(parts, parameters)
    if len(shape) == 1 or parts[0].checkpoint_name.endswith(".gate.weight"):
        return "F32"
    return "F16" if weights == "Q8_0" and shape[-1] % _BLOCK else weights


def _largest(parts: Sequence[CheckpointPiece], parameters: Mapping[str, Tensor]) -> float:
    return max(float(_rows(piece, parameters).abs().max()) for piece in parts)


def _numbers(
    parts: Sequence[CheckpointPiece],
    parameters: Mapping[str, Tensor],
    paired: bool,  # noqa: FBT001
) -> NDArray[np.float32]:
    rows = [_rows(piece, parameters) if paired else piece.to_checkpoint(_rows(piece, parameters)) for piece in parts]
    whole = torch.stack(rows) if ".experts." in parts[0].checkpoint_name else rows[0]
    return np.ascontiguousarray(whole.float().cpu().numpy())


def _config_faults(config: ModelConfig) -> Iterator[str]:
    """Settings that a file has no field for."""
    rope = config.rope
    if any(width is not None for width in config.switches.windows):
        yield "attention windows are not written as GGUF: llama.cpp's architectures of these families have none"
    if rope.kind not in ("default", "linear", "llama3", "yarn"):
        yield f"rope {rope.kind} is not written as GGUF; known: default, linear, llama3, yarn"
    scaling = (rope.low_freq_factor, rope.high_freq_factor, rope.original_max_positions)
    if rope.kind == "llama3" and scaling != LLAMA3:
        yield f"rope llama3 with low and high factor and original context {scaling}; readers of GGUF assume {LLAMA3}"
    usual = (rope.beta_fast, rope.beta_slow, rope.truncate, rope.attention_factor, rope.mscale, rope.mscale_all_dim)
    if rope.kind == "yarn" and usual != (32.0, 1.0, True, None, None, None):
        yield "rope yarn with settings of its own besides factor and original context has no fields in GGUF"
    if config.experts is not None and config.experts.selection_bias:
        yield "biases of the routers' choices have no place in GGUF; fix: train without model.experts.balance.bias"
    if config.family == "olmoe" and (config.tie_embeddings or config.kv_heads != config.heads):
        yield (
            "llama.cpp's olmoe has an output projection of its own and as many key heads as heads; this one has "
            f"tie_word_embeddings {config.tie_embeddings}, {config.kv_heads} of {config.heads}"
        )
    if config.family == "qwen3_moe" and config.experts is not None and not config.experts.normalise_gates:
        yield "llama.cpp normalises the weights of a qwen3_moe's experts, and this model's are not (norm_topk_prob)"
    if config.family == "olmoe" and config.experts is not None and config.experts.normalise_gates:
        yield "llama.cpp does not normalise the weights of an olmoe's experts, and this model's are (norm_topk_prob)"


def _add_config(writer: Any, config: ModelConfig) -> None:  # noqa: ANN401 - of a package without types
    library, rope = gguf_library(), config.rope
    writer.add_block_count(config.layers)
    writer.add_context_length(config.max_positions)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(rope.theta)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    if config.experts is not None:
        writer.add_expert_count(config.experts.count)
        writer.add_expert_used_count(config.experts.per_token)
        writer.add_expert_feed_forward_length(config.experts.width)
    if rope.kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(library.RopeScalingType[rope.kind.upper()])
        writer.add_rope_scaling_factor(rope.factor)
    if rope.kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope.original_max_positions)


def _add_tokenizer(writer: Any, tokenizer: Tokenizer, tokens: "_GgufTokens") -> None:  # noqa: ANN401
    writer.add_tokenizer_model(tokens.model)
    writer.add_tokenizer_pre(tokens.pre)
    writer.add_token_list(tokens.tokens)
    writer.add_token_types(tokens.kinds)
    if tokens.scores is not None:
        writer.add_token_scores(tokens.scores)
    if tokens.merges is not None:
        writer.add_token_merges(tokens.merges or [_NO_MERGE])
    special = {name: tokenizer.backend.token_to_id(text) for name, text in tokenizer.special.items()}
    writer.add_eos_token_id(tokenizer.eos_id)
    for number, add in zip(tokenizer.eos_ids[1:3], (writer.add_eot_token_id, writer.add_eom_token_id), strict=False):
        add(number)
    for name, add in (
        ("bos_token", writer.add_bos_token_id),
        ("unk_token", writer.add_unk_token_id),
        ("pad_token", writer.add_pad_token_id),
    ):
        if special.get(name) is not None:
            add(special[name])
    writer.add_add_bos_token(tokens.adds_bos)
    writer.add_add_space_prefix(tokens.adds_space)
    if tokenizer.chat_template is not None:
        writer.add_chat_template(tokenizer.chat_template)
    whole = tokenizer.files.get("tokenizer.json", tokenizer.backend.to_str().encode()).decode()
    writer.add_string(gguf_library().Keys.Tokenizer.HF_JSON, whole)


# ----------------------------------------------------------------------------------------------------------- tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class _GgufTokens:
    """Fields of a header under `tokenizer.ggml.`."""

    model: str
    pre: str
    tokens: Sequence[str]
    kinds: Sequence[int]
    scores: Sequence[float] | None
    merges: Sequence[str] | None
    adds_space: bool
    adds_bos: bool


def _gguf_tokens(tokenizer: Tokenizer, count: int) -> _GgufTokens:
    """The tokenizer of a model with `count` rows of embeddings, for a GGUF file. Raises DataError where llama.cpp has
    nothing that encodes as it does."""
    state = cast("dict[str, dict[str, object]]", json.loads(tokenizer.backend.to_str()))
    model = state["model"]
    raw = cast("list[str | list[str]]", model.get("merges") or [])
    merges = [one if isinstance(one, str) else " ".join(one) for one in raw]
    byte_level = '"ByteLevel"' in json.dumps([state["pre_tokenizer"], state["decoder"]])
    letters = dict.fromkeys(model["vocab"]) if isinstance(model["vocab"], dict) else {}
    added = tokenizer.backend.get_added_tokens_decoder()
    of_bytes = model["type"] == "WordLevel" and all(
        len(one.encode()) == 1 for one in letters if one not in {extra.content for extra in added.values()}
    )
    if model["type"] == "BPE" and byte_level and _normalises(state) <= {"NFC"}:
        kind, pre = "gpt2", _rule_name(tokenizer.backend, merges)
    elif of_bytes:
        kind, pre = "gpt2", "gpt-2"
    elif model["type"] == "BPE" and model.get("byte_fallback") and _normalises(state) <= {"Prepend", "Replace"}:
        kind, pre = "llama", "default"
    else:
        raise DataError(
            f"llama.cpp has no tokenizer like this one ({model['type']}, normalizer {sorted(_normalises(state))}): it "
            "has byte-level BPE and SentencePiece's BPE. fix: serve the Hugging Face folder instead"
        )
    names = {number: token for token, number in tokenizer.backend.get_vocab(with_added_tokens=True).items()}
    if of_bytes:
        # As byte-level BPE spells the bytes of ASCII: printable ones as themselves, the others from U+0100 on.
        spelled = {chr(byte): chr(byte if 33 <= byte < 127 else 256 + byte - 94 * (byte >= 127)) for byte in range(128)}
        names = {number: token if number in added else spelled[token] for number, token in names.items()}
    tokens = [names.get(number, f"[PAD{number}]") for number in range(count)]
    unknown = tokenizer.unknown_id if kind == "llama" else None
    kinds = [
        UNUSED if number not in names
        else UNKNOWN if number == unknown
        else (CONTROL if added[number].special else USER_DEFINED) if number in added
        else BYTE if kind == "llama" and len(token) == 6 and token.startswith("<0x")
        else NORMAL
        for number, token in enumerate(tokens)
    ]  # fmt: skip
    first = tokenizer.backend.encode("a").ids[:1]
    bos = tokenizer.backend.token_to_id(tokenizer.special.get("bos_token", ""))
    return _GgufTokens(
        model=kind,
        pre=pre,
        tokens=tokens,
        kinds=kinds,
        scores=_scores(tokens, merges) if kind == "llama" else None,
        merges=merges if kind == "gpt2" else None,
        adds_space="Prepend" in _normalises(state),
        adds_bos=bos is not None and first == [bos],
    )


def _normalises(state: Mapping[str, Mapping[str, object]]) -> set[str]:
    """Names of the steps that change a text before it is split."""
    normalizer = state["normalizer"]
    steps = cast("Iterable[Json]", normalizer.get("normalizers", [normalizer]) if normalizer else ())
    return {str(one["type"]) for one in steps}


def _rule_name(backend: hf.Tokenizer, merges: Sequence[str]) -> str:
    """The name of the rule that splits texts as the tokenizer does. Raises DataError where none does."""
    if not merges:
        return "gpt-2"  # every byte is a token of its own, however a text is split
    own = backend.pre_tokenizer.pre_tokenize_str(PROBE)
    whole = bool(cast(hf.models.BPE, backend.model).ignore_merges)
    alike = [name for name in SPLITS if (rule := split_rule(name)) and rule[0].pre_tokenize_str(PROBE) == own]
    if not alike:
        raise DataError(
            "the tokenizer splits texts by a rule that llama.cpp has no name for; known: "
            f"{', '.join(SPLITS)}. fix: serve the Hugging Face folder instead"
        )
    return next((name for name in alike if SPLITS[name][1] == whole), alike[0])


def _scores(tokens: Sequence[str], merges: Sequence[str]) -> list[float]:
    """Scores by which SentencePiece merges in the order of `merges`."""
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(merges, start=1):
        ranks.setdefault(merge.replace(" ", ""), rank)
    return [-float(ranks.get(token, len(merges) + 1)) for token in tokens]
