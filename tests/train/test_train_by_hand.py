"""Gradients written out by hand are autograd's, to rounding in float64: networks, heads and whole losses."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hone.core.random import generator
from hone.models.control.actor_critic import ActorCritic, Policy
from hone.models.control.manual_backward import back, run
from hone.models.control.mlp import Bounds, Choices, Inputs, Mlp, MlpConfig, Spaces
from hone.objectives.terms import Terms
from hone.recipes.on_policy import a2c, ppo
from hone.train.control.rows import StepRows, cut_columns
from hone.train.invariance.probe import WideInputs
from hone.train.learner.flat_parameters import FlatParameters
from hone.train.learner.gradient import cut_by_rows

BOX = Bounds(low=(-2.0, 0.0), high=(2.0, 1.0), shape=(2,))
WEIGHT = 0.125


def wide(policy: Policy) -> Any:
    double = copy.deepcopy(policy).double()
    double.spaces = replace(double.spaces, inputs=WideInputs(**asdict(double.spaces.inputs)))
    draws = generator(9, "shake")
    with torch.no_grad():
        for parameter in double.parameters():
            parameter.add_(torch.from_numpy(0.3 * draws.standard_normal(tuple(parameter.shape))))
    return double


def column(draws: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(draws.standard_normal(shape))


def agree(
    policy: Any, parameters: Sequence[Tensor], objective: Callable[..., Terms], hand: Callable[..., Terms], rows: Any
) -> None:
    flat = FlatParameters([parameter for parameter in parameters if isinstance(parameter, torch.nn.Parameter)])
    terms = objective(policy, rows)
    (terms.loss * rows.weight).sum().backward()
    expected = flat.gradient.clone()
    assert float(expected.abs().max()) > 1e-3
    flat.zero_grad()
    with torch.no_grad():
        found = hand(policy, rows)
    torch.testing.assert_close(flat.gradient, expected, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(found.loss, terms.loss.detach(), rtol=1e-12, atol=1e-12)
    ours, theirs = found.metrics, terms.metrics
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name].double(), value.detach().double(), rtol=1e-10, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.booleans(), st.lists(st.integers(1, 9), max_size=3), st.integers(1, 9), st.integers(1, 4), st.integers(0, 50))
def test_a_network_gone_through_backwards(relu: bool, hidden: list[int], inputs: int, outputs: int, seed: int) -> None:
    config = MlpConfig(hidden=hidden, activation="relu" if relu else "tanh")
    network = Mlp(inputs, outputs, config, seed=seed, stream="x").double()
    flat = FlatParameters(network.parameters())
    draws = generator(seed, "x")
    x, slope = column(draws, 7, inputs).requires_grad_(), column(draws, 7, outputs)
    (network(x) * slope).sum().backward()
    expected, by_input = flat.gradient.clone(), x.grad
    flat.zero_grad()
    with torch.no_grad():
        tape = run(network, x.detach())
        kept = [one.clone() for one in (*tape.seen, tape.out)]
        found = back(network, tape, slope.clone(), inputs=True)
        torch.testing.assert_close(found, by_input, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(flat.gradient, expected, rtol=1e-12, atol=1e-13)
        back(network, tape, slope.clone(), weights=False, inputs=True)
        torch.testing.assert_close(flat.gradient, expected, rtol=1e-12, atol=1e-13)
    assert all(torch.equal(one, other) for one, other in zip((*tape.seen, tape.out), kept, strict=True))


def step_rows(choices: bool, *, spread: float = 0.5) -> StepRows:
    draws = generator(1, "rows")
    chosen = torch.from_numpy(draws.integers(5, 8, 8)) if choices else column(draws, 8, 2)
    then = -1.0 + spread * column(draws, 8)
    then[0] = -60.0  # past the cap of the log-ratio
    weight = torch.full((1,), WEIGHT, dtype=torch.float64).expand(8)
    advantage = column(draws, 8)
    advantage[1] = 0.0
    return StepRows(
        weight=weight, seen=column(draws, 8, 3), chosen=chosen, logp=then, advantage=advantage, target=column(draws, 8)
    )


@pytest.mark.parametrize("choices", [True, False])
@pytest.mark.parametrize("entropy", [0.0, 0.02])
@pytest.mark.parametrize("share", [1.0, 0.1])
def test_ppo(choices: bool, entropy: float, share: float) -> None:
    actions = Choices(count=3, start=5) if choices else BOX
    policy = wide(ActorCritic(Spaces(inputs=Inputs(size=3), actions=actions), MlpConfig(hidden=[7, 5]), seed=0))
    algorithm = ppo.PpoAlgorithm(entropy_weight=entropy, clip_low=0.1, clip_high=0.3)
    width = ppo.Width(total=0, share=share)
    parts = {"algorithm": algorithm, "width": width}
    agree(policy, list(policy.parameters()), partial(ppo.objective, **parts), partial(ppo.by_hand, **parts),
          step_rows(choices))  # fmt: skip


@pytest.mark.parametrize("choices", [True, False])
def test_a2c(choices: bool) -> None:
    actions = Choices(count=3, start=5) if choices else BOX
    policy = wide(ActorCritic(Spaces(inputs=Inputs(size=3), actions=actions), MlpConfig(hidden=[7]), seed=0))
    algorithm = a2c.A2cAlgorithm(entropy_weight=0.01)
    objective = partial(a2c.objective, algorithm=algorithm, stale=False)
    agree(policy, list(policy.parameters()), objective, partial(a2c.by_hand, algorithm=algorithm), step_rows(choices))


def test_columns_are_cut_as_rows_are() -> None:
    rows = step_rows(choices=True)
    order = np.array([3, 0, 7, 1, 6, 2, 5, 4])
    for one, other in zip(cut_columns(rows, order, 4), cut_by_rows(rows, order, 4), strict=True):
        for name, values in vars(one).items():
            assert torch.equal(values, vars(other)[name]), name
