"""The hand-written backward passes against autograd's own and against finite differences."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from hone.models.language.fused_ops import apply_rotary, gated_gelu, gated_silu, rms_norm


def tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def turns(count: int, pairs: int) -> Tensor:
    angles = torch.randn(count, 1, pairs, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    return torch.polar(torch.ones_like(angles), angles)


def test_gradients_are_those_of_finite_differences() -> None:
    assert torch.autograd.gradcheck(lambda x, w: rms_norm(x, w, 1e-6), (tensor(5, 3, 6), tensor(6, seed=1)))
    assert torch.autograd.gradcheck(lambda x: apply_rotary(x, turns(4, 3)), (tensor(4, 2, 6),))
    assert torch.autograd.gradcheck(gated_silu, (tensor(4, 10),))
    assert torch.autograd.gradcheck(gated_gelu, (tensor(4, 10),))


def test_values_are_those_of_the_plain_formulas() -> None:
    x, weight = tensor(7, 6), tensor(6, seed=2)
    torch.testing.assert_close(rms_norm(x, weight, 1e-5), functional.rms_norm(x, (6,), weight, 1e-5))
    gate, up = tensor(3, 8).chunk(2, dim=-1)
    torch.testing.assert_close(gated_silu(torch.cat((gate, up), -1)), functional.silu(gate) * up)
    curved = functional.gelu(gate, approximate="tanh") * up
    torch.testing.assert_close(gated_gelu(torch.cat((gate, up), -1)), curved)
    turned = apply_rotary(
        torch.tensor([[[1.0, 0.0]]], dtype=torch.float64), torch.tensor([[[1j]]], dtype=torch.complex128)
    )
    torch.testing.assert_close(turned, torch.tensor([[[0.0, 1.0]]], dtype=torch.float64))  # a quarter turn


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_stays_close_to_float64(dtype: torch.dtype) -> None:
    exact = tensor(64, 32)
    low = exact.detach().to(dtype).requires_grad_()
    weight = torch.ones(32, dtype=dtype, requires_grad=True)
    out = rms_norm(low, weight, 1e-6)
    assert out.dtype == dtype
    out.float().square().sum().backward()
    expected = functional.rms_norm(low.detach().double(), (32,), None, 1e-6)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-2
    assert (out.double() - expected).abs().max() < tolerance * expected.abs().max()
