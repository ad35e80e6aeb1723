"""A decoder transformer for the families of families.py: RMSNorm, rotary positions, grouped-query attention, a gated
MLP or a mixture of experts.

The layers' arithmetic on rows of tokens. Key storage and masking are in a `LayerAttention`: packed rows have theirs
(packed_attention.py), a generation engine brings its cache.

Parameters are fused (`qkv`, `gate_up`) and query and key features are kept in interleaved pairs, so that a rotation is
one complex product; hf_checkpoint.py translates both, exactly, to and from the names and order of Hugging Face.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
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
from hone.models.language.decoder_layer import (
    CompiledLayerHalves,
    DecoderLayer,
    ExpertArithmetic,
    ForwardArithmetic,
    LatentLayer,
    LinearFn,
    RmsNorm,
    RoutingRecord,
    TensorGroup,
    check_routing_shape,
    linear_projection,
    native_add_normed,
)
from hone.models.language.decoder_layer import LinearProjection as LinearProjection
from hone.models.language.fused_ops import gated_silu, mixed_linear, rounding_linear, tiled_linear
from hone.models.language.linear_attention import (
    DeltaLayer,
    GatedLayer,
    RecurrentAttention,
    packed_runs,
    paged_runs,
)
from hone.models.language.packed_attention import LayerAttention, PackedAttention
from hone.models.language.quantised_linear import BITS
from hone.models.language.rope import RopeConfig, rope_frequencies
from hone.models.language.token_logprobs import (
    LogprobQuery,
    SamplingMask,
    TokenLogprobs,
    TopKTokens,
    at_least_float32,
    capped,
    query_logprobs,
    top_k_tokens,
)
from hone.models.native.library import (
    DTYPE_CODES,
    MAX_POSITIONS,
    KernelTexts,
    NativeAttention,
    available_kernels,
    is_widened,
    native_gated_silu,
    uses_amx_tiles,
    uses_half_products,
    why_unavailable,
)
from hone.models.packing import PackedBatch, index_numbers

# --------------------------------------------------------------------------------------------------- activation offload


@dataclass(slots=True)
class _OffloadedActivations:
    """What was moved."""

    moved_bytes: int = 0
    """Bytes that wait in the host's memory, or waited."""


@dataclass(frozen=True, slots=True)
class _OffloadedTensor:
    copy: Tensor
    device: torch.device


@contextmanager
def _offloading_activations(network: nn.Module, *, from_host: bool = False) -> Iterator[_OffloadedActivations]:
    """Context of a forward pass: tensors that it keeps for the backward pass are copied to pinned memory of the host,
    and back when they are needed. Weights stay where they are.

    `from_host`: also those that are in the host's memory already, to try it without a GPU.
    """
    own = {_address(tensor) for tensor in (*network.parameters(), *network.buffers())}
    offloaded = _OffloadedActivations()

    def pack(x: Tensor) -> Tensor | _OffloadedTensor:
        if _address(x) in own or (x.device.type == "cpu" and not from_host):
            return x
        copy = torch.empty(x.shape, dtype=x.dtype, pin_memory=x.is_cuda)
        copy.copy_(x)
        offloaded.moved_bytes += copy.nbytes
        return _OffloadedTensor(copy, x.device)

    def unpack(kept: Tensor | _OffloadedTensor) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        return kept.copy.to(kept.device, non_blocking=True)

    with saved_tensors_hooks(pack, unpack):
        yield offloaded


def _address(x: Tensor) -> int:
    return x.untyped_storage()._cdata


# -------------------------------------------------------------------------------------------------------------- decoder


DTYPES: Final = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
Exactness = Literal["parity", "bitwise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _DecoderStates:
    """Results of a forward pass over T tokens."""

    hidden: Tensor
    """`[T, hidden_size]`."""
    routing: RoutingRecord | None
    """Experts that the tokens went to; None for a dense model."""


def torch_dtype(name: str) -> torch.dtype:
    """Raises DataError for a name that hone does not compute in."""
    if name not in DTYPES:
        raise DataError(f"dtype {name!r} is not supported; known: {', '.join(DTYPES)}")
    return DTYPES[name]


class Decoder(nn.Module):
    """A causal language model over packed rows. Fill it by `new_model` or `load_model`; it starts as zeros."""

    def __init__(self, config: ModelConfig, *, dtype: str = "float32", checkpoint_activations: bool = False) -> None:
        """`dtype` of the weights; "int8" and "int4": linear layers, embedding and head in codes, which no gradient
        moves, and all else in float32. Raises DataError for a model that cannot be kept in codes."""
        super().__init__()
        bits = BITS.get(dtype)
        self.code_bits = bits or 0
        """Bits of the weights' codes (quantised_linear.py), beside which only an adapter can be trained; 0: numbers."""
        if bits is not None and config.experts is not None:
            raise DataError(
                f'model.weights = "{dtype}": a mixture of experts cannot be kept in codes; leave model.weights out'
            )
        kind = torch.float32 if bits else torch_dtype(dtype)
        self.compute = kind
        """Dtype of the matrix products in `hidden`; see `set_compute_dtype`."""
        self.exactness: Exactness = "parity"
        """Whether `hidden` and `outlook` give the bits of an engine that runs this model; see `compute_exactly`."""
        self.rows = BatchInvariantLinear()
        """Linear layers for such an engine."""
        self.invariant_gradients = False
        """Whether the gradient of a gated MLP does not depend on the batch, as its value does not with `bitwise`; for a
        `linear` whose gradients do not (`BatchInvariantLinear.frozen`)."""
        self.routing_records: list[RoutingRecord] | None = None
        """Where `states` leaves the routes of each of its passes; None: nowhere. See `recording_routes`."""
        self.tensor_group: TensorGroup | None = None
        """Ranks that hold the layers together, each of them its part; set by `tensor_parallel.split_decoder`."""
        self.config = config
        self.checkpoint_activations = checkpoint_activations
        self.rounds_weights_again = False
        """Mixed products keep no rounded weights between the passes; the same bits."""
        self.offloads_activations = False
        """What the forward pass keeps waits in the host's memory (activation_offload.py); the same bits."""
        self.rope_length: int | None = None
        """Length of text that rotations by length are for; None: of each row its own. See `fix_rope_length`."""
        self.build(kind)

    def build(self, dtype: torch.dtype) -> None:
        """Make the parameters."""
        config, kind, bits = self.config, dtype, self.code_bits or None
        project = partial(linear_projection, config.hidden_size, config.vocab_size, bias=False, dtype=kind, bits=bits)
        self.embedding = project()
        usual = DecoderLayer if config.latent is None else LatentLayer
        usual = usual if config.delta is None else GatedLayer
        kinds = (DeltaLayer if config.is_linear(number) else usual for number in range(config.layers))
        self.layers = nn.ModuleList(layer(config, number, kind, bits) for number, layer in enumerate(kinds))
        self.norm = RmsNorm(config.hidden_size, eps=config.norm_eps, dtype=kind, kind=config.design.norm)
        self.head = None if config.tie_embeddings else project()
        self.frequencies = nn.Buffer(self._tables(), persistent=False)
        """`[tables, head_dim / 2]` radians per position; layer l has the table `config.rope_tables[l]`."""

    def _tables(self, length: int = 0) -> Tensor:
        return torch.stack([self._frequencies(rope, length) for rope in self.config.ropes])

    def _frequencies(self, rope: RopeConfig | None, length: int) -> Tensor:
        """`[head_dim / 2]`: those of `rope_frequencies`, and 0 for features that rotary positions are not for."""
        c = self.config
        return functional.pad(rope_frequencies(rope, c.rotary_dim, length), (0, (c.head_dim - c.rotary_dim) // 2))

    def rotary_tables(self) -> tuple[Tensor, Tensor]:
        """`[tables, head_dim / 2]` float32 radians per position, and lengths of the turns: what an engine computes
        with."""
        return self.frequencies, torch.stack([self._turn_lengths(rope) for rope in self.config.ropes])

    def layer_tensors(self) -> Iterator[dict[str, Tensor | None]]:
        """For each layer what its kernels read."""
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            yield layer.kernel_tensors()

    def output_norm(self) -> Tensor:
        """`[hidden_size]` what the last norm multiplies by, and the logits' factor in it."""
        factor = self.config.switches.logit_factor
        return self.norm.factor() if factor == 1 else at_least_float32(self.norm.factor()) * factor

    def fix_rope_length(self, length: int) -> None:
        """Turn every text as one of `length` tokens, or of the largest length so far, where rotations depend on the
        length: an engine, which does not know how long an answer gets, and the trainer of its answers then compute the
        same."""
        if self.config.by_length:
            self.rope_length = max(length, self.rope_length or 0)
            self.frequencies = self._tables(self.rope_length).to(self.device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:  # noqa: FBT001, FBT002 - as torch
        """`to`, `cuda`, `half`: rotary frequencies keep float32, in which positions are exact, and products follow the
        weights' new dtype."""
        frequencies, same = self.frequencies, not self.is_mixed_precision
        super()._apply(fn, recurse)
        if self.frequencies.itemsize < frequencies.itemsize:
            self.frequencies = frequencies.to(self.device)
        if same:
            self.compute = self.dtype
        return self

    def stored_tensors(self) -> dict[str, Tensor]:
        """Everything that is saved: the parameters, and the biases of the routers' choices, which no gradient moves.

        Raises DataError where this process holds a part of them.
        """
        if self.tensor_group is not None:
            raise DataError(
                f"this process holds the part {self.tensor_group.rank + 1} of {self.tensor_group.size} of the model: "
                "gather the weights of all ranks first (hone.models.language.tensor_parallel.gather_weights)"
            )
        return {**dict(self.named_parameters()), **dict(self.named_buffers())}

    @property
    def output_weight(self) -> Tensor:
        """`[vocab_size, hidden_size]`; the embedding's own when they are tied. Codes are decoded to the type that
        `token_logprobs` multiplies."""
        half = uses_half_products(self.device, self.compute)
        return self._output_weight(torch.bfloat16 if half else self.dtype)

    def _output_weight(self, dtype: torch.dtype) -> Tensor:
        """The same, with codes decoded to `dtype`."""
        projection = self.embedding if self.head is None else self.head
        return projection.weight if isinstance(projection, LinearProjection) else projection.decode(dtype)

    def twin(self, weights: Mapping[str, Tensor], *, trained: bool = False) -> Self:
        """A decoder of the same settings with `weights` by name, and where they have none, this one's own memory."""
        memo = {
            id(own): nn.Parameter(weights.get(name, own).detach(), requires_grad=trained)
            for name, own in self.named_parameters()
        }
        return deepcopy(self, memo)  # pyright: ignore[reportArgumentType] - the memo is a dict of anything

    def untie_output(self) -> None:
        """Give the output projection a weight of its own, equal to the embedding's; nothing where it has one."""
        if self.config.tie_embeddings:
            weight = self.output_weight
            self.config = replace(self.config, tie_embeddings=False)
            self.head = LinearProjection(weight.shape[1], len(weight), bias=False, dtype=weight.dtype).to(self.device)
            with torch.no_grad():
                self.head.weight.copy_(weight)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.norm.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""
        return self.norm.weight.dtype

    @property
    def parts(self) -> int:
        """Number of ranks that the heads and the columns of the MLP are cut among."""
        return 1 if self.tensor_group is None else self.tensor_group.size

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
        if self.config.delta is not None:
            raise DataError(
                f"{self.config.uncompiled} has no bits of its own: a text is computed in chunks, which begin where a "
                'pass of the engine begins; leave model.exactness = "bitwise" out'
            )
        if self.tensor_group is not None:
            raise DataError("a model that is cut among ranks adds in another order than an engine: not the same bits")
        self.exactness = "bitwise"

    def run(
        self,
        tokens: Tensor,
        positions: Tensor,
        attend: LayerAttention,
        linear: LinearFn = functional.linear,
        kind: torch.dtype | None = None,
        halves: CompiledLayerHalves | None = None,
        routing: RoutingRecord | None = None,
    ) -> Tensor:
        """The stream after the last norm, `[T, hidden_size]`, for `tokens` `[T]` at `positions` `[T]`.

        `halves`: layers as torch's compiler writes them; theirs is a `linear` that it can read. `routing` holds the
        experts to use, and gets those that were used. Rotations by length are those of `fix_rope_length`. Layers with
        states begin them at each position 0, where `attend` brings none (`paged_states`).
        """
        if self.config.delta is not None and not isinstance(attend, RecurrentAttention):
            offsets = np.append(np.flatnonzero(index_numbers(positions) == 0), len(tokens)).astype(np.int64)
            whole = PackedBatch(tokens=tokens, positions=positions, offsets=offsets)
            attend = RecurrentAttention(attend, packed_runs(whole))
        x, turns, by = self.embed(tokens), self._rotations(positions), self._arithmetic(linear, kind or self.dtype)
        return self._run_layers(x, turns, attend, by, halves, routing)

    def _run_layers(
        self,
        x: Tensor,
        turns: Sequence[tuple[Tensor, Tensor]],
        attend: LayerAttention,
        by: ForwardArithmetic,
        halves: CompiledLayerHalves | None = None,
        routing: RoutingRecord | None = None,
    ) -> Tensor:
        record, first = routing or RoutingRecord(), self.config.dense_layers
        for number, layer in enumerate(self.layers):
            replayed, own = record.replayed_of(number - first), turns[self.config.rope_tables[number]]
            if self.checkpoint_activations and torch.is_grad_enabled():
                x, routed = checkpoint(
                    layer, x, own, attend, by, None, replayed, use_reentrant=False, preserve_rng_state=False
                )
            else:
                x, routed = layer(x, own, attend, by, halves, replayed)
            if routed is not None:
                record.layers.append(routed)
        return self.norm(x)

    def embed(self, tokens: Tensor) -> Tensor:
        """`[T, hidden_size]`, the stream that enters the first layer."""
        factor, embedding = self.config.switches.embedding_factor, self.embedding
        if isinstance(embedding, LinearProjection):
            x = functional.embedding(tokens, embedding.weight)
        else:
            x = embedding.decode_rows(tokens, self.dtype)
        return x if factor == 1 else x * torch.tensor(factor, dtype=x.dtype, device=x.device)

    def _arithmetic(self, linear: LinearFn, kind: torch.dtype, *, native: bool = False) -> ForwardArithmetic:
        steady = self.exactness == "bitwise"
        if self.config.experts is None:
            own = self.invariant_gradients
            return ForwardArithmetic(linear, kind, steady, invariant_gradients=own, group=self.tensor_group)
        experts = ExpertArithmetic(
            linear=linear,
            router_linear=functional.linear if linear in (mixed_linear, rounding_linear) else linear,
            gate=native_gated_silu if native else partial(gated_silu, steady=steady),
            tile=self.rows.tile if linear is self.rows else 1,
        )
        return ForwardArithmetic(linear, kind, steady, experts=experts)

    def run_routed(
        self,
        tokens: Tensor,
        positions: Tensor,
        attend: LayerAttention,
        linear: LinearFn,
        replayed: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """`run` of a mixture of experts, and the experts `[T, L, k]` that each token went to: the routers' choice, or
        those of `replayed` `[T, L, k]`."""
        record = RoutingRecord(replayed)
        return self.run(tokens, positions, attend, linear, routing=record), record.chosen()

    def compiled_run(
        self, kind: torch.dtype | None = None
    ) -> Callable[[Tensor, Tensor, LayerAttention, LinearFn], Tensor]:
        """`run`, its layers as torch's compiler writes them."""
        return partial(self.run, kind=kind, halves=CompiledLayerHalves())

    def hidden(self, packed: PackedBatch) -> Tensor:
        """`[T, hidden_size]`: state t depends on tokens up to t of its row (and branch), and predicts the next."""
        return self.states(packed).hidden

    def hidden_by_kernels(self, packed: PackedBatch, linear: LinearFn) -> Tensor:
        """`hidden` of texts within `kernel_reach` with the caller's products: a text's bits are those it has alone, if
        the products' are, whatever arithmetic the decoder has otherwise."""
        texts, by = KernelTexts.from_packed(packed), self._arithmetic(linear, self.compute, native=True)
        assert texts is not None
        return self._forward_native(packed, texts, self._rotations(packed.positions), by, None)

    def states(self, packed: PackedBatch) -> _DecoderStates:
        """`hidden`, and the experts that the tokens went to: those of `packed.routing`, or the routers' choice.

        Raises DataError for a routing of another depth or width.
        """
        if self.config.experts is None:
            with _offloading_activations(self) if self.offloads_activations else nullcontext():
                return _DecoderStates(hidden=self._hidden(packed, None), routing=None)
        check_routing_shape(packed.routing, layers=self.config.routed_layers, experts=self.config.experts)
        record = RoutingRecord(packed.routing)
        if self.routing_records is not None:
            self.routing_records.append(record)
        with _offloading_activations(self) if self.offloads_activations else nullcontext():
            return _DecoderStates(hidden=self._hidden(packed, record), routing=record)

    @contextmanager
    def recording_routes(self) -> Iterator[list[RoutingRecord]]:
        """Context in which the routes of every forward pass of `states` are collected."""
        before, self.routing_records = self.routing_records, []
        try:
            yield self.routing_records
        finally:
            self.routing_records = before

    def save_memory_like(self, other: Self) -> None:
        """Take over the settings that trade time for memory and keep the bits."""
        self.checkpoint_activations = other.checkpoint_activations
        self.rounds_weights_again = other.rounds_weights_again
        self.offloads_activations = other.offloads_activations

    def add_selection_bias(self) -> None:
        """Give the routers' choices a bias, 0 at first; nothing where they have one."""
        experts = self.config.experts
        assert experts is not None, "a dense model has no routers"
        if experts.selection_bias:
            return
        self.config = replace(self.config, experts=replace(experts, selection_bias=True))
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            layer.selection_bias = torch.zeros(experts.count, device=self.device)

    def _hidden(self, packed: PackedBatch, routing: RoutingRecord | None) -> Tensor:
        c, lengths = self.config, self._row_lengths(packed)
        turns = self._rotations(packed.positions, lengths)
        if self.exactness == "bitwise":
            fixed = BatchInvariantPackedAttention(
                packed, heads=c.heads, kv_heads=c.kv_heads, head_dim=c.head_dim, dtype=self.compute, limits=c.limits
            )  # fmt: skip
            padded = [(pad_to_tile(query), pad_to_tile(key)) for query, key in turns]
            x, by = self.embed(pad_to_tile(packed.tokens)), self._arithmetic(self.rows, self.dtype)
            record = RoutingRecord() if routing is None else routing.padded(len(x))
            hidden = self._run_layers(x, padded, fixed, by, routing=record)
            hidden = hidden[: len(packed.tokens)]
            if routing is not None:
                routing.take(record, len(packed.tokens))
            return hidden
        linear = self._linear()
        if (texts := self._kernel_texts(packed)) is not None:
            by = self._arithmetic(linear, self.compute, native=True)
            return self._forward_native(packed, texts, turns, by, routing)
        attend = PackedAttention(
            packed, heads=c.heads // self.parts, kv_heads=c.kv_heads // self.parts, head_dim=c.head_dim,
            dtype=self.compute, fused=self.device.type == "cuda", limits=c.limits,
        )  # fmt: skip
        mixed = attend if c.delta is None else RecurrentAttention(attend, packed_runs(packed))
        return self._run_layers(
            self.embed(packed.tokens), turns, mixed, self._arithmetic(linear, self.compute), routing=routing
        )  # fmt: skip

    def _row_lengths(self, packed: PackedBatch) -> Tensor | None:
        """Length of each token's row, to its longest branch's end; None where rotations do not ask."""
        if not self.config.by_length or self.rope_length is not None or not len(packed.tokens):
            return None
        counts = torch.from_numpy(np.diff(packed.offsets)).to(packed.positions.device)
        row = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
        longest = torch.zeros_like(counts).scatter_reduce_(0, row, packed.positions, "amax")
        return (longest + 1)[row]

    def _linear(self) -> LinearFn:
        if self.is_mixed_precision:
            return rounding_linear if self.rounds_weights_again else mixed_linear
        if is_widened(self.dtype, self.device):
            return mixed_linear
        tiled = self.dtype == torch.float32 and self.device.type == "cpu" and uses_amx_tiles()
        return tiled_linear if tiled else functional.linear

    def _kernel_texts(self, packed: PackedBatch) -> KernelTexts | None:
        """None where compiled kernels cannot be used: another device or dtype, no compiler, unsupported rows."""
        longest = int(index_numbers(packed.positions).max(initial=0)) + 1
        return KernelTexts.from_packed(packed) if longest <= self.kernel_reach() else None

    def kernel_reach(self) -> int:
        """Tokens of the longest text that compiled kernels compute; 0 where they cannot be used."""
        if not self._fits_kernels() or available_kernels() is None:
            return 0
        reach = min((window for window in self.config.switches.windows if window), default=MAX_POSITIONS)
        reach = min(reach, self.config.rope.original_max_positions) if self.config.rope.query_beta else reach
        return min(reach, MAX_POSITIONS)

    def _fits_kernels(self) -> bool:
        c = self.config
        usual = self.device.type == "cpu" and c.switches.score_cap is None and c.latent is None and c.delta is None
        return usual and self.dtype in DTYPE_CODES and self.compute in DTYPE_CODES

    def notes(self) -> list[str]:
        """Notes for the user of a training run. The first call may compile the kernels (seconds)."""
        reason = why_unavailable() if self.exactness == "parity" and self._fits_kernels() else None
        left_out = self.config.left_out and f"the model is read without {self.config.left_out}: it is trained as text"
        slow = reason and f"training uses torch, not the compiled kernels, which are faster: {reason}"
        return [note for note in (left_out, slow) if note]

    def _forward_native(
        self,
        packed: PackedBatch,
        texts: KernelTexts,
        turns: Sequence[tuple[Tensor, Tensor]],
        by: ForwardArithmetic,
        routing: RoutingRecord | None,
    ) -> Tensor:
        c = self.config
        heads, kv_heads = c.heads // self.parts, c.kv_heads // self.parts
        attends = [
            NativeAttention(
                texts=texts, turns=torch.view_as_real(one[:, 0]).contiguous(), heads=heads, kv_heads=kv_heads,
                head_dim=c.head_dim,
            )
            for _, one in turns
        ]  # fmt: skip
        x, delta = self.embed(packed.tokens), None
        record = routing or RoutingRecord()
        for number, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer)
            asked = (x, delta, attends[c.rope_tables[number]], by, record.replayed_of(number - c.dense_layers))
            if self.checkpoint_activations and torch.is_grad_enabled():
                x, delta, routed = checkpoint(
                    layer.forward_native, *asked, use_reentrant=False, preserve_rng_state=False
                )
            else:
                x, delta, routed = layer.forward_native(*asked)
            if routed is not None:
                record.layers.append(routed)
        return native_add_normed(self.norm, x, delta, self.dtype)[1]

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
        weight, switches = self.output_weight, self.config.switches
        half = uses_half_products(self.device, self.compute)
        question = LogprobQuery(
            temperature / switches.logit_factor, entropy, sampling_mask, half=half, vocab_size_used=vocab_size_used,
            cap=switches.logit_cap,
        )  # fmt: skip
        if self.exactness == "bitwise":
            question = replace(question, matmul=batch_invariant_logits(self.rows, weight))
        return query_logprobs(hidden, weight, chosen, extra_tokens, question)

    def top_k_tokens(self, hidden: Tensor, count: int, temperature: float, *, vocab_size_used: int) -> TopKTokens:
        """The `count` likeliest tokens after each of `hidden` `[N, hidden_size]`, as data."""
        half, switches = uses_half_products(self.device, self.compute), self.config.switches
        weight, count = self.output_weight[:vocab_size_used], min(count, vocab_size_used)
        temperature = temperature / switches.logit_factor
        return top_k_tokens(hidden, weight, temperature, count, half=half, cap=switches.logit_cap)

    def logits(self, hidden: Tensor, linear: LinearFn = functional.linear) -> Tensor:
        """`[N, vocab_size]`, float32 (float64 for a float64 model), not divided by a temperature."""
        return self.finished_logits(at_least_float32(linear(hidden, self._output_weight(hidden.dtype), None)))

    def finished_logits(self, products: Tensor) -> Tensor:
        """Logits from the products of hidden states and the output's weight: times a factor, and capped."""
        switches = self.config.switches
        logits = products if switches.logit_factor == 1 else products * switches.logit_factor
        return logits if switches.logit_cap is None else capped(logits, switches.logit_cap)

    def fixed_attention(self, sequence: Ints, positions: Ints, slots: Ints) -> BatchInvariantAttention:
        """For an engine: attention of tokens of `sequence` `[T]` at `positions` `[T]` over keys in `slots` `[B, L]`."""
        c = self.config
        return BatchInvariantAttention(
            sequence, positions, slots, heads=c.heads, kv_heads=c.kv_heads, device=self.device, limits=c.limits
        )

    def paged_states(
        self, attend: LayerAttention, store: Tensor, sequence: Ints, positions: Ints, pages: Ints, page_tokens: int
    ) -> LayerAttention:
        """For an engine: `attend`, and the states of layers of linear attention, which are in `store` `[pages, config.
        state_numbers]`, a text's in the page of its last token; the tokens are of `sequence` `[T]` at `positions`
        `[T]`, in `pages` `[B, most]` of so many tokens."""
        return RecurrentAttention(attend, paged_runs(store, sequence, positions, pages, page_tokens))

    def _rotations(self, positions: Tensor, lengths: Tensor | None = None) -> list[tuple[Tensor, Tensor]]:
        """For each table complex numbers `[T, 1, head_dim / 2]` for queries and for keys, a rotation for each pair of
        features. Their length is 1, times the scale of the rotary positions, times what makes the scores' own factor
        head_dim^-1/2."""
        return [self._rotation(number, rope, positions, lengths) for number, rope in enumerate(self.config.ropes)]

    def _rotation(
        self, number: int, rope: RopeConfig | None, positions: Tensor, lengths: Tensor | None
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        frequencies = self.frequencies[number]
        if lengths is not None:
            every, which = lengths.unique(return_inverse=True)
            own = [self._frequencies(rope, int(length)) for length in every]
            frequencies = torch.stack(own).to(self.device)[which][:, None]
        angles = positions[:, None, None].to(frequencies.dtype) * frequencies
        turns = torch.polar(self._turn_lengths(rope).to(angles).expand_as(angles), angles)
        turns = turns.to(torch.complex128) if self.dtype == torch.float64 else turns
        if rope is None or not rope.query_beta:
            return turns, turns
        beyond = torch.log1p(torch.div(positions, rope.original_max_positions, rounding_mode="floor").double())
        return turns * (1 + rope.query_beta * beyond)[:, None, None].to(turns.real.dtype), turns

    def _turn_lengths(self, rope: RopeConfig | None) -> Tensor:
        """`[head_dim / 2]` float32."""
        c = self.config
        turned = 0 if rope is None else int(c.rotary_dim * rope.fraction) // 2
        lengths = np.full(c.head_dim // 2, (c.switches.score_scale * math.sqrt(c.head_dim)) ** 0.5, np.float32)
        lengths[:turned] *= 1.0 if rope is None else rope.scale
        return torch.from_numpy(lengths)
