"""A layer with latent attention (MLA; DeepSeek-V2, 2024): keys and values of all heads come from one latent for each
token, beside one rotary key.

With the latent c_j = norm(A x_j) of token j, its rotary key k_j, and a head's K (keys), V (values), plain query q and
rotary query p:

    score_ij = scale (q_i . K c_j + turn(p_i) . turn(k_j)) = scale ([p_i, K^T q_i] . [k_j, c_j])
    out_i    = V sum_j softmax(score)_ij c_j

The right side is attention with one key head of rank + turned features, whose value is the latent. It is computed so
everywhere, in training as in generation: what a token leaves behind is its latent, however many heads there are, and
packed rows, shared prompts, pages of keys and ranks need no attention of another kind.
"""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from hone.models.language.config import ModelConfig
from hone.models.language.decoder_layer import (
    AnyProjection,
    DecoderLayer,
    ForwardArithmetic,
    LinearProjection,
    RmsNorm,
)
from hone.models.language.quantised_linear import QuantisedProjection

_NORM_EPS: Final = 1e-6
"""Of the norms of latents, whatever `rms_norm_eps` says."""


class LatentLayer(DecoderLayer):
    """Latent attention and a gated MLP, each added to the stream."""

    def make_attention(self, config: ModelConfig, project: Callable[..., AnyProjection], dtype: torch.dtype) -> None:
        """Make the projections into latents and out of them, and the latents' norms."""
        sizes = config.latent
        assert sizes is not None
        self.sizes, hidden, heads = sizes, config.hidden_size, config.heads
        if sizes.query_rank is None:
            self.q = project(hidden, heads * sizes.query, bias=False)
        else:
            self.q_down = project(hidden, sizes.query_rank, bias=config.attention_bias)
            self.q_norm = RmsNorm(sizes.query_rank, eps=_NORM_EPS, dtype=dtype)
            self.q = project(sizes.query_rank, heads * sizes.query, bias=False)
        self.kv_down = project(hidden, sizes.rank + sizes.turned, bias=config.attention_bias)
        self.kv_norm = RmsNorm(sizes.rank, eps=_NORM_EPS, dtype=dtype)
        self.kv = project(sizes.rank, heads * (sizes.plain + sizes.value), bias=False)
        self.out = project(heads * sizes.value, hidden, bias=config.output_bias)

    def project_qkv(self, x: Tensor, by: ForwardArithmetic) -> tuple[Tensor, Tensor, Tensor]:
        """Query `[T, heads, turned + rank]`, key and value `[T, 1, turned + rank]`, not turned yet. A value has zeros
        behind its latent."""
        sizes, normed = self.sizes, self.entering(x, by)
        asked = normed
        if sizes.query_rank is not None:
            asked = self.q_norm(self.q_down.product(normed, by.linear), by.dtype)  # type: ignore[misc]
        query = self.q.product(asked, by.linear).view(len(x), self.heads, sizes.query)
        plain, rotary = query.split((sizes.plain, sizes.turned), dim=2)
        keys = self._head_weights(by)[:, : sizes.plain]
        parts = [
            by.linear(plain[:, head].contiguous(), keys[head].t().contiguous(), None) for head in range(self.heads)
        ]
        query = torch.cat((rotary, torch.stack(parts, dim=1)), dim=2)
        latent, key = self.kv_down.product(normed, by.linear).split((sizes.rank, sizes.turned), dim=1)
        latent = self.kv_norm(latent, by.dtype)
        key = torch.cat((key, latent), dim=1)[:, None]
        return query, key, functional.pad(latent, (0, sizes.turned))[:, None]

    def attended(self, mixed: Tensor, by: ForwardArithmetic) -> Tensor:
        """Each head's value of its mixed latents, and their projection."""
        latents = mixed.view(len(mixed), self.heads, self.sizes.cached)[..., : self.sizes.rank]
        values = self._head_weights(by)[:, self.sizes.plain :]
        parts = [by.linear(latents[:, head].contiguous(), values[head], None) for head in range(self.heads)]
        return self.out.product(torch.cat(parts, dim=1), by.linear)

    def _head_weights(self, by: ForwardArithmetic) -> Tensor:
        """`[heads, plain + value, rank]`: K and V of each head, decoded and with their update where they are codes."""
        if isinstance(self.kv, QuantisedProjection):
            weight, factors = self.kv.decode(by.dtype), self.kv.low_rank_factors()
            weight = weight if factors is None else weight + (factors[1] @ factors[0]).to(by.dtype)
        else:
            assert isinstance(self.kv, LinearProjection)
            weight = self.kv.weight
        return weight.view(self.heads, -1, self.sizes.rank)
