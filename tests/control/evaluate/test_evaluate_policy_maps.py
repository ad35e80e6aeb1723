"""Policies on grids, and an episode watched: what the map says is what the policy does."""

import io
import struct
import zlib
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from hone.control.environments.make import GymConfig
from hone.control.evaluate.policy_maps import action_probabilities, policy_map
from hone.control.evaluate.video import MAX_FRAMES, FrameRecorder, record_episode
from hone.control.finite.build import mdp_from_gymnasium
from hone.control.finite.solve import value_iteration
from hone.control.networks.actor_critic import ActorCritic, QNetworkPolicy
from hone.control.networks.checkpoint import save_policy
from hone.control.networks.mlp import DiscreteActions, MlpConfig, ObservationInputs, PolicySpaces
from hone.control.tables.tables import ActionTable, StateFeatures, save_table
from hone.core.errors import DataError
from hone.run.report.policy_map import draw_policy_map, text_rows, value_range
from hone.run.store.animation import (
    EpisodeRecording,
    animated_png,
    downscale,
    frame_count,
    read_episode,
    subsample_frames,
    write_episode,
)
from hone.run.store.records import MAP, read_map

WAYS = {"FrozenLake-v1": 16, "CliffWalking-v1": 48, "Taxi-v4": 500}


def solved(folder: Path, name: str, *, discount: float = 0.99, **kwargs) -> dict:
    """A folder with the best table of an environment, and the config of a run that would have found it."""
    mdp = mdp_from_gymnasium(name, discount=discount, options=kwargs)
    table = ActionTable(StateFeatures(count=mdp.states, actions=mdp.actions))
    table.x[:] = mdp.backup(value_iteration(mdp).value).ravel()
    save_table(table, folder)
    return {"env": {"id": name, "kwargs": kwargs}, "algorithm": {"discount": discount}}


def test_a_lake_without_slipping_is_walked_by_the_shortest_way(tmp_path: Path):
    config = solved(tmp_path, "FrozenLake-v1", is_slippery=False)
    found = policy_map(tmp_path, config, step=5)
    (grid,) = found.slices
    assert [cell.mark for cell in grid.cells[:6]] == ["S", " ", " ", " ", " ", "H"]
    assert grid.cells[5].moves == {} and grid.cells[5].worth is None
    assert text_rows(grid)[3] == ["H", "→", "→", "G"] and text_rows(grid)[2][:2] == ["→", "↓"]
    assert set(grid.cells[0].moves) == {"down", "right"}  # both are as short, and both are drawn
    worth = [cell.worth for cell in grid.cells]
    assert worth[14] == pytest.approx(1.0) and worth[0] == pytest.approx(0.99**5) and value_range(found)[1] == worth[14]
    MAP.write(tmp_path, found)
    assert read_map(tmp_path) == found
    drawing = draw_policy_map(found)
    assert drawing.count("<rect") == 16 and "the value of its best action" in drawing and 'class="arrow"' in drawing


def test_the_cliff_is_walked_along(tmp_path: Path):
    grid = policy_map(tmp_path, solved(tmp_path, "CliffWalking-v1"), step=1).slices[0]
    rows = text_rows(grid)
    assert rows[2][:11] == ["→"] * 11 and rows[2][11] == "↓" and rows[3] == ["↑", *"CCCCCCCCCCG"]


def test_a_taxi_has_a_map_for_each_errand(tmp_path: Path):
    found = policy_map(tmp_path, solved(tmp_path, "Taxi-v4"), step=1)
    assert len(found.slices) == 16
    named = {grid.title: grid for grid in found.slices}
    assert max(map(len, named)) <= 25  # captions of one line above grids of 200 pixels: those below stand level
    waiting = named["waits at red, to blue"]
    assert next(iter(waiting.cells[0].moves)) == "pick up" and text_rows(waiting)[0][0] == "P"
    riding = named["rides, to green"]
    assert next(iter(riding.cells[4].moves)) == "drop off"


def test_every_state_is_drawn_once(tmp_path: Path):
    for name, states in WAYS.items():
        folder = tmp_path / name
        found = policy_map(folder, solved(folder, name), step=1)
        cells = sum(len(grid.cells) for grid in found.slices)
        assert cells == (16 * 25 if name.startswith("Taxi") else states)  # a taxi whose errand is done is not drawn


def spaces_of(states: int, actions: int) -> PolicySpaces:
    return PolicySpaces(inputs=ObservationInputs(size=states, one_hot=True), actions=DiscreteActions(count=actions))


def test_networks_say_what_they_do_and_expect(tmp_path: Path):
    config = {"env": {"id": "FrozenLake-v1"}}
    actor = ActorCritic(spaces_of(16, 4), MlpConfig(hidden=[8]), seed=1)
    save_policy(actor, tmp_path / "a")
    found = policy_map(tmp_path / "a", config, step=1)
    assert found.worth_is == "the value of its critic"
    shares = action_probabilities(actor, np.arange(16), 4)
    assert shares.sum(axis=1) == pytest.approx(np.ones(16))
    logp = [actor.numpy_policy().decide(np.array([3]), np.array([k / 50], np.float32)) for k in range(50)]
    assert {int(chosen[0]): float(np.exp(said[0])) for chosen, said in logp} == pytest.approx(
        dict(enumerate(shares[3])), rel=1e-4
    )
    assert sum(found.slices[0].cells[3].moves.values()) == pytest.approx(1.0, abs=0.01)
    values = QNetworkPolicy(spaces_of(16, 4), MlpConfig(hidden=[8]), seed=1)
    save_policy(values, tmp_path / "v")
    assert policy_map(tmp_path / "v", config, step=1).worth_is == "the value of its best action"
    blind = ActorCritic(spaces_of(16, 4), MlpConfig(hidden=[8]), seed=1, critic=False)
    save_policy(blind, tmp_path / "b")
    assert "the exact value of the policy (discount 0.99)" in policy_map(tmp_path / "b", config, step=1).worth_is


def test_maps_of_files_and_our_own_grids(tmp_path: Path):
    table = ActionTable(StateFeatures(count=9, actions=4))
    save_table(table, tmp_path)
    world = {"kind": "grid", "rows": ["S.G", ".#.", "..."], "rewards": {"G": 1.0}}
    (grid,) = policy_map(tmp_path, {"finite": {"world": world}}, step=1).slices
    assert [cell.mark for cell in grid.cells] == ["S", " ", "G", " ", "#", " ", " ", " ", " "]
    assert grid.cells[4].moves == {} and len(grid.cells[0].moves) == 4  # nothing learned: all are alike
    assert text_rows(grid) == [["+", "+", "G"], ["+", "#", "+"], ["+", "+", "+"]]
    rooms = {"env": {"id": "hone/FourRooms-v0"}}
    save_table(ActionTable(StateFeatures(count=169, actions=4)), tmp_path / "rooms")
    assert policy_map(tmp_path / "rooms", rooms, step=1).slices[0].cells[0].mark == "#"


def test_what_is_no_grid_is_refused(tmp_path: Path):
    save_policy(ActorCritic(spaces_of(16, 4), MlpConfig(hidden=[8]), seed=1), tmp_path)
    for config in ({"env": {"id": "CartPole-v1"}}, {"finite": {"world": {"kind": "chain"}}}, {}):
        with pytest.raises(DataError, match="not a supported grid"):
            policy_map(tmp_path, config, step=1)
    with pytest.raises(DataError, match=r"the policy does not fit the 48 states"):
        policy_map(tmp_path, {"env": {"id": "CliffWalking-v1"}}, step=1)


# ------------------------------------------------------------------------------------------ frames


def test_an_animation_is_one_that_others_can_read():
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, size=(5, 7, 9, 3), dtype=np.uint8)
    png = animated_png(frames, frame_s=0.25)
    assert np.array_equal(decoded(png), frames) and frame_count(png) == 5
    pillow = pytest.importorskip("PIL.Image")
    with pillow.open(io.BytesIO(png)) as picture:
        assert picture.n_frames == 5 and picture.info["duration"] == 250.0
        for place in range(5):
            picture.seek(place)
            assert np.array_equal(np.asarray(picture.convert("RGB")), frames[place])


def decoded(png: bytes) -> np.ndarray:
    """The frames, by a slow reading of the file; every checksum is looked at."""
    at, frames, width = 8, [], 0
    while at < len(png):
        (size,), kind = struct.unpack(">I", png[at : at + 4]), png[at + 4 : at + 8]
        data, (checksum,) = png[at + 8 : at + 8 + size], struct.unpack(">I", png[at + 8 + size : at + 12 + size])
        assert zlib.crc32(kind + data) == checksum
        at += 12 + size
        if kind == b"IHDR":
            width = struct.unpack(">I", data[:4])[0]
        if kind in (b"IDAT", b"fdAT"):
            packed = zlib.decompress(data if kind == b"IDAT" else data[4:])
            lines = np.frombuffer(packed, np.uint8).reshape(-1, 1 + 3 * width)
            assert (lines[:, 0] == 2).all()
            frames.append(np.cumsum(lines[:, 1:], axis=0, dtype=np.uint8).reshape(-1, width, 3))
    return np.stack(frames)


def test_frames_are_shrunk_by_whole_blocks_and_thinned_evenly():
    frame = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    small = downscale(frame, width=3)
    assert small.shape == (2, 3, 3) and small[0, 0, 0] == int(frame[:2, :2, 0].mean())
    assert downscale(frame, width=6) is frame
    assert [int(one[0, 0, 0]) for one in subsample_frames([np.full((1, 1, 3), k, np.uint8) for k in range(9)], 3)] == [
        0,
        4,
        8,
    ]


def test_a_long_film_keeps_fewer_frames_and_all_of_its_length():
    count = iter(range(100_000))
    film = FrameRecorder(lambda: np.full((2, 2, 3), next(count) % 256, np.uint8))
    for step in range(1000):
        film.observe(step)
    assert MAX_FRAMES <= len(film.frames) < 2 * MAX_FRAMES and film.stride == 16


class Still(gymnasium.Env):
    """Three steps in front of a white wall."""

    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode=None, broken=False):
        self.observation_space, self.action_space = gymnasium.spaces.Discrete(16), gymnasium.spaces.Discrete(4)
        self.render_mode, self.broken, self.step_number = render_mode, broken, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_number = 0
        return 0, {}

    def step(self, action):
        self.step_number += 1
        return self.step_number, 1.0, self.step_number == 3, False, {}

    def render(self):
        if self.broken:
            raise RuntimeError("no light")
        return np.full((4, 4, 3), 250 + self.step_number, np.uint8)


@pytest.fixture
def still():
    gymnasium.register("Still-v0", entry_point=Still)
    yield
    del gymnasium.registry["Still-v0"]


def test_an_episode_is_watched_and_kept(still, tmp_path: Path):
    policy = QNetworkPolicy(spaces_of(16, 4), MlpConfig(hidden=[4]), seed=0)
    about, png = record_episode(policy, GymConfig(id="Still-v0"), seed=0, step=9)
    assert (about.score, about.steps, about.step) == (3.0, 3, 9) and png is not None and frame_count(png) == 4
    write_episode(tmp_path, about, png)
    assert read_episode(tmp_path) == (about, png)
    about, png = record_episode(policy, GymConfig(id="Still-v0", kwargs={"broken": True}), seed=0, step=9)
    assert png is None and "RuntimeError: no light" in about.note
    write_episode(tmp_path, about, png)
    kept = read_episode(tmp_path)
    assert kept is not None and kept[1] is None and kept[0].note == about.note


def test_why_there_is_no_picture_is_said(tmp_path: Path):
    policy = QNetworkPolicy(spaces_of(16, 4), MlpConfig(hidden=[4]), seed=0)
    worlds = ("hone/BanditTrials-v0", "hone/BitFlip-v0")
    for name in worlds:  # they have no renderer: that is said, and no error of a constructor's
        about, png = record_episode(policy, GymConfig(id=name), seed=0, step=1)
        assert png is None and about.note == f"{name} cannot render (rgb_array is not among its render modes)"
    assert read_episode(tmp_path) is None
    write_episode(tmp_path, EpisodeRecording(step=1, score=1.0, steps=2), b"GIF89a")
    with pytest.raises(DataError, match="is not a PNG file"):
        read_episode(tmp_path)
