"""Adapters on a base in codes, with drawn factors, for the families of layers that such a base may have."""

from pathlib import Path

import torch

from hone.models.language.decoder import Decoder
from hone.models.language.hf_checkpoint import load_with_adapter, save_model
from hone.models.language.lora import LoraAdapter, LoraConfig


def drawn_adapter(model: Decoder, folder: Path, bits: str) -> LoraAdapter:
    """An adapter of rank 2 beside the weights of `model` in `bits`, none of its factors zero."""
    save_model(model, folder, tokenizer_from=None)
    adapter = load_with_adapter(folder, LoraConfig(rank=2), seed=0, dtype=bits)
    draws = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _, factor in adapter.factors():
            factor.add_(0.1 * torch.randn(factor.shape, generator=draws))
    return adapter
