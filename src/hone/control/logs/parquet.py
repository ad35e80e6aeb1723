"""Logs of decisions on disk: hone's parquet, one row per decision, and Minari's HDF5, read and written as episodes.

Belongs here: the parquet format and its validation. Columns: `episode` (rows of one piece of an episode are
consecutive), `observation`, `action`, `reward`, `terminated`; and optionally `truncated` (absent: each episode that did
not terminate), `final` (observation after the last row of a piece; null in the others), `logp` (nats; NaN if unknown),
`mask` (flags of the legal actions) and `final_mask` (those in `final`), `group`, `version`, `score` (absent: the sum of
rewards). Arrays are lists of any kind. The spaces are in the file's
metadata under `hone`, as JSON in Minari's notation.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from gymnasium import spaces
from gymnasium.spaces import Discrete
from numpy.typing import NDArray

from hone.control.logs.formats import LogDataConfig, parse_space, propose_space, read_foreign_log
from hone.control.logs.minari import is_minari, read_minari, space_from_minari, space_to_minari, write_minari
from hone.core.episodes import Episodes, column_table, concatenate
from hone.core.errors import ConfigError, DataError
from hone.core.ragged import Ints, offsets_of, row_sums
from hone.process.user_files import file_fault

Array = NDArray[np.generic]

# ------------------------------------------------------------------------------------------------------ parquet columns


@dataclass(frozen=True, slots=True, kw_only=True)
class _LogColumns:
    """Columns of one file."""

    table: pa.Table
    path: Path

    def has(self, name: str) -> bool:
        """True if the file has the column."""
        return name in self.table.column_names

    def values(self, name: str, dtype: Any, shape: Sequence[int] = (), rows: Ints | None = None) -> NDArray[Any]:  # noqa: ANN401
        """Column `[N, *shape]`, or its `rows`: numbers, or lists of them of any kind and depth, flat or nested.

        Raises DataError for a row without a value, or with another count of numbers or another type.
        """
        column = self.table[name] if rows is None else self.table[name].take(pa.array(rows))
        places = np.arange(len(column)) if rows is None else rows
        flat, owner = _flattened(column.combine_chunks())
        if not (pa.types.is_integer(flat.type) or pa.types.is_floating(flat.type) or pa.types.is_boolean(flat.type)):
            raise DataError(
                f"{self.path}: column {name} is of type {self.table[name].type}; it must hold numbers or lists of "
                "numbers (see write_log of hone.control.logs.parquet)"
            )
        size = int(np.prod(shape, dtype=np.int64))
        counts = np.bincount(owner, minlength=len(column))
        wrong = np.flatnonzero(counts != size)
        if len(wrong):
            raise DataError(
                f"{self.path}: {len(wrong)} rows with a wrong count of numbers in {name}; the first is row "
                f"{places[wrong[0]]}: it has {counts[wrong[0]]}, expected {size} ({list(shape)})"
            )
        if flat.null_count:
            row = int(places[owner[int(np.flatnonzero(flat.is_null().to_numpy(zero_copy_only=False))[0])]])
            raise DataError(f"{self.path}: row {row} has no {name}")
        return self._as_type(flat.to_numpy(zero_copy_only=False), np.dtype(dtype), name, places[owner]).reshape(
            -1, *shape
        )

    def _as_type(self, values: Array, dtype: np.dtype[Any], name: str, rows: Ints) -> NDArray[Any]:
        """The values in `dtype`. Raises DataError where a whole number or a flag is expected and another is given."""
        if (
            dtype.kind == "b"
            and values.dtype.kind != "b"
            and len(wrong := np.flatnonzero((values != 0) & (values != 1)))
        ):
            raise DataError(
                f"{self.path}: row {rows[wrong[0]]}: {name} is {values[wrong[0]]}; it must be a flag, true or false, 1 "
                "or 0"
            )
        if dtype.kind in "iu" and values.dtype.kind == "f":
            wrong = np.flatnonzero(values != np.rint(values))
            if len(wrong):
                raise DataError(
                    f"{self.path}: row {rows[wrong[0]]}: {name} is {values[wrong[0]]}; it must be a whole number"
                )
        with np.errstate(over="ignore"):
            return values.astype(dtype)

    def rows(self, name: str) -> Array:
        """Column of numbers `[N]`, or of lists of as many numbers as the first row has `[N, k]`. Raises DataError."""
        flat, owner = _flattened(self.table[name].combine_chunks())
        count = int((owner == 0).sum())
        is_list = len(flat) != len(self.table) or not flat.type.equals(self.table[name].type)
        dtype = np.float32 if pa.types.is_floating(flat.type) else np.int64
        return self.values(name, dtype, (count,) if is_list else ())

    def nulls(self, name: str, rows: Ints) -> NDArray[np.bool_]:
        """Flags of `rows` without a value."""
        return self.table[name].take(pa.array(rows)).is_null().to_numpy()

    def last_rows(self) -> Ints:
        """The last row of each episode: rows of one `episode` stand together.

        Raises DataError for an episode whose rows do not.
        """
        column = self.table["episode"].combine_chunks()
        if column.null_count:
            row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise DataError(f"{self.path}: row {row} has no episode")
        number = column.dictionary_encode().indices.to_numpy()
        ends = np.append(np.flatnonzero(np.diff(number)), len(number) - 1)
        begun, counts = np.unique(number[ends], return_counts=True)
        if (counts > 1).any():
            again = int(ends[np.flatnonzero(number[ends] == begun[counts > 1][0])[1] - 1]) + 1
            raise DataError(
                f"{self.path}: row {again} goes on with episode {column[again].as_py()!r} after rows of another; sort "
                "the rows by episode and time"
            )
        return ends


def _flattened(column: pa.Array) -> tuple[pa.Array, Ints]:
    """The numbers of all rows in order, and the row that each belongs to. A null holds none."""
    owner = np.arange(len(column))
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    while any(is_kind(column.type) for is_kind in kinds):
        lengths = pc.call_function("list_value_length", [column]).fill_null(0)
        owner = np.repeat(owner, lengths.to_numpy(zero_copy_only=False))
        column = column.flatten()
    return column, owner


# -------------------------------------------------------------------------------------------------------------- parquet


AS_WRITTEN = LogDataConfig()
"""Columns and spaces under the names of the file's format."""
_ROUNDING = 1e-4
"""What rounding may add to the logarithm of a probability of 1."""
_HDF5 = {".hdf5", ".h5"}
_FOREIGN = {".csv", ".npz", *_HDF5}
"""Suffixes of files that describe no spaces."""
REQUIRED = ("episode", "observation", "action", "reward", "terminated")
OPTIONAL: dict[str, type[np.generic]] = {
    "group": np.int64, "version": np.int32, "logp": np.float32, "score": np.float64
}  # fmt: skip
"""Columns that a file need not have, besides `truncated` and `final`, and their types."""
SpacePair: TypeAlias = tuple[spaces.Space[Any], spaces.Space[Any]]
_EXTRA = {name: column for name, column in column_table().items() if column.optional and name != "final"}
"""Columns that are written under their own names where they are there; the metadata holds their shapes."""
_MASKS = ("mask", "final_mask")
"""Those of them that a file may have without metadata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BehaviourLog:
    """Decisions with their observation and action space."""

    episodes: Episodes
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    notes: tuple[str, ...] = ()
    """What a reader should know: decisions that were left out."""


def write_log(path: Path, log: BehaviourLog) -> None:
    """Write parquet, or a Minari dataset if `path` has no suffix: a folder, best named as `cartpole/mixed-v0`.

    Only scored episodes with recorded final observations can be written. Raises DataError otherwise, and ResourceError
    for Minari without h5py.
    """
    episodes, actions = log.episodes, log.action_space
    if isinstance(actions, spaces.Box) and np.dtype(actions.dtype).kind in "iu" and episodes.chosen.dtype.kind == "f":
        # as the environment took them: the nearest whole numbers
        episodes = replace(episodes, chosen=np.rint(episodes.chosen).astype(actions.dtype))
    if episodes.final is None or not episodes.scored.all():
        raise DataError(f"{path}: a log needs scored episodes with final observations")
    extra = {name: values for name, values in episodes.columns().items() if name in _EXTRA}
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
                name: _list_column(values[owner] if _EXTRA[name].unit == "episode" else values)
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


def read_log(path: Path, *, spaces: SpacePair | None = None, data: LogDataConfig = AS_WRITTEN) -> BehaviourLog:
    """Read parquet, Minari's folder or `.hdf5` file, or a file of `formats.py` (CSV, npz, D4RL, d3rlpy).

    `data` names the columns and spaces of a file that hone did not write; `spaces` of observations and actions, an
    environment's, are taken where neither the file nor `data` has any. Raises DataError that names file, row and value.
    """
    if path.is_dir() or (path.suffix in _HDF5 and is_minari(path)):
        if data != AS_WRITTEN:
            raise DataError(f"{path}: a Minari data set names its columns and spaces itself; leave [data] out")
        episodes, observation, action, notes = read_minari(path)
        log = BehaviourLog(episodes=episodes, observation_space=observation, action_space=action, notes=notes)
    elif path.suffix in _FOREIGN or data.columns:
        table, notes = read_foreign_log(path, data)
        log = _read_columns(_LogColumns(table=table, path=path), spaces, data)
        log = replace(log, notes=(*notes, *log.notes))
        wrong = np.flatnonzero(log.episodes.logp > _ROUNDING)
        if len(wrong) and isinstance(log.action_space, Discrete):
            raise DataError(
                f"{path}: row {wrong[0]}: logp is {log.episodes.logp[wrong[0]]:.4g}, and the logarithm of a "
                'probability is at most 0; if the column holds probabilities, write data.columns.logp = "NAME:log"'
            )
    else:
        log = _read_columns(_LogColumns(table=_table(path), path=path), spaces, data)
    _require_sound(log, path)
    return _without_unusable_ends(log)


def joined_logs(paths: Sequence[Path], logs: Sequence[BehaviourLog]) -> BehaviourLog:
    """The episodes of several logs as one; groups of different logs stay apart. Raises DataError naming every log that
    has other spaces or other columns than the first."""
    first, faults = logs[0], list[str]()
    for path, log in zip(paths[1:], logs[1:], strict=True):
        pairs = {
            "observation": (log.observation_space, first.observation_space),
            "action": (log.action_space, first.action_space),
        }
        faults += [
            f"{path}: its {name}s are of {theirs}, and those of {paths[0]} of {ours}"
            for name, (theirs, ours) in pairs.items()
            if theirs != ours
        ]
        differing = sorted(first.episodes.columns().keys() ^ log.episodes.columns().keys())
        if differing:
            faults.append(f"{path}: it and {paths[0]} do not both have {', '.join(differing)}; a column must be in all")
    if faults:
        raise DataError(*faults)
    pieces: list[Episodes] = []
    begun = 0
    for log in logs:
        _, group = np.unique(log.episodes.group, return_inverse=True)
        pieces.append(replace(log.episodes, group=group + begun))
        begun += int(group.max()) + 1
    notes = tuple(note for log in logs for note in log.notes)
    return replace(first, episodes=concatenate(pieces), notes=notes)


def describe_log(log: BehaviourLog) -> str:
    """A line for `hone plan` and `hone show`: episodes, how they end, decisions, returns and spaces."""
    episodes = log.episodes
    terminated, truncated = int(episodes.terminated.sum()), int(episodes.truncated.sum())
    low, middle, high = np.quantile(episodes.score, (0.1, 0.5, 0.9))
    return (
        f"{len(episodes)} episodes ({terminated} terminated, {truncated} truncated, "
        f"{len(episodes) - terminated - truncated} cut), {episodes.decisions} decisions"
        f"{'' if episodes.mask is None else ' with masks of legal actions'}; returns {low:.4g}, "
        f"{middle:.4g}, {high:.4g} (10%, median, 90%); observations {_space_words(log.observation_space)}, actions "
        f"{_space_words(log.action_space)}"
    )


def _space_words(space: spaces.Space[Any]) -> str:
    if isinstance(space, spaces.Discrete):
        return f"{int(space.start)} to {int(space.start) + int(space.n) - 1}"
    return f"{space.dtype}{list(space.shape or ())}"


def _read_columns(columns: _LogColumns, spaces: SpacePair | None, data: LogDataConfig) -> BehaviourLog:
    path = columns.path
    observation, action, shapes = _described(columns, spaces, data)
    ends = columns.last_rows()
    offsets = offsets_of(np.diff(ends, prepend=-1))
    flags = {name: columns.values(name, np.bool_) for name in ("terminated", "truncated") if columns.has(name)}
    terminated = flags["terminated"]
    early = np.setdiff1d(np.flatnonzero(np.logical_or.reduce(list(flags.values()))), ends)
    if len(early):
        raise DataError(f"{path}: row {early[0]} ends its episode, and is not the last row of it")
    reward = columns.values("reward", np.float32)
    optional = {name: columns.values(name, dtype) for name, dtype in OPTIONAL.items() if columns.has(name)}
    seen = columns.values("observation", observation.dtype, observation.shape or ())
    extra: dict[str, Any] = {
        name: columns.values(name, _EXTRA[name].dtype, shape) for name, shape in shapes.items() if name not in _MASKS
    }
    read = Episodes(
        offsets=offsets,
        seen=seen,
        chosen=columns.values("action", action.dtype, action.shape or ()),
        logp=optional.get("logp", np.full(len(reward), np.nan, np.float32)),
        version=optional.get("version", np.full(len(reward), -1, np.int32)),
        reward=reward,
        group=optional["group"][ends] if "group" in optional else np.arange(len(ends)),
        terminated=terminated[ends],
        truncated=flags["truncated"][ends] if "truncated" in flags else ~terminated[ends],
        final=seen[ends].copy(),
        score=optional["score"][ends] if "score" in optional else row_sums(reward, offsets).astype(np.float64),
        **{name: values[ends] if _EXTRA[name].unit == "episode" else values for name, values in extra.items()},
        **_masks(columns, action, ends, terminated[ends]),
    )
    unended = ends[~read.terminated]
    without_final = np.flatnonzero(columns.nulls("final", unended)) if columns.has("final") else unended[:0]
    if len(without_final):
        raise DataError(
            f"{path}: row {unended[without_final[0]]} is the last of its episode and has no `final` observation; only "
            "a terminated episode needs none"
        )
    log = BehaviourLog(episodes=read, observation_space=observation, action_space=action)
    _require_sound(log, path)  # before any row is left out: its messages name rows of the file
    return _with_finals(log, columns, ends)


def _masks(
    columns: _LogColumns, action: spaces.Space[Any], ends: Ints, terminated: NDArray[np.bool_]
) -> dict[str, Any]:
    """Legal actions at each decision `[N, M]` and in the last observation of each episode `[E, M]`, where the file has
    them; all actions where a termination leaves none. Without a column `final_mask` those of the last decision, as its
    observation is then the last that is used."""
    if not columns.has("mask") or not isinstance(action, spaces.Discrete):
        return {}
    shape = (int(action.n),)
    mask = columns.values("mask", np.bool_, shape)
    final = mask[ends].copy()
    if columns.has("final") and columns.has("final_mask"):
        known = ~columns.nulls("final_mask", ends)
        final[~known] = False
        if known.any():
            final[known] = columns.values("final_mask", np.bool_, shape, rows=ends[known])
        if len(stuck := ends[~final.any(axis=1) & ~terminated]):
            raise DataError(
                f"{columns.path}: row {stuck[0]} is the last of an episode that did not terminate, and its "
                "`final_mask` has no legal action"
            )
    final[~final.any(axis=1)] = True
    return {"mask": mask, "final_mask": final}


def _table(path: Path) -> pa.Table:
    """The table of a file with the columns that must be there. Raises DataError."""
    if fault := file_fault(path):
        raise DataError(fault)
    if not path.is_file():
        raise DataError(f"{path}: there is no such file; paths are relative to the working directory, {Path.cwd()}")
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path}: not a complete parquet file: {error}") from error
    missing = [name for name in REQUIRED if name not in table.column_names]
    if missing:
        raise DataError(
            f"{path}: no column {', '.join(missing)}; it has {', '.join(table.column_names)}. A log has a row for each "
            "decision; write_log of hone.control.logs.parquet writes one"
        )
    if table.num_rows == 0:
        raise DataError(f"{path}: no decisions")
    return table


def _described(
    columns: _LogColumns, given: SpacePair | None, data: LogDataConfig
) -> tuple[spaces.Space[Any], spaces.Space[Any], dict[str, list[int]]]:
    """Spaces of the decisions, and shapes of the optional columns: those of `data`, else of the file's metadata, else
    those `given`."""
    path = columns.path
    try:
        notes = json.loads((columns.table.schema.metadata or {}).get(b"hone", b"null"))
        shapes = {} if notes is None else notes.get("columns", {})
        names = ("observation", "action")
        known = given if notes is None else [space_from_minari(notes[f"{name}_space"], path) for name in names]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: the file's metadata (key `hone`) do not describe its spaces: {error!r}") from error
    if known is None and path.suffix not in _FOREIGN and data == AS_WRITTEN:
        raise DataError(
            f"{path}: no spaces in the file's metadata (key `hone`): it was not written by write_log of "
            "hone.control.logs.parquet. Write it so, or name the environment in [env]: its spaces are taken; or "
            "write them in data.spaces"
        )
    if strange := [name for name in data.spaces if name not in names]:
        raise ConfigError(*(f"data.spaces.{name}: only observation and action have a space" for name in strange))
    spaces_made = [
        _told_space(columns, name, data, None if known is None else known[place]) for place, name in enumerate(names)
    ]
    if faults := [one for one in spaces_made if isinstance(one, str)]:
        raise DataError(*faults)
    return spaces_made[0], spaces_made[1], shapes  # pyright: ignore[reportReturnType] - no text is left


def _told_space(
    columns: _LogColumns, name: str, data: LogDataConfig, known: spaces.Space[Any] | None
) -> spaces.Space[Any] | str:
    """Space of a column; without one that is told or known, an unbounded box for an observation of numbers with
    fractions, and otherwise the fault."""
    if name not in data.spaces and known is not None:
        return known
    values = columns.rows(name)
    if name in data.spaces:
        return parse_space(data.spaces[name], f"data.spaces.{name}", values)
    if name == "observation" and values.dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, values.shape[1:] or (1,), np.float32)
    return (
        f"{columns.path}: the file does not say which {name}s there are; name the environment in [env], or write "
        f'data.spaces.{name} = "{propose_space(values)}", which holds all of its {name}s'
    )


def _with_finals(log: BehaviourLog, columns: _LogColumns, ends: Ints) -> BehaviourLog:
    """The log with the observation after each episode. A termination needs none. Where the file has no column `final`
    (or none `final_mask` beside a `mask`), the last decision of every other episode is left out: the observation before
    it is the last that is known."""
    episodes, path, space = log.episodes, columns.path, log.observation_space
    assert episodes.final is not None
    needed = ("final",) if episodes.mask is None else ("final", "final_mask")
    missing = next((name for name in needed if not columns.has(name)), None)
    if missing is None:
        known = ~columns.nulls("final", ends)
        if known.any():
            episodes.final[known] = columns.values("final", space.dtype, space.shape or (), rows=ends[known])
        return log
    cut = ~episodes.terminated
    if not cut.any():
        return log
    kept = np.setdiff1d(np.arange(episodes.decisions), ends[cut])
    whole = episodes.lengths - cut
    if not len(kept):
        raise DataError(
            f"{path}: no column {missing}, and no episode of two decisions or with an end: nothing to learn"
        )
    columns_kept = {
        name: values[kept] if column.unit == "decision" else values[whole > 0]
        for name, values in episodes.columns().items()
        for column in (column_table()[name],)
    }
    note = (
        f"{path}: no column {missing}: the last decision of {int(cut.sum())} episodes that did not terminate is left "
        f"out, as {'the observation' if missing == 'final' else 'what is legal'} after it is not known"
    )
    return replace(log, episodes=Episodes.from_columns(offsets_of(whole[whole > 0]), columns_kept), notes=(note,))


def _list_column(values: Array) -> pa.Array:
    """Column of numbers for `[N]`, of fixed-size lists for `[N, ...]`."""
    if values.ndim == 1:
        return pa.array(values)
    flat = np.ascontiguousarray(values).reshape(len(values), -1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel()), flat.shape[1])


def _require_sound(log: BehaviourLog, path: Path) -> None:
    """Raises DataError for numbers that are not finite, and for actions outside their space or their mask."""
    episodes = log.episodes
    faults: list[str] = []
    for name, values in (("observation", episodes.observations), ("reward", episodes.reward)):
        wrong = _rows(~np.isfinite(values)) if values.dtype.kind == "f" else np.zeros(0, np.int64)
        if len(wrong):
            faults.append(f"{path}: {len(wrong)} rows with {name} not finite; the first is row {wrong[0]}")
    wrong_ends = np.flatnonzero(_not_finite_ends(episodes) & ~episodes.terminated)
    if len(wrong_ends):
        row = int(episodes.offsets[wrong_ends[0] + 1]) - 1
        faults.append(f"{path}: {len(wrong_ends)} final observations not finite; the first is after row {row}")
    low, high = _bounds(log.action_space)
    outside = _rows(~((episodes.chosen >= low) & (episodes.chosen <= high)))
    if len(outside):
        first = int(outside[0])
        faults.append(
            f"{path}: {len(outside)} actions outside {log.action_space}; the first is "
            f"{episodes.chosen[first].tolist()} in row {first}"
        )
    elif episodes.mask is not None and isinstance(log.action_space, spaces.Discrete):
        index = episodes.chosen.astype(np.int64) - int(log.action_space.start)
        if len(illegal := np.flatnonzero(~episodes.mask[np.arange(len(index)), index])):
            faults.append(
                f"{path}: {len(illegal)} actions are illegal by their own mask; the first is "
                f"{episodes.chosen[illegal[0]].tolist()} in row {illegal[0]}, where the legal ones are "
                f"{(np.flatnonzero(episodes.mask[illegal[0]]) + int(log.action_space.start)).tolist()}"
            )
    if faults:
        raise DataError(*faults)


def _not_finite_ends(episodes: Episodes) -> NDArray[np.bool_]:
    """`[E]` flags of final observations that are not finite."""
    final = episodes.final
    if final is None or final.dtype.kind != "f":
        return np.zeros(len(episodes), np.bool_)
    return np.asarray((~np.isfinite(final)).reshape(len(final), -1).any(axis=1), np.bool_)


def _without_unusable_ends(log: BehaviourLog) -> BehaviourLog:
    """The log in which the last observation stands for a final one that is not finite: nothing follows a termination,
    so that no value of it is needed."""
    episodes, wrong = log.episodes, np.flatnonzero(_not_finite_ends(log.episodes))
    if not len(wrong):
        return log
    assert episodes.final is not None
    final = episodes.final.copy()
    final[wrong] = episodes.observations[episodes.offsets[1:][wrong] - 1]
    return replace(log, episodes=replace(episodes, final=final))


def _bounds(space: spaces.Space[Any]) -> tuple[Any, Any]:
    if isinstance(space, spaces.Discrete):
        return int(space.start), int(space.start) + int(space.n) - 1
    assert isinstance(space, spaces.Box)
    return space.low, space.high


def _rows(flags: NDArray[np.bool_]) -> Ints:
    return np.flatnonzero(flags.reshape(len(flags), -1).any(axis=1))
