"""Mixed precision: bfloat16 products over float32 weights; what is rounded, and what is not."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from hone.core.errors import DataError
from hone.models.language.config import ModelConfig
from hone.models.language.decoder import Decoder
from hone.models.language.fused_ops import mixed_linear, rms_norm
from hone.models.language.init import new_model
from hone.models.native import library as products
from hone.models.native.library import WIDENED_ROWS, widens_half_products
from hone.models.packing import pack_rows, row_targets

CONFIG = ModelConfig(
    family="qwen2", vocab_size=29, hidden_size=64, intermediate_size=96, layers=3, heads=4, kv_heads=2, head_dim=16
)


def rounded(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().double()


@pytest.mark.parametrize("widened", [False, True])
@pytest.mark.parametrize("rows", [1, 40, 2 * WIDENED_ROWS + 3])
def test_a_product_rounds_its_inputs_and_sums_in_float32(
    rows: int, widened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "widens_half_products", lambda: widened)
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 64, generator=draws, requires_grad=True)
    weight = torch.randn(24, 64, generator=draws, requires_grad=True)
    bias = torch.randn(24, generator=draws, requires_grad=True)
    y = mixed_linear(x, weight, bias)
    exact = functional.linear(rounded(x), rounded(weight), rounded(bias))
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.double(), exact, rtol=2**-8, atol=1e-5)  # one rounding, of the result
    g = torch.randn(y.shape, generator=draws).bfloat16()
    y.backward(g)
    assert x.grad is not None and weight.grad is not None and bias.grad is not None
    assert {x.grad.dtype, weight.grad.dtype, bias.grad.dtype} == {torch.float32}
    torch.testing.assert_close(x.grad.double(), g.double() @ rounded(weight), rtol=2**-8, atol=1e-5)
    exact = g.double().T @ rounded(x)
    torch.testing.assert_close(weight.grad.double(), exact, rtol=2**-8, atol=1e-4)
    if widened:  # sums of products that are exact, never rounded to bfloat16
        torch.testing.assert_close(weight.grad.double(), exact, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(bias.grad.double(), g.double().sum(0), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize(("capability", "machine", "widens"), [
    ("AVX2", "x86_64", True), ("DEFAULT", "AMD64", True), ("AVX512", "x86_64", False), ("DEFAULT", "aarch64", False),
])  # fmt: skip
def test_products_are_widened_where_torch_multiplies_bfloat16_by_plain_loops(
    capability: str, machine: str, widens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: capability)
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert widens_half_products.__wrapped__() is widens


def test_weights_in_bfloat16_are_multiplied_in_float32_there_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model = new_model(CONFIG, seed=0, dtype="bfloat16")
    logp, gradient = logp_and_gradient(model, rows_of(0))
    monkeypatch.setattr(products, "widens_half_products", lambda: not widens_half_products())
    other_logp, other_gradient = logp_and_gradient(model, rows_of(0))
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    torch.testing.assert_close(logp, other_logp, rtol=0, atol=0.06)
    assert functional.cosine_similarity(gradient.float(), other_gradient.float(), dim=0) > 0.999


def test_a_normalisation_rounds_only_its_result() -> None:
    draws = torch.Generator().manual_seed(1)
    x = torch.randn(7, 32, generator=draws, requires_grad=True)
    weight = torch.randn(32, generator=draws, requires_grad=True)
    wide, low = rms_norm(x, weight, 1e-6), rms_norm(x, weight, 1e-6, torch.bfloat16)
    assert torch.equal(low, wide.bfloat16())
    g = torch.randn(x.shape, generator=draws).bfloat16()
    mine = torch.autograd.grad(low, (x, weight), g)
    theirs = torch.autograd.grad(wide, (x, weight), g.float())
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def logp_and_gradient(model: Decoder, rows: list[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    packed = pack_rows(rows)
    targets = row_targets(packed)
    model.zero_grad()
    logp = model.token_logprobs(model.hidden(packed)[targets.at], targets.chosen).logp
    logp.mean().backward()
    return logp.detach(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def rows_of(seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 29, n).astype(np.int32) for n in (5, 17, 30, 8)]


def test_weights_and_gradients_stay_float32_and_the_policy_nearly_the_same() -> None:
    model = new_model(CONFIG, seed=0)
    logp, gradient = logp_and_gradient(model, rows_of(0))
    model.set_compute_dtype("bfloat16")
    low_logp, low_gradient = logp_and_gradient(model, rows_of(0))
    assert low_logp.dtype == low_gradient.dtype == torch.float32
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    difference = (low_logp - logp).abs()
    assert 0 < difference.mean() < 0.01
    assert difference.max() < 0.06
    assert functional.cosine_similarity(low_gradient, gradient, dim=0) > 0.999


def test_activation_checkpointing_changes_no_mixed_gradient() -> None:
    plain, checkpointed = new_model(CONFIG, seed=0), new_model(CONFIG, seed=0, checkpoint_activations=True)
    for model in (plain, checkpointed):
        model.set_compute_dtype("bfloat16")
    ours, theirs = logp_and_gradient(plain, rows_of(1)), logp_and_gradient(checkpointed, rows_of(1))
    assert torch.equal(ours[0], theirs[0])
    assert torch.equal(ours[1], theirs[1])


@pytest.mark.parametrize(("weights", "compute"), [("float64", "bfloat16"), ("bfloat16", "float32"), ("float32", "x")])
def test_what_cannot_be_computed_is_refused(weights: str, compute: str) -> None:
    with pytest.raises(DataError, match=r"cannot be computed in|not supported"):
        new_model(CONFIG, seed=0, dtype=weights).set_compute_dtype(compute)


def test_weights_cast_to_bfloat16_keep_exact_positions():
    """In bfloat16 the positions from 256 on would be rounded."""
    cast = new_model(CONFIG, seed=1)
    frequencies = cast.frequencies.clone()
    cast.to(torch.bfloat16)
    assert cast.frequencies.dtype == torch.float32
    assert torch.equal(cast.frequencies, frequencies)
    assert cast.compute == torch.bfloat16
    assert not cast.is_mixed_precision
    mixed = new_model(CONFIG, seed=1)
    mixed.set_compute_dtype("bfloat16")
    mixed.to("cpu")
    assert mixed.is_mixed_precision
