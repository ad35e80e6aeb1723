"""Products of float32 numbers by tiles, against float64 and torch's own; the linear layer that is made of them."""

from collections.abc import Iterator

import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from hone.core.errors import ConfigError
from hone.models.language.config import ModelConfig
from hone.models.language.decoder import Decoder
from hone.models.language.fused_ops import tiled_linear
from hone.models.language.init import new_model
from hone.models.language.token_logprobs import token_logprobs
from hone.models.native import library as products
from hone.models.native.library import half_matmul, tiled_matmul, uses_amx_tiles
from hone.models.packing import pack_rows

needs_tiles = pytest.mark.skipif(not uses_amx_tiles(), reason="takes a processor with AMX")
SHAPES = [(1, 1, 1), (5, 7, 9), (33, 40, 70), (32, 32, 128), (64, 96, 129), (100, 300, 700), (257, 31, 513)]


@pytest.fixture(autouse=True)
def _by_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small products too."""
    monkeypatch.setattr(products, "_MIN_MULTIPLICATIONS", 0)
    monkeypatch.setattr(products, "_MIN_SIZE", 1)


@pytest.fixture
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def _widens(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on x86 without AVX-512."""
    monkeypatch.setattr(products, "widens_half_products", lambda: True)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def error(found: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Of each element, relative to the sum of the magnitudes of what it adds up."""
    left, right = left.double(), right.double()
    return (found.double() - left @ right) / (left.abs() @ right.abs())


def check(rows: int, columns: int, depth: int) -> None:
    x, weight, g = normal(rows, depth), normal(columns, depth, seed=1), normal(rows, columns, seed=2)
    for left, right in ((x, weight.t()), (g, weight), (g.t(), x)):
        found = tiled_matmul(left, right)
        assert error(found, left, right).abs().max() < 4e-7
        bias, before = normal(right.shape[1], seed=3), normal(*found.shape, seed=4)
        assert torch.equal(tiled_matmul(left, right, bias), found + bias) or len(right) > 256
        torch.testing.assert_close(tiled_matmul(left, right, bias), found + bias, rtol=1e-5, atol=1e-5)
        grown = before.clone()
        assert tiled_matmul(left, right, out=grown, add=True) is grown
        torch.testing.assert_close(grown, before + found, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_three_products_of_a_linear_layer(shape: tuple[int, int, int]) -> None:
    check(*shape)


@needs_tiles
def test_a_number_times_one_is_itself() -> None:
    """All 24 bits come through the three pieces; a float32 number times a power of two has one answer."""
    x = normal(64, 32) * torch.exp2(torch.randint(-90, 90, (64, 32), generator=torch.Generator().manual_seed(1)))
    assert torch.equal(tiled_matmul(x, torch.eye(32)), x)
    assert torch.equal(tiled_matmul(torch.eye(64) * 0.5, x), x * 0.5)
    x = torch.tensor([[1.0 + 2.0**-23, 2.0**24 - 1.0, -(2.0 - 2.0**-23), 3.3e38]])
    assert torch.equal(tiled_matmul(x, torch.eye(4)), x)


@needs_tiles
def test_by_hand() -> None:
    # (1 + 2^-12)(1 - 2^-12) = 1 - 2^-24, which is a float32 number; the bfloat16 product alone would be 1.
    left, right = torch.tensor([[1 + 2.0**-12]]), torch.tensor([[1 - 2.0**-12]])
    assert tiled_matmul(left, right).item() == 1 - 2.0**-24
    left, right = torch.arange(6.0).view(2, 3), torch.arange(6.0).view(3, 2)
    assert tiled_matmul(left, right, torch.tensor([100.0, 200.0])).tolist() == [[110, 213], [128, 240]]


@needs_tiles
@pytest.mark.parametrize("depth", [64, 256, 1024, 4096])
@pytest.mark.parametrize("kind", ["normal", "positive", "wide"])
def test_no_less_exact_than_torch(depth: int, kind: str) -> None:
    def numbers(seed: int) -> Tensor:
        x = normal(128, depth, seed=seed)
        if kind == "positive":
            return x.abs()
        return x * torch.exp(8 * normal(128, depth, seed=seed + 9)) if kind == "wide" else x

    left, right = numbers(0), numbers(1).t()
    ours, theirs = error(tiled_matmul(left, right), left, right), error(left @ right, left, right)
    assert ours.square().mean() <= theirs.square().mean()
    assert ours.abs().max() <= 1.1 * theirs.abs().max()
    assert ours.mean().abs() < 1e-8  # nothing leans to one side


@needs_tiles
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan, 3.4e38])
def test_what_is_not_finite_is_not_hidden(value: float) -> None:
    """Infinity less its first piece is not a number; 3.4e38 is infinite when it is rounded to 8 bits."""
    x, weight = normal(40, 50), normal(60, 50, seed=1)
    x[7, 30] = value
    found = tiled_matmul(x, weight.t())
    assert found[7].isnan().all()
    found[7] = 0
    assert found.isfinite().all()
    weight[3, 1] = value
    assert tiled_matmul(x, weight.t())[:, 3].isnan().all()
    bits = torch.full((40, 50), -1, dtype=torch.int32).view(torch.float32)  # the NaN of all ones
    assert tiled_matmul(bits, weight.t()).isnan().all()


@needs_tiles
def test_tiny_numbers() -> None:
    """Below 2^-126 there is nothing; down to 2^-102 there are all bits, and between them those from 2^-126 on."""
    one = torch.ones(1, 1)
    assert tiled_matmul(torch.full((1, 1), 2.0**-127), one).item() == 0
    for power, bits in ((-102, 24), (-109, 17), (-116, 10), (-125, 1)):
        x = (normal(200, 1).abs() + 1) * 2.0**power
        found = tiled_matmul(x, one * 2.0**60).double() / 2.0**60
        assert ((found - x.double()) / x.double()).abs().max() <= 2.0**-bits
    assert tiled_matmul(torch.full((1, 1), 2.0**-120), torch.full((1, 1), 2.0**100)).item() == 2.0**-20


@needs_tiles
@given(
    rows=st.integers(1, 300), columns=st.integers(1, 80), depth=st.integers(1, 600), way=st.integers(0, 3),
    threads=st.integers(1, 3), seed=st.integers(0, 9),
)  # fmt: skip
@examples(40)
def test_an_element_depends_on_its_row_and_column_alone(
    rows: int, columns: int, depth: int, way: int, threads: int, seed: int
) -> None:
    left = normal(rows, depth, seed=seed) if way % 2 else normal(depth, rows, seed=seed).t()
    right = normal(depth, columns, seed=seed) if way // 2 else normal(columns, depth, seed=seed).t()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        whole = tiled_matmul(left, right)
        torch.set_num_threads(1)
        row, column = seed % rows, seed % columns
        assert torch.equal(tiled_matmul(left, right), whole)
        assert torch.equal(tiled_matmul(left[row:], right), whole[row:])
        assert torch.equal(tiled_matmul(left, right[:, column : column + 1]), whole[:, column : column + 1])
        other = left.contiguous() if way % 2 == 0 else left.t().contiguous().t()
        assert torch.equal(tiled_matmul(other, right), whole)
    finally:
        torch.set_num_threads(before)


@needs_tiles
@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("shape", [(4096, 160, 40), (600, 1030, 300), (64, 3000, 700)])
def test_large_products_for_any_number_of_threads(shape: tuple[int, int, int]) -> None:
    """Several tasks, several stretches, columns in parts, and sums that are written past the cache."""
    rows, columns, depth = shape
    left, right, found = normal(rows, depth), normal(depth, columns, seed=1), list[Tensor]()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(tiled_matmul(left, right))
    assert all(torch.equal(found[0], other) for other in found)
    assert error(found[0], left, right).abs().max() < 2e-7
    assert torch.equal(tiled_matmul(left[5:9], right), found[0][5:9])


@needs_tiles
def test_parts_of_larger_matrices() -> None:
    room, many = normal(50, 200), normal(90, 100)
    left, right, out = room[3:40, 5:75], many[10:80, 7:60], torch.zeros(40, 300)
    tiled_matmul(left, right, out=out[2:39, 100:153])
    assert error(out[2:39, 100:153], left, right).abs().max() < 2e-7
    out[2:39, 100:153] = 0
    assert not out.any()


def test_torch_is_asked_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = tiled_matmul(normal(40, 40).double(), normal(40, 40).double())
    assert exact.dtype == torch.float64
    every_other = normal(40, 80)[:, ::2]
    assert error(tiled_matmul(every_other, every_other.t()), every_other, every_other.t()).abs().max() < 4e-7
    assert torch.equal(tiled_matmul(normal(40, 0), normal(0, 40), torch.ones(40)), torch.ones(40, 40))
    assert tiled_matmul(normal(0, 40), normal(40, 3)).shape == (0, 3)
    monkeypatch.undo()
    left, right = normal(40, 40), normal(40, 40, seed=1)
    assert torch.equal(tiled_matmul(left, right), left @ right), "too small for tiles"
    monkeypatch.setenv("HONE_NATIVE", "0")
    left = normal(300, 300)
    assert torch.equal(tiled_matmul(left, left), left @ left)
    assert not uses_amx_tiles()


@pytest.fixture(params=["avx512_bf16", "amx"])
def _set(request: pytest.FixtureRequest) -> Iterator[None]:
    path = products.build().path
    try:
        products.open_kernels(path, request.param)
    except ConfigError:
        pytest.skip("does not run here")
    yield
    products.open_kernels(path)


def rounded_product(left: Tensor, right: Tensor, out: Tensor | None = None, *, add: bool = False) -> Tensor:
    """By the kernel, on processors too that have a faster way."""
    return products._product(left, right, None, out, add=add, rounded=True)


@pytest.mark.usefixtures("_set")
@pytest.mark.parametrize("shape", [*SHAPES, (300, 40, 1600)])
def test_a_product_of_rounded_numbers_sums_in_float32(shape: tuple[int, int, int]) -> None:
    """Of each kind of number and order in memory; an element depends on its row and column alone."""
    rows, columns, depth = shape
    x, weight = normal(rows, depth), normal(columns, depth, seed=1)
    wanted = x.bfloat16().double() @ weight.bfloat16().double().t()
    limit = (x.abs() @ weight.abs().t()).double() * 4e-7
    lefts = (x, x.bfloat16(), x.t().contiguous().t(), x.bfloat16().t().contiguous().t())
    rights = (weight.t(), weight.bfloat16().t(), weight.t().contiguous(), weight.bfloat16().t().contiguous())
    first = rounded_product(x, weight.t())
    assert ((first.double() - wanted).abs() <= limit).all()
    for left, right in zip((*lefts, x), (*rights, weight.bfloat16().t()), strict=True):
        assert torch.equal(rounded_product(left, right), first)
    assert torch.equal(rounded_product(x[rows // 2 :], weight.t()), first[rows // 2 :])
    before = normal(rows, columns, seed=2)
    grown = rounded_product(x, weight.t(), before.clone(), add=True)
    torch.testing.assert_close(grown, before + first, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("_set")
def test_rounding_by_hand() -> None:
    """bfloat16 has 8 bits: 1 + 2^-7 is one, 1 + 2^-8 lies between two and goes to the even one, and 1 + 3 2^-8 too."""
    numbers = torch.tensor([[1 + 2.0**-7, 1 + 2.0**-8, 1 + 3 * 2.0**-8, -(2.0**-120), torch.inf]])
    found = torch.cat([rounded_product(numbers[:, [n]], torch.ones(1, 1)) for n in range(5)], dim=1)
    assert found.tolist() == [[1 + 2.0**-7, 1.0, 1 + 2.0**-6, -(2.0**-120), torch.inf]]
    # 255 times 257 is no bfloat16 number: 257 is rounded to 256, and the product is not.
    assert rounded_product(torch.tensor([[255.0]]), torch.tensor([[257.0]])).item() == 255 * 256


def test_products_of_rounded_numbers_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, before = normal(70, 40), normal(50, 40, seed=1), normal(70, 50, seed=2)
    wanted = x.bfloat16().double() @ weight.bfloat16().double().t()
    for _ in range(2):
        found = half_matmul(x, weight.t())
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
        grown, place = before.clone(), torch.empty(70, 50)
        assert half_matmul(x, weight.t(), out=place) is place and torch.equal(place, found)
        torch.testing.assert_close(half_matmul(x, weight.t(), out=grown, add=True), before + found)
        assert half_matmul(x[:0], weight.t()).shape == (0, 50)
        monkeypatch.setattr(products, "multiplies_half", lambda: False)


@pytest.mark.parametrize(("device", "compute", "kernels", "half"), [
    ("cuda", torch.bfloat16, False, True), ("cpu", torch.bfloat16, True, True), ("cpu", torch.bfloat16, False, False),
    ("cpu", torch.float32, True, False), ("cuda", torch.float32, True, False), ("meta", torch.bfloat16, True, False),
])  # fmt: skip
def test_where_the_head_multiplies_bfloat16(
    device: str, compute: torch.dtype, kernels: bool, half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "multiplies_half", lambda: kernels)
    assert products.uses_half_products(torch.device(device), compute) is half


def test_the_gradients_of_a_linear_layer() -> None:
    x, weight, bias, g = normal(90, 70), normal(50, 70, seed=1), normal(50, seed=2), normal(90, 50, seed=3)
    wrt = [one.requires_grad_() for one in (x, weight, bias)]
    wrt_ = [one.detach().double().requires_grad_() for one in wrt]
    out, out_ = tiled_linear(x, weight, bias), functional.linear(wrt_[0], wrt_[1], wrt_[2])
    torch.testing.assert_close(out.double(), out_, rtol=0, atol=2e-5)
    for found, wanted in zip(
        torch.autograd.grad(out, wrt, g), torch.autograd.grad(out_, wrt_, g.double()), strict=True
    ):
        torch.testing.assert_close(found.double(), wanted, rtol=0, atol=2e-5)


def test_the_gradients_of_a_head() -> None:
    hidden, weight = normal(130, 40).requires_grad_(), normal(70, 40, seed=1).requires_grad_()
    chosen = torch.arange(130) % 70
    wrt_ = [one.detach().double().requires_grad_() for one in (hidden, weight)]
    found = token_logprobs(hidden, weight, chosen, 0.7, entropy=True)
    wanted = token_logprobs(wrt_[0], wrt_[1], chosen, 0.7, entropy=True)
    assert found.entropy is not None and wanted.entropy is not None
    torch.testing.assert_close(found.logp.double(), wanted.logp, rtol=0, atol=5e-5)
    ours = torch.autograd.grad((found.logp.sin() + found.entropy).sum(), (hidden, weight))
    theirs = torch.autograd.grad((wanted.logp.sin() + wanted.entropy).sum(), wrt_)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=0, atol=2e-4)


def test_a_whole_model() -> None:
    config = ModelConfig(
        family="qwen3", vocab_size=60, hidden_size=64, intermediate_size=96, layers=2, heads=2, kv_heads=1, head_dim=32
    )
    model, exact = new_model(config, seed=1), Decoder(config, dtype="float64")
    exact.load_state_dict({name: value.double() for name, value in model.state_dict().items()})
    rows = [((torch.arange(n) * 7 + n) % 60).int().numpy() for n in (90, 40, 70)]
    packed, chosen = pack_rows(rows), torch.arange(200) % 60

    def gradients(one: Decoder) -> tuple[Tensor, list[Tensor]]:
        logp = one.token_logprobs(one.hidden(packed), chosen).logp
        return logp, list(torch.autograd.grad(logp.sin().sum(), list(one.parameters())))

    (logp, ours), (logp_, theirs) = gradients(model), gradients(exact)
    assert (logp - logp_).abs().max() < 1e-5
    for found, wanted in zip(ours, theirs, strict=True):
        assert (found - wanted).abs().max() < 1e-5 * wanted.abs().max()
    if uses_amx_tiles():
        model.use_bitwise_arithmetic()  # shares its linear layers with the torch runner
        assert not torch.equal(model.token_logprobs(model.hidden(packed), chosen).logp, logp)


@pytest.mark.usefixtures("_widens")
@pytest.mark.parametrize("shape", [(3000, 40, 50), (40, 3000, 50), (40, 50, 3000), (5, 7, 9)])
def test_products_of_bfloat16_are_widened_and_rounded_once(shape: tuple[int, int, int]) -> None:
    """Whichever size is the largest: within half a unit of the last place, and a rounding of the sum in float32."""
    rows, columns, depth = shape
    left, right = normal(rows, depth).bfloat16(), normal(columns, depth, seed=1).bfloat16().t()
    exact = left.double() @ right.double()
    torch.testing.assert_close(tiled_matmul(left, right).double(), exact, rtol=2**-8, atol=1e-4)
    place, before = torch.empty(columns, rows, dtype=torch.bfloat16).t(), normal(rows, columns, seed=2).bfloat16()
    assert tiled_matmul(left, right, out=place) is place
    assert torch.equal(place, tiled_matmul(left, right))
    grown = before.clone()
    tiled_matmul(left, right, out=grown, add=True)
    torch.testing.assert_close(grown.double(), before.double() + exact, rtol=2**-8, atol=1e-4)


@pytest.mark.usefixtures("_widens")
def test_log_probabilities_of_a_model_in_bfloat16_are_widened() -> None:
    """The logits are rounded once, and so is each gradient."""
    hidden, weight = normal(20, 64).bfloat16().requires_grad_(), normal(1500, 64, seed=1).bfloat16().requires_grad_()
    chosen = torch.arange(20)
    logp = token_logprobs(hidden, weight, chosen, 1.0).logp
    logp.sum().backward()
    logits = (hidden.double() @ weight.double().t()).bfloat16()
    exact = torch.log_softmax(logits.double(), dim=-1)
    torch.testing.assert_close(logp.double(), exact[torch.arange(20), chosen], rtol=1e-5, atol=1e-4)
    g = (functional.one_hot(chosen, 1500) - exact.exp()).bfloat16().double()
    assert hidden.grad is not None and weight.grad is not None
    torch.testing.assert_close(hidden.grad.double(), g @ weight.double(), rtol=2**-7, atol=0.02)
    torch.testing.assert_close(weight.grad.double(), g.t() @ hidden.double(), rtol=2**-7, atol=1e-3)
