"""A model and its runner for the engine; any decoder with these methods can be sampled from, without a copy."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hone.core.ragged import Ints
from hone.engine.work import ModelRunner

LinearFn: TypeAlias = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""`(x [N, in], weight [out, in], bias [out] | None) -> [N, out]`."""

AdapterFn: TypeAlias = Callable[[Tensor, Tensor, LinearFn], Tensor | None]
"""`(x [N, in], weight [out, in], linear) -> [N, out]`: what an unmerged adapter adds to the product of `x` with
`weight`, computed by `linear`; None for a weight that it does not adapt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmergedAdapter:
    """A low-rank adapter beside the model's weights, as runners take it. Its numbers do not change meanwhile."""

    product: AdapterFn
    """For runners of torch."""
    factors: Callable[[], Sequence[Tensor | None]]
    """For compiled code: A `[R, in]` and B `[out, R]`, its scale in B, of queries, keys and values together, of the
    attention's output, of gate and up, and of down, in each layer, then of the output projection. None twice: the
    weight is not adapted."""
    packed: Callable[[], NDArray[np.uint8]] | None = None
    """For replicas in other processes: bytes that they read an adapter of their own from; None: it stays here."""


RunnerKind = Literal["auto", "native", "native_bfloat16", "native_int8", "torch", "torch_compiled"]
"""`torch_compiled`: layers compiled by torch.compile, for GPUs; a token's result may then depend on its batch.
`native_bfloat16` packs the weights in bfloat16: faster where the processor multiplies it in tiles (AMX), with about the
difference of a bfloat16 trainer to float32. `native_int8` multiplies weights and activations in codes of 8 bits, with
equal bits on every processor from AVX2 on.
"""
KvCache = Literal["auto", "bfloat16", "int8"]
"""Numbers of the compiled runner's keys and values; `auto`: those of its products, and bfloat16 for `native_int8`."""


class PagedAttentionFn(Protocol):
    """Causal attention, owned by the engine because it owns the keys and values."""

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """`[T, heads, head_dim]`, twice `[T, kv_heads, head_dim]` -> `[T, heads * head_dim]`, at head_dim^-1/2."""
        ...


ForwardFn: TypeAlias = Callable[[Tensor, Tensor, PagedAttentionFn, LinearFn], Tensor]
"""Tokens `[T]`, their positions `[T]`, attention, linear layers -> hidden states `[T, hidden_size]`."""


class _BatchInvariantLinearFn(Protocol):
    """Linear layers whose rows do not depend on the number of rows, a multiple of `tile`."""

    @property
    def tile(self) -> int: ...
    @property
    def exact(self) -> bool:
        """True if measurements showed independence of batch mates."""
        ...

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor: ...


class _ExpertShape(Protocol):
    """Sizes of a mixture of experts."""

    @property
    def count(self) -> int: ...
    @property
    def per_token(self) -> int: ...
    @property
    def normalise_gates(self) -> bool:
        """True if the weights of a token's experts are divided by their sum."""
        ...


class ModelShape(Protocol):
    """Sizes of a model."""

    @property
    def layers(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def mlp_width(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def max_positions(self) -> int: ...
    @property
    def norm_eps(self) -> float: ...
    @property
    def qk_norm_whole(self) -> bool:
        """True if the norms of queries and keys are over all heads."""
        ...

    @property
    def rope_tables(self) -> Sequence[int]:
        """Each layer's table of rotary positions."""
        ...

    @property
    def compiled_switches(self) -> Mapping[str, float]:
        """Fields of the compiled runner's struct that this model sets, besides its sizes."""
        ...

    @property
    def experts(self) -> _ExpertShape | None:
        """The mixture of experts in each layer; None for a dense model."""
        ...

    @property
    def score_cap(self) -> float | None:
        """Bound c of the scores s of attention, c tanh(s / c); None: none."""
        ...

    @property
    def by_texts(self) -> bool:
        """True if `run` takes whole texts only, each from its position 0, and keeps no keys and values."""
        ...

    @property
    def cached_layers(self) -> int:
        """Layers with keys and values."""
        ...

    @property
    def state_numbers(self) -> int:
        """Numbers of the states that a text leaves behind in layers without keys; 0: all layers have them."""
        ...

    @property
    def uncompiled(self) -> str | None:
        """What of this model the compiled runner does not compute; None: it computes all of it."""
        ...

    def window(self, layer: int) -> int | None:
        """A token of this layer sees itself and so many tokens before it, less one; None: all."""
        ...


class GenerationModel(Protocol):
    """Rows of a batch must not influence each other but through `attend` and `linear`."""

    @property
    def config(self) -> ModelShape: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def compute(self) -> torch.dtype:
        """Dtype of the products of the trainer's forward pass."""
        ...

    @property
    def code_bits(self) -> int:
        """Bits of the codes that the weights are kept in; 0: numbers."""
        ...

    @property
    def output_weight(self) -> Tensor:
        """`[vocab_size, hidden_size]` of the output layer."""
        ...

    @property
    def rows(self) -> _BatchInvariantLinearFn: ...
    @property
    def exactness(self) -> Literal["parity", "bitwise"]:
        """`bitwise`: the trainer computes as a runner does that takes `rows` and `fixed_attention`, to the bit."""
        ...

    def stored_tensors(self) -> Mapping[str, Tensor]:
        """All numbers of the model by name: its parameters, and what is kept beside them."""
        ...

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]: ...

    def run(
        self,
        tokens: Tensor,
        positions: Tensor,
        attend: PagedAttentionFn,
        linear: LinearFn,
        kind: torch.dtype | None = None,
    ) -> Tensor:
        """`tokens` `[T]` at `positions` `[T]` -> hidden states `[T, hidden_size]`. `kind`: dtype between additions to
        the residual stream; None: the weights'."""
        ...

    def run_routed(
        self,
        tokens: Tensor,
        positions: Tensor,
        attend: PagedAttentionFn,
        linear: LinearFn,
        replayed: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """`run` of a mixture of experts, and the experts `[T, L, k]` that each token went to: the routers' choice, or
        those of `replayed` `[T, L, k]`."""
        ...

    def compiled_run(self, kind: torch.dtype | None = None) -> ForwardFn:
        """`run`, its layers as torch's compiler writes them at its first call for each kind of shape."""
        ...

    def logits(self, hidden: Tensor, linear: LinearFn) -> Tensor:
        """`[N, hidden_size]` -> `[N, vocab_size]`, float32 at least, not divided by a temperature."""
        ...

    def finished_logits(self, products: Tensor) -> Tensor:
        """Logits from the products `[N, vocab]` of hidden states and the output layer."""
        ...

    def fix_rope_length(self, length: int) -> None:
        """Turn every text as one of `length` tokens, where rotary positions depend on the length of a text."""
        ...

    def fixed_attention(
        self, sequence: Ints, positions: Ints, slots: Ints
    ) -> Callable[[Tensor, Tensor, Tensor, int], Tensor]:  # fmt: skip
        """Attention whose bits a token's own text decides: of tokens of `sequence` `[T]` at `positions` `[T]`, where
        position p of sequence b lies in `slots[b, p]`.

        What it returns takes `[T, heads, head_dim]`, twice `[slots, kv_heads, head_dim]` and the layer, and gives
        `[T, heads * head_dim]`.
        """
        ...

    def paged_states(
        self, attend: PagedAttentionFn, store: Tensor, sequence: Ints, positions: Ints, pages: Ints, page_tokens: int
    ) -> PagedAttentionFn:
        """`attend`, and the states in `store` `[pages, state_numbers]`: a page has those behind the last token that was
        written to it. The tokens are of `sequence` `[T]` at `positions` `[T]`, in the pages `[B, most]` of each
        sequence, of `page_tokens` tokens."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerChoice:
    """A runner with its properties."""

    runner: ModelRunner
    own_weights: bool
    """True if it copies the weights on `publish`; otherwise it reads the trainer's, and sees an update at once."""
    dtype: torch.dtype | None = None
    """Dtype of its products; None: the weights' own."""
    cache_dtype: torch.dtype | None = None
    """Dtype of its keys and values; None: that of its products."""
    note: str = ""
    """Note for the user about the choice; empty if none."""
