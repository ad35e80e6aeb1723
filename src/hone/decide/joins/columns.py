"""Records of a log as two tables of columns, in which a million rows are joined without a Python loop."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# (pyarrow has no type information)
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

from hone.core.decisions import ActionSet, Decision, DecisionRecord, Outcome
from hone.core.errors import DataError
from hone.decide.log.protocol import DecisionLog

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
pc: Any = pyarrow.compute

DECISIONS: Final = pa.schema(
    {
        "tenant": pa.string(), "id": pa.string(), "unit": pa.string(), "at_s": pa.float64(),
        "context": pa.list_(pa.float64()), "action_set": pa.int64(), "executed": pa.int64(), "logp": pa.float64(),
        "version": pa.string(), "route": pa.string(), "schema": pa.string(), "source": pa.string(), "seq": pa.int64(),
    }
)  # fmt: skip
"""Columns of decisions; `action_set` is a row's place among the action sets."""
OUTCOMES: Final = pa.schema(
    {
        "tenant": pa.string(), "decision_id": pa.string(), "kind": pa.string(), "value": pa.float64(),
        "at_s": pa.float64(), "source": pa.string(), "seq": pa.int64(),
    }
)  # fmt: skip
"""Columns of outcomes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumns:
    """Records of a log, in any order, as columns."""

    decisions: pa.Table
    """Rows of the schema `DECISIONS`."""
    outcomes: pa.Table
    """Rows of the schema `OUTCOMES`."""
    action_sets: tuple[ActionSet, ...]
    """Distinct sets of actions, in the order of their names."""


def record_columns(records: Iterable[DecisionRecord]) -> RecordColumns:
    """Columns of records, in their order."""
    every = list(records)
    decisions = [one for one in every if isinstance(one, Decision)]
    outcomes = [one for one in every if isinstance(one, Outcome)]
    sets, places = _merged_action_sets([one.actions for one in decisions])
    return RecordColumns(
        decisions=_decision_table(decisions, places),
        outcomes=pa.table(
            {
                "tenant": [one.tenant for one in outcomes],
                "decision_id": [one.decision_id for one in outcomes],
                "kind": [one.kind for one in outcomes],
                "value": [one.value for one in outcomes],
                "at_s": [one.at_s for one in outcomes],
                "source": [one.source for one in outcomes],
                "seq": [one.seq for one in outcomes],
            },
            schema=OUTCOMES,
        ),
        action_sets=sets,
    )


def _decision_table(decisions: Sequence[Decision], action_set: Ints) -> pa.Table:
    lengths = np.array([len(one.context) for one in decisions], np.int32)
    values = np.concatenate([one.context for one in decisions]) if decisions else np.zeros(0)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.table(
        {
            "tenant": [one.tenant for one in decisions],
            "id": [one.id for one in decisions],
            "unit": [one.unit for one in decisions],
            "at_s": [one.at_s for one in decisions],
            "context": pa.ListArray.from_arrays(pa.array(offsets), pa.array(values.astype(np.float64))),
            "action_set": action_set,
            "executed": [one.executed for one in decisions],
            "logp": [one.executed_logp for one in decisions],
            "version": [one.version for one in decisions],
            "route": [one.route for one in decisions],
            "schema": [one.schema for one in decisions],
            "source": [one.source for one in decisions],
            "seq": [one.seq for one in decisions],
        },
        schema=DECISIONS,
    )


def _merged_action_sets(each: Sequence[ActionSet]) -> tuple[tuple[ActionSet, ...], Ints]:
    """Distinct action sets, sorted by their names and features, and the place of each row's."""
    known: dict[int, tuple[tuple[str, ...], bytes]] = {}
    by_key: dict[tuple[tuple[str, ...], bytes], ActionSet] = {}
    for one in each:
        if id(one) not in known:
            rows = one.features
            key = b"" if rows is None else repr(rows.shape).encode() + rows.tobytes()
            known[id(one)] = one.names, key
            by_key.setdefault(known[id(one)], one)
    order = {key: place for place, key in enumerate(sorted(by_key))}
    places = np.array([order[known[id(one)]] for one in each], np.int64)
    return tuple(by_key[key] for key in sorted(by_key)), places


def column_floats(table: pa.Table, name: str) -> Floats:
    """A column of numbers `[n]`."""
    return np.asarray(table[name].to_numpy(), np.float64)


def column_ints(table: pa.Table, name: str) -> Ints:
    """A column of whole numbers `[n]`."""
    return np.asarray(table[name].to_numpy(), np.int64)


def column_texts(table: pa.Table, name: str) -> tuple[str, ...]:
    """A column of texts, `n` of them."""
    return tuple(table[name].to_pylist())


def column_ranks(table: pa.Table, name: str) -> Ints:
    """The rank `[n]` of each text among the column's distinct texts: it does not depend on the order of rows."""
    coded = table[name].combine_chunks().dictionary_encode()
    coded = coded.combine_chunks() if isinstance(coded, pa.ChunkedArray) else coded
    order = np.asarray(pc.array_sort_indices(coded.dictionary).to_numpy(), np.int64)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank[np.asarray(coded.indices.to_numpy(zero_copy_only=False), np.int64)]


def text_equals(table: pa.Table, name: str, text: str) -> Bools:
    """Rows `[n]` whose text is `text`."""
    return np.asarray(pc.equal(table[name], text).to_numpy(), np.bool_)


def column_lengths(table: pa.Table, name: str) -> Ints:
    """Lengths `[n]` of a column of lists."""
    return np.asarray(pc.list_value_length(table[name].combine_chunks()).to_numpy(zero_copy_only=False), np.int64)


def distinct_texts(table: pa.Table, name: str) -> list[str]:
    """The distinct texts of a column, sorted."""
    return sorted(pc.unique(table[name]).to_pylist())


def rows_of_texts(texts: pa.ChunkedArray, among: pa.ChunkedArray) -> Ints:
    """The row of each text in `among`, whose texts are distinct -> `[n]`; -1 where it is not there."""
    return np.asarray(pc.fill_null(pc.index_in(texts, value_set=among.combine_chunks()), -1).to_numpy(), np.int64)


def take_rows(table: pa.Table, rows: Ints | Bools) -> pa.Table:
    """Rows by their numbers, or those that are marked."""
    return table.filter(pa.array(rows)) if rows.dtype == np.bool_ else table.take(pa.array(rows))


def context_rows(table: pa.Table) -> Floats:
    """Contexts `[n, d]` of decisions. Raises DataError, with the ids, where they do not have equal numbers of
    features."""
    column = table["context"].combine_chunks()
    lengths = column_lengths(table, "context")
    if len(lengths) == 0:
        return np.zeros((0, 0))
    other = np.flatnonzero(lengths != lengths[0])
    if len(other):
        ids = table["id"]
        first, second = ids[0].as_py(), ids[int(other[0])].as_py()
        raise DataError(
            f"decision {second!r} has {lengths[other[0]]} features and {first!r} has {lengths[0]}: one view holds one "
            "schema; join them apart, or by `as_of` before the change"
        )
    flat = np.asarray(column.flatten().to_numpy(zero_copy_only=False), np.float64)
    return flat.reshape(len(lengths), int(lengths[0]))


def changed_rows(left: pa.Table, right: pa.Table) -> Bools:
    """Rows `[n]` of two tables of one schema that differ in any column; floats are compared to the bit."""
    changed = np.zeros(left.num_rows, np.bool_)
    for name in left.column_names:
        one, other = left[name].combine_chunks(), right[name].combine_chunks()
        if pa.types.is_list(one.type):
            changed |= _changed_lists(one, other)
        elif pa.types.is_floating(one.type):
            bits = (np.asarray(side.to_numpy(zero_copy_only=False)).view(np.int64) for side in (one, other))
            changed |= np.not_equal(*bits)
        else:
            changed |= np.asarray(pc.not_equal(one, other).to_numpy(zero_copy_only=False), np.bool_)
    return changed


def _changed_lists(one: pa.ListArray, other: pa.ListArray) -> Bools:
    lengths = [np.asarray(pc.list_value_length(side).to_numpy(zero_copy_only=False), np.int64) for side in (one, other)]
    changed = lengths[0] != lengths[1]
    kept = pa.array(~changed)
    flat = [side.filter(kept).flatten().to_numpy(zero_copy_only=False) for side in (one, other)]
    owner = np.repeat(np.flatnonzero(~changed), lengths[0][~changed])
    changed[owner[flat[0].view(np.int64) != flat[1].view(np.int64)]] = True
    return changed


# -------------------------------------------------------------------------------------------------------------- reading


PAGE = 20_000
"""Records that are read at once."""


def log_columns(log: DecisionLog, *, tenant: str | None = None) -> RecordColumns:
    """Every record that a log holds, of one tenant or of all."""
    return _concatenate_columns(list(log_pages(log, tenant=tenant)))


def log_pages(log: DecisionLog, *, tenant: str | None = None, after: int = 0) -> Iterator[RecordColumns]:
    """The records of a log above a position, a page after another."""
    while page := log.read(after, PAGE, tenant=tenant):
        after = page[-1].position
        yield record_columns(one.record for one in page)


def _concatenate_columns(pieces: Sequence[RecordColumns]) -> RecordColumns:
    """The records of all pieces, with one numbering of the sets of actions."""
    every = [one for piece in pieces for one in piece.action_sets]
    sets, places = _merged_action_sets(every)
    begins = np.cumsum([0, *(len(piece.action_sets) for piece in pieces)])
    at = DECISIONS.get_field_index("action_set")
    tables = [
        piece.decisions.set_column(
            at, "action_set", pa.array(places[begin + column_ints(piece.decisions, "action_set")])
        )
        for piece, begin in zip(pieces, begins, strict=False)
    ]
    return RecordColumns(
        decisions=pa.concat_tables([DECISIONS.empty_table(), *tables]),
        outcomes=pa.concat_tables([OUTCOMES.empty_table(), *(piece.outcomes for piece in pieces)]),
        action_sets=sets,
    )
