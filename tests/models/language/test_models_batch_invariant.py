"""Linear layers by tiles, and attention in an order that a token's position fixes."""

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from hone.core.ragged import offsets_of
from hone.models.language.batch_invariant import TILE, BatchInvariantAttention, BatchInvariantLinear, pad_to_tile
from hone.models.language.fused_ops import gated_gelu, gated_silu
from hone.models.native import library as products


def test_padding():
    assert [len(pad_to_tile(torch.ones(rows, 2))) for rows in (0, 1, TILE, TILE + 1)] == [0, TILE, TILE, 2 * TILE]


@pytest.mark.parametrize(("width", "out"), [(32, 40), (1024, 256), (2048, 512), (700, 33)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_is_the_same_in_every_number_of_rows_and_place(width, out, dtype):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(512, width, generator=generator).to(dtype)
    weight, bias = (
        torch.randn(out, width, generator=generator).to(dtype),
        torch.randn(out, generator=generator).to(dtype),
    )
    linear = BatchInvariantLinear()
    row = linear(x[:TILE], weight, bias)[3]
    assert linear.exact
    for rows in (32, 64, 160, 208, 512):
        order = torch.randperm(rows, generator=generator)
        found = linear(x[:rows][order].contiguous(), weight, bias)
        assert torch.equal(found[(order == 3).nonzero()[0, 0]], row), rows
    torch.testing.assert_close(row, functional.linear(x[3], weight, bias), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("width", "out"), [(64, 40), (96, 2100)])
def test_rows_of_bfloat16_are_widened_and_rounded_once(width, out, monkeypatch):
    monkeypatch.setattr(products, "widens_half_products", lambda: True)
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (
        torch.randn(*size, generator=generator).bfloat16() for size in ((512, width), (out, width), (out,))
    )
    linear = BatchInvariantLinear()
    found = linear(x, weight, bias)
    assert found.dtype == torch.bfloat16
    exact = functional.linear(x.double(), weight.double(), bias.double())
    torch.testing.assert_close(found.double(), exact, rtol=2**-8, atol=1e-4)
    assert linear.exact
    for rows in (16, 32, 208):
        assert torch.equal(linear(x[:rows], weight, bias), found[:rows])


def ragged(sizes, kv_heads: int, group: int, size: int, seed: int = 0):
    """Texts of `sizes` tokens, one after another: queries, keys, values, text and position of each token, slots."""
    generator = torch.Generator().manual_seed(seed)
    total, sequence = sum(sizes), np.repeat(np.arange(len(sizes)), sizes)
    offsets = offsets_of(np.array(sizes))
    positions = np.arange(total) - offsets[:-1][sequence]
    slots = np.zeros((len(sizes), max(sizes)), np.int64)
    slots[sequence, positions] = np.arange(total)
    query = torch.randn(total, kv_heads * group, size, generator=generator)
    key, value = torch.randn(2, total, kv_heads, size, generator=generator)
    return query, key, value, sequence, positions, slots


@pytest.mark.parametrize(("kv_heads", "group"), [(2, 2), (3, 1), (1, 1)])
def test_fixed_attention_is_attention(kv_heads, group):
    sizes = [1, 16, 17, 33, 150, 3]
    query, key, value, sequence, positions, slots = ragged(sizes, kv_heads, group, 8)
    heads = kv_heads * group
    fixed = BatchInvariantAttention(sequence, positions, slots, heads=heads, kv_heads=kv_heads, device=query.device)
    found = fixed(query, key, value)
    for text in range(len(sizes)):
        here = torch.from_numpy(np.flatnonzero(sequence == text))
        q, k, v = (x[here].transpose(0, 1).double() for x in (query, key, value))
        expected = functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, enable_gqa=True)
        torch.testing.assert_close(found[here].double(), expected[0].transpose(0, 1).flatten(1), rtol=1e-5, atol=1e-6)


def test_fixed_attention_in_bfloat16_is_widened_and_rounded_once(monkeypatch):
    monkeypatch.setattr(products, "widens_half_products", lambda: True)
    query, key, value, sequence, positions, slots = ragged([1, 33, 150], 2, 2, 16)
    query, key, value = (x.bfloat16() for x in (query, key, value))
    fixed = BatchInvariantAttention(sequence, positions, slots, heads=4, kv_heads=2, device=query.device)
    found, wide = fixed(query, key, value), fixed(*(x.double() for x in (query, key, value)))
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), wide, rtol=2**-8, atol=1e-5)


@given(sizes=st.lists(st.integers(1, 70), min_size=1, max_size=6), data=st.data())
@examples(25)
def test_any_tokens_asked_alone_give_the_bits_of_all_together(sizes, data):
    query, key, value, sequence, positions, slots = ragged(sizes, 2, 2, 8, seed=len(sizes))
    whole = BatchInvariantAttention(sequence, positions, slots, heads=4, kv_heads=2, device=query.device)(
        query, key, value
    )
    asked = np.array(data.draw(st.lists(st.integers(0, len(sequence) - 1), min_size=1, unique=True)))
    moved = np.random.default_rng(0).permutation(len(sequence))  # the same keys in other slots
    part = BatchInvariantAttention(
        sequence[asked], positions[asked], moved[slots], heads=4, kv_heads=2, device=query.device
    )  # fmt: skip
    back = torch.from_numpy(np.argsort(moved))
    assert torch.equal(part(query[asked], key[back], value[back]), whole[asked])


@pytest.mark.parametrize("gate", [gated_silu, gated_gelu])
def test_a_steady_gate_is_the_same_wherever_it_lies(gate):
    gate_up = 3 * torch.randn(97, 2 * 23, generator=torch.Generator().manual_seed(0))
    whole = gate(gate_up, steady=True)
    torch.testing.assert_close(whole, gate(gate_up), rtol=2e-6, atol=2e-6)
    for start, stop in ((0, 1), (5, 12), (30, 97)):
        assert torch.equal(gate(gate_up[start:stop].clone(), steady=True), whole[start:stop])


def test_a_row_linear_has_the_gradients_of_a_linear():
    generator = torch.Generator().manual_seed(1)
    rows, plain = BatchInvariantLinear(), functional.linear
    found = []
    for linear in (rows, plain):
        x, weight, bias = (
            torch.randn(*shape, generator=generator.manual_seed(1)).requires_grad_()
            for shape in ((48, 12), (9, 12), (9,))
        )
        linear(x, weight, bias).square().sum().backward()
        found.append((x.grad, weight.grad, bias.grad))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)
