"""Matrix products of linear layers by AMX tiles: of float32 numbers in three bfloat16 pieces, and of bfloat16 numbers.

With the conditions for their use; torch computes the rest. float32 takes six products of pieces, so that a result is at
least as close to the true one as torch's (source/product_amx.h).

torch multiplies bfloat16 matrices by oneDNN where the processor has AVX-512, and by plain loops where it has not: 10 to
80 times slower than float32. There they are widened.
"""

import functools
import platform
from typing import Final

import torch
from torch import Tensor

from hone.models.native.layers import address_of, call_kernel
from hone.models.native.library import HoneProduct, HoneSlope, available_kernels

_WIDTH: Final = 32
"""Widths are multiples of it."""
_SCRATCH_ROWS: Final = 512
"""Tokens laid out at once: SLOPE_ROOM."""
_MIN_MULTIPLICATIONS: Final = 6 << 20
"""Multiplications below which torch is faster, because of the layout and the call."""
_MIN_SIZE: Final = 32
"""Minimum of a product's three sizes; they are padded to multiples of 32."""


WIDENED_ROWS: Final = 1024
"""Rows of bfloat16 numbers that are widened at a time."""


@functools.cache
def widens_half_products() -> bool:
    """True if products of bfloat16 matrices take float32 matrices: on x86 processors without AVX-512."""
    known = platform.machine().lower() in {"x86_64", "amd64"}
    return known and torch.backends.cpu.get_cpu_capability() in {"DEFAULT", "AVX2"}


def is_widened(dtype: torch.dtype, device: torch.device) -> bool:
    """True if products of such numbers there take float32 matrices: bfloat16 on such a processor."""
    return dtype == torch.bfloat16 and device.type == "cpu" and widens_half_products()


def uses_amx_tiles() -> bool:
    """True if float32 products use tiles here. The first call may compile the kernels (seconds)."""
    result = available_kernels()
    return result is not None and bool(result.functions["hone_has_tiles"]())


def tiled_matmul(
    left: Tensor, right: Tensor, bias: Tensor | None = None, *, out: Tensor | None = None, add: bool = False
) -> Tensor:
    """`left [M, K] @ right [K, N] + bias [N]` -> `[M, N]`; into `out` where given, and with `add` added to it.

    By tiles for float32 on a processor with AMX where that is faster, else by torch. Either factor may be the
    transposed view of a matrix. By tiles an element depends only on its row of `left` and its column of `right`: not on
    threads, `M` or `N`. Infinite inputs give NaN, and pieces of a number below 2^-126 count as zero. There are no
    gradients; `add` takes no bias.
    """
    threads = torch.get_num_threads()
    rows, depth, columns = *left.shape, right.shape[1]
    ways = _memory_order(left), _memory_order(right)
    if (
        min(rows, columns, depth) < _MIN_SIZE
        or rows * columns * depth < _MIN_MULTIPLICATIONS
        or left.dtype != torch.float32
        or right.dtype != torch.float32
        or None in ways
        or left.device.type != "cpu"
        or not uses_amx_tiles()
    ):
        return _by_torch(left, right, bias, out, add=add)
    if out is None:
        out = torch.empty(rows, columns)
    assert out.shape == (rows, columns) and out.stride(1) == 1 and out.dtype == torch.float32
    bias = None if bias is None else bias.contiguous()
    (left_first, left_stride), (right_first, right_stride) = (way for way in ways if way is not None)
    numbers = rows, columns, depth, left_stride, right_stride, out.stride(0), left_first, 1 - right_first, add, threads
    call_kernel("hone_product", HoneProduct(*numbers, *(address_of(tensor) for tensor in (left, right, bias, out))))
    return out


def _memory_order(x: Tensor) -> tuple[int, int] | None:
    """Detect the contiguous dimension (True: the first) and the stride of the other; None: neither is contiguous."""
    along, across = x.stride()
    if across == 1 and along >= x.shape[1]:
        return 0, along
    return (1, across) if along == 1 and across >= x.shape[0] else None


def _by_torch(left: Tensor, right: Tensor, bias: Tensor | None, out: Tensor | None, *, add: bool) -> Tensor:
    if is_widened(left.dtype, left.device) and bias is None:
        out = left.new_empty(len(left), right.shape[1]) if out is None else out
        return _widened_into(left, right, out, add=add)
    if add:
        assert out is not None and bias is None
        return out.addmm_(left, right)
    result = torch.mm(left, right, out=out) if out is not None else left @ right
    return result if bias is None else result.add_(bias)


def _widened_into(left: Tensor, right: Tensor, out: Tensor, *, add: bool) -> Tensor:
    """Write the product of bfloat16 matrices to `out`, or add it, rounded once. Of the largest size WIDENED_ROWS are
    widened at a time: such a factor is often the whole vocabulary's."""
    rows, depth, columns = *left.shape, right.shape[1]
    if rows > columns:
        _widened_into(right.t(), left.t(), out.t(), add=add)
    elif depth > columns:
        total = out.float() if add else torch.zeros(out.shape)
        for some, others in zip(left.split(WIDENED_ROWS, 1), right.split(WIDENED_ROWS), strict=True):
            total.addmm_(some.float(), others.float())
        out.copy_(total)
    else:
        wide = left.float()
        for some, to in zip(right.split(WIDENED_ROWS, 1), out.split(WIDENED_ROWS, 1), strict=True):
            to.copy_((wide @ some.float()).add_(to) if add else wide @ some.float())
    return out


def weight_gradient(g: Tensor, x: Tensor, out: Tensor | None = None) -> Tensor | None:
    """`g^T x` for bfloat16 `g` `[T, out]` and `x` `[T, in]` -> `[out, in]` float32, which is not rounded on the way.

    Written into `out` where that is given. None where torch's own product, which is rounded, is the only one.
    """
    if x.device.type != "cpu":
        return None
    if widens_half_products():
        return _widened_gradient(g, x, out)
    fits = g.shape[1] % _WIDTH == 0 and x.shape[1] % _WIDTH == 0 and len(x) > 0
    if not (fits and uses_amx_tiles()):
        return None
    g, x = g.contiguous(), x.contiguous()
    out = torch.empty(g.shape[1], x.shape[1]) if out is None else out
    room = torch.empty(_SCRATCH_ROWS, x.shape[1], dtype=torch.bfloat16)
    pointers = (address_of(tensor) for tensor in (g, x, room, out))
    call_kernel("hone_slope", HoneSlope(*g.shape, x.shape[1], torch.get_num_threads(), *pointers))
    return out


def _widened_gradient(g: Tensor, x: Tensor, out: Tensor | None) -> Tensor:
    """The same by float32 matrices, some rows at a time."""
    out = torch.empty(g.shape[1], x.shape[1]) if out is None else out
    parts = zip(g.split(WIDENED_ROWS), x.split(WIDENED_ROWS), strict=True)
    for number, (above, rows) in enumerate(parts):
        out.addmm_(above.float().t(), rows.float(), beta=min(number, 1))
    return out
