"""Judgement of a log: is it sound enough to learn and to estimate from, and if not, what is wrong.

`refuse`: an estimate from it would be wrong (probabilities, identities, schemas, actions). `weak`: something was lost
or is out of order, and the numbers say how much. `ok`: neither.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# (pyarrow has no type information)

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from hone.core.decisions import LOGP_TOLERANCE, Verdict, schema_hash
from hone.decide.joins.columns import (
    Bools,
    Floats,
    Ints,
    RecordColumns,
    changed_rows,
    column_floats,
    column_ints,
    column_lengths,
    column_ranks,
    column_texts,
    context_rows,
    distinct_texts,
    rows_of_texts,
    take_rows,
    text_equals,
)
from hone.decide.log.protocol import SourceWatermark

CLOCK_STEP_S: Final = 1.0
"""A clock that goes back by more is told: messages of one second may overtake each other."""
_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _LogFault:
    """Something that is wrong with a log."""

    kind: str
    """`probability`, `identity`, `schema`, `action`, `gap`, `repeated_id`, `orphan`, `clock`, `value`."""
    verdict: Verdict
    """What it makes of the log: `refuse` or `weak`."""
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAudit:
    """Verdict on the records of one tenant, and the faults that it follows from."""

    verdict: Verdict
    tenant: str
    decisions: int
    outcomes: int
    faults: tuple[_LogFault, ...]

    @property
    def words(self) -> str:
        """The verdict in one sentence."""
        words_of_counts = f"{self.decisions:,} decisions and {self.outcomes:,} outcomes"
        faults = f"{len(self.faults)} fault{'s' if len(self.faults) > 1 else ''}"
        match self.verdict:
            case "ok":
                return f"sound: {words_of_counts}"
            case "weak":
                return f"usable with care: {faults} in {words_of_counts}"
            case "refuse":
                return f"not sound: {faults} in {words_of_counts}"


def audit_log(
    columns: RecordColumns,
    *,
    tenant: str,
    progress: Sequence[SourceWatermark] | None = None,
    schemas: Iterable[Sequence[str]] = (),
) -> LogAudit:
    """Judge the records of one tenant.

    `progress` are the watermarks of the log, where it has some: records that were erased are no gaps. `schemas` are
    names of features, which name the columns that a change of schema touched.
    """
    decisions, outcomes = (
        take_rows(table, text_equals(table, "tenant", tenant)) for table in (columns.decisions, columns.outcomes)
    )
    named = {schema_hash(names): tuple(names) for names in schemas}
    sizes = np.array([len(one) for one in columns.action_sets], np.int64)
    if progress is None:
        gaps = _missing(decisions, outcomes)
    else:
        gone = [one for one in progress if one.tenant == tenant and one.missing]
        gaps = (_gap(one.source, one.missing, one.highest + 1, one.watermark + 1) for one in gone)
    faults = (
        *_improbable(decisions), *_conflicts(decisions), *_conflicts(outcomes), *_wrong_actions(decisions, sizes),
        *_mixed_schemas(decisions, named), *_not_finite(outcomes), *gaps, *_repeated_ids(decisions),
        *_orphans(decisions, outcomes), *_clocks(decisions), *_early(decisions, outcomes),
    )  # fmt: skip
    verdict: Verdict = "ok" if not faults else "weak"
    return LogAudit(
        verdict="refuse" if any(fault.verdict == "refuse" for fault in faults) else verdict,
        tenant=tenant,
        decisions=decisions.num_rows,
        outcomes=outcomes.num_rows,
        faults=faults,
    )


def _improbable(decisions: pa.Table) -> Iterator[_LogFault]:
    logp = column_floats(decisions, "logp")
    wrong = np.flatnonzero(~np.isfinite(logp) | (logp > LOGP_TOLERANCE))
    if len(wrong):
        row = int(wrong[0])
        with np.errstate(over="ignore"):
            p = np.exp(logp[row])
        yield _LogFault(
            kind="probability",
            verdict="refuse",
            words=f"{len(wrong)} decisions have a probability of 0, above 1 or unknown; the first is "
            f"{_id(decisions, row)}, p = {p:g}. Log the executed action's probability, after every wrapper",
        )


def _conflicts(table: pa.Table) -> Iterator[_LogFault]:
    """Different records under one (source, seq)."""
    source, seq = column_ranks(table, "source"), column_ints(table, "seq")
    order = np.lexsort((seq, source))
    again = 1 + np.flatnonzero((np.diff(source[order]) == 0) & (np.diff(seq[order]) == 0))
    left, right = (take_rows(table, order[places]) for places in (again - 1, again))
    differ = np.flatnonzero(changed_rows(left, right))
    if len(differ):
        few = take_rows(right, differ[:_SHOWN])
        named = zip(column_texts(few, "source"), column_ints(few, "seq").tolist(), strict=True)
        yield _LogFault(
            kind="identity",
            verdict="refuse",
            words=f"{len(differ)} records differ from another under the same (source, seq): "
            f"{', '.join(f'({one}, {number})' for one, number in named)}. Number each record of a source once",
        )


def _wrong_actions(decisions: pa.Table, sizes: Ints) -> Iterator[_LogFault]:
    executed, count = column_ints(decisions, "executed"), sizes[column_ints(decisions, "action_set")]
    wrong = np.flatnonzero((executed < 0) | (executed >= count))
    if len(wrong):
        row = int(wrong[0])
        yield _LogFault(
            kind="action",
            verdict="refuse",
            words=f"{len(wrong)} decisions executed an action that was not offered; the first is "
            f"{_id(decisions, row)}: action {executed[row]} of {count[row]}",
        )


def _mixed_schemas(decisions: pa.Table, named: Mapping[str, tuple[str, ...]]) -> Iterator[_LogFault]:
    rank, width = column_ranks(decisions, "schema"), column_lengths(decisions, "context")
    at_s = column_floats(decisions, "at_s")
    order = np.lexsort((column_ints(decisions, "seq"), at_s))
    pairs = np.stack([rank, width], axis=1)[order]
    kinds, first = np.unique(pairs, axis=0, return_index=True)
    if len(kinds) < 2:
        return
    begins = order[np.sort(first)]
    hashes = column_texts(take_rows(decisions, begins), "schema")
    for place in range(1, len(begins)):
        older, newer = begins[place - 1], begins[place]
        rows = [np.flatnonzero((rank == rank[one]) & (width == width[one])) for one in (older, newer)]
        change = _schema_change(hashes[place - 1], hashes[place], named) or _numbered_change(decisions, rows)
        yield _LogFault(
            kind="schema",
            verdict="refuse",
            words=f"the schema of the features changes at decision {_id(decisions, int(newer))} "
            f"({at_s[newer]:.15g} s): {change}. Join the decisions of each schema by themselves (--schema)",
        )


def _schema_change(before: str, after: str, named: Mapping[str, tuple[str, ...]]) -> str:
    """Features that came, went or moved, by name; empty: the names are not known."""
    if before not in named or after not in named:
        return ""
    old, new = named[before], named[after]
    gone, came = [name for name in old if name not in new], [name for name in new if name not in old]
    changes = [f"{name} is gone" for name in gone] + [f"{name} is new" for name in came]
    kept_old, kept_new = [name for name in old if name in new], [name for name in new if name in old]
    changes += [f"{one} is where {other} was" for other, one in zip(kept_old, kept_new, strict=True) if one != other]
    return ", ".join(changes)


def _numbered_change(decisions: pa.Table, rows: Sequence[Ints]) -> str:
    """A change of schema without names: the widths, or the feature whose values moved most."""
    before, after = (context_rows(take_rows(decisions, one)) for one in rows)
    if before.shape[1] != after.shape[1]:
        return f"{before.shape[1]} features before, {after.shape[1]} after"
    hashes = [decisions["schema"][int(one[0])].as_py() or "none" for one in rows]
    if not before.shape[1]:
        return f"{hashes[0]} before, {hashes[1]} after"
    spread = np.maximum(np.concatenate([before, after]).std(axis=0), 1e-300)
    moved = int(np.argmax(np.abs(after.mean(axis=0) - before.mean(axis=0)) / spread))
    return (
        f"{hashes[0]} before, {hashes[1]} after; of the numbers, feature {moved} moved most, from a mean of "
        f"{before[:, moved].mean():.4g} to {after[:, moved].mean():.4g} (--features names them)"
    )


def _not_finite(outcomes: pa.Table) -> Iterator[_LogFault]:
    wrong = np.flatnonzero(~np.isfinite(column_floats(outcomes, "value")))
    if len(wrong):
        yield _LogFault(
            kind="value",
            verdict="weak",
            words=f"{len(wrong)} outcomes are NaN or infinite and count as missing; the first is of decision "
            f"{outcomes['decision_id'][int(wrong[0])].as_py()!r}",
        )


def _missing(decisions: pa.Table, outcomes: pa.Table) -> Iterator[_LogFault]:
    """Gaps by the records themselves: a source numbers its decisions and outcomes together."""
    names = sorted({*distinct_texts(decisions, "source"), *distinct_texts(outcomes, "source")})
    for name in names:
        seqs = np.unique(
            np.concatenate([column_ints(one, "seq")[text_equals(one, "source", name)] for one in (decisions, outcomes)])
        )
        missing = int(seqs[-1]) + 1 - len(seqs)
        if missing:
            first = int(np.flatnonzero(seqs != np.arange(len(seqs)))[0])
            yield _gap(name, missing, int(seqs[-1]) + 1, first)


def _gap(source: str, missing: int, count: int, first: int) -> _LogFault:
    return _LogFault(
        kind="gap",
        verdict="weak",
        words=f"source {source!r}: {missing} of {count} records are missing, the first is number {first}. They are "
        "lost, or not sent yet",
    )


def _repeated_ids(decisions: pa.Table) -> Iterator[_LogFault]:
    source, seq = column_ranks(decisions, "source"), column_ints(decisions, "seq")
    _, once = np.unique(np.stack([source, seq], axis=1), axis=0, return_index=True)
    rank = column_ranks(decisions, "id")[once]
    names, counts = np.unique(rank, return_counts=True)
    more = names[counts > 1]
    if len(more):
        row = int(once[np.flatnonzero(rank == more[0])[0]])
        yield _LogFault(
            kind="repeated_id",
            verdict="weak",
            words=f"{len(more)} ids are those of several decisions, the first is {_id(decisions, row)}: the earliest "
            "decision of each counts. Was a request sent again without its key?",
        )


def _orphans(decisions: pa.Table, outcomes: pa.Table) -> Iterator[_LogFault]:
    lost = np.flatnonzero(rows_of_texts(outcomes["decision_id"], decisions["id"]) < 0)
    if len(lost):
        yield _LogFault(
            kind="orphan",
            verdict="weak",
            words=f"{len(lost)} of {outcomes.num_rows} outcomes belong to no decision of the log; the first is of "
            f"{outcomes['decision_id'][int(lost[0])].as_py()!r}. Their decisions are lost, or not sent yet",
        )


def _clocks(table: pa.Table) -> Iterator[_LogFault]:
    """Sources of decisions whose time goes back while their numbers go up; outcomes may be told in any order."""
    source, seq, at_s = column_ranks(table, "source"), column_ints(table, "seq"), column_floats(table, "at_s")
    order = np.lexsort((seq, source))
    back = np.where(np.diff(source[order]) == 0, -np.diff(at_s[order]), 0.0)
    names = distinct_texts(table, "source")
    for place in np.unique(source[order][1:][back > CLOCK_STEP_S]).tolist():
        jumps = back[(source[order][1:] == place) & (back > CLOCK_STEP_S)]
        yield _LogFault(
            kind="clock",
            verdict="weak",
            words=f"source {names[place]!r}: its clock went back {len(jumps)} times, by up to {jumps.max():.6g} s. "
            "Windows of its records are wrong by as much",
        )


def _early(decisions: pa.Table, outcomes: pa.Table) -> Iterator[_LogFault]:
    row = rows_of_texts(outcomes["decision_id"], decisions["id"])
    owned = row >= 0
    lead: Floats = column_floats(decisions, "at_s")[row[owned]] - column_floats(outcomes, "at_s")[owned]
    early: Bools = lead > CLOCK_STEP_S
    if early.any():
        yield _LogFault(
            kind="clock",
            verdict="weak",
            words=f"{int(early.sum())} outcomes happened before their decision, by up to {lead.max():.6g} s: the "
            "clocks of their sources differ. They count as if they came with it",
        )


def _id(decisions: pa.Table, row: int) -> str:
    return repr(decisions["id"][row].as_py())
