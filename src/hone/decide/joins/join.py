"""The join: decisions and outcomes of a log -> a view, the same for every order of arrival.

A record is known at a moment if its own time is not after it. Where two records claim one identity `(source, seq)` they
must be equal; of two decisions with one id the earlier one counts.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# (pyarrow has no type information)

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hone.core.decisions import ActionSet, DecisionRecord, DecisionTable
from hone.core.errors import DataError
from hone.decide.joins.columns import (  # fmt: skip
    RecordColumns,
    changed_rows,
    column_floats,
    column_ints,
    column_ranks,
    column_texts,
    context_rows,
    distinct_texts,
    record_columns,
    rows_of_texts,
    take_rows,
    text_equals,
)
from hone.decide.joins.view import DecisionView, JoinConfig, JoinRule, ViewCounts

if TYPE_CHECKING:
    import pyarrow as pa

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_SHOWN = 5


def build_view(
    records: Iterable[DecisionRecord] | RecordColumns,
    *,
    as_of_s: float,
    join: JoinConfig | None = None,
    tenant: str | None = None,
    schema: str | None = None,
) -> DecisionView:
    """Join the records of one tenant and one schema as they were known at `as_of_s` (seconds since the epoch).

    `tenant`, and `schema` (the hash of the features' names), may be left out where the known records have only one.
    Raises DataError where they have several, for two different records under one (source, seq), and for actions that
    were not there.
    """
    columns = records if isinstance(records, RecordColumns) else record_columns(records)
    rules = JoinConfig() if join is None else join
    every = [
        take_rows(table, column_floats(table, "at_s") <= as_of_s) for table in (columns.decisions, columns.outcomes)
    ]
    name = _the_tenant(every, tenant)
    decisions, twice = _known_records(every[0], name)
    rank = column_ranks(decisions, "id")
    _, first = np.unique(rank, return_index=True)
    same_id = len(rank) - len(first)  # the first of each id is kept
    decisions = take_rows(decisions, np.sort(first)) if same_id else decisions
    outcomes, outcomes_twice = _known_records(every[1], name)
    counts = ViewCounts(duplicates=twice + same_id + outcomes_twice)
    decisions, outcomes = _of_schema(decisions, outcomes, schema)
    outcomes, counts = _of_kind(outcomes, rules, counts)
    table = _decision_rows(decisions, columns.action_sets)
    return _with_rewards(table, _attach(outcomes, decisions, rules, table.at_s), rules, as_of_s, name, counts)


def _with_rewards(
    table: DecisionTable, joined: "_Attached", rules: JoinConfig, as_of_s: float, tenant: str, counts: ViewCounts
) -> DecisionView:
    known, none = table.at_s + rules.window_s <= as_of_s, np.isnan(joined.within)
    reward = np.where(known, np.where(none, rules.default, joined.within), np.nan)
    changed = known & ~np.isnan(joined.overall) & (joined.overall != reward)
    return DecisionView(
        table=replace(table, reward=reward, known=known),
        as_of_s=as_of_s,
        join=rules,
        tenant=tenant,
        first_delay_s=joined.first_delay_s,
        reward_so_far=joined.within,
        corrected=np.where(changed, joined.overall, np.nan),
        counts=replace(
            counts,
            decisions=len(table),
            joined=int((known & ~none).sum()),
            defaulted=int((known & none).sum()),
            censored=int((~known).sum()),
            outcomes=joined.outcomes,
            late=joined.late,
            early=joined.early,
            orphans=joined.orphans,
        ),
    )


def _the_tenant(tables: "Sequence[pa.Table]", tenant: str | None) -> str:
    if tenant is not None:
        return tenant
    names = sorted({name for table in tables for name in distinct_texts(table, "tenant")})
    if len(names) > 1:
        raise DataError(
            f"{len(names)} tenants in one log ({', '.join(names[:_SHOWN])}): a view holds one; name the tenant"
        )
    return names[0] if names else ""


def _known_records(table: "pa.Table", tenant: str) -> "tuple[pa.Table, int]":
    """Records of the tenant, each once, by (time, source, seq), and the number that were there again."""
    known = take_rows(table, text_equals(table, "tenant", tenant))
    source, seq, at_s = column_ranks(known, "source"), column_ints(known, "seq"), column_floats(known, "at_s")
    by_identity = np.lexsort((at_s, seq, source))
    again = np.zeros(len(seq), np.bool_)
    again[1:] = (np.diff(source[by_identity]) == 0) & (np.diff(seq[by_identity]) == 0)
    repeats = np.flatnonzero(again)
    left, right = (take_rows(known, by_identity[places]) for places in (repeats - 1, repeats))
    conflicts = np.flatnonzero(changed_rows(left, right))
    if len(conflicts):
        few = take_rows(right, conflicts[:_SHOWN])
        named = ", ".join(
            f"({one}, {two})" for one, two in zip(column_texts(few, "source"), column_ints(few, "seq"), strict=True)
        )
        raise DataError(
            f"{len(conflicts)} records differ from another under the same (source, seq): {named}; a source must number "
            "each record once, and send the same record again under the same number"
        )
    kept = by_identity[~again]
    order = np.lexsort((seq[kept], source[kept], at_s[kept]))
    return take_rows(known, kept[order]), len(repeats)


def _of_schema(decisions: "pa.Table", outcomes: "pa.Table", schema: str | None) -> "tuple[pa.Table, pa.Table]":
    """The decisions of one schema, and the outcomes but for those of other schemas' decisions."""
    if schema is not None:
        chosen = text_equals(decisions, "schema", schema)
        others = rows_of_texts(outcomes["decision_id"], take_rows(decisions, ~chosen)["id"])
        return take_rows(decisions, chosen), take_rows(outcomes, others < 0)
    names = distinct_texts(decisions, "schema")
    if len(names) > 1:
        rank, ids, at_s = column_ranks(decisions, "schema"), decisions["id"], column_floats(decisions, "at_s")
        first = {name: int(np.argmax(rank == place)) for place, name in enumerate(names)}
        counts = "; ".join(
            f"{name or '(none)'} from decision {ids[row].as_py()!r} at {at_s[row]:.15g}"
            for name, row in sorted(first.items(), key=lambda one: one[1])[:_SHOWN]
        )
        raise DataError(f"{len(names)} schemas of features in one view: {counts}; one view holds one: name its hash")
    return decisions, outcomes


def _decision_rows(decisions: "pa.Table", sets: Sequence[ActionSet]) -> DecisionTable:
    """The decisions without rewards; only the sets of actions that they use."""
    place = column_ints(decisions, "action_set")
    used, renumbered = np.unique(place, return_inverse=True)
    executed = column_ints(decisions, "executed")
    sizes = np.array([len(sets[one]) for one in used], np.int64)
    outside = np.flatnonzero((executed < 0) | (executed >= sizes[renumbered])) if len(used) else used
    if len(outside):
        row = int(outside[0])
        raise DataError(
            f"decision {decisions['id'][row].as_py()!r} executed action {executed[row]}, and it had "
            f"{sizes[renumbered[row]]} actions; {len(outside)} such decisions"
        )
    routes, schemas = column_texts(decisions, "route"), column_texts(decisions, "schema")
    nothing = np.full(len(executed), np.nan)
    return DecisionTable(
        contexts=context_rows(decisions), action_sets=tuple(sets[one] for one in used), action_set=renumbered,
        executed=executed, logp=column_floats(decisions, "logp"), reward=nothing, known=np.zeros(len(executed), bool),
        at_s=column_floats(decisions, "at_s"), ids=column_texts(decisions, "id"), units=column_texts(decisions, "unit"),
        versions=column_texts(decisions, "version"), routes=routes if any(routes) else (),
        schemas=schemas if any(schemas) else (),
    )  # fmt: skip


def _of_kind(outcomes: "pa.Table", rules: JoinConfig, counts: ViewCounts) -> "tuple[pa.Table, ViewCounts]":
    """The outcomes that may be rewards: of the right kind, finite, and in the declared range if others are refused."""
    value, right = column_floats(outcomes, "value"), text_equals(outcomes, "kind", rules.kind)
    finite, (low, high) = np.isfinite(value), rules.bounds
    beyond = right & finite & ~((value >= low) & (value <= high))
    counts = replace(
        counts, other_kinds=int((~right).sum()), not_finite=int((right & ~finite).sum()),
        out_of_range=int(beyond.sum()),
    )  # fmt: skip
    return take_rows(outcomes, right & finite & ~(beyond & (rules.beyond == "refuse"))), counts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attached:
    """Outcomes of each decision `[n]`; NaN where there are none."""

    within: Floats
    overall: Floats
    first_delay_s: Floats
    outcomes: int
    late: int
    early: int
    orphans: int


def _attach(outcomes: "pa.Table", decisions: "pa.Table", join: JoinConfig, at_s: Floats) -> _Attached:
    """Rewards of each decision from its outcomes, which are in the order of (time, source, seq)."""
    row = rows_of_texts(outcomes["decision_id"], decisions["id"])
    owned = np.flatnonzero(row >= 0)
    owned = owned[np.argsort(row[owned], kind="stable")]
    row, value = row[owned], np.clip(column_floats(outcomes, "value")[owned], *join.bounds)
    delay = column_floats(outcomes, "at_s")[owned] - at_s[row]
    within = delay <= join.window_s
    first = _reduce(row, delay, "first", len(at_s))
    return _Attached(
        within=_reduce(row[within], value[within], join.rule, len(at_s)),
        overall=_reduce(row, value, join.rule, len(at_s)),
        first_delay_s=np.maximum(first, 0.0),
        outcomes=len(row),
        late=int((~within).sum()),
        early=int((delay < 0).sum()),
        orphans=outcomes.num_rows - len(row),
    )


def _reduce(row: Ints, value: Floats, rule: JoinRule, count: int) -> Floats:
    """One number for each of `count` rows from the values of its group; `row` ascends. NaN without a value."""
    reduced: Any = np.full(count, np.nan)
    if len(row):
        begin = np.flatnonzero(np.diff(row, prepend=-1))
        match rule:
            case "sum":
                groups = np.add.reduceat(value, begin)
            case "max":
                groups = np.maximum.reduceat(value, begin)
            case "first":
                groups = value[begin]
            case "last":
                groups = value[np.append(begin[1:], len(row)) - 1]
        reduced[row[begin]] = groups
    return reduced
