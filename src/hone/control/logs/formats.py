"""Logs that other programs wrote, as the columns of hone's parquet: CSV, npz, and the HDF5 files of D4RL and d3rlpy.

Belongs here: finding a file's columns, by `[data] columns` or by the names that its format uses, and where its episodes
begin. Numbers, counts and spaces are checked by `parquet.py`, the same for all formats. Rows are counted from 0.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import Field

from hone.control.logs.minari import load_h5py
from hone.core.config import Config
from hone.core.errors import ConfigError, DataError, did_you_mean
from hone.core.strict_json import strict_json
from hone.process.user_files import file_fault

Array = NDArray[np.generic]
RawColumn: TypeAlias = pa.ChunkedArray | Array

_ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "episode": ("episode", "episode_id"),
    "start": ("episode_starts",),
    "time": ("time",),
    "observation": ("observation", "observations", "obs"),
    "action": ("action", "actions"),
    "reward": ("reward", "rewards"),
    "terminated": ("terminated", "terminals", "terminations"),
    "truncated": ("truncated", "timeouts", "truncations"),
    "final": ("final", "next_observations", "next_observation"),
    "logp": ("logp", "infos/action_log_probs"),
    "group": ("group",),
    "version": ("version",),
    "score": ("score",),
    "mask": ("mask", "action_mask", "action_masks"),
    "final_mask": ("final_mask", "next_action_mask", "next_action_masks"),
}
"""Columns of a log, and the names under which the formats have them; a config names others."""
_MIXED_ENDS: Final = ("done", "dones", "is_done", "episode_terminals")
_NOTES: Final = {
    "antmaze": "its version 0 has timeouts out of step with the ends of its episodes (D4RL issue 77): take version 2",
    "maze2d": "it is one endless trajectory: `timeouts` say that the goal was reached (D4RL issue 85), and rewards "
    "come one step early (issue 194)",
}
"""Known faults of data sets, by a part of the file's name."""


class LogDataConfig(Config):
    """Columns and spaces of a log that another program wrote."""

    columns: dict[str, str | list[str]] = Field(default={})
    """Column of the log -> column of the file, several that make one array, or all that match `legal_*`. `p:log` takes
    the logarithm of column `p`. Known: episode, start, time, observation, action, reward, terminated, truncated, final
    (the next observation), logp, mask (flags of the legal actions), final_mask, group, version, score."""
    spaces: dict[str, str] = Field(default={})
    """Spaces of `observation` and `action`, where the file has none and there is no `[env]`: `box`, `box(-1, 1)`,
    `discrete(4)`, `discrete(4, start=1)`, `image(84, 84, 3)`."""


@dataclass(slots=True, kw_only=True)
class _RawLog:
    """A file's columns under its own names, all of one length."""

    path: Path
    kind: str
    """Name of the format, for messages."""
    columns: dict[str, RawColumn]
    notes: list[str] = field(default_factory=list[str])

    def type_of(self, name: str) -> str:
        """Type of a column, and the shape of its rows."""
        column = self.columns[name]
        if isinstance(column, np.ndarray):
            return f"{column.dtype} {list(column.shape[1:])}" if column.ndim > 1 else str(column.dtype)
        return str(column.type)

    def column(self, name: str) -> RawColumn:
        """A column, or the array that `name.0`, `name.1` ... make, or those that match a pattern with `*`.

        Raises DataError.
        """
        if name in self.columns:
            return _parsed(self.columns[name], name, self.path)
        pattern = re.compile(re.escape(name).replace(r"\*", ".*") if "*" in name else re.escape(name) + r"\.\d+")
        parts = sorted((one for one in self.columns if pattern.fullmatch(one)), key=_natural)
        if not parts:
            known = ", ".join(self.columns)
            raise DataError(f"{self.path}: no column {name!r}{did_you_mean(name, list(self.columns))}; it has {known}")
        missing = [f"{name}.{number}" for number in range(len(parts)) if f"{name}.{number}" not in parts]
        if "*" not in name and missing:
            raise DataError(f"{self.path}: no column {missing[0]!r}, and there is {parts[-1]!r}")
        return self.stacked(parts)

    def stacked(self, names: Sequence[str]) -> Array:
        """Columns side by side `[N, k]`. Raises DataError for one without numbers in every row."""
        parts = [_numbers(self.column(name), name, self.path) for name in names]
        return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)

    def find(self, role: str) -> str | None:
        """The file's own name for a column of the log; None if it has none of the usual ones."""
        wide = {name.rpartition(".")[0] for name in self.columns if name.rpartition(".")[2].isdigit()}
        return next((name for name in _ALIASES[role] if name in self.columns or name in wide), None)


def read_foreign_log(path: Path, data: LogDataConfig) -> tuple[pa.Table, tuple[str, ...]]:
    """Columns `episode, observation, action, reward, terminated` and those of the optional ones that the file has, and
    notes for the user. Raises DataError with everything that is missing, ResourceError without h5py."""
    raw = raw_log(path)
    unknown = [name for name in data.columns if name not in _ALIASES]
    if unknown:
        raise DataError(
            *(f"data.columns.{name}: a log has no such column{did_you_mean(name, list(_ALIASES))}" for name in unknown)
        )
    chosen = {role: data.columns.get(role) or raw.find(role) for role in _ALIASES}
    _require_columns(raw, chosen)
    columns = {role: _column(raw, role, names) for role, names in chosen.items() if names is not None}
    rows = len(columns["reward"])
    if not rows:
        raise DataError(f"{path}: no decisions")
    if "terminated" not in columns:
        columns["terminated"] = np.zeros(rows, np.bool_)
    start = columns.pop("start", None)
    if "episode" not in columns:
        columns["episode"] = _episode_numbers(raw, columns, start)
    if (time := columns.pop("time", None)) is not None:
        _require_order(path, _numbers(time, "time", path), _ids(columns["episode"]))
    table = pa.table({role: _arrow(column) for role, column in columns.items()})
    return table, tuple(f"{path}: {note}" for note in raw.notes)


def _require_columns(raw: _RawLog, chosen: Mapping[str, object]) -> None:
    """Raises DataError with every column that is missing, and for an end that may be either kind."""
    known, faults = ", ".join(raw.columns), list[str]()
    for role in ("observation", "action", "reward"):
        if chosen[role] is None:
            faults.append(f"{raw.path}: no column for {role}; name one with data.columns.{role} = ...; it has {known}")
    if chosen["terminated"] is None and chosen["start"] is None:
        mixed = next((name for name in _MIXED_ENDS if name in raw.columns), None)
        if mixed is None:
            faults.append(
                f"{raw.path}: no column says which decisions end their episode; name one with "
                f"data.columns.terminated = ...; it has {known}"
            )
        else:
            faults.append(
                f"{raw.path}: column {mixed!r} may mean that the episode terminated, or that it was cut, and a method "
                f'learns other values from either. Say data.columns.terminated = "{mixed}" if nothing follows, or '
                f'data.columns.truncated = "{mixed}" and name the terminations too'
            )
    if faults:
        raise DataError(*faults)


def _column(raw: _RawLog, role: str, names: str | list[str]) -> RawColumn:
    """The values of a column of the log. Raises DataError that names file, column and row."""
    if isinstance(names, list):
        return raw.stacked(names)
    name, _, change = names.partition(":")
    if not change or names in raw.columns:
        return raw.column(names)
    if change != "log":
        raise DataError(f"data.columns.{role} = {names!r}: {change!r} is not known, only log")
    values: NDArray[Any] = _numbers(raw.column(name), name, raw.path)
    wrong = np.flatnonzero(~((values > 0) & (values <= 1)))
    if len(wrong):
        raise DataError(f"{raw.path}: row {wrong[0]}: {name} is {values[wrong[0]]}, and a probability is in (0, 1]")
    return np.log(values)


# ------------------------------------------------------------------------------------------------------------ spaces

_SPACE: Final = re.compile(r"(box|discrete|image)(?:\(([^()]*)\))?")


def parse_space(text: str, key: str, values: Array) -> spaces.Space[Any]:
    """The space that a config writes as `text`; its shape is that of `values` `[N, ...]`. Raises ConfigError."""
    parsed = _SPACE.fullmatch(text.strip())
    try:
        if parsed is None:
            raise ValueError("unknown")
        parts = [part.strip() for part in (parsed[2] or "").split(",") if part.strip()]
        match parsed[1]:
            case "box":
                low, high = (float(part) for part in parts or ("-inf", "inf"))
                if not low < high:
                    raise ValueError("low is not below high")
                return spaces.Box(low, high, values.shape[1:] or (1,), np.float32)
            case "discrete":
                start = next((int(part.partition("=")[2]) for part in parts if part.startswith("start")), 0)
                counts = [int(part) for part in parts if not part.startswith("start")]
                return spaces.Discrete(counts[0] if counts else int(values.max()) - start + 1, start=start)
            case _:
                return spaces.Box(0, 255, tuple(int(part) for part in parts), np.uint8)
    except (ValueError, TypeError, AssertionError) as error:
        raise ConfigError(
            f"{key} = {text!r}: expected box, box(-1, 1), discrete(4), discrete(4, start=1) or image(84, 84, 3) "
            f"({error})"
        ) from None


def propose_space(values: Array) -> str:
    """The text of a space that holds `values` `[N, ...]`, for a message."""
    if values.dtype.kind in "iub" and values[0].size == 1 and values.min() >= 0:
        return f"discrete({int(values.max()) + 1})"
    return f"box({values.min():.4g}, {values.max():.4g})"


# ---------------------------------------------------------------------------------------------------------- episodes


def episode_numbers(ends: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Number of each decision's episode `[N]`, from flags of the last ones `[N]`."""
    return np.concatenate(([0], np.cumsum(ends[:-1]))).astype(np.int64)


def _episode_numbers(raw: _RawLog, columns: Mapping[str, RawColumn], start: RawColumn | None) -> NDArray[np.int64]:
    """Episodes of a file that does not number them: they end where a flag says so, where the next one starts, and where
    the next observation is not the one that the file says comes next."""
    flags = [
        _numbers(columns[name], name, raw.path).astype(np.bool_)
        for name in ("terminated", "truncated")
        if name in columns
    ]
    ends = reduce(np.logical_or, flags)
    if start is not None:
        ends |= np.append(_numbers(start, "start", raw.path).astype(np.bool_)[1:], True)
    if "final" in columns:
        seen, after = (_numbers(columns[name], name, raw.path) for name in ("observation", "final"))
        if seen.shape != after.shape:
            raise DataError(f"{raw.path}: observation has the shape {list(seen.shape)}, final {list(after.shape)}")
        same = ((seen[1:] == after[:-1]) | (np.isnan(seen[1:]) & np.isnan(after[:-1]))).reshape(len(seen) - 1, -1)
        broken = ~np.append(same.all(axis=1), True) & ~ends
        if broken.any():
            raw.notes.append(
                f"{int(broken.sum())} decisions are followed by another observation than the file's next one, without "
                f"a flag of an end; the first is row {int(np.flatnonzero(broken)[0])}. Their episodes are cut there"
            )
            ends |= broken
    numbers = episode_numbers(ends)
    single = int((np.bincount(numbers) == 1).sum())
    if single > 1 and 10 * single > numbers[-1] + 1:
        raw.notes.append(
            f"{single} of {numbers[-1] + 1} episodes have one decision: flags of ends that end nothing look like that "
            "(AntMaze: D4RL issue 199)"
        )
    return numbers


def _require_order(path: Path, time: Array, episode: NDArray[np.int64]) -> None:
    backwards = np.flatnonzero((np.diff(episode) == 0) & ~(np.diff(time) > 0))
    if len(backwards):
        row = int(backwards[0]) + 1
        raise DataError(
            f"{path}: row {row} has time {time[row]} after {time[row - 1]} of the same episode; sort the rows by "
            "episode and time"
        )


def _ids(column: RawColumn) -> NDArray[np.int64]:
    """Numbers `[N]`, equal where the values of a column are."""
    if isinstance(column, np.ndarray):
        return np.unique(column, return_inverse=True)[1]
    return column.combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)


# ----------------------------------------------------------------------------------------------------------- columns


def _parsed(column: RawColumn, name: str, path: Path) -> RawColumn:
    """A column of text as the arrays that its JSON describes; others as they are. Raises DataError naming the row."""
    if isinstance(column, np.ndarray) or not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column
    texts = column.to_pylist()
    if not any(text is not None and text.lstrip().startswith("[") for text in texts):
        return column
    rows: list[object] = []
    for row, text in enumerate(texts):
        try:
            rows.append(None if text is None else strict_json(text))
        except ValueError as error:
            raise DataError(f"{path}: row {row}: {name} is {text!r:.60}, which is no JSON: {error}") from None
    try:
        return pa.chunked_array([pa.array(rows)])
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(f"{path}: column {name} has rows of different kinds: {error}") from None


def _numbers(column: RawColumn, name: str, path: Path) -> Array:
    """A column as numbers `[N]` or `[N, k]`. Raises DataError for text, missing values and lists of unequal length."""
    if isinstance(column, np.ndarray):
        return column
    flat = column.combine_chunks()
    if flat.null_count:
        row = int(np.flatnonzero(flat.is_null().to_numpy(zero_copy_only=False))[0])
        raise DataError(f"{path}: row {row} has no {name}")
    rows = flat.to_pylist() if pa.types.is_nested(flat.type) else flat.to_numpy(zero_copy_only=False)
    try:
        values = np.asarray(rows)
    except ValueError:
        counts = [len(row) for row in rows]
        row = next(number for number, count in enumerate(counts) if count != counts[0])
        raise DataError(f"{path}: row {row}: {name} has {counts[row]} numbers, and row 0 has {counts[0]}") from None
    if values.dtype.kind not in "biuf":
        raise DataError(f"{path}: column {name} is of type {flat.type}, expected numbers; row 0 is {rows[0]!r:.60}")
    return values


def _arrow(column: RawColumn) -> Any:  # noqa: ANN401 - an Arrow array of any type
    if not isinstance(column, np.ndarray):
        return column
    if column.ndim == 1:
        return pa.array(column)
    flat = np.ascontiguousarray(column).reshape(len(column), -1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel()), flat.shape[1])


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Sorting key: numbers within names by their value."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name)]


# ----------------------------------------------------------------------------------------------------------- formats


def raw_log(path: Path) -> _RawLog:
    """Read a file by its suffix. Raises DataError for one that is missing or damaged."""
    if path.suffix != ".npz" and (fault := file_fault(path)):  # that one is a zip archive
        raise DataError(fault)
    if not path.is_file():
        raise DataError(f"{path}: there is no such file; paths are relative to the working directory, {Path.cwd()}")
    readers: dict[str, Callable[[Path], _RawLog]] = {
        ".csv": _read_csv, ".npz": _read_npz, ".hdf5": _read_hdf5, ".h5": _read_hdf5, ".parquet": _read_parquet,
    }  # fmt: skip
    if path.suffix not in readers:
        raise DataError(f"{path}: a log is one of {', '.join(readers)}, or a folder of Minari")
    raw = readers[path.suffix](path)
    lengths = {name: len(column) for name, column in raw.columns.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} {count}" for name, count in lengths.items())
        raise DataError(f"{path}: its columns have different numbers of rows: {counts}")
    raw.notes += [note for name, note in _NOTES.items() if name in path.name.lower()]
    return raw


def _read_csv(path: Path) -> _RawLog:
    try:
        table = pa_csv.read_csv(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path}: not a CSV file with a header: {error}") from None
    return _RawLog(path=path, kind="CSV", columns=dict(zip(table.column_names, table.columns, strict=True)))


def _read_parquet(path: Path) -> _RawLog:
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path}: not a complete parquet file: {error}") from None
    return _RawLog(path=path, kind="parquet", columns=dict(zip(table.column_names, table.columns, strict=True)))


def _read_npz(path: Path) -> _RawLog:
    """Arrays of one length; others (returns of episodes, a version) are left out."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            columns: dict[str, RawColumn] = {name: _plain_array(archive, name, path) for name in archive.files}
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: not a complete .npz file: {error}") from None
    return _RawLog(path=path, kind="npz", columns=_of_decisions(columns))


def _plain_array(archive: Any, name: str, path: Path) -> Array:  # noqa: ANN401 - an open .npz file
    try:
        return archive[name]
    except ValueError:
        raise DataError(
            f"{path}: array {name!r} holds Python objects, which would run code when they are read; save plain numbers"
        ) from None


def _read_hdf5(path: Path) -> _RawLog:
    h5py = load_h5py()
    try:
        with h5py.File(path, "r") as file:
            if "num_episodes" in file and "columns" in file:
                return _read_d3rlpy(path, file)
            names = [*file, *(f"infos/{key}" for key in file.get("infos", {}))]
            columns: dict[str, RawColumn] = {
                name: np.asarray(file[name])
                for name in names
                if isinstance(file[name], h5py.Dataset) and file[name].ndim
            }
    except OSError as error:
        raise DataError(f"{path}: not a complete HDF5 file: {error}") from None
    columns = _of_decisions(columns)
    if "terminals" in columns and "episode_terminals" in columns:  # d3rlpy 1
        terminals, ends = (np.asarray(columns[name]).astype(np.bool_) for name in ("terminals", "episode_terminals"))
        columns["timeouts"] = ends & ~terminals
        return _RawLog(path=path, kind="d3rlpy 1", columns=columns)
    return _RawLog(path=path, kind="D4RL", columns=columns)


def _of_decisions(columns: dict[str, RawColumn]) -> dict[str, RawColumn]:
    """The columns with as many rows as there are rewards, or all where there are none; those of the log's own names are
    kept, so that a wrong length is a fault and not a gap."""
    count = next((len(columns[name]) for name in _ALIASES["reward"] if name in columns), None)
    known = {name for names in _ALIASES.values() for name in names}
    return {
        name: column
        for name, column in columns.items()
        if np.ndim(column) and (count is None or len(column) == count or name in known)
    }


def _read_d3rlpy(path: Path, file: Any) -> _RawLog:  # noqa: ANN401 - an h5py file
    """d3rlpy 2: for each episode its observations, actions and rewards `[T, 1]`, numbered, and its end."""
    version = file["version"][()] if "version" in file else b""
    version = version.decode() if isinstance(version, bytes) else str(version)
    if version == "2.0":
        raise DataError(f"{path}: d3rlpy's version 2.0 of the format is obsolete; write it again with a later d3rlpy")
    columns: dict[str, list[Array]] = {
        "episode": [],
        "observations": [],
        "actions": [],
        "rewards": [],
        "terminated": [],
    }
    for number in range(int(file["num_episodes"][()])):
        place = f"{path}: episode {number}"
        if f"observations_{number}_0" in file:
            raise DataError(f"{place} has observations in several parts; join them into one array")
        names = [
            name for name in ("observations", "actions", "rewards", "terminated") if f"{name}_{number}" not in file
        ]
        if names:
            raise DataError(f"{place} has no {', '.join(f'{name}_{number}' for name in names)}")
        part = {name: np.asarray(file[f"{name}_{number}"]) for name in ("observations", "actions", "rewards")}
        steps = len(part["rewards"])
        wrong = [f"{name} {len(values)}" for name, values in part.items() if len(values) != steps]
        if wrong:
            raise DataError(f"{place} has {steps} rewards, and {', '.join(wrong)}")
        ended = np.zeros(steps, np.bool_)
        ended[-1:] = bool(file[f"terminated_{number}"][()])
        part |= {"episode": np.full(steps, number), "rewards": part["rewards"].reshape(steps), "terminated": ended}
        for name, values in part.items():
            columns[name].append(values)
    if not columns["rewards"]:
        raise DataError(f"{path}: no episodes")
    return _RawLog(path=path, kind="d3rlpy 2", columns={name: np.concatenate(parts) for name, parts in columns.items()})
