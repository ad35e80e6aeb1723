"""Products of bfloat16 matrices with sums in float32, kept or rounded back."""

import torch
from torch import Tensor
from torch.nn import functional

from hone.models.native.products import WIDENED_ROWS, is_widened


def half_matmul(left: Tensor, right: Tensor) -> Tensor:
    """`left [M, K] @ right [K, N]` of bfloat16 numbers -> `[M, N]` float32. No gradients."""
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()


def rounded_matmul(left: Tensor, right: Tensor) -> Tensor:
    """`left [M, K] @ right [K, N]` of bfloat16 numbers -> `[M, N]` bfloat16. No gradients."""
    return _widened_matmul(left, right) if is_widened(left.dtype, left.device) else left @ right


def rounded_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x [N, in] @ weight [out, in]^T + bias [out]` of bfloat16 numbers -> `[N, out]` bfloat16. No gradients."""
    if not is_widened(x.dtype, x.device):
        return functional.linear(x, weight, bias)
    return _widened_matmul(x, weight.t(), None if bias is None else bias.float())


def _widened_matmul(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """The same by float32 matrices, some rows at a time: a product of two bfloat16 numbers is exact in float32."""
    wide, out = right.float(), left.new_empty(len(left), right.shape[1])
    for rows, to in zip(left.split(WIDENED_ROWS), out.split(WIDENED_ROWS), strict=True):
        to.copy_(rows.float() @ wide if bias is None else torch.addmm(bias, rows.float(), wide))
    return out


def uses_half_products(device: torch.device, compute: torch.dtype) -> bool:
    """True where the logits of a model that computes in bfloat16 are products of bfloat16 numbers, too: on a GPU, whose
    float32 products are an order of magnitude slower. A CPU computes them in float32.
    """
    return device.type == "cuda" and compute == torch.bfloat16
