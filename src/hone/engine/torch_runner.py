"""The runner that needs no compiler: the trainer's own parameters, or a copy, over pages that torch keeps.

On a CUDA device attention is by torch's paged variable-length kernel, and decoding steps are recorded.
"""

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from hone.core.episodes import Routing, routing_dtype
from hone.engine.protocol import GenerationModel, LinearFn, ModelShape, PagedAttentionFn, UnmergedAdapter
from hone.engine.work import DRAW, ForwardBatch, SamplerInput, SamplerOutput

# ------------------------------------------------------------------------------------------------------------ attention


_LONG_PAGE_TOKENS: Final = 256
"""Page size that every version of the kernel supports; and of states, one a page, as large as hundreds of keys."""


@dataclass(slots=True)
class _FlashInputs:
    """Positions of one pass's tokens, on the device."""

    tokens: Tensor
    """`[T]` int64, as are the next three."""
    positions: Tensor
    page: Tensor
    """Page of each token's key."""
    slot: Tensor
    """Position of the key within its page."""
    starts: Tensor
    """`[B+1]` int32: sequence b owns the tokens `starts[b]:starts[b+1]`."""
    used: Tensor
    """`[B]` int32: keys of each sequence, this pass's included."""
    pages: Tensor
    """`[B, most]` int32."""
    longest: int
    """Largest number of tokens of a sequence in this pass."""


def _flash_inputs(
    work: ForwardBatch, *, rows: int, scratch: int, page_tokens: int, device: torch.device
) -> _FlashInputs:
    """`work`, its tokens padded to `rows`; each padding token is a sequence of its own on the page `scratch`.

    The tokens of one sequence are contiguous in `work`.
    """
    count, padding = len(work.tokens), rows - len(work.tokens)
    pages = np.full((len(work.pages) + padding, work.pages.shape[1]), scratch, np.int32)
    pages[: len(work.pages)] = work.pages
    lengths = np.concatenate([np.bincount(work.sequence, minlength=len(work.pages)), np.ones(padding, np.int64)])
    positions = np.zeros(rows, np.int64)
    positions[:count] = work.positions
    tokens = np.zeros(rows, np.int64)
    tokens[:count] = work.tokens
    sequence = np.concatenate([work.sequence.astype(np.int64), len(work.pages) + np.arange(padding)])
    starts = np.concatenate([[0], np.cumsum(lengths)])
    used = positions[starts[1:] - 1] + 1

    def there(column: np.ndarray, dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(column)).to(device, dtype)

    return _FlashInputs(
        tokens=there(tokens, torch.int64),
        positions=there(positions, torch.int64),
        page=there(pages[sequence, positions // page_tokens], torch.int64),
        slot=there(positions % page_tokens, torch.int64),
        starts=there(starts, torch.int32),
        used=there(used, torch.int32),
        pages=there(pages, torch.int32),
        longest=int(lengths.max()),
    )


class _FlashPagedAttention:
    """An `Attend` over pages `[layers, 2, pages, page_tokens, kv_heads, head_dim]` in float16 or bfloat16."""

    def __init__(self, shape: ModelShape, store: Tensor, places: _FlashInputs, *, splits: int | None) -> None:
        """`splits` = 1: keys are summed in one order in every batch; None: chosen by the kernel."""
        self._shape, self._store, self._places, self._splits = shape, store, places, splits

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        places, shape = self._places, self._shape
        keys, values = self._store[layer]
        keys[places.page, places.slot] = key
        values[places.page, places.slot] = value
        window = shape.window(layer)
        before = -1 if window is None else window - 1
        # One order of sums needs one kernel, which is chosen by the longest chunk.
        longest = places.longest if self._splits is None else len(places.tokens)
        # Imported here: it imports the compiler of torch, seconds that every command would wait for.
        from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415

        mixed = varlen_attn(
            query, keys, values, places.starts, None, longest, places.pages.shape[1] * keys.shape[1],
            scale=shape.head_dim**-0.5, window_size=(before, 0), enable_gqa=shape.heads > shape.kv_heads,
            seqused_k=places.used, block_table=places.pages, num_splits=self._splits,
        )  # fmt: skip
        assert isinstance(mixed, Tensor)
        return mixed.flatten(1)


# ----------------------------------------------------------------------------------------------------------- cuda steps
# Decoding steps on a CUDA device: one token of every row, from its number to the next drawn one, as recorded graphs.
#
# A step is two copies to the device, one replay and one copy back: launching its hundreds of small kernels one by one
# would take many times longer than running them. The sizes that are recorded differ by a third at most.


BLOCK: Final = 128
"""Tokens whose probabilities are summed first: only the drawn block's are added up one by one."""
_COLUMNS: Final = ("tokens", "positions", "page", "slot", "at", "given", "greedy", "used")
"""Integer inputs of a row, in the order in which they lie in the buffer."""


def _recorded_rows(count: int) -> int:
    """Smallest recorded size for `count` rows: powers of two, and halfway between two of them."""
    above = 1 << (count - 1).bit_length()
    return above * 3 // 4 if above >= 4 and count <= above * 3 // 4 else above


def _can_record(work: ForwardBatch) -> bool:
    """True if a pass is one token of each sequence, drawn without more questions: what a recorded step computes."""
    single = len(work.tokens) == len(work.pages) and len(work.draws.token_index) <= len(work.tokens)
    return single and _draws_only(work.draws)


def _draws_only(draws: SamplerInput) -> bool:
    """True if no row truncates (top-k, top-p, min-p), has a grammar or asks for its likeliest tokens."""
    cut = (draws.top_k > 0) | (draws.top_p < 1) | (draws.min_p > 0)
    return draws.top_logprobs is None and draws.allowed is None and not bool((cut & ~draws.greedy).any())


class _StepInputs:
    """Inputs of a step of `rows` rows, as two buffers that a recorded graph reads again with new contents."""

    def __init__(self, rows: int, most_pages: int, *, scratch: int, page_tokens: int, device: torch.device) -> None:
        """`scratch`: page of the rows beyond the sequences; `most_pages` pages of a sequence."""
        self.rows, self._scratch, self._page_tokens = rows, scratch, page_tokens
        pinned, size = device.type == "cuda", rows * (len(_COLUMNS) + most_pages) + rows + 1
        self._host_ints = torch.zeros(size, dtype=torch.int32, pin_memory=pinned)
        self._host_floats = torch.zeros(2 * rows, dtype=torch.float64, pin_memory=pinned)
        self._ints, self._floats = self._host_ints.to(device), self._host_floats.to(device)
        ints, floats = self._host_ints.numpy(), self._host_floats.numpy()
        self._columns = {name: ints[place * rows : (place + 1) * rows] for place, name in enumerate(_COLUMNS)}
        self._starts_at = len(_COLUMNS) * rows
        ints[self._starts_at : self._starts_at + rows + 1] = np.arange(rows + 1)
        self._pages = ints[self._starts_at + rows + 1 :].reshape(rows, most_pages)
        self._uniform, self._temperature = floats[:rows], floats[rows:]

    def load(self, work: ForwardBatch) -> None:
        """Copy a pass's inputs to the device; rows beyond its sequences are padding."""
        count, draws, columns = len(work.tokens), work.draws, self._columns
        for name, values in (
            ("tokens", work.tokens),
            ("positions", work.positions),
            ("page", work.pages[work.sequence, work.positions // self._page_tokens]),
            ("slot", work.positions % self._page_tokens),
            ("used", work.positions + 1),
            ("at", draws.token_index),
            ("given", draws.forced_token),
            ("greedy", draws.greedy),
        ):
            columns[name][: len(values)] = values
            columns[name][len(values) :] = 0
        columns["page"][count:], columns["used"][count:] = self._scratch, 1
        self._pages[:count], self._pages[count:] = work.pages[work.sequence], self._scratch
        drawn = len(draws.uniform)
        self._uniform[:drawn], self._uniform[drawn:] = draws.uniform, 0.0
        self._temperature[:drawn], self._temperature[drawn:] = draws.temperature, 1.0
        self._ints.copy_(self._host_ints, non_blocking=True)
        self._floats.copy_(self._host_floats, non_blocking=True)

    def read(self) -> tuple[_FlashInputs, dict[str, Tensor]]:
        """The inputs as attention and the sampler take them; recorded with the step."""
        rows, ints = self.rows, self._ints
        wide = ints[: len(_COLUMNS) * rows].to(torch.int64).view(len(_COLUMNS), rows)
        column = {name: wide[place] for place, name in enumerate(_COLUMNS)}
        behind = self._starts_at + rows + 1
        places = _FlashInputs(
            tokens=column["tokens"],
            positions=column["positions"],
            page=column["page"],
            slot=column["slot"],
            starts=ints[self._starts_at : behind],
            used=ints[(len(_COLUMNS) - 1) * rows : self._starts_at],
            pages=ints[behind:].view(rows, -1),
            longest=1,
        )
        drawing = {name: column[name] for name in ("at", "given", "greedy")}
        return places, drawing | {"uniform": self._floats[:rows], "temperature": self._floats[rows:]}


class _RecordedSteps:
    """Steps recorded once for each size and played again."""

    def __init__(
        self, logits: Callable[[_FlashInputs, Tensor], Tensor], *, scratch: int, page_tokens: int, device: torch.device
    ) -> None:
        """`logits`: the model's, `[R, vocab]` in float32, for the rows `[R]` of a pass."""
        self._logits, self._scratch, self._page_tokens, self._device = logits, scratch, page_tokens, device
        self._known: dict[tuple[int, int], tuple[_StepInputs, Callable[[], Tensor]]] = {}
        self._recorded: torch.cuda.CUDAGraph | None = None

    def run(self, work: ForwardBatch, *, rows: int) -> SamplerOutput:
        """A pass of one token of each sequence, padded to `rows`."""
        key = (rows, work.pages.shape[1])
        if key not in self._known:
            inputs = _StepInputs(*key, scratch=self._scratch, page_tokens=self._page_tokens, device=self._device)
            inputs.load(work)
            self._known[key] = inputs, self._record(inputs)
        inputs, play = self._known[key]
        inputs.load(work)
        return _output(play(), len(work.draws.token_index))

    def _step(self, inputs: _StepInputs) -> Tensor:
        places, drawing = inputs.read()
        return _draw_tokens(self._logits(places, drawing["at"]), **{k: v for k, v in drawing.items() if k != "at"})

    def _record(self, inputs: _StepInputs) -> Callable[[], Tensor]:
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # workspaces are allocated outside of the recording
            for _ in range(2):
                self._step(inputs)
        torch.cuda.current_stream().wait_stream(aside)
        # Steps run one after another, and share their memory.
        graph, pool = torch.cuda.CUDAGraph(), None if self._recorded is None else self._recorded.pool()
        # A graph that the collector finds and frees meanwhile would end the recording with an error.
        gc.collect()
        gc.disable()
        try:
            with torch.cuda.graph(graph, pool=pool):
                drawn = self._step(inputs)
        finally:
            gc.enable()
        self._recorded = graph

        def play() -> Tensor:
            graph.replay()
            return drawn

        return play


def _draw_rows(logits: Tensor, draws: SamplerInput) -> SamplerOutput:
    """Draw after `logits` `[R, vocab]`, whose rows beyond the draws are padding: the arithmetic of a recorded step."""
    count = len(draws.token_index)

    def column(values: NDArray[np.generic], fill: float) -> Tensor:
        padded = np.full(len(logits), fill, np.float64)
        padded[:count] = values
        return torch.from_numpy(padded).to(logits.device)

    drawn = _draw_tokens(
        logits,
        uniform=column(draws.uniform, 0.0),
        temperature=column(draws.temperature, 1.0),
        given=column(draws.forced_token, 0.0).long(),
        greedy=column(draws.greedy, 0.0).long(),
    )
    return _output(drawn, count)


def _output(drawn: Tensor, count: int) -> SamplerOutput:
    token, logp, sampled = drawn.cpu().numpy()[:, :count]
    return SamplerOutput(
        token=token.astype(np.int32),
        logp=logp.astype(np.float32),
        sampled_logp=sampled.astype(np.float32),
        sampling_mask_bits=None,
    )


def _draw_tokens(logits: Tensor, *, uniform: Tensor, temperature: Tensor, given: Tensor, greedy: Tensor) -> Tensor:
    """`[3, R]` float64: tokens, and their log-probabilities in nats under the policy and under what was drawn from.

    The draw of `sample_tokens` without truncation, up to rounding: the first token at which the cumulative
    probability exceeds `uniform` `[R]`. `logits` `[R, vocab]` in float32 are read three times, and sums are float64:
    of blocks first, then within the block that holds the draw. `given` `[R]`: DRAW, or a token that takes the place of
    the draw. `greedy` `[R]`: 0, or 1 for the likeliest token.
    """
    rows, vocab = logits.shape
    scaled = logits / temperature.to(logits.dtype)[:, None]
    top, best = scaled.max(dim=-1)
    weight = torch.exp(scaled - top[:, None])
    if vocab % BLOCK:
        weight = functional.pad(weight, (0, -vocab % BLOCK))
    weight = weight.view(rows, -1, BLOCK)
    cdf = weight.sum(dim=-1, dtype=torch.float64).cumsum(dim=-1)
    total = cdf[:, -1]
    # uniform < 1, but its product with the total may round up to it: then no entry would exceed it.
    target = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))[:, None]
    block = torch.searchsorted(cdf, target, right=True).clamp_(max=cdf.shape[1] - 1)
    before = torch.where(block > 0, cdf.gather(1, (block - 1).clamp_(min=0)), 0.0)
    inside = weight.gather(1, block[:, :, None].expand(-1, -1, BLOCK))[:, 0]
    place = torch.searchsorted(inside.double().cumsum(dim=-1), target - before, right=True)[:, 0]
    # Rounding may point behind the block's last token that has a probability.
    numbers = torch.arange(BLOCK, device=logits.device)
    place = torch.minimum(place, torch.where(inside > 0, numbers, 0).amax(dim=-1))
    tokens = torch.where(greedy > 0, best, block[:, 0] * BLOCK + place)
    tokens = torch.where(given == DRAW, tokens, given).clamp_(max=vocab - 1)
    logp = (scaled.gather(1, tokens[:, None])[:, 0] - top).double() - total.log()
    certain = torch.where(tokens == best, 0.0, -torch.inf)
    return torch.stack([tokens.double(), logp, torch.where(greedy > 0, certain, logp)])


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
    """True if a row uses truncated sampling, or a grammar may."""
    allowed: Tensor | None
    """Bool `[n, vocab]` tokens that a grammar allows; None: all."""


def _sampling_tensors(draws: SamplerInput, device: torch.device) -> _SamplingTensors:
    """Settings of rows as tensors on a device."""
    cut = (draws.top_k > 0) | (draws.top_p < 1) | (draws.min_p > 0)
    bits = None if draws.allowed is None else np.unpackbits(draws.allowed, axis=1, bitorder="little")
    return _SamplingTensors(
        forced_token=torch.from_numpy(draws.forced_token).to(device, torch.int64),
        temperature=torch.from_numpy(draws.temperature).to(device),
        top_k=torch.from_numpy(draws.top_k).to(device, torch.int64),
        top_p=torch.from_numpy(draws.top_p).to(device),
        min_p=torch.from_numpy(draws.min_p).to(device),
        greedy=torch.from_numpy(draws.greedy).to(device),
        truncates=bool(((cut | (draws.allowed is not None)) & ~draws.greedy).any()),
        allowed=None if bits is None else torch.from_numpy(bits.astype(np.bool_)).to(device),
    )


def sample_tokens(logits: Tensor, draws: SamplerInput) -> SamplerOutput:
    """Inverse-CDF sampling: the first token at which the cumulative probability exceeds `uniform` `[n]`, in [0, 1).

    `logits` `[n, vocab]`, float32 at least. The cumulative sum runs in float64, by token id. A given token takes the
    place of the draw; everything else is the same arithmetic.
    """
    settings = _sampling_tensors(draws, logits.device)
    uniform = torch.from_numpy(draws.uniform).to(logits.device)
    logp = torch.log_softmax(logits / settings.temperature[:, None].to(logits.dtype), dim=-1)
    allowed, kept = logp, None
    if settings.allowed is not None:  # what a grammar leaves sums to 1; rows without one stay as they are, to the bit
        mask = settings.allowed[:, : logp.shape[1]]
        left = torch.log_softmax(logp.masked_fill(~mask, -torch.inf), dim=-1)
        allowed = torch.where(mask.all(dim=-1, keepdim=True), logp, left)
    drawn_from = allowed
    if settings.truncates:
        cut = (settings.top_k > 0) | (settings.top_p < 1) | (settings.min_p > 0)
        cut |= torch.zeros_like(cut) if settings.allowed is None else ~settings.allowed.all(dim=-1)
        rows = (cut & ~settings.greedy).nonzero()[:, 0]
        left = _truncate_logp(allowed[rows], settings.top_k[rows], settings.top_p[rows], settings.min_p[rows])
        drawn_from = allowed.index_copy(0, rows, torch.log_softmax(left, dim=-1))
        bits = np.packbits(torch.isfinite(left).cpu().numpy(), axis=1, bitorder="little")
        kept = np.zeros((len(logp), bits.shape[1]), np.uint8)
        kept[rows.cpu().numpy()] = bits
    tokens, greedy = _inverse_cdf(drawn_from, uniform), settings.greedy
    best = allowed.argmax(dim=-1)
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
        wide = torch.mm(left, right, out_dtype=torch.float32) if left.is_cuda else left.float() @ right.float()
        return self._model.finished_logits(wide)


def _casting_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`_HalfWeights.linear` without copies: for code that torch compiles."""
    low = None if bias is None else bias.to(torch.bfloat16)
    return functional.linear(x.to(torch.bfloat16), weight.to(torch.bfloat16), low)


# ---------------------------------------------------------------------------------------------------------------- paged


class _PagedKvCache:
    """`[layers, 2, pages, page_tokens, kv_heads, head_dim]`: keys and values; `[pages, numbers]`: states."""

    def __init__(
        self, shape: ModelShape, *, pages: int, page_tokens: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        sizes = (shape.cached_layers, 2, pages, page_tokens, shape.kv_heads, shape.head_dim)
        self.store = torch.zeros(sizes, dtype=dtype, device=device)
        wide = torch.promote_types(dtype, torch.float32)
        self.states = torch.zeros(pages, shape.state_numbers, dtype=wide, device=device)

    def copy(self, source: Tensor, target: Tensor) -> None:
        self.store[:, :, target] = self.store[:, :, source]
        self.states[target] = self.states[source]


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
        out[:count] = self._attention(query[:count], keys, values, layer)
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

        `source_model`: source of the weights on `publish`; None: the model's own.

        `compiled`: layers are compiled by `torch.compile`, which takes seconds to minutes at first.
        """
        self.model, self._vocab, self._fixed, self._trainer = model, vocab_used, fixed_tokens, source_model
        """What it computes with: the trainer's model, or a copy."""
        self._half = _HalfWeights(model) if _computes_in_half(model) else None
        self._flash = model.device.type == "cuda" and (self._half is not None or model.dtype == torch.bfloat16)
        stateful = model.config.state_numbers > 0
        self._flash = self._flash and model.config.score_cap is None and not stateful  # its kernel has no such scores
        self._page_tokens = page_tokens or (_LONG_PAGE_TOKENS if self._flash or stateful else PAGE_TOKENS)
        self._compiled, self._tile = compiled, model.rows.tile
        kind = None if self._half is None else torch.bfloat16
        self._run = model.compiled_run(kind) if compiled else partial(model.run, kind=kind)
        self._linear: LinearFn = functional.linear if compiled else model.rows
        if self._half is not None:
            self._linear = _casting_linear if compiled else self._half.linear
        self.adapters: dict[str, UnmergedAdapter] = {}
        """Unmerged adapters by the names in `ForwardBatch.adapters`; see `takes_adapters`."""
        self._keys: _PagedKvCache | None = None
        self._steps: _RecordedSteps | None = None
        self._scratch = 0

    @property
    def takes_adapters(self) -> bool:
        """True where products are those of the model's own numbers, layer by layer."""
        return not self._compiled and self._half is None and not self._flash

    @property
    def name(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        return f"torch {kind} ({self.model.device.type}{', compiled' if self._compiled else ''})"

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of its products, and of its keys and values."""
        return self.model.dtype if self._half is None else torch.bfloat16

    @property
    def exact(self) -> bool:
        """True if measurements showed independence of batch mates; False on CUDA, and with torch.compile."""
        return not self._compiled and self.model.rows.exact and self.model.device.type == "cpu"

    @property
    def page_tokens(self) -> int:
        return self._page_tokens

    def reserve(self, pages: int) -> None:
        model, self._scratch = self.model, pages
        size, there = self._page_tokens, model.device  # the last page is where padding goes
        self._keys = _PagedKvCache(model.config, pages=pages + 1, page_tokens=size, dtype=self.dtype, device=there)
        if self._flash and model.config.experts is None:  # how many tokens an expert gets is not known beforehand
            self._steps = _RecordedSteps(self._step_logits, scratch=pages, page_tokens=size, device=there)

    def release(self) -> None:
        """Free pages; the weights are the trainer's, or copies that stay."""
        self._keys = self._steps = None

    @torch.no_grad()
    def publish(self) -> None:
        """Copy the trainer's weights, in place, where it does not read them."""
        if self._trainer is not None:
            theirs = self._trainer.stored_tensors()
            for name, mine in self.model.stored_tensors().items():
                mine.copy_(theirs[name])
        if self._half is not None:
            self._half.refresh()

    @torch.inference_mode()
    def run(self, work: ForwardBatch) -> SamplerOutput:
        assert self._keys is not None, "reserve pages first"
        if self._steps is not None and _can_record(work):
            count = len(work.tokens)
            return self._steps.run(work, rows=_recorded_rows(count) if self._fixed is None else self._rows(count))
        hidden, chosen = self._flashed(work) if self._flash else self._eager(work, self._keys)
        wanted, linear = len(work.draws.token_index), self._linear
        if work.adapters is not None:
            linear = self._adapted(work.adapters, work.sequence[work.draws.token_index])
        at = np.zeros(self._rows(wanted), np.int64)
        at[:wanted] = work.draws.token_index
        logits = self._logits(hidden[torch.from_numpy(at).to(self.model.device)], linear)
        same = self._flash and _draws_only(work.draws)
        drawn = _draw_rows(logits, work.draws) if same else sample_tokens(logits[:wanted], work.draws)
        return drawn if chosen is None else replace(drawn, routing=self._routing(chosen[: len(work.tokens)]))

    @torch.inference_mode()
    def copy(self, source: NDArray[np.int32], target: NDArray[np.int32]) -> None:
        assert self._keys is not None, "reserve pages first"
        pages = (torch.from_numpy(side.astype(np.int64)).to(self.model.device) for side in (source, target))
        self._keys.copy(*pages)

    def _routing(self, chosen: Tensor) -> Routing:
        """`[T, L, k]` numbers of experts, in the type in which routes are kept."""
        experts = self.model.config.experts
        assert experts is not None
        return chosen.to(torch.int32).cpu().numpy().astype(routing_dtype(experts.count))

    def _forward(
        self, tokens: Tensor, positions: Tensor, attend: PagedAttentionFn, linear: LinearFn
    ) -> tuple[Tensor, Tensor | None]:
        """Hidden states, and the experts of a mixture."""
        if self.model.config.experts is None:
            return self._run(tokens, positions, attend, linear), None
        return self.model.run_routed(tokens, positions, attend, linear)

    def _adapted(self, names: tuple[str, ...], sequence: NDArray[np.int32]) -> LinearFn:
        """`_linear` of rows that belong to `sequence` `[n]`, each with the adapter of its sequence; rows behind them
        are padding."""
        own = np.array(names)[sequence]
        rows = [(self.adapters[one], torch.from_numpy(np.flatnonzero(own == one))) for one in sorted({*names}) if one]

        def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
            out = self._linear(x, weight, bias)
            for adapter, at in rows:
                if len(at) and (added := adapter.product(x[at], weight, self._linear)) is not None:
                    out.index_add_(0, at.to(out.device), added)
            return out

        return product

    def _eager(self, work: ForwardBatch, keys: _PagedKvCache) -> tuple[Tensor, Tensor | None]:
        device, count = self.model.device, len(work.tokens)
        tokens, positions = np.zeros((2, self._rows(count)), np.int64)
        tokens[:count], positions[:count] = work.tokens, work.positions
        attend: PagedAttentionFn = _PagedAttention(self.model, keys, work)
        if keys.states.shape[1]:
            sequence, at, pages = (one.astype(np.int64) for one in (work.sequence, work.positions, work.pages))
            attend = self.model.paged_states(attend, keys.states, sequence, at, pages, self._page_tokens)
        linear = self._linear if work.adapters is None else self._adapted(work.adapters, work.sequence)
        places = torch.from_numpy(positions).to(device)
        return self._forward(torch.from_numpy(tokens).to(device), places, attend, linear)

    def _flashed(self, work: ForwardBatch) -> tuple[Tensor, Tensor | None]:
        rows = self._rows(len(work.tokens))
        places = _flash_inputs(
            work, rows=rows, scratch=self._scratch, page_tokens=self._page_tokens, device=self.model.device
        )
        return self._forward(places.tokens, places.positions, self._attention(places), self._linear)

    def _step_logits(self, places: _FlashInputs, at: Tensor) -> Tensor:
        """`[R, vocab_used]` logits after the tokens `at` `[R]` of a pass."""
        hidden = self._run(places.tokens, places.positions, self._attention(places), self._linear)
        return self._logits(hidden[at], self._linear)

    def _logits(self, hidden: Tensor, linear: LinearFn) -> Tensor:
        logits = self.model.logits(hidden, linear) if self._half is None else self._half.logits(hidden)
        return logits[:, : self._vocab]

    def _attention(self, places: _FlashInputs) -> PagedAttentionFn:
        assert self._keys is not None
        return _FlashPagedAttention(self.model.config, self._keys.store, places, splits=1 if self._fixed else None)

    def _rows(self, count: int) -> int:
        return -(-count // (multiple := self._fixed or self._tile)) * multiple


def _computes_in_half(model: GenerationModel) -> bool:
    """True for a dense model on a GPU whose trainer computes in bfloat16."""
    return model.device.type == "cuda" and model.compute == torch.bfloat16 and model.config.experts is None
