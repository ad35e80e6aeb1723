"""Layers of Qwen3.5: linear attention by the gated delta rule (Yang et al., "Gated Delta Networks", 2025), and
attention whose result is multiplied by a gate.

A layer of linear attention keeps a state of one size in the place of keys and values. Its tokens are computed in runs:
tokens of one text that follow each other, whose state begins with nothing, where another run ended (a shared prompt),
or with what an engine kept in the page before.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from hone.core.ragged import Ints
from hone.models.language.config import ModelConfig
from hone.models.language.decoder_layer import (
    AnyProjection,
    CompiledLayerHalves,
    DecoderLayer,
    ForwardArithmetic,
    LinearProjection,
    RmsNorm,
)
from hone.models.language.fused_ops import apply_rotary
from hone.models.language.packed_attention import LayerAttention, similar_lengths
from hone.models.language.token_logprobs import at_least_float32
from hone.models.packing import PackedBatch, index_numbers

# ----------------------------------------------------------------------------------------------------------------- runs

CHUNK: Final = 64
"""Tokens that are computed by matrix products; the state goes from chunk to chunk."""
_NOTHING: Final = -1
"""Start of a run: there was no token before."""


@dataclass(frozen=True, slots=True)
class _Runs:
    """B runs of similar lengths."""

    tokens: Tensor
    """`[B, L]` the run's tokens; behind its end any token."""
    real: Tensor
    """`[B, L]` bool: not behind the end."""
    lengths: Tensor
    """`[B]`."""
    starts: Tensor
    """`[B]` where the state comes from: 0 nothing, then those that are read, then the ends of earlier runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePages:
    """States that an engine keeps, one for each page: after the last token that was written to the page."""

    store: Tensor
    """`[pages, 1 + layers * (inputs * channels + heads * key * value)]`: how many tokens of the text the state has
    seen, then for each layer the last inputs of its convolution, and its state."""
    read: Tensor
    """`[R]` pages whose states runs begin with."""
    again: Tensor
    """`[1 + R + runs]` bool: that state has seen the only token of the run that begins with it."""
    written: Tensor
    """`[runs]` page that the state behind each run goes to."""
    seen: Tensor
    """`[runs]` tokens of the text up to there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRuns:
    """T tokens as runs, and where their states are."""

    blocks: Sequence[_Runs]
    """Runs that another one begins with come before it."""
    back: Tensor
    """`[T]` each token's place among those of all blocks, one after another."""
    order: Tensor
    """`[runs]` numbers of the runs as the blocks have them."""
    chained: bool
    """Whether a run begins where another one ended."""
    pages: StatePages | None = None


class RecurrentAttention:
    """A `LayerAttention`, and the runs of the same tokens for layers that have states."""

    def __init__(self, attend: LayerAttention, runs: TextRuns) -> None:
        self._attend, self.runs = attend, runs

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self._attend(layer, query, key, value)


def packed_runs(packed: PackedBatch) -> TextRuns:
    """The runs of packed rows: a row, or its trunk, and then each branch, which begins where the trunk ends."""
    branch = np.zeros(len(packed.tokens), np.int64) if packed.branch is None else index_numbers(packed.branch)
    runs, levels, starts = list[Ints](), list[int](), list[int]()
    for start, stop in zip(packed.offsets[:-1], packed.offsets[1:], strict=True):
        trunk = _NOTHING
        for number in np.unique(branch[start:stop]).tolist():
            runs.append(start + np.flatnonzero(branch[start:stop] == number))
            levels.append(int(trunk != _NOTHING))
            starts.append(trunk)
            trunk = trunk if number else len(runs) - 1
    return _text_runs(runs, levels, starts, device=packed.tokens.device, read=0)


def paged_runs(store: Tensor, sequence: Ints, positions: Ints, pages: Ints, page_tokens: int) -> TextRuns:
    """The runs of an engine's pass: tokens of `sequence` `[T]` at `positions` `[T]`, cut at the borders of `pages`
    `[B, most]`.

    A prompt's last token may be read again, to be drawn after once more: its run leaves the state as it is.
    """
    seen, place = store[:, 0].cpu().numpy().astype(np.int64), positions // page_tokens
    page = pages[sequence, place].astype(np.int64)
    runs, levels, starts = list[Ints](), list[int](), list[int]()
    read, again, last = list[int](), list[bool](), dict[int, int]()
    cuts = np.flatnonzero((np.diff(sequence) != 0) | (np.diff(place) != 0)) + 1
    for run in np.split(np.arange(len(sequence)), cuts):
        owner, first = int(sequence[run[0]]), int(positions[run[0]])
        before, begins = last.get(owner), first % page_tokens == 0
        last[owner] = len(runs)
        runs.append(run)
        levels.append(0 if before is None else levels[before] + 1)
        if before is not None or not first:
            starts.append(_NOTHING if before is None else before)
            continue
        read.append(int(pages[owner, place[run[0]] - 1] if begins else page[run[0]]))
        known = int(seen[read[-1]])
        again.append(not begins and known == first + 1)
        assert again[-1] or known == first, f"page {read[-1]} has read {known} tokens, not {first}"
        starts.append(_NOTHING - len(read))
    there = StatePages(
        store=store,
        read=torch.tensor(read, dtype=torch.int64, device=store.device),
        again=torch.tensor([False, *again, *(False for _ in runs)], device=store.device),
        written=torch.from_numpy(page[[run[-1] for run in runs]]).to(store.device),
        seen=torch.from_numpy(positions[[run[-1] for run in runs]] + 1).to(store.device),
    )
    return replace(_text_runs(runs, levels, starts, device=store.device, read=len(read)), pages=there)


def _text_runs(
    runs: Sequence[Ints], levels: Sequence[int], starts: Sequence[int], *, device: torch.device, read: int
) -> TextRuns:
    """Runs in blocks of similar lengths, each behind those that it begins with; `starts`: the number of such a run,
    _NOTHING, or below it, the states that are `read`."""
    lengths, level = np.array([len(run) for run in runs], np.int64), np.array(levels, np.int64)
    numbers = [np.flatnonzero(level == one) for one in range(int(level.max(initial=-1)) + 1)]
    parts = [these[some] for these in numbers for some in similar_lengths(lengths[these])]
    order = np.concatenate([np.zeros(0, np.int64), *parts])
    begin = np.array(starts, np.int64)
    begin = np.where(begin < 0, _NOTHING - begin, 1 + read + np.argsort(order)[np.maximum(begin, 0)])
    blocks, back, place = list[_Runs](), np.zeros(int(lengths.sum()), np.int64), 0
    for part in parts:
        longest = int(lengths[part].max())
        there = np.arange(longest) < lengths[part][:, None]
        tokens = np.zeros(there.shape, np.int64)
        tokens[there] = np.concatenate([runs[number] for number in part.tolist()])
        back[tokens[there]] = place + np.flatnonzero(there)
        place += there.size
        columns = (torch.from_numpy(one).to(device) for one in (tokens, there, lengths[part], begin[part]))
        blocks.append(_Runs(*columns))
    return TextRuns(
        blocks=blocks, back=torch.from_numpy(back).to(device), order=torch.from_numpy(order).to(device),
        chained=bool((begin > read).any()),
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------------------- delta rule


def delta_rule(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, rate: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """What queries read out of a state that keys and values are written to, and the state behind the last token.

        S_t = e^(g_t) S_(t-1) + k_t (b_t (v_t - e^(g_t) S_(t-1)^T k_t))^T,   out_t = S_t^T q_t

    `query` and `key` `[B, L, groups, key]`, of length 1 or less; `value` `[B, L, heads, value]`; logarithms g of
    `decay` and `rate`s b `[B, L, heads]`; `state` `[B, heads, key, value]`. Returns `[B, L, heads, value]` and the
    state. Heads of a group follow each other.

    Within a chunk, with G_t the sum of g up to t, the corrections u_t = b_t (...) solve the triangular system
    u_t + b_t sum_(j < t) e^(G_t - G_j) (k_t . k_j) u_j = b_t (v_t - e^(G_t) S_0^T k_t) (Yang et al., 2024); then
    out_t = e^(G_t) S_0^T q_t + sum_(j <= t) e^(G_t - G_j) (q_t . k_j) u_j.
    """
    (length, groups, width), heads = key.shape[1:], value.shape[2]
    size = min(CHUNK, length)
    missing, each = -length % size, heads // groups

    def chunks(x: Tensor, of_group: int) -> Tensor:
        """`[B, L, heads, ...]` -> `[B, groups, of_group, chunks, size, ...]`."""
        x = functional.pad(x, (0, 0) * (x.ndim - 2) + (0, missing)) if missing else x
        x = x.unflatten(2, (groups, of_group)).unflatten(1, (-1, size))
        return x.movedim((3, 4), (1, 2))

    q, k, v = chunks(query, 1), chunks(key, 1), chunks(value, each)
    total, b = chunks(decay, each).cumsum(-1), chunks(rate, each)[..., None]
    later = torch.ones(size, size, dtype=torch.bool, device=key.device).triu(1)
    between = (total[..., :, None] - total[..., None, :]).masked_fill(later, -torch.inf).exp()
    since = total.exp()[..., None]
    system = b * (k @ k.mT) * between
    both = torch.linalg.solve_triangular(
        system, torch.cat((b * v, b * since * k), dim=-1), upper=False, unitriangular=True
    )  # fmt: skip
    fresh, known = both.split((v.shape[-1], width), dim=-1)
    left = k * (total[..., -1:] - total).exp()[..., None]
    state, parts = state.unflatten(1, (groups, each)), list[Tensor]()
    every = (fresh, known, (q @ k.mT) * between, q * since, left, since[..., -1:, :])
    for new, old, seen, asked, kept, past in zip(*(one.unbind(3) for one in every), strict=True):
        correction = new - old @ state
        parts.append(asked @ state + seen @ correction)
        state = state * past + kept.mT @ correction
    out = torch.cat(parts, dim=3)[:, :, :, :length].movedim(3, 1).flatten(2, 3)
    return out, state.flatten(1, 2)


# --------------------------------------------------------------------------------------------------------------- layers


class DeltaLayer(DecoderLayer):
    """Linear attention by the gated delta rule, and a gated MLP, each added to the stream.

    Queries, keys and values are mixed with those of the last tokens by a convolution of each channel; queries and keys
    have length 1; what is read out of the state is normalised head by head, and multiplied by a gate. All of it is in
    float32, and computed again in the backward pass: between the passes the projections are kept.
    """

    def __init__(self, config: ModelConfig, number: int, dtype: torch.dtype, bits: int | None = None) -> None:
        super().__init__(config, number, dtype, bits)
        self.number = number - config.cached_layers_before(number)

    def make_attention(self, config: ModelConfig, project: Callable[..., AnyProjection], dtype: torch.dtype) -> None:
        """Make the projections, and what the rule has for each head. Memories last differently long at first: head h
        of H forgets at the rate 16 (h + 1/2) / H."""
        assert config.delta is not None
        sizes, heads, self.sizes = config.delta, config.delta.heads, config.delta
        self.qkv = project(config.hidden_size, sizes.channels + sizes.values, bias=False)
        self.gates = LinearProjection(config.hidden_size, 2 * heads, bias=False, dtype=dtype)
        self.filter = nn.Parameter(torch.zeros(sizes.channels, 1, sizes.inputs, dtype=dtype))
        rates = 16 * (torch.ones(heads).cumsum(0) - 0.5) / heads
        self.forgetting = nn.Parameter(rates.log().to(dtype))
        self.step_bias = nn.Parameter(torch.ones(heads, dtype=dtype))
        self.head_norm = RmsNorm(sizes.value, eps=config.norm_eps, dtype=dtype)
        self.out = project(sizes.values, config.hidden_size, bias=False)

    def forward(
        self, x: Tensor, turns: tuple[Tensor, Tensor], attend: LayerAttention, by: ForwardArithmetic,
        halves: CompiledLayerHalves | None = None, replayed: Tensor | None = None
    ) -> tuple[Tensor, None]:  # fmt: skip
        """The stream after the layer; there are neither positions nor experts."""
        del turns, halves, replayed
        assert isinstance(attend, RecurrentAttention)
        normed, runs = self.entering(x, by), attend.runs
        projected = self.qkv.product(normed, by.linear), self.gates.product(normed, by.linear)
        if torch.is_grad_enabled():
            mixed = checkpoint(self.mix, *projected, runs, use_reentrant=False, preserve_rng_state=False)
        else:
            mixed = self.mix(*projected, runs)
        assert isinstance(mixed, Tensor)
        mixed, behind = mixed.to(by.dtype), len(x) - len(mixed)  # rows behind an engine's tokens
        mixed = functional.pad(mixed, (0, 0, 0, behind)) if behind else mixed
        return self.add_attention_and_mlp(x, mixed, by), None

    def mix(self, projected: Tensor, gates: Tensor, runs: TextRuns) -> Tensor:
        """`[T, values]` for the projections `[N, channels + values]` and `[N, 2 heads]` of N >= T tokens."""
        sizes, count = self.sizes, len(runs.back)
        channels, gate = at_least_float32(projected[:count]).split((sizes.channels, sizes.values), dim=1)
        rate, step = at_least_float32(gates[:count]).split(sizes.heads, dim=1)
        step = functional.softplus(step + at_least_float32(self.step_bias))
        rate, decay = torch.sigmoid(rate), -at_least_float32(self.forgetting).exp() * step
        inputs, states = self._first_states(channels, runs.pages)
        parts = list[Tensor]()
        for block in runs.blocks:
            before, kept = inputs[block.starts], block.real
            if runs.pages is not None:
                again = runs.pages.again[block.starts]
                before = torch.where(again[:, None, None], before.roll(1, dims=1), before)
                kept = kept & ~again[:, None]
            seen = torch.cat((before, channels[block.tokens] * block.real[..., None]), dim=1)
            out, end = self._run(seen, decay[block.tokens] * kept[..., None], rate[block.tokens] * kept[..., None],
                                 states[block.starts])  # fmt: skip
            parts.append(out.flatten(0, 1))
            if runs.chained or runs.pages is not None:
                last = block.lengths[:, None] + torch.arange(sizes.inputs, device=seen.device)
                inputs = torch.cat((inputs, torch.take_along_dim(seen, last[..., None], dim=1)))
                states = torch.cat((states, end))
        if runs.pages is not None:
            self._keep(runs, runs.pages, inputs, states)
        normed = self.head_norm.over(torch.cat(parts)[runs.back], at_least_float32(self.head_norm.weight))
        return normed.flatten(1) * functional.silu(gate)

    def _run(self, seen: Tensor, decay: Tensor, rate: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """A block of runs, with the `inputs` before them: `seen` `[B, inputs + L, channels]`."""
        sizes, length = self.sizes, decay.shape[1]
        first, *others = at_least_float32(self.filter)[:, 0].unbind(1)
        mixed = seen[:, 1 : 1 + length] * first
        for place, weight in enumerate(others, start=2):
            mixed = torch.addcmul(mixed, seen[:, place : place + length], weight)
        mixed = functional.silu(mixed)
        query, key, value = mixed.split((sizes.keys, sizes.keys, sizes.values), dim=2)
        query, key = (_unit(one.unflatten(2, (sizes.groups, sizes.key))) for one in (query, key))
        return delta_rule(query * sizes.key**-0.5, key, value.unflatten(2, (sizes.heads, -1)), decay, rate, state)

    def _first_states(self, like: Tensor, pages: StatePages | None) -> tuple[Tensor, Tensor]:
        """Inputs `[1 + R, inputs, channels]` and states `[1 + R, heads, key, value]` that runs may begin with: nothing,
        and those of pages."""
        sizes = self.sizes
        inputs = like.new_zeros(1, sizes.inputs, sizes.channels)
        states = like.new_zeros(1, sizes.heads, sizes.key, sizes.value)
        if pages is None:
            return inputs, states
        kept = pages.store[pages.read, self._numbers()].to(like.dtype)
        first, second = kept.split((inputs.numel(), states.numel()), dim=1)
        return (
            torch.cat((inputs, first.reshape(-1, *inputs.shape[1:]))),
            torch.cat((states, second.reshape(-1, *states.shape[1:]))),
        )

    def _keep(self, runs: TextRuns, pages: StatePages, inputs: Tensor, states: Tensor) -> None:
        """Write the ends of runs to their pages."""
        ends = torch.cat([one[1 + len(pages.read) :].flatten(1) for one in (inputs, states)], dim=1)
        pages.store[pages.written[runs.order], self._numbers()] = ends.to(pages.store.dtype)
        pages.store[pages.written, 0] = pages.seen.to(pages.store.dtype)

    def _numbers(self) -> slice:
        """Where this layer's numbers are in a page."""
        return slice(1 + self.number * self.sizes.kept, 1 + (self.number + 1) * self.sizes.kept)


class GatedLayer(DecoderLayer):
    """Attention whose result is multiplied by the sigmoid of a gate that the queries' projection gives beside them, and
    a gated MLP, each added to the stream."""

    def __init__(self, config: ModelConfig, number: int, dtype: torch.dtype, bits: int | None = None) -> None:
        super().__init__(config, number, dtype, bits)
        self.number = config.cached_layers_before(number)

    def make_attention(self, config: ModelConfig, project: Callable[..., AnyProjection], dtype: torch.dtype) -> None:
        """Make the usual projections with a gate of each query."""
        super().make_attention(config, project, dtype)
        joint = 2 * (config.heads + config.kv_heads) * config.head_dim
        self.qkv = project(config.hidden_size, joint, bias=config.qkv_bias)

    def forward(
        self, x: Tensor, turns: tuple[Tensor, Tensor], attend: LayerAttention, by: ForwardArithmetic,
        halves: CompiledLayerHalves | None = None, replayed: Tensor | None = None
    ) -> tuple[Tensor, None]:  # fmt: skip
        """The stream after the layer."""
        del halves, replayed
        joint = self.qkv.product(self.entering(x, by), by.linear).view(len(x), -1, self.head_dim)
        both, key, value = joint.split((2 * self.heads, self.kv_heads, self.kv_heads), dim=1)
        query, gate = both.unflatten(1, (self.heads, 2)).unbind(2)
        assert self.q_norm is not None and self.k_norm is not None
        query, key = self.q_norm(query), self.k_norm(key)
        mixed = attend(self.number, apply_rotary(query, turns[0]), apply_rotary(key, turns[1]), value)
        return self.add_attention_and_mlp(x, mixed * torch.sigmoid(gate.flatten(1)), by), None


def _unit(x: Tensor) -> Tensor:
    """Vectors of length 1, but for those near 0."""
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
