"""Linear layers whose weight is kept in codes of 4 or 8 bits, with low-rank updates beside it (QLoRA: Dettmers et al.,
2023): y = x W^T + b + scale (x A^T) B^T, where W is frozen.

A group of 32 inputs of an output shares one scale s, a number of 16 bits: W = s (code - zero). Of 8 bits s is the
largest magnitude / 127; of 4 bits it is the number of largest magnitude / -8, so that all 16 codes are in use (ggml's
Q8_0 and Q4_0). A code is the nearest whole number of w / s, ties to even.

Codes lie as the compiled runner reads them, so that trainer and engine share one copy: a block holds one group of 32
outputs, then their scales. Its codes are words of four inputs: for 8 bits `[8, 32, 4]` bytes; for 4 bits `[8, 16, 4]`,
where the lower half of a byte is of output j, and the upper half of output j + 16.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from hone.core.errors import DataError
from hone.models.gradient_buffers import AutogradContext
from hone.models.language.fused_ops import any_matmul
from hone.models.native.library import decode_blocks

QuantisedType = Literal["int8", "int4"]
BITS: Final[dict[str, int]] = {"int8": 8, "int4": 4}
GROUP: Final = 32
"""Inputs that share a scale."""
_OUTPUTS: Final = 32
"""Outputs of a block."""


def quantise(rows: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Codes `[n, in]` uint8, from 0 on, and scales `[n, in / 32]` float16 of `rows` `[n, in]`.

    A group whose scale rounds to 0 becomes zeros. Raises DataError for numbers beyond the range of a scale.
    """
    groups, zero = rows.float().unflatten(-1, (-1, GROUP)), 1 << (bits - 1)
    extreme = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
    scales = (extreme.abs() / 127 if bits == 8 else extreme / -8).half()
    if not bool(torch.isfinite(scales).all()):
        raise DataError(f"holds {float(extreme.abs().max()):.3g}, beyond the range of a scale of 16 bits")
    wide = scales.float()
    codes = torch.where(wide == 0, 0.0, groups / wide).round_().clamp_(-zero, zero - 1)
    return (codes + zero).to(torch.uint8).flatten(-2), scales.squeeze(-1)


class _QuantisedLinear(torch.autograd.Function):
    """y = x W^T + b;  dx = g W. W is decoded in either pass, and is not kept between them."""

    @staticmethod
    def forward(
        ctx: AutogradContext, x: Tensor, projection: "QuantisedProjection", linear: Callable[..., Tensor]
    ) -> Tensor:
        ctx.projection, ctx.kind = projection, x.dtype
        return linear(x, projection.decode(x.dtype), projection.bias)

    @staticmethod
    def backward(ctx: AutogradContext, *grads: Tensor) -> tuple[Tensor, None, None]:
        g = grads[0]
        return any_matmul(g, ctx.projection.decode(g.dtype)).to(ctx.kind), None, None


@dataclass(frozen=True, slots=True)
class _Update:
    """A low-rank update of neighbouring outputs, by its place in `lora_a` and `lora_b`."""

    outputs: slice
    scale: float


class QuantisedProjection(nn.Module):
    """A frozen weight `[out, in]` in codes, zeros until `encode_rows`, with an optional bias and low-rank updates."""

    def __init__(self, features_in: int, features_out: int, *, bias: bool, bits: int, gated: bool = False) -> None:
        """`gated`: the outputs are gates and then ups; blocks hold 16 of each, as the runner multiplies them. Raises
        DataError for inputs that are no multiple of the group."""
        super().__init__()
        if features_in % GROUP:
            raise DataError(
                f"a base in {bits} bits has a scale for every {GROUP} inputs of a linear layer, and the model has one "
                f"with {features_in}: leave model.weights out, or take a model whose widths are multiples of {GROUP}"
            )
        self.bits, self.gated = bits, gated
        self.features_in, self.features_out = features_in, features_out
        size = -(-features_out // _OUTPUTS), features_in // GROUP, GROUP * _OUTPUTS * bits // 8 + 2 * _OUTPUTS
        self.weight = nn.Parameter(torch.zeros(size, dtype=torch.uint8), requires_grad=False)
        """`[out / 32, in / 32, bytes of a block]` uint8."""
        self.bias = nn.Parameter(torch.zeros(features_out), requires_grad=False) if bias else None
        self.lora_a, self.lora_b = nn.ParameterList(), nn.ParameterList()
        """`[rank, in]` and `[outputs, rank]` of each of `updates`."""
        self.updates: list[_Update] = []

    def _places(self, rows: Tensor) -> Tensor:
        """Places of outputs `rows` `[n]` among the blocks' outputs."""
        if not self.gated:
            return rows
        half, most = _OUTPUTS // 2, self.features_out // 2
        at = rows % most
        return at // half * _OUTPUTS + at % half + rows // most * half

    def _codes_and_scales(self) -> tuple[Tensor, Tensor]:
        """Views of the blocks: bytes `[out / 32, in / 32, 8, outputs, 4]`, and scales `[out / 32, in / 32, 32]`."""
        codes, scales = self.weight.detach().split((self.weight.shape[2] - 2 * _OUTPUTS, 2 * _OUTPUTS), dim=2)
        return codes.unflatten(2, (GROUP // 4, -1, 4)), scales.view(torch.float16)

    @torch.no_grad()
    def encode_rows(self, start: int, rows: Tensor) -> None:
        """Set the weight of the outputs from `start` on to `rows` `[n, in]`. Raises DataError as `quantise`."""
        codes, scales = quantise(rows, self.bits)
        place = self._places(torch.arange(start, start + len(rows)))
        held, held_scales = self._codes_and_scales()
        held_scales[place // _OUTPUTS, :, place % _OUTPUTS] = scales
        words = codes.view(len(rows), -1, GROUP // 4, 4)
        if self.bits == 8:
            held[place // _OUTPUTS, :, :, place % _OUTPUTS] = words
            return
        for half in range(2):  # of a byte
            here = place // (_OUTPUTS // 2) % 2 == half
            block, at = place[here] // _OUTPUTS, place[here] % (_OUTPUTS // 2)
            kept = held[block, :, :, at] & (0x0F if half else 0xF0)
            held[block, :, :, at] = kept | (words[here] << (4 * half))

    @torch.no_grad()
    def decode_rows(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """The weight of outputs `rows` `[n]`, `[n, in]` of `dtype`: products of codes and scales, rounded once."""
        place = self._places(rows)
        by_kernel = decode_blocks(self.weight, place, self.bits, dtype)
        return self.decode_slowly(place, dtype) if by_kernel is None else by_kernel

    def decode_slowly(self, place: Tensor, dtype: torch.dtype) -> Tensor:
        """`decode_rows` by torch, of outputs by their places in the blocks."""
        codes, scales = self._codes_and_scales()
        words, zero = codes[place // _OUTPUTS, :, :, place % codes.shape[3]], 1 << (self.bits - 1)
        if self.bits == 4:
            words = words >> (place // (_OUTPUTS // 2) % 2 * 4)[:, None, None, None] & 15
        wide = scales[place // _OUTPUTS, :, place % _OUTPUTS].to(torch.promote_types(dtype, torch.float32))
        return ((words.flatten(2).to(wide.dtype) - zero) * wide[..., None]).flatten(1).to(dtype)

    def decode(self, dtype: torch.dtype) -> Tensor:
        """`[out, in]` of `dtype`."""
        return self.decode_rows(torch.arange(self.features_out, device=self.weight.device), dtype)

    def adapt(self, outputs: slice, a: nn.Parameter, b: nn.Parameter, scale: float) -> None:
        """Add a low-rank update `scale b a` of some outputs: a `[rank, in]`, b `[outputs, rank]`."""
        self.lora_a.append(a)
        self.lora_b.append(b)
        self.updates.append(_Update(outputs, scale))

    def forget_updates(self) -> None:
        """Back to the base alone."""
        self.lora_a, self.lora_b, self.updates = nn.ParameterList(), nn.ParameterList(), []

    def low_rank_factors(self) -> tuple[Tensor, Tensor] | None:
        """All updates as one, A `[R, in]` and B `[out, R]` with the scale in it; None without updates."""
        if not self.updates:
            return None
        columns = []
        for b, update in zip(self.lora_b, self.updates, strict=True):
            above = update.outputs.start, self.features_out - update.outputs.stop
            columns.append(functional.pad(b * update.scale, (0, 0, *above)))
        return torch.cat(list(self.lora_a)), torch.cat(columns, dim=1)

    def product(self, x: Tensor, linear: Callable[[Tensor, Tensor, Tensor | None], Tensor]) -> Tensor:
        """`[N, out]` for `x` `[N, in]`, by products of the caller."""
        y = _QuantisedLinear.apply(x, self, linear)
        if (factors := self.low_rank_factors()) is None:
            return y
        return y + linear(linear(x, factors[0], None), factors[1], None)

    @torch.no_grad()
    def merged(self) -> Tensor:
        """`[out, in]` float32: the decoded weight with all updates in it."""
        weight = self.decode(torch.float32)
        for a, b, update in zip(self.lora_a, self.lora_b, self.updates, strict=True):
            weight[update.outputs] += (b * update.scale) @ a
        return weight
