"""PPO's minibatch in one compiled call: its loss, metrics and gradients are those of autograd in float64."""

import copy
import math
import sys
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import pytest
import torch
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sanitizers import check_with_sanitizers
from torch import Tensor

from hone.certify.control_probes import Float64Inputs
from hone.control import ppo_backward
from hone.control.networks.actor_critic import ActorCritic
from hone.control.networks.mlp import BoxActions, DiscreteActions, MlpConfig, ObservationInputs, PolicySpaces
from hone.control.rows import StepRows
from hone.core.errors import ConfigError, ResourceError
from hone.core.random import generator
from hone.learner.flat_parameters import FlatParameters
from hone.models.native import perceptron
from hone.objectives.terms import LossTerms
from hone.recipes.on_policy import ppo

KINDS = {
    "two choices": DiscreteActions(count=2),
    "choices from 5 on": DiscreteActions(count=4, start=5),
    "masked": DiscreteActions(count=32, start=-3, masked=True),
    "a box": BoxActions(low=(-2.0, 0.0), high=(2.0, 1.0), shape=(2,)),
    "a scaled box": BoxActions(low=(-2.0,) * 3, high=(2.0,) * 3, shape=(3,), gaussian="clipped"),
}


@pytest.fixture(params=[name for name in perceptron.ISA_NAMES if name != "avx512_bf16"])
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each instruction set of this processor with float32 passes of its own."""
    name = str(request.param)
    try:
        functions = {
            relu: perceptron.open_functions(perceptron.build().path, name if relu or name != "amx" else None, relu=relu)
            for relu in (True, False)
        }
    except (ConfigError, ResourceError) as error:
        pytest.skip(str(error))
    if not functions[True]:
        pytest.skip("no instruction set of the compiled perceptron here")
    monkeypatch.setattr(perceptron, "_loaded", lambda *, relu=True: functions[relu])
    return name


every_isa = pytest.mark.usefixtures("isa")


def draw(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(generator(seed, "one call", len(shape)).standard_normal(shape, "float32"))


def new_policy(
    kind: str, hidden: list[int], *, inputs: int = 3, relu: bool = False, seed: int = 0
) -> tuple[ActorCritic, FlatParameters]:
    config = MlpConfig(hidden=hidden, activation="relu" if relu else "tanh")
    spaces = PolicySpaces(inputs=ObservationInputs(size=inputs), actions=KINDS[kind])
    policy = ActorCritic(spaces, config, seed=seed)
    with torch.no_grad():
        for number, parameter in enumerate(policy.parameters()):
            parameter.add_(0.2 * draw(seed + number, *parameter.shape))
    return policy, FlatParameters(policy.parameters())


def new_rows(policy: ActorCritic, count: int, seed: int) -> StepRows:
    actions, draws, mask = policy.spaces.actions, generator(seed, "rows"), None
    if isinstance(actions, DiscreteActions):
        picked = draws.integers(0, actions.count, count)
        chosen = torch.from_numpy(picked + actions.start)
        if actions.masked:
            mask = torch.from_numpy(draws.random((count, actions.count)) < 0.3)
            mask[torch.arange(count), torch.from_numpy(picked)] = True
    else:
        assert isinstance(actions, BoxActions)
        chosen = draw(seed, count, actions.size)
    then = -1.0 + 0.5 * draw(seed + 1, count)
    then[0] = -60.0  # past the cap of the log-ratio
    advantage = draw(seed + 2, count)
    advantage[1] = 0.0
    return StepRows(
        weight=torch.full((1,), 1.0 / count).expand(count), seen=draw(seed + 3, count, policy.spaces.inputs.size),
        chosen=chosen, logp=then, advantage=advantage, target=draw(seed + 4, count), mask=mask,
    )  # fmt: skip


def widened(policy: ActorCritic, rows: StepRows) -> tuple[ActorCritic, StepRows]:
    double = copy.deepcopy(policy).double()
    double.spaces = replace(double.spaces, inputs=Float64Inputs(**asdict(double.spaces.inputs)))
    columns = {name: one.double() if one.is_floating_point() else one for name, one in rows.columns().items()}
    return double, StepRows(**columns)


def in_one_call(policy: ActorCritic, rows: StepRows, algorithm: ppo.PpoAlgorithm) -> LossTerms:
    with torch.no_grad():
        return ppo.objective_with_backward(policy, rows, algorithm=algorithm)


def takes_one_call(policy: ActorCritic, rows: StepRows) -> bool:
    weights = perceptron.ClippedWeights(low=0.1, high=0.1, value=1.0, entropy=0.0)
    return ppo_backward.loss_in_one_call(policy, rows, rows.seen, weights) is not None


def check(
    kind: str,
    hidden: list[int],
    rows: int,
    *,
    inputs: int = 3,
    relu: bool = False,
    entropy: float = 0.02,
    seed: int = 0,
) -> None:
    policy, flat = new_policy(kind, hidden, inputs=inputs, relu=relu, seed=seed)
    batch = new_rows(policy, rows, seed)
    algorithm = ppo.PpoAlgorithm(entropy_weight=entropy, clip_low=0.1, clip_high=0.3, value_weight=0.7)
    assert takes_one_call(policy, batch)
    flat.zero_grad()
    terms = in_one_call(policy, batch, algorithm)
    double, wide = widened(policy, batch)
    true = ppo.objective(double, wide, algorithm=algorithm)
    gradient = torch.autograd.grad(true.weighted_sum(wide.weight), list(double.parameters()))
    expected = torch.cat([part.flatten() for part in gradient])
    assert float((flat.gradient.double() - expected).norm() / expected.norm()) < 3e-6
    close = partial(torch.testing.assert_close, rtol=2e-5, atol=2e-5)
    close(terms.loss.double(), true.loss.detach())
    assert terms.metrics.keys() == true.metrics.keys()
    for name, value in true.metrics.items():
        close(terms.metrics[name].double(), value.detach().double())


@every_isa
@settings(examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(sorted(KINDS)),
    st.lists(st.integers(32, 100), min_size=2, max_size=3),
    st.integers(32, 300),
    st.integers(1, 20),
    st.booleans(),
    st.sampled_from([0.0, 0.02]),
    st.integers(0, 99),
)
def test_any_shape(kind: str, hidden: list[int], rows: int, inputs: int, relu: bool, entropy: float, seed: int) -> None:
    check(kind, hidden, rows, inputs=inputs, relu=relu, entropy=entropy, seed=seed)


def uniform(kind: str, then: list[float], advantage: list[float]) -> tuple[ActorCritic, FlatParameters, StepRows]:
    """A policy and a critic of zeros, and rows `[32]` that repeat what is given."""
    policy, flat = new_policy(kind, [32, 32])
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.zero_()
    times, chosen = 32 // len(then), torch.zeros(32, dtype=torch.int64)
    if policy.log_std is not None:
        chosen = torch.zeros(32, 2)
        with torch.no_grad():
            policy.log_std.fill_(-0.5 * math.log(2.0 * math.pi))  # the density at the mean is 1
    column = [torch.tensor(one).repeat(times) for one in (then, advantage)]
    return policy, flat, StepRows(
        weight=torch.full((1,), 1.0 / 32).expand(32), seen=torch.zeros(32, 3), chosen=chosen, logp=column[0],
        advantage=column[1], target=torch.full((32,), 2.0),
    )  # fmt: skip


@every_isa
def test_values_worked_out_by_hand() -> None:
    """Two choices of probability 1/2: r = 1.5 and 0.5 with clip widths of 0.2, V = 0 against a target of 2."""
    then = [math.log(0.5 / 1.5)] * 2 + [math.log(0.5 / 0.5)] * 2
    policy, _, rows = uniform("two choices", then, [1.0, -1.0, 1.0, -1.0])
    terms = in_one_call(policy, rows, ppo.PpoAlgorithm(value_weight=0.5, entropy_weight=0.1))
    rest = 0.5 * 0.5 * 2.0**2 - 0.1 * math.log(2.0)
    expected = [-1.2 + rest, 1.5 + rest, -0.5 + rest, 0.8 + rest]
    torch.testing.assert_close(terms.loss[:4], torch.tensor(expected), rtol=1e-6, atol=1e-6)
    assert terms.metrics["policy/clip_fraction"][:4].tolist() == [1.0, 0.0, 0.0, 1.0]
    last, critic = policy.actor.layer_parameters[-1][1], policy.critic
    assert critic is not None
    # d loss / d logit 0 is r times -A times 1/2 in the two rows of four that are not clipped
    assert last.grad is not None
    assert last.grad.tolist() == pytest.approx([(1.5 - 0.5) / 8, -(1.5 - 0.5) / 8], rel=1e-5)
    offset = critic.layer_parameters[-1][1].grad
    assert offset is not None
    assert float(offset) == pytest.approx(0.5 * (0.0 - 2.0), rel=1e-6)


@every_isa
def test_gradients_flow_at_the_very_edge_of_the_clip_and_of_the_cap() -> None:
    """At r = 1 with a width of 0, and at a log-ratio of 20; beyond them they stop."""
    for then, advantage, width, slope in (
        (0.0, 1.0, 0.0, 1.0),
        (math.nextafter(0.0, -1.0) - 1e-6, 1.0, 0.0, 0.0),
        (-20.0, -1.0, 0.2, -math.exp(20.0)),
        (-20.000002, -1.0, 0.2, 0.0),
    ):
        policy, _, rows = uniform("a box", [then], [advantage])
        with torch.no_grad():
            ppo_backward.ppo_loss_with_backward(
                policy, rows, low=width, high=width, value_weight=0.5, entropy_weight=0.0
            )
        # d log p / d log std = z^2 - 1 = -1, and d loss / d log p = -r A
        assert policy.log_std is not None
        assert policy.log_std.grad is not None
        assert policy.log_std.grad.tolist() == pytest.approx([slope] * 2, rel=1e-5)


@every_isa
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_what_is_not_a_number_shows(kind: str) -> None:
    policy, flat = new_policy(kind, [32, 32])
    rows = new_rows(policy, 40, seed=0)
    rows.seen[5, 1] = math.nan
    terms = in_one_call(policy, rows, ppo.PpoAlgorithm())
    assert terms.loss[5].isnan()
    assert terms.loss[6:].isfinite().all()
    assert not flat.gradient.isfinite().all()


@every_isa
def test_wide_networks_of_rectified_units_and_few_rows_take_the_other_way() -> None:
    for hidden, relu, rows, one in (
        ([128, 128], True, 32, True),
        ([129, 64], True, 32, False),
        ([129, 64], False, 32, True),
        ([64, 64], False, 31, False),
        ([64], False, 32, False),
    ):
        policy, _ = new_policy("two choices", hidden, relu=relu)
        assert takes_one_call(policy, new_rows(policy, rows, seed=0)) == one, (hidden, relu, rows)


@pytest.mark.slow
@pytest.mark.skipif(not perceptron.available_functions(), reason="takes a processor with AVX2, and a compiler")
@pytest.mark.skipif(sys.platform != "linux", reason="the sanitizers are preloaded by ld.so")
def test_sanitizers_find_nothing() -> None:
    check_with_sanitizers(Path(__file__).with_name("ppo_one_call_checked.py"))
