"""Encoders of observations: their choice, their numbers beside plain modules of torch, their way to disk and back."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from pixel_envs import LitCorner
from torch import nn

from hone import api
from hone.control.environments.layout import RowSpace, layout_of
from hone.control.environments.make import GymConfig
from hone.control.environments.world import open_world
from hone.control.networks.actor_critic import ActorCritic
from hone.control.networks.checkpoint import load_policy, save_policy
from hone.control.networks.encoders import Encoder, encoded_spaces, make_encoder
from hone.control.networks.mlp import EncodedMlpConfig, PolicyNetworkConfig
from hone.control.networks.q_networks import DiscreteSacPolicy, DqnPolicy, QArchitecture
from hone.control.replay.ring import RingBuffer
from hone.control.spaces import network_spaces
from hone.core.errors import ConfigError, DataError, HoneError, UserCodeError

FILE = f"{Path(__file__).parents[2] / 'support' / 'pixel_envs.py'}:LitCorner"
TWO = spaces.Discrete(2)


def pixels(*shape: int, dtype: Any = np.uint8, high: float | None = None) -> spaces.Box:
    top = (255 if np.dtype(dtype) == np.uint8 else 1) if high is None else high
    return spaces.Box(0, top, shape, dtype)


def encoder_of(space: spaces.Space[Any], **network: Any) -> Encoder | None:
    inputs = encoded_spaces(network_spaces(space, TWO), EncodedMlpConfig(**network)).inputs
    return make_encoder(inputs, seed=3, stream="test")


def policy_of(space: spaces.Space[Any], **network: Any) -> ActorCritic:
    config = PolicyNetworkConfig(hidden=[8], **network)
    return ActorCritic(encoded_spaces(network_spaces(space, TWO), config), config, seed=3)


def observations(space: spaces.Space[Any], count: int) -> np.ndarray:
    space.seed(5)
    return np.stack([np.asarray(space.sample()) for _ in range(count)])


@pytest.mark.parametrize(
    ("space", "kind", "features"),
    [
        (pixels(84, 84, 3), "nature", 512),
        (pixels(4, 84, 84), "nature", 512),
        (pixels(84, 84), "nature", 512),
        (pixels(7, 7, 3), "minigrid", 64),
        (pixels(10, 10, 4, dtype=np.bool_), "small", 128),
        (pixels(10, 10, 10, dtype=np.float32), "small", 128),
        (pixels(2, 2, 3), "mlp", 12),
        (spaces.Box(-1, 1, (4,), np.float32), None, 4),
        (spaces.Box(-1, 1, (4, 4), np.float32), None, 16),
        (spaces.Discrete(500), None, 500),
    ],
)
def test_auto_chooses_by_shape_and_type(space: spaces.Space[Any], kind: str | None, features: int) -> None:
    inputs = encoded_spaces(network_spaces(space, TWO), EncodedMlpConfig()).inputs
    assert (None if inputs.encoder is None else inputs.encoder.kind, inputs.size) == (kind, features)
    if kind is not None and kind != "nature":  # whose weights take a second to be drawn
        made = encoder_of(space)
        assert made is not None
        assert made(torch.from_numpy(observations(space, 5))).shape == (5, features)


def test_nature_gradients_are_those_of_a_plain_module() -> None:
    space = pixels(48, 40, 3)
    policy = policy_of(space, encoder="nature")
    plain = nn.Sequential(
        nn.Conv2d(3, 32, 8, stride=4), nn.ReLU(), nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(), nn.Conv2d(64, 64, 3),
        nn.ReLU(), nn.Flatten(), nn.Linear(64 * 2 * 1, 512), nn.ReLU(),
    )  # fmt: skip
    assert policy.encoder is not None
    assert isinstance(policy.critic, nn.Module)
    plain.load_state_dict(
        {name.removeprefix("layers."): tensor.clone() for name, tensor in policy.encoder.state_dict().items()}
    )
    seen, chosen = observations(space, 6), torch.tensor([0, 1, 1, 0, 1, 0])
    out = policy.evaluate_actions(torch.from_numpy(seen), chosen)
    assert out.value is not None
    (out.logp.sum() + out.value.square().sum()).backward()
    x = plain(torch.from_numpy(np.moveaxis(seen, -1, 1) / 255.0).float())
    heads = []
    for network in (policy.actor, policy.critic):
        first, last = (nn.Linear(layer.in_features, layer.out_features) for layer in network.layers)
        first.load_state_dict(network.layers[0].state_dict())
        last.load_state_dict(network.layers[1].state_dict())
        heads.append(last(torch.tanh(first(x))))
    logp = torch.log_softmax(heads[0], 1).gather(1, chosen[:, None]).squeeze(1)
    assert torch.allclose(out.logp, logp, atol=1e-6)
    (logp.sum() + heads[1].square().sum()).backward()
    for mine, theirs in zip(policy.encoder.parameters(), plain.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert torch.allclose(mine.grad, theirs.grad, rtol=1e-4, atol=1e-6)


def test_axis_of_the_channels_changes_nothing_but_the_order() -> None:
    last, first = pixels(12, 12, 3), pixels(3, 12, 12)
    seen = observations(last, 4)
    one, other = encoder_of(last), encoder_of(first)
    assert one is not None
    assert other is not None
    assert torch.equal(one(torch.from_numpy(seen)), other(torch.from_numpy(np.moveaxis(seen, -1, 1).copy())))


def test_minigrid_planes_equal_a_loop_over_cells() -> None:
    space = pixels(7, 7, 3)
    rows = np.random.default_rng(0)
    seen = np.stack([rows.integers(0, most, (3, 7, 7)) for most in (11, 6, 3)], axis=-1).astype(np.uint8)
    made = encoder_of(space)
    assert made is not None
    planes = made.planes(torch.from_numpy(seen))  # pyright: ignore[reportAttributeAccessIssue]
    slow = np.zeros((3, 20, 7, 7), np.float32)
    for number, row, column in np.ndindex(3, 7, 7):
        what, colour, state = seen[number, row, column]
        slow[number, [what, 11 + colour, 17 + state], row, column] = 1.0
    assert np.array_equal(planes.numpy(), slow)


def test_weights_are_orthogonal_with_gain_sqrt_two() -> None:
    made = encoder_of(pixels(16, 16, 2))
    assert made is not None
    for name, tensor in made.named_parameters():
        if tensor.dim() == 1:
            assert not tensor.any()
        else:
            matrix = tensor.detach().flatten(1)
            matrix = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
            assert torch.allclose(matrix @ matrix.T, 2.0 * torch.eye(len(matrix)), atol=1e-4), name


def test_bytes_are_divided_once_and_the_folder_says_by_what(tmp_path: Path) -> None:
    policy = policy_of(pixels(12, 12, 1))
    seen = observations(pixels(12, 12, 1), 4)
    save_policy(policy, tmp_path)
    told = json.loads((tmp_path / "policy.json").read_text())["inputs"]["encoder"]
    assert (told["kind"], told["divisor"], told["channels"]) == ("small", 255.0, "last")
    assert policy.encoder is not None
    scaled = torch.from_numpy(seen / 255.0)
    floats = policy_of(pixels(12, 12, 1, dtype=np.float32))
    assert floats.spaces.inputs.encoder is not None
    assert floats.spaces.inputs.encoder.divisor == 1.0
    assert torch.allclose(policy.encode(torch.from_numpy(seen)), floats.encode(scaled), atol=1e-6)
    action, state = api.load(tmp_path).predict(seen)
    assert np.array_equal(action, policy.numpy_policy().best(seen))
    assert state is None
    loaded = load_policy(tmp_path)
    assert np.array_equal(loaded.numpy_policy().best(seen), policy.numpy_policy().best(seen))
    assert not policy.statistics()


def test_acting_equals_the_learner_and_follows_its_weights() -> None:
    space = pixels(12, 12, 2)
    policy, seen = policy_of(space), observations(space, 6)
    acting = policy.numpy_policy()
    for _ in range(2):
        chosen, logp = acting.decide(seen, np.random.default_rng(0).random(6, np.float32))
        now = policy.evaluate_actions(torch.from_numpy(seen), torch.from_numpy(chosen))
        assert np.abs(now.logp.detach().numpy() - logp).max() < 1e-5
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("sigma", [0.0, 0.5])
def test_networks_of_values_have_an_encoder_each(sigma: float) -> None:
    space, config = pixels(12, 12, 2), EncodedMlpConfig(hidden=[8], activation="relu")
    both = encoded_spaces(network_spaces(space, TWO), config)
    policy = DqnPolicy(both, config, seed=1, architecture=QArchitecture(sigma=sigma, dueling=True))
    seen = observations(space, 5)
    values = policy.q_values(policy.return_outputs(torch.from_numpy(seen)))
    assert torch.equal(values, policy.q_values(policy.target_return_outputs(torch.from_numpy(seen))))
    assert np.array_equal(policy.numpy_policy().best(seen), values.argmax(1).numpy())
    with torch.no_grad():
        next(policy.values.parameters()).mul_(2.0)
    assert not torch.equal(policy.q_values(policy.return_outputs(torch.from_numpy(seen))), values)
    assert torch.equal(policy.q_values(policy.target_return_outputs(torch.from_numpy(seen))), values)


def test_discrete_sac_acts_by_its_own_encoder() -> None:
    space, config = pixels(12, 12, 2), EncodedMlpConfig(hidden=[8], activation="relu")
    policy = DiscreteSacPolicy(encoded_spaces(network_spaces(space, TWO), config), config, seed=1)
    seen = observations(space, 5)
    best = policy.logp(torch.from_numpy(seen)).argmax(1)
    assert np.array_equal(policy.numpy_policy().best(seen), best.numpy())


def test_pixels_stay_bytes_in_rollouts_and_in_the_replay_buffer() -> None:
    policy = policy_of(LitCorner(12).observation_space)
    world = open_world(GymConfig(id=FILE, num_envs=3, isolation="none", kwargs={"side": 12}), steps=5, seed=0)

    class Acting:
        version = 0
        noise = staticmethod(policy.numpy_policy().noise)
        decide = staticmethod(policy.numpy_policy().decide)

    episodes = world.rollout(Acting())
    world.close()
    buffer = RingBuffer(10)
    buffer.add(episodes.transitions())
    taken = buffer.sample(4, np.random.default_rng(0))
    assert taken.final is not None
    assert {episodes.observations.dtype, taken.observations.dtype, taken.final.dtype} == {np.dtype(np.uint8)}


@pytest.mark.parametrize(
    ("space", "network", "message"),
    [
        (pixels(12, 12, 1), {"encoder": "nature"}, r'network.encoder = "nature": it needs images of at least 36 x 36'),
        (pixels(12, 12, 2), {"encoder": "minigrid"}, "three channels"),
        (pixels(12, 12, 2), {"encoder": "embedding"}, "numbered states"),
        (spaces.Box(0, 1, (3,)), {"encoder": "nature"}, 'observations are 3 numbers; take "auto"'),
        (pixels(12, 12, 2), {"encoders": {"picture": {"kind": "small"}}}, "network.encoders.picture"),
        (pixels(12, 12, 2), {"kwargs": {"width": 3}}, "network.kwargs"),
        (pixels(12, 12, 2), {"module": "absent.py:make"}, "no such file absent.py"),
        (pixels(12, 12, 2), {"module": "absent.py:make", "encoder": "small"}, "leave one of both out"),
    ],
)
def test_what_does_not_fit_is_told(space: spaces.Space[Any], network: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        encoded_spaces(network_spaces(space, TWO), EncodedMlpConfig.model_validate(network))


def test_recipes_without_encoders_refuse_their_keys_and_warn_of_images() -> None:
    env = {"id": FILE, "isolation": "none"}
    with pytest.raises(HoneError, match="neither encoder nor memory"):
        api.train({"recipe": "trpo", "name": "x", "steps": 1, "env": env, "network": {"encoder": "nature"}})


def test_an_embedding_is_a_row_of_its_table() -> None:
    made = encoder_of(spaces.Discrete(6, start=2), encoder="embedding")
    assert made is not None
    table = next(made.parameters())
    assert torch.equal(made(torch.tensor([2, 7])), table[[0, 5]])
    policy = policy_of(spaces.Discrete(6, start=2), encoder="embedding")
    assert policy.numpy_policy().best(np.array([2, 3, 7])).shape == (3,)


# ------------------------------------------------------------------------------------------------- several parts

PARTS = spaces.Dict(
    {"image": pixels(12, 12, 2), "room": spaces.Discrete(100, start=3), "speed": spaces.Box(-1, 1, (2,), np.float32)}
)


def rows_of(count: int) -> tuple[spaces.Space[Any], list[Any], np.ndarray]:
    """The space of rows, observations, and their rows."""
    layout = layout_of(PARTS)
    assert layout is not None
    PARTS.seed(4)
    observations = [PARTS.sample() for _ in range(count)]
    rows = np.zeros((count, layout.row_bytes), np.uint8)
    for row, observation in zip(rows, observations, strict=True):
        layout.write(row[None], observation)
    return RowSpace(layout), observations, rows


def test_each_part_of_an_observation_has_its_encoder(tmp_path: Path) -> None:
    """Features beside those of the parts, each encoded alone and put together by hand."""
    space, shown, rows = rows_of(5)
    policy = policy_of(space)
    spec = policy.spaces.inputs.encoder
    assert spec is not None
    assert [(part.kind, part.features) for part in spec.parts][2] == ("numbers", 2)
    assert policy.spaces.inputs.size == 128 + 16 + 2
    features = policy.encode(torch.from_numpy(rows))
    assert policy.encoder is not None
    image, room, _ = policy.encoder.parts  # pyright: ignore[reportGeneralTypeIssues]
    alone = torch.cat(
        (
            image(torch.from_numpy(np.stack([one["image"] for one in shown]))),
            room(torch.tensor([int(one["room"]) for one in shown])),
            torch.from_numpy(np.stack([one["speed"] for one in shown])),
        ),
        dim=1,
    )
    assert torch.equal(features, alone)
    save_policy(policy, tmp_path)
    loaded = load_policy(tmp_path)
    assert np.array_equal(loaded.numpy_policy().best(rows), policy.numpy_policy().best(rows))


def test_numbers_beside_an_image_are_standardised_and_pixels_are_not() -> None:
    space, shown, rows = rows_of(5)
    policy = policy_of(space)
    inputs = policy.spaces.inputs
    assert inputs.has_scale
    assert inputs.numbers(rows).shape == (5, 2) == (5, inputs.number_size)
    before, image_and_room = policy.encode(torch.from_numpy(rows)), slice(0, 128 + 16)
    moments = np.array([0.5, -0.25]), np.array([2.0, 0.5])
    policy.spaces = replace(policy.spaces, inputs=inputs.with_moments(*moments, limit=1.0))
    after = policy.encode(torch.from_numpy(rows))
    assert torch.equal(before[:, image_and_room], after[:, image_and_room])
    speed = np.stack([one["speed"] for one in shown])
    assert np.allclose(after[:, 144:].detach(), ((speed - moments[0]) / moments[1]).clip(-1.0, 1.0), atol=1e-6)
    assert np.allclose(policy.numpy_policy().inputs.array(rows), after.detach(), atol=1e-6)  # pyright: ignore[reportAttributeAccessIssue]


def test_parts_are_named_by_their_paths() -> None:
    space, _, rows = rows_of(3)
    flat = policy_of(space, encoders={"image": {"kind": "mlp"}, "room": {"kind": "mlp"}})
    assert flat.spaces.inputs.size == 288 + 100 + 2
    assert flat.encode(torch.from_numpy(rows)).shape == (3, 390)
    for network, message in (
        ({"encoders": {"picture": {"kind": "small"}}}, "there is image, room, speed"),
        ({"encoders": {"speed": {"kind": "small"}}}, "this part is 2 numbers"),
        ({"encoders": {"image": {"kind": "nature"}}}, "network.encoders.image.kind"),
    ):
        with pytest.raises(ConfigError, match=message):
            policy_of(space, **network)


def test_a_module_gets_the_parts_by_name(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(NETS_OF_PARTS)
    space, shown, rows = rows_of(3)
    policy = policy_of(space, module=f"{tmp_path / 'nets.py'}:make")
    features = policy.encode(torch.from_numpy(rows)).detach().numpy()
    by_hand = np.stack([np.append(one["speed"], one["image"].mean() / 255.0) for one in shown])
    assert np.allclose(features, by_hand, atol=1e-6)


NETS_OF_PARTS = """
import torch


class Means(torch.nn.Module):
    out_features = 3

    def forward(self, leaves):
        return torch.cat((leaves["speed"], leaves["image"].flatten(1).mean(1, keepdim=True)), 1)


def make(leaves):
    assert leaves == {"image": (12, 12, 2), "room": (100,), "speed": (2,)}, leaves
    return Means()
"""

# ------------------------------------------------------------------------------------------------------ whole runs

NETS = """
import torch
from torch import nn


class Flat(nn.Module):
    def __init__(self, size, width):
        super().__init__()
        self.out_features = width
        self.layer = nn.Linear(size, width)

    def forward(self, leaves):
        return torch.relu(self.layer(leaves["observation"].flatten(1)))


def make(leaves, width=16):
    (shape,) = leaves.values()
    size = 1
    for side in shape:
        size *= side
    return Flat(size, width)
"""


def settings(recipe: str, **tables: Any) -> dict[str, Any]:
    env = {"id": FILE, "num_envs": 4, "isolation": "none", "kwargs": {"side": 8, "steps": 4}}
    run = {"certify": False, "checkpoint_every": 2}
    return {"recipe": recipe, "name": "x", "steps": 4, "run": run, "env": env, "evaluation": {"episodes": 4}, **tables}


@pytest.mark.parametrize(
    ("recipe", "tables"),
    [
        ("ppo", {"rollout_steps": 8, "learner": {"epochs": 2, "lr_decay": "constant"}}),
        (
            "ppo",
            {"rollout_steps": 8, "learner": {"lr_decay": "constant", "epochs": 1}, "algorithm": {"max_staleness": 1}},
        ),
        ("dqn", {"replay": {"warmup": 32, "collect": 4, "batch": 8}, "learner": {"updates_per_iteration": 2}}),
    ],
)
def test_a_resumed_run_on_images_is_the_same_run(tmp_path: Path, recipe: str, tables: dict[str, Any]) -> None:
    whole = api.train(settings(recipe, **tables), runs=tmp_path / "whole")
    api.train(settings(recipe, **tables, steps=2), runs=tmp_path / "half")
    half = api.train(settings(recipe, **tables), runs=tmp_path / "half", resume=True)
    weights = [(run.policy / "model.safetensors").read_bytes() for run in (whole, half)]
    assert weights[0] == weights[1]
    assert api.evaluate(whole.folder) == api.evaluate(half.folder)


def test_a_module_of_the_user_is_kept_with_the_policy(tmp_path: Path) -> None:
    file = tmp_path / "nets.py"
    file.write_text(NETS)
    network = {"module": f"{file}:make", "kwargs": {"width": 9}, "hidden": [8]}
    tables = {"rollout_steps": 8, "learner": {"epochs": 1}, "network": network}
    run = api.train(settings("ppo", **tables), runs=tmp_path / "runs")
    known = json.loads((run.policy / "policy.json").read_text())["inputs"]
    assert (known["size"], known["encoder"]["kind"]) == (9, "module")
    seen = observations(LitCorner(8).observation_space, 5)
    before = load_policy(run.policy).numpy_policy().best(seen)
    file.unlink()
    folder = run.policy
    loaded = load_policy(folder)
    assert np.array_equal(loaded.numpy_policy().best(seen), before)
    save_policy(loaded, tmp_path / "copy")
    assert (tmp_path / "copy" / "module.py").read_text() == NETS
    (folder / "module.py").write_text(NETS + "\n# another\n")
    with pytest.raises(DataError, match="not what was saved"):
        load_policy(folder)


def test_evaluation_says_that_it_ran_code_of_a_policy(tmp_path: Path) -> None:
    from hone.control.evaluate.returns import evaluate_control

    (tmp_path / "nets.py").write_text(NETS)
    policy = policy_of(LitCorner(8).observation_space, module=f"{tmp_path / 'nets.py'}:make")
    save_policy(policy, tmp_path / "policy")
    told: list[str] = []
    config: dict[str, Any] = {"env": {"id": FILE, "isolation": "none", "kwargs": {"side": 8}}}
    evaluate_control(tmp_path / "policy", config=config, episodes=2, seed=0, warn=told.append)
    assert any("module.py" in line for line in told)


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("def make(leaves):\n    return 3\n", UserCodeError, "it returned int"),
        ("def make(leaves):\n    raise ValueError('too small')\n", UserCodeError, "too small"),
        ("import torch\ndef make(leaves):\n    return torch.nn.Flatten()\n", UserCodeError, "out_features"),
        ("import beside\ndef make(leaves):\n    return beside.net()\n", ConfigError, "imports beside.py"),
    ],
)
def test_a_module_that_cannot_serve_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, error: type[HoneError], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text(source)
    Path("beside.py").write_text("")
    with pytest.raises(error, match=message):
        policy_of(pixels(8, 8, 1), module="nets.py:make")
