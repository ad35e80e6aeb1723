"""Masks of legal actions in policies: by hand, against torch.distributions, finite gradients, and never illegal."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hone.control.networks.actor_critic import ActorCritic, categorical, entropy_metrics
from hone.control.networks.checkpoint import load_policy, save_policy
from hone.control.networks.mlp import DiscreteActions, MlpConfig, ObservationInputs, PolicySpaces
from hone.control.networks.mlp_backward import categorical_with_backward
from hone.control.networks.numpy_policies import NumpyCategoricalPolicy, NumpyGreedyPolicy, NumpyPolicy
from hone.control.ppo_backward import ppo_loss_with_backward
from hone.control.rows import StepRows, split_decision_rows
from hone.core.errors import ConfigError
from hone.recipes.on_policy import ppo

CHOICES = 6
MASKED = DiscreteActions(count=CHOICES, start=2, masked=True)
INPUTS = ObservationInputs(size=3)


def random_masks(count: int, seed: int = 0) -> np.ndarray:
    """Masks with one to six legal choices, illegal ones at both ends as well."""
    draws = np.random.default_rng(seed)
    mask = draws.random((count, CHOICES)) < draws.random((count, 1))
    mask[np.arange(count), draws.integers(0, CHOICES, count)] = True
    return mask


def spread(x: np.ndarray) -> np.ndarray:
    """Logits of a network that likes the last choices far better than the first."""
    return np.linspace(-30.0, 90.0, CHOICES, dtype=np.float32)[None].repeat(len(x), axis=0) * x[:, :1]


def test_logp_and_entropy_by_hand() -> None:
    """Of logits 0, 1, 0 with the middle one illegal, both others have probability 1/2: log 2 nats."""
    logits = torch.tensor([[0.0, 1.0, 0.0]])
    logp, entropy = categorical(logits, torch.tensor([2]), torch.tensor([[True, False, True]]))
    assert logp.item() == pytest.approx(-math.log(2))
    assert entropy().item() == pytest.approx(math.log(2))
    shares = entropy_metrics(entropy(), torch.tensor([[True, False, True]]))["policy/entropy_share"]
    assert shares.item() == pytest.approx(1.0)
    one_left = entropy_metrics(torch.zeros(1), torch.tensor([[True, False, False]]))
    assert one_left["policy/entropy_share"].item() == 1.0


def test_masked_softmax_is_that_of_torch_distributions_with_finite_gradients() -> None:
    draws = torch.Generator().manual_seed(1)
    logits = torch.randn(200, CHOICES, generator=draws, requires_grad=True)
    mask = torch.from_numpy(random_masks(200))
    slow = torch.distributions.Categorical(probs=torch.softmax(logits.detach(), 1) * mask)
    chosen = slow.sample()
    logp, entropy = categorical(logits, chosen, mask)
    torch.testing.assert_close(logp, slow.log_prob(chosen), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropy(), slow.entropy(), rtol=1e-4, atol=1e-5)
    (logp.sum() + 0.3 * entropy().sum()).backward()
    assert logits.grad is not None and logits.grad.isfinite().all()
    assert (logits.grad[~mask] == 0).all()  # an illegal choice gets no gradient
    head = categorical_with_backward(logits.detach(), chosen, entropy=True, mask=mask)
    torch.testing.assert_close(head.logp, logp.detach())
    torch.testing.assert_close(head.entropy, entropy().detach(), rtol=1e-5, atol=1e-6)
    written = head.backward(torch.ones(200), torch.full((200,), 0.3))
    torch.testing.assert_close(written, logits.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "acting",
    [
        NumpyCategoricalPolicy(network=spread, inputs=INPUTS, actions=MASKED),
        NumpyGreedyPolicy(network=spread, inputs=INPUTS, actions=MASKED, epsilon=0.5),
    ],
    ids=["softmax", "epsilon-greedy"],
)
def test_no_action_of_a_million_is_illegal(acting: NumpyPolicy) -> None:
    """With logits that differ by up to 120, so that legal choices may be as unlikely as illegal ones, and with the
    largest and the smallest random numbers among the draws."""
    count = 1_000_000
    draws = np.random.default_rng(2)
    mask, seen = random_masks(count, 3), draws.standard_normal((count, 3)).astype(np.float32)
    noise = acting.noise(draws, (count,))
    noise[:1000], noise[1000:2000] = 0.0, np.nextafter(np.float32(1), np.float32(0))
    chosen, logp = acting.decide(seen, noise, mask)
    rows = np.arange(count)
    assert np.count_nonzero(~mask[rows, np.asarray(chosen, np.int64) - MASKED.start]) == 0
    assert np.count_nonzero(~mask[rows, np.asarray(acting.best(seen, mask), np.int64) - MASKED.start]) == 0
    assert np.isfinite(logp).all()


def test_exploration_is_uniform_over_the_legal_choices() -> None:
    acting = NumpyGreedyPolicy(network=spread, inputs=INPUTS, actions=MASKED, epsilon=1.0)
    mask = np.array([[True, False, True, True, False, False]]).repeat(30_000, axis=0)
    draws = np.random.default_rng(4)
    chosen, logp = acting.decide(np.ones((30_000, 3), np.float32), acting.noise(draws, (30_000,)), mask)
    counts = np.bincount(np.asarray(chosen, np.int64) - 2, minlength=CHOICES)
    assert counts[[1, 4, 5]].sum() == 0
    np.testing.assert_allclose(counts[[0, 2, 3]] / 30_000, 1 / 3, atol=0.015)
    np.testing.assert_allclose(np.exp(logp), 1 / 3, rtol=1e-5)


def test_a_policy_of_masks_is_saved_as_one_and_refuses_to_act_without(tmp_path: Path) -> None:
    policy = ActorCritic(PolicySpaces(inputs=INPUTS, actions=MASKED), MlpConfig(hidden=[8]), seed=1)
    save_policy(policy, tmp_path)
    again = load_policy(tmp_path)
    assert again.spaces.choices.masked
    acting, seen = again.numpy_policy(), np.zeros((2, 3), np.float32)
    for act in (lambda: acting.best(seen), lambda: acting.decide(seen, np.zeros(2, np.float32))):
        with pytest.raises(ConfigError, match="trained with masks of legal actions, and got none"):
            act()
    assert acting.best(seen, np.eye(CHOICES, dtype=np.bool_)[[1, 4]]).tolist() == [3, 6]


def masked_rows(policy: ActorCritic, count: int = 40) -> StepRows:
    draws = np.random.default_rng(5)
    mask, seen = random_masks(count, 6), draws.standard_normal((count, 3)).astype(np.float32)
    acting = policy.numpy_policy()
    chosen, logp = acting.decide(seen, acting.noise(draws, (count,)), mask)
    numbers = torch.from_numpy(draws.standard_normal((2, count)).astype(np.float32))
    return StepRows(
        weight=torch.ones(count), seen=torch.from_numpy(seen), chosen=torch.from_numpy(np.asarray(chosen, np.int64)),
        logp=torch.from_numpy(logp), advantage=numbers[0], target=numbers[1], mask=torch.from_numpy(mask),
    )  # fmt: skip


def test_the_learner_finds_the_log_probabilities_of_the_actor() -> None:
    """The mask of acting is the mask of learning: the first ratio is 1."""
    policy = ActorCritic(PolicySpaces(inputs=INPUTS, actions=MASKED), MlpConfig(hidden=[8]), seed=1)
    rows = masked_rows(policy)
    now = policy.evaluate_actions(rows.seen, rows.chosen, rows.mask)
    torch.testing.assert_close(now.logp, rows.logp, rtol=1e-5, atol=1e-5)
    forgotten = policy.evaluate_actions(rows.seen, rows.chosen).logp
    assert (forgotten - rows.logp).abs().max() > 0.1


@pytest.mark.parametrize("entropy_weight", [0.0, 0.02])
def test_the_written_gradient_of_ppo_is_autograd_s_with_masks(entropy_weight: float) -> None:
    policy = ActorCritic(PolicySpaces(inputs=INPUTS, actions=MASKED), MlpConfig(hidden=[8]), seed=1)
    rows, parameters = masked_rows(policy), list(policy.parameters())
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    numbers = {"value_weight": 0.5, "entropy_weight": entropy_weight}
    with torch.no_grad():
        written = ppo_loss_with_backward(policy, rows, low=0.2, high=0.2, **numbers)
    by_hand = [parameter.grad.clone() for parameter in parameters if parameter.grad is not None]
    slow = ppo.objective(policy, rows, algorithm=ppo.PpoAlgorithm(**numbers))
    theirs = torch.autograd.grad((slow.loss * rows.weight).sum(), parameters)
    for one, other in zip(by_hand, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(written.metrics["policy/entropy_share"], slow.metrics["policy/entropy_share"])


def test_rows_keep_their_masks_when_they_are_split_and_shuffled() -> None:
    policy = ActorCritic(PolicySpaces(inputs=INPUTS, actions=MASKED), MlpConfig(hidden=[8]), seed=1)
    rows, order = masked_rows(policy), np.random.default_rng(7).permutation(40)
    parts = list(split_decision_rows(rows, order, 4))
    assert rows.mask is not None
    assert torch.equal(torch.cat([part.mask for part in parts if part.mask is not None]), rows.mask[order])
    assert next(iter(split_decision_rows(replace(rows, mask=None), order, 4))).mask is None
