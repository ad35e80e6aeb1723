"""Minari datasets in HDF5, read and written without Minari itself, and its notation of spaces.

`main_data.hdf5` has a group `episode_N` per episode with `observations` `[T+1, ...]`, `actions`, `rewards`,
`terminations` and `truncations` `[T]`; the spaces are JSON text in `metadata.json` in the same folder, or in the
file's attributes (older versions). Observations of several parts (Dict, Tuple) are groups of such arrays; they are read
as one row of numbers, as Gymnasium's `FlattenObservation` makes them. Log-probabilities of decisions, which Minari
lacks, are in the episode's `infos`. h5py is an optional dependency.
"""

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

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
_TUPLE_PART = "_index_"
"""Beginning of the names of a tuple's parts."""
_SHOWN = 10
"""Faults of episodes that a message lists."""
Space = spaces.Space[Any]


# --------------------------------------------------------------------------------------------------------------- spaces


def space_to_minari(space: spaces.Space[Any]) -> dict[str, Any]:
    """Convert a space to Minari's notation. Raises DataError for unsupported kinds."""
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "dtype": "int64", "start": int(space.start), "n": int(space.n)}
    if isinstance(space, spaces.Box):
        return {
            "type": "Box",
            "dtype": str(space.dtype),
            "shape": list(space.shape),
            "low": space.low.tolist(),
            "high": space.high.tolist(),
        }
    raise DataError(f"space {space} cannot be logged: only Box and Discrete are supported")


def space_from_minari(description: dict[str, Any], path: Path) -> spaces.Space[Any]:
    """Parse a space in Minari's notation. Raises DataError."""
    try:
        if description["type"] == "Discrete":
            return spaces.Discrete(int(description["n"]), start=int(description.get("start", 0)))
        if description["type"] == "Box":
            kind = np.dtype(description["dtype"])
            return spaces.Box(np.array(description["low"], kind), np.array(description["high"], kind), dtype=kind.type)
        if description["type"] == "Dict":
            return spaces.Dict({name: space_from_minari(part, path) for name, part in description["subspaces"].items()})
        if description["type"] == "Tuple":
            return spaces.Tuple([space_from_minari(part, path) for part in description["subspaces"]])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: space {description} cannot be read: {error!r}") from error
    raise DataError(
        f"{path}: space {description} is not supported: only Box and Discrete are, alone or in Dict and Tuple"
    )


def flat_observations(space: Space, held: Any, rows: int) -> NDArray[Any]:  # noqa: ANN401 - an h5py group or dataset
    """`[rows, numbers]` of an HDF5 group of observations, as `gymnasium.spaces.flatten` orders them. Raises DataError
    that names the part that is missing or of another shape."""
    match space:
        case spaces.Dict():
            parts = list(space.spaces.items())
        case spaces.Tuple():
            parts = [(f"{_TUPLE_PART}{number}", part) for number, part in enumerate(space.spaces)]
        case _:
            return _flat_leaf(space, np.asarray(held), rows)
    flat: list[NDArray[Any]] = []
    for name, part in parts:
        try:
            inner = held[name]
        except (KeyError, ValueError, TypeError):
            raise DataError(f"has no {name}; it has {', '.join(held)}") from None
        try:
            flat.append(flat_observations(part, inner, rows))
        except DataError as error:
            raise DataError(*(f"{name}: {message}" for message in error.messages)) from None
    return np.concatenate(flat, axis=1)


def _flat_leaf(space: Space, values: NDArray[Any], rows: int) -> NDArray[Any]:
    """`[rows, numbers]` of a Box, or of the one-hot choices of a Discrete."""
    shape = (rows, *(space.shape or ()))
    if values.shape != shape:
        raise DataError(f"has the shape {list(values.shape)}, expected {list(shape)}")
    if not isinstance(space, spaces.Discrete):
        return values.reshape(rows, -1)
    number = values.astype(np.int64) - int(space.start)
    if len(wrong := np.flatnonzero((number < 0) | (number >= space.n))):
        raise DataError(f"row {wrong[0]} is {values[wrong[0]]}, outside {space}")
    return np.eye(int(space.n), dtype=np.int64)[number]


# ------------------------------------------------------------------------------------------------------------- episodes


def read_minari(path: Path) -> tuple[Episodes, Space, Space, tuple[str, ...]]:
    """Read episodes, the observation and action space, and notes for the user.

    `path` is the HDF5 file, its folder, or the dataset's folder. Raises DataError for missing columns, unequal lengths
    and numbers that are not finite, of all episodes at once, ResourceError without h5py.
    """
    file_path = _file(path)
    try:
        with load_h5py().File(file_path, "r") as file:
            described = _spaces(file_path, dict(file.attrs))
            columns = _episodes(file, file_path, described[0])
    except OSError as error:
        raise DataError(f"{file_path}: not a complete HDF5 file: {error}") from error
    if not columns:
        raise DataError(f"{file_path}: no group episode_0, episode_1, ...")
    observation, action = described
    if not isinstance(observation, spaces.Dict | spaces.Tuple):
        return _joined(columns), observation, action, ()
    flat = spaces.flatten_space(observation)
    note = (
        f"{file_path}: observations of several parts are read as one row of {flat.shape} numbers; an environment of "
        'the same parts needs env.wrappers = ["FlattenObservation"], unless they are goals, which are rows without it'
    )
    return _joined(columns), flat, action, (note,)


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


def _spaces(path: Path, attributes: dict[str, Any]) -> tuple[Space, Space]:
    beside = path.parent / "metadata.json"
    held = _metadata(beside) if beside.is_file() else attributes
    missing = [name for name in ("observation_space", "action_space") if name not in held]
    if missing:
        raise DataError(f"{path}: no {' and no '.join(missing)} in metadata.json or in the file's attributes")
    try:
        described: list[Any] = [strict_json(held[name]) for name in ("observation_space", "action_space")]
    except (ValueError, AttributeError) as error:
        raise DataError(f"{path}: a space is not described in JSON: {error}") from error
    observation, action = (space_from_minari(one, path) for one in described)
    if isinstance(action, spaces.Dict | spaces.Tuple):
        raise DataError(
            f"{path}: actions of several parts, {action}, are not learned from a log: only Box and Discrete"
        )
    return observation, action


def _metadata(path: Path) -> dict[str, Any]:
    try:
        held = strict_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot read the description of the data set: {error}") from error
    if not isinstance(held, dict):
        raise DataError(f"{path}: expected an object with observation_space and action_space, found {held!r}")
    return held


def _episodes(file: Any, path: Path, observation: Space) -> list[dict[str, np.ndarray]]:  # noqa: ANN401 - an h5py file
    """Columns of each episode. Raises DataError with the faults of all of them, of which it lists some."""
    columns, faults = list[dict[str, np.ndarray]](), list[str]()
    for name in sorted((name for name in file if name.startswith("episode_")), key=lambda name: int(name[8:])):
        try:
            columns.append(_episode(file[name], f"{path}: {name}", observation))
        except DataError as error:
            faults += error.messages
    if faults:
        further = [f"{path}: {len(faults) - _SHOWN} further faults"] if len(faults) > _SHOWN else []
        raise DataError(*faults[:_SHOWN], *further)
    return columns


def _episode(group: Any, place: str, observation: Space) -> dict[str, np.ndarray]:  # noqa: ANN401 - an h5py group
    missing = [name for name in _DATASET_NAMES if name not in group]
    if missing:
        raise DataError(f"{place} has no {', '.join(missing)}")
    several = isinstance(observation, spaces.Dict | spaces.Tuple)
    arrays = _DATASET_NAMES[1:] if several else _DATASET_NAMES
    if nested := [name for name in arrays if not isinstance(group[name], load_h5py().Dataset)]:
        raise DataError(f"{place}: {' and '.join(nested)} are groups of parts, and the described space has none")
    columns = {name: np.asarray(group[name]) for name in arrays}
    steps = len(columns["rewards"])
    if several:
        try:
            columns["observations"] = flat_observations(observation, group["observations"], steps + 1)
        except DataError as error:
            raise DataError(*(f"{place}: observations: {message}" for message in error.messages)) from None
    wrong = [
        f"{place}: {name} has {len(columns[name])} rows, expected {steps + (name == 'observations')}"
        for name in _DATASET_NAMES
        if len(columns[name]) != steps + (name == "observations")
    ]
    for name in ("observations", "actions", "rewards"):
        values = columns[name][:steps]  # of a terminated episode, the last observation need not be known
        finite = np.isfinite(values).all(axis=tuple(range(1, values.ndim))) if values.dtype.kind == "f" else None
        if finite is not None and len(rows := np.flatnonzero(~finite)):
            wrong.append(f"{place}: {len(rows)} rows of {name} are not finite; the first is row {rows[0]}")
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
