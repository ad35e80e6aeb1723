"""Gradients of an adapter's factors, taken from each merged weight's as the backward pass makes it."""

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

from hone.learner.low_rank_parameters import LowRankParameters
from hone.models.language.config import ModelConfig
from hone.models.language.decoder import Decoder
from hone.models.language.lora import LoraAdapter, LoraConfig
from hone.models.packing import pack_rows
from hone.models.tensor_memory import TensorMemory

CONFIG = ModelConfig(
    family="qwen3", vocab_size=50, hidden_size=32, intermediate_size=64, layers=6, heads=2, kv_heads=1, head_dim=16,
    tie_embeddings=True,
)  # fmt: skip


def adapter_of(compute: str) -> LoraAdapter:
    torch.manual_seed(0)
    decoder = Decoder(CONFIG)
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    decoder.set_compute_dtype(compute)
    adapter = LoraAdapter(decoder, LoraConfig(rank=2).settings(CONFIG), base_folder=Path(), base_sha256="")
    for _, factor in adapter.factors():
        torch.nn.init.normal_(factor, std=0.1)
    adapter.merge()
    return adapter


def backward(adapter: LoraAdapter, seed: int, count: int = 20) -> None:
    tokens = np.random.default_rng(seed).integers(0, 50, count).astype(np.int32)
    adapter.decoder.hidden(pack_rows([tokens])).sin().sum().backward()


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_one_backward_pass_has_the_bits_of_the_whole_gradient_and_several_its_sum(compute: str) -> None:
    """dA = s B^T G and dB = s G A^T of the whole gradient G, kept by autograd."""
    adapter = adapter_of(compute)
    own = LowRankParameters(adapter)
    for seeds in ((1,), (1, 2, 3)):
        with own.collect_gradients():
            for seed in seeds:
                backward(adapter, seed)
        assert all(weight.grad is None for weight in adapter.weights.values())
        found = dict(zip(own.factors.names, (view.clone() for view in own.factors.views), strict=True))
        for seed in seeds:
            backward(adapter, seed)
        whole = {name: weight.grad for name, weight in adapter.weights.items() if weight.grad is not None}
        for name, gradient in adapter.factor_gradients(whole):
            if len(seeds) == 1:
                assert torch.equal(found[name], gradient), name
            else:
                torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-5)
        for weight in adapter.weights.values():
            weight.grad = None


def test_no_more_than_a_layer_s_gradients_are_held_at_once() -> None:
    adapter = adapter_of("float32")
    own = LowRankParameters(adapter)
    peaks: list[int] = []
    for taken in (own.collect_gradients(), nullcontext()):
        with TensorMemory() as memory, taken:
            backward(adapter, 1, 2)
        peaks.append(memory.peak_bytes)
    whole = 4 * sum(weight.numel() for weight in adapter.weights.values())
    assert peaks[1] - peaks[0] > 0.5 * whole
