"""Many rows in pieces: the values and the gradients of the network itself."""

import pytest
import torch

from hone.models.control.chunked_mlp import PIECE, wide
from hone.models.control.mlp import Mlp, MlpConfig


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("hidden", [[8], [16, 8], [8, 8, 8]])
@pytest.mark.parametrize("rows", [1, PIECE, 2 * PIECE + 7])
def test_it_is_the_network(activation: str, hidden: list[int], rows: int) -> None:
    config = MlpConfig.model_validate({"hidden": hidden, "activation": activation})
    network = Mlp(5, 3, config, seed=0, stream="wide").double()
    x = torch.randn(rows, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    by = torch.randn(rows, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    plain = network(x)
    wanted = torch.autograd.grad((plain * by).sum(), list(network.parameters()))
    values = wide(network, x)
    torch.testing.assert_close(values, plain, rtol=1e-12, atol=1e-12)
    found = torch.autograd.grad((values * by).sum(), list(network.parameters()))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
