"""Elastic weight consolidation: the Fisher information, the penalty and its gradient, a resume, and what is refused."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from control_policies import BOX, CHOICES, NETWORK, NORMALISED, NUMBERS
from control_runs import write_short_log
from torch import Tensor, nn

import hone.api
from hone.control.consolidation import Consolidation, consolidation_of, fisher_diagonal, fisher_of, flat_weights
from hone.control.networks.actor_critic import ActorCritic
from hone.control.networks.checkpoint import load_policy, save_policy
from hone.control.networks.mlp import DiscreteActions, MlpConfig, ObservationInputs, PolicySpaces
from hone.core.errors import ConfigError, DataError
from hone.core.state import array, substate
from hone.learner.flat_parameters import FlatParameters
from hone.run.job import ConsolidationConfig
from hone.run.saved_config import policy_folder
from hone.run.store.checkpoints import Checkpoint

POLE: dict[str, Any] = {
    "recipe": "ppo",
    "steps": 2,
    "rollout_steps": 16,
    "env": {"id": "CartPole-v1", "num_envs": 2},
    "network": {"hidden": [8]},
    "evaluation": {"episodes": 1},
    "run": {"rollouts_every": 1},
}


def train(place: Path, name: str, init: Path | None = None, held: dict[str, Any] | None = None, **changes: Any) -> Path:
    return hone.api.train(config_of(name, init, held, **changes), runs=place / "runs").folder


def config_of(name: str, init: Path | None, held: dict[str, Any] | None, **changes: Any) -> dict[str, Any]:
    run = {**POLE["run"], **({"init": str(init)} if init else {}), **changes.pop("run", {})}
    return {**POLE, "name": name, **changes, "run": run} | ({"consolidation": held} if held else {})


def weights(run: Path) -> Tensor:
    return flat_weights(load_policy(policy_folder(run)))


def held_fisher(run: Path) -> np.ndarray:
    checkpoint = sorted((run / "checkpoints").glob("step_*"))[-1]
    state = Checkpoint(step=0, folder=checkpoint, score=None).state()
    return array(substate(substate(substate(state, "learner"), "kept"), "consolidation"), "fisher")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("first"), "first")


def test_the_fisher_information_of_two_choices_and_of_a_gaussian_is_that_worked_out_by_hand() -> None:
    one = nn.Linear(1, 1, bias=False)
    nn.init.constant_(one.weight, 0.5)
    logit = one(torch.tensor([[2.0]])).squeeze()  # p = 1 / (1 + e^-1)
    p = torch.sigmoid(logit).detach()
    log_p = torch.stack([nn.functional.logsigmoid(logit), nn.functional.logsigmoid(-logit)])
    factors = list(torch.stack([p, 1 - p]).sqrt() * log_p)
    chance = 1 / (1 + math.exp(-1.0))
    assert fisher_diagonal(one, factors).item() == pytest.approx(chance * (1 - chance) * 2.0**2)

    policy = ActorCritic(PolicySpaces(inputs=NUMBERS, actions=BOX), NETWORK, seed=0)
    assert policy.log_std is not None
    by_name = split(policy, fisher_of(policy, torch.randn(3, NUMBERS.size)))
    assert by_name["log_std"].tolist() == pytest.approx([2.0, 2.0])
    deviation = policy.log_std.detach().exp()
    last = next(name for name, value in reversed(by_name.items()) if name.startswith("actor") and value.shape == (2,))
    assert by_name[last].tolist() == pytest.approx((1 / deviation.square()).tolist())  # of the means' own biases
    assert all((value == 0).all() for name, value in by_name.items() if name.startswith("critic"))


def split(policy: nn.Module, flat: Tensor) -> dict[str, Tensor]:
    sizes = [parameter.numel() for parameter in policy.parameters()]
    named = zip(policy.named_parameters(), flat.split(sizes), strict=True)
    return {name: part.view_as(parameter) for (name, parameter), part in named}


@pytest.mark.parametrize("inputs", [NUMBERS, NORMALISED])
def test_it_is_the_mean_square_of_the_score_over_states_and_the_policys_own_actions(inputs: ObservationInputs) -> None:
    policy = ActorCritic(PolicySpaces(inputs=inputs, actions=CHOICES), NETWORK, seed=3)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    states = torch.randn(5, inputs.size)
    slow = torch.zeros_like(flat_weights(policy))
    for state in states:
        for action in range(CHOICES.start, CHOICES.start + CHOICES.count):
            logp = policy.evaluate_actions(state[None], torch.tensor([action])).logp.squeeze()
            score = torch.autograd.grad(logp, list(policy.parameters()), allow_unused=True)
            flat = [
                torch.zeros_like(parameter) if part is None else part
                for part, parameter in zip(score, policy.parameters(), strict=True)
            ]
            slow += logp.detach().exp() * torch.cat([part.flatten() for part in flat]).square() / len(states)
    assert slow.max() > 0.01
    torch.testing.assert_close(fisher_of(policy, states), slow, rtol=1e-4, atol=1e-7)


def test_the_penalty_is_the_divergence_of_close_policies_where_the_fisher_matrix_is_diagonal() -> None:
    policy = ActorCritic(PolicySpaces(inputs=NUMBERS, actions=BOX), NETWORK, seed=0)
    anchor = flat_weights(policy)
    fisher = fisher_of(policy, torch.randn(4, NUMBERS.size))
    assert policy.log_std is not None
    moved = torch.tensor([0.01, -0.02])
    with torch.no_grad():
        policy.log_std.add_(moved)
    # KL of Gaussians of equal means, with deviations s and s e^m: m - 1/2 + e^(-2m) / 2 each.
    divergence = float((moved - 0.5 + 0.5 * (-2 * moved).exp()).sum())
    store = FlatParameters(list(policy.parameters()))
    for weight in (1.0, 3.0):
        figures = Consolidation(policy, weight, fisher=fisher, anchor=anchor).add_gradient(store)
        assert figures["consolidation/penalty"] == pytest.approx(weight * divergence, rel=0.03)


def test_its_gradient_is_that_of_the_penalty_in_whatever_parts_it_is_stepped() -> None:
    policy = ActorCritic(PolicySpaces(inputs=NUMBERS, actions=CHOICES), NETWORK, seed=0)
    shape = torch.Generator().manual_seed(1)
    anchor = flat_weights(policy) + torch.randn(flat_weights(policy).shape, generator=shape)
    fisher = torch.rand(anchor.shape, generator=shape)
    now = flat_weights(policy).requires_grad_()
    expected = 2.5 / 2 * (fisher * (now - anchor).square()).sum()
    expected.backward()
    assert now.grad is not None
    penalty = Consolidation(policy, 2.5, fisher=fisher, anchor=anchor)
    parts = [[p for n, p in policy.named_parameters() if n.startswith("critic") is critic] for critic in (False, True)]
    wanted = {id(p): part for p, part in zip(policy.parameters(), split(policy, now.grad).values(), strict=True)}
    total = 0.0
    for part in parts:
        store = FlatParameters(part)
        with store.collect_gradients():
            torch.stack([parameter.sum() for parameter in part]).sum().backward()
        total += penalty.add_gradient(store)["consolidation/penalty"]
        for parameter, gradient in zip(store.parameters, store.views, strict=True):
            torch.testing.assert_close(gradient, 1.0 + wanted[id(parameter)])
    assert total == pytest.approx(expected.item(), rel=1e-5)


def test_a_run_is_held_near_the_other_and_the_log_says_by_how_many_weights(trained: Path, tmp_path: Path) -> None:
    far = {"steps": 3, "seed": 5, "learner": {"lr": 0.02}}
    free = train(tmp_path, "free", trained, **far)
    held = train(tmp_path, "held", trained, {"weight": 1e4}, **far)
    fisher = torch.from_numpy(held_fisher(held))
    start = weights(trained)
    distances = [float((fisher * (weights(run) - start).square()).sum()) for run in (held, free)]
    assert distances[0] < 0.5 * distances[1]
    critic = torch.cat([part.flatten() for name, part in named(held) if name.startswith("critic")])
    assert not torch.equal(critic, torch.cat([part.flatten() for name, part in named(trained) if "critic" in name]))
    counted = int((fisher > 0).sum())
    assert f"{counted:,} of {len(fisher):,} weights are held" in (held / "log.txt").read_text()
    assert "consolidation/penalty" in (held / "metrics.jsonl").read_text()


def named(run: Path) -> list[tuple[str, Tensor]]:
    return list(load_policy(policy_folder(run)).named_parameters())


def test_a_resumed_run_is_the_same_run_without_its_source(trained: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    copy_of(trained, source)
    states = Path(write_short_log(tmp_path, "CartPole-v1"))
    held = {"weight": 100.0, "states": str(states)}
    fixed = {"steps": 3, "run": {"checkpoint_every": 1}}
    whole = train(tmp_path, "whole", source, held, **fixed)
    config = config_of("parts", source, held, **fixed)
    hone.api.train(config, runs=tmp_path / "runs", on_step=lambda event: event.step < 1)
    for file in [*source.iterdir(), states]:
        file.unlink()
    resumed = hone.api.train(config, runs=tmp_path / "runs", resume=True).folder
    assert torch.equal(weights(whole), weights(resumed))
    np.testing.assert_array_equal(held_fisher(whole), held_fisher(resumed))


def copy_of(run: Path, folder: Path) -> None:
    save_policy(load_policy(policy_folder(run)), folder)


def test_a_chain_of_retrainings_keeps_to_all_of_its_links(trained: Path, tmp_path: Path) -> None:
    second = train(tmp_path, "second", trained, {"weight": 1.0}, seed=5)
    network = load_policy(policy_folder(second))
    free = ActorCritic(network.spaces, MlpConfig(hidden=[8]), seed=9)
    taken = [name for name, _ in free.named_parameters()]
    held, folder = ConsolidationConfig(weight=1.0), policy_folder(second)
    penalty = consolidation_of(free, network, folder, "second", held, taken=taken)
    own = penalty.fisher.numpy() - held_fisher(second)
    assert own.min() > -1e-4 and own.max() > 1e-3
    part = consolidation_of(free, network, folder, "second", held, taken=taken[:1])
    first = network.get_parameter(taken[0]).numel()
    assert torch.equal(part.fisher[:first], penalty.fisher[:first]) and not part.fisher[first:].any()


def test_what_it_cannot_serve_is_refused_before_the_run_begins(trained: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    copy_of(trained, bare)
    with pytest.raises(DataError, match=r"a policy's folder alone has no rollouts .*consolidation.states"):
        train(tmp_path, "alone", bare, {"weight": 1.0})
    silent = train(tmp_path / "silent", "silent", run={"rollouts_every": 0})
    with pytest.raises(DataError, match=r"has no rollouts with observations up to step 2"):
        train(tmp_path, "no_states", silent, {"weight": 1.0})
    with pytest.raises(ConfigError, match="moves all parameters along one direction"):
        train(tmp_path, "natural", trained, {"weight": 1.0}, recipe="trpo")
    recurrent: dict[str, Any] = {"network": {"hidden": [8], "memory": {"kind": "gru", "units": 4}}}
    remembering = train(tmp_path / "remembering", "gru", **recurrent)
    with pytest.raises(ConfigError, match=r"consolidation .* needs the probabilities"):
        train(tmp_path, "gru", remembering, {"weight": 1.0}, **recurrent)
    with pytest.raises(ConfigError, match="consolidation holds weights of another run: name it"):
        train(tmp_path, "nobody", None, {"weight": 1.0})
    assert not list((tmp_path / "runs").glob("*"))
    with pytest.raises(ValueError, match="greater than 0"):
        ConsolidationConfig(weight=0.0)


def test_a_saved_penalty_of_another_network_is_refused() -> None:
    policy = ActorCritic(PolicySpaces(inputs=NUMBERS, actions=DiscreteActions(count=2)), NETWORK, seed=0)
    anchor = flat_weights(policy)
    penalty = Consolidation(policy, 1.0, fisher=torch.ones_like(anchor), anchor=anchor)
    with pytest.raises(DataError, match=f"of 3 parameters, this policy has {len(anchor)}"):
        penalty.restore({"fisher": np.ones(3, np.float32), "anchor": np.ones(3, np.float32)})
