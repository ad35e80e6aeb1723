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
from hone.models.by_hand import back, run
from hone.models.control import ActionValues, ActorCritic, Policy, SoftActorCritic
from hone.models.deterministic import DeterministicActorCritic
from hone.models.mlp import Bounds, Choices, Inputs, Mlp, MlpConfig, Spaces
from hone.models.offline_networks import BatchConstrained, ImplicitValues, SupportConstrained
from hone.objectives.terms import Terms
from hone.train.control import StepRows, TransitionRows, cut_columns
from hone.train.flat import FlatParameters
from hone.train.learner import cut_by_rows
from hone.train.off_policy import actor_by_hand, actor_objective, critic_by_hand
from hone.train.offline import LoggedRows
from hone.train.recipes import a2c, bcq, bear, cql, ddpg, iql, ppo, sac, td3, td3_bc
from hone.train.standin import WideInputs

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


def transition_rows(draws_per_row: int) -> TransitionRows:
    draws = generator(2, "rows")
    noise = column(draws, 8, draws_per_row, 2) if draws_per_row else column(draws, 8, 2)
    return TransitionRows(
        weight=torch.full((1,), WEIGHT, dtype=torch.float64).expand(8), seen=column(draws, 8, 3),
        chosen=column(draws, 8, 2), reward=column(draws, 8), discount=torch.tensor([0.9, 0.0] * 4).double(),
        after=column(draws, 8, 3), noise=noise,
    )  # fmt: skip


SPACES = Spaces(inputs=Inputs(size=3), actions=BOX)
RELU = MlpConfig(hidden=[9, 6], activation="relu")


def test_sac() -> None:
    policy = wide(SoftActorCritic(SPACES, RELU, seed=0))
    with torch.no_grad():
        policy.log_temperature.fill_(-0.7)
        policy.actor.numbers[-1][1][2] += 2.5  # one log standard deviation is often past its range
    rows = transition_rows(2)
    agree(policy, list(policy.critics.parameters()), sac.critic_objective, sac.critic_by_hand, rows)
    own = [*policy.actor.parameters(), policy.log_temperature]
    objective, hand = (partial(one, target_entropy=-2.0) for one in (sac.actor_objective, sac.actor_by_hand))
    agree(policy, own, objective, hand, rows)


def test_td3_and_ddpg() -> None:
    rows, algorithm = transition_rows(0), td3.Td3Algorithm()
    twin = wide(DeterministicActorCritic(SPACES, RELU, seed=0))
    hand = partial(critic_by_hand, target=partial(td3.target_of, algorithm=algorithm))
    agree(twin, list(twin.critics.parameters()), partial(td3.critic_objective, algorithm=algorithm), hand, rows)
    agree(twin, list(twin.actor.parameters()), actor_objective, actor_by_hand, rows)
    single = wide(DeterministicActorCritic(SPACES, RELU, seed=0, critics=1))
    hand = partial(critic_by_hand, target=ddpg.target_of)
    agree(single, list(single.critics.parameters()), ddpg.critic_objective, hand, rows)


def logged_rows(*, choices: bool, noise: int = 2) -> LoggedRows:
    draws = generator(3, "rows")
    chosen = torch.from_numpy(draws.integers(0, 3, 8)) if choices else column(draws, 8, 2).tanh()
    return LoggedRows(
        weight=torch.full((1,), WEIGHT, dtype=torch.float64).expand(8), seen=column(draws, 8, 3), chosen=chosen,
        reward=column(draws, 8), discount=torch.tensor([0.9, 0.0] * 4).double(), after=column(draws, 8, 3),
        noise=column(draws, 8, noise),
    )  # fmt: skip


COUNTED = Spaces(inputs=Inputs(size=3), actions=Choices(count=3, start=5))


def test_cql_on_finite_actions() -> None:
    policy = wide(ActionValues(COUNTED, RELU, seed=0))
    objective, hand = (partial(one, conservatism=3.0) for one in (cql.table_objective, cql.table_by_hand))
    agree(policy, list(policy.values.parameters()), objective, hand, logged_rows(choices=True))


@pytest.mark.parametrize("states", [cql.STATES, 3])
def test_cql_on_a_box(states: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cql, "STATES", states)
    policy = wide(SoftActorCritic(SPACES, RELU, seed=0))
    rows = logged_rows(choices=False, noise=(2 + 3 * 4) * 2)
    objective, hand = (partial(one, conservatism=3.0) for one in (cql.box_objective, cql.box_by_hand))
    agree(policy, list(policy.critics.parameters()), objective, hand, rows)
    own = [*policy.actor.parameters(), policy.log_temperature]
    agree(policy, own, cql.actor_objective, cql.actor_by_hand, rows)


def test_compiled_or_not_the_gradient_of_cql_is_as_exact_as_autograds_in_float32() -> None:
    """On networks of the benchmark's size, where products are compiled if they ever are; the truth is in float64."""
    policy = SoftActorCritic(SPACES, MlpConfig(hidden=[256, 256], activation="relu"), seed=0)
    draws = generator(4, "rows")
    rows = LoggedRows(
        weight=torch.full((1,), 0.01).double().expand(100), seen=column(draws, 100, 3),
        chosen=column(draws, 100, 2).tanh(), reward=column(draws, 100), discount=torch.full((100,), 0.9).double(),
        after=column(draws, 100, 3), noise=column(draws, 100, (2 + 3 * 4) * 2),
    )  # fmt: skip
    found: list[torch.Tensor] = []
    for made, kind, by_hand in ((policy, torch.float32, True), (policy, torch.float32, False),
                                (copy.deepcopy(policy).double(), torch.float64, False)):  # fmt: skip
        flat = FlatParameters(made.critics.parameters())
        with torch.set_grad_enabled(not by_hand):
            loss = (cql.box_by_hand if by_hand else cql.box_objective)(made, rows.to(kind), conservatism=5.0).loss
        if not by_hand:
            (loss * rows.weight.to(kind)).sum().backward()
        found.append(flat.gradient.double())
    ours, theirs = ((one - found[2]).norm() for one in found[:2])
    assert ours <= 1.5 * theirs


@pytest.mark.parametrize("choices", [True, False])
def test_iql(choices: bool) -> None:
    policy = wide(ImplicitValues(COUNTED if choices else SPACES, RELU, seed=0))
    if policy.log_std is not None:
        with torch.no_grad():
            policy.log_std[0] = 7.0  # past its range: no gradient
    algorithm = iql.IqlAlgorithm(inverse_temperature=5.0, cap=2.0)
    numbers = [number for number in policy.parameters() if number.requires_grad]
    objective, hand = (partial(one, algorithm=algorithm) for one in (iql.objective, iql.by_hand))
    agree(policy, numbers, objective, hand, logged_rows(choices=choices))


def test_td3_bc() -> None:
    policy, rows = wide(DeterministicActorCritic(SPACES, RELU, seed=0)), logged_rows(choices=False)
    objective, hand = (
        partial(one, algorithm=td3_bc.Td3BcAlgorithm()) for one in (td3_bc.critic_objective, td3_bc.critic_by_hand)
    )
    agree(policy, list(policy.critics.parameters()), objective, hand, rows)
    once = td3_bc.OnceThrough(alpha=2.5)
    scaled = once.prepare(policy, rows, 0)
    agree(policy, list(policy.actor.parameters()), td3_bc.actor_objective, once.by_hand, scaled)
    assert once.latest is None
    agree(policy, list(policy.actor.parameters()), td3_bc.actor_objective, once.by_hand, scaled)  # through once more
    part = once.prepare(policy, rows, 0).take(np.arange(3, 6))
    agree(policy, list(policy.actor.parameters()), td3_bc.actor_objective, once.by_hand, part)


def test_the_critics_of_bcq_and_bear() -> None:
    batch = wide(BatchConstrained(SPACES, RELU, seed=0, reach=0.1, samples=5))
    rows = logged_rows(choices=False, noise=(2 + 3) * batch.latent)
    objective, hand = (partial(one, pessimism=0.75) for one in (bcq.critic_objective, bcq.critic_by_hand))
    agree(batch, list(batch.critics.parameters()), objective, hand, rows)
    support = wide(SupportConstrained(SPACES, RELU, seed=0, samples=5))
    rows = logged_rows(choices=False, noise=support.latent + (3 + 2) * 2 + 2 * support.latent)
    algorithm = bear.BearAlgorithm(proposals=3, matched=2)
    objective, hand = (partial(one, algorithm=algorithm) for one in (bear.critic_objective, bear.critic_by_hand))
    agree(support, list(support.critics.parameters()), objective, hand, rows)


def test_columns_are_cut_as_rows_are() -> None:
    rows = step_rows(choices=True)
    order = np.array([3, 0, 7, 1, 6, 2, 5, 4])
    for one, other in zip(cut_columns(rows, order, 4), cut_by_rows(rows, order, 4), strict=True):
        for name, values in vars(one).items():
            assert torch.equal(values, vars(other)[name]), name
