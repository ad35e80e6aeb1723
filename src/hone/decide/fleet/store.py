"""The store of a fleet: steps and ends of episodes in one SQLite file, each once, in the order of arrival.

    records    position, source, seq, kind (0 a step, 1 the end of an episode), schema, body; one row a (source, seq)
    schemas    names of the numbers of a step; `hone.core.robot_steps` has the layout of a body
    sources    robot, instance of its spool, and progress
    episodes   version, route, return and first observation of every episode that ended, numbered from 0

A batch is stored whole or not at all, and acknowledged after its commit. A learner reads `records` by position; a
position that was read is final. What the decision log learns of episodes is derived from their numbers, so that a
service that was killed between the two goes on without a gap and without a double.
"""

import json
import math
import secrets
import sqlite3
import threading
import zlib
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from hone.core.errors import DataError, ResourceError
from hone.core.robot_steps import RobotSchema
from hone.core.strict_json import strict_json
from hone.decide.fleet.spool import open_tables
from hone.decide.log.codec import END_OF_TIME_S, MAX_NAME, MAX_SEQ
from hone.decide.log.protocol import SourceProgress, SourceWatermark
from hone.decide.log.relational import chunks
from hone.run.store.durable import DiskFullError, failpoint

FORMAT: Final = 1
STEP, EPISODE = 0, 1
_FLAGS: Final = 3
_WAIT_S: Final = 30.0
_TABLES: Final = """
create table if not exists meta (name text primary key, value text not null) without rowid;
create table if not exists schemas (id integer primary key, hash text unique not null, body text not null);
create table if not exists sources (
    id integer primary key, robot text not null, instance text not null, watermark integer not null default -1,
    highest integer not null default -1, seen integer not null default 0, first integer not null default 0,
    lost integer not null default 0, repeated integer not null default 0, refused integer not null default 0,
    ahead_s real not null default 0, contact_s real not null default 0, version text not null default '',
    schema integer not null default 0, unique (robot, instance));
create table if not exists records (
    position integer primary key autoincrement, source integer not null, seq integer not null, kind integer not null,
    schema integer not null, body blob not null, unique (source, seq));
create table if not exists episodes (
    number integer primary key, source integer not null, seq integer not null, episode integer not null,
    version text not null,
    route text not null, return real not null, steps integer not null, at_s real not null, first text not null);
create table if not exists staleness (lag integer primary key, steps integer not null);
create table if not exists versions (version text primary key, number integer not null) without rowid;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeEnd:
    """The end of an episode, as a robot told it."""

    seq: int
    episode: int
    version: str
    """Version of the policy that ran it."""
    route: str
    """Rollout, arm and stage; empty: none."""
    total: float
    """Undiscounted return."""
    steps: int
    at_s: float
    """Seconds since the epoch at its begin, by the robot's clock."""
    first: tuple[float, ...]
    """First numbers of the first observation."""

    def body(self) -> bytes:
        """The record's bytes."""
        parts = (self.episode, self.version, self.route, self.total, self.steps, self.at_s, self.first)
        return json.dumps(parts).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """A batch as it arrived: its parts agree with its header, its rows are not checked yet."""

    robot: str
    instance: str
    schema: RobotSchema
    begin: int
    """Numbers below it will not come any more, unless they have."""
    rows: NDArray[np.void]
    """`[n]` steps, by the names of `RobotSchema.fields`."""
    raw: bytes
    episodes: tuple[EpisodeEnd, ...]


def read_batch(body: bytes) -> StepBatch:
    """Read a request's body. Raises DataError for half of one, or a damaged one: nothing of it can be used."""
    line, newline, raw = body.partition(b"\n")
    try:
        header = cast("dict[str, Any]", strict_json(line))
        schema = RobotSchema.from_json(json.dumps(header["schema"]))
        kind = np.dtype(schema.fields)
        count, crc = int(header["steps"]), int(header["crc32"])
        episodes = tuple(
            EpisodeEnd(
                seq=int(one["seq"]), episode=int(one["episode"]), version=str(one["version"]), route=str(one["route"]),
                total=float(one["return"]), steps=int(one["steps"]), at_s=float(one["at_s"]),
                first=tuple(map(float, one["first"])),
            )
            for one in header["episodes"]
        )  # fmt: skip
        robot, instance, begin = str(header["robot"]), str(header["instance"]), int(header["begin"])
    except (ValueError, KeyError, TypeError, AttributeError, DataError) as error:
        raise DataError(f"the batch has no readable header: {error!r}"[:500]) from None
    if not newline or len(raw) != count * kind.itemsize:
        raise DataError(
            f"half of a batch: its header promises {count} steps of {kind.itemsize} bytes, {len(raw)} bytes came; "
            "nothing was stored, send it again"
        )
    if zlib.crc32(raw) != crc:
        raise DataError("the batch is damaged: its check sum is another one; nothing was stored, send it again")
    if not (1 <= len(robot) <= MAX_NAME and 1 <= len(instance) <= MAX_NAME and 0 <= begin <= MAX_SEQ):
        raise DataError(f"robot {robot!r:.60}, instance {instance!r:.60}, begin {begin}: out of bounds")
    return StepBatch(
        robot=robot, instance=instance, schema=schema, begin=begin, rows=np.frombuffer(raw, kind), raw=raw,
        episodes=episodes,
    )  # fmt: skip


def row_faults(batch: StepBatch) -> dict[int, str]:
    """Faults of steps and of ends of episodes, by their number."""
    rows, schema = batch.rows, batch.schema
    checks: dict[str, Any] = {
        "a number of the observation is not finite": np.isfinite(rows["observation"]).all(axis=1),
        "a number of the next observation is not finite": np.isfinite(rows["next_observation"]).all(axis=1),
        "a number of the action is not finite": np.isfinite(rows["action"]).all(axis=1),
        "reward is not finite": np.isfinite(rows["reward"]),
        "logp is infinite": ~np.isinf(rows["logp"]),
        "at_s is no time since 1970": (rows["at_s"] >= 0) & (rows["at_s"] < END_OF_TIME_S),
        "flags are unknown": rows["flags"] <= _FLAGS,
        "version is below 0": rows["version"] >= 0,
        f"seq is above {MAX_SEQ}": rows["seq"] <= MAX_SEQ,
    }
    if schema.choices:
        chosen = rows["action"][:, 0]
        checks[f"action is none of 0 .. {schema.choices - 1}"] = (
            (chosen >= 0) & (chosen < schema.choices) & (chosen % 1 == 0)
        )
    faults: dict[int, str] = {}
    for words, sound in checks.items():
        for place in np.flatnonzero(~sound).tolist():
            faults.setdefault(int(rows["seq"][place]), words)
    for one in batch.episodes:
        numbers = (one.total, one.at_s, *one.first)
        if not (all(map(math.isfinite, numbers)) and 0 <= one.at_s < END_OF_TIME_S and 0 <= one.seq <= MAX_SEQ):
            faults.setdefault(one.seq, "a number of the episode's end is not finite, or out of bounds")
        elif max(len(one.version), len(one.route)) > MAX_NAME:
            faults.setdefault(one.seq, f"version and route have at most {MAX_NAME} characters")
    return faults


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAck:
    """Acknowledgement: every record of the batch is stored, known already, or refused."""

    stored: int
    repeated: int
    refused: tuple[tuple[int, str], ...]
    """Number and reason."""
    progress: SourceWatermark
    lost: int
    """Numbers of the source that a full spool dropped."""
    ahead_s: float
    """Seconds that the robot's clock is ahead; 0: it is not, or within the slack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotRow:
    """A source as the store has seen it."""

    robot: str
    instance: str
    watermark: int
    highest: int
    missing: int
    lost: int
    repeated: int
    refused: int
    ahead_s: float
    contact_s: float
    """Time of the last upload, by the service's clock."""
    version: str
    """Version of the last episode that ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEpisode:
    """An episode that ended, and its place among all of them."""

    number: int
    source: str
    end: EpisodeEnd
    """As the robot told it, its time not after its arrival."""


@dataclass(slots=True, kw_only=True)
class _Source:
    """A source inside a transaction. Numbers below `progress.first` are settled: stored, or lost."""

    progress: SourceProgress
    lost: int

    @property
    def id(self) -> int:
        return self.progress.number


@dataclass(slots=True)
class FleetStore:
    """An open store. Threads may share it. Made by `open_fleet_store`."""

    path: Path
    connection: sqlite3.Connection
    clock_slack_s: float = 300.0
    """Seconds that a robot's clock may be ahead without a word."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    _schemas: dict[str, int] = field(default_factory=dict[str, int])

    def append(self, batch: StepBatch, *, now_s: float) -> StepAck:
        """Store a batch: all of it or, if this raises, nothing of it. Raises DiskFullError and ResourceError."""
        faults = row_faults(batch)
        with self._transaction():
            schema = self._schema(batch.schema)
            source = self._source(batch.robot, batch.instance)
            bodies = self._bodies(batch)
            known = self._known(source, bodies)
            fresh: list[tuple[int, int, int, int, bytes]] = []
            refused: list[tuple[int, str]] = []
            repeated = 0
            for seq, (kind, body) in bodies.items():
                if seq in faults:
                    refused.append((seq, faults[seq]))
                elif seq not in known:
                    fresh.append((source.id, seq, kind, schema, body))
                elif known[seq] == body:
                    repeated += 1
                else:
                    refused.append((seq, f"seq {seq} is stored with other content, which stays; count on from there"))
            self._move(source, batch.begin, [row[1] for row in fresh])
            self.connection.executemany(
                "insert into records (source, seq, kind, schema, body) values (?, ?, ?, ?, ?)", fresh
            )
            self._advance(source.progress)
            new = {row[1] for row in fresh}
            self._store_episodes(source, [one for one in batch.episodes if one.seq in new], now_s)
            self._count_staleness(batch, new)
            ahead_s = self._ahead_s(batch, now_s)
            source.progress.tally.repeated, source.progress.tally.refused = repeated, len(refused)
            self._save(source, schema, ahead_s, now_s)
            failpoint("fleet.before_commit")
        failpoint("fleet.after_commit")
        return StepAck(
            stored=len(fresh), repeated=repeated, refused=tuple(refused), progress=source.progress.public,
            lost=source.lost, ahead_s=ahead_s,
        )  # fmt: skip

    @staticmethod
    def _bodies(batch: StepBatch) -> dict[int, tuple[int, bytes]]:
        """Kind and bytes of every record of a batch, by its number, ascending; of a number that comes twice the first
        counts."""
        size, raw = batch.rows.dtype.itemsize, batch.raw
        seqs: list[int] = batch.rows["seq"].tolist()
        bodies = {seq: (STEP, raw[place * size : (place + 1) * size]) for place, seq in enumerate(seqs)}
        for one in batch.episodes:
            bodies.setdefault(one.seq, (EPISODE, one.body()))
        return bodies if sorted(bodies) == list(bodies) else dict(sorted(bodies.items()))

    def _known(self, source: _Source, bodies: Mapping[int, object]) -> dict[int, bytes]:
        """Bytes of the records of these numbers that are stored."""
        known: dict[int, bytes] = {}
        for chunk in chunks([seq for seq in bodies if seq <= source.progress.highest]):
            marks = ", ".join("?" * len(chunk))
            statement = f"select seq, body from records where source = ? and seq in ({marks})"
            known.update(self.connection.execute(statement, (source.id, *chunk)).fetchall())
        return known

    def _move(self, source: _Source, begin: int, fresh: Sequence[int]) -> None:
        """Count new records. Numbers below `begin` that never came are lost: the watermark moves over them."""
        progress = source.progress
        late = sum(seq < progress.first for seq in fresh)  # they were counted as lost, and came after all
        source.lost -= late
        if begin > progress.first:
            statement = "select count(*) from records where source = ? and seq >= ? and seq < ?"
            (held,) = self.connection.execute(statement, (source.id, progress.first, begin)).fetchone()
            (above,) = self.connection.execute(statement, (source.id, begin, MAX_SEQ)).fetchone()
            held += sum(progress.first <= seq < begin for seq in fresh)
            source.lost += begin - progress.first - held
            progress.first, progress.seen = begin, begin + above
            progress.highest, progress.watermark = (
                max(progress.highest, begin - 1), max(progress.watermark, begin - 1)
            )  # fmt: skip
        for seq in fresh:
            if seq >= progress.first:
                progress.add(seq)

    def _advance(self, progress: SourceProgress) -> None:
        """Move a watermark over numbers that stood behind a gap until now."""
        if not progress.has_gaps:
            return
        following = (progress.number, progress.watermark + 1)
        if self.connection.execute("select 1 from records where source = ? and seq = ?", following).fetchone():
            statement = (
                "select r.seq from records r where r.source = ? and r.seq >= ? and not exists (select 1 from records n "
                "where n.source = r.source and n.seq = r.seq + 1) order by r.seq limit 1"
            )
            progress.watermark = int(self.connection.execute(statement, following).fetchone()[0])

    def _source(self, robot: str, instance: str) -> _Source:
        columns = "id, first, watermark, highest, seen, lost"
        where = f"select {columns} from sources where robot = ? and instance = ?"
        row = self.connection.execute(where, (robot, instance)).fetchone()
        if row is None:
            statement = f"insert into sources (robot, instance) values (?, ?) returning {columns}"
            (row,) = self.connection.execute(statement, (robot, instance)).fetchall()
        progress = SourceProgress(row[0], "", f"{robot}.{instance}", *row[1:5])
        return _Source(progress=progress, lost=row[5])

    def _schema(self, schema: RobotSchema) -> int:
        number = self._schemas.get(schema.hash)
        if number is None:
            run = self.connection.execute
            run("insert or ignore into schemas (hash, body) values (?, ?)", (schema.hash, schema.as_json()))
            (number,) = run("select id from schemas where hash = ?", (schema.hash,)).fetchone()
            self._schemas[schema.hash] = number
        return number

    def _store_episodes(self, source: _Source, episodes: Sequence[EpisodeEnd], now_s: float) -> None:
        """Number the episodes that ended. A clock that is ahead does not put them into the future."""
        run = self.connection.execute
        (number,) = run("select coalesce(max(number), -1) from episodes").fetchone()
        rows = [
            (number + place, source.id, one.seq, one.episode, one.version, one.route, one.total, one.steps,
             min(one.at_s, now_s), json.dumps(one.first))
            for place, one in enumerate(episodes, start=1)
        ]  # fmt: skip
        self.connection.executemany("insert into episodes values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        if episodes:
            latest = max(episodes, key=lambda one: one.episode)
            run("update sources set version = ? where id = ?", (latest.version, source.id))

    def _count_staleness(self, batch: StepBatch, fresh: set[int]) -> None:
        """Count new steps by the versions between the newest one and the one that acted."""
        (newest,) = self.connection.execute("select coalesce(max(number), 0) from versions").fetchone()
        new = np.fromiter((seq in fresh for seq in batch.rows["seq"].tolist()), np.bool_, len(batch.rows))
        lags, counts = np.unique(np.maximum(newest - batch.rows["version"][new], 0), return_counts=True)
        statement = "insert into staleness values (?, ?) on conflict (lag) do update set steps = steps + excluded.steps"
        self.connection.executemany(statement, zip(lags.tolist(), counts.tolist(), strict=True))

    def _ahead_s(self, batch: StepBatch, now_s: float) -> float:
        """Seconds that the latest step lies in the future; 0 within the slack."""
        latest = float(batch.rows["at_s"].max()) if len(batch.rows) else now_s
        return latest - now_s if latest > now_s + self.clock_slack_s else 0.0

    def _save(self, source: _Source, schema: int, ahead_s: float, now_s: float) -> None:
        one = source.progress
        self.connection.execute(
            "update sources set first = ?, watermark = ?, highest = ?, seen = ?, lost = ?, repeated = repeated + ?, "
            "refused = refused + ?, ahead_s = ?, contact_s = ?, schema = ? where id = ?",
            (one.first, one.watermark, one.highest, one.seen, source.lost, one.tally.repeated, one.tally.refused,
             ahead_s, now_s, schema, source.id),
        )  # fmt: skip

    # ------------------------------------------------------------------------------------------------ reading

    def robots(self) -> list[RobotRow]:
        """Every source, by robot and instance."""
        rows = self._rows(
            "select robot, instance, watermark, highest, highest + 1 - seen, lost, repeated, refused, ahead_s, "
            "contact_s, version from sources order by robot, id"
        )
        return [RobotRow(**dict(zip(RobotRow.__annotations__, row, strict=True))) for row in rows]

    def episodes(self, first: int, limit: int) -> list[StoredEpisode]:
        """Episodes that ended, from number `first` on."""
        rows = self._rows(
            "select e.number, s.robot || '.' || s.instance, e.seq, e.episode, e.version, e.route, e.return, e.steps, "
            "e.at_s, e.first from episodes e join sources s on s.id = e.source where e.number >= ? "
            "order by e.number limit ?",
            (first, limit),
        )
        return [
            StoredEpisode(
                number=row[0], source=row[1],
                end=EpisodeEnd(
                    seq=row[2], episode=row[3], version=row[4], route=row[5], total=row[6], steps=row[7], at_s=row[8],
                    first=tuple(json.loads(row[9])),
                ),
            )
            for row in rows
        ]  # fmt: skip

    def returns(self) -> list[tuple[str, str, int, float]]:
        """Version, route, episodes and mean return, of all episodes that ended."""
        statement = "select version, route, count(*), avg(return) from episodes group by version, route"
        return [
            (str(row[0]), str(row[1]), int(row[2]), float(row[3])) for row in self._rows(f"{statement} order by 1, 2")
        ]

    def staleness(self) -> dict[int, int]:
        """Steps by the versions that lay between the newest one and the one that acted, when they arrived."""
        return {int(lag): int(steps) for lag, steps in self._rows("select lag, steps from staleness order by lag")}

    def counts(self) -> tuple[int, int]:
        """Steps and ends of episodes that are stored."""
        kinds = dict(self._rows("select kind, count(*) from records group by kind"))
        return int(kinds.get(STEP, 0)), int(kinds.get(EPISODE, 0))

    def number_of(self, version: str) -> int:
        """Number of a version; a new one gets that of the newest, as nothing says that it learnt more."""
        with self._transaction():
            run = self.connection.execute
            statement = "insert or ignore into versions select ?, coalesce(max(number), 0) from versions"
            run(statement, (version,))
            return int(run("select number from versions where version = ?", (version,)).fetchone()[0])

    def set_number(self, version: str, number: int) -> None:
        """Give a version its number: the updates that the learner had made."""
        with self._transaction():
            self.connection.execute("insert or replace into versions values (?, ?)", (version, number))

    def close(self) -> None:
        """Close the file; a second call has no effect."""
        with self.lock:
            self.connection.close()

    def _rows(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self.lock:
            try:
                return self.connection.execute(statement, tuple(values)).fetchall()
            except sqlite3.Error as error:
                raise ResourceError(f"cannot read the fleet's store {self.path}: {error}") from error

    @contextmanager
    def _transaction(self) -> Generator[None]:
        with self.lock:
            try:
                self.connection.execute("begin immediate")
                yield
                self.connection.execute("commit")
            except BaseException as error:
                if self.connection.in_transaction:
                    self.connection.execute("rollback")
                self._schemas.clear()
                if not isinstance(error, sqlite3.Error):
                    raise
                kind = DiskFullError if error.sqlite_errorname == "SQLITE_FULL" else ResourceError
                raise kind(
                    f"cannot write the fleet's store {self.path}: {error}; the batch can be sent again"
                ) from error


def open_fleet_store(path: Path, *, clock_slack_s: float = 300.0, full_sync: bool = False) -> FleetStore:
    """Open a store, or make one. `full_sync` flushes each commit, so that it survives a loss of power too.

    Raises DataError if the file is something else, ResourceError if it cannot be opened.
    """
    try:
        known = {"records", "episodes", "staleness"}
        connection = open_tables(path, _TABLES, known=known, wait_s=_WAIT_S, full_sync=full_sync)
        meta = [("format", str(FORMAT)), ("id", secrets.token_hex(8))]
        connection.executemany("insert or ignore into meta values (?, ?)", meta)
    except sqlite3.OperationalError as error:
        raise ResourceError(f"cannot use the fleet's store {path}: {error}") from error
    except sqlite3.DatabaseError as error:
        raise DataError(f"{path} is no store of a fleet, or is damaged: {error}") from error
    return FleetStore(path, connection, clock_slack_s)
