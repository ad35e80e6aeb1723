"""Products of bfloat16 matrices whose float32 sums are not rounded back."""

import torch
from torch import Tensor


def half_matmul(left: Tensor, right: Tensor) -> Tensor:
    """`left [M, K] @ right [K, N]` of bfloat16 numbers -> `[M, N]` float32. No gradients."""
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()


def uses_half_products(device: torch.device, compute: torch.dtype) -> bool:
    """True where the logits of a model that computes in bfloat16 are products of bfloat16 numbers, too: on a GPU, whose
    float32 products are an order of magnitude slower. A CPU computes them in float32.
    """
    return device.type == "cuda" and compute == torch.bfloat16
