"""The discriminator: what it reads, its slope by differences, and what is saved with the policy."""

from pathlib import Path

import numpy as np
import pytest
import torch

from hone.control.networks.checkpoint import load_policy, save_policy
from hone.control.networks.discriminator import AdversarialActorCritic, Discriminator
from hone.control.networks.mlp import BoxActions, DiscreteActions, MlpConfig, ObservationInputs, PolicySpaces

NETWORK = MlpConfig(hidden=[8, 8])
STATES = PolicySpaces(
    inputs=ObservationInputs(size=5, one_hot=True, start=1), actions=DiscreteActions(count=3, start=2)
)
BOX = PolicySpaces(inputs=ObservationInputs(size=4), actions=DiscreteActions(count=2))
BOTH = PolicySpaces(
    inputs=ObservationInputs(size=2), actions=BoxActions(low=(-1.0, -np.inf), high=(1.0, np.inf), shape=(2,))
)
SPACES = pytest.mark.parametrize("space", [STATES, BOX, BOTH], ids=["states", "box", "actions_in_a_box"])


def decisions(space: PolicySpaces, count: int = 16, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draws, inputs, actions = np.random.default_rng(seed), space.inputs, space.actions
    seen = draws.integers(1, 6, count) if inputs.one_hot else 3 + 5 * draws.standard_normal((count, inputs.size))
    if isinstance(actions, DiscreteActions):
        chosen = draws.integers(actions.start, actions.start + actions.count, count)
    else:
        chosen = draws.standard_normal((count, actions.size)).astype("float32")
    return torch.from_numpy(seen if inputs.one_hot else seen.astype("float32")), torch.from_numpy(chosen)


def test_numbered_states_and_actions_stand_one_hot() -> None:
    told = Discriminator(STATES, NETWORK, seed=0)
    assert told.moments is None
    told.update_statistics(torch.tensor([1]), torch.tensor([2]))  # nothing to be whitened
    pairs = told.encode_pairs(torch.tensor([1, 5]), torch.tensor([4, 2]))
    assert pairs.tolist() == [[1, 0, 0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 1, 1, 0, 0]]


def test_numbers_are_whitened_by_what_was_observed_alone() -> None:
    told = Discriminator(BOX, NETWORK, seed=0)
    seen, chosen = decisions(BOX)
    told.update_statistics(seen, chosen)
    pairs = told.encode_pairs(seen, chosen)
    expected = (seen.double() - seen.double().mean(0)) / seen.double().std(0, correction=0)
    torch.testing.assert_close(pairs[:, :4], expected.float())
    torch.testing.assert_close(pairs[:, 4:], torch.nn.functional.one_hot(chosen, 2).float())
    other = decisions(BOX, seed=1)
    before = told.encode_pairs(*other)
    told.logit(told.encode_pairs(*other))
    assert torch.equal(told.encode_pairs(*other), before), "reading must not change what is read by"


def test_actions_beyond_the_bounds_are_read_as_the_world_feels_them() -> None:
    told = Discriminator(BOTH, NETWORK, seed=0)
    seen, chosen = decisions(BOTH)
    told.update_statistics(seen, chosen)
    beyond, at = torch.tensor([[7.0, 7.0], [-3.0, 0.0]]), torch.tensor([[1.0, 7.0], [-1.0, 0.0]])
    assert torch.equal(told.encode_pairs(seen[:2], beyond), told.encode_pairs(seen[:2], at))
    free = told.encode_pairs(seen[:2], torch.tensor([[1.0, 1.0], [-1.0, 0.0]]))
    assert not torch.equal(free, told.encode_pairs(seen[:2], at)), "the second action has no bounds"


@SPACES
def test_the_slope_by_differences(space: PolicySpaces) -> None:
    told = Discriminator(space, NETWORK, seed=0).double()
    pairs = told.encode_pairs(*decisions(space)).double()
    slope, step = told.logit_gradient(pairs), 1e-6
    for place in range(pairs.shape[1]):
        away = torch.zeros(pairs.shape[1], dtype=torch.float64)
        away[place] = step
        with torch.no_grad():
            found = (told.logit(pairs + away) - told.logit(pairs - away)) / (2 * step)
        torch.testing.assert_close(slope[:, place].detach(), found, rtol=1e-6, atol=1e-9)
    assert slope.requires_grad, "the penalty must reach the weights"


@SPACES
def test_the_discriminator_is_saved_with_the_policy(space: PolicySpaces, tmp_path: Path) -> None:
    policy = AdversarialActorCritic(space, MlpConfig(hidden=[6]), seed=3, discriminator=NETWORK)
    seen, chosen = decisions(space)
    policy.discriminator.update_statistics(seen, chosen)
    save_policy(policy, tmp_path)
    again = load_policy(tmp_path)
    assert isinstance(again, AdversarialActorCritic)
    ours, theirs = (one.discriminator.logit(one.discriminator.encode_pairs(seen, chosen)) for one in (policy, again))
    assert torch.equal(ours, theirs)
    assert np.array_equal(policy.numpy_policy().best(seen.numpy()), again.numpy_policy().best(seen.numpy()))
    for name, buffer in policy.named_buffers():
        assert torch.equal(dict(again.named_buffers())[name], buffer), name


def test_the_policys_own_scale_is_not_the_discriminators() -> None:
    """A policy that sees normalised numbers (`algorithm.normalise_observations`) does not change what is judged."""
    scaled = PolicySpaces(
        inputs=ObservationInputs(size=4, mean=(1.0,) * 4, scale=(9.0,) * 4, limit=1.0), actions=BOX.actions
    )
    seen, chosen = decisions(BOX)
    plain, other = (Discriminator(space, NETWORK, seed=0) for space in (BOX, scaled))
    assert torch.equal(plain.encode_pairs(seen, chosen), other.encode_pairs(seen, chosen))


def test_deciding_is_all_but_the_discriminator() -> None:
    policy = AdversarialActorCritic(BOTH, MlpConfig(hidden=[6]), seed=3, discriminator=NETWORK)
    names = {name for name, one in policy.named_parameters() if any(one is own for own in policy.policy_parameters())}
    assert names == {name for name, _ in policy.named_parameters() if not name.startswith("discriminator.")}
    assert "log_std" in names
