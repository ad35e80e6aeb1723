"""Stages of versions in a service: which move is allowed, and the evidence that it needs.

`candidate -> shadow -> canary -> live -> retired`. A service has at most one live version: a move to `live` retires the
version before it in the same transaction, so that the way back is a pointer.
"""

import math
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hone.core.decisions import Evidence, VersionStage
from hone.core.errors import ConfigError, DataError

ALLOWED: Final[dict[VersionStage, tuple[VersionStage, ...]]] = {
    "candidate": ("shadow", "canary", "live", "retired"),
    "shadow": ("candidate", "canary", "live", "retired"),
    "canary": ("live", "retired"),
    "live": ("retired",),
    "retired": ("candidate", "live"),
}
GUARDED: Final = ("canary", "live")
"""Stages that answer requests: a move into one needs evidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMove:
    """Move of a version to a stage."""

    version: str
    stage: VersionStage
    needs: tuple[str, ...] = ()
    """Kinds of evidence that the service's config names."""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedMove:
    """Move that took place."""

    version: str
    before: VersionStage
    after: VersionStage
    replaced: str
    """Version that was live before; empty: the move changed no live version."""
    at_s: float
    made_by: str
    reason: str


def evidence_rows(connection: sqlite3.Connection, version: str) -> tuple[Evidence, ...]:
    """Evidence of a version, in the order of its arrival."""
    rows = connection.execute(
        "select kind, verdict, words, value, low, high, count, made_by, at_s from evidence where version = ? "
        "order by number",
        (version,),
    )
    return tuple(
        Evidence(
            kind=row[0], verdict=row[1], words=row[2], value=_number(row[3]), low=_number(row[4]),
            high=_number(row[5]), count=row[6], made_by=row[7], at_s=row[8],
        )
        for row in rows
    )  # fmt: skip


def write_evidence(connection: sqlite3.Connection, version: str, evidence: Evidence) -> None:
    """Append a row of evidence. Raises DataError for one without kind or maker."""
    if not evidence.made_by or not evidence.kind:
        raise DataError(f"evidence of version {version} needs its kind and its maker, got {evidence}")
    values = (evidence.value, evidence.low, evidence.high)
    connection.execute(
        "insert into evidence (version, kind, verdict, words, value, low, high, count, made_by, at_s) "
        "values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (version, evidence.kind, evidence.verdict, evidence.words,
         *(None if math.isnan(value) else value for value in values), evidence.count, evidence.made_by,
         evidence.at_s),
    )  # fmt: skip


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def missing_evidence(rows: Sequence[Evidence], needs: Sequence[str]) -> list[str]:
    """Kinds that stand in a move's way, each with the reason; the latest row of a kind decides."""
    latest = {row.kind: row for row in rows}
    found = [f"{kind}: none" for kind in needs if kind not in latest]
    return found + [
        f"{kind}: {latest[kind].verdict} ({latest[kind].words}; by {latest[kind].made_by})"
        for kind in needs
        if kind in latest and latest[kind].verdict != "ok"
    ]


def stage_in(connection: sqlite3.Connection, service: str, version: str) -> VersionStage:
    """Stage of a version in a service; `candidate` if it never moved."""
    row = connection.execute(
        "select stage from stages where service = ? and version = ?", (service, version)
    ).fetchone()
    return row[0] if row else "candidate"


def live_in(connection: sqlite3.Connection, service: str) -> str:
    """The live version of a service; empty if it has none."""
    row = connection.execute("select version from stages where service = ? and stage = 'live'", (service,)).fetchone()
    return row[0] if row else ""


def apply_move(
    connection: sqlite3.Connection, service: str, move: StageMove, *, at_s: float, made_by: str
) -> RecordedMove | None:
    """Move a version inside a transaction; None: it is there already. Raises ConfigError with every obstacle."""
    before = stage_in(connection, service, move.version)
    if before == move.stage:
        return None
    if move.stage not in ALLOWED[before]:
        raise ConfigError(
            f"version {move.version} of service {service!r} is {before} and cannot become {move.stage}; "
            f"from {before} it can become {', '.join(ALLOWED[before])}"
        )
    if move.stage in GUARDED:
        missing = missing_evidence(evidence_rows(connection, move.version), move.needs)
        if missing:
            raise ConfigError(
                *(f"evidence {one}" for one in missing),
                f"version {move.version} stays {before}: service {service!r} asks for {', '.join(move.needs)} "
                f"before {move.stage}; add the rows, or change `evidence` in the service's [rollout]",
            )
    replaced = live_in(connection, service) if move.stage == "live" else ""
    _write(connection, service, replaced, "retired")
    _write(connection, service, move.version, move.stage)
    done = RecordedMove(
        version=move.version, before=before, after=move.stage, replaced=replaced, at_s=at_s, made_by=made_by,
        reason=move.reason,
    )  # fmt: skip
    connection.execute(
        "insert into moves (service, version, before, after, replaced, at_s, made_by, reason) "
        "values (?, ?, ?, ?, ?, ?, ?, ?)",
        (service, done.version, done.before, done.after, done.replaced, at_s, made_by, done.reason),
    )
    return done


def _write(connection: sqlite3.Connection, service: str, version: str, stage: VersionStage) -> None:
    if version:
        connection.execute(
            "insert into stages values (?, ?, ?) on conflict (service, version) do update set stage = excluded.stage",
            (service, version, stage),
        )
