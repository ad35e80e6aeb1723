"""Policies with a memory: numpy's unit is torch's, trials know nothing of each other, the state lasts for a trial."""

from pathlib import Path

import numpy as np
import pytest
import torch

from hone.control.networks.checkpoint import load_policy, save_policy
from hone.control.networks.mlp import BoxActions, DiscreteActions, MlpConfig, ObservationInputs, PolicySpaces
from hone.control.networks.recurrent import NumpyTrialPolicy, RecurrentActorCritic
from hone.core.errors import ConfigError

SPACES = PolicySpaces(inputs=ObservationInputs(size=4), actions=DiscreteActions(count=3, start=2))


def policy_of(units: int = 6) -> RecurrentActorCritic:
    policy = RecurrentActorCritic(SPACES, MlpConfig(hidden=[units]), seed=1)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return policy


def trials(count: int, length: int, *, repeats: int = 1) -> np.ndarray:
    """`[count, repeats * length, 4]` whose first number says where one begins."""
    seen = np.random.default_rng(0).normal(size=(count, repeats * length, 4)).astype(np.float32)
    seen[:, :, 0] = 0.0
    seen[:, ::length, 0] = 1.0
    return seen


def test_acting_step_by_step_is_the_networks_word_on_the_whole() -> None:
    policy, seen = policy_of(), trials(5, 9)
    acting, draws = policy.numpy_policy(), np.random.default_rng(3)
    noise = acting.noise(draws, (9, 5))
    chosen = np.empty((5, 9), np.int64)
    logp = np.empty((5, 9), np.float32)
    for t in range(9):
        chosen[:, t], logp[:, t] = acting.decide(seen[:, t], noise[t])
    now = policy.evaluate_actions(torch.from_numpy(seen), torch.from_numpy(chosen))
    np.testing.assert_allclose(now.logp.detach().numpy(), logp.ravel(), atol=1e-5)
    assert set(chosen.ravel()) == {2, 3, 4}
    assert now.value is not None and now.value.shape == (45,)
    entropy = now.entropy().detach().numpy()
    assert (entropy > 0).all() and (entropy <= np.log(3) + 1e-6).all()


def test_the_state_is_empty_when_a_trial_begins() -> None:
    """Two trials one after another decide as the same trials side by side."""
    policy, seen = policy_of(), trials(1, 4, repeats=2)
    following, beside = policy.numpy_policy(), policy.numpy_policy()
    one_by_one = np.stack([following.best(seen[:, t]) for t in range(8)], axis=1).reshape(2, 4)
    split = seen.reshape(2, 4, 4)
    together = np.stack([beside.best(split[:, t]) for t in range(4)], axis=1)
    np.testing.assert_array_equal(one_by_one, together)


def test_the_unit_by_hand() -> None:
    """h' = (1 - z) n + z h with n = tanh(W x + b + r (U h + c)), element by element."""
    policy = policy_of(2)
    acting = policy.numpy_policy()
    assert isinstance(acting, NumpyTrialPolicy)
    x, h = np.array([[0.3, -1.0, 0.2, 0.8]], np.float32), np.array([[0.5, -0.4]], np.float32)
    w, u, b, c = (
        getattr(policy.gru, name).detach().numpy()
        for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    )

    def sigmoid(value: float) -> float:
        return 1 / (1 + np.exp(-value))

    for unit in range(2):
        r = sigmoid(w[unit] @ x[0] + b[unit] + u[unit] @ h[0] + c[unit])
        z = sigmoid(w[2 + unit] @ x[0] + b[2 + unit] + u[2 + unit] @ h[0] + c[2 + unit])
        n = np.tanh(w[4 + unit] @ x[0] + b[4 + unit] + r * (u[4 + unit] @ h[0] + c[4 + unit]))
        assert acting.gru(x, h)[0, unit] == pytest.approx((1 - z) * n + z * h[0, unit], abs=1e-6)


def test_gradients_go_back_through_the_trial() -> None:
    policy, seen = policy_of(), torch.from_numpy(trials(2, 6)).requires_grad_()
    now = policy.evaluate_actions(seen, torch.full((2, 6), 2))
    now.logp.view(2, 6)[0, -1].backward()
    assert seen.grad is not None
    assert (seen.grad[0].abs().sum(dim=1) > 0).all() and (seen.grad[1] == 0).all()


def test_a_saved_memory_is_the_same(tmp_path: Path) -> None:
    policy, seen = policy_of(), trials(3, 5)
    save_policy(policy, tmp_path)
    one, other = policy.numpy_policy(), load_policy(tmp_path).numpy_policy()
    for t in range(5):
        np.testing.assert_array_equal(one.best(seen[:, t]), other.best(seen[:, t]))


def test_what_is_not_served_is_said() -> None:
    with pytest.raises(ConfigError, match="finitely many actions"):
        box = BoxActions(low=(0.0,), high=(1.0,), shape=(1,))
        RecurrentActorCritic(PolicySpaces(inputs=ObservationInputs(size=2), actions=box), MlpConfig(hidden=[4]), seed=0)
    with pytest.raises(ConfigError, match="one layer"):
        RecurrentActorCritic(SPACES, MlpConfig(hidden=[4, 4]), seed=0)
