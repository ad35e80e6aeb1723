"""Logs on disk: what was written is read back, and what is wrong is said."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from hone.control.logs.minari import flat_observations, space_from_minari, space_to_minari, write_minari
from hone.control.logs.parquet import BehaviourLog, joined_logs, read_log, write_log
from hone.core.episodes import Episodes
from hone.core.errors import DataError
from hone.core.ragged import offsets_of
from hone.recipes.offline import bc

BOX = spaces.Box(-5, 5, (2,), np.float32)


def log(*, box: bool, one_hot: bool = False) -> BehaviourLog:
    rng = np.random.default_rng(0)
    lengths = np.array([3, 1, 4])
    count, total = 3, 8
    episodes = Episodes(
        offsets=offsets_of(lengths),
        seen=rng.integers(0, 6, total) if one_hot else rng.normal(size=(total, 2)).astype(np.float32),
        chosen=rng.uniform(-1, 1, (total, 1)).astype(np.float32) if box else rng.integers(0, 3, total),
        logp=rng.normal(size=total).astype(np.float32),
        version=np.arange(total, dtype=np.int32),
        reward=rng.normal(size=total).astype(np.float32),
        group=np.array([7, 7, 9]),
        terminated=np.array([False, True, False]),
        truncated=np.array([False, False, True]),
        final=rng.integers(0, 6, count) if one_hot else rng.normal(size=(count, 2)).astype(np.float32),
        score=rng.normal(size=count),
        status=np.zeros(count, np.uint8),
    )
    action = spaces.Box(-1, 1, (1,), np.float32) if box else spaces.Discrete(3)
    return BehaviourLog(
        episodes=episodes, observation_space=spaces.Discrete(6) if one_hot else BOX, action_space=action
    )


def same(one: Episodes, other: Episodes, names: list[str]) -> None:
    for name in names:
        here, there = object.__getattribute__(one, name), object.__getattribute__(other, name)
        np.testing.assert_array_equal(here, there, err_msg=name)
        assert here is None or here.dtype == there.dtype, name


ALL = list(Episodes.__dataclass_fields__)


@pytest.mark.parametrize(("box", "one_hot"), [(False, False), (True, False), (False, True)])
def test_parquet_gives_back_what_was_written(box: bool, one_hot: bool, tmp_path: Path) -> None:
    written = log(box=box, one_hot=one_hot)
    write_log(tmp_path / "log.parquet", written)
    read = read_log(tmp_path / "log.parquet")
    same(read.episodes, written.episodes, ALL)
    assert read.observation_space == written.observation_space
    assert read.action_space == written.action_space


@pytest.mark.parametrize("box", [False, True])
def test_minari_gives_back_what_was_written(box: bool, tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    written = log(box=box)
    write_minari(
        tmp_path, written.episodes, space_to_minari(written.observation_space), space_to_minari(written.action_space)
    )
    for place in (tmp_path, tmp_path / "data", tmp_path / "data" / "main_data.hdf5"):
        read = read_log(place)
        same(
            read.episodes, written.episodes, ["offsets", "seen", "chosen", "reward", "terminated", "truncated", "final"]
        )
        np.testing.assert_array_equal(read.episodes.logp, written.episodes.logp)
        assert read.action_space == written.action_space


def test_infinite_bounds_survive_the_text() -> None:
    space = spaces.Box(np.array([-np.inf, 0], np.float32), np.array([np.inf, 1], np.float32))
    assert space_from_minari(json.loads(json.dumps(space_to_minari(space))), Path("x")) == space


def test_faults_name_the_file_and_the_row(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    with pytest.raises(DataError, match=r"log.parquet: there is no such file"):
        read_log(path)
    path.write_bytes(b"PAR1 torn")
    with pytest.raises(DataError, match="not a complete parquet file"):
        read_log(path)
    pq.write_table(pa.table({"episode": [0], "reward": [1.0]}), path)
    with pytest.raises(DataError, match="no column observation, action, terminated"):
        read_log(path)
    written = log(box=True)
    written.episodes.chosen[5] = 3.0
    written.episodes.reward[2] = np.nan
    write_log(path, written)
    with pytest.raises(DataError) as caught:
        read_log(path)
    assert "1 rows with reward not finite; the first is row 2" in caught.value.messages[0]
    assert "1 actions outside" in caught.value.messages[1]
    assert "[3.0] in row 5" in caught.value.messages[1]
    table = pq.read_table(path)
    pq.write_table(table.set_column(table.column_names.index("final"), "final", pa.nulls(8, table["final"].type)), path)
    with pytest.raises(DataError, match="row 2 is the last of its episode and has no `final`"):
        read_log(path)
    pq.write_table(table.replace_schema_metadata({}), path)
    with pytest.raises(DataError, match="no spaces"):
        read_log(path)


def test_minari_itself_reads_what_was_written_and_is_read(tmp_path: Path) -> None:
    """In an environment that has Minari; its own files, which know no log-probabilities, come back as well."""
    minari = pytest.importorskip("minari")
    written = log(box=True)
    write_log(tmp_path / "tiny-v0", written)
    there = minari.MinariDataset(tmp_path / "tiny-v0" / "data")
    assert (there.total_episodes, there.total_steps) == (3, 8)
    assert there.spec.dataset_id == "tiny-v0"
    assert there.action_space == written.action_space
    assert there.observation_space == written.observation_space
    for number, episode in enumerate(there.iterate_episodes()):
        one = written.episodes.take(np.array([number]))
        assert one.final is not None
        np.testing.assert_array_equal(episode.actions, one.chosen)
        np.testing.assert_array_equal(episode.observations[-1], one.final[0])
        assert bool(episode.terminations[-1]) == bool(one.terminated[0])
        assert bool(episode.truncations[-1]) == bool(one.truncated[0])
    buffers = [
        minari.data_collector.EpisodeBuffer(
            observations=episode.observations, actions=episode.actions, rewards=list(episode.rewards),
            terminations=list(episode.terminations), truncations=list(episode.truncations),
        )
        for episode in there.iterate_episodes()
    ]  # fmt: skip
    (tmp_path / "theirs").mkdir()
    storage = minari.dataset.minari_storage.MinariStorage.new(
        tmp_path / "theirs", observation_space=written.observation_space, action_space=written.action_space
    )
    storage.update_episodes(buffers)
    read = read_log(tmp_path / "theirs")
    same(read.episodes, written.episodes, ["offsets", "seen", "chosen", "reward", "terminated", "truncated", "final"])
    assert np.isnan(read.episodes.logp).all()


def test_a_minari_data_set_of_another_kind_says_so(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    place = tmp_path / "data"
    place.mkdir()
    (place / "metadata.json").write_text('{"data_format": "arrow"}', encoding="utf-8")
    with pytest.raises(DataError, match=r"the format 'arrow', only 'hdf5' is supported"):
        read_log(tmp_path)
    (place / "metadata.json").write_text("{", encoding="utf-8")
    write_minari(tmp_path, log(box=True).episodes, space_to_minari(BOX), space_to_minari(BOX))
    with h5py.File(place / "main_data.hdf5", "a") as file:
        del file["episode_1/observations"]
        file["episode_1/observations/left"] = np.zeros(2)
    with pytest.raises(DataError, match="episode_1: observations are groups of parts, and"):
        read_log(tmp_path)
    (place / "metadata.json").write_text("[1]", encoding="utf-8")
    with pytest.raises(DataError, match=r"expected an object with observation_space"):
        read_log(tmp_path)


# --------------------------------------------------------------------------------------- several parts, several logs

GOAL = (spaces.Discrete(3, start=1), spaces.Box(-1, 1, (2,), np.float32))
PARTS = spaces.Dict({
    "goal": spaces.Tuple(GOAL),
    "arm": spaces.Box(-9, 9, (2, 2), np.float64),
})  # fmt: skip
NOTATION = {
    "type": "Dict",
    "subspaces": {
        "arm": space_to_minari(PARTS["arm"]),
        "goal": {"type": "Tuple", "subspaces": [space_to_minari(part) for part in GOAL]},
    },
}


def put(group: Any, space: Any, values: list[Any]) -> None:
    """Write observations as Minari does: a group a Dict or a Tuple, a dataset a leaf."""
    if isinstance(space, spaces.Dict):
        for name, part in space.spaces.items():
            into = group.require_group(name) if isinstance(part, spaces.Dict | spaces.Tuple) else group
            if into is group:
                group[name] = np.array([value[name] for value in values])
            else:
                put(into, part, [value[name] for value in values])
        return
    for number, _ in enumerate(space.spaces):
        group[f"_index_{number}"] = np.array([value[number] for value in values])


def parts_data(folder: Path, lengths: tuple[int, ...] = (2, 3)) -> list[list[Any]]:
    """A data set of Minari with observations of several parts; the observations of each episode."""
    h5py = pytest.importorskip("h5py")
    folder.mkdir(exist_ok=True)
    PARTS.seed(3)
    told = {"observation_space": json.dumps(NOTATION), "action_space": json.dumps(space_to_minari(spaces.Discrete(2)))}
    (folder / "metadata.json").write_text(json.dumps(told), encoding="utf-8")
    seen = [[PARTS.sample() for _ in range(length + 1)] for length in lengths]
    with h5py.File(folder / "main_data.hdf5", "w") as file:
        for number, length in enumerate(lengths):
            group = file.create_group(f"episode_{number}")
            put(group.create_group("observations"), PARTS, seen[number])
            group["actions"], group["rewards"] = np.zeros(length, np.int64), np.ones(length)
            group["terminations"], group["truncations"] = np.arange(length) == length - 1, np.zeros(length, np.bool_)
    return seen


def test_observations_of_several_parts_are_the_rows_of_flatten_observation(tmp_path: Path) -> None:
    """Against Gymnasium's own flattening, one by one."""
    seen = parts_data(tmp_path)
    log = read_log(tmp_path)
    slow = [[np.asarray(spaces.flatten(PARTS, one)) for one in episode] for episode in seen]
    np.testing.assert_array_equal(log.episodes.observations, np.concatenate([rows[:-1] for rows in slow]))
    np.testing.assert_array_equal(log.episodes.final, np.stack([rows[-1] for rows in slow]))
    assert log.observation_space == spaces.flatten_space(PARTS)
    assert 'env.wrappers = ["FlattenObservation"]' in log.notes[0]


def test_a_part_by_hand() -> None:
    held = {"arm": np.arange(8.0).reshape(2, 2, 2), "goal": {"_index_0": np.array([3, 1]), "_index_1": np.ones((2, 2))}}
    assert flat_observations(PARTS, held, 2).tolist() == [[0, 1, 2, 3, 0, 0, 1, 1, 1], [4, 5, 6, 7, 1, 0, 0, 1, 1]]


def test_faults_of_episodes_name_episode_part_and_row_all_at_once(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    parts_data(tmp_path, (2, 3, 2, 2))
    with h5py.File(tmp_path / "main_data.hdf5", "a") as file:
        file["episode_0/observations/goal/_index_0"][1] = 4
        del file["episode_1/observations/arm"]
        file["episode_2/rewards"][1] = np.nan
        file["episode_3/observations/arm"][0, 1, 1] = np.inf
    with pytest.raises(DataError) as caught:
        read_log(tmp_path)
    place = tmp_path / "main_data.hdf5"
    assert caught.value.messages == (
        f"{place}: episode_0: observations: goal: _index_0: row 1 is 4, outside Discrete(3, start=1)",
        f"{place}: episode_1: observations: has no arm; it has goal",
        f"{place}: episode_2: 1 rows of rewards are not finite; the first is row 1",
        f"{place}: episode_3: 1 rows of observations are not finite; the first is row 0",
    )
    with h5py.File(tmp_path / "main_data.hdf5", "a") as file:
        for number in range(4, 16):
            file.create_group(f"episode_{number}")
    with pytest.raises(DataError, match="6 further faults"):
        read_log(tmp_path)


def test_several_logs_are_one_with_groups_apart(tmp_path: Path) -> None:
    first, second = log(box=True), log(box=True)
    second.episodes.group[:] = [7, 7, 3]
    both = joined_logs([Path("a"), Path("b")], [first, second])
    assert both.episodes.decisions == 2 * first.episodes.decisions
    np.testing.assert_array_equal(both.episodes.observations[8:], second.episodes.observations)
    groups = both.episodes.group.tolist()
    assert not set(groups[:3]) & set(groups[3:])
    assert groups[3] == groups[4] != groups[5]
    other = log(box=False)
    masked = replace(log(box=True), episodes=replace(first.episodes, mask=np.ones((8, 2), np.bool_)))
    with pytest.raises(DataError) as caught:
        joined_logs([Path("a"), Path("b"), Path("c")], [first, other, masked])
    assert "b: its actions are of Discrete" in caught.value.messages[0]
    assert caught.value.messages[1] == "c: it and a do not both have mask; a column must be in all"


def test_a_recipe_learns_from_several_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_log(tmp_path / f"{name}.parquet", log(box=True))
    given = {"recipe": "bc", "name": "x", "steps": 1, "log": [str(tmp_path / f"{name}.parquet") for name in ("a", "b")]}
    opened = bc.BcConfig.model_validate(given).open()
    assert "6 episodes" in opened.notes[0] and "16 decisions" in opened.notes[0]
    missing = {**given, "log": [str(tmp_path / "a.parquet"), str(tmp_path / "c.parquet"), str(tmp_path / "d.parquet")]}
    with pytest.raises(DataError) as caught:
        bc.BcConfig.model_validate(missing).open()
    first, second = caught.value.messages
    assert "c.parquet: there is" in first
    assert "d.parquet: there is" in second
    with pytest.raises(ValueError, match="at least 1"):
        bc.BcConfig.model_validate({**given, "log": []})
