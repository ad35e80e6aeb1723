"""Which of a decoder's tensors the compiled runner reads, and how they are handed over."""

from collections.abc import Iterator, Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from hone.core.errors import ConfigError
from hone.engine.native import library
from hone.engine.protocol import ModelShape


class DecoderSizes(ModelShape, Protocol):
    """Sizes of a decoder."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def mlp_width(self) -> int: ...
    @property
    def qk_norm_whole(self) -> bool: ...
    @property
    def norm_eps(self) -> float: ...
    @property
    def rotary_scale(self) -> float: ...


class ProjectionWeights(Protocol):
    """`weight` `[out, in]`, `bias` `[out]` or None."""

    weight: Tensor
    bias: Tensor | None


class NormWeights(Protocol):
    """A norm's weight."""

    weight: Tensor


class LayerWeights(Protocol):
    """`qkv` stacks queries, keys and values, `gate_up` gates and ups; features of a head are in rotary pairs.

    With a router, `gate_up` and `down` stack the experts.
    """

    attention_norm: NormWeights
    qkv: ProjectionWeights
    q_norm: NormWeights | None
    k_norm: NormWeights | None
    out: ProjectionWeights
    mlp_norm: NormWeights
    gate_up: ProjectionWeights
    down: ProjectionWeights
    router: ProjectionWeights | None
    selection_bias: Tensor | None


class DecoderWeights(Protocol):
    """A decoder with parameters that can be read in place."""

    embedding: ProjectionWeights
    norm: NormWeights
    head: ProjectionWeights | None
    frequencies: Tensor

    @property
    def config(self) -> DecoderSizes: ...
    @property
    def layers(self) -> Sequence[LayerWeights]: ...


def native_shape(
    config: DecoderSizes, *, vocab_used: int, kind: library.NumberKind, cache: library.CacheKind, half_embedding: bool
) -> library.NativeShape:
    """Sizes of a model as the library's struct. `half_embedding`: with `int8`, the embedding is kept in bfloat16."""
    experts = config.experts
    return library.NativeShape(
        layers=config.layers,
        hidden=config.hidden_size,
        intermediate=config.mlp_width,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        vocab=config.vocab_size,
        vocab_used=vocab_used,
        bfloat16=int(kind == "bfloat16" or (kind == "int8" and half_embedding)),
        int8=int(kind == "int8"),
        cache=library.CACHES.index(cache),
        norm_eps=config.norm_eps,
        rotary_scale=config.rotary_scale,
        norm_whole=int(config.qk_norm_whole),
        experts=0 if experts is None else experts.count,
        per_token=0 if experts is None else experts.per_token,
        normalise_gates=0 if experts is None else int(experts.normalise_gates),
    )


def bytes_per_weight(kind: library.NumberKind, part: Literal["layer", "head", "embedding"], *, half: bool) -> int:
    """Bytes of a weight in the compiled runner's own copy, without the scales; `half`: the model's are bfloat16.

    In `int8` a layer's weights take one byte, and 8 more for each output feature; the head's take two, tied or not, and
    the embedding stays in the model's numbers.
    """
    if kind == "int8" and part != "embedding":
        return 1 if part == "layer" else 2
    return 2 if kind == "bfloat16" or half else 4


def native_tensors(model: DecoderWeights) -> list[Tensor | None]:
    """Weights in the order of abi.h."""
    head = None if model.head is None else model.head.weight
    return [model.embedding.weight, model.norm.weight, head, model.frequencies, *_of_layers(model)]


def _of_layers(model: DecoderWeights) -> Iterator[Tensor | None]:
    for layer in model.layers:
        yield from (layer.attention_norm.weight, layer.qkv.weight, layer.qkv.bias)
        yield from (None if norm is None else norm.weight for norm in (layer.q_norm, layer.k_norm))
        yield from (layer.out.weight, layer.out.bias, layer.mlp_norm.weight)
        yield from (layer.gate_up.weight, layer.gate_up.bias, layer.down.weight, layer.down.bias)
        yield from (None if layer.router is None else layer.router.weight, layer.selection_bias)


def tensor_pointers(tensors: Sequence[Tensor | None]) -> list[library.NativeTensor]:
    """Address for the library. Raises ConfigError for a tensor that it cannot read in place."""
    return [_pointer(tensor) for tensor in tensors]


def _pointer(tensor: Tensor | None) -> library.NativeTensor:
    if tensor is None:
        return library.NativeTensor(None, 0, 0)
    if tensor.dtype not in (torch.float32, torch.bfloat16) or tensor.device.type != "cpu":
        raise ConfigError(
            f"the compiled runner reads float32 and bfloat16 weights on a CPU, got {tensor.dtype} on {tensor.device}; "
            'set runner = "torch"'
        )
    if not tensor.is_contiguous():
        raise ConfigError(f"the compiled runner reads contiguous weights, got strides {tensor.stride()}")
    return library.NativeTensor(tensor.data_ptr(), tensor.numel(), int(tensor.dtype == torch.bfloat16))
