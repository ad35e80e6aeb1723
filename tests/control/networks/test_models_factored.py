"""Actions of several factors: joint log-probabilities and entropies by hand and against torch.distributions."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributions

from hone.control.environments.masks import random_masks
from hone.control.networks.actor_critic import ActorCritic, box_gaussian, categorical, logp_and_entropy
from hone.control.networks.checkpoint import _one_action, load_policy, save_policy
from hone.control.networks.factored import HeadDistributions, head_places
from hone.control.networks.mlp import (
    ACTION_FACTORS,
    ActionFactor,
    BinaryActions,
    BoxActions,
    DiscreteActions,
    FactoredActions,
    MlpConfig,
    ObservationInputs,
    PolicySpaces,
)
from hone.core.errors import ConfigError

BOX = BoxActions(low=(-2.0, 0.0), high=(2.0, 1.0), shape=(2,), gaussian="clipped")
ALL = FactoredActions(parts=(DiscreteActions(count=3, start=1), BinaryActions(size=2), BOX, DiscreteActions(count=2)))
FINITE = FactoredActions(parts=(DiscreteActions(count=3, start=1), BinaryActions(size=2)), masked=True)


def policy_of(actions: FactoredActions) -> ActorCritic:
    made = ActorCritic(PolicySpaces(inputs=ObservationInputs(size=3), actions=actions), MlpConfig(hidden=[8]), seed=1)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.5 * torch.from_numpy(np.random.default_rng(0).normal(size=parameter.shape)).float())
    return made


def test_logp_and_entropy_by_hand() -> None:
    """A choice of 2 with probabilities 1/4 and 3/4, and a bit with probability 1/2: -log 4 - log 2 of the first."""
    actions = FactoredActions(parts=(DiscreteActions(count=2), BinaryActions(size=1)))
    outputs = torch.tensor([[0.0, math.log(3.0), 0.0]])
    logp, entropy = logp_and_entropy(actions, outputs, None, torch.tensor([[0, 1]]))
    assert logp.item() == pytest.approx(-math.log(8.0))
    of_choice = 0.25 * math.log(4.0) + 0.75 * math.log(4.0 / 3.0)
    assert entropy().item() == pytest.approx(of_choice + math.log(2.0))


def test_they_are_the_sums_of_torch_distributions() -> None:
    draws = torch.Generator().manual_seed(2)
    outputs, log_std = torch.randn(50, ALL.outputs, generator=draws), torch.tensor([0.3, -0.4])
    choice, other = distributions.Categorical(logits=outputs[:, :3]), distributions.Categorical(logits=outputs[:, 7:])
    bits = distributions.Bernoulli(logits=outputs[:, 3:5])
    middle, reach = torch.from_numpy(BOX.middle), torch.from_numpy(BOX.reach)
    box = distributions.Normal(middle + reach * outputs[:, 5:7], reach * log_std.exp())
    taken = [choice.sample()[:, None] + 1.0, bits.sample(), box.sample(), other.sample()[:, None].float()]
    logp, entropy = logp_and_entropy(ALL, outputs, log_std, torch.cat(taken, dim=1))
    slow = choice.log_prob(taken[0][:, 0] - 1) + bits.log_prob(taken[1]).sum(1) + box.log_prob(taken[2]).sum(1)
    torch.testing.assert_close(logp, slow + other.log_prob(taken[3][:, 0]), rtol=1e-4, atol=1e-5)
    slow_entropy = choice.entropy() + bits.entropy().sum(1) + box.entropy().sum(1) + other.entropy()
    torch.testing.assert_close(entropy(), slow_entropy, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("actions", [ALL, FINITE])
def test_the_actor_s_log_probabilities_are_the_learner_s(actions: FactoredActions) -> None:
    policy, draws = policy_of(actions), np.random.default_rng(3)
    seen, acting = draws.standard_normal((300, 3)).astype(np.float32), policy.numpy_policy()
    mask = None
    if actions.masked:
        mask = np.ones((300, 7), np.bool_)
        mask[::2, 1], mask[1::3, 3], mask[1::3, 6] = False, False, False
    chosen, logp = acting.decide(seen, acting.noise(draws, (300,)), mask)
    assert chosen.dtype == (np.int64 if actions is FINITE else np.float32)
    legal = None if mask is None else torch.from_numpy(mask)
    now = policy.evaluate_actions(torch.from_numpy(seen), torch.from_numpy(np.asarray(chosen)), legal)
    np.testing.assert_allclose(now.logp.detach().numpy(), logp, rtol=1e-4, atol=1e-4)
    assert acting.best(seen, mask).shape == (300, actions.size)


def test_no_factor_of_a_million_actions_is_illegal() -> None:
    count, draws = 1_000_000, np.random.default_rng(4)
    policy = policy_of(FINITE)
    mask = draws.random((count, 7)) < 0.4
    for first, size in ((0, 3), (3, 2), (5, 2)):
        mask[np.arange(count), first + draws.integers(0, size, count)] = True
    seen, acting = draws.standard_normal((count, 3)).astype(np.float32), policy.numpy_policy()
    chosen = np.asarray(acting.decide(seen, acting.noise(draws, (count,)), mask)[0], np.int64)
    rows = np.arange(count)
    places = np.stack([chosen[:, 0] - 1, 3 + chosen[:, 1], 5 + chosen[:, 2]], axis=1)
    assert all(mask[rows, places[:, factor]].all() for factor in range(3))
    with pytest.raises(ConfigError, match="trained with masks"):
        acting.best(seen[:1])


def test_bits_are_independent_and_draws_have_their_probabilities() -> None:
    actions = FactoredActions(parts=(BinaryActions(size=2), DiscreteActions(count=3)))
    policy, draws = policy_of(actions), np.random.default_rng(5)
    acting, seen = policy.numpy_policy(), np.zeros((40_000, 3), np.float32)
    chosen = np.asarray(acting.decide(seen, acting.noise(draws, (40_000,)))[0], np.int64)
    x = policy.actor(torch.zeros(1, 3))[0]
    np.testing.assert_allclose(chosen[:, :2].mean(axis=0), torch.sigmoid(x[:2]).detach().numpy(), atol=0.01)
    shares = np.bincount(chosen[:, 2], minlength=3) / 40_000
    np.testing.assert_allclose(shares, torch.softmax(x[2:], 0).detach().numpy(), atol=0.01)
    assert abs(np.corrcoef(chosen.T.astype(float))[0, 1]) < 0.02


def test_gradients_are_finite_under_masks() -> None:
    policy = policy_of(FINITE)
    mask = torch.tensor([[True, False, True, True, False, False, True]])
    now = policy.evaluate_actions(torch.zeros(1, 3), torch.tensor([[3, 0, 1]]), mask)
    (now.logp + now.entropy()).sum().backward()
    for name, parameter in policy.actor.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


def test_a_saved_policy_keeps_parts_of_observations_and_actions(tmp_path: Path) -> None:
    policy = policy_of(ALL)
    save_policy(policy, tmp_path)
    again, seen = load_policy(tmp_path), np.ones((4, 3), np.float32)
    assert again.spaces == policy.spaces
    np.testing.assert_array_equal(again.numpy_policy().best(seen), policy.numpy_policy().best(seen))


# ----------------------------------------------------------------------------------------------------- kinds of factors

KINDS = {
    DiscreteActions: DiscreteActions(count=3, start=-1),
    BinaryActions: BinaryActions(size=2),
    BoxActions: BoxActions(low=(-1.0, 0.0), high=(1.0, 4.0), shape=(2,), gaussian="clipped"),
}


def test_there_is_an_example_of_every_kind() -> None:
    assert tuple(KINDS) == ACTION_FACTORS


@pytest.mark.parametrize("part", KINDS.values(), ids=[kind.__name__ for kind in KINDS])
def test_a_kind_of_factor_is_one_definition(part: ActionFactor) -> None:
    """Sizes, head, description on disk, and places beside other factors agree."""
    actions = FactoredActions(parts=(DiscreteActions(count=2), part, BinaryActions(size=1)))
    place = list(head_places(actions))[1]
    head, draws = place.head, np.random.default_rng(0)
    sizes = [one.stop - one.start for one in (place.outputs, place.numbers, place.bits, place.deviations)]
    assert sizes == [part.outputs, part.numbers, sum(part.choices), part.gaussian_size]
    assert [one.start for one in (place.outputs, place.numbers, place.bits, place.deviations)] == [2, 1, 2, 0]
    out = draws.standard_normal((50, part.outputs)).astype(np.float32)
    deviations = np.full(part.gaussian_size, -1.0, np.float32)
    noise = head.noise(draws, (50,))
    assert noise.shape == (50, part.numbers)
    mask = random_masks(part.choices, 50, draws) if part.choices else None
    chosen, nats = head.decide(out, deviations, noise, mask)
    best: Any = head.best(out, mask)
    assert chosen.shape == best.shape == (50, part.numbers)
    legal = None if mask is None else torch.from_numpy(mask)
    mode = head.mode(torch.from_numpy(out), legal).numpy()
    within = np.clip(best, part.low, part.high) if isinstance(part, BoxActions) else best
    np.testing.assert_allclose(mode, within, rtol=1e-6)
    same, _, off = head.compare(out.astype(np.float64), best, best, tolerance=0.0)
    assert same.all()
    assert off == 0.0
    kinds = HeadDistributions(categorical=categorical, box_gaussian=box_gaussian)
    logp, _ = head.distribution(
        torch.from_numpy(out), torch.from_numpy(deviations), torch.from_numpy(chosen), legal, kinds
    )
    np.testing.assert_allclose(logp.numpy(), nats, rtol=1e-4, atol=1e-5)
    assert _one_action(json.loads(json.dumps(asdict(part)))) == part
    assert json.loads(json.dumps(part.describe()))


def test_a_description_of_no_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="no kind of actions has the fields angle"):
        _one_action({"angle": 3})
    with pytest.raises(ValueError, match="unknown form of a Gaussian 'round'"):
        _one_action({"low": [0.0], "high": [1.0], "shape": [1], "gaussian": "round"})
