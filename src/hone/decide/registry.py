"""Registry of versions: a folder with a database and the versions' files.

    registry.db             versions, files, evidence, stages, moves and the journal of rollouts
    versions/<id>/          the files of a version, immutable

Safe to kill at any moment: files come first and are renamed into place, rows come last and in one transaction, so a
reader sees a version whole or not at all. Evidence, moves and journal are append-only by triggers of the database.

Stages of versions in a service: which move is allowed, and the evidence that it needs.

`candidate -> shadow -> canary -> live -> retired`. A service has at most one live version: a move to `live` retires the
version before it in the same transaction, so that the way back is a pointer.

Leases in the registry: of several processes that could do a work, one does it until it stops or dies.

A lease is a promise for a time, not a lock: a holder that was stopped for longer than its lease may still be at work
when the next one begins. What a holder writes must therefore be refused by its place, as the journal of a rollout does
with its numbers.
"""

import hashlib
import json
import math
import os
import shutil
import sqlite3
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final, cast

from hone.core.decisions import Evidence, VersionStage
from hone.core.errors import ConfigError, DataError, ResourceError, did_you_mean
from hone.core.strict_json import Json
from hone.run.store.durable import failpoint, remove_tree, sha256, sync_path, to_json, writing

# ------------------------------------------------------------------------------------------------------------- versions


ID_DIGITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class _VersionFile:
    """File of a version."""

    path: str
    """Relative, with `/`."""
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionOrigin:
    """Everything beside the weights that a version was made from."""

    code: str = ""
    """Version of the code: a release or a commit."""
    config: str = ""
    """Config of the run, as text."""
    parent: str = ""
    """Version that it was trained from or beside; empty: none."""
    view: str = ""
    """Hash of the view of the decision log that it learnt from; empty: none."""
    seeds: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVersion:
    """Version of a policy in the registry."""

    id: str
    files: tuple[_VersionFile, ...]
    origin: VersionOrigin
    at_s: float
    made_by: str


def version_id(files: Sequence[_VersionFile], origin: VersionOrigin) -> str:
    """Identity of a version: hash of its files, code, config, parent, view and seeds -> 16 hexadecimal digits.

    The same content has the same identity on every machine and at every time.
    """
    content = {
        "files": sorted((file.path, file.sha256, file.size_bytes) for file in files),
        "code": origin.code,
        "config": origin.config,
        "parent": origin.parent,
        "view": origin.view,
        "seeds": list(origin.seeds),
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:ID_DIGITS]


def files_of(folder: Path) -> tuple[_VersionFile, ...]:
    """Files of a policy's folder, sorted. Raises DataError for none, and for links and other special files."""
    if not folder.is_dir():
        raise DataError(f"no policy folder {folder}; name the folder that the policy was saved into")
    entries = sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    odd = [str(path.relative_to(folder)) for path in entries if path.is_symlink() or not path.is_file()]
    if odd:
        raise DataError(f"{folder} has links or special files, which no version can hold: {', '.join(odd[:5])}")
    if not entries:
        raise DataError(f"{folder} is empty: a version needs the files of a policy")
    return tuple(
        _VersionFile(path=path.relative_to(folder).as_posix(), sha256=sha256(path), size_bytes=path.stat().st_size)
        for path in entries
    )


def _copy_version(source: Path, target: Path, files: Sequence[_VersionFile]) -> None:
    """Copy the files into `target`, whole or not at all. Raises ResourceError, and DataError if one changed."""
    if target.is_dir() and not _damaged_files(target, files):
        return  # left by an addition that was killed before its row was written
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    if temporary.exists():
        remove_tree(temporary)
    for file in files:
        place = temporary / file.path
        with writing(place, file.size_bytes):
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / file.path, place)
        sync_path(place)
    changed = _damaged_files(temporary, files)
    if changed:
        remove_tree(temporary)
        raise DataError(f"{source} changed while it was copied: {', '.join(changed)}; add it when nothing writes there")
    failpoint("registry.before_rename")
    if target.exists():
        remove_tree(target)  # damaged
    with writing(target):
        temporary.rename(target)
    sync_path(target.parent)


def _damaged_files(folder: Path, files: Sequence[_VersionFile]) -> list[str]:
    """Names of the files that are missing or have other content."""
    return [
        file.path for file in files if not (folder / file.path).is_file() or sha256(folder / file.path) != file.sha256
    ]


# --------------------------------------------------------------------------------------------------------------- schema


FORMAT = 1
BUSY_S = 5.0
"""Seconds to wait for another process's transaction."""

_TABLES = (
    """create table versions (
        id text primary key, code text not null, config text not null, parent text not null, view text not null,
        seeds text not null, at_s real not null, made_by text not null) without rowid""",
    """create table files (
        version text not null references versions, path text not null, sha256 text not null,
        size_bytes integer not null, primary key (version, path)) without rowid""",
    """create table evidence (
        number integer primary key, version text not null references versions, kind text not null,
        verdict text not null, words text not null, value real, low real, high real, count integer not null,
        made_by text not null, at_s real not null)""",
    """create table stages (
        service text not null, version text not null references versions, stage text not null,
        primary key (service, version)) without rowid""",
    "create unique index one_live on stages (service) where stage = 'live'",
    """create table moves (
        number integer primary key, service text not null, version text not null references versions,
        before text not null, after text not null, replaced text not null, at_s real not null, made_by text not null,
        reason text not null)""",
    """create table journal (
        service text not null, rollout text not null, seq integer not null, entry text not null,
        primary key (service, rollout, seq)) without rowid""",
)
_APPEND_ONLY = tuple(
    f"create trigger {table}_no_{verb} before {verb} on {table} "
    f"begin select raise(abort, '{table} is append-only'); end"
    for table in ("versions", "files", "evidence", "moves", "journal")
    for verb in ("update", "delete")
)


@contextmanager
def _transaction(path: Path, *, create: bool = False) -> Generator[sqlite3.Connection]:
    """One transaction on the database; committed at the block's end, undone by an error. Raises as `_reading`."""
    with _reading(path, create=create) as connection:
        connection.execute("begin immediate")
        try:
            yield connection
        except BaseException:
            connection.execute("rollback")
            raise
        connection.execute("commit")


@contextmanager
def _reading(path: Path, *, create: bool = False) -> Generator[sqlite3.Connection]:
    """Connection to the database for the block. Raises ResourceError if it cannot be reached, DataError if damaged."""
    if not create and not path.is_file():
        raise DataError(f"no registry at {path.parent}; `hone ship` makes one, or name its folder")
    mode = "rwc" if create else "rw"
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", timeout=BUSY_S, uri=True)
        ) as connection:
            connection.isolation_level = None
            connection.execute("pragma synchronous = full")
            connection.execute("pragma foreign_keys = on")
            version = connection.execute("pragma user_version").fetchone()[0]
            if version > FORMAT:
                raise DataError(f"{path} has format {version}, this hone reads {FORMAT}; use the hone that wrote it")
            yield connection
    except sqlite3.OperationalError as error:
        raise ResourceError(f"cannot reach the registry {path}: {error}; is its disk there and not full?") from error
    except sqlite3.DatabaseError as error:
        raise DataError(f"the registry {path} is damaged: {error}; restore it from a copy") from error


# ---------------------------------------------------------------------------------------------------------------- moves


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
class _RecordedMove:
    """Move that took place."""

    version: str
    before: VersionStage
    after: VersionStage
    replaced: str
    """Version that was live before; empty: the move changed no live version."""
    at_s: float
    made_by: str
    reason: str


def _evidence_rows(connection: sqlite3.Connection, version: str) -> tuple[Evidence, ...]:
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


def _write_evidence(connection: sqlite3.Connection, version: str, evidence: Evidence) -> None:
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
    missing = [f"{kind}: none" for kind in needs if kind not in latest]
    return missing + [
        f"{kind}: {latest[kind].verdict} ({latest[kind].words}; by {latest[kind].made_by})"
        for kind in needs
        if kind in latest and latest[kind].verdict != "ok"
    ]


def _stage_in(connection: sqlite3.Connection, service: str, version: str) -> VersionStage:
    """Stage of a version in a service; `candidate` if it never moved."""
    row = connection.execute(
        "select stage from stages where service = ? and version = ?", (service, version)
    ).fetchone()
    return row[0] if row else "candidate"


def _live_in(connection: sqlite3.Connection, service: str) -> str:
    """The live version of a service; empty if it has none."""
    row = connection.execute("select version from stages where service = ? and stage = 'live'", (service,)).fetchone()
    return row[0] if row else ""


def _apply_move(
    connection: sqlite3.Connection, service: str, move: StageMove, *, at_s: float, made_by: str
) -> _RecordedMove | None:
    """Move a version inside a transaction; None: it is there already. Raises ConfigError with every obstacle."""
    before = _stage_in(connection, service, move.version)
    if before == move.stage:
        return None
    if move.stage not in ALLOWED[before]:
        raise ConfigError(
            f"version {move.version} of service {service!r} is {before} and cannot become {move.stage}; "
            f"from {before} it can become {', '.join(ALLOWED[before])}"
        )
    if move.stage in GUARDED:
        missing = missing_evidence(_evidence_rows(connection, move.version), move.needs)
        if missing:
            raise ConfigError(
                *(f"evidence {one}" for one in missing),
                f"version {move.version} stays {before}: service {service!r} asks for {', '.join(move.needs)} "
                f"before {move.stage}; add the rows, or change `evidence` in the service's [rollout]",
            )
    replaced = _live_in(connection, service) if move.stage == "live" else ""
    _write(connection, service, replaced, "retired")
    _write(connection, service, move.version, move.stage)
    done = _RecordedMove(
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


# ------------------------------------------------------------------------------------------------------------- registry


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
        with _reading(self.database) as connection:
            if origin.parent:
                _require(connection, origin.parent, "the parent of the new version")
            if _exists(connection, number):
                return _read_version(connection, number)
        _copy_version(policy, self.folder / "versions" / number, files)
        failpoint("registry.before_rows")
        with _transaction(self.database) as connection:
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
        with _reading(self.database) as connection:
            _require(connection, number, "this version")
            return _read_version(connection, number)

    def versions(self) -> tuple[PolicyVersion, ...]:
        """All versions, oldest first."""
        with _reading(self.database) as connection:
            rows = connection.execute("select id from versions order by at_s, id").fetchall()
            return tuple(_read_version(connection, row[0]) for row in rows)

    def policy_folder(self, number: str) -> Path:
        """Folder with a version's files, each verified by its hash. Raises DataError that names the damaged ones."""
        version, folder = self.version(number), self.folder / "versions" / number
        damaged = _damaged_files(folder, version.files)
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
        with _transaction(self.database) as connection:
            _require(connection, number, "the version of the evidence")
            _write_evidence(connection, number, evidence)

    def evidence(self, number: str) -> tuple[Evidence, ...]:
        """Evidence of a version, in the order of its arrival."""
        with _reading(self.database) as connection:
            return _evidence_rows(connection, number)

    # ------------------------------------------------------------------------------------------ stages

    def move(self, service: str, move: StageMove, *, at_s: float, made_by: str) -> _RecordedMove | None:
        """Move a version to a stage, in one transaction; None: it is there already.

        Raises ConfigError with each kind of evidence that is missing, and for a move that no stage allows.
        """
        with _transaction(self.database) as connection:
            _require(connection, move.version, "the version to move")
            done = _apply_move(connection, service, move, at_s=at_s, made_by=made_by)
            failpoint("registry.before_commit")
            return done

    def rollback(self, service: str, *, at_s: float, made_by: str, reason: str) -> _RecordedMove:
        """Make the version live again that the present one replaced. Raises ConfigError if there is none."""
        live = self.live(service)
        past = next((move for move in reversed(self.moves(service)) if move.version == live and move.replaced), None)
        if past is None:
            raise ConfigError(f"service {service!r} has no version to go back to: {live or 'nothing'} replaced none")
        return self.recall(service, past.replaced, at_s=at_s, made_by=made_by, reason=reason)

    def recall(self, service: str, number: str, *, at_s: float, made_by: str, reason: str) -> _RecordedMove:
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
        with _reading(self.database) as connection:
            return _live_in(connection, service)

    def stage(self, service: str, number: str) -> VersionStage:
        """Stage of a version in a service; `candidate` if it never moved."""
        with _reading(self.database) as connection:
            return _stage_in(connection, service, number)

    def moves(self, service: str) -> tuple[_RecordedMove, ...]:
        """Moves of a service's versions, oldest first."""
        with _reading(self.database) as connection:
            rows = connection.execute(
                "select version, before, after, replaced, at_s, made_by, reason from moves where service = ? "
                "order by number",
                (service,),
            )
            names = ("version", "before", "after", "replaced", "at_s", "made_by", "reason")
            return tuple(_RecordedMove(**dict(zip(names, row, strict=True))) for row in rows)

    # ------------------------------------------------------------------------------------------ journal

    def append(self, entry: JournalEntry, *, at_s: float, made_by: str) -> None:
        """Append an entry to a rollout's journal, together with the moves and the evidence that it means.

        One transaction: all of it, or nothing. Raises ResourceError if another controller wrote an entry of its seq.
        """
        service, rollout, seq = entry.service, entry.rollout, entry.seq
        with _transaction(self.database) as connection:
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
                _write_evidence(connection, number, evidence)
            for move in entry.moves:
                _require(connection, move.version, "the version to move")
                _apply_move(connection, service, move, at_s=at_s, made_by=made_by)
            failpoint("registry.before_commit")
        failpoint("registry.after_commit")

    def entries(self, service: str, rollout: str) -> list[dict[str, Json]]:
        """Entries of a rollout's journal, in order."""
        with _reading(self.database) as connection:
            rows = connection.execute(
                "select entry from journal where service = ? and rollout = ? order by seq", (service, rollout)
            )
            return [cast("dict[str, Json]", json.loads(row[0])) for row in rows]

    def first_and_last(self, service: str, rollout: str) -> tuple[dict[str, Json], dict[str, Json], int] | None:
        """First and last entry of a rollout's journal, and the number of entries; None: there is none."""
        with _reading(self.database) as connection:
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
        with _reading(self.database) as connection:
            rows = connection.execute(
                "select rollout, entry from journal where service = ? and seq = 0", (service,)
            ).fetchall()
        return [name for name, _ in sorted(rows, key=lambda row: (json.loads(row[1]).get("at_s", 0), row[0]))]

    def take_lease(self, work: str, holder: str, *, now_s: float, lease_s: float) -> str:
        """Take or extend the lease of a work -> its holder: `holder` itself, or the one that has it.

        A holder whose lease has run out loses it to whoever asks first. Raises DataError and ResourceError.
        """
        with _transaction(self.database) as connection:
            connection.execute(_TABLE)  # a registry of an earlier hone has none
            connection.execute(
                "insert into leases values (?, ?, ?) on conflict (work) do update set holder = excluded.holder, "
                "until_s = excluded.until_s where leases.holder = excluded.holder or leases.until_s < ?",
                (work, holder, now_s + lease_s, now_s),
            )
            row = connection.execute("select holder from leases where work = ?", (work,)).fetchone()
            return str(row[0])

    def give_lease_back(self, work: str, holder: str) -> None:
        """End a lease at once; without effect for another's. Raises DataError and ResourceError."""
        with _transaction(self.database) as connection:
            connection.execute(_TABLE)
            connection.execute("delete from leases where work = ? and holder = ?", (work, holder))


def open_registry(folder: Path, *, create: bool = False) -> VersionRegistry:
    """Open a registry, or make one with `create`. Raises DataError and ResourceError."""
    registry = VersionRegistry(folder)
    if create:
        with writing(folder):
            (folder / "versions").mkdir(parents=True, exist_ok=True)
        with _transaction(registry.database, create=True) as connection:
            is_new = connection.execute("pragma user_version").fetchone()[0] == 0
            for statement in (*_TABLES, *_APPEND_ONLY, f"pragma user_version = {FORMAT}") if is_new else ():
                connection.execute(statement)
        sync_path(folder)
    with _reading(registry.database):
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
        files=tuple(_VersionFile(path=path, sha256=digest, size_bytes=size) for path, digest, size in files),
        origin=VersionOrigin(code=row[0], config=row[1], parent=row[2], view=row[3], seeds=tuple(json.loads(row[4]))),
        at_s=row[5],
        made_by=row[6],
    )


# --------------------------------------------------------------------------------------------------------------- leases


_TABLE: Final = (
    "create table if not exists leases (work text primary key, holder text not null, until_s real not null) "
    "without rowid"
)
