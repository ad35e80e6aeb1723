"""A decoder transformer for Llama, Mistral, Qwen2 and Qwen3: RMSNorm, rotary positions, grouped-query attention.

The layers' arithmetic on rows of tokens. Key storage and masking are in a `LayerAttention`: packed rows have theirs
(packed_attention.py), a generation engine brings its cache.

Parameters are fused (`qkv`, `gate_up`) and query and key features are kept in interleaved pairs, so that a rotation is
one complex product; hf_checkpoint.py translates both, exactly, to and from the names and order of Hugging Face.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from hone.core.errors import DataError
from hone.core.ragged import Ints
from hone.models.language.batch_invariant import (
    BatchInvariantAttention,
    BatchInvariantLinear,
    BatchInvariantPackedAttention,
    batch_invariant_logits,
    pad_to_tile,
)
from hone.models.language.config import ModelConfig
from hone.models.language.fused_ops import apply_rotary, gated_silu, mixed_linear, rms_norm, tiled_linear
from hone.models.language.packed_attention import LayerAttention, PackedAttention
from hone.models.language.rotary import rope_frequencies
from hone.models.language.token_logprobs import (
    LogprobQuery,
    SamplingMask,
    TokenLogprobs,
    TopKTokens,
    at_least_float32,
    query_logprobs,
    top_k_tokens,
)
from hone.models.native.attention import KernelTexts, NativeAttention
from hone.models.native.layers import DTYPE_CODES, native_add_norm, native_gated_silu
from hone.models.native.library import available_kernels, why_unavailable
from hone.models.native.products import uses_amx_tiles
from hone.models.packing import PackedBatch

DTYPES: Final = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
LinearFn: TypeAlias = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""`(x [N, in], weight [out, in], bias [out] | None) -> [N, out]`."""
Exactness = Literal["parity", "bitwise"]


@dataclass(frozen=True, slots=True)
class _ForwardArithmetic:
    linear: LinearFn
    dtype: torch.dtype
    """Dtype between the additions to the residual stream, which keeps the weights' dtype."""
    position_invariant: bool
    """Whether an element's bits are independent of its place in a tensor."""


def torch_dtype(name: str) -> torch.dtype:
    """Raises DataError for a name that hone does not compute in."""
    if name not in DTYPES:
        raise DataError(f"dtype {name!r} is not supported; known: {', '.join(DTYPES)}")
    return DTYPES[name]


class LinearProjection(nn.Module):
    """A weight `[out, in]` with an optional bias; zero until `init` or `hf_checkpoint` fills it."""

    def __init__(self, features_in: int, features_out: int, *, bias: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(features_out, features_in, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(features_out, dtype=dtype)) if bias else None


class RmsNorm(nn.Module):
    """`x / sqrt(mean(x^2) + eps) * weight`, computed in float32 at least (Zhang and Sennrich, 2019)."""

    def __init__(self, features: int, *, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features, dtype=dtype))
        self.eps = eps

    def forward(self, x: Tensor, kind: torch.dtype | None = None) -> Tensor:
        return rms_norm(x, self.weight, self.eps, kind)


class DecoderLayer(nn.Module):
    """Pre-norm attention and gated MLP, each added to the stream."""

    def __init__(self, config: ModelConfig, number: int, dtype: torch.dtype) -> None:
        super().__init__()
        c, width = config, config.heads * config.head_dim
        self.number, self.head_dim = number, c.head_dim
        self.heads, self.kv_heads = c.heads, c.kv_heads
        self.attention_norm = RmsNorm(c.hidden_size, eps=c.norm_eps, dtype=dtype)
        self.qkv = LinearProjection(c.hidden_size, width + 2 * c.kv_heads * c.head_dim, bias=c.qkv_bias, dtype=dtype)
        self.q_norm = RmsNorm(c.head_dim, eps=c.norm_eps, dtype=dtype) if c.qk_norm else None
        self.k_norm = RmsNorm(c.head_dim, eps=c.norm_eps, dtype=dtype) if c.qk_norm else None
        self.out = LinearProjection(width, c.hidden_size, bias=c.output_bias, dtype=dtype)
        self.mlp_norm = RmsNorm(c.hidden_size, eps=c.norm_eps, dtype=dtype)
        self.gate_up = LinearProjection(c.hidden_size, 2 * c.intermediate_size, bias=c.mlp_bias, dtype=dtype)
        self.down = LinearProjection(c.intermediate_size, c.hidden_size, bias=c.mlp_bias, dtype=dtype)

    def forward(
        self, x: Tensor, turns: Tensor, attend: LayerAttention, by: _ForwardArithmetic,
        halves: "CompiledLayerHalves | None" = None
    ) -> Tensor:  # fmt: skip
        enter, leave = (
            (DecoderLayer.project_qkv, DecoderLayer.add_attention_and_mlp)
            if halves is None
            else (halves.project_qkv, halves.add_attention_and_mlp)
        )
        query, key, value = enter(self, x, by)
        mixed = attend(self.number, apply_rotary(query, turns), apply_rotary(key, turns), value)
        return leave(self, x, mixed, by)

    def project_qkv(self, x: Tensor, by: _ForwardArithmetic) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, not turned yet."""
        qkv = by.linear(self.attention_norm(x, by.dtype), self.qkv.weight, self.qkv.bias).view(
            len(x), -1, self.head_dim
        )
        query, key, value = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        return query, key, value

    def add_attention_and_mlp(self, x: Tensor, mixed: Tensor, by: _ForwardArithmetic) -> Tensor:
        """The residual stream, plus the attention output `mixed`, plus the MLP."""
        linear = by.linear
        x = x + linear(mixed, self.out.weight, self.out.bias)
        gate_up = linear(self.mlp_norm(x, by.dtype), self.gate_up.weight, self.gate_up.bias)
        return x + linear(gated_silu(gate_up, steady=by.position_invariant), self.down.weight, self.down.bias)

    def forward_native(
        self, x: Tensor, delta: Tensor | None, attend: NativeAttention, by: _ForwardArithmetic
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """`forward` by compiled kernels. `delta` is still to be added to the stream; so is the second result."""
        linear, eps = by.linear, self.attention_norm.eps
        x, normed = native_add_norm(x, delta, self.attention_norm.weight, eps, by.dtype)
        qkv = linear(normed, self.qkv.weight, self.qkv.bias)
        q_norm, k_norm = (None if norm is None else norm.weight for norm in (self.q_norm, self.k_norm))
        mixed = attend(qkv, q_norm, k_norm, eps)
        x, normed = native_add_norm(
            x, linear(mixed, self.out.weight, self.out.bias), self.mlp_norm.weight, eps, by.dtype
        )
        gate_up = linear(normed, self.gate_up.weight, self.gate_up.bias)
        return x, linear(native_gated_silu(gate_up), self.down.weight, self.down.bias)


class CompiledLayerHalves:
    """The parts of a layer before and after attention, compiled by torch once for layers of one shape.

    The first run of each takes seconds, or minutes on a GPU; the number of tokens may change from run to run.
    """

    def __init__(self) -> None:
        self.project_qkv = torch.compile(DecoderLayer.project_qkv, dynamic=True, fullgraph=True)
        self.add_attention_and_mlp = torch.compile(DecoderLayer.add_attention_and_mlp, dynamic=True, fullgraph=True)


class Decoder(nn.Module):
    """A causal language model over packed rows. Fill it by `new_model` or `load_model`; it starts as zeros."""

    def __init__(self, config: ModelConfig, *, dtype: str = "float32", checkpoint_activations: bool = False) -> None:
        super().__init__()
        kind = torch_dtype(dtype)
        self.compute = kind
        """Dtype of the matrix products in `hidden`; see `set_compute_dtype`."""
        self.exactness: Exactness = "parity"
        """Whether `hidden` and `outlook` give the bits of an engine that runs this model; see `compute_exactly`."""
        self.rows = BatchInvariantLinear()
        """Linear layers for such an engine."""
        self.config = config
        self.checkpoint_activations = checkpoint_activations
        self.embedding = LinearProjection(config.hidden_size, config.vocab_size, bias=False, dtype=kind)
        self.layers = nn.ModuleList(DecoderLayer(config, number, kind) for number in range(config.layers))
        self.norm = RmsNorm(config.hidden_size, eps=config.norm_eps, dtype=kind)
        self.head = (
            None
            if config.tie_embeddings
            else LinearProjection(config.hidden_size, config.vocab_size, bias=False, dtype=kind)
        )
        self.frequencies = nn.Buffer(rope_frequencies(config.rope, config.head_dim), persistent=False)

    @property
    def output_weight(self) -> Tensor:
        """`[vocab_size, hidden_size]`; the embedding's own when they are tied."""
        return self.embedding.weight if self.head is None else self.head.weight

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""
        return self.embedding.weight.dtype

    @property
    def is_mixed_precision(self) -> bool:
        """True if `hidden` computes products in another dtype than the weights'."""
        return self.compute != self.dtype

    def set_compute_dtype(self, dtype: str) -> None:
        """Compute the products of `hidden` in the weights' dtype, or in bfloat16: mixed precision for float32 weights.

        `run` with a `linear` of the caller computes as that function does. Raises DataError for any other dtype.
        """
        kind = torch_dtype(dtype)
        if kind not in {self.dtype, torch.bfloat16} or self.dtype == torch.float64 != kind:
            raise DataError(f"{str(self.dtype).removeprefix('torch.')} weights cannot be computed in {dtype}")
        self.compute = kind

    def use_bitwise_arithmetic(self) -> None:
        """Make `hidden` and `token_logprobs` bit-identical to a torch engine over this model, in any batch; gradients
        are those of the usual arithmetic. Raises DataError where that is not float32 on a CPU.
        """
        result = f"{str(self.compute).removeprefix('torch.')} on {self.device.type}"
        if result != "float32 on cpu" or self.dtype != torch.float32:
            raise DataError(f"log-probabilities that are equal to the bit need float32 on a CPU, not {result}")
        self.exactness = "bitwise"

    def run(
        self,
        tokens: Tensor,
        positions: Tensor,
        attend: LayerAttention,
        linear: LinearFn = functional.linear,
        kind: torch.dtype | None = None,
        halves: CompiledLayerHalves | None = None,
    ) -> Tensor:
        """The stream after the last norm, `[T, hidden_size]`, for `tokens` `[T]` at `positions` `[T]`.

        `halves`: layers as torch's compiler writes them; theirs is a `linear` that it can read.
        """
        x = functional.embedding(tokens, self.embedding.weight)
        turns = self._rotations(positions)
        by = _ForwardArithmetic(linear, kind or self.dtype, self.exactness == "bitwise")
        for layer in self.layers:
            if self.checkpoint_activations and torch.is_grad_enabled():
                x = checkpoint(layer, x, turns, attend, by, use_reentrant=False, preserve_rng_state=False)
            else:
                x = layer(x, turns, attend, by, halves)
        return self.norm(x)

    def compiled_run(self) -> Callable[[Tensor, Tensor, LayerAttention, LinearFn], Tensor]:
        """`run`, its layers as torch's compiler writes them."""
        return partial(self.run, halves=CompiledLayerHalves())

    def hidden(self, packed: PackedBatch) -> Tensor:
        """`[T, hidden_size]`: state t depends on tokens up to t of its row (and branch), and predicts the next."""
        c = self.config
        if self.exactness == "bitwise":
            fixed = BatchInvariantPackedAttention(
                packed, heads=c.heads, kv_heads=c.kv_heads, head_dim=c.head_dim, dtype=self.compute
            )  # fmt: skip
            tokens, positions = pad_to_tile(packed.tokens), pad_to_tile(packed.positions)
            return self.run(tokens, positions, fixed, self.rows)[: len(packed.tokens)]
        linear = self._linear()
        if (texts := self._kernel_texts(packed)) is not None:
            return self._forward_native(
                packed, texts, _ForwardArithmetic(linear, self.compute, position_invariant=False)
            )
        attend = PackedAttention(
            packed,
            heads=c.heads,
            kv_heads=c.kv_heads,
            head_dim=c.head_dim,
            dtype=self.compute,
            fused=self.device.type == "cuda",
        )
        return self.run(packed.tokens, packed.positions, attend, linear, self.compute)

    def _linear(self) -> LinearFn:
        if self.is_mixed_precision:
            return mixed_linear
        tiled = self.dtype == torch.float32 and self.device.type == "cpu" and uses_amx_tiles()
        return tiled_linear if tiled else functional.linear

    def _kernel_texts(self, packed: PackedBatch) -> KernelTexts | None:
        """None where compiled kernels cannot be used: another device or dtype, no compiler, unsupported rows."""
        return KernelTexts.from_packed(packed) if self._fits_kernels() and available_kernels() is not None else None

    def _fits_kernels(self) -> bool:
        usual = self.exactness == "parity" and self.device.type == "cpu"
        return usual and self.dtype in DTYPE_CODES and self.compute in DTYPE_CODES

    def notes(self) -> list[str]:
        """Notes for the user of a training run. The first call may compile the kernels (seconds)."""
        reason = why_unavailable() if self._fits_kernels() else None
        return [] if reason is None else [f"training uses torch, not the compiled kernels, which are faster: {reason}"]

    def _forward_native(self, packed: PackedBatch, texts: KernelTexts, by: _ForwardArithmetic) -> Tensor:
        c = self.config
        turns = torch.view_as_real(self._rotations(packed.positions)[:, 0]).contiguous()
        attend = NativeAttention(texts=texts, turns=turns, heads=c.heads, kv_heads=c.kv_heads, head_dim=c.head_dim)
        x, delta = functional.embedding(packed.tokens, self.embedding.weight), None
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            if self.checkpoint_activations and torch.is_grad_enabled():
                x, delta = checkpoint(
                    layer.forward_native, x, delta, attend, by, use_reentrant=False, preserve_rng_state=False
                )  # fmt: skip
            else:
                x, delta = layer.forward_native(x, delta, attend, by)
        return native_add_norm(x, delta, self.norm.weight, self.norm.eps, self.dtype)[1]

    def token_logprobs(
        self,
        hidden: Tensor,
        chosen: Tensor,
        temperature: float = 1.0,
        *,
        entropy: bool = False,
        extra_tokens: Tensor | None = None,
        sampling_mask: SamplingMask | None = None,
        vocab_size_used: int | None = None,
    ) -> TokenLogprobs:  # fmt: skip
        """log pi(chosen) of `softmax(logits / temperature)`, `[N]`, with optional results (see token_logprobs.py).

        `hidden` `[N, hidden_size]` are the states that predict `chosen` `[N]`. Logits from `vocab_size_used` on (a
        vocabulary padded beyond its tokenizer) have probability 0.
        """
        weight = self.output_weight
        question = LogprobQuery(temperature, entropy, sampling_mask)
        if self.exactness == "bitwise":
            question = replace(question, matmul=batch_invariant_logits(self.rows, weight))
        return query_logprobs(hidden, weight[:vocab_size_used], chosen, extra_tokens, question)

    def top_k_tokens(self, hidden: Tensor, count: int, temperature: float, *, vocab_size_used: int) -> TopKTokens:
        """The `count` likeliest tokens after each of `hidden` `[N, hidden_size]`, as data."""
        return top_k_tokens(hidden, self.output_weight[:vocab_size_used], temperature, min(count, vocab_size_used))

    def logits(self, hidden: Tensor, linear: LinearFn = functional.linear) -> Tensor:
        """`[N, vocab_size]`, float32 (float64 for a float64 model), not divided by a temperature."""
        return at_least_float32(linear(hidden, self.output_weight, None))

    def fixed_attention(self, sequence: Ints, positions: Ints, slots: Ints) -> BatchInvariantAttention:
        """For an engine: attention of tokens of `sequence` `[T]` at `positions` `[T]` over keys in `slots` `[B, L]`."""
        c = self.config
        return BatchInvariantAttention(
            sequence, positions, slots, heads=c.heads, kv_heads=c.kv_heads, device=self.device
        )

    def _rotations(self, positions: Tensor) -> Tensor:
        """Complex numbers `[T, 1, head_dim / 2]`, one rotation for each pair of features; their length is 1, or the
        scale of YaRN."""
        angles = positions[:, None, None].to(self.frequencies.dtype) * self.frequencies
        turns = torch.polar(torch.full_like(angles, self.config.rotary_scale), angles)
        return turns.to(torch.complex128) if self.dtype == torch.float64 else turns
