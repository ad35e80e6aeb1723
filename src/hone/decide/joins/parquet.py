"""Views on disk: one parquet file with everything, and a frozen folder whose manifest holds its hash.

The same view is the same bytes. Rows are the columns of `DecisionTable` and `DecisionView`; the metadata under `hone`
hold the rules, counts and sets of actions as JSON. DuckDB, pandas and polars read the file.

The join for logs that do not fit into memory: DuckDB over the parquet files of a log, to a view's parquet file.

The rows and counts are those of `build_view`, but for the last bit of sums. The files are those of
`decide.log.retention.export_log`, which holds each (source, seq) once.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# (pyarrow has no type information)

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hone.core.decisions import ActionSet, DecisionTable
from hone.core.errors import ConfigError, DataError, ResourceError
from hone.core.strict_json import Json
from hone.decide.joins.columns import column_floats, column_ints, column_texts, context_rows
from hone.decide.joins.view import DecisionView, JoinConfig, JoinRule, ViewCounts
from hone.decide.log.retention import DECISIONS, OUTCOMES, tenant_folder
from hone.run.store.durable import (
    failpoint,
    from_json,
    read_json_object,
    remove_tree,
    replace_file,
    sha256,
    sync_path,
    to_json,
    write_file,
    writing,
)

VIEW_FORMAT: Final = 1
ROWS_FILE: Final = "view.parquet"
MANIFEST_FILE: Final = "manifest.json"


def view_bytes(view: DecisionView) -> bytes:
    """The view as a parquet file."""
    table, sink = view.table, pa.BufferOutputStream()
    width = table.contexts.shape[1]
    flat = pa.array(np.ascontiguousarray(table.contexts).ravel())
    offsets = pa.array(np.arange(len(table) + 1, dtype=np.int32) * np.int32(width))
    rows = pa.table(
        {
            "id": pa.array(table.ids, pa.string()),
            "unit": pa.array(table.units, pa.string()),
            "at_s": table.at_s,
            "context": pa.ListArray.from_arrays(offsets, flat),
            "action_set": table.action_set,
            "executed": table.executed,
            "logp": table.logp,
            "reward": table.reward,
            "known": table.known,
            "version": pa.array(table.versions, pa.string()),
            "route": pa.array(table.routes or ("",) * len(table), pa.string()),
            "first_delay_s": view.first_delay_s,
            "reward_so_far": view.reward_so_far,
            "corrected": view.corrected,
        }
    )
    pq.write_table(rows.replace_schema_metadata({"hone": to_json(_facts(view))}), sink, compression="zstd")
    return sink.getvalue().to_pybytes()


def _facts(view: DecisionView) -> dict[str, Json]:
    return _view_facts(
        as_of_s=view.as_of_s, tenant=view.tenant, schema=view.schema, join=view.join, counts=view.counts,
        sets=view.table.action_sets,
    )  # fmt: skip


def _view_facts(
    *, as_of_s: float, tenant: str, schema: str, join: JoinConfig, counts: ViewCounts, sets: Sequence[ActionSet]
) -> dict[str, Json]:
    """Facts about a view that its file holds beside the rows."""
    return {
        "format": VIEW_FORMAT,
        "as_of_s": as_of_s,
        "tenant": tenant,
        "schema": schema,
        "join": cast("dict[str, Json]", join.model_dump()),
        "counts": cast("dict[str, Json]", asdict(counts)),
        "action_sets": [
            {"names": list(one.names), "features": None if one.features is None else one.features.tolist()}
            for one in sets
        ],
    }


def read_view(path: Path) -> DecisionView:
    """Read a frozen folder, whose hash is checked, or a view's parquet file. Raises DataError."""
    if path.is_dir():
        return read_frozen_view(path)
    try:
        rows = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path}: not a complete parquet file: {error}") from error
    facts = from_json((rows.schema.metadata or {}).get(b"hone", b"null"), f"{path}: metadata `hone`")
    match facts:
        case {"format": int(version)} if version > VIEW_FORMAT:
            raise DataError(f"{path} has view format {version}, this hone reads up to {VIEW_FORMAT}; upgrade hone")
        case {
            "as_of_s": float() | int() as as_of_s, "tenant": str(tenant), "schema": str(schema), "join": dict(join),
            "counts": dict(counts), "action_sets": list(sets),
        }:  # fmt: skip
            return DecisionView(
                table=_table(rows, tuple(_action_set(one, path) for one in sets), schema),
                as_of_s=float(as_of_s), join=JoinConfig.model_validate(join), tenant=tenant,
                counts=ViewCounts(**cast("dict[str, int]", counts)),
                first_delay_s=column_floats(rows, "first_delay_s"),
                reward_so_far=column_floats(rows, "reward_so_far"), corrected=column_floats(rows, "corrected"),
            )  # fmt: skip
        case _:
            raise DataError(f"{path} is not a view of a decision log: `hone log FILE --view FOLDER` makes one")


def view_action_sets(path: Path) -> tuple[ActionSet, ...]:
    """Sets of actions of a view's parquet file, without reading its rows. Raises DataError."""
    try:
        metadata = pq.read_schema(path).metadata or {}
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path}: not a complete parquet file: {error}") from error
    match from_json(metadata.get(b"hone", b"null"), f"{path}: metadata `hone`"):
        case {"action_sets": list(sets)}:
            return tuple(_action_set(one, path) for one in sets)
        case _:
            raise DataError(f"{path} is not a view of a decision log: `hone log FILE --export FILE` makes one")


def _action_set(facts: Json, path: Path) -> ActionSet:
    match facts:
        case {"names": list(names), "features": None}:
            return ActionSet(names=tuple(map(str, names)))
        case {"names": list(names), "features": list(features)}:
            return ActionSet(names=tuple(map(str, names)), features=np.array(features, np.float64))
        case _:
            raise DataError(f"{path}: metadata `hone`: an entry of action_sets has no names and features: {facts!r}")


def _table(rows: pa.Table, sets: tuple[ActionSet, ...], schema: str) -> DecisionTable:
    routes = column_texts(rows, "route")
    return DecisionTable(
        contexts=context_rows(rows),
        action_sets=sets,
        action_set=column_ints(rows, "action_set"),
        executed=column_ints(rows, "executed"),
        logp=column_floats(rows, "logp"),
        reward=column_floats(rows, "reward"),
        known=np.asarray(rows["known"].to_numpy(), np.bool_),
        at_s=column_floats(rows, "at_s"),
        ids=column_texts(rows, "id"),
        units=column_texts(rows, "unit"),
        versions=column_texts(rows, "version"),
        routes=routes if any(routes) else (),
        schemas=(schema,) * len(routes) if schema else (),
    )


def view_hash(view: DecisionView) -> str:
    """sha256 of the view's parquet file."""
    return hashlib.sha256(view_bytes(view)).hexdigest()


def freeze_view(view: DecisionView, folder: Path) -> str:
    """Write the view as a folder that never changes, whole or not at all -> its hash.

    Raises ConfigError if the folder exists, unless it holds this very view, and ResourceError if it cannot be written.
    """
    data = view_bytes(view)
    digest = hashlib.sha256(data).hexdigest()
    if folder.exists():
        if is_frozen_view(folder) and frozen_hash(folder) == digest:
            return digest
        raise ConfigError(f"{folder} exists already; a frozen view never changes: name another folder")
    manifest: dict[str, Json] = {"view": VIEW_FORMAT, "rows": len(view.table), "sha256": digest, **_facts(view)}
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
    with writing(folder, len(data)):
        temporary.mkdir(parents=True)
        try:
            write_file(temporary / ROWS_FILE, data)
            failpoint("view.before_manifest")
            replace_file(temporary / MANIFEST_FILE, to_json(manifest, indent=2))
            temporary.rename(folder)
        except BaseException:
            remove_tree(temporary)
            raise
    sync_path(folder.parent)
    return digest


def is_frozen_view(folder: Path) -> bool:
    """True for a folder that `freeze_view` wrote."""
    return (folder / MANIFEST_FILE).is_file() and (folder / ROWS_FILE).is_file()


def frozen_hash(folder: Path) -> str:
    """Hash that the manifest of a frozen view names. Raises DataError."""
    match read_json_object(folder / MANIFEST_FILE):
        case {"view": int(), "sha256": str(digest)}:
            return digest
        case _:
            raise DataError(f"{folder / MANIFEST_FILE} is not the manifest of a frozen view")


def read_frozen_view(folder: Path) -> DecisionView:
    """Read a frozen view. Raises DataError if it is not what was frozen."""
    if not is_frozen_view(folder):
        raise DataError(f"{folder} is not a frozen view: it needs {ROWS_FILE} and {MANIFEST_FILE}")
    wanted, path = frozen_hash(folder), folder / ROWS_FILE
    if (digest := sha256(path)) != wanted:
        raise DataError(
            f"{path} has sha256 {digest[:12]}..., its manifest says {wanted[:12]}...: it was changed after it was "
            "frozen; freeze the log again"
        )
    return read_view(path)


# ---------------------------------------------------------------------------------------------------------------- large


_ORDER: Final = "(r.at_s, r.source, r.seq)"
_RULES: Final[dict[JoinRule, str]] = {
    "sum": "sum(r.value order by r.at_s, r.source, r.seq)",
    "first": f"arg_min(r.value, {_ORDER})",
    "last": f"arg_max(r.value, {_ORDER})",
    "max": "max(r.value)",
}
_DECIDED: Final = """
create temp table decided as
select id, unit, at_s, context, action_names, action_features, action_width, executed, executed_logp, version, route,
    source, seq
from read_parquet(?) where at_s <= ? and (? is null or schema = ?)
"""
_REPEATED: Final = """
delete from decided where rowid in (
    select rowid from decided qualify row_number() over (partition by id order by at_s, source, seq) > 1)
"""
_TOLD: Final = """
create temp table told as select r.decision_id, d.at_s as decided_s, r.at_s,
    case when r.value < {low} then {low} when r.value > {high} then {high} else r.value end as value, r.source, r.seq
from read_parquet(?) r left join decided d on d.id = r.decision_id
where r.at_s <= ? and r.kind = ? and isfinite(r.value) and ({clip} or (r.value >= {low} and r.value <= {high}))
"""
_JOINED: Final = """
create temp table joined as
select d.*, d.at_s + {window} <= {as_of} as known, a.within, a.overall,
    case when a.first_delay_s < 0 then 0.0 else a.first_delay_s end as first_delay_s
from decided d left join (
    select r.decision_id, min(r.at_s - r.decided_s) as first_delay_s, {rule} as overall,
        {rule} filter (where r.at_s - r.decided_s <= {window}) as within
    from told r where r.decided_s is not null group by r.decision_id
) a on a.decision_id = d.id
"""
_ROWS: Final = """
select j.id, j.unit, j.at_s, j.context, s.place as action_set, j.executed, j.executed_logp as logp,
    case when j.known then coalesce(j.within, {default}) else 'nan'::double end as reward, j.known, j.version, j.route,
    coalesce(j.first_delay_s, 'nan'::double) as first_delay_s, coalesce(j.within, 'nan'::double) as reward_so_far,
    case when j.known and j.overall <> coalesce(j.within, {default}) then j.overall else 'nan'::double end as corrected
from joined j join sets s on s.action_names = j.action_names
    and s.action_features is not distinct from j.action_features and s.action_width is not distinct from j.action_width
order by j.at_s, j.source, j.seq
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeJoin:
    """A join of a tenant's parquet files."""

    folder: Path
    """Folder of an export."""
    tenant: str
    as_of_s: float
    join: JoinConfig
    schema: str | None = None
    memory: str = "2GB"
    """Memory that DuckDB may take; more goes to a temporary folder."""
    threads: int = 1

    def write(self, path: Path) -> ViewCounts:
        """Write the view's parquet file, whole or not at all -> its counts.

        Raises DataError as `build_view`, ResourceError without duckdb or space.
        """
        spill = path.with_name(f".{path.name}.{secrets.token_hex(4)}.spill")
        settings: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": self.memory,
            "threads": self.threads,
            "temp_directory": str(spill),
        }
        try:
            import duckdb  # noqa: PLC0415 - no part of the base installation
        except ImportError as error:
            raise ResourceError("joining parquet files needs DuckDB: pip install duckdb") from error
        connection = duckdb.connect(config=settings)
        try:
            connection.execute("set enable_progress_bar = false")
            return self._write(connection, path)
        finally:
            connection.close()
            if spill.is_dir():
                for file in spill.iterdir():
                    file.unlink()
                spill.rmdir()

    def _write(self, connection: Any, path: Path) -> ViewCounts:  # noqa: ANN401 - DuckDB's connection
        schema, decisions = self._only_schema(connection), self._files(DECISIONS)
        connection.execute(_DECIDED, [decisions, self.as_of_s, self.schema, self.schema])
        before = _number(connection, "select count(*) from decided")
        if _number(connection, "select count(distinct id) from decided") < before:
            connection.execute(_REPEATED)
        counts = self._counts_of_outcomes(connection, repeated=before)
        window, rule = repr(self.join.window_s), _RULES[self.join.rule]
        connection.execute(_JOINED.format(window=window, as_of=repr(self.as_of_s), rule=rule))
        sets = _action_sets(connection)
        joined, defaulted, censored = connection.execute(
            "select count(*) filter (where known and within is not null), count(*) filter (where known and within is "
            "null), count(*) filter (where not known) from joined"
        ).fetchone()
        whole = ViewCounts(
            decisions=joined + defaulted + censored, joined=joined, defaulted=defaulted, censored=censored, **counts
        )
        facts = _view_facts(
            as_of_s=self.as_of_s, tenant=self.tenant, schema=schema, join=self.join, counts=whole, sets=sets
        )
        temporary = path.with_name(f".{path.name}.tmp")
        rows = _ROWS.format(default=repr(self.join.default))
        note = to_json(facts).decode().replace("'", "''")
        with writing(path):
            options = f"format parquet, compression zstd, kv_metadata {{hone: '{note}'}}"
            target = str(temporary).replace("'", "''")
            connection.execute(f"copy ({rows}) to '{target}' ({options})")
            sync_path(temporary)
            temporary.replace(path)
        sync_path(path.parent)
        return whole

    def _files(self, name: str) -> list[str]:
        return sorted(str(path) for path in (self.folder / tenant_folder(self.tenant)).glob(f"*/{name}"))

    def _only_schema(self, connection: Any) -> str:  # noqa: ANN401
        files = self._files(DECISIONS)
        if not files:
            raise DataError(f"{self.folder} holds no decisions of tenant {self.tenant!r}")
        if self.schema is not None:
            return self.schema
        schemas = connection.execute(
            "select schema, min(at_s) from read_parquet(?) where at_s <= ? group by schema order by 2",
            [files, self.as_of_s],
        ).fetchall()
        if len(schemas) > 1:
            names = "; ".join(f"{name or '(none)'} from {at_s:.15g}" for name, at_s in schemas[:5])
            raise DataError(
                f"{len(schemas)} schemas of features in one view: {names}; one view holds one: name its hash"
            )
        return schemas[0][0] if schemas else ""

    def _counts_of_outcomes(self, connection: Any, *, repeated: int) -> dict[str, int]:  # noqa: ANN401
        """Attach outcomes to decisions -> their counts."""
        files = self._files(OUTCOMES)
        empty = "create temp table told (decision_id varchar, decided_s double, at_s double, value double, source "
        low, high = (f"'{bound!r}'::double" for bound in self.join.bounds)
        if files:
            statement = _TOLD.format(low=low, high=high, clip=str(self.join.beyond == "clip").lower())
            connection.execute(statement, [files, self.as_of_s, self.join.kind])
        else:
            connection.execute(empty + "varchar, seq bigint)")
        own, late, early, orphans = connection.execute(
            "select count(decided_s), count(*) filter (where at_s - decided_s > ?), count(*) filter (where at_s < "
            "decided_s), count(*) filter (where decided_s is null) from told", [self.join.window_s],
        ).fetchone()  # fmt: skip
        others, not_finite, beyond = (0, 0, 0) if not files else connection.execute(
            "select count(*) filter (where kind <> $1), count(*) filter (where kind = $1 and not isfinite(value)), "
            f"count(*) filter (where kind = $1 and isfinite(value) and not (value >= {low} and value <= {high})) "
            "from read_parquet($2) where at_s <= $3", [self.join.kind, files, self.as_of_s],
        ).fetchone()  # fmt: skip
        repeated -= _number(connection, "select count(*) from decided")
        return {
            "outcomes": own, "late": late, "early": early, "orphans": orphans, "duplicates": repeated,
            "other_kinds": others, "not_finite": not_finite, "out_of_range": beyond,
        }  # fmt: skip


def _number(connection: Any, query: str) -> int:  # noqa: ANN401
    return int(connection.execute(query).fetchone()[0])


def _action_sets(connection: Any) -> tuple[ActionSet, ...]:  # noqa: ANN401
    """Number the distinct sets of actions by their names and features, as `build_view` does."""
    rows_read: Sequence[Any] = connection.execute(
        "select distinct action_names, action_features, action_width from joined"
    ).fetchall()
    made: list[tuple[tuple[tuple[str, ...], bytes], ActionSet, Any]] = []
    for names, flat, width in rows_read:
        features = None if flat is None else np.array(flat, np.float64).reshape(len(names), width)
        one = ActionSet(names=tuple(names), features=features)
        key = b"" if features is None else repr(features.shape).encode() + features.tobytes()
        made.append(((one.names, key), one, (names, flat, width)))
    made.sort(key=lambda each: each[0])
    connection.execute(
        "create temp table sets (place bigint, action_names varchar[], action_features double[], action_width bigint)"
    )
    for place, (_, _, row) in enumerate(made):
        connection.execute("insert into sets values (?, ?, ?, ?)", [place, *row])
    return tuple(one for _, one, _ in made)
