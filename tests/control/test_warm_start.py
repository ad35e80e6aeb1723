"""`run.init`: weights by name and shape, moments, frozen parts, and a resume that is still the same run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from control_policies import BOX, CHOICES, NETWORK, NORMALISED, NUMBERS
from torch import nn

import hone.api
from hone.control.networks.actor_critic import ActorCritic, SoftActorCritic
from hone.control.networks.checkpoint import load_policy, save_policy
from hone.control.networks.mlp import DiscreteActions, MlpConfig, PolicySpaces
from hone.control.warm_start import transfer_weights
from hone.core.errors import ConfigError, DataError
from hone.learner.adam import Adam
from hone.learner.flat_parameters import FlatParameters
from hone.run.job import InitConfig, RunSettings
from hone.run.saved_config import policy_folder

POLE: dict[str, Any] = {
    "recipe": "ppo",
    "steps": 2,
    "rollout_steps": 16,
    "env": {"id": "CartPole-v1", "num_envs": 2},
    "network": {"hidden": [8]},
    "evaluation": {"episodes": 1},
    "algorithm": {"normalise": {"observations": True, "rewards": True}},
}


def train(place: Path, name: str, **changes: Any) -> Path:
    return hone.api.train({**POLE, "name": name, **changes}, runs=place / "runs").folder


def weights(run: Path) -> dict[str, torch.Tensor]:
    return dict(load_policy(policy_folder(run)).state_dict())


def log(run: Path) -> str:
    return (run / "log.txt").read_text()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("first"), "first")


def test_a_run_begins_with_the_weights_and_moments_of_another(trained: Path, tmp_path: Path) -> None:
    run = train(tmp_path, "second", steps=1, seed=5, run={"init": str(trained)}, learner={"lr": 1e-12})
    before, after = weights(trained), weights(run)
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in before)
    assert "7 tensors from" not in log(run) and "8 tensors from" in log(run)
    assert "observations are normalised by 6" in log(run) and "rewards are divided by" in log(run)
    first, second = (load_policy(policy_folder(one)).spaces.inputs for one in (trained, run))
    assert first.mean and second.mean and first.mean != second.mean  # 32 more observations have moved them a little
    np.testing.assert_allclose(first.mean, second.mean, atol=2 * max(first.scale))
    bare = tmp_path / "bare"
    save_policy(load_policy(policy_folder(trained)), bare)
    alone = train(tmp_path, "third", steps=1, seed=5, run={"init": {"path": str(bare)}}, learner={"lr": 1e-12})
    assert "observations are normalised by 10,000 earlier ones" in log(alone)
    kept = load_policy(policy_folder(alone)).spaces.inputs
    assert np.abs(np.subtract(kept.mean, first.mean)).max() < 0.01  # 32 of 10,032


def test_parts_are_frozen_and_reset(trained: Path, tmp_path: Path) -> None:
    run = train(
        tmp_path, "frozen", run={"init": {"path": str(trained), "freeze": ["actor.layers.0"], "reset": ["critic"]}}
    )
    before, after = weights(trained), weights(run)
    for name in before:
        same = torch.equal(before[name], after[name])
        assert same == name.startswith("actor.layers.0"), name
    assert "new: critic.layers.0.weight [8, 4], reset" in log(run)
    resumed = hone.api.train(
        {
            **POLE,
            "name": "frozen",
            "steps": 3,
            "run": {"init": {"path": str(trained), "freeze": ["actor.layers.0"], "reset": ["critic"]}},
        },
        runs=tmp_path / "runs",
        resume=True,
    )
    longer = weights(resumed.folder)
    assert torch.equal(longer["actor.layers.0.weight"], before["actor.layers.0.weight"])
    assert not torch.equal(longer["actor.layers.1.weight"], after["actor.layers.1.weight"])


def test_a_resumed_warm_start_is_the_same_run_without_its_source(trained: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    save_policy(load_policy(policy_folder(trained)), source)
    fixed = {"algorithm": {"normalise": {"observations": False}}, "run": {"init": str(source), "checkpoint_every": 1}}
    whole = train(tmp_path, "whole", steps=3, **fixed)
    stop = lambda event: event.step < 1  # noqa: E731
    hone.api.train({**POLE, "name": "parts", "steps": 3, **fixed}, runs=tmp_path / "runs", on_step=stop)
    for file in source.iterdir():
        file.unlink()
    hone.api.train({**POLE, "name": "parts", "steps": 3, **fixed}, runs=tmp_path / "runs", resume=True)
    one, other = weights(whole), weights(tmp_path / "runs" / "parts")
    assert all(torch.equal(one[name], other[name]) for name in one)
    inputs = [load_policy(policy_folder(run)).spaces.inputs for run in (whole, tmp_path / "runs" / "parts", trained)]
    assert inputs[0] == inputs[1] == inputs[2]  # nobody counts further, so the normalisation is that of the weights


def test_only_a_head_may_differ(tmp_path: Path) -> None:
    old = ActorCritic(PolicySpaces(inputs=NORMALISED, actions=CHOICES), NETWORK, seed=0)
    new = ActorCritic(PolicySpaces(inputs=NORMALISED, actions=DiscreteActions(count=7)), NETWORK, seed=1)
    fresh = {name: tensor.clone() for name, tensor in new.state_dict().items()}
    report = transfer_weights(new, old, InitConfig(path="old"))
    assert [line.split(",")[0] for line in report.new] == ["actor.layers.2.weight [7", "actor.layers.2.bias [7]"]
    assert "there [3, 16]" in report.new[0] and not report.unused
    for name, tensor in new.state_dict().items():
        expected = fresh if name.startswith("actor.layers.2") else old.state_dict()
        assert torch.equal(tensor, expected[name]), name


def test_networks_of_other_kinds_share_what_they_have(tmp_path: Path) -> None:
    old = ActorCritic(PolicySpaces(inputs=NUMBERS, actions=BOX), NETWORK, seed=0)
    new = SoftActorCritic(PolicySpaces(inputs=NUMBERS, actions=BOX), NETWORK, seed=1)
    report = transfer_weights(new, old, InitConfig(path="old"))
    assert list(report.taken) == [f"actor.layers.{n}.{part}" for n in (0, 1) for part in ("weight", "bias")]
    assert "critic.layers.0.weight" in report.unused and "log_std" in report.unused
    wide = ActorCritic(PolicySpaces(inputs=NUMBERS, actions=BOX), MlpConfig(hidden=[5]), seed=0)
    narrow = SoftActorCritic(PolicySpaces(inputs=NUMBERS, actions=BOX), MlpConfig(hidden=[3]), seed=0)
    with pytest.raises(DataError, match="no tensor has a name and a shape in common"):
        transfer_weights(narrow, wide, InitConfig(path="old"))


@pytest.mark.parametrize(
    ("init", "words"),
    [
        ({"reset": ["critics"]}, "no part 'critics'; did you mean critic"),
        ({"freeze": ["actr"]}, "no part 'actr'; did you mean actor"),
        ({"freeze": ["nothing"]}, "its parts are actor, critic"),
    ],
)
def test_parts_that_are_not_there_are_told(trained: Path, tmp_path: Path, init: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        train(tmp_path, "wrong", run={"init": {"path": str(trained), **init}})
    assert not (tmp_path / "runs" / "wrong").exists()


def test_a_target_network_is_not_forgotten() -> None:
    policy = SoftActorCritic(PolicySpaces(inputs=NUMBERS, actions=BOX), NETWORK, seed=1)
    with pytest.raises(ConfigError, match="names critics, and not its copy targets"):
        transfer_weights(policy, policy, InitConfig(path="old", reset=["critics"]))
    transfer_weights(policy, policy, InitConfig(path="old", reset=["critics", "targets"]))


def test_what_cannot_be_begun_from_is_refused(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="observes 4 numbers, this run's 2 numbers"):
        train(tmp_path, "car", env={"id": "MountainCar-v0"}, run={"init": str(trained)})
    with pytest.raises(ConfigError, match=r"learner.weight_decay > 0: the decay would move frozen weights"):
        train(
            tmp_path,
            "decayed",
            learner={"weight_decay": 0.1},
            run={"init": {"path": str(trained), "freeze": ["actor"]}},
        )
    with pytest.raises(ConfigError, match="moves all parameters along one direction"):
        train(
            tmp_path, "natural", recipe="trpo", algorithm={}, run={"init": {"path": str(trained), "freeze": ["actor"]}}
        )
    with pytest.raises(ConfigError, match="recipe q_learning does not begin from another run's weights"):
        hone.api.train(
            {
                "recipe": "q_learning", "name": "table", "steps": 1, "env": {"id": "FrozenLake-v1"},
                "run": {"init": str(trained)},
            },
            runs=tmp_path / "runs",
        )  # fmt: skip
    (tmp_path / "model").mkdir()
    with pytest.raises(ConfigError, match="is no control policy"):
        train(tmp_path, "text", run={"init": str(tmp_path / "model")})
    assert not list((tmp_path / "runs").glob("*"))
    with pytest.raises(ValueError, match="the other ranks would begin with other weights"):
        RunSettings(ranks=2, init=InitConfig(path="a"))


def test_frozen_parameters_have_no_gradient_and_no_share_in_its_norm() -> None:
    kept, moved = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))
    store = FlatParameters([kept, moved])
    store.freeze([kept])
    optimizer = Adam(store)
    for _ in range(3):
        with store.collect_gradients():
            (kept.square().sum() + 2.0 * moved.sum()).backward()
        assert store.gradient.tolist() == [0.0, 0.0, 0.0, 2.0, 2.0]
        assert float(store.gradient_norm()) == pytest.approx(np.sqrt(8.0))
        optimizer.step(0.1)
    assert kept.tolist() == [1.0] * 3 and moved.tolist() == pytest.approx([0.7, 0.7])
