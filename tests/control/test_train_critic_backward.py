"""Losses of SAC and TD3 with gradients written out are autograd's, to rounding in float64."""

import copy
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hone.certify.control_probes import Float64Inputs
from hone.control.critic_backward import (
    deterministic_actor_with_backward,
    sac_actor_with_backward,
    twin_critics_with_backward,
)
from hone.control.deterministic import _actor_objective as deterministic_actor_objective
from hone.control.networks.actor_critic import DeterministicActorCritic, SoftActorCritic, as_mlps
from hone.control.networks.mlp import BoxActions, Mlp, MlpConfig, ObservationInputs, PolicySpaces
from hone.control.networks.mlp_backward import forward_with_tape, input_slope
from hone.control.rows import TransitionRows
from hone.core.random import generator
from hone.learner.flat_parameters import FlatParameters
from hone.models.native import perceptron
from hone.objectives.terms import LossTerms
from hone.recipes.off_policy import sac, td3

BOX = BoxActions(low=(-2.0, 0.0), high=(2.0, 1.0), shape=(2,))
SPACES = PolicySpaces(inputs=ObservationInputs(size=3), actions=BOX)
SMALL = MlpConfig(hidden=[7, 5], activation="tanh")
Loss = Callable[[Any, TransitionRows], LossTerms]


def draw(name: str, *shape: int) -> Tensor:
    return torch.from_numpy(generator(1, name).standard_normal(shape))


def in_float64(policy: Any) -> Any:
    double = copy.deepcopy(policy).double()
    double.spaces = replace(double.spaces, inputs=Float64Inputs(**asdict(double.spaces.inputs)))
    with torch.no_grad():
        for number, parameter in enumerate(double.parameters()):
            parameter.add_(0.3 * draw(f"shake{number}", *parameter.shape))
    return double


def transition_rows(noise: tuple[int, ...]) -> TransitionRows:
    return TransitionRows(
        weight=torch.full((1,), 0.125, dtype=torch.float64).expand(8), seen=draw("seen", 8, 3),
        chosen=draw("chosen", 8, 2), reward=draw("reward", 8), discount=torch.full((8,), 0.9, dtype=torch.float64),
        next_seen=draw("next", 8, 3), noise=draw("noise", 8, *noise),
    )  # fmt: skip


def compare(policy: nn.Module, plain: Loss, written: Loss, rows: TransitionRows) -> Tensor:
    """Both add the same to the gradients, and give the same loss and metrics -> the gradient."""
    trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    flat = FlatParameters(trained)
    terms = plain(policy, rows)
    (terms.loss * rows.weight).sum().backward()
    expected = flat.gradient.clone()
    flat.gradient.fill_(1.0)
    with torch.no_grad():
        ours = written(policy, rows)
    torch.testing.assert_close(flat.gradient - 1.0, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(ours.loss, terms.loss.detach(), rtol=1e-11, atol=1e-12)
    assert ours.metrics.keys() == terms.metrics.keys()
    for name, value in terms.metrics.items():
        torch.testing.assert_close(ours.metrics[name], value, rtol=1e-10, atol=1e-12)
    return expected


def soft_policy() -> Any:
    return in_float64(SoftActorCritic(SPACES, SMALL, seed=0))


def test_the_critics_of_sac() -> None:
    policy = soft_policy()
    written = partial(twin_critics_with_backward, value_target=sac._soft_value_target)
    expected = compare(policy, sac._critic_objective, written, transition_rows((2, 2)))
    assert float(expected.abs().max()) > 1e-2


SOFT_ACTOR = (
    partial(sac._actor_objective, target_entropy=-2.0),
    partial(sac_actor_with_backward, target_entropy=-2.0),
)


def test_the_actor_and_the_temperature_of_sac() -> None:
    policy = soft_policy()
    expected = compare(policy, *SOFT_ACTOR, transition_rows((2, 2)))
    assert float(expected.abs().max()) > 1e-2
    assert float(policy.log_temperature.grad) != 1.0


@pytest.mark.parametrize("edge", [-20.0, 2.0, -20.5, 2.5])
def test_a_deviation_at_an_edge_of_its_range_has_a_slope_and_beyond_it_none(edge: float) -> None:
    policy = soft_policy()
    with torch.no_grad():
        weight, bias = policy.actor.layer_parameters[-1]
        weight[2:].zero_()
        bias[2:].fill_(edge)
    rows = replace(transition_rows((2, 2)), noise=torch.zeros(8, 2, 2, dtype=torch.float64))
    compare(policy, *SOFT_ACTOR, rows)
    assert policy.actor.layer_parameters[-1][1].grad is not None
    stays = torch.equal(policy.actor.layer_parameters[-1][1].grad[2:], torch.ones(2, dtype=torch.float64))
    assert stays == (edge in {-20.5, 2.5})


def test_samples_in_the_linear_part_of_softplus() -> None:
    """At x = -10, where -2 x is torch's threshold, and on both sides of it."""
    policy = soft_policy()
    with torch.no_grad():
        weight, bias = policy.actor.layer_parameters[-1]
        weight.zero_()
        bias.copy_(torch.tensor([-10.0, -10.0, 0.0, 0.0]))
    noise = torch.tensor([0.0, -1.0, 1.0, -1e-6]).double().repeat(8)[:32].reshape(8, 2, 2)
    compare(policy, *SOFT_ACTOR, replace(transition_rows((2, 2)), noise=noise))


def test_equal_critics_share_the_slope() -> None:
    policy = soft_policy()
    policy.critics[1].load_state_dict(policy.critics[0].state_dict())
    compare(policy, *SOFT_ACTOR, transition_rows((2, 2)))


def test_the_critics_and_the_actor_of_td3() -> None:
    policy = in_float64(DeterministicActorCritic(SPACES, SMALL, seed=0))
    algorithm, rows = td3.Td3Algorithm(), transition_rows((2,))
    plain = partial(td3.critic_objective, algorithm=algorithm)
    target = partial(td3._value_target, algorithm=algorithm)
    written = partial(twin_critics_with_backward, value_target=target)
    for pair in ((plain, written), (deterministic_actor_objective, deterministic_actor_with_backward)):
        assert float(compare(policy, *pair, rows).abs().max()) > 1e-3


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("hidden", [[], [5], [64, 64]])
def test_the_derivative_by_the_inputs_leaves_gradients_of_parameters_alone(hidden: list[int], activation: str) -> None:
    config = MlpConfig.model_validate({"hidden": hidden, "activation": activation})
    network = Mlp(3, 2, config, seed=0, stream="x")
    x, slope = draw("x", 40, 3).float().requires_grad_(), draw("slope", 40, 2).float()
    (expected,) = torch.autograd.grad(network(x), x, slope)
    with torch.no_grad():
        tape = forward_with_tape(network, x.detach())
        kept = bool(perceptron.available_functions()) and len(hidden) == 2
        assert (tape.kernel_tape is not None) == kept
        torch.testing.assert_close(input_slope(network, tape, slope), expected, rtol=1e-5, atol=1e-6)
    assert all(parameter.grad is None for parameter in network.parameters())


def test_by_hand() -> None:
    """One critic's value is 3 u1 + 0.5 at u = tanh(0): dL/dx = -3, on the actor's output bias, and half of it with a
    weight of 1/2. The critics are linear, so that nothing is rounded."""
    policy = DeterministicActorCritic(SPACES, MlpConfig(hidden=[]), seed=0)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.zero_()
        (critic, _), actor = as_mlps(policy.critics), policy.actor
        critic.layer_parameters[0][0][0, 3] = 3.0
        critic.layer_parameters[0][1][0] = 0.5
        FlatParameters(actor.parameters())
        rows = replace(transition_rows((2,)), seen=torch.ones(1, 3), weight=torch.full((1,), 0.5))
        terms = deterministic_actor_with_backward(policy, rows)
    assert terms.loss.tolist() == [-0.5]
    assert actor.layer_parameters[0][1].grad is not None
    assert actor.layer_parameters[0][1].grad.tolist() == [-1.5, 0.0]
