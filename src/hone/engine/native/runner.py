"""The `ModelRunner` of engine/work.py on a CPU, by compiled code that reads the trainer's weights in place."""

import weakref
from collections.abc import Iterator, Mapping
from typing import Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hone.core.errors import ConfigError
from hone.engine.native import library
from hone.engine.native.library import CacheKind, NativeEngine, NumberKind, RunnerLibrary, load_library
from hone.engine.protocol import ModelShape, UnmergedAdapter
from hone.engine.work import ForwardBatch, SamplerOutput

# -------------------------------------------------------------------------------------------------------------- weights


class _ProjectionWeights(Protocol):
    """`weight` `[out, in]`, or the bytes of blocks of codes; `bias` `[out]` or None."""

    weight: Tensor
    bias: Tensor | None


class DecoderWeights(Protocol):
    """A decoder with parameters that can be read in place."""

    embedding: _ProjectionWeights
    head: _ProjectionWeights | None
    code_bits: int
    """Bits of the codes that `weight` holds blocks of; 0: numbers."""

    def rotary_tables(self) -> tuple[Tensor, Tensor]:
        """`[tables, head_dim / 2]` radians per position of each pair, and the lengths of the turns."""
        ...

    def output_norm(self) -> Tensor:
        """What the last norm multiplies by, and the logits' factor in it."""
        ...

    @property
    def config(self) -> ModelShape: ...

    def layer_tensors(self) -> Iterator[Mapping[str, Tensor | None]]:
        """For each layer its tensors by the names of `_LAYER`. `qkv` stacks queries, keys and values, `gate_up` gates
        and ups; features of a head are in rotary pairs. With a router, `gate_up` and `down` stack the experts."""
        ...


_LAYER: Final = (
    "attention_norm", "qkv", "qkv_bias", "q_norm", "k_norm", "out", "out_bias", "mlp_norm", "gate_up", "gate_up_bias",
    "down", "down_bias", "router", "selection_bias", "attention_after", "mlp_after",
    "qkv_low", "qkv_low_out", "out_low", "out_low_out", "gate_up_low", "gate_up_low_out", "down_low", "down_low_out",
)  # fmt: skip
"""Tensors of a layer, in the order of abi.h."""


def _native_shape(
    config: ModelShape,
    *,
    vocab_used: int,
    kind: library.NumberKind,
    cache: library.CacheKind,
    half_embedding: bool,
    bits: int,
) -> library.NativeShape:
    """Sizes of a model as the library's struct. `half_embedding`: with `int8`, the embedding is kept in bfloat16.
    `bits` of weights in codes; 0: numbers."""
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
        bits=bits,
        cache=library.CACHES.index(cache),
        norm_eps=config.norm_eps,
        norm_whole=int(config.qk_norm_whole),
        experts=0 if experts is None else experts.count,
        per_token=0 if experts is None else experts.per_token,
        normalise_gates=0 if experts is None else int(experts.normalise_gates),
        **config.compiled_switches,
    )


def _native_tensors(model: DecoderWeights) -> Iterator[Tensor | None]:
    """Weights in the order of abi.h."""
    config, each = model.config, range(model.config.layers)
    yield from (model.embedding.weight, model.output_norm())
    yield None if model.head is None else model.head.weight
    yield from model.rotary_tables()
    yield torch.tensor([float(config.window(number) or 0) for number in each])
    yield torch.tensor([float(config.rope_tables[number]) for number in each])
    for tensors in model.layer_tensors():
        yield from (tensors[name] for name in _LAYER)


def _pointer(tensor: Tensor | None) -> library.NativeTensor:
    """Address for the library. Raises ConfigError for a tensor that it cannot read in place."""
    if tensor is None:
        return library.NativeTensor(None, 0, 0)
    if tensor.dtype not in (torch.float32, torch.bfloat16, torch.uint8) or tensor.device.type != "cpu":
        raise ConfigError(
            f"the compiled runner reads float32 and bfloat16 weights on a CPU, got {tensor.dtype} on {tensor.device}; "
            'set runner = "torch"'
        )
    if not tensor.is_contiguous():
        raise ConfigError(f"the compiled runner reads contiguous weights, got strides {tensor.stride()}")
    return library.NativeTensor(tensor.data_ptr(), tensor.numel(), int(tensor.dtype == torch.bfloat16))


# --------------------------------------------------------------------------------------------------------------- runner


class NativeRunner:
    """Bitwise independent of batch mates, page numbers, chunking and threads, for a given instruction set.

    In `int8` and in float32 the bits are also the same on all sets from AVX2 on.
    """

    exact = True

    def __init__(
        self,
        model: DecoderWeights,
        *,
        vocab_used: int,
        threads: int,
        isa: str | None = None,
        dtype: NumberKind | None = None,
        cache: CacheKind | None = None,
    ) -> None:
        """`vocab_used`: ids from there on have probability 0. `isa`: an instruction set of library.py; None: the best.

        `dtype` of the packed weights and the inputs of linear layers; None: the model's. `int8`: codes of 8 bits with a
        scale of each output and of each token; the head's are of 16 bits, and the embedding is the model's. Sums,
        norms, the softmax and the residual stream are always float32. Weights that are codes themselves are read in
        place, and meet activations in codes of 16 bits with a scale of each 32, or of 8 bits for `int8`. `cache`: of
        keys and values; None: `dtype`, and bfloat16 for `int8`. Raises ConfigError for a cache of more bits than
        `dtype`.
        """
        self._model, self._vocab, self._threads, self._wanted = model, vocab_used, threads, isa
        self._half = model.embedding.weight.dtype == torch.bfloat16
        self._bits = model.code_bits
        own: NumberKind = "bfloat16" if self._half else "float32"
        self._kind: NumberKind = dtype or own
        self._cache: CacheKind = cache or ("bfloat16" if self._kind == "int8" else self._kind)
        if self._cache == "float32" != self._kind:
            raise ConfigError(f"a runner in {self._kind} keeps keys and values in bfloat16 or int8, not in float32")
        self._native: NativeEngine | None = None
        self.adapters: dict[str, UnmergedAdapter] = {}
        """Unmerged adapters by the names in `ForwardBatch.adapters`; see `takes_adapters`."""
        self._slots: dict[str, tuple[int, UnmergedAdapter]] = {}
        """Those that are packed, and where."""
        self._last_slots: tuple[tuple[str, ...], NDArray[np.int32]] = (), np.zeros(0, np.int32)
        """Adapters of the last pass that had any, and their slots."""

    @property
    def takes_adapters(self) -> bool:
        """True for dense weights in float32."""
        return self._kind == "float32" and not self._bits and self._model.config.experts is None

    @property
    def name(self) -> str:
        usual = "bfloat16" if self._kind == "int8" else self._kind
        cache = "" if self._cache == usual else f", cache {self._cache}"
        weights = f"weights int{self._bits}, " if self._bits else ""
        return f"native {weights}{self._kind}{cache} ({self.isa})"

    @property
    def isa(self) -> str:
        """The instruction set in use. Builds the library if need be; raises ResourceError where that fails."""
        return self._library().choose(self._wanted, kind="int8" if self._bits else self._kind)

    @property
    def page_tokens(self) -> int:
        return self._library().page_tokens

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers: its keys and values."""
        return self._opened().page_bytes()

    def reserve(self, pages: int) -> None:
        """Allocate pages. Raises ResourceError without enough memory."""
        self._opened().reserve(pages)

    @torch.no_grad()
    def publish(self) -> None:
        """Pack the current weights. Raises ConfigError for weights that cannot be read in place."""
        tensors = list(_native_tensors(self._model))  # some are made here, and have to outlive their addresses
        self._opened().publish([_pointer(tensor) for tensor in tensors])

    def release(self) -> None:
        """Free pages and packed weights."""
        if self._native is not None:
            self._native.close()
            self._native = None
            self._slots.clear()
            self._last_slots = (), np.zeros(0, np.int32)

    def run(self, work: ForwardBatch) -> SamplerOutput:
        """Raises ValueError for a pass that does not hold together."""
        native = self._opened()
        if work.adapters is None:
            return native.run(work)
        names, slots = self._last_slots
        if names != work.adapters or any(self.adapters.get(one) is not own for one, (_, own) in self._slots.items()):
            self._pack_adapters(native, {name for name in work.adapters if name})
            slots = np.array([self._slots[name][0] if name else -1 for name in work.adapters], np.int32)
            self._last_slots = work.adapters, slots
        return native.run(work, slots)

    def _pack_adapters(self, native: NativeEngine, names: set[str]) -> None:
        """Pack those that are named first, or again, and free what was removed."""
        for name, (slot, packed) in list(self._slots.items()):
            if self.adapters.get(name) is not packed:
                native.adapt(slot, [])
                del self._slots[name]
        for name in sorted(names - self._slots.keys()):
            taken = {slot for slot, _ in self._slots.values()}
            slot = next(number for number in range(len(taken) + 1) if number not in taken)
            factors = list(self.adapters[name].factors())
            native.adapt(slot, [_pointer(factor) for factor in factors])
            self._slots[name] = (slot, self.adapters[name])

    def copy(self, source: NDArray[np.int32], target: NDArray[np.int32]) -> None:
        self._opened().copy(source, target)

    def _library(self) -> RunnerLibrary:
        return load_library()

    def _opened(self) -> NativeEngine:
        if self._native is None:
            shape = _native_shape(
                self._model.config,
                vocab_used=self._vocab,
                kind=self._kind,
                cache=self._cache,
                half_embedding=self._half,
                bits=self._bits,
            )
            self._native = self._library().open(shape, isa=self.isa, threads=self._threads)
            weakref.finalize(self, self._native.close)
        return self._native
