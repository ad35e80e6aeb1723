"""The compiled training kernels against the plain formulas in float64, for every instruction set that runs here."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from sanitizers import check_with_sanitizers
from shared_prompts import pack_shared_prompts
from torch import Tensor
from torch.nn import functional

from hone.core.errors import ConfigError
from hone.models.language.config import ModelConfig
from hone.models.language.decoder import Decoder
from hone.models.language.fused_ops import apply_rotary, rms_norm
from hone.models.language.init import new_model
from hone.models.language.packed_attention import PackedAttention
from hone.models.native import library
from hone.models.native.library import (
    MAX_POSITIONS,
    KernelTexts,
    NativeAttention,
    native_add_norm,
    native_gated_silu,
    weight_gradient,
    widens_half_products,
)
from hone.models.packing import PackedBatch, TokenTargets, pack_rows, packed_text_slots

pytestmark = pytest.mark.skipif(library.why_unavailable() is not None, reason=str(library.why_unavailable()))


@pytest.fixture(params=library.ISA_NAMES)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    path = library.build().path
    try:
        library.open_kernels(path, request.param)
    except ConfigError:
        pytest.skip("does not run here")
    yield request.param
    library.open_kernels(path)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return values.to(dtype).requires_grad_()


def doubles(*tensors: Tensor) -> list[Tensor]:
    return [tensor.detach().double().requires_grad_() for tensor in tensors]


def far(found: Tensor, wanted: Tensor) -> float:
    found, wanted = found.detach().double(), wanted.detach()
    return float((found - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize(("rows", "width"), [(1, 256), (65, 72), (130, 7)])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_a_norm_of_a_sum(isa: str, rows: int, width: int, kind: torch.dtype) -> None:
    x, delta, weight = normal(rows, width), normal(rows, width, seed=1, dtype=kind), normal(width, seed=2)
    stream, out = native_add_norm(x, delta, weight, 1e-5, kind)
    ours = torch.autograd.grad((stream, out), (x, delta, weight), (stream.detach(), out.detach()))
    x_, delta_, weight_ = doubles(x, delta, weight)
    stream_ = x_ + delta_
    out_ = functional.rms_norm(stream_, (width,), weight_, 1e-5)
    theirs = torch.autograd.grad((stream_, out_), (x_, delta_, weight_), (stream.double(), out.detach().double()))
    assert far(stream, stream_) < 1e-7
    assert (out.dtype, ours[1].dtype) == (kind, kind)
    assert far(out, out_) < (1e-6 if kind == torch.float32 else 4e-3)
    for found, wanted in zip(ours, theirs, strict=True):
        assert far(found, wanted) < (4e-3 if found.dtype == torch.bfloat16 else 1e-6)


def test_a_norm_in_bfloat16_and_of_nothing_added(isa: str) -> None:
    x, delta, weight = (normal(9, 48, seed=seed, dtype=torch.bfloat16) for seed in range(3))
    stream, out = native_add_norm(x, delta, weight[0], 1e-6, torch.bfloat16)
    assert torch.equal(stream, x + delta)
    assert far(out, functional.rms_norm(stream.double(), (48,), weight[0].double(), 1e-6)) < 4e-3
    alone, weight = normal(9, 48), normal(48, seed=3)
    stream, out = native_add_norm(alone, None, weight, 1e-6, torch.float32)
    assert torch.equal(stream, alone)
    (grad,) = torch.autograd.grad(stream.sum(), alone, retain_graph=True)  # nobody read the norm
    assert torch.equal(grad, torch.ones(9, 48))
    (alone_,) = doubles(alone)
    (wanted,) = torch.autograd.grad(functional.rms_norm(alone_, (48,), weight.double(), 1e-6).sin().sum(), alone_)
    (grad,) = torch.autograd.grad(out.sin().sum(), alone)  # nobody read the stream
    assert far(grad, wanted) < 1e-6


@pytest.mark.parametrize(("rows", "width"), [(1, 64), (70, 13), (129, 48)])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_a_gate(isa: str, rows: int, width: int, kind: torch.dtype) -> None:
    gate_up = normal(rows, 2 * width, dtype=kind)
    out = native_gated_silu(gate_up)
    g = normal(rows, width, seed=1, dtype=kind)
    (found,) = torch.autograd.grad(out, gate_up, g)
    (gate_up_,) = doubles(gate_up)
    gate, up = gate_up_.chunk(2, dim=-1)
    out_ = functional.silu(gate) * up
    (wanted,) = torch.autograd.grad(out_, gate_up_, g.double())
    limit = 1e-6 if kind == torch.float32 else 4e-3
    assert far(out, out_) < limit
    assert far(found, wanted) < limit


@pytest.mark.parametrize(("tokens", "outs", "ins"), [(1, 32, 32), (33, 96, 32), (512, 32, 64), (1061, 64, 96)])
def test_the_gradient_of_a_weight(isa: str, tokens: int, outs: int, ins: int) -> None:
    g, x = (normal(tokens, n, seed=n + k, dtype=torch.bfloat16).detach() for k, n in enumerate((outs, ins)))
    found = weight_gradient(g, x)
    if isa != "amx" and not widens_half_products():
        assert found is None
        return
    assert found is not None
    assert far(found, g.double().T @ x.double()) < 1e-6  # sums are not rounded to bfloat16


def test_the_gradient_of_a_weight_by_tiles_for_any_number_of_threads_and_of_odd_widths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hone.models.native.library.widens_half_products", lambda: False)
    g, x = (normal(700, n, seed=n, dtype=torch.bfloat16).detach() for n in (160, 64))
    before, found = torch.get_num_threads(), list[Tensor | None]()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(weight_gradient(g, x))
    finally:
        torch.set_num_threads(before)
    if (one := found[0]) is not None:
        assert all(other is not None and torch.equal(one, other) for other in found)
    assert weight_gradient(g[:, :40], x) is None
    assert weight_gradient(g[:0], x[:0]) is None


def test_wide_inputs_lay_fewer_tokens_out_at_once_and_change_no_bit() -> None:
    g, x = (normal(1061, n, seed=n, dtype=torch.bfloat16).detach() for n in (32, 2080))
    whole, part = weight_gradient(g, x), weight_gradient(g, x[:, 2016:].contiguous())
    if whole is not None and part is not None:
        assert torch.equal(whole[:, 2016:], part)


def test_a_gate_far_out(isa: str) -> None:
    gate = torch.tensor([[-200.0, -90.0, 0.0, 90.0, 200.0]])
    out = native_gated_silu(torch.cat((gate, torch.ones_like(gate)), -1))
    torch.testing.assert_close(out, torch.tensor([[0.0, 0.0, 0.0, 90.0, 200.0]]))


def texts(seed: int = 0, *, longest: int = 70) -> tuple[PackedBatch, TokenTargets]:
    """Shared trunks, a text alone, a row without a trunk's company, and tiles that are not full."""
    rng = np.random.default_rng(seed)

    def some(count: int) -> np.ndarray:
        return rng.integers(0, 11, count).astype(np.int32)

    groups = [
        (some(int(rng.integers(1, 40))), [some(int(n)) for n in rng.integers(1, longest, k)]) for k in (3, 1, 0, 5)
    ]
    return pack_shared_prompts(groups)


def plain(
    packed: PackedBatch, qkv: Tensor, turns: Tensor, shape: tuple[int, int, int], norms: tuple[Tensor | None, ...]
) -> Tensor:
    heads, kv_heads, head_dim = shape
    query, key, value = qkv.view(len(qkv), -1, head_dim).split((heads, kv_heads, kv_heads), dim=1)
    if norms[0] is not None and norms[1] is not None:
        query, key = rms_norm(query, norms[0], 1e-6), rms_norm(key, norms[1], 1e-6)
    attend = PackedAttention(packed, heads=heads, kv_heads=kv_heads, head_dim=head_dim, dtype=qkv.dtype)
    unit = torch.view_as_complex(turns.to(qkv.dtype))[:, None]
    return attend(0, apply_rotary(query, unit), apply_rotary(key, unit), value)


def plan(packed: PackedBatch, turns: Tensor, shape: tuple[int, int, int]) -> NativeAttention:
    cut = KernelTexts.from_packed(packed)
    assert cut is not None
    return NativeAttention(texts=cut, turns=turns, heads=shape[0], kv_heads=shape[1], head_dim=shape[2])


def turns_of(packed: PackedBatch, head_dim: int) -> Tensor:
    angles = packed.positions[:, None] / torch.arange(1, head_dim // 2 + 1)
    return torch.stack((angles.cos(), angles.sin()), dim=-1).contiguous()


@pytest.mark.parametrize("shape", [(4, 4, 64), (4, 2, 10), (3, 1, 24)])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_attention(isa: str, shape: tuple[int, int, int], normed: bool, kind: torch.dtype) -> None:
    packed, _ = texts()
    count, (heads, kv_heads, size) = len(packed.tokens), shape
    turns = turns_of(packed, size)
    qkv = normal(count, (heads + 2 * kv_heads) * size, dtype=kind)
    norms = [normal(size, seed=seed) if normed else None for seed in (1, 2)]
    g = normal(count, heads * size, seed=3, dtype=kind)
    wrt = [qkv, *(norm for norm in norms if norm is not None)]
    out = plan(packed, turns, shape)(qkv, norms[0], norms[1], 1e-6)
    ours = torch.autograd.grad(out, wrt, g)
    wrt_ = doubles(*wrt)
    out_ = plain(packed, wrt_[0], turns, shape, tuple(wrt_[1:]) if normed else (None, None))
    theirs = torch.autograd.grad(out_, wrt_, g.double())
    assert far(out, out_) < (1e-6 if kind == torch.float32 else 4e-3)
    for found, wanted in zip(ours, theirs, strict=True):
        assert far(found, wanted) < (2e-6 if found.dtype == torch.float32 else 4e-3)


def test_neither_threads_nor_neighbours_change_a_bit(isa: str) -> None:
    shape, (packed, _) = (4, 2, 32), texts(1)
    qkv, g = normal(len(packed.tokens), 256), normal(len(packed.tokens), 128, seed=1)
    norms = normal(32, seed=2), normal(32, seed=3)

    def run(part: PackedBatch, first: int, threads: int) -> list[Tensor]:
        torch.set_num_threads(threads)
        rows = slice(first, first + len(part.tokens))
        wrt = [qkv[rows].detach().requires_grad_(), *norms]
        out = plan(part, turns_of(part, 32), shape)(*wrt, 1e-6)
        return [out, *torch.autograd.grad(out, wrt, g[rows])]

    before = torch.get_num_threads()
    try:
        whole = run(packed, 0, 1)
        assert all(torch.equal(a, b) for a, b in zip(whole, run(packed, 0, 3), strict=True))
        for row, first in enumerate(packed.offsets[:-1].tolist()):
            last = int(packed.offsets[row + 1])
            assert packed.branch is not None
            part = PackedBatch(
                tokens=packed.tokens[first:last],
                positions=packed.positions[first:last],
                offsets=np.array([0, last - first]),
                branch=packed.branch[first:last],
            )
            alone = run(part, first, 1)
            assert torch.equal(alone[0], whole[0][first:last])
            assert torch.equal(alone[1], whole[1][first:last])
    finally:
        torch.set_num_threads(before)


@given(st.lists(st.tuples(st.integers(0, 5), st.lists(st.integers(1, 6), max_size=4)), min_size=1, max_size=5))
@examples(60)
def test_rows_are_cut_into_their_texts(groups: list[tuple[int, list[int]]]) -> None:
    def some(count: int) -> np.ndarray:
        return np.zeros(count, np.int32)

    # A row without a trunk: branches that begin at 0.
    packed, _ = pack_shared_prompts([(some(trunk), [some(n) for n in branches]) for trunk, branches in groups])
    cut = KernelTexts.from_packed(packed)
    assert cut is not None
    sequence, slots = packed_text_slots(packed)
    wanted = {sequence[at]: 0 for at in range(len(sequence))}
    seen: dict[int, list[int]] = {}
    for row in range(len(cut.first) - 1):
        trunk = int(cut.first[row])
        before = list(range(int(cut.at[trunk]), int(cut.at[trunk] + cut.length[trunk])))
        for text in range(trunk, int(cut.first[row + 1])):
            own = list(range(int(cut.at[text]), int(cut.at[text] + cut.length[text])))
            if own:
                seen[int(sequence[own[0]])] = own if text == trunk else before + own
    assert seen.keys() == wanted.keys()
    assert all(slots[text, : len(tokens)].tolist() == tokens for text, tokens in seen.items())


def test_rows_that_the_kernel_does_not_know() -> None:
    long = pack_rows([np.zeros(MAX_POSITIONS + 1, np.int32)])
    assert KernelTexts.from_packed(long) is None
    packed, _ = pack_shared_prompts([(np.zeros(2, np.int32), [np.zeros(2, np.int32)] * 2)])
    order = torch.tensor([0, 1, 2, 4, 3, 5])  # branches take turns
    mingled = PackedBatch(
        tokens=packed.tokens,
        positions=packed.positions[order],
        offsets=packed.offsets,
        branch=None if packed.branch is None else packed.branch[order],
    )
    assert KernelTexts.from_packed(mingled) is None
    nothing = KernelTexts.from_packed(pack_rows([]))
    assert nothing is not None and nothing.first.tolist() == [0]


def models(family: str, seed: int = 0) -> tuple[Decoder, Decoder]:
    """In float32, and the same in float64."""
    config = ModelConfig(
        family=family, vocab_size=11, max_positions=256, hidden_size=40, intermediate_size=56, layers=2, heads=4,
        kv_heads=2, head_dim=10,
    )  # fmt: skip
    model = new_model(config, seed=seed)
    exact = Decoder(config, dtype="float64")
    exact.load_state_dict({name: value.double() for name, value in model.state_dict().items()})
    return model, exact


def gradients(model: Decoder, packed: PackedBatch, targets: TokenTargets) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    logp = model.token_logprobs(model.hidden(packed)[targets.at], targets.chosen).logp
    (logp * torch.arange(len(logp)).cos()).sum().backward()
    return logp.detach(), {name: value.grad for name, value in model.named_parameters() if value.grad is not None}


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_whole_model(isa: str, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (model, exact), (packed, targets) = models(family), texts(2)
    wanted, theirs = gradients(exact, packed, targets)
    logp, ours = gradients(model, packed, targets)
    assert far(logp, wanted) < 1e-6
    assert ours.keys() == theirs.keys()
    assert all(far(ours[name], theirs[name]) < 1e-5 for name in theirs)
    model.checkpoint_activations = True
    again, checkpointed = gradients(model, packed, targets)
    assert torch.equal(again, logp)
    assert all(torch.equal(checkpointed[name], ours[name]) for name in ours)
    monkeypatch.setenv("HONE_NATIVE", "0")
    other, _ = gradients(model, packed, targets)
    assert not torch.equal(other, logp), "the compiled kernels were not in use"
    assert far(other, wanted) < 1e-6


def test_mixed_precision_is_no_worse_than_without_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    (model, exact), (packed, targets) = models("qwen3"), texts(3)
    wanted, _ = gradients(exact, packed, targets)
    model.set_compute_dtype("bfloat16")
    ours = (gradients(model, packed, targets)[0] - wanted).abs().mean()
    monkeypatch.setenv("HONE_NATIVE", "0")
    theirs = (gradients(model, packed, targets)[0] - wanted).abs().mean()
    assert ours < 1.2 * theirs


def test_a_frozen_part_gets_no_gradient() -> None:
    model, _ = models("qwen3")
    packed, targets = texts(4)
    _, everything = gradients(model, packed, targets)
    for name, value in model.named_parameters():
        value.requires_grad_("norm" not in name and "embedding" not in name)
        value.grad = None
    _, some = gradients(model, packed, targets)
    assert some.keys() == {name for name in everything if "norm" not in name and "embedding" not in name}
    assert all(torch.equal(some[name], everything[name]) for name in some)


def test_why_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HONE_NATIVE", "0")
    assert library.why_unavailable() == "the compiled training kernels are switched off (HONE_NATIVE=0)"
    assert library.available_kernels() is None
    model, exact = models("llama")
    (note,) = model.notes()
    assert note == f"training uses torch, not the compiled kernels, which are faster: {library.why_unavailable()}"
    assert exact.notes() == []
    with pytest.raises(ConfigError, match="unheard"):
        library.open_kernels(library.build().path, "unheard")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the sanitizers are preloaded by ld.so")
def test_sanitizers_find_nothing() -> None:
    check_with_sanitizers(Path(__file__).with_name("models_native_checked.py"))
