"""The join for logs that do not fit into memory: DuckDB over the parquet files of a log, to a view's parquet file.

The rows and counts are those of `build_view`, but for the last bit of sums. The files are those of
`store.decisions.retention.export_log`, which holds each (source, seq) once.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# (duckdb's types are partial)

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from hone.core.decisions import ActionSet
from hone.core.errors import DataError, ResourceError
from hone.decide.joins.config import JoinConfig, JoinRule
from hone.decide.joins.parquet import view_facts
from hone.decide.joins.view import ViewCounts
from hone.decide.log.parquet import DECISIONS, OUTCOMES, tenant_folder
from hone.run.store.durable import sync_path, to_json, writing

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
create temp table told as select r.decision_id, d.at_s as decided_s, r.at_s, r.value, r.source, r.seq
from read_parquet(?) r left join decided d on d.id = r.decision_id
where r.at_s <= ? and r.kind = ? and isfinite(r.value)
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
        settings = {"memory_limit": self.memory, "threads": self.threads, "temp_directory": str(spill)}
        connection = _duckdb().connect(config=settings)
        try:
            connection.execute("set enable_progress_bar = false")
            return self._write(connection, path)
        finally:
            connection.close()
            _remove_empty(spill)

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
        facts = view_facts(
            as_of_s=self.as_of_s, tenant=self.tenant, schema=schema, join=self.join, counts=whole, sets=sets
        )
        temporary = path.with_name(f".{path.name}.tmp")
        rows = _ROWS.format(default=repr(self.join.default))
        note = to_json(facts).decode().replace("'", "''")
        with writing(path):
            options = f"format parquet, compression zstd, kv_metadata {{hone: '{note}'}}"
            connection.execute(f"copy ({rows}) to '{_quoted(temporary)}' ({options})")
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
        found = connection.execute(
            "select schema, min(at_s) from read_parquet(?) where at_s <= ? group by schema order by 2",
            [files, self.as_of_s],
        ).fetchall()
        if len(found) > 1:
            told = "; ".join(f"{name or '(none)'} from {at_s:.15g}" for name, at_s in found[:5])
            raise DataError(f"{len(found)} schemas of features in one view: {told}; one view holds one: name its hash")
        return found[0][0] if found else ""

    def _counts_of_outcomes(self, connection: Any, *, repeated: int) -> dict[str, int]:  # noqa: ANN401
        """Attach outcomes to decisions -> their counts."""
        files = self._files(OUTCOMES)
        empty = "create temp table told (decision_id varchar, decided_s double, at_s double, value double, source "
        if files:
            connection.execute(_TOLD, [files, self.as_of_s, self.join.kind])
        else:
            connection.execute(empty + "varchar, seq bigint)")
        own, late, early, orphans = connection.execute(
            "select count(decided_s), count(*) filter (where at_s - decided_s > ?), count(*) filter (where at_s < "
            "decided_s), count(*) filter (where decided_s is null) from told", [self.join.window_s],
        ).fetchone()  # fmt: skip
        others, not_finite = (0, 0) if not files else connection.execute(
            "select count(*) filter (where kind <> ?), count(*) filter (where kind = ? and not isfinite(value)) "
            "from read_parquet(?) where at_s <= ?", [self.join.kind, self.join.kind, files, self.as_of_s],
        ).fetchone()  # fmt: skip
        repeated -= _number(connection, "select count(*) from decided")
        return {
            "outcomes": own, "late": late, "early": early, "orphans": orphans, "duplicates": repeated,
            "other_kinds": others, "not_finite": not_finite,
        }  # fmt: skip


def _duckdb() -> Any:  # noqa: ANN401
    try:
        import duckdb  # noqa: PLC0415 - no part of the base installation
    except ImportError as error:
        raise ResourceError("joining parquet files needs DuckDB: pip install duckdb") from error
    return duckdb


def _number(connection: Any, query: str) -> int:  # noqa: ANN401
    return int(connection.execute(query).fetchone()[0])


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")


def _remove_empty(folder: Path) -> None:
    if folder.is_dir():
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()


def _action_sets(connection: Any) -> tuple[ActionSet, ...]:  # noqa: ANN401
    """Number the distinct sets of actions by their names and features, as `build_view` does."""
    found: Sequence[Any] = connection.execute(
        "select distinct action_names, action_features, action_width from joined"
    ).fetchall()
    made: list[tuple[tuple[tuple[str, ...], bytes], ActionSet, Any]] = []
    for names, flat, width in found:
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
