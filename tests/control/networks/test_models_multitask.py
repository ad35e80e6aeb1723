"""One trunk, a head per task: numpy's word is torch's, heads do not leak, and the trunk is told only where asked."""

from pathlib import Path

import numpy as np
import pytest
import torch

from hone.control.networks.checkpoint import load_policy, save_policy
from hone.control.networks.mlp import BoxActions, DiscreteActions, MlpConfig, ObservationInputs, PolicySpaces
from hone.control.networks.multitask import MultitaskActorCritic

CHOICES = PolicySpaces(inputs=ObservationInputs(size=4 + 3), actions=DiscreteActions(count=2, start=1))
BOX = PolicySpaces(
    inputs=ObservationInputs(size=4 + 3), actions=BoxActions(low=(-1.0, -1.0), high=(1.0, 1.0), shape=(2,))
)


def policy_of(spaces: PolicySpaces, *, told: bool, activation: str = "tanh") -> MultitaskActorCritic:
    network = MlpConfig.model_validate({"hidden": [6, 5], "activation": activation})
    policy = MultitaskActorCritic(spaces, network, seed=1, tasks=3, trunk_sees_task=told)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return policy


def seen_in(tasks: list[int]) -> np.ndarray:
    raw = np.random.default_rng(0).normal(size=(len(tasks), 4))
    return np.concatenate((raw, np.eye(3)[tasks]), axis=1).astype(np.float32)


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("spaces", [CHOICES, BOX])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_acting_is_the_networks_word(spaces: PolicySpaces, told: bool, activation: str) -> None:
    policy, tasks = policy_of(spaces, told=told, activation=activation), [2, 0, 1, 1, 0, 2, 2]
    seen, acting = seen_in(tasks), policy.numpy_policy()
    noise = acting.noise(np.random.default_rng(1), (7,))
    chosen, logp = acting.decide(seen, noise)
    now = policy.evaluate_actions(torch.from_numpy(seen), torch.from_numpy(chosen))
    np.testing.assert_allclose(now.logp.detach().numpy(), logp, atol=1e-5)
    for row, task in enumerate(tasks):  # and so is the acting of a task, which sees no number of it
        own, own_logp = policy.for_task(task).numpy_policy().decide(seen[[row], :4], noise[[row]])
        np.testing.assert_allclose(own[0], chosen[row], atol=1e-6)
        assert own_logp[0] == pytest.approx(logp[row], abs=1e-5)
        np.testing.assert_allclose(
            acting.best(seen)[row], policy.for_task(task).numpy_policy().best(seen[[row], :4])[0], atol=1e-6
        )
    assert now.value is not None
    torch.testing.assert_close(now.value, policy.value(torch.from_numpy(seen)))


def test_a_task_teaches_no_head_but_its_own() -> None:
    policy, seen = policy_of(CHOICES, told=False), seen_in([1, 1, 1])
    now = policy.evaluate_actions(torch.from_numpy(seen), torch.tensor([1, 2, 1]))
    assert now.value is not None
    (now.logp.sum() + now.value.sum()).backward()
    for heads in (policy.actors, policy.critics, policy.actor_biases, policy.critic_biases):
        assert heads.grad is not None
        assert heads.grad[1].abs().sum() > 0 and heads.grad[0].abs().sum() == heads.grad[2].abs().sum() == 0


@pytest.mark.parametrize("told", [False, True])
def test_the_task_reaches_the_trunk_only_where_asked(told: bool) -> None:
    policy = policy_of(CHOICES, told=told)
    with torch.no_grad():
        for heads in (policy.actors, policy.critics, policy.actor_biases, policy.critic_biases):
            heads.copy_(heads[:1].expand_as(heads))  # with heads alike, only the trunk can tell
    seen = seen_in([0, 1, 2])
    seen[:, :4] = seen[0, :4]
    values = policy.value(torch.from_numpy(seen)).detach().numpy()
    assert bool((values == values[0]).all()) is not told


def test_a_saved_policy_is_the_same(tmp_path: Path) -> None:
    policy = policy_of(BOX, told=True)
    save_policy(policy, tmp_path)
    again = load_policy(tmp_path)
    assert isinstance(again, MultitaskActorCritic) and again.trunk_sees_task and again.tasks == 3
    seen = seen_in([0, 2, 1])
    np.testing.assert_array_equal(policy.numpy_policy().best(seen), again.numpy_policy().best(seen))
