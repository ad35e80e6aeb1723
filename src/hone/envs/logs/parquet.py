"""Logs of decisions on disk: hone's parquet, one row per decision, and Minari's HDF5, read and written as episodes.

Belongs here: the parquet format and its validation. Columns: `episode` (rows of one piece of an episode are
consecutive), `group`, `version`, `observation`, `action`, `logp` (nats; NaN if unknown), `reward`, `terminated`,
`truncated` and `final` (final observation; null except in the last row of a piece), `score`. The spaces are in the
file's metadata under `hone`, as JSON in Minari's notation.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from gymnasium import spaces
from numpy.typing import NDArray

from hone.core.episodes import Episodes, column_table
from hone.core.errors import DataError
from hone.core.ragged import Ints, offsets_of
from hone.envs.logs.minari import read_minari, write_minari

COLUMNS = ("episode", "group", "version", "observation", "action", "logp", "reward")
ENDS = ("terminated", "truncated", "final", "score")
EXTRA = {name: column for name, column in column_table().items() if column.optional and name != "final"}
"""Columns that are written under their own names where they are there; the metadata holds their shapes."""
Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionLog:
    """Decisions with their observation and action space."""

    episodes: Episodes
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]


def write_log(path: Path, log: DecisionLog) -> None:
    """Write parquet, or a Minari dataset if `path` has no suffix: a folder, best named as `cartpole/mixed-v0`.

    Only scored episodes with recorded final observations can be written. Raises DataError otherwise, and ResourceError
    for Minari without h5py.
    """
    episodes = replace(log.episodes, chosen=_actions_taken(log.episodes.chosen, log.action_space))
    if episodes.final is None or not episodes.scored.all():
        raise DataError(f"{path}: a log needs scored episodes with final observations")
    extra = {name: values for name, values in episodes.columns().items() if name in EXTRA}
    if not path.suffix:
        if extra:
            raise DataError(f"{path}: a Minari data set has no place for {', '.join(extra)}: write parquet")
        write_minari(path, episodes, space_to_minari(log.observation_space), space_to_minari(log.action_space))
        return
    owner, last = episodes.owner, np.zeros(episodes.decisions, dtype=np.bool_)
    last[episodes.offsets[1:][episodes.lengths > 0] - 1] = True
    finals = _list_column(episodes.final[owner])
    table = pa.table(
        {
            "episode": owner,
            "group": episodes.group[owner],
            "version": episodes.version,
            "observation": _list_column(episodes.observations),
            "action": _list_column(episodes.chosen),
            "logp": episodes.logp,
            "reward": episodes.reward,
            "terminated": episodes.terminated[owner] & last,
            "truncated": episodes.truncated[owner] & last,
            "final": pa.array(
                [value if end else None for value, end in zip(finals.to_pylist(), last, strict=True)], type=finals.type
            ),
            "score": episodes.score[owner],
            **{
                name: _list_column(values[owner] if EXTRA[name].unit == "episode" else values)
                for name, values in extra.items()
            },
        }
    )
    notes = {
        "observation_space": space_to_minari(log.observation_space),
        "action_space": space_to_minari(log.action_space),
        **({"columns": {name: values.shape[1:] for name, values in extra.items()}} if extra else {}),
    }
    pq.write_table(table.replace_schema_metadata({"hone": json.dumps(notes)}), path)


def _actions_taken(chosen: Array, space: spaces.Space[Any]) -> Array:
    """Actions as the environment took them: the nearest whole number in a box of integers."""
    if isinstance(space, spaces.Box) and np.dtype(space.dtype).kind in "iu" and chosen.dtype.kind == "f":
        return np.rint(chosen).astype(space.dtype)
    return chosen


def read_log(path: Path) -> DecisionLog:
    """Read parquet, or Minari's folder or `.hdf5` file. Raises DataError that names file, row and value."""
    if path.is_dir() or path.suffix in {".hdf5", ".h5"}:
        episodes, observation, action = read_minari(path)
        log = DecisionLog(
            episodes=episodes,
            observation_space=space_from_minari(observation, path),
            action_space=space_from_minari(action, path),
        )
    else:
        log = _read_parquet(path)
    _require_sound(log, path)
    return log


def _read_parquet(path: Path) -> DecisionLog:
    if not path.is_file():
        raise DataError(f"{path}: there is no such file; paths are relative to the working directory, {Path.cwd()}")
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path}: not a complete parquet file: {error}") from error
    missing = [name for name in (*COLUMNS, *ENDS) if name not in table.column_names]
    if missing:
        raise DataError(f"{path}: no column {', '.join(missing)}; it has {', '.join(table.column_names)}")
    if table.num_rows == 0:
        raise DataError(f"{path}: no decisions")
    notes = json.loads((table.schema.metadata or {}).get(b"hone", b"null"))
    if notes is None:
        raise DataError(f"{path}: no spaces in the file's metadata (key `hone`): it was not written by write_log")
    observation, action = (
        space_from_minari(notes["observation_space"], path),
        space_from_minari(notes["action_space"], path),
    )
    owner = table["episode"].to_numpy()
    ends = np.append(np.flatnonzero(np.diff(owner)), len(owner) - 1)
    offsets = offsets_of(np.diff(ends, prepend=-1))
    final = table["final"].take(pa.array(ends))
    if final.null_count:
        row = int(ends[np.flatnonzero(final.is_null().to_numpy())[0]])
        raise DataError(f"{path}: row {row} is the last of its episode and has no `final` observation")
    episodes = Episodes(
        offsets=offsets,
        seen=_values(table["observation"], observation.dtype, observation.shape),
        chosen=_values(table["action"], action.dtype, action.shape),
        logp=table["logp"].to_numpy().astype(np.float32),
        version=table["version"].to_numpy().astype(np.int32),
        reward=table["reward"].to_numpy().astype(np.float32),
        group=table["group"].to_numpy()[ends].astype(np.int64),
        terminated=table["terminated"].to_numpy()[ends].astype(np.bool_),
        truncated=table["truncated"].to_numpy()[ends].astype(np.bool_),
        final=_values(final, observation.dtype, observation.shape),
        score=table["score"].to_numpy()[ends].astype(np.float64),
        **_extra_columns(table, notes.get("columns", {}), ends),
    )
    return DecisionLog(episodes=episodes, observation_space=observation, action_space=action)


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
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: space {description} cannot be read: {error!r}") from error
    raise DataError(f"{path}: space {description} is not supported: only Box and Discrete are")


def _list_column(values: Array) -> pa.Array:
    """Column of numbers for `[N]`, of fixed-size lists for `[N, ...]`."""
    if values.ndim == 1:
        return pa.array(values)
    flat = np.ascontiguousarray(values).reshape(len(values), -1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel()), flat.shape[1])


def _values(column: pa.ChunkedArray, dtype: Any, shape: Sequence[int] | None) -> Array:  # noqa: ANN401 - numpy's own
    flat = column.combine_chunks()
    if isinstance(flat.type, pa.FixedSizeListType):
        flat = flat.flatten()
    return flat.to_numpy(zero_copy_only=False).astype(dtype).reshape(-1, *(shape or ()))


def _extra_columns(table: pa.Table, shapes: dict[str, list[int]], ends: Ints) -> dict[str, Any]:
    """Optional columns that the file holds: by decision, or the rows `ends` where they are by episode."""
    read: dict[str, Array] = {}
    for name, shape in shapes.items():
        values = _values(table[name], EXTRA[name].dtype, shape)
        read[name] = values[ends] if EXTRA[name].unit == "episode" else values
    return read


def _require_sound(log: DecisionLog, path: Path) -> None:
    """Raises DataError for numbers that are not finite and for actions outside their space."""
    episodes = log.episodes
    faults: list[str] = []
    for name, values in (("observation", episodes.observations), ("reward", episodes.reward)):
        wrong = _rows(~np.isfinite(values)) if values.dtype.kind == "f" else np.zeros(0, np.int64)
        if len(wrong):
            faults.append(f"{path}: {len(wrong)} rows with {name} not finite; the first is row {wrong[0]}")
    low, high = _bounds(log.action_space)
    outside = _rows(~((episodes.chosen >= low) & (episodes.chosen <= high)))
    if len(outside):
        first = int(outside[0])
        faults.append(
            f"{path}: {len(outside)} actions outside {log.action_space}; the first is "
            f"{episodes.chosen[first].tolist()} in row {first}"
        )
    if faults:
        raise DataError(*faults)


def _bounds(space: spaces.Space[Any]) -> tuple[Any, Any]:
    if isinstance(space, spaces.Discrete):
        return int(space.start), int(space.start) + int(space.n) - 1
    assert isinstance(space, spaces.Box)
    return space.low, space.high


def _rows(flags: NDArray[np.bool_]) -> Ints:
    return np.flatnonzero(flags.reshape(len(flags), -1).any(axis=1))
