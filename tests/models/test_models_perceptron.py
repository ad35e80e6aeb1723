"""The compiled perceptron: both passes are those of torch in float64, to the rounding of float32 and no worse."""

import copy
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hone.core.random import generator
from hone.models.by_hand import back, run
from hone.models.mlp import Mlp, MlpConfig
from hone.models.native import perceptron
from hone.native.build import SWITCH, find_compiler
from hone.train.flat import FlatParameters

needs_tiles = pytest.mark.skipif(not perceptron.functions(), reason="takes a processor with AMX, and a compiler")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass(frozen=True, kw_only=True)
class Found:
    """What both passes gave."""

    out: Tensor
    gradient: Tensor
    below: Tensor


def draws_of(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(generator(seed, "perceptron", len(shape)).standard_normal(shape, "float32"))


def network_of(sizes: list[int], seed: int = 0) -> tuple[Mlp, FlatParameters]:
    network = Mlp(sizes[0], sizes[-1], MlpConfig(hidden=sizes[1:-1], activation="relu"), seed=seed, stream="x")
    flat = FlatParameters(network.parameters())
    with torch.no_grad():
        flat.data.add_(0.05 * draws_of(seed, flat.data.numel()))  # biases, too
    return network, flat


def both_passes(network: Mlp, flat: FlatParameters, x: Tensor, slope: Tensor, *, compiled: bool) -> Found:
    flat.zero_grad()
    with torch.no_grad():
        tape = run(network, x)
        assert (tape.kept is not None) == compiled
        below = back(network, tape, slope, inputs=True)
    assert below is not None
    return Found(out=tape.out, gradient=flat.gradient.clone(), below=below)


def truth(network: Mlp, x: Tensor, slope: Tensor) -> Found:
    double, at = copy.deepcopy(network).double(), x.double().requires_grad_()
    out = double(at)
    slopes = torch.autograd.grad(out, [at, *double.parameters()], slope.double())
    return Found(out=out.detach(), gradient=torch.cat([one.flatten() for one in slopes[1:]]), below=slopes[0])


def error(found: Tensor, true: Tensor) -> float:
    """Relative, in the root mean square."""
    return float((found.double() - true).norm() / true.norm().clamp(min=1e-30))


def vars_of(found: Found) -> tuple[Tensor, Tensor, Tensor]:
    return found.out, found.gradient, found.below


def check(sizes: list[int], rows: int, seed: int = 0) -> None:
    network, flat = network_of(sizes, seed)
    x, slope = draws_of(seed + 1, rows, sizes[0]), draws_of(seed + 2, rows, sizes[-1])
    found, true = both_passes(network, flat, x, slope, compiled=True), truth(network, x, slope)
    ours, theirs = vars_of(found), vars_of(true)
    assert max(error(one, real) for one, real in zip(ours, theirs, strict=True)) < 2e-6


@needs_tiles
@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(32, 100), min_size=2, max_size=4),
    st.integers(1, 40),
    st.integers(1, 5),
    st.integers(32, 300),
    st.integers(0, 99),
)
def test_any_shape(hidden: list[int], inputs: int, outputs: int, rows: int, seed: int) -> None:
    check([inputs, *hidden, outputs], rows, seed)


@needs_tiles
@pytest.mark.parametrize("sizes", [[4, 256, 256, 1], [4, 256, 256, 2], [4, 400, 300, 1]])
@pytest.mark.parametrize("rows", [256, 1000])
def test_no_less_exact_than_torch(sizes: list[int], rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    network, flat = network_of(sizes)
    x, slope = draws_of(1, rows, sizes[0]), draws_of(2, rows, sizes[-1])
    true = truth(network, x, slope)
    ours = both_passes(network, flat, x, slope, compiled=True)
    monkeypatch.setenv(SWITCH, "0")
    theirs = both_passes(network, flat, x, slope, compiled=False)
    for found, other, real in zip(vars_of(ours), vars_of(theirs), vars_of(true), strict=True):
        assert error(found, real) <= 1.1 * error(other, real)


@needs_tiles
def test_a_row_depends_on_itself_alone_and_a_tape_changes_nothing() -> None:
    network, _ = network_of([3, 64, 96, 1])
    x = draws_of(1, 200, 3)
    with torch.no_grad():
        whole = run(network, x).out
        assert torch.equal(network(x), whole)
        assert torch.equal(network(x[37:101]), whole[37:101])


@needs_tiles
def test_gradients_are_added_to_and_left_alone_where_nobody_asks() -> None:
    network, flat = network_of([3, 64, 64, 1])
    x, slope = draws_of(1, 64, 3), draws_of(2, 64, 1)
    once = both_passes(network, flat, x, slope, compiled=True).gradient
    with torch.no_grad():
        tape = run(network, x)
        assert back(network, tape, slope, weights=False, inputs=True) is not None
        assert torch.equal(flat.gradient, once)
        assert back(network, tape, slope) is None
    torch.testing.assert_close(flat.gradient, 2 * once, rtol=1e-5, atol=1e-6)


@needs_tiles
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_is_not_hidden(bad: float) -> None:
    """An infinite number comes out infinite or as none: the learner stops at both."""
    network, flat = network_of([3, 64, 64, 1])
    x, slope = draws_of(1, 64, 3), torch.ones(64, 1)
    x[5, 1] = bad
    found = both_passes(network, flat, x, slope, compiled=True)
    assert not found.out[5].isfinite().any()
    assert found.out[6:].isfinite().all()
    assert not found.gradient.isfinite().all()


@needs_tiles
@pytest.mark.parametrize("outputs", [1, 2])
def test_no_row_is_less_exact_for_another_ones_size(outputs: int) -> None:
    """Numbers become bytes by the size of their own row: rows of 1e-9 and of 1e9 side by side."""
    network, flat = network_of([4, 256, 256, outputs])
    with torch.no_grad():
        for _, bias in network.numbers:
            bias.zero_()  # outputs are then of the size of their inputs
    size = torch.logspace(-9, 9, 96)[:, None]
    x, slope = size * draws_of(1, 96, 4), draws_of(2, 96, outputs) / size
    found, true = both_passes(network, flat, x, slope, compiled=True), truth(network, x, slope)
    for one, real in ((found.out, true.out), (found.below, true.below)):
        wrong = (one.double() - real).norm(dim=1) / real.norm(dim=1)
        assert float(wrong.median()) < 1e-6
        assert float(wrong.max()) < 1e-3  # of sums that come to nearly nothing


@needs_tiles
def test_silent_units_and_nothing_at_all_are_exact() -> None:
    network, flat = network_of([3, 64, 64, 1])
    with torch.no_grad():
        network.numbers[1][1].fill_(-1e4)  # no unit of the last hidden layer is ever positive
    found = both_passes(network, flat, draws_of(1, 70, 3), torch.ones(70, 1), compiled=True)
    assert torch.equal(found.out, network.numbers[2][1].detach().expand(70, 1))
    assert torch.equal(found.below, torch.zeros(70, 3))
    weights = [weight.grad for weight, _ in network.numbers]
    assert all(gradient is not None and not gradient.any() for gradient in weights)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    assert not both_passes(network, flat, draws_of(1, 70, 3), torch.zeros(70, 1), compiled=True).out.any()


@needs_tiles
@pytest.mark.parametrize("layer", [0, 1, 2])
def test_a_weight_that_is_not_finite_is_not_hidden(layer: int) -> None:
    network, flat = network_of([3, 64, 64, 1])
    with torch.no_grad():
        network.numbers[layer][0][:, :] = torch.nan
    found = both_passes(network, flat, draws_of(1, 64, 3), torch.ones(64, 1), compiled=True)
    assert not found.out.isfinite().any()


@needs_tiles
def test_weights_that_did_not_move_are_not_laid_out_again() -> None:
    network, flat = network_of([3, 64, 64, 1])
    other, _ = network_of([3, 64, 64, 1], seed=1)
    x, slope = draws_of(1, 64, 3), draws_of(2, 64, 1)

    def gone(*, again: bool) -> tuple[Tensor, Tensor]:
        flat.zero_grad()
        tape = run(network, x, again=again)
        back(network, tape, slope, again=again)
        return tape.out, flat.gradient.clone()

    with torch.no_grad():
        out, gradient = gone(again=False)
        for _ in range(2):
            for one, first in zip(gone(again=True), (out, gradient), strict=True):
                assert torch.equal(one, first)
            back(other, run(other, x), slope.clone(), weights=False)  # whose weights took the place of these
        flat.data.mul_(2.0)
        stale, _ = gone(again=True)  # the other's are laid out now: these are, too
        assert not torch.equal(stale, out)
        flat.data.mul_(0.5)
        assert torch.equal(gone(again=False)[0], out)


@needs_tiles
def test_a_copy_and_moved_weights_are_looked_up_anew() -> None:
    network, _ = network_of([3, 64, 64, 1])
    x = draws_of(1, 64, 3)
    with torch.no_grad():
        before = network(x)
        other = copy.deepcopy(network)
        for parameter in other.parameters():
            parameter.mul_(2.0)
        assert torch.equal(network(x), before)
        assert not torch.equal(other(x), before)
        FlatParameters(network.parameters())
        assert torch.equal(network(x), before)


@pytest.mark.parametrize(
    ("sizes", "activation", "rows"),
    [
        ([3, 64, 64, 1], "tanh", 64),
        ([3, 64, 64, 1], "relu", 8),
        ([3, 16, 64, 1], "relu", 64),
        ([3, 64, 1], "relu", 64),
        ([200, 64, 64, 1], "relu", 64),
        ([3, 64, 64, 33], "relu", 64),
    ],
)
def test_torch_takes_the_rest(sizes: list[int], activation: str, rows: int) -> None:
    config = MlpConfig.model_validate({"hidden": sizes[1:-1], "activation": activation})
    network = Mlp(sizes[0], sizes[-1], config, seed=0, stream="x")
    x = draws_of(1, rows, sizes[0])
    assert network.compiled(x) is None
    with torch.no_grad():
        assert run(network, x).kept is None
    assert network.compiled(x.double()) is None


@needs_tiles
def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    network, _ = network_of([3, 64, 64, 1])
    assert network.compiled(draws_of(1, 64, 3)) is not None
    monkeypatch.setenv(SWITCH, "0")
    assert network.compiled(draws_of(1, 64, 3)) is None


@needs_tiles
@pytest.mark.skipif(sys.platform != "linux", reason="the sanitizers are preloaded by ld.so")
def test_sanitizers_find_nothing() -> None:
    """The same passes in a build with bounds checks, in a process of its own."""
    compiler = find_compiler()
    assert compiler is not None
    said = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    sanitizer = said.stdout.strip()
    if not Path(sanitizer).is_absolute():
        pytest.skip("no address sanitizer beside the compiler")
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).resolve().parents[2] / "src"),
        "LD_PRELOAD": str(Path(sanitizer).resolve()),
        "ASAN_OPTIONS": "detect_leaks=0",
    }
    driver = Path(__file__).with_name("models_perceptron_checked.py")
    answer = subprocess.run(
        [sys.executable, str(driver)], env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    assert answer.stdout.split()[-1] == "ok"
