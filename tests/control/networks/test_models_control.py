"""Small policies: numpy acts as torch says, densities are right, folders hold everything."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from hone.control.networks.actor_critic import (
    ActorCritic,
    ControlPolicy,
    QNetworkPolicy,
    SoftActorCritic,
    polyak_update,
    squashed_gaussian,
)
from hone.control.networks.checkpoint import load_policy, load_weights, save_policy
from hone.control.networks.mlp import (
    BoxActions,
    DiscreteActions,
    Mlp,
    MlpConfig,
    ObservationInputs,
    PolicySpaces,
    orthogonal,
)
from hone.control.networks.numpy_policies import NumpyGreedyPolicy
from hone.core.errors import ConfigError, DataError
from hone.learner.flat_parameters import FlatParameters

BOX = ObservationInputs(size=3)
CHOICES = DiscreteActions(count=4, start=2)
BOUNDS = BoxActions(low=(-2.0, 0.0), high=(2.0, 1.0), shape=(2,))
SMALL = MlpConfig(hidden=[16, 8])
RELU = MlpConfig(hidden=[16], activation="relu")


def shaken(policy: ControlPolicy) -> ControlPolicy:
    """Weights away from their calm beginning."""
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.3 * torch.from_numpy(np.random.default_rng(0).normal(size=parameter.shape)).float())
    return policy


def policies() -> list[ControlPolicy]:
    return [
        ActorCritic(PolicySpaces(inputs=BOX, actions=CHOICES), SMALL, seed=1),
        ActorCritic(
            PolicySpaces(inputs=ObservationInputs(size=5, one_hot=True, start=1), actions=CHOICES),
            RELU,
            seed=1,
            critic=False,
        ),
        ActorCritic(
            PolicySpaces(inputs=BOX.standardised_by(np.arange(12.0).reshape(4, 3)), actions=BOUNDS), SMALL, seed=1
        ),
        SoftActorCritic(PolicySpaces(inputs=BOX, actions=BOUNDS), RELU, seed=1),
        QNetworkPolicy(PolicySpaces(inputs=BOX, actions=CHOICES), SMALL, seed=1),
    ]


def test_a_number_that_never_varied_keeps_its_scale() -> None:
    """0.1 is no sum of powers of two: the deviation of many of them is not exactly 0 in floating point."""
    seen = np.stack([np.arange(7.0), np.full(7, 0.1), np.full(7, 3e8)], axis=1).astype(np.float32)
    inputs = BOX.standardised_by(seen)
    assert inputs.scale == pytest.approx((2.0, 1.0, 1.0))
    elsewhere = inputs.array(np.array([[3.0, 0.6, 3e8]], np.float32))
    np.testing.assert_allclose(elsewhere, [[0.0, 0.5, 0.0]], atol=1e-6)
    torch.testing.assert_close(inputs.tensor(torch.tensor([[3.0, 0.6, 3e8]])), torch.from_numpy(elsewhere))


def seen_by(policy: ControlPolicy, count: int = 64) -> np.ndarray:
    rng = np.random.default_rng(2)
    if policy.spaces.inputs.one_hot:
        return rng.integers(1, 6, count)
    return rng.normal(size=(count, 3)).astype(np.float32)


def torch_logp(policy: ControlPolicy, seen: np.ndarray, chosen: np.ndarray) -> torch.Tensor:
    assert isinstance(policy, ActorCritic)
    return policy.evaluate_actions(torch.from_numpy(seen), torch.from_numpy(chosen)).logp


@pytest.mark.parametrize("number", range(3))
def test_numpy_acts_as_torch_says(number: int) -> None:
    policy = shaken(policies()[number])
    acting, seen = policy.numpy_policy(), seen_by(policy)
    chosen, logp = acting.decide(seen, acting.noise(np.random.default_rng(3), (64,)))
    with torch.no_grad():
        np.testing.assert_allclose(logp, torch_logp(policy, seen, chosen).numpy(), atol=1e-5, rtol=1e-5)


def test_numpy_squashes_as_torch_does() -> None:
    policy = shaken(policies()[3])
    assert isinstance(policy, SoftActorCritic)
    acting, seen = policy.numpy_policy(), seen_by(policy)
    noise = acting.noise(np.random.default_rng(3), (64,))
    chosen, logp = acting.decide(seen, noise)
    with torch.no_grad():
        unit, expected = policy.sample_actions(torch.from_numpy(seen), torch.from_numpy(noise))
    np.testing.assert_allclose(policy.to_unit_box(torch.from_numpy(chosen)).numpy(), unit.numpy(), atol=1e-5)
    stretch = math.log(2.0) + math.log(0.5)  # the box is 4 wide, then 1; the unit box is 2 wide
    np.testing.assert_allclose(logp, expected.numpy() - stretch, atol=1e-5, rtol=1e-5)


def test_choices_are_drawn_with_their_probabilities() -> None:
    policy = shaken(policies()[0])
    acting = policy.numpy_policy()
    seen = np.tile(seen_by(policy, 1), (40_000, 1))
    chosen, logp = acting.decide(seen, acting.noise(np.random.default_rng(4), (40_000,)))
    for action in range(2, 6):
        share = (chosen == action).mean()
        assert abs(share - np.exp(logp[chosen == action][0])) < 0.01
    assert acting.best(seen)[0] == max(range(2, 6), key=lambda action: (chosen == action).sum())


def test_acting_follows_the_weights_without_a_copy() -> None:
    policy = policies()[0]
    flat = FlatParameters(policy.parameters())
    acting, seen = policy.numpy_policy(), seen_by(policy)
    noise = acting.noise(np.random.default_rng(3), (64,))
    before = acting.decide(seen, noise)[1].copy()
    with torch.no_grad():
        flat.data.add_(torch.randn(flat.data.shape, generator=torch.Generator().manual_seed(0)))
    after_chosen, after = acting.decide(seen, noise)
    assert np.abs(after - before).max() > 0.1
    with torch.no_grad():
        np.testing.assert_allclose(after, torch_logp(policy, seen, after_chosen).numpy(), atol=1e-4)


def test_the_squashed_density_integrates_to_one() -> None:
    mean, log_std = torch.tensor([[0.4]]), torch.tensor([[-0.3]])
    raw = torch.linspace(-6, 6, 200_001).double().reshape(-1, 1)
    action, logp = squashed_gaussian(mean.double(), log_std.double(), raw)
    area = torch.trapezoid(logp.exp(), action.squeeze(1))
    assert area.item() == pytest.approx(1.0, abs=1e-4)


def test_squashed_actions_stay_inside_their_box() -> None:
    policy = shaken(policies()[3])
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(20)
    acting, seen = policy.numpy_policy(), seen_by(policy)
    chosen, logp = acting.decide(seen, 5 * acting.noise(np.random.default_rng(3), (64,)))
    assert (chosen >= [-2, 0]).all()
    assert (chosen <= [2, 1]).all()
    assert np.isfinite(logp).all()


def test_a_box_without_bounds_is_refused() -> None:
    free = BoxActions(low=(-math.inf,), high=(1.0,), shape=(1,))
    with pytest.raises(ConfigError, match="finite bounds"):
        SoftActorCritic(PolicySpaces(inputs=BOX, actions=free), SMALL, seed=0)


def test_exploring_has_its_probability() -> None:
    table = Mlp(3, 4, SMALL, seed=0, stream="x")
    acting = NumpyGreedyPolicy(network=table.to_numpy(), inputs=BOX, actions=CHOICES, epsilon=0.2)
    seen = np.tile(np.ones((1, 3), np.float32), (40_000, 1))
    chosen, logp = acting.decide(seen, acting.noise(np.random.default_rng(5), (40_000,)))
    best = acting.best(seen)[0]
    assert abs((chosen == best).mean() - 0.85) < 0.01
    np.testing.assert_allclose(np.exp(logp[chosen == best]), 0.85, rtol=1e-6)
    np.testing.assert_allclose(np.exp(logp[chosen != best]), 0.05, rtol=1e-6)


@pytest.mark.parametrize("number", range(5))
def test_a_folder_holds_the_policy(number: int, tmp_path: Path) -> None:
    policy = shaken(policies()[number])
    FlatParameters(policy.parameters())  # shared storage must not trouble the file
    save_policy(policy, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.safetensors", "policy.json"]
    again = load_policy(tmp_path)
    assert type(again) is type(policy)
    assert again.spaces == policy.spaces
    for name, tensor in policy.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
    seen = seen_by(policy)
    np.testing.assert_array_equal(policy.numpy_policy().best(seen), again.numpy_policy().best(seen))


def test_damaged_folders_are_told(tmp_path: Path) -> None:
    policy = policies()[0]
    with pytest.raises(DataError, match=r"policy.json: cannot read"):
        load_policy(tmp_path)
    save_policy(policy, tmp_path)
    other = ActorCritic(PolicySpaces(inputs=BOX, actions=CHOICES), MlpConfig(hidden=[16, 9]), seed=0)
    with pytest.raises(DataError, match=r"actor.layers.1.weight has shape \[8, 16\], the policy's is \[9, 16\]"):
        load_weights(other, tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(DataError, match="cannot read the weights"):
        load_policy(tmp_path)
    (tmp_path / "policy.json").write_text('{"format": 2, "kind": "oracle"}')
    with pytest.raises(DataError, match="incomplete or unknown"):
        load_policy(tmp_path)


def test_initial_weights_are_orthogonal_and_a_function_of_the_seed() -> None:
    wide = orthogonal(4, 9, seed=3, stream="a")
    np.testing.assert_allclose(wide @ wide.T, np.eye(4), atol=1e-6)
    np.testing.assert_array_equal(wide, orthogonal(4, 9, seed=3, stream="a"))
    assert np.abs(wide - orthogonal(4, 9, seed=4, stream="a")).max() > 0.1


def test_slow_copies_follow() -> None:
    slow, fast = torch.nn.Parameter(torch.tensor([0.0, 10.0])), torch.nn.Parameter(torch.tensor([1.0, 0.0]))
    polyak_update([slow], [fast], tau=0.1)
    torch.testing.assert_close(slow.data, torch.tensor([0.1, 9.0]))


def test_frozen_lets_gradients_through_to_the_input_only() -> None:
    network = Mlp(3, 1, RELU, seed=0, stream="x")
    x = torch.ones(2, 3, requires_grad=True)
    assert torch.equal(network.forward_frozen(x), network(x))
    network.forward_frozen(x).sum().backward()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0
    assert all(parameter.grad is None for parameter in network.parameters())
