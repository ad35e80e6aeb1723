"""Learnt worlds and plans in them: folding changes nothing, worth is a plain rollout's, plans find optima."""

import json
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

from hone.control.environments.registration import register_builtin_envs
from hone.control.networks.checkpoint import load_policy, save_policy
from hone.control.networks.mlp import BoxActions, DiscreteActions, MlpConfig, ObservationInputs, PolicySpaces
from hone.control.networks.mpc import (
    REWARD_FUNCTIONS,
    CemPlanning,
    DynamicsEnsemble,
    ImaginedRollouts,
    ModelPlanner,
    MppiPlanning,
    refit_plan_distribution,
    soft_clamp,
)
from hone.control.suite import cartpole_swing_up as swing_up
from hone.core.errors import ConfigError
from hone.objectives.value import gaussian_nll

SPACES = PolicySpaces(
    inputs=ObservationInputs(size=3), actions=BoxActions(low=(-2.0, 0.0), high=(2.0, 1.0), shape=(2,))
)
NETWORK = MlpConfig(hidden=[7, 6], activation="tanh")


def shaken(members: int = 4, *, activation: str = "tanh") -> DynamicsEnsemble:
    ensemble = DynamicsEnsemble(
        members, observation_size=3, actions=2, network=NETWORK.model_copy(update={"activation": activation}), seed=0
    )
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in ensemble.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        ensemble.set_statistics(5, (torch.randn(5), torch.rand(5) + 0.5), (torch.randn(4), torch.rand(4) + 0.5))
    return ensemble


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_folded_is_the_same_function(activation: str) -> None:
    ensemble = shaken(activation=activation)
    seen, action = torch.randn(4, 2, 6, 3), torch.randn(6, 2)
    x = ensemble.standardise_inputs(seen, action.expand(4, 2, 6, 2)).view(4, 12, 5)
    mean, log_variance = ensemble(x)
    scale, offset = ensemble.get_buffer("output_scale"), ensemble.get_buffer("output_mean")
    raw = (mean * scale + offset).view(4, 2, 6, 4)
    folded = ensemble.for_planning()
    change, spread, reward = folded.predict_change(seen, folded.action_features(action[None])[0])
    torch.testing.assert_close(change, raw[..., :3], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(reward, raw[..., 3], rtol=1e-4, atol=1e-5)
    std = (torch.exp(0.5 * log_variance) * scale).view(4, 2, 6, 4)[..., :3]
    torch.testing.assert_close(spread, std, rtol=1e-4, atol=1e-5)


def test_members_are_networks_of_their_own() -> None:
    """One member alone, layer by layer."""
    ensemble, x = shaken(), torch.randn(4, 9, 5)
    mean, _ = ensemble(x)
    h = x[2]
    for layer, (weight, bias) in enumerate(zip(ensemble.weights, ensemble.biases, strict=True)):
        h = h @ weight[2] + bias[2]
        h = torch.tanh(h) if layer < 2 else h
    torch.testing.assert_close(mean[2], h[:, :4])


def test_bounds_bend_softly() -> None:
    raw, bounds = torch.linspace(-60, 60, 101)[:, None], torch.tensor([[-10.0], [0.5]])
    bent = soft_clamp(raw, bounds).squeeze(1)
    assert (bent[1:] >= bent[:-1]).all() and bent[0] >= -10.0 and bent[-1] <= 0.51
    assert soft_clamp(torch.tensor([[-4.0]]), bounds).item() == pytest.approx(-4.0, abs=0.02)


def test_likelihood_is_torchs() -> None:
    mean, log_variance, target = torch.randn(3, 5, 2), torch.randn(3, 5, 2), torch.randn(3, 5, 2)
    terms = gaussian_nll(mean, log_variance, target)
    normal = torch.distributions.Normal(mean, torch.exp(0.5 * log_variance))
    constant = 0.5 * np.log(2 * np.pi) * 6
    torch.testing.assert_close(terms.loss, -normal.log_prob(target).sum(dim=(0, 2)) - constant)
    one = gaussian_nll(torch.zeros(1, 1, 1), torch.full((1, 1, 1), np.log(4.0)), torch.full((1, 1, 1), 2.0))
    assert one.loss.item() == pytest.approx(0.5 * (4 / 4 + np.log(4.0)))
    assert one.metrics["model/squared_error"].item() == 4.0


def slow_worth(policy: ModelPlanner, seen: torch.Tensor, plans: torch.Tensor, noise: torch.Tensor) -> np.ndarray:
    """One environment, plan, member and particle after another, by the unfolded ensemble; members do not mix."""
    ensemble = policy.ensemble
    environments, candidates, horizon, _ = plans.shape
    members, particles = noise.shape[2:4]
    total = np.zeros((environments, candidates, members, particles))
    low, high = torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 1.0])
    scale, offset = ensemble.get_buffer("output_scale"), ensemble.get_buffer("output_mean")
    for place in np.ndindex(*total.shape):
        b, c, k, p = place
        now = seen[b]
        for t in range(horizon):
            action = low + (plans[b, c, t] + 1) / 2 * (high - low)
            x = torch.zeros(members, 1, 5)
            x[k, 0] = ensemble.standardise_inputs(now, action)
            mean, log_variance = ensemble(x)
            raw, std = mean[k, 0] * scale + offset, torch.exp(0.5 * log_variance[k, 0]) * scale
            total[place] += float(raw[3])
            now = now + raw[:3] + std[:3] * noise[b, t, k, p]
    return total.mean(axis=(2, 3))


def test_worth_is_a_plain_rollouts() -> None:
    policy = ModelPlanner(SPACES, NETWORK, seed=0, members=4)
    policy.ensemble.load_state_dict(shaken().state_dict())
    world = policy.numpy_policy().rollouts
    seen, plans = torch.randn(2, 3), torch.rand(2, 3, 4, 2) * 2 - 1
    noise = torch.randn(2, 4, 4, 2, 3)
    with torch.no_grad():
        slow = slow_worth(policy, seen, plans, noise)
    np.testing.assert_allclose(
        world.plan_returns(seen, plans, noise, resample_members=False).numpy(), slow, rtol=1e-3, atol=1e-3
    )
    mixed = world.plan_returns(seen, plans, noise, resample_members=True)
    assert not np.allclose(mixed.numpy(), slow, atol=1e-3)


def test_environments_are_planned_for_apart() -> None:
    """What is planned for one does not depend on its company."""
    policy = ModelPlanner(SPACES, NETWORK, seed=0, members=4)
    policy.ensemble.load_state_dict(shaken().state_dict())
    seen = np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32)
    keys = policy.numpy_policy().noise(np.random.default_rng(1), (3,))
    together = policy.numpy_policy().decide(seen, keys)[0]
    alone = [policy.numpy_policy().decide(seen[[b]], keys[[b]])[0][0] for b in range(3)]
    np.testing.assert_allclose(together, np.stack(alone), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "planning",
    [CemPlanning(iterations=6, horizon=5), MppiPlanning(kind="mppi", iterations=8, horizon=5, temperature=0.1)],
)
def test_plans_find_the_best_action(planning: CemPlanning | MppiPlanning, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a world of no change that pays for being close to (1, 0.25) at every step, whatever is learnt."""
    wanted = torch.tensor([1.0, 0.25])
    monkeypatch.setitem(
        REWARD_FUNCTIONS,
        "target",
        lambda seen, action, after: -(action - wanted).square().sum(dim=-1).expand(seen.shape[:-1]),
    )
    policy = ModelPlanner(SPACES, NETWORK, seed=0, members=2, planning=planning, reward="target")
    policy.ensemble.set_statistics(1, (torch.zeros(5), torch.ones(5)), (torch.zeros(4), torch.ones(4)))
    acting, seen = policy.numpy_policy(), np.zeros((2, 3), np.float32)
    for _ in range(6):
        chosen = acting.best(seen)
    np.testing.assert_allclose(chosen, np.tile(wanted.numpy(), (2, 1)), atol=0.25)


def test_elites_and_weights_by_hand() -> None:
    plans = torch.tensor([[[[0.0]], [[1.0]], [[0.5]], [[-1.0]]]])
    worth, std = torch.tensor([[0.0, 3.0, 2.0, -9.0]]), torch.ones(1, 1, 1)
    mean, spread = refit_plan_distribution(CemPlanning(elites=2), plans, worth, std)
    assert mean.item() == 0.75 and spread.item() == 0.25
    mppi = MppiPlanning(kind="mppi", temperature=0.5)
    mean, spread = refit_plan_distribution(mppi, plans, worth, std)
    weight = np.exp((worth.numpy()[0] - 3.0) / (0.5 * worth.numpy()[0].std(ddof=1)))
    assert mean.item() == pytest.approx(float((weight / weight.sum()) @ [0.0, 1.0, 0.5, -1.0]), rel=1e-5)
    assert spread is std


def test_the_last_plan_is_gone_on_with() -> None:
    policy = ModelPlanner(SPACES, NETWORK, seed=0, members=2, planning=CemPlanning(horizon=3, candidates=8, elites=2))
    policy.ensemble.load_state_dict(shaken(2).state_dict())
    acting, seen = policy.numpy_policy(), np.zeros((1, 3), np.float32)
    acting.best(seen)
    assert acting.plan is not None
    begin = acting._begin(1)
    torch.testing.assert_close(begin[:, :2], acting.plan[:, 1:])
    assert (begin[:, 2] == 0).all()
    assert (acting._begin(2) == 0).all()  # another number of environments: nothing to go on with


def test_an_untaught_planner_acts_at_random() -> None:
    acting = ModelPlanner(SPACES, NETWORK, seed=0, members=2).numpy_policy()
    chosen, logp = acting.decide(np.zeros((2000, 3), np.float32), acting.noise(np.random.default_rng(0), (2000,)))
    assert np.isnan(logp).all() and chosen.shape == (2000, 2)
    assert abs(chosen[:, 0].mean()) < 0.1 and abs(chosen[:, 1].mean() - 0.5) < 0.05
    assert chosen[:, 0].std() == pytest.approx(4 / np.sqrt(12), rel=0.05)


def test_a_saved_planner_plans_alike(tmp_path: Path) -> None:
    policy = ModelPlanner(SPACES, NETWORK, seed=0, members=3, planning=MppiPlanning(kind="mppi", horizon=2))
    policy.ensemble.load_state_dict(shaken(3).state_dict())
    save_policy(policy, tmp_path)
    again = load_policy(tmp_path)
    assert isinstance(again, ModelPlanner) and again.planning == policy.planning and again.ensemble.is_fitted
    seen = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(policy.numpy_policy().best(seen), again.numpy_policy().best(seen))
    description = json.loads((tmp_path / "policy.json").read_text())
    assert description["extras"]["planning"]["kind"] == "mppi"


def test_other_spaces_are_refused() -> None:
    for spaces in (
        replace(SPACES, actions=DiscreteActions(count=2)),
        replace(SPACES, inputs=ObservationInputs(size=4, one_hot=True)),
        replace(SPACES, actions=BoxActions(low=(-np.inf,), high=(1.0,), shape=(1,))),
    ):
        with pytest.raises(ConfigError, match="a box of observations and a box of actions"):
            ModelPlanner(spaces, NETWORK, seed=0)


# ---------------------------------------------------------------------------------------------- known rewards


@pytest.mark.parametrize(
    ("name", "reward"), [("Pendulum-v1", "pendulum"), ("hone/CartPoleSwingUp-v0", "cartpole_swing_up")]
)
def test_known_rewards_are_the_worlds(name: str, reward: str) -> None:
    assert swing_up.LENGTH_M == 0.6
    register_builtin_envs()
    env = gymnasium.make(name)
    env.action_space.seed(0)
    now, _ = env.reset(seed=0)
    for _ in range(60):
        action = env.action_space.sample()
        after, paid, *_ = env.step(action)
        told = REWARD_FUNCTIONS[reward](
            *(torch.tensor(np.asarray(x), dtype=torch.float64) for x in (now, action, after))
        )
        assert told.item() == pytest.approx(float(paid), abs=1e-4)
        now = after


def test_imagination_needs_no_gradient() -> None:
    world = ImaginedRollouts(
        dynamics=shaken(2).for_planning(), bounds=BoxActions(low=(-1.0, -1.0), high=(1.0, 1.0), shape=(2,)), reward=None
    )
    worth = world.plan_returns(
        torch.zeros(1, 3), torch.zeros(1, 2, 3, 2), torch.zeros(1, 3, 2, 1, 3), resample_members=False
    )
    assert not worth.requires_grad and worth.shape == (1, 2)
