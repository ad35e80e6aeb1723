"""The runner that needs no compiler: the trainer's own parameters, or a copy, over pages that torch keeps."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from hone.core.routing import Routing, routing_dtype
from hone.engine import cuda_steps as flash
from hone.engine.cuda_steps import RecordedSteps, can_record, draw_rows, draws_only, recorded_rows
from hone.engine.protocol import GenerationModel, LinearFn, ModelShape, PagedAttentionFn
from hone.engine.work import DRAW, ForwardBatch, SamplerInput, SamplerOutput

# -------------------------------------------------------------------------------------------------------------- sampler


@dataclass(frozen=True, slots=True, kw_only=True)
class _SamplingTensors:
    """Settings of each row `[n]`; see `work.SamplerInput`."""

    forced_token: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    greedy: Tensor
    """Bool."""
    truncates: bool
    """True if a row uses truncated sampling."""


def _sampling_tensors(draws: SamplerInput, device: torch.device) -> _SamplingTensors:
    """Settings of rows as tensors on a device."""
    cut = (draws.top_k > 0) | (draws.top_p < 1) | (draws.min_p > 0)
    return _SamplingTensors(
        forced_token=torch.from_numpy(draws.forced_token).to(device, torch.int64),
        temperature=torch.from_numpy(draws.temperature).to(device),
        top_k=torch.from_numpy(draws.top_k).to(device, torch.int64),
        top_p=torch.from_numpy(draws.top_p).to(device),
        min_p=torch.from_numpy(draws.min_p).to(device),
        greedy=torch.from_numpy(draws.greedy).to(device),
        truncates=bool((cut & ~draws.greedy).any()),
    )


def _sample_tokens(logits: Tensor, draws: SamplerInput) -> SamplerOutput:
    """Inverse-CDF sampling: the first token at which the cumulative probability exceeds `uniform` `[n]`, in [0, 1).

    `logits` `[n, vocab]`, float32 at least. The cumulative sum runs in float64, by token id. A given token takes the
    place of the draw; everything else is the same arithmetic.
    """
    settings = _sampling_tensors(draws, logits.device)
    uniform = torch.from_numpy(draws.uniform).to(logits.device)
    logp = torch.log_softmax(logits / settings.temperature[:, None].to(logits.dtype), dim=-1)
    drawn_from, kept = logp, None
    if settings.truncates:
        cut = ((settings.top_k > 0) | (settings.top_p < 1) | (settings.min_p > 0)) & ~settings.greedy
        rows = cut.nonzero()[:, 0]
        left = _truncate_logp(logp[rows], settings.top_k[rows], settings.top_p[rows], settings.min_p[rows])
        drawn_from = logp.index_copy(0, rows, torch.log_softmax(left, dim=-1))
        bits = np.packbits(torch.isfinite(left).cpu().numpy(), axis=1, bitorder="little")
        kept = np.zeros((len(logp), bits.shape[1]), np.uint8)
        kept[rows.cpu().numpy()] = bits
    tokens, greedy = _inverse_cdf(drawn_from, uniform), settings.greedy
    best = logp.argmax(dim=-1)
    tokens = torch.where(greedy, best, tokens)
    tokens = torch.where(settings.forced_token == DRAW, tokens, settings.forced_token)
    at = tokens[:, None]
    sampled = drawn_from.gather(1, at)[:, 0]
    certain = torch.where(tokens == best, 0.0, -torch.inf).to(sampled.dtype)
    top_tokens, top_logp = (None, None) if draws.top_logprobs is None else _rank_likeliest(logp, draws.top_logprobs)
    return SamplerOutput(
        token=tokens.cpu().numpy().astype(np.int32),
        logp=logp.gather(1, at)[:, 0].float().cpu().numpy(),
        sampled_logp=torch.where(greedy, certain, sampled).float().cpu().numpy(),
        sampling_mask_bits=kept,
        top_tokens=top_tokens,
        top_logp=top_logp,
    )


def _rank_likeliest(logp: Tensor, counts: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The likeliest tokens of each row of `logp` `[n, vocab]`, and their log-probabilities `[n, K]`: as many as its
    count in `counts` `[n]`, at most the vocabulary. Ties from the smaller id."""
    most = min(int(counts.max(initial=0)), logp.shape[1])
    tokens, values = np.zeros((len(logp), most), np.int32), np.zeros((len(logp), most), np.float32)
    asked = np.flatnonzero(counts)
    ranked, order = logp[torch.from_numpy(asked).to(logp.device)].sort(dim=-1, descending=True, stable=True)
    tokens[asked] = order[:, :most].cpu().numpy()
    values[asked] = ranked[:, :most].float().cpu().numpy()
    return tokens, values


def _inverse_cdf(logp: Tensor, uniform: Tensor) -> Tensor:
    cdf = logp.double().exp_().cumsum(dim=-1)
    total = cdf[:, -1]
    # uniform < 1, but its product with the total may round up to it: then no entry would exceed it.
    target = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    result = torch.searchsorted(cdf, target[:, None], right=True)[:, 0]
    return result.clamp_(max=logp.shape[1] - 1)  # only rows of NaN come here beyond the end


def _truncate_logp(logp: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """`logp` `[n, vocab]` with -inf for tokens removed by top-k, then top-p of the rest, then min-p; the most likely
    always stays. Ties are broken towards the smaller token id.
    """
    ranked, order = logp.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logp.shape[1], device=logp.device)
    limit = torch.where(top_k > 0, top_k, logp.shape[1])[:, None]
    ranked = ranked.masked_fill(rank >= limit, -torch.inf)
    p = torch.softmax(ranked, dim=-1).double()
    before = p.cumsum(dim=-1) - p
    out = (before >= top_p[:, None].double()) & (rank > 0) & (top_p < 1)[:, None]
    out |= p < min_p[:, None].double() * p[:, :1]
    ranked = ranked.masked_fill(out, -torch.inf)
    return torch.empty_like(logp).scatter_(1, order, ranked)


# --------------------------------------------------------------------------------------------------------- half weights


class _HalfWeights:
    """Matrices of a model in bfloat16: its own where they are, copies of float32 ones.

    Copies are refreshed in place: a recorded step reads the same memory again.
    """

    def __init__(self, model: GenerationModel) -> None:
        self._model = model
        self._copies: dict[int, Tensor] = {}

    @torch.no_grad()
    def refresh(self) -> None:
        """Read the model's present weights."""
        for _, weight in self._model.named_parameters():
            known = self._copies.get(id(weight))
            if known is None:
                self._copies[id(weight)] = weight.detach().to(torch.bfloat16)
            elif weight.dtype != torch.bfloat16:
                known.copy_(weight)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """`x [N, in] @ weight [out, in]^T + bias [out]` -> `[N, out]` bfloat16; sums are float32."""
        low = None if bias is None else self._copies[id(bias)]
        return functional.linear(x.to(torch.bfloat16), self._copies[id(weight)], low)

    def logits(self, hidden: Tensor) -> Tensor:
        """`[N, hidden_size]` -> `[N, vocab_size]` float32, not rounded to bfloat16."""
        left, right = hidden.to(torch.bfloat16), self._copies[id(self._model.output_weight)].t()
        return torch.mm(left, right, out_dtype=torch.float32) if left.is_cuda else left.float() @ right.float()


def _casting_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`_HalfWeights.linear` without copies: for code that torch compiles."""
    low = None if bias is None else bias.to(torch.bfloat16)
    return functional.linear(x.to(torch.bfloat16), weight.to(torch.bfloat16), low)


# ---------------------------------------------------------------------------------------------------------------- paged


class _PagedKvCache:
    """`[layers, 2, pages, page_tokens, kv_heads, head_dim]`: keys and values."""

    def __init__(
        self, shape: ModelShape, *, pages: int, page_tokens: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        sizes = (shape.layers, 2, pages, page_tokens, shape.kv_heads, shape.head_dim)
        self.store = torch.zeros(sizes, dtype=dtype, device=device)

    def copy(self, source: Tensor, target: Tensor) -> None:
        self.store[:, :, target] = self.store[:, :, source]


class _PagedAttention:
    """An `Attend` for one pass, by the model's own arithmetic; tokens beyond `work.tokens` are padding: zeros."""

    def __init__(self, model: GenerationModel, keys: _PagedKvCache, work: ForwardBatch) -> None:
        size = keys.store.shape[3]
        self._store = keys.store.flatten(2, 3)
        pages = work.pages[:, : int(work.positions.max()) // size + 1].astype(np.int64)
        slots = (pages[:, :, None] * size + np.arange(size)).reshape(len(pages), -1)
        sequence, positions = work.sequence.astype(np.int64), work.positions.astype(np.int64)
        self._own = torch.from_numpy(slots[sequence, positions]).to(keys.store.device)
        self._attention = model.fixed_attention(sequence, positions, slots)

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        count = len(self._own)
        keys, values = self._store[layer]
        keys[self._own], values[self._own] = key[:count], value[:count]
        out = query.new_zeros(len(query), query.shape[1] * query.shape[2])
        out[:count] = self._attention(query[:count], keys, values)
        return out


# --------------------------------------------------------------------------------------------------------- torch runner


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
        self._half = _HalfWeights(model) if _computes_in_half(model) else None
        self._flash = model.device.type == "cuda" and (self._half is not None or model.dtype == torch.bfloat16)
        self._page_tokens = page_tokens or (flash.PAGE_TOKENS if self._flash else PAGE_TOKENS)
        self._compiled, self._tile = compiled, model.rows.tile
        kind = None if self._half is None else torch.bfloat16
        self._run = model.compiled_run(kind) if compiled else partial(model.run, kind=kind)
        self._linear: LinearFn = functional.linear if compiled else model.rows
        if self._half is not None:
            self._linear = _casting_linear if compiled else self._half.linear
        self._keys: _PagedKvCache | None = None
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
        self._keys = _PagedKvCache(
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
        drawn = draw_rows(logits, work.draws) if same else _sample_tokens(logits[:wanted], work.draws)
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

    def _eager(self, work: ForwardBatch, keys: _PagedKvCache) -> tuple[Tensor, Tensor | None]:
        device, count = self._model.device, len(work.tokens)
        tokens, positions = np.zeros((2, self._rows(count)), np.int64)
        tokens[:count], positions[:count] = work.tokens, work.positions
        attend = _PagedAttention(self._model, keys, work)
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
        logits = self._model.logits(hidden, self._linear) if self._half is None else self._half.logits(hidden)
        return logits[:, : self._vocab]

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
