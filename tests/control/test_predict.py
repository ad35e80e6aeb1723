"""`hone.api.load`: one observation or a batch, memory in and out, actions within their box, for every kind saved."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from control_policies import SEEN, control_policies, legal, observations
from gymnasium import spaces

import hone.api
from hone.control.environments.layout import ActionRowSpace, RowSpace, action_leaves, layout_of
from hone.control.networks.actor_critic import ActorCritic
from hone.control.networks.checkpoint import _POLICY_KINDS, save_policy
from hone.control.networks.mlp import BoxActions, DiscreteActions, MlpConfig
from hone.control.predict import SavedPolicy, open_saved_policy
from hone.control.spaces import network_spaces
from hone.control.tables.tables import ActionTable, StateFeatures, StateValues, make_tile_coder, save_table
from hone.core.errors import ConfigError, DataError

POLICIES = control_policies()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SavedPolicy]:
    root = tmp_path_factory.mktemp("policies")
    for name, policy in POLICIES.items():
        save_policy(policy, root / name)
    return {name: open_saved_policy(root / name) for name in POLICIES}


def test_every_kind_that_is_saved_is_here() -> None:
    seats = {"central_actor_critic", "team_values", "seat_policies", "policy_value", "information_sets"}  # of matches
    assert {policy.kind for policy in POLICIES.values()} == set(_POLICY_KINDS) - seats


@pytest.mark.parametrize("name", POLICIES)
def test_a_batch_is_what_evaluations_do_and_one_observation_is_a_row_of_it(
    saved: dict[str, SavedPolicy], name: str
) -> None:
    policy, loaded = POLICIES[name], saved[name]
    seen = observations(policy, 6)
    mask = legal(policy, 6)
    expected = policy.numpy_policy().best(seen, mask)
    if isinstance(loaded.actions, BoxActions):
        low, high = (np.reshape(side, loaded.actions.shape) for side in (loaded.actions.low, loaded.actions.high))
        expected = expected.clip(low, high)
    chosen, state = loaded.predict(seen, mask=mask)
    np.testing.assert_array_equal(chosen, expected)
    assert (state is not None) == (loaded.has_memory and name != "planner")  # one that is not fitted makes no plan
    one, _ = loaded.predict(seen[0], mask=None if mask is None else mask[0])
    assert np.shape(one) == (() if isinstance(loaded.actions, DiscreteActions) else loaded.actions.shape)
    np.testing.assert_allclose(one, chosen[0], atol=1e-5)
    lists, _ = loaded.predict(seen.tolist(), mask=None if mask is None else mask.tolist())
    np.testing.assert_allclose(lists, chosen, atol=1e-5)


def test_chance_is_an_argument(saved: dict[str, SavedPolicy]) -> None:
    seen = np.repeat(observations(POLICIES["ppo choices"], 1), 4000, axis=0)
    first, second, other = (saved["ppo choices"].predict(seen, deterministic=False, seed=seed)[0] for seed in (3, 3, 4))
    assert (first == second).all() and (first != other).any()
    policy = POLICIES["ppo choices"].numpy_policy()
    logp = policy.decide(seen, np.full(len(seen), 0.5, np.float32))
    share = np.exp(logp[1][0])  # of the action in the middle
    assert abs((first == logp[0][0]).mean() - share) < 4 * np.sqrt(share * (1 - share) / 4000)
    drawn, again = (saved["ppo choices"].predict(seen, deterministic=False)[0] for _ in range(2))
    assert (drawn != again).any()


def test_memory_goes_in_and_out_and_is_forgotten_by_row(saved: dict[str, SavedPolicy]) -> None:
    loaded = saved["recurrent"]
    draws = np.random.default_rng(1)
    episode = draws.normal(size=(5, 2, SEEN)).astype(np.float32)
    episode[:, :, 0] = 0.0  # no row flags a new trial
    whole = POLICIES["recurrent"].numpy_policy()
    expected = [whole.best(row) for row in episode]
    state, seen = None, []
    for row in episode:
        loaded.predict(np.ones(SEEN))  # somebody else's observation between two of ours changes nothing
        chosen, state = loaded.predict(row, state)
        seen.append(chosen)
    np.testing.assert_array_equal(seen, expected)
    fresh, _ = loaded.predict(episode[0], state, episode_start=[True, True])
    np.testing.assert_array_equal(fresh, expected[0])
    _, mixed = loaded.predict(episode[0], state, episode_start=[False, True])
    _, kept = loaded.predict(episode[0], state)
    _, begun = loaded.predict(episode[0])
    assert mixed is not None and kept is not None and begun is not None
    np.testing.assert_allclose(mixed, [kept[0], begun[1]], atol=1e-6)


def test_options_go_on_by_their_state(saved: dict[str, SavedPolicy]) -> None:
    loaded, seen = saved["option critic"], observations(POLICIES["option critic"], 3)
    _, state = loaded.predict(seen)
    assert state is not None and state.dtype.kind == "i" and (state >= 0).all()
    one, after = loaded.predict(seen, state)
    two, _ = loaded.predict(seen, state)
    np.testing.assert_array_equal(one, two)
    assert after is not None
    with pytest.raises(ConfigError, match="by its mode only"):
        loaded.predict(seen, deterministic=False)


def test_a_planner_is_a_function_of_its_arguments(saved: dict[str, SavedPolicy]) -> None:
    loaded, seen = saved["planner"], observations(POLICIES["planner"], 2)
    np.testing.assert_array_equal(loaded.predict(seen)[0], loaded.predict(seen)[0])


@pytest.mark.parametrize(
    ("observation", "words"),
    [
        ((np.zeros(SEEN), {}), "pass the observation alone"),
        ({"x": 1.0}, r"a dictionary with \['x'\], expected 4 numbers"),
        (np.zeros(3), r"an array \[3\] of 3 numbers, expected 4 numbers, or rows of them \[n, 4\]"),
        (np.zeros((2, 3)), r"an array \[2, 3\] of 6 numbers"),
        ([[0.0] * 4, [0.0] * 3], "different shapes"),
        (["a", "b", "c", "d"], "type <U1"),
        ([[0.0, 0.0, np.nan, 0.0]], r"observation 0 is not finite at \[2\]: nan"),
    ],
)
def test_what_is_no_observation_is_refused(saved: dict[str, SavedPolicy], observation: object, words: str) -> None:
    with pytest.raises(DataError, match=words):
        saved["ppo choices"].predict(observation)  # pyright: ignore[reportArgumentType]


def test_arguments_that_do_not_fit_are_refused(saved: dict[str, SavedPolicy]) -> None:
    seen = observations(POLICIES["recurrent"], 2)
    for arguments, words in (
        ({"state": np.zeros((3, 8))}, r"state is of shape \[3, 8\], and there are 2 observations"),
        ({"state": np.zeros((2, 8)), "episode_start": [True]}, "episode_start has 1 flags"),
    ):
        with pytest.raises(DataError, match=words):
            saved["recurrent"].predict(seen, **arguments)
    with pytest.raises(DataError, match="has no memory"):
        saved["sac"].predict(seen, state=np.zeros((2, 8)))
    with pytest.raises(ConfigError, match="takes no masks"):
        saved["sac"].predict(seen, mask=[True, False, True])
    with pytest.raises(ConfigError, match="takes legal actions only; give mask, 3 flags"):
        saved["ppo masked"].predict(seen)
    for mask, words in (
        ([True, False], r"mask is of bool \[2\], expected \[2, 3\] flags"),
        ([[1, 0, 0], [0, 0, 0]], "mask leaves observation 1 no action"),
        ([[0.5] * 3] * 2, r"mask is of float64 \[2, 3\]"),
    ):
        with pytest.raises(DataError, match=words):
            saved["ppo masked"].predict(seen, mask=mask)
    only, _ = saved["dqn"].predict(seen, mask=[[0, 1, 0], [0, 0, 1]])  # one that was trained without obeys a mask, too
    assert only.tolist() == [2, 3]
    many = np.repeat(seen[:1], 2000, axis=0)
    drawn, _ = saved["ppo masked"].predict(many, mask=[[1, 0, 1]] * 2000, deterministic=False, seed=0)
    assert set(drawn.tolist()) == {1, 3}
    for state in (1, 6, 2.5):
        with pytest.raises(DataError, match="the number of a state, 2 to 5"):
            saved["ppo states"].predict(state)
    assert saved["ppo states"].predict(3.0)[0] in range(1, 4)


def test_tables_act_too(tmp_path: Path) -> None:
    table = ActionTable(StateFeatures(count=3, actions=2, first=5), first_action=10)
    table.x[:] = [0.0, 1.0, 2.0, 1.0, 0.0, 3.0]
    save_table(table, tmp_path / "table")
    loaded = hone.api.load(tmp_path / "table")
    assert loaded.predict(np.array([5, 6, 7]))[0].tolist() == [11, 10, 11]
    assert loaded.predict(6) == (10, None)
    tiles = ActionTable(make_tile_coder([0.0, 0.0], [1.0, 1.0], tilings=2, bins=2, actions=2))
    tiles.x[:] = np.random.default_rng(0).normal(size=len(tiles.x))
    save_table(tiles, tmp_path / "tiles")
    seen = np.random.default_rng(1).random((4, 2))
    np.testing.assert_array_equal(hone.api.load(tmp_path / "tiles").predict(seen)[0], tiles.numpy_policy().best(seen))
    save_table(StateValues(np.array([[0.0, 1.0], [1.0, 0.0]])), tmp_path / "values")
    assert hone.api.load(tmp_path / "values").predict([0, 1])[0].tolist() == [1, 0]


def test_a_run_is_loaded_by_its_folder_and_a_language_model_is_not(tmp_path: Path) -> None:
    config = {"recipe": "ppo", "steps": 1, "rollout_steps": 8, "env": {"id": "CartPole-v1", "num_envs": 2}}
    run = hone.api.train({**config, "name": "pole", "evaluation": {"episodes": 1}}, runs=tmp_path)
    loaded = hone.api.load(run)
    assert (loaded.observation.count, loaded.actions) == (4, DiscreteActions(count=2))
    assert hone.api.load("pole", runs=tmp_path).predict(np.zeros(4))[0] == loaded.predict(np.zeros(4))[0]
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="is a language model: "):
        hone.api.load(tmp_path / "model")


SEEN_PARTS = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (2, 2), np.uint8),
        "gear": spaces.Discrete(3, start=1),
        "pose": spaces.Tuple((spaces.Box(-1, 1, (2,), np.float32), spaces.MultiBinary(2))),
    }
)
TAKEN_PARTS = spaces.Dict({"pedal": spaces.Box(-0.1, 0.1, (2,), np.float32), "turn": spaces.MultiDiscrete([3, 2])})


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[SavedPolicy, ActorCritic]:
    layout, leaves = layout_of(SEEN_PARTS), action_leaves(TAKEN_PARTS)
    assert layout is not None and leaves is not None
    policy = ActorCritic(network_spaces(RowSpace(layout), ActionRowSpace(leaves)), MlpConfig(hidden=[8]), seed=0)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.3)
    folder = tmp_path_factory.mktemp("parts")
    save_policy(policy, folder)
    return open_saved_policy(folder), policy


def test_dictionaries_go_in_as_they_are(parts: tuple[SavedPolicy, ActorCritic]) -> None:
    saved, policy = parts
    SEEN_PARTS.seed(3)
    seen = [SEEN_PARTS.sample() for _ in range(4)]
    layout = layout_of(SEEN_PARTS)
    assert layout is not None
    rows = np.zeros((4, layout.row_bytes), np.uint8)
    for number, one in enumerate(seen):
        layout.write(rows[number : number + 1], one)
    expected = policy.numpy_policy().best(rows)
    expected[:, :2] = expected[:, :2].clip(-0.1, 0.1)
    batch = {
        "camera": np.stack([one["camera"] for one in seen]),
        "gear": np.array([one["gear"] for one in seen]),
        "pose": tuple(np.stack([one["pose"][place] for one in seen]) for place in (0, 1)),
    }
    for given in (seen, batch):
        np.testing.assert_array_equal(saved.predict(given)[0], expected)  # pyright: ignore[reportArgumentType]
    np.testing.assert_allclose(saved.predict(seen[0])[0], expected[0], atol=1e-6)
    assert (np.abs(expected[:, :2]) <= 0.1).all() and set(expected[:, 2]) <= {0, 1, 2}
    drawn = [saved.predict(seen[0], deterministic=False, seed=5)[0].tolist() for _ in range(2)]
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"gear": None}, "the observation has no part 'gear'"),
        ({"camera": np.zeros((3, 2))}, "the leaf 'camera' of the observation has shape"),
        ({"pose": (np.array([np.nan, 0.0]), np.zeros(2))}, "the leaf 'pose.0' of the observation is not finite"),
    ],
)
def test_parts_that_do_not_fit_are_named(
    parts: tuple[SavedPolicy, ActorCritic], change: dict[str, Any], words: str
) -> None:
    seen = {**SEEN_PARTS.sample(), **change}
    with pytest.raises(DataError, match=words):
        parts[0].predict({name: value for name, value in seen.items() if value is not None})  # pyright: ignore[reportArgumentType]
    with pytest.raises(DataError, match="pass the observation alone"):
        parts[0].predict((SEEN_PARTS.sample(), {}))
    with pytest.raises(DataError, match="expected a dictionary or tuple"):
        parts[0].predict(np.zeros(9))


def test_masks_of_factors_leave_a_choice_in_each(parts: tuple[SavedPolicy, ActorCritic]) -> None:
    saved, _ = parts
    seen = SEEN_PARTS.sample()
    action, _ = saved.predict(seen, mask=[0, 1, 0, 0, 1])
    assert action[2:].tolist() == [1, 1]
    with pytest.raises(DataError, match="mask leaves observation 0 no action"):
        saved.predict(seen, mask=[1, 1, 1, 0, 0])
