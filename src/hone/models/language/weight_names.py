"""Names of Hugging Face checkpoint tensors, mapped exactly, both ways, to parts of the decoder's parameters.

The names of transformers' Llama-like models, and the order of features in the decoder.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from hone.models.language.config import ModelConfig
from hone.models.language.decoder_layer import query_key_norm_shapes
from hone.models.language.expert_config import ExpertsConfig
from hone.models.language.families import DeltaSizes, LatentSizes

_Stack: TypeAlias = tuple[str, str, tuple[tuple[str, int, int], ...], bool]
"""Parameter, block of the checkpoint, its tensors (name, rows, rotary heads) in order, and whether it has biases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPiece:
    """A checkpoint's tensor `theirs` is rows `start` to `start + rows` of the parameter `ours`."""

    checkpoint_name: str
    parameter_name: str
    start: int
    rows: int
    rotary_heads: int = 0
    """The first so many heads have rotary features, which the decoder keeps in interleaved pairs; 0: rows unchanged."""
    head_dim: int = 0
    """Features of such a head."""
    still: int = 0
    """Features of a head before those that turn."""
    turned: int = 0
    """Features of a head that turn, one after another."""

    def from_checkpoint(self, tensor: Tensor) -> Tensor:
        """The checkpoint's order (first halves of all pairs, then second halves) -> pairs side by side."""
        return tensor[self._order(tensor.device)] if self.rotary_heads else tensor

    def to_checkpoint(self, rows: Tensor) -> Tensor:
        """The inverse of `from_checkpoint`."""
        if not self.rotary_heads:
            return rows.clone(memory_format=torch.contiguous_format)
        return rows[self._order(rows.device).argsort()]

    def _order(self, device: torch.device) -> Tensor:
        """`[rows]`: the checkpoint's row of each row here."""
        head = torch.arange(self.head_dim, device=device)
        turning = slice(self.still, self.still + self.turned)
        head[turning] = head[turning].view(2, -1).t().flatten()
        starts = torch.arange(self.rotary_heads, device=device)[:, None] * self.head_dim
        turned = (starts + head).flatten()
        return torch.cat((turned, torch.arange(len(turned), self.rows, device=device)))


def checkpoint_pieces(config: ModelConfig) -> Iterator[CheckpointPiece]:
    """Every tensor of a checkpoint of this architecture."""
    c = config
    yield CheckpointPiece(
        checkpoint_name="model.embed_tokens.weight", parameter_name="embedding.weight", start=0, rows=c.vocab_size
    )
    for number in range(c.layers):
        yield from _layer(c, number, f"model.layers.{number}.", f"layers.{number}.")
    yield CheckpointPiece(
        checkpoint_name="model.norm.weight", parameter_name="norm.weight", start=0, rows=c.hidden_size
    )
    if not c.tie_embeddings:
        yield CheckpointPiece(
            checkpoint_name="lm_head.weight", parameter_name="head.weight", start=0, rows=c.vocab_size
        )


def _layer(c: ModelConfig, number: int, theirs: str, ours: str) -> Iterator[CheckpointPiece]:
    query, key, width = c.heads * c.head_dim, c.kv_heads * c.head_dim, c.intermediate_size
    if c.latent is not None:
        yield from _latent_attention(c, c.latent, f"{theirs}self_attn.", ours)
    apart = (
        "qkv",
        "self_attn",
        (("q_proj", query if c.delta is None else 2 * query, c.heads), ("k_proj", key, c.kv_heads), ("v_proj", key, 0)),
        c.qkv_bias,
    )
    joined = ("qkv", "self_attn", (("qkv_proj", query + 2 * key, c.heads + c.kv_heads),), c.qkv_bias)
    out = ("out", "self_attn", (("o_proj", c.hidden_size, 0),), c.output_bias)
    stacks: tuple[_Stack, ...] = (joined if "qkv_proj" in c.design.fused else apart, out)
    stacks = stacks if c.latent is None else (out,)
    if c.delta is not None and c.is_linear(number):
        yield from _linear_attention(c, c.delta, f"{theirs}linear_attn.", ours)
        stacks = ()
    experts = c.experts_of(number)
    pair = (("gate_proj", width, 0), ("up_proj", width, 0))
    pair = (("gate_up_proj", 2 * width, 0),) if "gate_up_proj" in c.design.fused else pair
    stacks += (
        _experts(c, experts)
        if experts is not None
        else (("gate_up", "mlp", pair, c.mlp_bias), ("down", "mlp", (("down_proj", c.hidden_size, 0),), c.mlp_bias))
    )
    rotary = {"head_dim": c.head_dim, "turned": int(c.head_dim * c.rope.fraction)}
    gated = {**rotary, "head_dim": 2 * c.head_dim}  # behind each query is its gate
    for stack, block, members, has_bias in stacks:
        for kind in ("weight", "bias") if has_bias else ("weight",):
            start = 0
            for name, rows, heads in members:
                yield CheckpointPiece(
                    checkpoint_name=f"{theirs}{block}.{name}.{kind}",
                    parameter_name=f"{ours}{stack}.{kind}",
                    start=start,
                    rows=rows,
                    rotary_heads=0 if c.design.neighbours else heads,
                    **(gated if c.delta is not None and name == "q_proj" else rotary),
                )
                start += rows
    if experts is not None and experts.selection_bias:
        yield CheckpointPiece(
            checkpoint_name=f"{theirs}{_expert_block(c)}.gate.e_score_correction_bias",
            parameter_name=f"{ours}selection_bias",
            start=0,
            rows=experts.count,
        )
    for name, norm, rows, heads in _norms(c, number):
        yield CheckpointPiece(
            checkpoint_name=f"{theirs}{name}.weight",
            parameter_name=f"{ours}{norm}.weight",
            start=0,
            rows=rows,
            rotary_heads=0 if c.design.neighbours else heads,
            **rotary,
        )


def _latent_attention(c: ModelConfig, sizes: LatentSizes, theirs: str, ours: str) -> Iterator[CheckpointPiece]:
    """The tensors of latent attention before the output projection."""
    last, rank = (c.heads * sizes.query, c.heads), sizes.query_rank
    queries = [("q_proj", "q", *last)]
    if rank is not None:
        queries = [("q_a_proj", "q_down", rank, 0), ("q_a_layernorm", "q_norm", rank, 0), ("q_b_proj", "q", *last)]
    latents = [
        ("kv_a_proj_with_mqa", "kv_down", sizes.rank + sizes.turned, 1), ("kv_a_layernorm", "kv_norm", sizes.rank, 0),
        ("kv_b_proj", "kv", c.heads * (sizes.plain + sizes.value), 0),
    ]  # fmt: skip
    for name, own, rows, heads in (*queries, *latents):
        still = sizes.rank if own == "kv_down" else sizes.plain
        kinds = ("weight", "bias") if own in ("q_down", "kv_down") and c.attention_bias else ("weight",)
        for kind in kinds:
            yield CheckpointPiece(
                checkpoint_name=f"{theirs}{name}.{kind}", parameter_name=f"{ours}{own}.{kind}", start=0, rows=rows,
                rotary_heads=0 if c.design.neighbours else heads, head_dim=still + sizes.turned, still=still,
                turned=sizes.turned,
            )  # fmt: skip


def _linear_attention(c: ModelConfig, sizes: DeltaSizes, theirs: str, ours: str) -> Iterator[CheckpointPiece]:
    """The tensors of linear attention."""
    behind = {"in_proj_z.weight": sizes.channels, "in_proj_a.weight": sizes.heads}
    for name, own, rows in (
        ("in_proj_qkv.weight", "qkv.weight", sizes.channels), ("in_proj_z.weight", "qkv.weight", sizes.values),
        ("in_proj_b.weight", "gates.weight", sizes.heads), ("in_proj_a.weight", "gates.weight", sizes.heads),
        ("conv1d.weight", "filter", sizes.channels), ("A_log", "forgetting", sizes.heads),
        ("dt_bias", "step_bias", sizes.heads), ("norm.weight", "head_norm.weight", sizes.value),
        ("out_proj.weight", "out.weight", c.hidden_size),
    ):  # fmt: skip
        yield CheckpointPiece(
            checkpoint_name=theirs + name, parameter_name=ours + own, start=behind.get(name, 0), rows=rows
        )


def _norms(c: ModelConfig, layer: int) -> list[tuple[str, str, int, int]]:
    """Norms of a layer: name in the checkpoint, name here, rows, rotary heads."""
    norms = [
        (name, norm, c.hidden_size, 0)
        for name, norm in zip(
            c.design.norms, ("attention_norm", "attention_after", "mlp_norm", "mlp_after"), strict=True
        )
        if name is not None
    ]
    if c.qk_norm and not c.is_linear(layer):
        # A weight for each head of a LayerNorm has the heads as its rows; of pairs that are neighbours.
        heads, kv_heads = (c.heads, c.kv_heads) if c.qk_norm_whole else (1, 1)
        q_rows, k_rows = (shape[0] for shape in query_key_norm_shapes(c))
        norms += [("self_attn.q_norm", "q_norm", q_rows, heads), ("self_attn.k_norm", "k_norm", k_rows, kv_heads)]
    return norms


def _experts(c: ModelConfig, experts: ExpertsConfig) -> tuple[_Stack, ...]:
    """The router, and the matrices of the experts, which the decoder stacks; those that every token goes to are one."""
    gate, up, down = ("w1", "w3", "w2") if c.family == "mixtral" else ("gate_proj", "up_proj", "down_proj")
    block, width, numbers = _expert_block(c), experts.width, range(experts.count)
    pairs = tuple((f"experts.{number}.{name}", width, 0) for number in numbers for name in (gate, up))
    downs = tuple((f"experts.{number}.{down}", c.hidden_size, 0) for number in numbers)
    stacks: tuple[_Stack, ...] = (
        ("router", block, (("gate", experts.count, 0),), False),
        ("gate_up", block, pairs, False),
        ("down", block, downs, False),
    )
    if not experts.shared:
        return stacks
    both, inner = f"{block}.shared_experts", experts.shared * width
    return (
        *stacks,
        ("shared_gate_up", both, (("gate_proj", inner, 0), ("up_proj", inner, 0)), False),
        ("shared_down", both, (("down_proj", c.hidden_size, 0),), False),
    )


def _expert_block(c: ModelConfig) -> str:
    return "block_sparse_moe" if c.family == "mixtral" else "mlp"
