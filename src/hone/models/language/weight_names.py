"""Names of Hugging Face checkpoint tensors, mapped exactly, both ways, to parts of the decoder's parameters.

The names of transformers' Llama-like models, and the order of features in the decoder.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from hone.models.language.config import ModelConfig

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
    """Heads with rotary features, which the decoder keeps in interleaved pairs; 0: rows unchanged."""

    def from_checkpoint(self, tensor: Tensor) -> Tensor:
        """The checkpoint's order (first halves of all pairs, then second halves) -> pairs side by side."""
        if not self.rotary_heads:
            return tensor
        return tensor.reshape(self.rotary_heads, 2, -1, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)

    def to_checkpoint(self, rows: Tensor) -> Tensor:
        """The inverse of `from_checkpoint`."""
        if not self.rotary_heads:
            return rows.clone(memory_format=torch.contiguous_format)
        pairs = rows.reshape(self.rotary_heads, -1, 2, *rows.shape[1:])
        return pairs.transpose(1, 2).reshape(rows.shape).contiguous()


def checkpoint_pieces(config: ModelConfig) -> Iterator[CheckpointPiece]:
    """Every tensor of a checkpoint of this architecture."""
    c = config
    yield CheckpointPiece(
        checkpoint_name="model.embed_tokens.weight", parameter_name="embedding.weight", start=0, rows=c.vocab_size
    )
    for number in range(c.layers):
        yield from _layer(c, f"model.layers.{number}.", f"layers.{number}.")
    yield CheckpointPiece(
        checkpoint_name="model.norm.weight", parameter_name="norm.weight", start=0, rows=c.hidden_size
    )
    if not c.tie_embeddings:
        yield CheckpointPiece(
            checkpoint_name="lm_head.weight", parameter_name="head.weight", start=0, rows=c.vocab_size
        )


def _layer(c: ModelConfig, theirs: str, ours: str) -> Iterator[CheckpointPiece]:
    query, key = c.heads * c.head_dim, c.kv_heads * c.head_dim
    stacks: tuple[_Stack, ...] = (
        ("qkv", "self_attn", (("q_proj", query, c.heads), ("k_proj", key, c.kv_heads), ("v_proj", key, 0)), c.qkv_bias),
        ("out", "self_attn", (("o_proj", c.hidden_size, 0),), c.output_bias),
    )
    width = c.intermediate_size
    stacks += (
        _experts(c)
        if c.experts is not None
        else (
            ("gate_up", "mlp", (("gate_proj", width, 0), ("up_proj", width, 0)), c.mlp_bias),
            ("down", "mlp", (("down_proj", c.hidden_size, 0),), c.mlp_bias),
        )
    )
    for stack, block, members, has_bias in stacks:
        for kind in ("weight", "bias") if has_bias else ("weight",):
            start = 0
            for name, rows, heads in members:
                yield CheckpointPiece(
                    checkpoint_name=f"{theirs}{block}.{name}.{kind}",
                    parameter_name=f"{ours}{stack}.{kind}",
                    start=start,
                    rows=rows,
                    rotary_heads=heads,
                )
                start += rows
    norms = [
        ("input_layernorm", "attention_norm", c.hidden_size, 0),
        ("post_attention_layernorm", "mlp_norm", c.hidden_size, 0),
    ]
    if c.qk_norm:
        heads, kv_heads = (c.heads, c.kv_heads) if c.qk_norm_whole else (1, 1)
        norms += [
            ("self_attn.q_norm", "q_norm", heads * c.head_dim, heads),
            ("self_attn.k_norm", "k_norm", kv_heads * c.head_dim, kv_heads),
        ]
    if c.experts is not None and c.experts.selection_bias:
        yield CheckpointPiece(
            checkpoint_name=f"{theirs}{_expert_block(c)}.gate.e_score_correction_bias",
            parameter_name=f"{ours}selection_bias",
            start=0,
            rows=c.experts.count,
        )
    for name, norm, rows, heads in norms:
        yield CheckpointPiece(
            checkpoint_name=f"{theirs}{name}.weight",
            parameter_name=f"{ours}{norm}.weight",
            start=0,
            rows=rows,
            rotary_heads=heads,
        )


def _experts(c: ModelConfig) -> tuple[_Stack, ...]:
    """The router, and the matrices of the experts, which the decoder stacks."""
    assert c.experts is not None
    gate, up, down = ("w1", "w3", "w2") if c.family == "mixtral" else ("gate_proj", "up_proj", "down_proj")
    block, width, numbers = _expert_block(c), c.experts.width, range(c.experts.count)
    pairs = tuple((f"experts.{number}.{name}", width, 0) for number in numbers for name in (gate, up))
    downs = tuple((f"experts.{number}.{down}", c.hidden_size, 0) for number in numbers)
    return (
        ("router", block, (("gate", c.experts.count, 0),), False),
        ("gate_up", block, pairs, False),
        ("down", block, downs, False),
    )


def _expert_block(c: ModelConfig) -> str:
    return "block_sparse_moe" if c.family == "mixtral" else "mlp"
