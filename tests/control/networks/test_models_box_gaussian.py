"""Gaussian policies over a box: densities and entropies are of actions in the environment's units, in every form."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from hone.control.networks.actor_critic import ActorCritic, box_gaussian, gaussian
from hone.control.networks.box_gaussian import from_gaussian, to_gaussian
from hone.control.networks.checkpoint import load_policy, load_weights, save_policy
from hone.control.networks.mlp import BoxActions, GaussianForm, MlpConfig, ObservationInputs, PolicySpaces
from hone.control.networks.mlp_backward import box_gaussian_with_backward
from hone.core.errors import DataError

FORMS: tuple[GaussianForm, ...] = ("clipped", "squashed", "unscaled")
MAX = float(np.finfo(np.float32).max)


def box(low: float, high: float, form: GaussianForm, *, size: int = 1) -> BoxActions:
    return BoxActions(low=(low,) * size, high=(high,) * size, shape=(size,), gaussian=form)


def policy_over(actions: BoxActions, *, seed: int = 0) -> ActorCritic:
    spaces = PolicySpaces(inputs=ObservationInputs(size=3), actions=actions)
    policy = ActorCritic(spaces, MlpConfig(hidden=[8]), seed=seed)
    draws = np.random.default_rng(seed)
    with torch.no_grad():
        policy.actor.layer_parameters[-1][0].mul_(60.0)
        assert policy.log_std is not None
        policy.log_std.copy_(torch.from_numpy(draws.uniform(-1.0, 0.5, actions.size).astype(np.float32)))
    return policy


@given(
    middle=st.floats(-1e4, 1e4), reach=st.floats(0.01, 1e4), form=st.sampled_from(FORMS), seed=st.integers(0, 99),
    half=st.booleans(),
)  # fmt: skip
@examples(60)
def test_the_learner_finds_the_density_that_acted(
    middle: float, reach: float, form: GaussianForm, seed: int, half: bool
) -> None:
    """The numpy policy and torch agree on log p, whatever the box: half-bounded and flat dimensions too."""
    low, high = (middle - reach, 5.0, 2.0), (middle + reach, MAX if half and form != "squashed" else 6.0, 2.0)
    policy = policy_over(BoxActions(low=low, high=high, shape=(3,), gaussian=form), seed=seed)
    acting, draws = policy.numpy_policy(), np.random.default_rng(seed)
    seen = draws.standard_normal((20, 3)).astype(np.float32)
    chosen, logp = acting.decide(seen, acting.noise(draws, (20,)))
    assert np.isfinite(chosen).all()
    found = policy.evaluate_actions(torch.from_numpy(seen), torch.from_numpy(np.asarray(chosen, np.float32))).logp
    assert np.isfinite(logp).all()
    np.testing.assert_allclose(found.detach().numpy(), logp, rtol=2e-4, atol=2e-3)
    if form == "squashed":
        assert (chosen >= np.array(low, np.float32)).all()
        assert (chosen <= np.array(high, np.float32)).all()


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (-1000.0, 1000.0), (3.0, 3.5)])
@pytest.mark.parametrize("form", FORMS)
def test_the_density_integrates_to_one_and_its_entropy_is_right(low: float, high: float, form: GaussianForm) -> None:
    """By a sum over a fine grid of actions in the environment's units."""
    middle, reach = 0.5 * (low + high), 0.5 * (high - low)
    at = (0.0, 1.0) if form == "unscaled" else (middle, reach)
    actions, width = box(low, high, form), 1.0 if form == "squashed" else 8.0
    grid = torch.linspace(-1.0, 1.0, 400_003, dtype=torch.float64)[1:-1] * width
    chosen = (at[0] + at[1] * grid)[:, None]
    mean, log_std = torch.tensor([[0.4]], dtype=torch.float64), torch.tensor([-0.5], dtype=torch.float64)
    logp, entropy = box_gaussian(mean.expand(len(grid), 1), log_std, chosen, actions)
    step = at[1] * float(grid[1] - grid[0])
    assert float(logp.exp().sum() * step) == pytest.approx(1.0, abs=2e-3)
    assert float(entropy()[0]) == pytest.approx(float(-(logp.exp() * logp).sum() * step), abs=0.01)


@given(mean=st.floats(-2, 2), log_std=st.floats(-3, 0.69), size=st.integers(1, 3))
@examples(30)
def test_the_entropy_of_squashed_actions_is_that_of_many_draws(mean: float, log_std: float, size: int) -> None:
    actions = box(-20.0, 60.0, "squashed", size=size)
    middle, spread = torch.full((1, size), mean), torch.full((size,), log_std)
    raw = middle + spread.exp() * torch.from_numpy(np.random.default_rng(0).standard_normal((200_000, size), "float32"))
    slope = torch.log1p(-torch.tanh(raw.double()).square()).clamp(min=-40)
    slow = float((gaussian(middle, spread, raw)[0].neg().double() + slope.sum(dim=1)).mean()) + size * math.log(40.0)
    found = float(box_gaussian(middle, spread, torch.zeros(1, size), actions)[1]()[0])
    assert found == pytest.approx(slow, abs=0.02 * size)


@pytest.mark.parametrize("form", ["clipped", "unscaled"])
def test_the_unit_box_is_left_as_it_is_bit_for_bit(form: GaussianForm) -> None:
    draws = np.random.default_rng(0)
    mean, log_std = torch.from_numpy(draws.standard_normal((9, 2), "float32")), torch.tensor([0.3, -0.2])
    chosen = torch.from_numpy(draws.standard_normal((9, 2), "float32"))
    plain, found = gaussian(mean, log_std, chosen), box_gaussian(mean, log_std, chosen, box(-1.0, 1.0, form, size=2))
    assert torch.equal(plain[0], found[0])
    assert torch.equal(plain[1](), found[1]())
    samples = chosen.numpy()
    assert from_gaussian(samples, box(-1.0, 1.0, form, size=2)) is samples


def test_the_gradient_written_out_is_that_of_the_scaled_density() -> None:
    actions = box(100.0, 300.0, "clipped", size=2)
    mean = torch.tensor([[0.1, -0.4], [0.7, 0.2]], requires_grad=True)
    log_std = torch.nn.Parameter(torch.tensor([-0.2, 0.1]))
    chosen = torch.tensor([[220.0, 130.0], [310.0, 205.0]])
    logp, entropy = box_gaussian(mean, log_std, chosen, actions)
    (logp.sum() + 0.5 * entropy().sum()).backward()
    wanted = mean.grad, log_std.grad
    log_std.grad = torch.zeros_like(log_std)
    head = box_gaussian_with_backward(mean.detach(), log_std, chosen, actions)
    slope = head.backward(torch.ones(2), torch.full((2,), 0.5))
    assert torch.allclose(head.logp, logp.detach(), atol=1e-6)
    assert torch.allclose(head.entropy, entropy().detach(), atol=1e-6)
    assert wanted[0] is not None
    assert torch.allclose(slope, wanted[0], atol=1e-6)
    assert torch.allclose(log_std.grad, wanted[1], atol=1e-5)  # pyright: ignore[reportArgumentType]


def test_saturated_actions_keep_a_finite_density() -> None:
    actions = box(0.0, 8.0, "squashed")
    samples, volume = to_gaussian(torch.tensor([[0.0], [8.0], [4.0]]), actions)
    assert torch.isfinite(samples).all()
    assert volume is not None
    assert torch.isfinite(volume).all()


@pytest.mark.parametrize("form", FORMS)
def test_a_saved_policy_keeps_its_form(form: GaussianForm, tmp_path: Path) -> None:
    policy = policy_over(box(10.0, 90.0, form, size=2))
    save_policy(policy, tmp_path)
    loaded = load_policy(tmp_path)
    seen = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    assert loaded.spaces == policy.spaces
    assert (loaded.numpy_policy().best(seen) == policy.numpy_policy().best(seen)).all()


def test_a_policy_of_an_older_hone_is_not_scaled(tmp_path: Path) -> None:
    policy = policy_over(box(10.0, 90.0, "unscaled"))
    save_policy(policy, tmp_path)
    path = tmp_path / "policy.json"
    description = json.loads(path.read_text())
    del description["actions"]["gaussian"]
    path.write_text(json.dumps(description))
    assert load_policy(tmp_path).spaces.box.gaussian == "unscaled"
    with pytest.raises(DataError, match=r'is unscaled, and this run\'s is clipped; set network.gaussian = "unscaled"'):
        load_weights(policy_over(box(10.0, 90.0, "clipped")), tmp_path)
    save_policy(policy_over(box(-1.0, 1.0, "unscaled")), tmp_path)
    load_weights(policy_over(box(-1.0, 1.0, "clipped")), tmp_path)
