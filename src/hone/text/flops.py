"""Floating-point operations of a decoder's passes, and the processor's rate of matrix products to compare with."""

from functools import cache
from typing import Final

import torch
from torch import Tensor

from hone.core.clock import Clock
from hone.learner.gradient import ComputeCost
from hone.models.language.config import ModelConfig
from hone.models.language.scalar_head import LanguageNetwork, TokenScorer
from hone.models.language.token_policy import TokenPolicy
from hone.run.store.records import MatmulRate
from hone.text.rows import TokenBatch

FLOPS_PER_MULTIPLY_ADD: Final = 2
"""Floating-point operations a weight and token, in a forward pass; the backward pass takes twice that."""


def layer_parameters(config: ModelConfig) -> int:
    """Weights that every token is multiplied by: projections and MLPs of all layers; neither norms nor embeddings. Of a
    mixture of experts: the router and the experts that a token goes to."""
    width, hidden, latent = config.heads * config.head_dim, config.hidden_size, config.latent
    attention = hidden * (width + 2 * config.kv_heads * config.head_dim) + width * hidden
    if latent is not None:
        down, heads = latent.query_rank or 0, config.heads
        attention = hidden * (down + latent.cached) + (down or hidden) * heads * latent.query
        attention += heads * ((latent.plain + latent.value) * latent.rank + latent.value * hidden)
    every, delta = config.layers * attention, config.delta
    if delta is not None:
        # Of layers with a gate, and of linear ones with what a token reads from its state and writes to it.
        rule = delta.channels * delta.inputs + 3 * delta.key * delta.values
        linear = hidden * (delta.channels + 2 * (delta.values + delta.heads)) + rule
        every = config.cached_layers * (attention + width * hidden) + sum(delta.layers) * linear
    experts = config.experts
    dense = 3 * config.dense_layers * hidden * config.intermediate_size
    if experts is None:
        return every + dense
    of_experts = hidden * (experts.count + 3 * (experts.per_token + experts.shared) * experts.width)
    return every + dense + (config.layers - config.dense_layers) * of_experts


def forward_flops(config: ModelConfig, *, tokens: int, logits: int, pairs: Tensor) -> Tensor:
    """2 P T + 2 d V n + 4 L h D a, for T `tokens`, n `logits` rows, and a `pairs` (`attended_pairs`). P:
    `layer_parameters`. (Kaplan et al., 2020; attention as in Chowdhery et al., 2022.)"""
    head = config.hidden_size * config.vocab_size
    attention = 2 * config.cached_layers * config.heads * config.head_dim
    return FLOPS_PER_MULTIPLY_ADD * (layer_parameters(config) * tokens + head * logits + attention * pairs)


def attended_pairs(config: ModelConfig, positions: Tensor) -> Tensor:
    """Pairs of a token at `positions` `[T]` and one that it attends to, in the mean of layers: it sees its trunk and
    its own branch, as many tokens as its position says, and itself, of which a window leaves the last."""
    seen = positions.double() + 1
    by_window = {window: seen.clamp(max=window or torch.inf).sum() for window in {*config.switches.windows}}
    return torch.stack([by_window[window] for window in config.switches.windows]).mean()


def token_compute_cost(policy: TokenPolicy, batch: TokenBatch, *, epochs: int) -> ComputeCost:
    """A forward and a backward pass over `batch`, and its share of the forward passes that were made before: by the
    reference, by the policy as it was (once for all `epochs`), and to choose among the decisions of a step.

    Activations that are computed twice to save memory count once: what is not needed is no achievement.
    """
    before = sum(known is not None for known in (batch.ref_logp, batch.old_logp, batch.old_top_k)) / epochs
    before += batch.token_factor is not None
    tokens = len(batch.packed.tokens)
    pairs = attended_pairs(policy.decoder.config, batch.packed.positions)
    forward = forward_flops(policy.decoder.config, tokens=tokens, logits=len(batch.at), pairs=pairs)
    return ComputeCost(tokens=tokens * (1 + before), flops=forward * (3 + before))


def scorer_compute_cost(scorer: TokenScorer, batch: TokenBatch) -> ComputeCost:
    """A forward and a backward pass over `batch`; the product with the scalar head is left out."""
    tokens = len(batch.packed.tokens)
    pairs = attended_pairs(scorer.decoder.config, batch.packed.positions)
    forward = forward_flops(scorer.decoder.config, tokens=tokens, logits=0, pairs=pairs)
    return ComputeCost(tokens=tokens, flops=3 * forward)


# ---------------------------------------------------------------------------------------------- rate of matrix products


MATMUL_MEASURE_S: Final = 0.1
_MATMUL_SIZE: Final = {"cpu": 1024, "cuda": 8192}


def matmul_rate(policy: LanguageNetwork, clock: Clock, *, seconds_s: float = MATMUL_MEASURE_S) -> MatmulRate:
    """Rate of large square matrix products on the policy's device and in its dtype: the best of the repetitions that
    fit in `seconds_s`, at least three. Later runs of a process on as many threads have the rate of the first."""
    return _measured(policy.decoder.device, policy.decoder.compute, torch.get_num_threads(), clock, seconds_s)


@cache
def _measured(device: torch.device, dtype: torch.dtype, threads: int, clock: Clock, seconds_s: float) -> MatmulRate:
    size = _MATMUL_SIZE.get(device.type, _MATMUL_SIZE["cpu"])
    left, right = torch.randn(2, size, size, device=device, dtype=torch.float32).to(dtype)
    best_s, spent_s, count = float("inf"), 0.0, 0
    with torch.inference_mode():
        torch.mm(left, right)  # threads and kernels are made ready
        _synchronise(device)
        while count < 3 or spent_s < seconds_s:
            start = clock.monotonic_s()
            torch.mm(left, right)
            _synchronise(device)
            took_s = clock.monotonic_s() - start
            best_s, spent_s, count = min(best_s, took_s), spent_s + max(took_s, 1e-6), count + 1
    return MatmulRate(
        dtype=str(dtype).removeprefix("torch."),
        device=str(device),
        threads=threads,
        matmul_flops_per_s=2 * size**3 / max(best_s, 1e-9),
    )


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
