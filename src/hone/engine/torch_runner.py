"""The runner that needs no compiler: the trainer's own parameters, or a copy, over pages that torch keeps."""

from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from hone.core.routing import Routing, routing_dtype
from hone.engine import flash
from hone.engine.cuda_steps import RecordedSteps, can_record, draw_rows, draws_only, recorded_rows
from hone.engine.half_weights import HalfWeights, casting_linear
from hone.engine.paged import PagedAttention, PagedKvCache
from hone.engine.protocol import GenerationModel, LinearFn, PagedAttentionFn
from hone.engine.sampler import sample_tokens
from hone.engine.work import ForwardBatch, SamplerOutput

PAGE_TOKENS: Final = 64


class TorchRunner:
    """Implements `ModelRunner`. Parameter updates take effect at once, unless the model is a copy of `trainer`'s.

    On CUDA in bfloat16, a mixed-precision trainer's included, it uses torch's paged attention, and records decoding
    steps as CUDA graphs.
    """

    def __init__(
        self,
        model: GenerationModel,
        *,
        vocab_used: int,
        page_tokens: int | None = None,
        fixed_tokens: int | None = None,
        source_model: GenerationModel | None = None,
        compiled: bool = False,
    ) -> None:
        """`vocab_used`: token ids from there on are never sampled and have probability 0.

        `fixed_tokens`: every pass is padded to this many tokens, so that every product has the same shape and, on CUDA,
        uses the same kernel (`deterministic = "batch"`). A row then costs the same as all of them.

        `trainer`: source of the weights on `publish`; None: the model's own.

        `compiled`: layers are compiled by `torch.compile`, which takes seconds to minutes at first.
        """
        self._model, self._vocab, self._fixed, self._trainer = model, vocab_used, fixed_tokens, source_model
        self._half = HalfWeights(model) if _computes_in_half(model) else None
        self._flash = model.device.type == "cuda" and (self._half is not None or model.dtype == torch.bfloat16)
        self._page_tokens = page_tokens or (flash.PAGE_TOKENS if self._flash else PAGE_TOKENS)
        self._compiled, self._tile = compiled, model.rows.tile
        kind = None if self._half is None else torch.bfloat16
        self._run = model.compiled_run(kind) if compiled else partial(model.run, kind=kind)
        self._linear: LinearFn = functional.linear if compiled else model.rows
        if self._half is not None:
            self._linear = casting_linear if compiled else self._half.linear
        self._keys: PagedKvCache | None = None
        self._steps: RecordedSteps | None = None
        self._scratch = 0

    @property
    def name(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        return f"torch {kind} ({self._model.device.type}{', compiled' if self._compiled else ''})"

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of its products, and of its keys and values."""
        return self._model.dtype if self._half is None else torch.bfloat16

    @property
    def exact(self) -> bool:
        """True if measurements showed independence of batch mates; False on CUDA, and with torch.compile."""
        return not self._compiled and self._model.rows.exact and self._model.device.type == "cpu"

    @property
    def page_tokens(self) -> int:
        return self._page_tokens

    def reserve(self, pages: int) -> None:
        model, self._scratch = self._model, pages
        self._keys = PagedKvCache(
            model.config,
            pages=pages + 1,  # the last is where padding goes
            page_tokens=self._page_tokens,
            dtype=self.dtype,
            device=model.device,
        )
        if self._flash and model.config.experts is None:  # how many tokens an expert gets is not known beforehand
            self._steps = RecordedSteps(
                self._step_logits, scratch=self._scratch, page_tokens=self._page_tokens, device=model.device
            )

    def release(self) -> None:
        """Free pages; the weights are the trainer's, or copies that stay."""
        self._keys = self._steps = None

    @torch.no_grad()
    def publish(self) -> None:
        """Copy the trainer's weights, in place, where it does not read them."""
        if self._trainer is not None:
            theirs = self._trainer.stored_tensors()
            for name, mine in self._model.stored_tensors().items():
                mine.copy_(theirs[name])
        if self._half is not None:
            self._half.refresh()

    @torch.inference_mode()
    def run(self, work: ForwardBatch) -> SamplerOutput:
        assert self._keys is not None, "reserve pages first"
        if self._steps is not None and can_record(work):
            count = len(work.tokens)
            return self._steps.run(work, rows=recorded_rows(count) if self._fixed is None else self._rows(count))
        hidden, chosen = self._flashed(work) if self._flash else self._eager(work, self._keys)
        wanted = len(work.draws.token_index)
        at = np.zeros(self._rows(wanted), np.int64)
        at[:wanted] = work.draws.token_index
        logits = self._logits(hidden[torch.from_numpy(at).to(self._model.device)])
        same = self._flash and draws_only(work.draws)
        drawn = draw_rows(logits, work.draws) if same else sample_tokens(logits[:wanted], work.draws)
        return drawn if chosen is None else replace(drawn, routing=self._routing(chosen[: len(work.tokens)]))

    @torch.inference_mode()
    def copy(self, source: NDArray[np.int32], target: NDArray[np.int32]) -> None:
        assert self._keys is not None, "reserve pages first"
        device = self._model.device
        self._keys.copy(
            torch.from_numpy(source.astype(np.int64)).to(device), torch.from_numpy(target.astype(np.int64)).to(device)
        )

    def _routing(self, chosen: Tensor) -> Routing:
        """`[T, L, k]` numbers of experts, in the type in which routes are kept."""
        experts = self._model.config.experts
        assert experts is not None
        return chosen.to(torch.int32).cpu().numpy().astype(routing_dtype(experts.count))

    def _forward(self, tokens: Tensor, positions: Tensor, attend: PagedAttentionFn) -> tuple[Tensor, Tensor | None]:
        """Hidden states, and the experts of a mixture."""
        if self._model.config.experts is None:
            return self._run(tokens, positions, attend, self._linear), None
        return self._model.run_routed(tokens, positions, attend, self._linear)

    def _eager(self, work: ForwardBatch, keys: PagedKvCache) -> tuple[Tensor, Tensor | None]:
        device, count = self._model.device, len(work.tokens)
        tokens, positions = np.zeros((2, self._rows(count)), np.int64)
        tokens[:count], positions[:count] = work.tokens, work.positions
        attend = PagedAttention(self._model, keys, work)
        return self._forward(torch.from_numpy(tokens).to(device), torch.from_numpy(positions).to(device), attend)

    def _flashed(self, work: ForwardBatch) -> tuple[Tensor, Tensor | None]:
        rows = self._rows(len(work.tokens))
        places = flash.flash_inputs(
            work, rows=rows, scratch=self._scratch, page_tokens=self._page_tokens, device=self._model.device
        )
        return self._forward(places.tokens, places.positions, self._attention(places))

    def _step_logits(self, places: flash.FlashInputs, at: Tensor) -> Tensor:
        """`[R, vocab_used]` logits after the tokens `at` `[R]` of a pass."""
        hidden = self._run(places.tokens, places.positions, self._attention(places), self._linear)
        return self._logits(hidden[at])

    def _logits(self, hidden: Tensor) -> Tensor:
        found = self._model.logits(hidden, self._linear) if self._half is None else self._half.logits(hidden)
        return found[:, : self._vocab]

    def _attention(self, places: flash.FlashInputs) -> PagedAttentionFn:
        assert self._keys is not None
        splits = 1 if self._fixed else None
        return flash.FlashPagedAttention(self._model.config, self._keys.store, places, splits=splits)

    def _rows(self, count: int) -> int:
        multiple = self._fixed or self._tile
        return -(-count // multiple) * multiple


def _computes_in_half(model: GenerationModel) -> bool:
    """True for a dense model on a GPU whose trainer computes in bfloat16."""
    return model.device.type == "cuda" and model.compute == torch.bfloat16 and model.config.experts is None
