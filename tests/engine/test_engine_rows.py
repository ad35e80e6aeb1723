"""Linear layers by tiles, and the fixed borders of the cache."""

import pytest
import torch
from torch.nn import functional

from hone.engine.cache import block_edges
from hone.engine.rows import TILE, RowLinear, padded


def test_padding():
    assert [padded(rows) for rows in (0, 1, TILE, TILE + 1)] == [0, TILE, TILE, 2 * TILE]


@pytest.mark.parametrize(("width", "out"), [(32, 40), (1024, 256), (2048, 512), (700, 33)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_is_the_same_in_every_number_of_rows_and_place(width, out, dtype):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(512, width, generator=generator).to(dtype)
    weight, bias = (
        torch.randn(out, width, generator=generator).to(dtype),
        torch.randn(out, generator=generator).to(dtype),
    )
    linear = RowLinear()
    row = linear(x[:TILE], weight, bias)[3]
    assert linear.exact
    for rows in (32, 64, 160, 208, 512):
        order = torch.randperm(rows, generator=generator)
        found = linear(x[:rows][order].contiguous(), weight, bias)
        assert torch.equal(found[(order == 3).nonzero()[0, 0]], row), rows
    torch.testing.assert_close(row, functional.linear(x[3], weight, bias), rtol=1e-4, atol=1e-3)


def test_borders_are_fixed_and_cover_the_capacity():
    assert block_edges(64) == [0, 64]
    assert block_edges(300) == [0, 64, 128, 192, 256, 512]
    assert block_edges(1000)[: len(block_edges(300))] == block_edges(300)
