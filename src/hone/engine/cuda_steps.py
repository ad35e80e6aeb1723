"""Decoding steps on a CUDA device: one token of every row, from its number to the next drawn one, as recorded graphs.

A step is two copies to the device, one replay and one copy back: launching its hundreds of small kernels one by one
would take many times longer than running them. The sizes that are recorded differ by a third at most.
"""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from hone.engine.protocol import ModelShape
from hone.engine.work import DRAW, ForwardBatch, SamplerInput, SamplerOutput

# ------------------------------------------------------------------------------------------------------------ attention


PAGE_TOKENS: Final = 256
"""Page size that every version of the kernel supports."""


@dataclass(slots=True)
class FlashInputs:
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


def flash_inputs(work: ForwardBatch, *, rows: int, scratch: int, page_tokens: int, device: torch.device) -> FlashInputs:
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

    return FlashInputs(
        tokens=there(tokens, torch.int64),
        positions=there(positions, torch.int64),
        page=there(pages[sequence, positions // page_tokens], torch.int64),
        slot=there(positions % page_tokens, torch.int64),
        starts=there(starts, torch.int32),
        used=there(used, torch.int32),
        pages=there(pages, torch.int32),
        longest=int(lengths.max()),
    )


class FlashPagedAttention:
    """An `Attend` over pages `[layers, 2, pages, page_tokens, kv_heads, head_dim]` in float16 or bfloat16."""

    def __init__(self, shape: ModelShape, store: Tensor, places: FlashInputs, *, splits: int | None) -> None:
        """`splits` = 1: keys are summed in one order in every batch; None: chosen by the kernel."""
        self._shape, self._store, self._places, self._splits = shape, store, places, splits

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        places, shape = self._places, self._shape
        keys, values = self._store[layer]
        keys[places.page, places.slot] = key
        values[places.page, places.slot] = value
        # One order of sums needs one kernel, which is chosen by the longest chunk.
        longest = places.longest if self._splits is None else len(places.tokens)
        # Imported here: it imports the compiler of torch, seconds that every command would wait for.
        from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415

        mixed = varlen_attn(
            query, keys, values, places.starts, None, longest, places.pages.shape[1] * keys.shape[1],
            scale=shape.head_dim**-0.5, window_size=(-1, 0), enable_gqa=shape.heads > shape.kv_heads,
            seqused_k=places.used, block_table=places.pages, num_splits=self._splits,
        )  # fmt: skip
        assert isinstance(mixed, Tensor)
        return mixed.flatten(1)


# ----------------------------------------------------------------------------------------------------------- cuda steps


BLOCK: Final = 128
"""Tokens whose probabilities are summed first: only the drawn block's are added up one by one."""
_COLUMNS: Final = ("tokens", "positions", "page", "slot", "at", "given", "greedy", "used")
"""Integer inputs of a row, in the order in which they lie in the buffer."""


def recorded_rows(count: int) -> int:
    """Smallest recorded size for `count` rows: powers of two, and halfway between two of them."""
    above = 1 << (count - 1).bit_length()
    return above * 3 // 4 if above >= 4 and count <= above * 3 // 4 else above


def can_record(work: ForwardBatch) -> bool:
    """True if a pass is one token of each sequence, drawn without more questions: what a recorded step computes."""
    single = len(work.tokens) == len(work.pages) and len(work.draws.token_index) <= len(work.tokens)
    return single and draws_only(work.draws)


def draws_only(draws: SamplerInput) -> bool:
    """True if no row truncates (top-k, top-p, min-p) or asks for its likeliest tokens."""
    cut = (draws.top_k > 0) | (draws.top_p < 1) | (draws.min_p > 0)
    return draws.top_logprobs is None and not bool((cut & ~draws.greedy).any())


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

    def read(self) -> tuple[FlashInputs, dict[str, Tensor]]:
        """The inputs as attention and the sampler take them; recorded with the step."""
        rows, ints = self.rows, self._ints
        wide = ints[: len(_COLUMNS) * rows].to(torch.int64).view(len(_COLUMNS), rows)
        column = {name: wide[place] for place, name in enumerate(_COLUMNS)}
        behind = self._starts_at + rows + 1
        places = FlashInputs(
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


class RecordedSteps:
    """Steps recorded once for each size and played again."""

    def __init__(
        self, logits: Callable[[FlashInputs, Tensor], Tensor], *, scratch: int, page_tokens: int, device: torch.device
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


def draw_rows(logits: Tensor, draws: SamplerInput) -> SamplerOutput:
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

    The draw of `sampler.sample_tokens` without truncation, up to rounding: the first token at which the cumulative
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
