"""The `ModelRunner` of engine/work.py on a CPU, by compiled code that reads the trainer's weights in place."""

import weakref

import numpy as np
import torch
from numpy.typing import NDArray

from hone.engine.native.library import NativeEngine, RunnerLibrary, load_library
from hone.engine.native.weights import DecoderWeights, WeightDtype, native_shape, native_tensors, tensor_pointers
from hone.engine.work import ForwardBatch, SamplerOutput


class NativeRunner:
    """Bitwise independent of batch mates, page numbers, chunking and threads, for a given instruction set."""

    exact = True

    def __init__(
        self,
        model: DecoderWeights,
        *,
        vocab_used: int,
        threads: int,
        isa: str | None = None,
        dtype: WeightDtype | None = None,
    ) -> None:
        """`vocab_used`: ids from there on have probability 0. `isa`: an instruction set of library.py; None: the best.

        `dtype` of the packed weights, the inputs of linear layers, keys and values; None: the model's. Sums, norms, the
        softmax and the residual stream are always float32.
        """
        self._model, self._vocab, self._threads, self._wanted = model, vocab_used, threads, isa
        own: WeightDtype = "bfloat16" if model.embedding.weight.dtype == torch.bfloat16 else "float32"
        self._kind: WeightDtype = dtype or own
        self._native: NativeEngine | None = None

    @property
    def name(self) -> str:
        return f"native {self._kind} ({self.isa})"

    @property
    def isa(self) -> str:
        """The instruction set in use. Builds the library if need be; raises ResourceError where that fails."""
        return self._library().choose(self._wanted, bfloat16=self._kind == "bfloat16")

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

    def run(self, work: ForwardBatch) -> SamplerOutput:
        """Raises ValueError for a pass that does not hold together."""
        return self._opened().run(work)

    def copy(self, source: NDArray[np.int32], target: NDArray[np.int32]) -> None:
        self._opened().copy(source, target)

    def _library(self) -> RunnerLibrary:
        return load_library()

    def _opened(self) -> NativeEngine:
        if self._native is None:
            shape = native_shape(self._model.config, vocab_used=self._vocab, kind=self._kind)
            self._native = self._library().open(shape, isa=self.isa, threads=self._threads)
            weakref.finalize(self, self._native.close)
        return self._native
