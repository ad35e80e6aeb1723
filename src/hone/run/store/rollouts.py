"""Rollouts of a step, `rollouts/step_00000010.parquet`: answers with their tokens, or episodes with their decisions.

Belongs here: the format, its writers and typed readers, and the thinning by a budget. pyarrow is imported on use: most
commands of hone do not open a parquet file. The metadata of the schema have `hone.rollouts`, `answers` or `episodes`.

Answers of a language model, a row each, in row groups of 250:

| column | type | content |
|---|---|---|
| `step`, `group`, `sample` | int64 | step; answers of one group have one prompt; number of the answer in its group |
| `prompt`, `completion` | string | texts; `completion` is all that follows the prompt |
| `turns` | list of [speaker, text] | of several turns, by `policy` or `environment`; empty for a single answer |
| `score`, `status` | double, string | score, null where it is missing; `scored`, `unscorable`, `error` or `timeout` |
| `components` | map of name to double | score of each of several rewards before its weight, null where it gave none |
| `reference` | string | the reference answer of the dataset's row (`answer` or `ground_truth`); null without one |
| `advantage` | double | of the first token; null where the score is missing |
| `tokens` | int64 | tokens that the policy sampled |
| `finish` | string | why it ended: `stop`, `length`, or the stop reason of a dialogue |
| `version` | int64 | version of the policy that sampled the first token |
| `tool_calls` | int64 | calls that could be read; null for answers that are no dialogues with tools |
| `log_ratio` | double | preference data: log pi / pi_ref of the answer in nats, log pi without a reference |

`turns`, `reference`, `components`, `tool_calls` and `log_ratio` are absent where no answer has them. The following
lists have an entry for each token of prompt, answer and environment; `entropy`, `advantages` and `values` are absent
where no token has them:

| column | type | content; null where the token was not sampled, and where it is not known |
|---|---|---|
| `ids` | int32 | the tokens; never null |
| `mask` | bool | True for a token that the policy sampled; never null |
| `logp` | float | nats, under the behaviour policy that sampled it |
| `logp_now` | float | nats, under the learner's policy before the step's first update, where the loss computed it |
| `logp_last` | float | nats, under the policy of the learner's last pass over it; equal to `logp_now` with one update |
| `entropy` | float | nats, of the learner's policy at its first pass, where the loss needs it |
| `clipped` | bool | whether its gradient was clipped to 0 in the last epoch |
| `versions` | int32 | version of the policy that sampled it |
| `advantages` | float | advantage; null everywhere where all tokens of an answer share `advantage` |
| `values` | float | the critic's value; null everywhere without a critic |

The seconds of each answer, which no two runs share, stand beside it in `time/step_00000010.json`: `seconds`, from the
request to the end, and `world_seconds`, those of them in which it waited for its environment; null where nobody took
the time. Two runs with equal seeds have equal files of rollouts.

Episodes of control, bandits and tables, a row each:

| column | type | content |
|---|---|---|
| `step`, `id` | int64 | step; identity of the episode, the same for all its pieces (-1: not known) |
| `group` | int64 | episodes of one group have one start; pieces of one episode share it |
| `score`, `status` | double, string | return of the whole episode so far; as above |
| `end` | string | `terminated`, `truncated`, or `open`: a piece whose episode goes on |
| `decisions`, `version` | int64 | decisions of the piece; version of the policy that took the first |
| `actions` | list of lists of float | the action of each decision, as numbers |
| `rewards`, `logp`, `advantages` | list of float | reward after it; nats under the behaviour policy; advantage |
| `values` | list of float | the critic's value before it; null without a critic |
| `observations` | list of lists of float | what was seen before it, where that is at most 64 numbers; else null |
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (pyarrow has no type information)
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from hone.core.conversation import Turn
from hone.core.episodes import ScoreStatus
from hone.core.errors import DataError
from hone.core.ragged import Ints, offsets_of
from hone.run.store.checkpoints import step_name
from hone.run.store.durable import read_json, replace_file, to_json, write_file, writing
from hone.run.store.records import parse_record

ROLLOUTS: Final = "rollouts"
"""Folder of the files in a run's folder."""
TIMES: Final = "time"
"""Folder of the seconds of answers."""
OLD_ROLLOUTS: Final = "samples"
"""Folder of their predecessors, which have no tokens: runs of hone 0.2 and earlier."""
GROUP_ROWS: Final = 250
"""Rows of a row group: what is read for one answer."""
MAX_OBSERVATION: Final = 64
"""Largest observation, in numbers, that is written."""
DUE_STEPS, DUE_DECISIONS = 10, 40_000
"""Steps, and decisions, between two files where `run.rollouts_every` is unset: a file takes as long as some thousand
decisions of a small policy."""
_KIND: Final = b"hone.rollouts"
End = Literal["terminated", "truncated", "open"]
ENDS: Final[tuple[End, ...]] = ("terminated", "truncated", "open")


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRow:
    """One answer. `score` and `advantage` are None if missing (see `status`); `tokens` counts those of the answer."""

    step: int
    group: int
    sample: int
    prompt: str
    completion: str
    score: float | None
    status: str
    advantage: float | None
    tokens: int
    finish: str
    version: int
    turns: Sequence[Turn] = ()
    """Texts of a conversation of several turns, the environment's among them; empty for a single answer."""
    reference: str | None = None
    components: Mapping[str, float | None] = field(default_factory=dict[str, float | None])
    """Score of each of several reward functions, before its weight."""
    tool_calls: int | None = None
    log_ratio: float | None = None
    """log pi / pi_ref of the whole answer in nats, log pi without a reference: of data that are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenColumns:
    """Tokens of E answers, T in all: those of the prompt, the policy and the environment, in their order. NaN, and -1
    for whole numbers, stand where a token was not sampled or nothing is known."""

    offsets: Ints
    """`[E+1]` first token of each answer."""
    ids: NDArray[np.int32]
    mask: NDArray[np.bool_]
    """`[T]` True for tokens that the policy sampled."""
    logp: NDArray[np.float32]
    logp_now: NDArray[np.float32]
    logp_last: NDArray[np.float32]
    entropy: NDArray[np.float32]
    clipped: NDArray[np.int8]
    """`[T]` 1 where the gradient was clipped to 0, 0 where not."""
    versions: NDArray[np.int32]
    advantages: NDArray[np.float32]
    values: NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerTimes:
    """Seconds of E answers; None where nobody took the time."""

    seconds: tuple[float | None, ...]
    """From the request to the end."""
    world_seconds: tuple[float | None, ...]
    """Those of them in which the answer waited for its environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRollouts:
    """Answers of a step with their tokens."""

    rows: Sequence[SampleRow]
    tokens: TokenColumns | None = None
    """None: a file without token columns, as before hone 0.3."""
    times: AnswerTimes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeTable:
    """E episodes, or pieces of them, with N decisions of a step."""

    step: int
    offsets: Ints
    """`[E+1]` first decision of each."""
    id: Ints
    group: Ints
    score: NDArray[np.float64]
    """`[E]`, NaN where it is missing."""
    status: NDArray[np.uint8]
    end: NDArray[np.uint8]
    """`[E]` place in `ENDS`."""
    version: Ints
    actions: NDArray[np.float32]
    """`[N, A]`."""
    rewards: NDArray[np.float32]
    logp: NDArray[np.float32]
    advantages: NDArray[np.float32]
    values: NDArray[np.float32] | None = None
    """`[N]`; None without a critic."""
    observations: NDArray[np.float32] | None = None
    """`[N, O]`; None where they are too large."""


RolloutTable = AnswerRollouts | EpisodeTable
COLUMNS: Final = tuple(one.name for one in fields(SampleRow))
_YOUNGER: Final = frozenset({"turns", "reference", "components", "tool_calls", "log_ratio"})
"""Columns that files of earlier versions lack, and those of which no answer has anything."""
_OFTEN_UNKNOWN: Final = ("entropy", "advantages", "values")
"""Columns of tokens that a file lacks where nothing is known of them."""
_TOKEN_COLUMNS: Final = tuple(one.name for one in fields(TokenColumns) if one.name != "offsets")


# -------------------------------------------------------------------------------------------------------------- writing


def write_rollouts(path: Path, table: RolloutTable) -> None:
    """Write a step's rollouts atomically; makes the folder. Raises ResourceError.

    Invalid Unicode (a lone surrogate) is replaced by `?`.
    """
    import pyarrow as pa  # noqa: PLC0415 - start-up time
    import pyarrow.parquet as pq  # noqa: PLC0415

    answers = isinstance(table, AnswerRollouts)
    columns = _answer_columns(table) if answers else _episode_columns(table)
    made = pa.table(columns, metadata={_KIND: b"answers" if answers else b"episodes"})
    repeats = [name for name, column in columns.items() if pa.types.is_string(column.type)]
    sink = pa.BufferOutputStream()
    pq.write_table(
        made,
        sink,
        # Of a small file zstd saves 2% of the bytes, and takes twice the time.
        compression="zstd" if made.num_rows > GROUP_ROWS else "lz4",
        row_group_size=GROUP_ROWS,
        use_dictionary=repeats,  # pyright: ignore[reportArgumentType] - it takes names, too
        write_statistics=False,
    )
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(table, AnswerRollouts) and table.times is not None:
        times = _times_path(path)
        with writing(times.parent):
            times.parent.mkdir(exist_ok=True)
        seconds, waiting = table.times.seconds, table.times.world_seconds
        # Nobody looks for them before the rollouts are there, so that they need not appear at once.
        write_file(times, to_json({"seconds": [*seconds], "world_seconds": [*waiting]}), sync=False)
    replace_file(path, sink.getvalue().to_pybytes(), sync=False)


def _answer_columns(table: AnswerRollouts) -> dict[str, Any]:
    import pyarrow as pa  # noqa: PLC0415 - start-up time

    rows = table.rows
    columns = {
        "step": pa.array([row.step for row in rows], pa.int64()),
        "group": pa.array([row.group for row in rows], pa.int64()),
        "sample": pa.array([row.sample for row in rows], pa.int64()),
        "prompt": pa.array([_clean(row.prompt) for row in rows], pa.string()),
        "completion": pa.array([_clean(row.completion) for row in rows], pa.string()),
        "score": pa.array([row.score for row in rows], pa.float64()),
        "status": pa.array([row.status for row in rows], pa.string()),
        "advantage": pa.array([row.advantage for row in rows], pa.float64()),
        "tokens": pa.array([row.tokens for row in rows], pa.int64()),
        "finish": pa.array([row.finish for row in rows], pa.string()),
        "version": pa.array([row.version for row in rows], pa.int64()),
    }
    columns |= _known_columns(rows)
    return columns | ({} if table.tokens is None else _token_columns(table.tokens))


def _known_columns(rows: Sequence[SampleRow]) -> dict[str, Any]:
    """Columns of what only some runs have; those of which no answer has anything are left out."""
    import pyarrow as pa  # noqa: PLC0415 - start-up time

    columns: dict[str, Any] = {}
    if any(row.turns for row in rows):
        texts = [[list(map(_clean, turn)) for turn in row.turns] for row in rows]
        columns["turns"] = pa.array(texts, pa.list_(pa.list_(pa.string())))
    if any(row.reference is not None for row in rows):
        references = [None if row.reference is None else _clean(row.reference) for row in rows]
        columns["reference"] = pa.array(references, pa.string())
    if any(row.components for row in rows):
        scores = [list(row.components.items()) for row in rows]
        columns["components"] = pa.array(scores, pa.map_(pa.string(), pa.float64()))
    if any(row.tool_calls is not None for row in rows):
        columns["tool_calls"] = pa.array([row.tool_calls for row in rows], pa.int64())
    if any(row.log_ratio is not None for row in rows):
        columns["log_ratio"] = pa.array([row.log_ratio for row in rows], pa.float64())
    return columns


def _token_columns(tokens: TokenColumns) -> dict[str, Any]:
    import pyarrow as pa  # noqa: PLC0415 - start-up time

    offsets = pa.array(tokens.offsets.astype(np.int32))
    floats = {
        name: (column, np.isnan(column))
        for name, column in (
            ("logp", tokens.logp),
            ("logp_now", tokens.logp_now),
            ("logp_last", tokens.logp_last),
            ("entropy", tokens.entropy),
            ("advantages", tokens.advantages),
            ("values", tokens.values),
        )
    }
    flat = {
        "ids": pa.array(tokens.ids),
        "mask": pa.array(tokens.mask),
        "clipped": pa.array(tokens.clipped > 0, mask=tokens.clipped < 0),
        "versions": pa.array(tokens.versions, mask=tokens.versions < 0),
        **{
            name: pa.array(column, mask=unknown)
            for name, (column, unknown) in floats.items()
            if name not in _OFTEN_UNKNOWN or not unknown.all()
        },
    }
    return {name: pa.ListArray.from_arrays(offsets, flat[name]) for name in _TOKEN_COLUMNS if name in flat}


def _episode_columns(table: EpisodeTable) -> dict[str, Any]:
    import pyarrow as pa  # noqa: PLC0415 - start-up time

    count = len(table.offsets) - 1
    offsets = pa.array(table.offsets.astype(np.int32))

    def floats(column: NDArray[np.float32] | None) -> Any:  # noqa: ANN401 - pyarrow has no type information
        """A list of numbers for each episode, or of rows of numbers."""
        if column is None:
            return pa.array([None] * count, pa.list_(pa.float32()))
        if column.ndim == 1:
            return pa.ListArray.from_arrays(offsets, pa.array(column, mask=np.isnan(column)))
        rows = pa.array(np.arange(len(column) + 1, dtype=np.int32) * column.shape[1])
        return pa.ListArray.from_arrays(offsets, pa.ListArray.from_arrays(rows, pa.array(column.reshape(-1))))

    return {
        "step": pa.array(np.full(count, table.step)),
        "id": pa.array(table.id),
        "group": pa.array(table.group),
        "score": pa.array(table.score, mask=np.isnan(table.score)),
        "status": pa.array([ScoreStatus(one).name.lower() for one in table.status.tolist()], pa.string()),
        "end": pa.array([ENDS[one] for one in table.end.tolist()], pa.string()),
        "decisions": pa.array(np.diff(table.offsets)),
        "version": pa.array(table.version),
        "actions": floats(table.actions),
        "rewards": floats(table.rewards),
        "logp": floats(table.logp),
        "advantages": floats(table.advantages),
        "values": floats(table.values),
        "observations": pa.array([None] * count, pa.list_(pa.list_(pa.float32())))
        if table.observations is None
        else floats(table.observations),
    }


# -------------------------------------------------------------------------------------------------------------- reading


def rollout_path(run: Path, step: int, *, folder: str = ROLLOUTS) -> Path:
    """File of a step's rollouts, whether or not it is there."""
    return run / folder / f"{step_name(step)}.parquet"


def rollout_files(run: Path) -> dict[int, Path]:
    """Files of a run by step, ascending; those of `samples/` where an earlier version wrote them."""
    files = [*(run / OLD_ROLLOUTS).glob("step_*.parquet"), *(run / ROLLOUTS).glob("step_*.parquet")]
    return dict(sorted((int(path.stem.removeprefix("step_")), path) for path in files))


def _times_path(path: Path) -> Path:
    return path.parents[1] / TIMES / f"{path.stem}.json"


def rollout_bytes(path: Path) -> int:
    """Size of a file of rollouts, with its times."""
    times = _times_path(path)
    return path.stat().st_size + (times.stat().st_size if times.exists() else 0)


def _remove_rollouts(path: Path) -> None:
    """Remove a file of rollouts, with its times."""
    path.unlink(missing_ok=True)
    _times_path(path).unlink(missing_ok=True)


def read_times(path: Path, answers: int) -> AnswerTimes:
    """Read the seconds of the `answers` of a file of rollouts: None for each where they are not there, or of another
    number of answers, written before a resume did the step again. Raises DataError for damaged ones."""
    times = _times_path(path)
    unknown = AnswerTimes(seconds=(None,) * answers, world_seconds=(None,) * answers)
    if not times.exists():
        return unknown
    read = parse_record(AnswerTimes, read_json(times), times)
    if len(read.seconds) != answers or len(read.world_seconds) != answers:
        return unknown
    return read


def rollout_kind(path: Path) -> Literal["answers", "episodes"]:
    """Whether a file holds answers or episodes. Raises DataError for a damaged one."""
    metadata = _open(path).schema_arrow.metadata or {}
    return "episodes" if metadata.get(_KIND) == b"episodes" else "answers"


def read_samples(path: Path) -> list[SampleRow]:
    """Read the answers without their tokens. Raises DataError for a file that is missing, truncated, not parquet, or
    lacks columns."""
    file = _open(path)
    names = file.schema_arrow.names
    if missing := [name for name in COLUMNS if name not in names and name not in _YOUNGER]:
        raise DataError(f"{path} lacks the columns {', '.join(missing)}; it has {', '.join(names)}")
    rows: list[dict[str, Any]] = _read(file, path, [name for name in COLUMNS if name in names]).to_pylist()
    for row in rows:
        row["turns"] = tuple((role, text) for role, text in row.get("turns") or ())
        row["components"] = dict(row.get("components") or ())
    return [SampleRow(**row) for row in rows]


def read_tokens(path: Path, first: int = 0, count: int | None = None) -> TokenColumns | None:
    """Read the tokens of `count` answers from answer `first` on, of the row groups that hold them alone; None for a
    file without tokens. Raises DataError for a damaged file."""
    file = _open(path)
    if "ids" not in file.schema_arrow.names:
        return None
    total = file.metadata.num_rows
    stop = total if count is None else min(total, first + count)
    groups = list(range(first // GROUP_ROWS, -(-stop // GROUP_ROWS)))
    begin = groups[0] * GROUP_ROWS if groups else 0
    names = [name for name in _TOKEN_COLUMNS if name in file.schema_arrow.names]
    table = _read(file, path, names, groups).slice(first - begin, max(0, stop - first))
    columns = {name: table.column(name).combine_chunks() for name in names}
    flat = {name: column.flatten() for name, column in columns.items()}
    lengths = columns["ids"].value_lengths().to_numpy(zero_copy_only=False)
    unknown = np.full(len(flat["ids"]), np.nan, np.float32)
    floats = {
        name: flat[name].to_numpy(zero_copy_only=False).astype(np.float32) if name in flat else unknown
        for name in ("logp", "logp_now", "logp_last", "entropy", "advantages", "values")
    }
    return TokenColumns(
        offsets=offsets_of(lengths.astype(np.int64)),
        ids=flat["ids"].to_numpy(zero_copy_only=False).astype(np.int32),
        mask=flat["mask"].to_numpy(zero_copy_only=False).astype(np.bool_),
        clipped=_whole(flat["clipped"], np.int8),
        versions=_whole(flat["versions"], np.int32),
        **floats,
    )


def read_episodes(path: Path) -> EpisodeTable:
    """Read the episodes of a file. Raises DataError for a damaged one, and for a file of answers."""
    if rollout_kind(path) != "episodes":
        raise DataError(f"{path} holds answers of a language model; read_samples reads them")
    table = _read(_open(path), path, None)
    columns = {name: table.column(name).combine_chunks() for name in table.column_names}
    lengths = columns["decisions"].to_numpy(zero_copy_only=False).astype(np.int64)

    def numbers(name: str, kind: type[Any]) -> NDArray[Any]:
        return columns[name].to_numpy(zero_copy_only=False).astype(kind)

    def floats(name: str) -> NDArray[np.float32] | None:
        column = columns[name]
        if column.null_count:
            return None
        values = column.flatten()
        if name not in ("actions", "observations"):
            return values.to_numpy(zero_copy_only=False).astype(np.float32)
        inner = values.flatten().to_numpy(zero_copy_only=False).astype(np.float32)
        return inner.reshape(len(values), -1)

    status = {one.name.lower(): one.value for one in ScoreStatus}
    return EpisodeTable(
        step=int(columns["step"][0].as_py()) if len(lengths) else 0,
        offsets=offsets_of(lengths),
        id=numbers("id", np.int64),
        group=numbers("group", np.int64),
        score=numbers("score", np.float64),
        status=np.array([status[one] for one in columns["status"].to_pylist()], np.uint8),
        end=np.array([ENDS.index(one) for one in columns["end"].to_pylist()], np.uint8),
        version=numbers("version", np.int64),
        actions=_required(floats("actions"), path, "actions"),
        rewards=_required(floats("rewards"), path, "rewards"),
        logp=_required(floats("logp"), path, "logp"),
        advantages=_required(floats("advantages"), path, "advantages"),
        values=floats("values"),
        observations=floats("observations"),
    )


def _required(column: NDArray[np.float32] | None, path: Path, name: str) -> NDArray[np.float32]:
    if column is None:
        raise DataError(f"{path}: the column {name} has missing lists")
    return column


def _whole(column: Any, kind: type[Any]) -> NDArray[Any]:  # noqa: ANN401 - pyarrow has no type information
    """Whole numbers with -1 for null."""
    import pyarrow as pa  # noqa: PLC0415 - start-up time

    return column.cast(pa.int32()).fill_null(-1).to_numpy(zero_copy_only=False).astype(kind)


def _open(path: Path) -> Any:  # noqa: ANN401 - pyarrow has no type information
    import pyarrow as pa  # noqa: PLC0415 - start-up time
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        return pq.ParquetFile(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"cannot read {path}: {error}; is it truncated, or still being written?") from error


def _read(file: Any, path: Path, names: list[str] | None, groups: list[int] | None = None) -> Any:  # noqa: ANN401 - as above
    import pyarrow as pa  # noqa: PLC0415 - start-up time

    try:
        chosen = list(range(file.num_row_groups)) if groups is None else groups
        return file.read_row_groups(chosen, columns=names)
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"cannot read {path}: {error}; is it damaged?") from error


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


# ------------------------------------------------------------------------------------------------ how often, how many


def rollouts_are_due(step: int, steps: int, every: int | None, decisions: int) -> bool:
    """Whether a run of `steps` writes the rollouts of a step: the first, the last, and each `every`; None: the first of
    every 10 by which 40,000 `decisions` were made since the last file. 0: none."""
    if every == 0:
        return False
    if step in (1, steps):
        return True
    if every is not None:
        return step % every == 0
    return step % DUE_STEPS == 0 and decisions >= DUE_DECISIONS


def remove_after(run: Path, step: int) -> int:
    """Remove the files of later steps than `step`, which a resume does again; returns their number."""
    later = [path for at, path in rollout_files(run).items() if at > step]
    for path in later:
        _remove_rollouts(path)
    return len(later)


def thin(run: Path, keep_bytes: int) -> int:
    """Remove every second file, from the oldest on, until all take `keep_bytes` or one is left; returns their number.

    The newest file always stays. Steps that are left stay evenly spaced, more densely the newer they are.
    """
    files = list(rollout_files(run).values())
    sizes = {path: rollout_bytes(path) for path in files}
    total, removed = sum(sizes.values()), 0
    while total > keep_bytes and len(files) > 1:
        for path in files[:-1:2]:
            _remove_rollouts(path)
            files.remove(path)
            total, removed = total - sizes[path], removed + 1
            if total <= keep_bytes:
                break
    return removed
