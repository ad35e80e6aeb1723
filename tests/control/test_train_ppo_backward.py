"""Gradients that are written out are autograd's, to rounding in float64: networks, heads and PPO's whole loss."""

import copy
from dataclasses import asdict, replace
from functools import partial

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hone.certify.control_probes import Float64Inputs
from hone.control.networks.actor_critic import ActorCritic
from hone.control.networks.mlp import BoxActions, DiscreteActions, Mlp, MlpConfig, ObservationInputs, PolicySpaces
from hone.control.networks.mlp_backward import backward, forward_with_tape
from hone.control.rows import StepRows
from hone.core.random import generator
from hone.learner.flat_parameters import FlatParameters
from hone.models.native import perceptron
from hone.recipes.on_policy import ppo

BOX = BoxActions(low=(-2.0, 0.0), high=(2.0, 1.0), shape=(2,))


def draw(draws: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(draws.standard_normal(shape))


def float64_policy(config: MlpConfig, *, finite: bool) -> ActorCritic:
    actions = DiscreteActions(count=3, start=5) if finite else BOX
    policy = ActorCritic(PolicySpaces(inputs=ObservationInputs(size=3), actions=actions), config, seed=0)
    double = copy.deepcopy(policy).double()
    double.spaces = replace(double.spaces, inputs=Float64Inputs(**asdict(double.spaces.inputs)))
    draws = generator(9, "shake")
    with torch.no_grad():
        for parameter in double.parameters():
            parameter.add_(torch.from_numpy(0.3 * draws.standard_normal(tuple(parameter.shape))))
    return double


def step_rows(*, finite: bool) -> StepRows:
    draws = generator(1, "rows")
    chosen = torch.from_numpy(draws.integers(5, 8, 8)) if finite else draw(draws, 8, 2)
    then = -1.0 + 0.5 * draw(draws, 8)
    then[0] = -60.0  # past the cap of the log-ratio
    weight = torch.full((1,), 0.125, dtype=torch.float64).expand(8)
    advantage = draw(draws, 8)
    advantage[1] = 0.0
    return StepRows(
        weight=weight, seen=draw(draws, 8, 3), chosen=chosen, logp=then, advantage=advantage, target=draw(draws, 8)
    )


@examples(25)
@given(st.booleans(), st.lists(st.integers(1, 9), max_size=3), st.integers(1, 9), st.integers(1, 4), st.integers(0, 50))
def test_the_backward_pass_of_a_network(relu: bool, hidden: list[int], inputs: int, outputs: int, seed: int) -> None:
    config = MlpConfig(hidden=hidden, activation="relu" if relu else "tanh")
    network = Mlp(inputs, outputs, config, seed=seed, stream="x").double()
    flat = FlatParameters(network.parameters())
    draws = generator(seed, "x")
    x, slope = draw(draws, 7, inputs), draw(draws, 7, outputs)
    (network(x) * slope).sum().backward()
    expected = flat.gradient.clone()
    with torch.no_grad():
        tape = forward_with_tape(network, x)
        before = tape.out.clone()
        backward(network, tape, slope.clone())
    torch.testing.assert_close(flat.gradient, 2 * expected, rtol=1e-12, atol=1e-13)  # added to what was there
    assert torch.equal(tape.out, before)


@pytest.mark.skipif(not perceptron.available_functions(), reason="takes a processor with AVX2, and a compiler")
def test_the_backward_pass_of_a_network_with_compiled_kernels() -> None:
    network = Mlp(3, 2, MlpConfig(hidden=[64, 64], activation="relu"), seed=0, stream="x")
    flat = FlatParameters(network.parameters())
    draws = generator(0, "x")
    x, slope = draw(draws, 40, 3).float(), draw(draws, 40, 2).float()
    network(x).backward(slope)
    expected = flat.gradient.clone()
    flat.zero_grad()
    with torch.no_grad():
        tape = forward_with_tape(network, x)
        assert tape.kernel_tape is not None
        backward(network, tape, slope)
    torch.testing.assert_close(flat.gradient, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("entropy", [0.0, 0.02])
@pytest.mark.parametrize("factor", [1.0, 0.1])
def test_the_loss_of_ppo(finite: bool, entropy: float, factor: float) -> None:
    policy, rows = float64_policy(MlpConfig(hidden=[7, 5]), finite=finite), step_rows(finite=finite)
    algorithm = ppo.PpoAlgorithm(entropy_weight=entropy, clip_low=0.1, clip_high=0.3)
    schedule = ppo.ClipSchedule(decay_updates=0, clip_factor=factor)
    plain, written = (
        partial(loss, algorithm=algorithm, clip_schedule=schedule)
        for loss in (ppo.objective, ppo.objective_with_backward)
    )
    flat = FlatParameters(policy.parameters())
    terms = plain(policy, rows)
    (terms.loss * rows.weight).sum().backward()
    expected = flat.gradient.clone()
    assert float(expected.abs().max()) > 1e-3
    flat.zero_grad()
    with torch.no_grad():
        ours = written(policy, rows)
    torch.testing.assert_close(flat.gradient, expected, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(ours.loss, terms.loss.detach(), rtol=1e-12, atol=1e-12)
    assert ours.metrics.keys() == terms.metrics.keys()
    for name, value in terms.metrics.items():
        torch.testing.assert_close(ours.metrics[name].double(), value.detach().double(), rtol=1e-10, atol=1e-12)
