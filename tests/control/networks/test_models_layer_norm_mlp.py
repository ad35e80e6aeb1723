"""Layer normalisation: rows of mean 0 and variance 1, by hand and in numpy; scale and shift of a row say nothing."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hone.control.networks.mlp import Mlp, MlpConfig
from hone.control.networks.q_networks import LayerNormMlp, layer_normed, layer_normed_array

CONFIG = MlpConfig(hidden=[8, 6], activation="relu")


def test_by_hand() -> None:
    """1, 2, 3: mean 2, variance 2/3, so the outer ones are sqrt(3/2) away."""
    side = 1.5**0.5
    found = layer_normed(torch.tensor([[1.0, 2.0, 3.0]]))
    torch.testing.assert_close(found, torch.tensor([[-side, 0.0, side]]), atol=2e-5, rtol=0)


@given(seed=st.integers(0, 2**16), rows=st.integers(1, 5), units=st.integers(2, 9))
def test_numpy_says_what_torch_says(seed: int, rows: int, units: int) -> None:
    x = np.random.default_rng(seed).normal(2.0, 3.0, (rows, units)).astype(np.float32)
    expected = layer_normed(torch.from_numpy(x.copy())).numpy()
    np.testing.assert_allclose(layer_normed_array(x), expected, atol=1e-5)


def test_equal_units_are_zeros() -> None:
    assert layer_normed_array(np.full((2, 4), 7.0, np.float32)).tolist() == [[0.0] * 4] * 2


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_a_slow_version(activation: str) -> None:
    """In float64, row by row, and with the weights that a plain network begins with."""
    config = CONFIG.model_copy(update={"activation": activation})
    network, plain = (made(3, 2, config, seed=4, stream="x") for made in (LayerNormMlp, Mlp))
    for ours, theirs in zip(network.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    slow = []
    for row in x.astype(np.float64):
        hidden = row
        for layer in list(network.layers)[:-1]:
            assert isinstance(layer, torch.nn.Linear)
            raw = layer.weight.detach().double().numpy() @ hidden
            raw = (raw - raw.mean()) / np.sqrt(raw.var() + 1e-5)
            hidden = np.maximum(raw, 0.0) if activation == "relu" else np.tanh(raw)
        last = network.layers[-1]
        assert isinstance(last, torch.nn.Linear)
        slow.append(last.weight.detach().double().numpy() @ hidden)
    with torch.no_grad():
        np.testing.assert_allclose(network(torch.from_numpy(x)).numpy(), slow, atol=1e-5)
    np.testing.assert_allclose(network.to_numpy()(x), slow, atol=1e-5)


def test_gradients_of_a_sum() -> None:
    network = LayerNormMlp(3, 1, CONFIG, seed=1, stream="x").double()
    x = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradcheck(lambda rows: network(rows), (x,))
