"""Work and speed: what an update of a language model computes, and how fast the machine could compute it.

Belongs here: counting from shapes, and one short measurement. What was reached is a figure of `store/speed.py`.
"""

from typing import Final

import torch
from torch import Tensor

from hone.core.clock import Clock
from hone.models.config import ModelConfig
from hone.models.policy import TokenPolicy
from hone.store.speed import MatmulRate
from hone.train.learner import Work
from hone.train.tokens import TokenBatch

FORWARD: Final = 2
"""Floating-point operations a weight and token, in a forward pass; the backward pass takes twice that."""
MEASURE_S: Final = 0.1
_SIZE: Final = {"cpu": 1024, "cuda": 8192}


def layer_parameters(config: ModelConfig) -> int:
    """Weights that every token is multiplied by: projections and MLPs of all layers; neither norms nor embeddings."""
    width = config.heads * config.head_dim
    attention = config.hidden_size * (width + 2 * config.kv_heads * config.head_dim) + width * config.hidden_size
    return config.layers * (attention + 3 * config.hidden_size * config.intermediate_size)


def forward_flops(config: ModelConfig, *, tokens: int, logits: int, pairs: Tensor) -> Tensor:
    """2 P T + 2 d V n + 4 L h D a, for T `tokens`, n `logits` rows, and a `pairs` of a token and one that it attends to
    (itself among them). P: `layer_parameters`. (Kaplan et al., 2020; attention as in Chowdhery et al., 2022.)"""
    head = config.hidden_size * config.vocab_size
    attention = 2 * config.layers * config.heads * config.head_dim
    return FORWARD * (layer_parameters(config) * tokens + head * logits + attention * pairs)


def token_work(policy: TokenPolicy, batch: TokenBatch, *, epochs: int) -> Work:
    """A forward and a backward pass over `batch`, and its share of the forward passes that were made before: by the
    reference, by the policy as it was (once for all `epochs`), and to choose among the decisions of a step.

    Activations that are computed twice to save memory count once: what is not needed is no achievement.
    """
    before = sum(known is not None for known in (batch.anchor, batch.proximal, batch.likeliest)) / epochs
    before += batch.factor is not None
    tokens = len(batch.packed.tokens)
    # A token sees its trunk and its own branch: as many tokens as its position says, and itself.
    pairs = batch.packed.positions.sum().double() + tokens
    forward = forward_flops(policy.decoder.config, tokens=tokens, logits=len(batch.at), pairs=pairs)
    return Work(tokens=tokens * (1 + before), flops=forward * (3 + before))


def matmul_rate(policy: TokenPolicy, *, clock: Clock, seconds_s: float = MEASURE_S) -> MatmulRate:
    """What products of large square matrices reach, where and in what the policy computes: the best of those that fit
    in `seconds_s`, three at least."""
    device, dtype = policy.decoder.device, policy.decoder.compute
    size = _SIZE.get(device.type, _SIZE["cpu"])
    left, right = torch.randn(2, size, size, device=device, dtype=torch.float32).to(dtype)
    best_s, spent_s, count = float("inf"), 0.0, 0
    with torch.inference_mode():
        torch.mm(left, right)  # threads and kernels are made ready
        _wait_for(device)
        while count < 3 or spent_s < seconds_s:
            start = clock.monotonic_s()
            torch.mm(left, right)
            _wait_for(device)
            took_s = clock.monotonic_s() - start
            best_s, spent_s, count = min(best_s, took_s), spent_s + max(took_s, 1e-6), count + 1
    return MatmulRate(
        dtype=str(dtype).removeprefix("torch."),
        device=str(device),
        threads=torch.get_num_threads(),
        flops_per_s=2 * size**3 / max(best_s, 1e-9),
    )


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
