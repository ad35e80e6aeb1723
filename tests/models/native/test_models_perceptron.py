"""The compiled perceptron: both passes agree with torch in float64, to the rounding of float32 and no worse."""

import copy
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sanitizers import check_with_sanitizers
from torch import Tensor

from hone.control.networks.mlp import Mlp, MlpConfig, use_bfloat16_products
from hone.control.networks.q_networks import LayerNormMlp
from hone.core.errors import ConfigError, ResourceError
from hone.core.random import generator
from hone.learner.flat_parameters import FlatParameters
from hone.models.native import perceptron
from hone.native.build import SWITCH

needs_kernels = pytest.mark.skipif(
    not perceptron.available_functions(), reason="takes a processor with AVX2, and a compiler"
)


def run_in(isa: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the kernels run in this instruction set; skips where the processor has none."""
    try:
        functions = perceptron.open_functions(perceptron.build().path, isa)
    except (ConfigError, ResourceError) as error:
        pytest.skip(str(error))
    monkeypatch.setattr(perceptron, "_loaded", lambda *, relu=True: functions)
    return isa


@pytest.fixture(params=[name for name in perceptron.ISA_NAMES if name != "avx512_bf16"])
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each instruction set of this processor with float32 passes of its own: the kernels run in it."""
    return run_in(str(request.param), monkeypatch)


every_isa = pytest.mark.usefixtures("isa")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass(frozen=True, kw_only=True)
class BothPasses:
    """Outputs of a forward and a backward pass."""

    out: Tensor
    by_inputs: Tensor
    by_parameters: Tensor
    """All parameters in one."""

    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.out, self.by_inputs, self.by_parameters


def draw(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(generator(seed, "perceptron", len(shape)).standard_normal(shape, "float32"))


def new_network(sizes: list[int], seed: int = 0, *, tanh: bool = False) -> Mlp:
    config = MlpConfig(hidden=sizes[1:-1], activation="tanh" if tanh else "relu")
    network = Mlp(sizes[0], sizes[-1], config, seed=seed, stream="x")
    with torch.no_grad():
        for number, parameter in enumerate(network.parameters()):
            parameter.add_(0.05 * draw(seed + number, *parameter.shape))  # biases, too
    return network


def both_passes(network: Mlp, x: Tensor, slope: Tensor) -> BothPasses:
    x = x.clone().requires_grad_()
    out = network(x)
    by_inputs, *rest = torch.autograd.grad(out, [x, *network.parameters()], slope)
    return BothPasses(out=out.detach(), by_inputs=by_inputs, by_parameters=torch.cat([part.flatten() for part in rest]))


def in_float64(network: Mlp, x: Tensor, slope: Tensor) -> BothPasses:
    return both_passes(copy.deepcopy(network).double(), x.double(), slope.double())


def relative_error(result: Tensor, true: Tensor) -> float:
    """Relative error, in the root mean square."""
    return float((result.double() - true).norm() / true.norm().clamp(min=1e-30))


def check(sizes: list[int], rows: int, seed: int = 0, *, tanh: bool = False) -> None:
    network = new_network(sizes, seed, tanh=tanh)
    x, slope = draw(seed + 1, rows, sizes[0]), draw(seed + 2, rows, sizes[-1])
    assert network.kernels is not None
    assert network.kernels.supports(x)
    ours, true = both_passes(network, x, slope), in_float64(network, x, slope)
    assert max(relative_error(one, real) for one, real in zip(ours.parts(), true.parts(), strict=True)) < 2e-6


any_network = given(
    st.lists(st.integers(32, 100), min_size=2, max_size=4),
    st.integers(1, 40),
    st.integers(1, 5),
    st.integers(32, 300),
    st.integers(0, 99),
)
"""Widths of hidden layers, inputs, outputs, rows and a seed."""


@every_isa
@settings(examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@any_network
def test_any_shape(hidden: list[int], inputs: int, outputs: int, rows: int, seed: int) -> None:
    check([inputs, *hidden, outputs], rows, seed)


@pytest.fixture
def vectors(isa: str) -> str:
    """Each instruction set that has tanh."""
    if isa == "amx":
        pytest.skip("tanh networks run in vectors")
    return isa


every_vector = pytest.mark.usefixtures("vectors")


@every_vector
@settings(examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@any_network
def test_any_shape_of_tanh_units(hidden: list[int], inputs: int, outputs: int, rows: int, seed: int) -> None:
    check([inputs, *hidden, outputs], rows, seed, tanh=True)


def test_tanh_at_every_size_of_its_argument(vectors: str) -> None:
    """The tape's first layer, of weights 1, is tanh(x): within 4e-7 of it, odd, never beyond 1, and NaN where x is."""
    network = new_network([1, 32, 32, 1], tanh=True)
    assert network.kernels is not None
    with torch.no_grad():
        network.layer_parameters[0][0].fill_(1.0)
        network.layer_parameters[0][1].zero_()
    sizes = torch.cat([torch.logspace(-30, 1.2, 3993), torch.tensor([0.0, 8.99, 9.0, 9.01, 20.0, 3e38, torch.inf])])
    x = torch.cat([sizes, -sizes, torch.full((32,), torch.nan)])[:, None]
    tape = network.kernels.new_tape(len(x))
    network.kernels.forward(x, tape)
    units = tape.reshape(-1, 64, 16 if vectors == "avx2" else 32)[:, 0].flatten()
    assert units[8000:].isnan().all()
    there, mirrored = units[:4000], units[4000:8000]
    assert torch.equal(there, -mirrored)
    true = torch.tanh(sizes.double())
    assert float((there.double() - true).abs().max()) < 4e-7
    assert float(((there.double() - true).abs() / true.clamp(min=1e-30)).max()) < 5e-7
    assert float(there.max()) == 1.0


@every_isa
@pytest.mark.parametrize("sizes", [[4, 256, 256, 1], [4, 256, 256, 2], [4, 400, 300, 1]])
@pytest.mark.parametrize("rows", [256, 1000])
def test_about_as_exact_as_torch(sizes: list[int], rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    network = new_network(sizes)
    x, slope = draw(1, rows, sizes[0]), draw(2, rows, sizes[-1])
    true, ours = in_float64(network, x, slope), both_passes(network, x, slope)
    monkeypatch.setenv(SWITCH, "0")
    theirs = both_passes(network, x, slope)
    for one, other, real in zip(ours.parts(), theirs.parts(), true.parts(), strict=True):
        assert relative_error(one, real) <= 1.25 * relative_error(other, real)


@every_isa
def test_an_output_depends_on_its_own_row_and_not_on_the_graph() -> None:
    network = new_network([3, 64, 96, 1])
    x = draw(1, 200, 3)
    with_graph = network(x).detach()
    with torch.no_grad():
        assert torch.equal(network(x), with_graph)
        assert torch.equal(network(x[37:101]), with_graph[37:101])


@every_isa
def test_a_frozen_network_gives_the_same_gradient_of_its_inputs_and_none_of_its_weights() -> None:
    network = new_network([3, 64, 64, 1])
    slope, x = draw(2, 64, 1), draw(1, 64, 3).requires_grad_()
    whole = both_passes(network, x.detach(), slope)
    out = network.forward_frozen(x)
    out.backward(slope)
    assert torch.equal(out, whole.out)
    assert x.grad is not None
    assert torch.equal(x.grad, whole.by_inputs)
    assert all(parameter.grad is None for parameter in network.parameters())


@every_isa
def test_gradients_accumulate_where_a_network_is_asked_twice() -> None:
    network = new_network([3, 64, 64, 1])
    flat = FlatParameters(network.parameters())
    x, slope = draw(1, 64, 3), draw(2, 64, 1)
    once = both_passes(network, x, slope).by_parameters
    for _ in range(2):
        network(x).backward(slope)
    torch.testing.assert_close(flat.gradient, 2 * once, rtol=1e-5, atol=1e-6)


@every_isa
def test_in_a_learner_gradients_are_added_where_the_optimizer_reads_them() -> None:
    """Two networks of which one is asked twice, one in torch beside them, and what an earlier step left behind."""
    networks = [new_network([3, 64, 64, 1], seed) for seed in range(2)]
    scale = torch.nn.Parameter(torch.ones(1))
    x, slope = draw(1, 64, 3), draw(2, 64, 1)
    expected = [both_passes(network, x, slope).by_parameters for network in networks]
    flat = FlatParameters([*networks[0].parameters(), *networks[1].parameters(), scale])
    flat.gradient.fill_(7.0)
    with flat.collect_gradients():
        (networks[0](x) * scale + networks[1](x)).backward(slope)
        networks[0](x).backward(slope)
    torch.testing.assert_close(flat.gradient[:-1], torch.cat([2 * expected[0], expected[1]]), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(flat.gradient[-1], (networks[0](x).detach() * slope).sum(), rtol=1e-5, atol=1e-5)
    outside = torch.autograd.grad(networks[0](x), list(networks[0].parameters()), slope)
    torch.testing.assert_close(torch.cat([part.flatten() for part in outside]), expected[0])


@every_isa
def test_a_gradient_of_a_gradient_agrees_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gradient penalty: torch computes it, from what the kernels kept."""
    network = new_network([3, 64, 64, 1])

    def penalty_gradient() -> Tensor:
        x = draw(1, 64, 3).requires_grad_()
        (slope,) = torch.autograd.grad(network(x).sum(), x, create_graph=True)
        parts = torch.autograd.grad(slope.square().sum(), list(network.parameters()), allow_unused=True)
        return torch.cat([part.flatten() for part in parts if part is not None])

    ours = penalty_gradient()
    monkeypatch.setenv(SWITCH, "0")
    assert relative_error(ours, penalty_gradient().double()) < 1e-5


@every_isa
def test_a_weight_that_changes_before_the_backward_pass_is_an_error() -> None:
    network = new_network([3, 64, 64, 1])
    out = network(draw(1, 64, 3))
    with torch.no_grad():
        network.layer_parameters[1][0].mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@every_isa
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_an_input_that_is_not_finite_shows(bad: float) -> None:
    """The outputs of its row are not finite either: the learner stops at them."""
    network = new_network([3, 64, 64, 1])
    x = draw(1, 64, 3)
    x[5, 1] = bad
    result = both_passes(network, x, torch.ones(64, 1))
    assert not result.out[5].isfinite().any()
    assert result.out[6:].isfinite().all()
    assert not result.by_parameters.isfinite().all()


@every_isa
@pytest.mark.parametrize("outputs", [1, 2])
def test_rows_of_very_different_sizes_keep_their_precision(outputs: int) -> None:
    """Numbers become bytes by the size of their own row: rows of 1e-9 and of 1e9 side by side."""
    network = new_network([4, 256, 256, outputs])
    with torch.no_grad():
        for _, bias in network.layer_parameters:
            bias.zero_()  # outputs are then of the size of their inputs
    size = torch.logspace(-9, 9, 96)[:, None]
    x, slope = size * draw(1, 96, 4), draw(2, 96, outputs) / size
    ours, true = both_passes(network, x, slope), in_float64(network, x, slope)
    for one, real in ((ours.out, true.out), (ours.by_inputs, true.by_inputs)):
        wrong = (one.double() - real).norm(dim=1) / real.norm(dim=1)
        assert float(wrong.median()) < 1e-6
        assert float(wrong.max()) < 1e-3  # of sums that come to nearly 0


@every_isa
def test_inactive_units_and_zero_weights_are_exact() -> None:
    network = new_network([3, 64, 64, 1])
    with torch.no_grad():
        network.layer_parameters[1][1].fill_(-1e4)  # no unit of the last hidden layer is ever positive
    result = both_passes(network, draw(1, 70, 3), torch.ones(70, 1))
    bias = network.layer_parameters[2][1]
    assert torch.equal(result.out, bias.detach().expand(70, 1))
    assert torch.equal(result.by_inputs, torch.zeros(70, 3))
    weights = [weight for weight, _ in network.layer_parameters]
    assert not any(part.any() for part in torch.autograd.grad(network(draw(1, 70, 3)).sum(), weights))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    assert not both_passes(network, draw(1, 70, 3), torch.zeros(70, 1)).out.any()


@every_isa
@pytest.mark.parametrize("layer", [0, 1, 2])
def test_a_weight_that_is_not_finite_shows(layer: int) -> None:
    network = new_network([3, 64, 64, 1])
    with torch.no_grad():
        network.layer_parameters[layer][0][:, :] = torch.nan
    assert not both_passes(network, draw(1, 64, 3), torch.ones(64, 1)).out.isfinite().any()


@every_isa
def test_a_copy_has_its_own_weights_and_moved_weights_are_found() -> None:
    network = new_network([3, 64, 64, 1])
    x = draw(1, 64, 3)
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
        ([3, 64, 64, 1], "tanh", 8),
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
    x = draw(1, rows, sizes[0])
    assert network.kernels is None or not network.kernels.supports(x)
    assert network(x).shape == (rows, sizes[-1])


def test_layer_normalisation_and_other_precisions_stay_in_torch() -> None:
    config = MlpConfig(hidden=[64, 64], activation="relu")
    assert LayerNormMlp(3, 1, config, seed=0, stream="x").kernels is None
    network = Mlp(3, 1, config, seed=0, stream="x").double()
    assert network.kernels is not None
    assert not network.kernels.supports(draw(1, 64, 3).double())


@every_isa
def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = new_network([3, 64, 64, 1]).kernels
    assert kernels is not None
    assert kernels.supports(draw(1, 64, 3))
    monkeypatch.setenv(SWITCH, "0")
    assert not kernels.supports(draw(1, 64, 3))


# ------------------------------------------------------------------------------------------------- products of bfloat16


@pytest.fixture(params=["avx512_bf16", "amx"])
def rounding(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each instruction set of this processor with products of bfloat16 numbers."""
    name = run_in(str(request.param), monkeypatch)
    assert perceptron.supports_bfloat16()
    return name


every_rounding = pytest.mark.usefixtures("rounding")


def rounded(x: Tensor) -> Tensor:
    return x.float().bfloat16().double()


def in_rounded_float64(network: Mlp, x: Tensor, slope: Tensor) -> BothPasses:
    """Both passes written out in float64, with the factors of hidden layers' products rounded to bfloat16."""
    weights, biases = ([pair[part].detach().double() for pair in network.layer_parameters] for part in (0, 1))
    units = [x.double()]
    for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        inner = 0 < number < len(weights) - 1
        z = (rounded(units[-1]) @ rounded(weight).T if inner else units[-1] @ weight.T) + bias
        units.append(z if number == len(weights) - 1 else torch.relu(z))
    back, by_weights, by_biases = slope.double(), list[Tensor](), list[Tensor]()
    for number in reversed(range(len(weights))):
        inner = 0 < number < len(weights) - 1
        by_weights.insert(0, rounded(back).T @ rounded(units[number]) if inner else back.T @ units[number])
        by_biases.insert(0, back.sum(dim=0))
        back = rounded(back) @ rounded(weights[number]) if inner else back @ weights[number]
        back = back * (units[number] > 0) if number else back
    by_parameters = [part.flatten() for pair in zip(by_weights, by_biases, strict=True) for part in pair]
    return BothPasses(out=units[-1], by_inputs=back, by_parameters=torch.cat(by_parameters))


def check_rounded(sizes: list[int], rows: int, seed: int = 0) -> None:
    network = new_network(sizes, seed)
    x, slope = draw(seed + 1, rows, sizes[0]), draw(seed + 2, rows, sizes[-1])
    assert network.kernels is not None
    network.kernels.use_bfloat16()
    ours, slow = both_passes(network, x, slope), in_rounded_float64(network, x, slope)
    exact = in_float64(network, x, slope)
    # A unit at the boundary of two bfloat16 numbers, or at 0, may fall to the other side.
    assert relative_error(ours.out, slow.out) < 3e-4 < relative_error(ours.out, exact.out) < 2e-2
    assert relative_error(ours.by_inputs, slow.by_inputs) < 1e-2
    assert relative_error(ours.by_parameters, slow.by_parameters) < 1e-2


@every_rounding
@settings(examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture])
@any_network
def test_any_shape_of_rounded_products(hidden: list[int], inputs: int, outputs: int, rows: int, seed: int) -> None:
    check_rounded([inputs, *hidden, outputs], rows, seed)


@every_rounding
@pytest.mark.parametrize("sizes", [[1, 32, 32, 1], [4, 40, 33, 1], [3, 64, 96, 40, 2]])
def test_numbers_that_bfloat16_holds_are_multiplied_exactly(sizes: list[int]) -> None:
    """Whole numbers of at most eight bits lose nothing: both passes are exact, as in float64."""
    network = new_network(sizes)
    with torch.no_grad():
        for number, parameter in enumerate(network.parameters()):
            parameter.copy_(torch.randint(-1, 2, parameter.shape, generator=torch.Generator().manual_seed(number)))
    assert network.kernels is not None
    network.kernels.use_bfloat16()
    x = (draw(1, 77, sizes[0]) > 0).float()
    slope = (draw(2, 77, sizes[-1]) > 0).float() - 0.5
    ours, true = both_passes(network, x, slope), in_float64(network, x, slope)
    for one, real in zip(ours.parts(), true.parts(), strict=True):
        assert torch.equal(one.double(), real)


@every_rounding
def test_rounding_is_to_the_nearest_and_to_even_at_a_tie() -> None:
    """1 + 2^-8 lies halfway between 1 and 1 + 2^-7, and goes to the even one; a unit of 1 times it."""
    network = new_network([1, 32, 32, 1])
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        network.layer_parameters[0][0].fill_(1.0)
        network.layer_parameters[1][0][0, 0] = 1 + 2**-8
        network.layer_parameters[1][0][0, 1] = 1 + 3 * 2**-8
        network.layer_parameters[1][0][0, 2] = 1 + 2**-8 + 2**-20
        network.layer_parameters[2][0][0, 0] = 1.0
    assert network.kernels is not None
    network.kernels.use_bfloat16()
    assert network(torch.ones(32, 1)).unique().tolist() == [1.0 + (1 + 2**-6) + (1 + 2**-7)]


@every_rounding
def test_rounded_outputs_depend_on_their_own_row_and_gradients_add_up() -> None:
    network = new_network([3, 64, 96, 1])
    assert network.kernels is not None
    network.kernels.use_bfloat16()
    x, slope = draw(1, 200, 3), draw(2, 200, 1)
    with_graph = network(x).detach()
    with torch.no_grad():
        assert torch.equal(network(x), with_graph)
        assert torch.equal(network(x[37:101]), with_graph[37:101])
        assert torch.equal(copy.deepcopy(network)(x), with_graph)  # a copy rounds, too
    flat = FlatParameters(network.parameters())
    once = both_passes(network, x, slope)
    for _ in range(2):
        network(x).backward(slope)
    torch.testing.assert_close(flat.gradient, 2 * once.by_parameters, rtol=1e-5, atol=1e-6)
    asked = x.clone().requires_grad_()
    network.forward_frozen(asked).backward(slope)
    assert asked.grad is not None
    assert torch.equal(asked.grad, once.by_inputs)


@every_rounding
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_shows_in_rounded_products(bad: float) -> None:
    network = new_network([3, 64, 64, 1])
    assert network.kernels is not None
    network.kernels.use_bfloat16()
    x = draw(1, 64, 3)
    x[5, 1] = bad
    result = both_passes(network, x, torch.ones(64, 1))
    assert not result.out[5].isfinite().any()
    assert result.out[6:].isfinite().all()
    assert not result.by_parameters.isfinite().all()


def test_bfloat16_products_are_refused_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "0")
    with pytest.raises(ResourceError, match=r"AVX-512 BF16 or AMX.*HONE_NATIVE or.*runs everywhere"):
        use_bfloat16_products(new_network([3, 64, 64, 1]))
    relu = MlpConfig(hidden=[64, 64], activation="relu")
    for network in (
        new_network([3, 64, 64, 1], tanh=True),
        new_network([3, 64, 1]),
        LayerNormMlp(3, 1, relu, seed=0, stream="x"),
    ):
        with pytest.raises(ConfigError, match=r'products = "bfloat16" needs a ReLU network.*layer_norm = false'):
            use_bfloat16_products(network)


@needs_kernels
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the sanitizers are preloaded by ld.so")
def test_sanitizers_find_nothing() -> None:
    """The same passes in a build with bounds checks, in a process of its own."""
    check_with_sanitizers(Path(__file__).with_name("models_perceptron_checked.py"))
