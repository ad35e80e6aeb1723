"""Any folder becomes a decision policy: a bandit, a run's checkpoint, a network; others say why not."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from bandit_policies import ACTIONS, FEATURES, learnt_model

from hone.control.networks.actor_critic import ActorCritic, QNetworkPolicy
from hone.control.networks.checkpoint import save_policy as save_network
from hone.control.networks.mlp import BoxActions, DiscreteActions, MlpConfig, ObservationInputs, PolicySpaces
from hone.control.networks.offline import DiscreteBcqPolicy, IqlPolicy
from hone.control.networks.q_networks import DiscreteSacPolicy, DqnPolicy
from hone.core.errors import DataError
from hone.decide.bandits.greedy import LinUcbPolicy
from hone.decide.bandits.policy import numbered_actions
from hone.decide.bandits.saving import open_decision_policy, save_policy
from hone.decide.bandits.wrappers import EpsilonFloor

OLD_RUN = Path(__file__).resolve().parents[2] / "fixtures" / "runs_0_1" / "runs" / "thompson"
SMALL = MlpConfig(hidden=[8])
SPACES = PolicySpaces(inputs=ObservationInputs(size=3), actions=DiscreteActions(count=4, start=1))


def test_a_bandits_folder_opens_as_it_was_saved(tmp_path: Path) -> None:
    policy = EpsilonFloor(LinUcbPolicy(learnt_model(2), 0.8), 0.1)
    save_policy(policy, tmp_path)
    context = np.array([0.3, -1.0, 0.2])
    assert open_decision_policy(tmp_path).logp(context, ACTIONS).tobytes() == policy.logp(context, ACTIONS).tobytes()


def test_a_run_of_hone_0_1_opens_as_thompson_sampling() -> None:
    mass = np.exp(open_decision_policy(OLD_RUN).logp(np.zeros(0), numbered_actions(3)))
    rng = np.random.default_rng(0)  # Beta(1, 7), Beta(9, 13), Beta(5, 11), as the file says
    best = rng.beta([1, 9, 5], [7, 13, 11], size=(400_000, 3)).argmax(axis=1)
    np.testing.assert_allclose(mass, np.bincount(best) / 400_000, atol=0.003)


SOFTMAX = [ActorCritic, IqlPolicy, DiscreteSacPolicy]
GREEDY = [QNetworkPolicy, DqnPolicy, partial(DiscreteBcqPolicy, threshold=0.9)]


@pytest.mark.parametrize("kind", SOFTMAX)
def test_a_network_with_a_softmax_says_the_probabilities_that_it_draws_by(kind, tmp_path: Path) -> None:
    network = kind(SPACES, MlpConfig(hidden=[8]), seed=3)
    save_network(network, tmp_path)
    policy = open_decision_policy(tmp_path)
    context = np.array([0.5, -1.0, 2.0])
    mass = np.exp(policy.logp(context, ACTIONS))
    acting, draws = network.numpy_policy(), np.random.default_rng(1)
    seen = np.tile(context, (20_000, 1))
    chosen, logp = acting.decide(seen, acting.noise(draws, (20_000,)))
    np.testing.assert_allclose(mass[chosen - 1], np.exp(logp), rtol=1e-5)
    np.testing.assert_allclose(np.bincount(chosen - 1, minlength=4) / 20_000, mass, atol=0.02)
    rows = policy.logp_rows(np.stack([context, -context]), ACTIONS)
    np.testing.assert_allclose(rows[1], policy.logp(-context, ACTIONS), rtol=1e-6)


@pytest.mark.parametrize("kind", GREEDY, ids=["q_network", "dqn", "bcq"])
def test_a_greedy_network_puts_all_mass_on_its_choice(kind, tmp_path: Path) -> None:
    network = kind(SPACES, SMALL, seed=3)
    save_network(network, tmp_path)
    context = np.array([0.5, -1.0, 2.0])
    mass = np.exp(open_decision_policy(tmp_path).logp(context, ACTIONS))
    assert mass.tolist() == np.eye(4)[int(network.numpy_policy().best(context[None])[0]) - 1].tolist()


def test_a_network_over_numbered_states_takes_the_states_number(tmp_path: Path) -> None:
    spaces = PolicySpaces(inputs=ObservationInputs(size=5, one_hot=True), actions=SPACES.actions)
    network = ActorCritic(spaces, SMALL, seed=1)
    save_network(network, tmp_path)
    policy, state = open_decision_policy(tmp_path), np.array([3.0])
    with torch.no_grad():
        logits = network.actor(torch.nn.functional.one_hot(torch.tensor([3]), 5).float())[0].double().numpy()
    np.testing.assert_allclose(policy.logp(state, ACTIONS), logits - np.log(np.exp(logits).sum()), rtol=1e-5)


def test_what_cannot_decide_says_why(tmp_path: Path) -> None:
    network = ActorCritic(SPACES, SMALL, seed=3)
    save_network(network, tmp_path / "network")
    policy = open_decision_policy(tmp_path / "network")
    with pytest.raises(DataError, match="4 actions, and the decision 5"):
        policy.logp(np.zeros(3), numbered_actions(5))
    with pytest.raises(DataError, match=f"trained on {FEATURES} features, and a context has 2"):
        policy.logp(np.zeros(2), ACTIONS)
    box = BoxActions(low=(0.0,), high=(1.0,), shape=(1,))
    save_network(ActorCritic(PolicySpaces(inputs=SPACES.inputs, actions=box), SMALL, seed=0), tmp_path / "box")
    with pytest.raises(DataError, match="its actions are not numbered"):
        open_decision_policy(tmp_path / "box")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(DataError, match="a language model; decisions need a bandit"):
        open_decision_policy(tmp_path / "text")
    with pytest.raises(DataError, match="there is no such folder"):
        open_decision_policy(tmp_path / "nowhere")


def test_a_bandit_is_opened_without_torch(tmp_path: Path) -> None:
    save_policy(LinUcbPolicy(learnt_model(1), 1.0), tmp_path)
    code = (
        "import sys; from pathlib import Path; from hone.decide.bandits.saving import open_decision_policy; "
        f"open_decision_policy(Path({str(tmp_path)!r})); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
