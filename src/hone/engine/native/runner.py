"""The `ModelRunner` of engine/work.py on a CPU, by compiled code that reads the trainer's weights in place."""

import weakref

import numpy as np
import torch
from numpy.typing import NDArray

from hone.core.errors import ConfigError
from hone.engine.native.library import CacheKind, NativeEngine, NumberKind, RunnerLibrary, load_library
from hone.engine.native.weights import DecoderWeights, native_shape, native_tensors, tensor_pointers
from hone.engine.work import ForwardBatch, SamplerOutput


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
        norms, the softmax and the residual stream are always float32. `cache`: of keys and values; None: `dtype`, and
        bfloat16 for `int8`. Raises ConfigError for a cache of more bits than `dtype`.
        """
        self._model, self._vocab, self._threads, self._wanted = model, vocab_used, threads, isa
        self._half = model.embedding.weight.dtype == torch.bfloat16
        own: NumberKind = "bfloat16" if self._half else "float32"
        self._kind: NumberKind = dtype or own
        self._cache: CacheKind = cache or ("bfloat16" if self._kind == "int8" else self._kind)
        if self._cache == "float32" != self._kind:
            raise ConfigError(f"a runner in {self._kind} keeps keys and values in bfloat16 or int8, not in float32")
        self._native: NativeEngine | None = None

    @property
    def name(self) -> str:
        usual = "bfloat16" if self._kind == "int8" else self._kind
        cache = "" if self._cache == usual else f", cache {self._cache}"
        return f"native {self._kind}{cache} ({self.isa})"

    @property
    def isa(self) -> str:
        """The instruction set in use. Builds the library if need be; raises ResourceError where that fails."""
        return self._library().choose(self._wanted, kind=self._kind)

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

    def publish(self) -> None:
        """Pack the current weights. Raises ConfigError for weights that cannot be read in place."""
        self._opened().publish(tensor_pointers(native_tensors(self._model)))

    def release(self) -> None:
        """Free pages and packed weights."""
        if self._native is not None:
            self._native.close()
            self._native = None

    def run(self, work: ForwardBatch) -> SamplerOutput:
        """Raises ValueError for a pass that does not hold together."""
        return self._opened().run(work)

    def copy(self, source: NDArray[np.int32], target: NDArray[np.int32]) -> None:
        self._opened().copy(source, target)

    def _library(self) -> RunnerLibrary:
        return load_library()

    def _opened(self) -> NativeEngine:
        if self._native is None:
            shape = native_shape(
                self._model.config,
                vocab_used=self._vocab,
                kind=self._kind,
                cache=self._cache,
                half_embedding=self._half,
            )
            self._native = self._library().open(shape, isa=self.isa, threads=self._threads)
            weakref.finalize(self, self._native.close)
        return self._native
