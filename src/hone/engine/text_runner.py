"""The runner of models that compute whole texts only: each text is read again for every token that is drawn.

Pages hold token ids in place of keys and values, so that prompts are shared, and requests wait and go on, as elsewhere.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from hone.engine.protocol import GenerationModel
from hone.engine.torch_runner import PAGE_TOKENS, sample_tokens
from hone.engine.work import ForwardBatch, SamplerOutput


class WholeTextRunner:
    """Implements `ModelRunner`. Parameter updates take effect at once, unless the model is a copy of `source_model`."""

    exact = False

    def __init__(
        self, model: GenerationModel, *, vocab_used: int, source_model: GenerationModel | None = None
    ) -> None:  # fmt: skip
        """`vocab_used`: token ids from there on are never sampled. `source_model`: source of the weights on `publish`;
        None: the model's own."""
        self._model, self._vocab, self._source = model, vocab_used, source_model
        self._pages = np.zeros((0, PAGE_TOKENS), np.int32)

    @property
    def name(self) -> str:
        return f"transformers {str(self.dtype).removeprefix('torch.')} ({self._model.device.type}, whole texts)"

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of its products."""
        return self._model.compute

    @property
    def page_tokens(self) -> int:
        return PAGE_TOKENS

    def reserve(self, pages: int) -> None:
        self._pages = np.zeros((pages, PAGE_TOKENS), np.int32)

    def release(self) -> None:
        self._pages = self._pages[:0]

    @torch.no_grad()
    def publish(self) -> None:
        """Copy the trainer's weights, in place, where it does not read them."""
        if self._source is not None:
            theirs = self._source.stored_tensors()
            for name, mine in self._model.stored_tensors().items():
                mine.copy_(theirs[name])

    @torch.inference_mode()
    def run(self, work: ForwardBatch) -> SamplerOutput:
        sequence, positions = work.sequence.astype(np.int64), work.positions.astype(np.int64)
        self._pages[work.pages[sequence, positions // PAGE_TOKENS], positions % PAGE_TOKENS] = work.tokens
        at = work.draws.token_index
        lengths = np.zeros(len(work.pages), np.int64)
        np.maximum.at(lengths, sequence[at], positions[at] + 1)
        starts = np.cumsum(lengths) - lengths
        texts = [
            self._pages[pages[: -(-length // PAGE_TOKENS)]].reshape(-1)[:length]
            for pages, length in zip(work.pages, lengths.tolist(), strict=True)
            if length
        ]
        if not texts:
            return sample_tokens(torch.zeros(0, self._vocab), work.draws)
        tokens, places = np.concatenate(texts), np.concatenate([np.arange(len(text)) for text in texts])
        device = self._model.device
        hidden = self._model.run(
            torch.from_numpy(tokens.astype(np.int64)).to(device), torch.from_numpy(places).to(device), _no_attention,
            functional.linear,
        )  # fmt: skip
        wanted = torch.from_numpy(starts[sequence[at]] + positions[at]).to(device)
        return sample_tokens(self._model.logits(hidden[wanted], functional.linear)[:, : self._vocab], work.draws)

    def copy(self, source: NDArray[np.int32], target: NDArray[np.int32]) -> None:
        self._pages[target] = self._pages[source]


def _no_attention(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    del layer, query, key, value
    raise AssertionError("a model that computes whole texts has attention of its own")
