"""Minari datasets in HDF5, read and written without Minari itself.

`main_data.hdf5` has a group `episode_N` per episode with `observations` `[T+1, ...]`, `actions`, `rewards`,
`terminations` and `truncations` `[T]`; the spaces are JSON text in `metadata.json` in the same folder, or in the
file's attributes (older versions). Log-probabilities of decisions, which Minari lacks, are in the episode's `infos`.
h5py is an optional dependency.
"""

import importlib
import json
from pathlib import Path
from typing import Any, cast

import numpy as np

from hone.core.episodes import Episodes
from hone.core.errors import DataError, ResourceError
from hone.core.ragged import offsets_of
from hone.core.strict_json import strict_json

_DATA_FILE = "main_data.hdf5"
_DATASET_NAMES = ("observations", "actions", "rewards", "terminations", "truncations")
_LOGP_NAME = "behaviour_logp"
"""Key of log-probabilities in `infos`: `[T+1]` nats, the last one unused, because infos begin with the reset."""
_MINARI_VERSION = "0.5.4"
"""Minari version of the written layout."""


def read_minari(path: Path) -> tuple[Episodes, dict[str, Any], dict[str, Any]]:
    """Read episodes, and the descriptions of the observation and action space.

    `path` is the HDF5 file, its folder, or the dataset's folder. Raises DataError for missing columns or unequal
    lengths, ResourceError without h5py.
    """
    file_path = _file(path)
    try:
        with load_h5py().File(file_path, "r") as file:
            described = _spaces(file_path, dict(file.attrs))
            groups = sorted((name for name in file if name.startswith("episode_")), key=lambda name: int(name[8:]))
            columns = [_episode(file[name], f"{file_path}: {name}") for name in groups]
    except OSError as error:
        raise DataError(f"{file_path}: not a complete HDF5 file: {error}") from error
    if not columns:
        raise DataError(f"{file_path}: no group episode_0, episode_1, ...")
    return _joined(columns), *described


def write_minari(folder: Path, episodes: Episodes, observation: dict[str, Any], action: dict[str, Any]) -> None:
    """Write `data/main_data.hdf5` and `data/metadata.json` below `folder` in the layout of Minari 0.5, which opens
    `folder / "data"`. The folder's name is the dataset's, best of the form `name-v0`.

    Episodes without decisions are left out. The last step of a piece of a longer episode has neither flag.
    """
    assert episodes.final is not None
    episodes = episodes.take(np.flatnonzero(episodes.lengths > 0))
    assert episodes.final is not None
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    with load_h5py().File(data / _DATA_FILE, "w") as file:
        for number in range(len(episodes)):
            one = episodes.take(np.array([number]))
            steps = one.decisions
            last = np.arange(steps) == steps - 1
            group = file.create_group(f"episode_{number}")
            group.attrs.update({"id": number, "total_steps": steps})
            group["observations"] = np.concatenate([one.observations, episodes.final[number : number + 1]])
            group["actions"], group["rewards"] = one.chosen, one.reward
            group["terminations"], group["truncations"] = last & one.terminated[0], last & one.truncated[0]
            group[f"infos/{_LOGP_NAME}"] = np.append(one.logp, np.float32(np.nan))
    metadata = {
        "total_episodes": len(episodes),
        "total_steps": episodes.decisions,
        "data_format": "hdf5",
        "dataset_id": folder.name,
        "minari_version": _MINARI_VERSION,
        "observation_space": json.dumps(observation),
        "action_space": json.dumps(action),
    }
    (data / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n", encoding="utf-8")


def load_h5py() -> Any:  # noqa: ANN401 - an optional library without types
    """The module h5py. Raises ResourceError where it is not installed."""
    try:
        return importlib.import_module("h5py")
    except ImportError as error:
        raise ResourceError("Minari, D4RL and d3rlpy keep HDF5 files: install h5py (pip install h5py)") from error


def is_minari(path: Path) -> bool:
    """True unless an HDF5 file holds arrays of whole data sets at its top, and no groups of episodes."""
    try:
        with load_h5py().File(path, "r") as file:
            return any(name.startswith("episode_") for name in file.keys() - {"episode_terminals"}) or not len(file)
    except OSError:
        return True  # `read_minari` says what is wrong with it


def _file(path: Path) -> Path:
    for candidate in (path, path / _DATA_FILE, path / "data" / _DATA_FILE):
        if candidate.is_file():
            return candidate
    for beside in (path / "metadata.json", path / "data" / "metadata.json"):
        if beside.is_file() and _metadata(beside).get("data_format", "hdf5") != "hdf5":
            raise DataError(
                f"{beside}: the dataset has the format {_metadata(beside)['data_format']!r}, only 'hdf5' is supported; "
                'write it again with data_format="hdf5"'
            )
    raise DataError(f"{path}: there is no {_DATA_FILE} here, nor in {path / 'data'}")


def _spaces(path: Path, attributes: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    beside = path.parent / "metadata.json"
    held = _metadata(beside) if beside.is_file() else attributes
    missing = [name for name in ("observation_space", "action_space") if name not in held]
    if missing:
        raise DataError(f"{path}: no {' and no '.join(missing)} in metadata.json or in the file's attributes")
    try:
        observation, action = strict_json(held["observation_space"]), strict_json(held["action_space"])
    except (ValueError, AttributeError) as error:
        raise DataError(f"{path}: a space is not described in JSON: {error}") from error
    return cast("dict[str, Any]", observation), cast("dict[str, Any]", action)


def _metadata(path: Path) -> dict[str, Any]:
    try:
        held = strict_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot read the description of the data set: {error}") from error
    if not isinstance(held, dict):
        raise DataError(f"{path}: expected an object with observation_space and action_space, found {held!r}")
    return held


def _episode(group: Any, place: str) -> dict[str, np.ndarray]:  # noqa: ANN401 - an h5py group
    missing = [name for name in _DATASET_NAMES if name not in group]
    if missing:
        raise DataError(f"{place} has no {', '.join(missing)}")
    nested = [name for name in ("observations", "actions") if not isinstance(group[name], load_h5py().Dataset)]
    if nested:
        raise DataError(
            f"{place}: {' and '.join(nested)} are dictionaries or tuples: only Box and Discrete are supported"
        )
    columns = {name: np.asarray(group[name]) for name in _DATASET_NAMES}
    steps = len(columns["rewards"])
    wrong = [
        f"{place}: {name} has {len(columns[name])} rows, expected {steps + (name == 'observations')}"
        for name in _DATASET_NAMES
        if len(columns[name]) != steps + (name == "observations")
    ]
    if wrong:
        raise DataError(*wrong)
    known = f"infos/{_LOGP_NAME}" in group
    columns["logp"] = np.asarray(group[f"infos/{_LOGP_NAME}"])[:steps] if known else np.full(steps, np.nan)
    return columns


def _joined(columns: list[dict[str, np.ndarray]]) -> Episodes:
    columns = [column for column in columns if len(column["rewards"])]
    lengths = np.array([len(column["rewards"]) for column in columns])
    total = int(lengths.sum())
    return Episodes(
        offsets=offsets_of(lengths),
        seen=np.concatenate([column["observations"][:-1] for column in columns]),
        chosen=np.concatenate([column["actions"] for column in columns]),
        logp=np.concatenate([column["logp"] for column in columns]).astype(np.float32),
        version=np.full(total, -1, dtype=np.int32),
        reward=np.concatenate([column["rewards"] for column in columns]).astype(np.float32),
        group=np.arange(len(columns)),
        terminated=np.array([column["terminations"][-1] for column in columns], dtype=np.bool_),
        truncated=np.array([column["truncations"][-1] for column in columns], dtype=np.bool_),
        final=np.stack([column["observations"][-1] for column in columns]),
        score=np.array([column["rewards"].sum(dtype=np.float64) for column in columns]),
    )
