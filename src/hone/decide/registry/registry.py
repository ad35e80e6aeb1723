"""Registry of versions: a folder with a database and the versions' files.

    registry.db             versions, files, evidence, stages, moves and the journal of rollouts
    versions/<id>/          the files of a version, immutable

Safe to kill at any moment: files come first and are renamed into place, rows come last and in one transaction, so a
reader sees a version whole or not at all. Evidence, moves and journal are append-only by triggers of the database.
"""

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import cast

from hone.core.decisions import Evidence, VersionStage
from hone.core.errors import ConfigError, DataError, ResourceError, did_you_mean
from hone.core.strict_json import Json
from hone.decide.registry.moves import (
    RecordedMove,
    StageMove,
    apply_move,
    evidence_rows,
    live_in,
    stage_in,
    write_evidence,
)
from hone.decide.registry.schema import create_database, reading, transaction
from hone.decide.registry.versions import (
    PolicyVersion,
    VersionFile,
    VersionOrigin,
    copy_version,
    damaged_files,
    files_of,
    version_id,
)
from hone.run.store.durable import failpoint, sync_path, to_json, writing


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """Entry of a rollout's journal, with everything that happens in its transaction."""

    service: str
    rollout: str
    seq: int
    """Its number, from 0, without gaps."""
    content: Json
    moves: Sequence[StageMove] = ()
    evidence: Sequence[tuple[str, Evidence]] = ()
    """Rows of evidence, each with its version."""


@dataclass(frozen=True, slots=True)
class VersionRegistry:
    """Opened registry. Holds no connection: each call is a transaction of its own. Made by `open_registry`."""

    folder: Path

    @property
    def database(self) -> Path:
        """File of the database."""
        return self.folder / "registry.db"

    # ------------------------------------------------------------------------------------------ versions

    def add(self, policy: Path, origin: VersionOrigin, *, at_s: float, made_by: str) -> PolicyVersion:
        """Add the version in a policy's folder; the one that is there already is returned. Raises DataError."""
        files = files_of(policy)
        number = version_id(files, origin)
        with reading(self.database) as connection:
            if origin.parent:
                _require(connection, origin.parent, "the parent of the new version")
            if _exists(connection, number):
                return _read_version(connection, number)
        copy_version(policy, self.folder / "versions" / number, files)
        failpoint("registry.before_rows")
        with transaction(self.database) as connection:
            if not _exists(connection, number):
                connection.execute(
                    "insert into versions values (?, ?, ?, ?, ?, ?, ?, ?)",
                    (number, origin.code, origin.config, origin.parent, origin.view, json.dumps(origin.seeds), at_s,
                     made_by),
                )  # fmt: skip
                connection.executemany(
                    "insert into files values (?, ?, ?, ?)", [(number, *astuple(file)) for file in files]
                )
            failpoint("registry.before_commit")
            return _read_version(connection, number)

    def version(self, number: str) -> PolicyVersion:
        """A version by its identity. Raises DataError with the nearest one."""
        with reading(self.database) as connection:
            _require(connection, number, "this version")
            return _read_version(connection, number)

    def versions(self) -> tuple[PolicyVersion, ...]:
        """All versions, oldest first."""
        with reading(self.database) as connection:
            rows = connection.execute("select id from versions order by at_s, id").fetchall()
            return tuple(_read_version(connection, row[0]) for row in rows)

    def policy_folder(self, number: str) -> Path:
        """Folder with a version's files, each verified by its hash. Raises DataError that names the damaged ones."""
        version, folder = self.version(number), self.folder / "versions" / number
        damaged = damaged_files(folder, version.files)
        if damaged:
            raise DataError(
                f"version {number} is damaged in {folder}: {', '.join(damaged)}; "
                "recall another version, or add it again"
            )
        return folder

    def lineage(self, number: str) -> tuple[PolicyVersion, ...]:
        """A version, its parent, and so on to the first one."""
        line = [self.version(number)]
        while line[-1].origin.parent:
            line.append(self.version(line[-1].origin.parent))
        return tuple(line)

    # ------------------------------------------------------------------------------------------ evidence

    def add_evidence(self, number: str, evidence: Evidence) -> None:
        """Append a row of evidence; rows are never changed. Raises DataError for an unknown version or no maker."""
        with transaction(self.database) as connection:
            _require(connection, number, "the version of the evidence")
            write_evidence(connection, number, evidence)

    def evidence(self, number: str) -> tuple[Evidence, ...]:
        """Evidence of a version, in the order of its arrival."""
        with reading(self.database) as connection:
            return evidence_rows(connection, number)

    # ------------------------------------------------------------------------------------------ stages

    def move(self, service: str, move: StageMove, *, at_s: float, made_by: str) -> RecordedMove | None:
        """Move a version to a stage, in one transaction; None: it is there already.

        Raises ConfigError with each kind of evidence that is missing, and for a move that no stage allows.
        """
        with transaction(self.database) as connection:
            _require(connection, move.version, "the version to move")
            done = apply_move(connection, service, move, at_s=at_s, made_by=made_by)
            failpoint("registry.before_commit")
            return done

    def rollback(self, service: str, *, at_s: float, made_by: str, reason: str) -> RecordedMove:
        """Make the version live again that the present one replaced. Raises ConfigError if there is none."""
        live = self.live(service)
        past = next((move for move in reversed(self.moves(service)) if move.version == live and move.replaced), None)
        if past is None:
            raise ConfigError(f"service {service!r} has no version to go back to: {live or 'nothing'} replaced none")
        return self.recall(service, past.replaced, at_s=at_s, made_by=made_by, reason=reason)

    def recall(self, service: str, number: str, *, at_s: float, made_by: str, reason: str) -> RecordedMove:
        """Make a version live that has been live before; it needs no new evidence. Raises ConfigError otherwise."""
        if not any(move.version == number and move.after == "live" for move in self.moves(service)):
            raise ConfigError(
                f"version {number} was never live in service {service!r}; ship it: a recall takes versions that were"
            )
        done = self.move(service, StageMove(version=number, stage="live", reason=reason), at_s=at_s, made_by=made_by)
        if done is None:
            raise ConfigError(f"version {number} is live in service {service!r} already")
        return done

    def live(self, service: str) -> str:
        """The live version of a service; empty: none."""
        with reading(self.database) as connection:
            return live_in(connection, service)

    def stage(self, service: str, number: str) -> VersionStage:
        """Stage of a version in a service; `candidate` if it never moved."""
        with reading(self.database) as connection:
            return stage_in(connection, service, number)

    def moves(self, service: str) -> tuple[RecordedMove, ...]:
        """Moves of a service's versions, oldest first."""
        with reading(self.database) as connection:
            rows = connection.execute(
                "select version, before, after, replaced, at_s, made_by, reason from moves where service = ? "
                "order by number",
                (service,),
            )
            names = ("version", "before", "after", "replaced", "at_s", "made_by", "reason")
            return tuple(RecordedMove(**dict(zip(names, row, strict=True))) for row in rows)

    # ------------------------------------------------------------------------------------------ journal

    def append(self, entry: JournalEntry, *, at_s: float, made_by: str) -> None:
        """Append an entry to a rollout's journal, together with the moves and the evidence that it means.

        One transaction: all of it, or nothing. Raises ResourceError if another controller wrote an entry of its seq.
        """
        service, rollout, seq = entry.service, entry.rollout, entry.seq
        with transaction(self.database) as connection:
            (count,) = connection.execute(
                "select count(*) from journal where service = ? and rollout = ?", (service, rollout)
            ).fetchone()
            if count != seq:
                raise ResourceError(
                    f"rollout {rollout!r} of service {service!r} has {count} entries, not {seq}: another controller "
                    "moved it; read its journal again, and run one controller a rollout"
                )
            text = to_json(entry.content).decode()
            connection.execute("insert into journal values (?, ?, ?, ?)", (service, rollout, seq, text))
            failpoint("registry.after_entry")
            for number, evidence in entry.evidence:
                write_evidence(connection, number, evidence)
            for move in entry.moves:
                _require(connection, move.version, "the version to move")
                apply_move(connection, service, move, at_s=at_s, made_by=made_by)
            failpoint("registry.before_commit")
        failpoint("registry.after_commit")

    def entries(self, service: str, rollout: str) -> list[dict[str, Json]]:
        """Entries of a rollout's journal, in order."""
        with reading(self.database) as connection:
            rows = connection.execute(
                "select entry from journal where service = ? and rollout = ? order by seq", (service, rollout)
            )
            return [cast("dict[str, Json]", json.loads(row[0])) for row in rows]

    def first_and_last(self, service: str, rollout: str) -> tuple[dict[str, Json], dict[str, Json], int] | None:
        """First and last entry of a rollout's journal, and the number of entries; None: there is none."""
        with reading(self.database) as connection:
            rows = connection.execute(
                "select entry, seq from journal where service = ? and rollout = ? and seq in (0, (select max(seq) from "
                "journal where service = ? and rollout = ?)) order by seq",
                (service, rollout, service, rollout),
            ).fetchall()
        if not rows:
            return None
        first, last = (cast("dict[str, Json]", json.loads(row[0])) for row in (rows[0], rows[-1]))
        return first, last, rows[-1][1] + 1

    def rollouts(self, service: str) -> list[str]:
        """Names of a service's rollouts, oldest first."""
        with reading(self.database) as connection:
            rows = connection.execute(
                "select rollout, entry from journal where service = ? and seq = 0", (service,)
            ).fetchall()
        return [name for name, _ in sorted(rows, key=lambda row: (json.loads(row[1]).get("at_s", 0), row[0]))]


def open_registry(folder: Path, *, create: bool = False) -> VersionRegistry:
    """Open a registry, or make one with `create`. Raises DataError and ResourceError."""
    registry = VersionRegistry(folder)
    if create:
        with writing(folder):
            (folder / "versions").mkdir(parents=True, exist_ok=True)
        create_database(registry.database)
        sync_path(folder)
    with reading(registry.database):
        return registry


def _exists(connection: sqlite3.Connection, number: str) -> bool:
    return connection.execute("select 1 from versions where id = ?", (number,)).fetchone() is not None


def _require(connection: sqlite3.Connection, number: str, role: str) -> None:
    if not _exists(connection, number):
        known = [row[0] for row in connection.execute("select id from versions order by at_s desc limit 20")]
        raise DataError(f"no version {number!r} in the registry ({role}){did_you_mean(number, known)}")


def _read_version(connection: sqlite3.Connection, number: str) -> PolicyVersion:
    row = connection.execute(
        "select code, config, parent, view, seeds, at_s, made_by from versions where id = ?", (number,)
    ).fetchone()
    files = connection.execute("select path, sha256, size_bytes from files where version = ? order by path", (number,))
    return PolicyVersion(
        id=number,
        files=tuple(VersionFile(path=path, sha256=digest, size_bytes=size) for path, digest, size in files),
        origin=VersionOrigin(code=row[0], config=row[1], parent=row[2], view=row[3], seeds=tuple(json.loads(row[4]))),
        at_s=row[5],
        made_by=row[6],
    )
