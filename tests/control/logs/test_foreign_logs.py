"""Logs that other programs wrote: the same episodes from six formats, faults by file and row, and traps of each."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

import hone.api
from hone.cli.main import main
from hone.control.logs.formats import LogDataConfig, episode_numbers, parse_space, propose_space
from hone.control.logs.parquet import BehaviourLog, read_log, write_log
from hone.core.errors import ConfigError, DataError, HoneError

SPACES = (spaces.Box(-np.inf, np.inf, (3,), np.float32), spaces.Discrete(2))
LENGTHS, TERMINATED = (4, 3, 5), (True, False, True)
"""Three episodes; the second was cut by a time limit."""
STEPS = sum(LENGTHS)
STARTS = np.concatenate(([0], np.cumsum(LENGTHS)))


def logged() -> dict[str, np.ndarray]:
    """Columns of the three episodes, under plain names."""
    draws = np.random.default_rng(0)
    seen = [draws.normal(size=(length + 1, 3)).astype(np.float32) for length in LENGTHS]
    last = np.zeros(STEPS, np.bool_)
    last[STARTS[1:] - 1] = True
    terminated = last & np.repeat(TERMINATED, LENGTHS)
    return {
        "episode": np.repeat([7, 3, 9], LENGTHS),
        "seen": np.concatenate([one[:-1] for one in seen]),
        "after": np.concatenate([one[1:] for one in seen]),
        "action": draws.integers(0, 2, STEPS),
        "reward": draws.normal(size=STEPS).astype(np.float32),
        "terminated": terminated,
        "truncated": last & ~terminated,
        "starts": np.isin(np.arange(STEPS), STARTS[:-1]),
        "last": last,
    }


HELD = logged()


def csv(path: Path, columns: dict[str, Any]) -> Path:
    pa_csv.write_csv(pa.table({name: pa.array(values) for name, values in columns.items()}), path)
    return path


def csv_of(path: Path, **changes: Any) -> Path:
    wide = {f"observation.{place}": HELD["seen"][:, place] for place in range(3)}
    columns = {name: HELD[name] for name in ("episode", "action", "reward", "terminated", "truncated")}
    return csv(path / "log.csv", {**wide, **columns, **changes})


def hdf5(path: Path, columns: dict[str, Any]) -> Path:
    with h5py.File(path, "w") as file:
        for name, values in columns.items():
            file[name] = values
    return path


def flat(**changes: Any) -> dict[str, Any]:
    """D4RL's names."""
    columns = {
        "observations": HELD["seen"], "actions": HELD["action"], "rewards": HELD["reward"],
        "terminals": HELD["terminated"], "timeouts": HELD["truncated"],
    }  # fmt: skip
    return {name: value for name, value in {**columns, **changes}.items() if value is not None}


def d3rlpy(path: Path, version: str = "2.1", **changes: Any) -> Path:
    columns: dict[str, Any] = {
        "columns": ["observations", "actions", "rewards", "terminated"], "num_episodes": 3, "version": version
    }  # fmt: skip
    for number, (begin, end) in enumerate(pairwise(STARTS)):
        columns |= {
            f"observations_{number}": HELD["seen"][begin:end],
            f"actions_{number}": HELD["action"][begin:end, None],
            f"rewards_{number}": HELD["reward"][begin:end, None],
            f"terminated_{number}": float(TERMINATED[number]),
        }
    return hdf5(path / "log.h5", {name: value for name, value in {**columns, **changes}.items() if value is not None})


def npz(path: Path, columns: dict[str, Any]) -> Path:
    np.savez(path / "log.npz", **columns)
    return path / "log.npz"


def native(path: Path) -> Path:
    """hone's parquet, without its metadata."""
    table = {name: HELD[name] for name in ("episode", "action", "reward", "terminated", "truncated")}
    pq.write_table(pa.table({**table, "observation": HELD["seen"].tolist()}), path / "log.parquet")
    return path / "log.parquet"


WITHOUT_FINALS: dict[str, Callable[[Path], Path]] = {
    "CSV": csv_of,
    "parquet": native,
    "npz": lambda path: npz(path, flat()),
    "D4RL": lambda path: hdf5(path / "log.hdf5", flat()),
    "d3rlpy 1": lambda path: hdf5(
        path / "log.h5", flat(timeouts=None, episode_terminals=HELD["last"], discrete_action=1, version="1.0")
    ),
    "d3rlpy 2": d3rlpy,
}
WITH_FINALS: dict[str, Callable[[Path], Path]] = {
    "CSV": lambda path: csv_of(path, **{f"next_observation.{place}": HELD["after"][:, place] for place in range(3)}),
    "npz": lambda path: npz(path, flat(next_observations=HELD["after"])),
    "D4RL": lambda path: hdf5(path / "log.hdf5", flat(next_observations=HELD["after"])),
}


@pytest.mark.parametrize("name", WITHOUT_FINALS)
def test_every_format_gives_the_same_episodes(name: str, tmp_path: Path) -> None:
    log = read_log(WITHOUT_FINALS[name](tmp_path), spaces=SPACES)
    read, kept = log.episodes, np.arange(STEPS) != STARTS[2] - 1  # what follows the time limit is not in the file
    assert read.lengths.tolist() == [4, 2, 5]
    np.testing.assert_array_equal(read.observations, HELD["seen"][kept])
    np.testing.assert_array_equal(read.chosen, HELD["action"][kept])
    np.testing.assert_array_equal(read.reward, HELD["reward"][kept])
    assert read.terminated.tolist() == list(TERMINATED)
    assert read.truncated.tolist() == [False, True, False]
    assert read.final is not None
    np.testing.assert_array_equal(read.final[1], HELD["seen"][STARTS[2] - 1])
    assert any("1 episodes that did not terminate is left out" in note for note in log.notes)


@pytest.mark.parametrize("name", WITH_FINALS)
def test_next_observations_keep_the_last_step_of_a_time_limit(name: str, tmp_path: Path) -> None:
    log = read_log(WITH_FINALS[name](tmp_path), spaces=SPACES)
    assert log.episodes.lengths.tolist() == list(LENGTHS)
    assert log.episodes.final is not None and not log.notes
    np.testing.assert_array_equal(log.episodes.final, HELD["after"][STARTS[1:] - 1])


@pytest.mark.filterwarnings("ignore:.*is left out:UserWarning")
@pytest.mark.parametrize(("name", "recipe"), [*zip(sorted(WITHOUT_FINALS), ["bc", "iql", "cql"] * 2, strict=True)])
def test_a_policy_is_trained_from_each(name: str, recipe: str, tmp_path: Path) -> None:
    result = hone.api.train(
        {
            "recipe": recipe,
            "name": "logged",
            "steps": 2,
            "log": str(WITHOUT_FINALS[name](tmp_path)),
            "batch": 4,
            "network": {"hidden": [8]},
            "data": {"spaces": {"observation": "box", "action": "discrete(2)"}},
        },
        runs=tmp_path / "runs",
    )
    action, _ = hone.api.load(result).predict(HELD["seen"])
    assert set(action) <= {0, 1}


# ------------------------------------------------------------------------------------------------------- names, ends


def test_a_config_names_the_columns(tmp_path: Path) -> None:
    path = csv(
        tmp_path / "mine.csv",
        {
            "run": HELD["episode"], "t": np.arange(STEPS), "x": HELD["seen"][:, 0], "v": HELD["seen"][:, 1],
            "w": HELD["seen"][:, 2], "a": HELD["action"], "r": HELD["reward"], "over": HELD["terminated"],
            "p": np.full(STEPS, 0.5),
        },
    )  # fmt: skip
    data = LogDataConfig(
        columns={
            "episode": "run", "time": "t", "observation": ["x", "v", "w"], "action": "a", "reward": "r",
            "terminated": "over", "logp": "p:log",
        },
        spaces={"action": "discrete(2)"},
    )  # fmt: skip
    read = read_log(path, data=data)
    assert read.episodes.lengths.tolist() == [4, 2, 5]
    np.testing.assert_allclose(read.episodes.logp, np.log(0.5), rtol=1e-6)
    assert read.observation_space == SPACES[0] and read.action_space == SPACES[1]
    matched = data.model_copy(update={"columns": {**data.columns, "observation": "[xvw]"}})
    with pytest.raises(DataError, match=r"no column '\[xvw\]'"):  # a pattern has *, and nothing else
        read_log(path, data=matched)


def test_json_wildcards_and_the_order_of_numbers(tmp_path: Path) -> None:
    rows = [[float(number), 0.0, 1.0] for number in range(4)]
    ends = [False, False, False, True]
    plain = {"action": [0, 1, 0, 1], "reward": [1.0] * 4, "terminated": ends}
    read = read_log(csv(tmp_path / "json.csv", {"observation": [str(row) for row in rows], **plain}), spaces=SPACES)
    np.testing.assert_array_equal(read.episodes.observations, rows)
    wide = {f"obs.{number}": np.full(4, float(number)) for number in (10, 2, 0, 1, 3, 4, 5, 6, 7, 8, 9)}
    eleven = (spaces.Box(-np.inf, np.inf, (11,), np.float32), SPACES[1])
    read = read_log(csv(tmp_path / "wide.csv", {**wide, **plain}), spaces=eleven)
    assert read.episodes.observations[0].tolist() == list(range(11))
    data = LogDataConfig(columns={"observation": "obs.*"})
    np.testing.assert_array_equal(
        read_log(tmp_path / "wide.csv", spaces=eleven, data=data).episodes.seen, read.episodes.seen
    )


def test_stable_baselines_2_files_of_experts(tmp_path: Path) -> None:
    path = npz(
        tmp_path,
        {
            "obs": HELD["seen"], "actions": HELD["action"][:, None], "rewards": HELD["reward"],
            "episode_starts": HELD["starts"], "episode_returns": np.zeros(3),
        },
    )  # fmt: skip
    read = read_log(path, spaces=SPACES).episodes
    assert read.lengths.tolist() == [3, 2, 4]  # nothing says that an episode terminated
    assert not read.terminated.any() and read.truncated.all()


@given(flags=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=12))
def test_episodes_are_numbered_from_their_ends(flags: list[tuple[bool, bool]]) -> None:
    ends, number, expected = [one or other for one, other in flags], 0, []
    for end in ends:
        expected.append(number)
        number += end
    assert episode_numbers(np.array(ends)).tolist() == expected


# ------------------------------------------------------------------------------------------------------------- faults


def refused(path: Path, data: LogDataConfig | None = None, kind: type[HoneError] = DataError) -> str:
    with pytest.raises(kind) as fault:
        read_log(path, spaces=SPACES, data=data or LogDataConfig())
    assert all(str(path) in message or "data." in message for message in fault.value.messages)
    return "\n".join(fault.value.messages)


def test_missing_columns_are_told_at_once(tmp_path: Path) -> None:
    said = refused(csv(tmp_path / "log.csv", {"seen": [1.0], "acton": [1]}))
    for column in ("observation", "action", "reward"):
        assert f"no column for {column}; name one with data.columns.{column} = ...; it has seen, acton" in said
    assert "no column says which decisions end their episode" in said
    data = LogDataConfig(columns={"action": "action"})
    assert "no column 'actoin'; did you mean action?" in refused(
        csv_of(tmp_path), LogDataConfig(columns={"action": "actoin"})
    )
    assert "data.columns.actions: a log has no such column; did you mean action?" in refused(
        csv_of(tmp_path), LogDataConfig(columns={"actions": "action"})
    )
    assert read_log(csv_of(tmp_path), spaces=SPACES, data=data).episodes.decisions == STEPS - 1


def test_an_end_of_either_kind_is_asked_about(tmp_path: Path) -> None:
    columns = {"observation": [[0.0] * 3] * 4, "action": [0] * 4, "reward": [0.0] * 4, "done": [False, True] * 2}
    path = npz(tmp_path, {name: np.array(values) for name, values in columns.items()})
    assert "column 'done' may mean that the episode terminated, or that it was cut" in refused(path)
    data = LogDataConfig(columns={"terminated": "done"})
    assert read_log(path, spaces=SPACES, data=data).episodes.terminated.tolist() == [True, True]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reward": [1.0] * 5 + [None] + [1.0] * 6}, "row 5 has no reward"),
        ({"reward": [1.0] * 5 + [float("nan")] + [1.0] * 6}, "row 5 has no reward"),
        ({"reward": [1.0] * 5 + [float("inf")] + [1.0] * 6}, "1 rows with reward not finite; the first is row 5"),
        ({"reward": ["a"] * STEPS}, "column reward is of type string; it must hold numbers"),
        ({"action": [0] * 9 + [2, 0, 0]}, r"1 actions outside Discrete\(2\); the first is 2 in row 9"),
        ({"action": [0] * 9 + [0.5, 0, 0]}, "row 9: action is 0.5; it must be a whole number"),
        ({"observation.1": [1.0] * 11 + [None]}, "row 11 has no observation.1"),
        ({"observation.4": [1.0] * STEPS}, "no column 'observation.3', and there is 'observation.4'"),
        ({"episode": [1] * 4 + [2] * 3 + [1] * 5}, "row 7 goes on with episode 1 after rows of another"),
        ({"terminated": [True] * STEPS}, "row 0 ends its episode, and is not the last row of it"),
        ({"time": [1, 2, 3, 4, 1, 3, 2, 1, 2, 3, 4, 5]}, "row 6 has time 2 after 3 of the same episode"),
        ({"logp": [0.7] * STEPS}, r'row 0: logp is 0.7.*logp = "NAME:log"'),
    ],
)
def test_faults_name_file_row_and_value(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said) as fault:
        read_log(csv_of(tmp_path, **changes), spaces=SPACES)
    assert str(tmp_path / "log.csv") in str(fault.value)


def test_probabilities_are_taken_by_name_only(tmp_path: Path) -> None:
    path = csv_of(tmp_path, p=[0.5] * 3 + [0.0] + [0.5] * 8)
    assert "row 3: p is 0.0, and a probability is in (0, 1]" in refused(path, LogDataConfig(columns={"logp": "p:log"}))
    assert "'exp' is not known, only log" in refused(path, LogDataConfig(columns={"logp": "p:exp"}))


def test_files_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    assert "there is no such file" in refused(tmp_path / "missing.csv")
    (tmp_path / "ragged.csv").write_text("a,b\n1,2\n3\n")
    assert "not a CSV file with a header" in refused(tmp_path / "ragged.csv")
    (tmp_path / "log.json").write_text("{}")
    assert "not a complete parquet file" in refused(tmp_path / "log.json")
    (tmp_path / "log.npz").write_text("no zip")
    assert "not a complete .npz file" in refused(tmp_path / "log.npz")
    (tmp_path / "log.hdf5").write_text("no hdf5")
    assert "not a complete HDF5 file" in refused(tmp_path / "log.hdf5")
    np.savez(tmp_path / "objects.npz", **flat(actions=np.array([{}] * STEPS)), allow_pickle=True)
    assert "array 'actions' holds Python objects, which would run code" in refused(tmp_path / "objects.npz")
    short = refused(npz(tmp_path, flat(actions=HELD["action"][:-1])))
    assert "different numbers of rows: observations 12, actions 11" in short
    (tmp_path / "broken.csv").write_text('observation,action,reward,terminated\n"[1,2]",0,1,false\n"[1,",0,1,true\n')
    assert "row 1: observation is '[1,', which is no JSON" in refused(tmp_path / "broken.csv")
    (tmp_path / "empty.csv").write_text("observation,action,reward,terminated\n")
    assert "no decisions" in refused(tmp_path / "empty.csv")


def test_faults_of_d3rlpys_files(tmp_path: Path) -> None:
    for number, (changes, said) in enumerate(
        [
            ({"version": "2.0"}, "version 2.0 of the format is obsolete"),
            ({"actions_1": None}, "episode 1 has no actions_1"),
            ({"actions_1": HELD["action"][:2]}, "episode 1 has 3 rewards, and actions 2"),
            ({"observations_0_0": HELD["seen"][:4]}, "episode 0 has observations in several parts"),
            ({"num_episodes": 0}, "no episodes"),
        ]
    ):
        place = tmp_path / str(number)
        place.mkdir()
        assert said in refused(d3rlpy(place, **changes)), said


# -------------------------------------------------------------------------------------------------------------- traps


def test_timeouts_out_of_step_cut_where_the_observations_do(tmp_path: Path) -> None:
    """AntMaze's version 0: the flag of an end comes a step late, and the next observations tell the truth."""
    late = np.roll(HELD["truncated"], 1)
    path = hdf5(tmp_path / "antmaze-umaze-v0.hdf5", flat(timeouts=late, next_observations=HELD["after"]))
    log = read_log(path, spaces=SPACES)
    assert log.episodes.lengths.tolist() == [4, 3, 1, 4]  # cut where the maze began anew, and by the late flag
    assert log.episodes.final is not None
    np.testing.assert_array_equal(log.episodes.final[1], HELD["after"][STARTS[2] - 1])
    notes = "\n".join(log.notes)
    assert "1 decisions are followed by another observation than the file's next one" in notes and "row 6" in notes
    assert "take version 2" in notes


def test_clusters_of_terminals_are_told(tmp_path: Path) -> None:
    ends = np.zeros(STEPS, np.bool_)
    ends[[3, 6, 7, 8, 11]] = True
    log = read_log(hdf5(tmp_path / "log.hdf5", flat(terminals=ends, timeouts=None)), spaces=SPACES)
    assert any("2 of 5 episodes have one decision" in note for note in log.notes)


def test_an_endless_trajectory_is_told(tmp_path: Path) -> None:
    path = hdf5(tmp_path / "maze2d-umaze-v1.hdf5", flat())
    assert any("one endless trajectory" in note for note in read_log(path, spaces=SPACES).notes)


def test_infos_hold_log_probabilities_and_much_else(tmp_path: Path) -> None:
    infos = {"infos/action_log_probs": np.full(STEPS, -0.7), "infos/qpos": np.zeros((STEPS, 5)), "metadata/x": 1.0}
    read = read_log(hdf5(tmp_path / "log.hdf5", flat(**infos)), spaces=SPACES).episodes
    np.testing.assert_allclose(read.logp, -0.7, rtol=1e-6)


# ------------------------------------------------------------------------------------------------------------- spaces


def test_a_space_that_nobody_told_is_proposed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r'data.spaces.action = "discrete\(2\)", which holds all of its actions'):
        read_log(csv_of(tmp_path))
    path = npz(tmp_path, flat(actions=np.linspace(-0.5, 0.25, 2 * STEPS).reshape(STEPS, 2)))
    with pytest.raises(DataError, match=r'data.spaces.action = "box\(-0.5, 0.25\)"'):
        read_log(path)
    log = read_log(path, data=LogDataConfig(spaces={"action": "box(-1, 1)"}))
    assert log.action_space == spaces.Box(-1, 1, (2,), np.float32)


def test_spaces_are_written_in_words() -> None:
    rows = np.array([[1, 2], [3, 4]])
    assert parse_space("box", "k", rows) == spaces.Box(-np.inf, np.inf, (2,), np.float32)
    assert parse_space("box(-1, 2.5)", "k", rows) == spaces.Box(-1, 2.5, (2,), np.float32)
    assert parse_space("box", "k", rows[:, 0]) == spaces.Box(-np.inf, np.inf, (1,), np.float32)
    assert parse_space("discrete", "k", rows[:, 0]) == spaces.Discrete(4)
    assert parse_space("discrete(4, start=1)", "k", rows[:, 0]) == spaces.Discrete(4, start=1)
    assert parse_space("image(7,7,3)", "k", rows) == spaces.Box(0, 255, (7, 7, 3), np.uint8)
    for wrong in ("boxes", "box(1)", "box(2, 1)", "discrete(many)", "discrete(0)", "image(a)"):
        with pytest.raises(ConfigError, match=r"data.spaces.action = .*expected box, box\(-1, 1\)"):
            parse_space(wrong, "data.spaces.action", rows)
    assert propose_space(np.array([0, 3])) == "discrete(4)"
    assert propose_space(np.array([-1, 3])) == "box(-1, 3)"


def test_a_minari_data_set_needs_no_names(tmp_path: Path) -> None:
    source = read_log(csv_of(tmp_path), spaces=SPACES)
    log = BehaviourLog(episodes=source.episodes, observation_space=SPACES[0], action_space=SPACES[1])
    write_log(tmp_path / "set-v0", log)
    again = read_log(tmp_path / "set-v0" / "data" / "main_data.hdf5").episodes
    np.testing.assert_array_equal(again.observations, log.episodes.observations)
    assert "names its columns and spaces itself" in refused(
        tmp_path / "set-v0", LogDataConfig(spaces={"action": "discrete"})
    )


def test_plan_tells_how_a_log_was_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "logged.toml"
    config.write_text(
        f'recipe = "bc"\nname = "logged"\nsteps = 2\nlog = "{csv_of(tmp_path)}"\n'
        '[data.spaces]\naction = "discrete(2)"\n'
    )
    assert main(["plan", str(config)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "3 episodes (2 terminated, 1 truncated, 0 cut), 11 decisions; returns" in told
    assert "observations float32[3], actions 0 to 1" in told


def test_show_tells_the_columns_and_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = WITHOUT_FINALS["D4RL"](tmp_path)
    assert main(["show", str(path)]) == 3
    shown = capsys.readouterr()
    assert "D4RL, 12 rows" in shown.out and "float32 [3]" in shown.out
    assert 'data.spaces.action = "discrete(2)"' in shown.err
    boxed = npz(tmp_path, flat(episode=HELD["episode"], actions=np.zeros((STEPS, 2), np.float32)))
    assert main(["show", str(boxed)]) == 3
    assert "npz, 12 rows" in capsys.readouterr().out
    source = read_log(csv_of(tmp_path), spaces=SPACES)
    write_log(
        tmp_path / "set-v0", BehaviourLog(episodes=source.episodes, observation_space=SPACES[0], action_space=SPACES[1])
    )
    assert main(["show", str(tmp_path / "set-v0" / "data" / "main_data.hdf5")]) == 0
    assert "3 episodes (2 terminated, 1 truncated, 0 cut), 11 decisions" in capsys.readouterr().out
