"""Logs that hone did not write: lists of any kind, and only the columns that a method needs."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny_runs
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from hone.control.logs.parquet import BehaviourLog, read_log, write_log
from hone.core.errors import DataError
from hone.recipes.registry import load_recipe
from hone.run.loop import train

SPACES = (spaces.Box(-5, 5, (2,), np.float32), spaces.Box(-1, 1, (1,), np.float32))
LISTS: dict[str, Any] = {
    "list of floats": lambda rows: pa.array(rows.tolist(), pa.list_(pa.float32())),
    "list of doubles": lambda rows: pa.array(rows.tolist(), pa.list_(pa.float64())),
    "large list": lambda rows: pa.array(rows.tolist(), pa.large_list(pa.float64())),
    "fixed size": lambda rows: pa.array(rows.tolist(), pa.list_(pa.float32(), rows.shape[1])),
    "numpy objects": lambda rows: pa.array(list(rows)),
    "nested": lambda rows: pa.array([[[number] for number in row] for row in rows.tolist()]),
    "chunks": lambda rows: pa.chunked_array([pa.array(rows[:3].tolist()), pa.array(rows[3:].tolist())]),
}


def plain(**changes: Any) -> dict[str, Any]:
    """Three episodes of 3, 1 and 4 decisions: cut, terminated, truncated."""
    rng = np.random.default_rng(0)
    held = {
        "episode": [5, 5, 5, 2, 9, 9, 9, 9],
        "observation": rng.normal(size=(8, 2)).astype(np.float32),
        "action": rng.uniform(-1, 1, (8, 1)).astype(np.float32),
        "reward": np.arange(8.0),
        "terminated": [False] * 3 + [True] + [False] * 4,
    }
    return {**held, **changes}


def written(path: Path, held: dict[str, Any], kind: str = "list of doubles") -> Path:
    columns = {
        name: LISTS[kind](value) if isinstance(value, np.ndarray) and value.ndim == 2 else value
        for name, value in held.items()
        if value is not None
    }
    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize("kind", LISTS)
def test_lists_of_any_kind_are_read(kind: str, tmp_path: Path) -> None:
    held = plain(final=None)
    read = read_log(written(tmp_path / "log.parquet", held, kind), spaces=SPACES).episodes
    kept = [0, 1, 3, 4, 5, 6]  # of the cut and of the truncated episode, what follows the last decision is not known
    np.testing.assert_array_equal(read.observations, held["observation"][kept])
    np.testing.assert_array_equal(read.chosen, held["action"][kept])
    assert read.lengths.tolist() == [2, 1, 3]
    assert read.final is not None
    np.testing.assert_array_equal(read.final, held["observation"][[2, 3, 7]])
    assert read.terminated.tolist() == [False, True, False]
    assert read.truncated.tolist() == [True, False, True]
    assert read.score.tolist() == [3.0, 3.0, 22.0]
    assert np.isnan(read.logp).all()


@given(
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=5), ends=st.lists(st.booleans(), min_size=5, max_size=5)
)
def test_every_transition_that_is_known_is_kept(lengths: list[int], ends: list[bool], tmp_path_factory: Any) -> None:
    """Against a slow walk over the rows."""
    owner = np.repeat(np.arange(len(lengths)), lengths)
    seen = np.arange(len(owner), dtype=np.float32)[:, None] * np.ones(2, np.float32) / 10
    last = np.append(owner[1:] != owner[:-1], True)
    over = last & np.array(ends)[owner]
    wanted = [
        (float(seen[row, 0]), float(seen[row if over[row] else row + 1, 0]), bool(over[row]))
        for row in range(len(owner))
        if over[row] or not last[row]
    ]
    held = plain(
        episode=owner, observation=seen, action=np.zeros((len(owner), 1)), reward=np.zeros(len(owner)), terminated=over
    )
    path = written(tmp_path_factory.mktemp("log") / "log.parquet", held)
    if not wanted:
        with pytest.raises(DataError, match="nothing to learn"):
            read_log(path, spaces=SPACES)
        return
    log = read_log(path, spaces=SPACES)
    single = log.episodes.transitions()
    assert single.final is not None
    found = zip(
        single.observations[:, 0].tolist(), single.final[:, 0].tolist(), single.terminated.tolist(), strict=True
    )
    assert list(found) == wanted
    assert bool(log.notes) == (len(wanted) < len(owner))


def test_a_termination_needs_no_final_observation(tmp_path: Path) -> None:
    final = [None, None, [1.0, 1.0], None, None, None, None, [2.0, 2.0]]
    read = read_log(written(tmp_path / "log.parquet", plain(final=final)), spaces=SPACES).episodes
    assert read.decisions == 8
    assert read.final is not None
    assert read.final[[0, 2]].tolist() == [[1, 1], [2, 2]]
    with pytest.raises(DataError, match="row 7 is the last of its episode and has no `final`"):
        read_log(written(tmp_path / "log.parquet", plain(final=[*final[:-1], None])), spaces=SPACES)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"observation": [[1.0, 2.0]] * 6 + [[1.0]] * 2},
            "2 rows with a wrong count of numbers in observation; .*row 6",
        ),
        ({"observation": [[1.0, 2.0]] * 7 + [None]}, "1 rows with a wrong count of numbers in observation.*row 7"),
        ({"observation": ["a"] * 8}, "column observation is of type string"),
        ({"reward": [1.0] * 7 + [None]}, "row 7 has no reward"),
        ({"episode": [0, 0, 1, 1, 0, 2, 2, 2]}, "row 4 goes on with episode 0"),
        ({"terminated": [True] + [False] * 7}, "row 0 ends its episode, and is not the last"),
        ({"terminated": None}, "no column terminated.*write_log"),
        ({"action": np.full((8, 1), 7.0)}, "8 actions outside"),
    ],
)
def test_faults_of_plain_logs_name_the_row(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said):
        read_log(written(tmp_path / "log.parquet", plain(**changes)), spaces=SPACES)


def test_final_observations_are_finite_where_they_are_used(tmp_path: Path) -> None:
    final = [None, None, [1.0, 1.0], [np.nan, 0.0], None, None, None, [2.0, 2.0]]
    read = read_log(written(tmp_path / "log.parquet", plain(final=final)), spaces=SPACES).episodes
    assert read.final is not None
    assert (read.final[1] == read.observations[3]).all()
    with pytest.raises(DataError, match="1 final observations not finite; the first is after row 2"):
        read_log(written(tmp_path / "log.parquet", plain(final=[None, None, [np.inf, 1.0], *final[3:]])), spaces=SPACES)


def test_numbered_actions_are_whole(tmp_path: Path) -> None:
    numbered = (SPACES[0], spaces.Discrete(3))
    path = written(tmp_path / "log.parquet", plain(action=[0, 1, 2, 0, 1, 2, 0, 1]))
    assert read_log(path, spaces=numbered).episodes.chosen.dtype == np.int64
    path = written(tmp_path / "log.parquet", plain(action=[0, 1.5, 2, 0, 1, 2, 0, 1]))
    with pytest.raises(DataError, match=r"row 1: action is 1.5; it must be a whole number"):
        read_log(path, spaces=numbered)


def test_without_spaces_the_way_to_name_them_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no spaces.*write_log.*\[env\]"):
        read_log(written(tmp_path / "log.parquet", plain()))


PENDULUM = {
    "episode": np.repeat([0, 1], 20),
    "observation": np.random.default_rng(0).uniform(-1, 1, (40, 3)),
    "action": np.random.default_rng(1).uniform(-2, 2, (40, 1)),
    "reward": np.zeros(40),
    "terminated": np.zeros(40, np.bool_),
}


def ignore(step: int, episodes: object, credits: object, metrics: object) -> None:
    """Watch nothing of a training."""


@pytest.mark.parametrize("recipe", ["bc", "cql", "iql", "td3_bc", "bear", "bcq"])
def test_every_offline_recipe_learns_from_a_plain_log(recipe: str, tmp_path: Path) -> None:
    entry = load_recipe(recipe)
    config = entry.config.model_validate({
        "recipe": recipe, "name": "x", "steps": 2, "log": str(written(tmp_path / "log.parquet", PENDULUM)),
        "env": {"id": "Pendulum-v1", "check": False}, "network": {"hidden": [8]}, "batch": 8,
    })  # fmt: skip
    job = entry.build(config)
    train(job.recipe, steps=2, callback=ignore)
    assert any("last decision of 2 episodes" in warning for warning in config.open().warnings)
    job.close()


def test_a_plan_compares_the_spaces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 before anything is trained, from the command line; without metadata the rows do not fit."""
    path = written(tmp_path / "plain.parquet", PENDULUM)
    read = read_log(path, spaces=(spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-2, 2, (1,), np.float32)))
    write_log(
        tmp_path / "own.parquet",
        BehaviourLog(episodes=read.episodes, observation_space=read.observation_space, action_space=read.action_space),
    )
    run = tmp_path / "run.toml"
    for name, code, said in (("own", 2, "numbers seen"), ("plain", 3, "expected 4")):
        run.write_text(
            f'recipe = "bc"\nsteps = 1\nlog = "{tmp_path / name}.parquet"\nenv = {{ id = "CartPole-v1" }}\n', "utf-8"
        )
        assert tiny_runs.hone("plan", str(run)) == code
        assert said in capsys.readouterr().err
