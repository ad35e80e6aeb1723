"""A decision log in the tables of a relational database.

The statements are those that SQLite and PostgreSQL both know; a `DatabaseSession` runs them, and brings the
differences: types of columns, transactions, the insertion of many rows, and overwriting of erased content.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar

from hone.core.decisions import ActionSet, Decision, DecisionRecord
from hone.decide.log.codec import (
    EncodedRecord,
    decode_actions,
    decode_labels,
    encode_actions,
    encode_batch,
    encode_labels,
)
from hone.decide.log.protocol import (
    CHECKPOINT,
    AppendAck,
    KnownNames,
    LearnerLease,
    LogCounts,
    LoggedRecord,
    NameTakenError,
    RecordClaim,
    RefusedRecord,
    SavedState,
    SourceProgress,
    SourceWatermark,
    StoredRow,
    name_digest,
    refusal,
)
from hone.run.store.durable import failpoint

# -------------------------------------------------------------------------------------------------------------- session


Row: TypeAlias = tuple[Any, ...]
"""A row of a database."""
NameRow: TypeAlias = tuple[bytes, int, int, bytes | None]
"""Digest of a name, source and seq of its record, and the hash of what a caller sent (None: a decision's id)."""
Item = TypeVar("Item")
DAY_S: Final = 86_400
_CHUNK: Final = 500
"""Values in one list of a statement."""


class DatabaseSession(Protocol):
    """A connection to a database that holds a log's tables."""

    @property
    def salt(self) -> bytes:
        """Key of the digests by which erased units are known; drawn when the log was made."""
        ...

    def transaction(self, *, write: bool) -> AbstractContextManager[None]:
        """Transaction of the only writer, or of a reader of one state; rolled back if the block raises."""
        ...

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        """Run a statement -> its rows."""
        ...

    def run(self, statement: str, values: Sequence[object] = ()) -> None:
        """Run a statement without rows."""
        ...

    def insert(self, rows: Sequence[StoredRow]) -> int:
        """Insert new records, in this order, at consecutive positions -> the position of the last one (0: no rows)."""
        ...

    def insert_names(self, rows: Sequence[NameRow]) -> int:
        """Insert names that are not there yet -> the number of those that were not."""
        ...

    def overwrite_erased(self) -> None:
        """Make sure that erased bytes are in no file of the database."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


def chunks(values: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Parts of a list that are short enough for one statement."""
    for begin in range(0, len(values), _CHUNK):
        yield values[begin : begin + _CHUNK]


def _marks(values: Sequence[object]) -> str:
    """Placeholders of a list of values: `(?, ?, ?)`."""
    return f"({', '.join('?' * len(values))})"


# --------------------------------------------------------------------------------------------------------- shared parts


Labels = tuple[str, ...]
_CACHED: Final = 1024
"""Parts of each kind that are kept in memory. A service that publishes versions makes new labels for as long as it
runs, and uses the latest only."""


@dataclass(slots=True)
class SharedParts:
    """The shared parts of a log, those in use kept in memory. Every call is inside a transaction."""

    session: DatabaseSession
    _actions: dict[object, int] = field(default_factory=dict[object, int])
    _labels: dict[Labels, int] = field(default_factory=dict[Labels, int])
    _actions_read: dict[int, ActionSet] = field(default_factory=dict[int, ActionSet])
    _labels_read: dict[int, Labels] = field(default_factory=dict[int, Labels])

    def forget(self) -> None:
        """Empty the memory: numbers given in a transaction that was rolled back, or deleted since, mean nothing."""
        self._actions.clear()
        self._labels.clear()
        self._actions_read.clear()
        self._labels_read.clear()

    def actions_number(self, actions: ActionSet) -> int:
        """Number of a set of actions; it is stored if it is new."""
        number = self._actions.get(key := _actions_key(actions))
        if number is None:
            number = self._number("action_sets", encode_actions(actions))
            _remember(self._actions, key, number)
        return number

    def known_actions(self, actions: ActionSet) -> int:
        """Number of a set of actions; -1: it is not stored."""
        number = self._actions.get(_actions_key(actions))
        return self._find("action_sets", encode_actions(actions)) if number is None else number

    def known_labels(self, labels: Labels) -> int:
        """Number of labels; -1: they are not stored."""
        number = self._labels.get(labels)
        return self._find("labels", encode_labels(labels)) if number is None else number

    def labels_number(self, labels: Labels) -> int:
        """Number of labels; they are stored if they are new."""
        number = self._labels.get(labels)
        if number is None:
            number = self._number("labels", encode_labels(labels))
            _remember(self._labels, labels, number)
        return number

    def actions(self, numbers: Iterable[int | None]) -> dict[int, ActionSet]:
        """Sets of actions by their numbers; equal ones are one object."""
        return self._read(self._actions_read, "action_sets", numbers, decode_actions)

    def labels(self, numbers: Iterable[int | None]) -> dict[int, Labels]:
        """Labels by their numbers."""
        return self._read(self._labels_read, "labels", numbers, decode_labels)

    def _number(self, table: str, data: bytes) -> int:
        number = self._find(table, data)
        if number < 0:
            statement = f"insert into {table} (digest, body) values (?, ?) returning id"
            number = int(self.session.rows(statement, (_digest(data), data))[0][0])
        return number

    def _find(self, table: str, data: bytes) -> int:
        rows = self.session.rows(f"select id from {table} where digest = ?", (_digest(data),))
        return int(rows[0][0]) if rows else -1

    def _read(
        self, cache: dict[int, Item], table: str, numbers: Iterable[int | None], decode: Callable[[bytes], Item]
    ) -> dict[int, Item]:
        wanted = {number for number in numbers if number is not None}
        missing = sorted(wanted - cache.keys())
        if len(cache) + len(missing) > _CACHED:
            cache.clear()
            missing = sorted(wanted)
        for chunk in chunks(missing):
            for number, body in self.session.rows(f"select id, body from {table} where id in {_marks(chunk)}", chunk):
                cache[number] = decode(bytes(body))
        return cache


def _actions_key(actions: ActionSet) -> object:
    return actions.names if actions.features is None else _digest(encode_actions(actions))


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


def _remember(cache: dict[Item, int], key: Item, number: int) -> None:
    """Keep a number; the oldest one leaves when there are too many."""
    if len(cache) >= _CACHED:
        del cache[next(iter(cache))]
    cache[key] = number


# ----------------------------------------------------------------------------------------------------------- relational


def index_names(session: DatabaseSession) -> None:
    """Index the ids of decisions of a log that an earlier hone made, once; within a transaction."""
    if session.rows("select 1 from log_meta where name = ?", ("names",)):
        return
    after = -1
    statement = (
        "select r.position, s.tenant, r.decision, r.source, r.seq from records r join sources s on s.id = r.source "
        "where r.position > ? and r.unit is not null order by r.position limit 2000"
    )
    while rows := session.rows(statement, (after,)):
        session.insert_names(
            [(name_digest(session.salt, "decision", row[1], row[2]), row[3], row[4], None) for row in rows]
        )
        after = rows[-1][0]
    session.run("insert into log_meta values (?, ?)", ("names", b"1"))


_RECORD: Final = "r.position, s.tenant, s.name, r.seq, r.at_s, r.decision, r.unit, r.actions, r.labels, r.body"
_TALLY: Final = ("decisions", "outcomes", "repeated", "refused", "erased", "retired")
_SAVE: Final = (
    f"update sources set watermark = ?, highest = ?, seen = ?, {', '.join(f'{one} = {one} + ?' for one in _TALLY)} "
    "where id = ?"
)


@dataclass(slots=True)
class RelationalLog:
    """A `DecisionLog` over a database session. Threads may share it: a transaction is one thread's."""

    session: DatabaseSession
    parts: SharedParts
    _erased: set[bytes] = field(default_factory=set[bytes])
    _last_erased: int = 0

    def append(self, batch: Sequence[DecisionRecord], claims: Sequence[RecordClaim] = ()) -> AppendAck:
        """Store a batch; see `DecisionLog`."""
        encoded = encode_batch(batch)
        with self._transaction():
            ack = self._append(encoded, claims)
            failpoint("decisions.before_commit")
        failpoint("decisions.after_commit")
        return ack

    def _append(self, encoded: Sequence[EncodedRecord], claims: Sequence[RecordClaim]) -> AppendAck:
        self._refresh()
        sources = self._progress({(one.tenant, one.source) for one in encoded})
        known = self._known_rows(encoded, sources)
        fresh: list[StoredRow] = []
        refused: list[RefusedRecord] = []
        if self._erased:
            self._erase_late(one for one in encoded if (sources[one.tenant, one.source].number, one.seq) not in known)
        repeats: list[int] = []
        names: dict[int, NameRow] = {}
        keys = {claim.place: claim for claim in claims if claim.key}
        for number, one in enumerate(encoded):
            progress = sources[one.tenant, one.source]
            place = (progress.number, one.seq)
            stored = known.get(place)
            if stored is None and one.seq >= progress.first:
                row = known[place] = self._new_row(one, progress.number)
                fresh.append(row)
                if one.unit is not None:
                    names[number] = (self._digest("decision", one.tenant, one.decision), *place, None)
                elif (claim := keys.get(number)) is not None:
                    names[number] = (self._digest("key", one.tenant, claim.key), *place, claim.digest)
                progress.add(one.seq)
                progress.tally.note(decision=one.unit is not None, erased=row.body is None)
            elif stored is not None and (differing := self._differing(stored, one)):
                refused.append(refusal(one, differing))
                progress.tally.refused += 1
            else:
                progress.tally.repeated += 1
                repeats.append(number)
        claimed = {claim.place: names.pop(claim.place) for claim in claims if claim.place in names}
        self._claim(claimed)
        self.session.insert_names(list(names.values()))
        position = self.session.insert(fresh)
        for progress in sources.values():
            self._advance(progress)
            self._save(progress)
        tallies = [progress.tally for progress in sources.values()]
        erased = sum(row.body is None for row in fresh)
        return AppendAck(
            stored=len(fresh) - erased, erased=erased, repeated=sum(tally.repeated for tally in tallies),
            refused=tuple(refused), watermarks=tuple(progress.public for progress in sources.values()),
            repeats=tuple(repeats), after=position - len(fresh) if fresh else 0, position=position,
        )  # fmt: skip

    def _claim(self, claimed: Mapping[int, NameRow]) -> None:
        """Insert names that must be new. Raises NameTakenError."""
        if self.session.insert_names(list(claimed.values())) == len(claimed):
            return
        held: dict[bytes, tuple[int, int]] = {}
        for chunk in chunks([row[0] for row in claimed.values()]):
            statement = f"select digest, source, seq from names where digest in {_marks(chunk)}"
            held.update({bytes(row[0]): (row[1], row[2]) for row in self.session.rows(statement, chunk)})
        raise NameTakenError([place for place, row in claimed.items() if held[row[0]] != row[1:3]])

    def find(self, tenant: str, *, ids: Sequence[str] = (), keys: Sequence[str] = ()) -> KnownNames:
        """What the log knows of names; see `DecisionLog`."""
        names = {self._digest("decision", tenant, one): one for one in ids}
        held = {self._digest("key", tenant, one): one for one in keys}
        decisions: dict[str, Decision | None] = {}
        hashes: dict[str, bytes] = {}
        for chunk in chunks([*names, *held]):
            statement = (
                f"select n.digest, n.told, {_RECORD} from names n left join records r on r.source = n.source "
                f"and r.seq = n.seq and r.body is not null left join sources s on s.id = r.source "
                f"where n.digest in {_marks(chunk)}"
            )
            with self.session.transaction(write=False):
                rows = self.session.rows(statement, chunk)
                records = iter(self._decoded([row[2:] for row in rows if row[2] is not None]))
            for digest, sent, position, *_ in rows:
                record = None if position is None else next(records).record
                if (key := held.get(bytes(digest))) is not None:
                    hashes[key] = bytes(sent)
                else:
                    decisions[names[bytes(digest)]] = record if isinstance(record, Decision) else None
        return KnownNames(decisions=decisions, keys=hashes)

    def read(self, after: int = 0, limit: int = 1000, *, tenant: str | None = None) -> list[LoggedRecord]:
        """Records above a position; see `DecisionLog`."""
        where, values = ("", ()) if tenant is None else ("and s.tenant = ? ", (tenant,))
        return self._read(f"r.position > ? {where}order by r.position limit ?", (after, *values, limit))

    def read_day(self, tenant: str, day: int) -> list[LoggedRecord]:
        """Records of a tenant's day; see `DecisionLog`."""
        where = "s.tenant = ? and r.at_s >= ? and r.at_s < ? order by r.position"
        return self._read(where, (tenant, float(DAY_S * day), float(DAY_S * (day + 1))))

    def days(self) -> list[tuple[str, int]]:
        """Tenants and days; see `DecisionLog`."""
        statement = (
            f"select distinct s.tenant, cast(floor(r.at_s / {DAY_S}) as bigint) from records r "
            "join sources s on s.id = r.source where r.body is not null"
        )
        with self.session.transaction(write=False):
            return sorted((str(tenant), int(day)) for tenant, day in self.session.rows(statement))

    def counts(self) -> LogCounts:
        """Counts over all tenants; see `DecisionLog`."""
        with self.session.transaction(write=False):
            sums = ", ".join(f"coalesce(sum({name}), 0)" for name in _TALLY)
            (row,) = self.session.rows(f"select {sums} from sources")
        return LogCounts(*map(int, row))

    def watermarks(self) -> tuple[SourceWatermark, ...]:
        """Progress of every source; see `DecisionLog`."""
        with self.session.transaction(write=False):
            rows = self.session.rows("select id, tenant, name, first, watermark, highest, seen from sources")
        return tuple(SourceProgress(*row).public for row in sorted(rows, key=lambda row: row[1:3]))

    def decision_ids(self, tenant: str, unit: str) -> tuple[str, ...]:
        """Ids of a unit's decisions; see `DecisionLog`."""
        with self.session.transaction(write=False):
            return self._decision_ids(tenant, unit)

    def erase(self, tenant: str, unit: str, *, decision_ids: Iterable[str] = ()) -> int:
        """Erase a unit; see `DecisionLog`."""
        with self._transaction():
            self._refresh()
            ids = sorted({*decision_ids, *self._decision_ids(tenant, unit)})
            salt = self.session.salt
            self._note_erased(name_digest(salt, "decision", tenant, one) for one in ids)
            self._note_erased([name_digest(salt, "unit", tenant, unit)])
            positions = self._positions(tenant, "r.unit = ?", (unit,)) + self._outcomes_of(tenant, ids)
            erased = self._empty(positions, "erased")
            self.session.run("delete from learnt where name = ?", (CHECKPOINT,))
            self.session.run("update leases set epoch = epoch + 1, until_s = 0")
            failpoint("decisions.before_erasure")
        self.session.overwrite_erased()
        return erased

    def retire(self, positions: Sequence[int]) -> int:
        """Forget records that were copied elsewhere; see `DecisionLog`."""
        with self._transaction():
            retired = self._empty(positions, "retired")
            numbers = self.session.rows("select id, first, watermark from sources")
            for number, first, watermark in numbers:
                self._drop_empty(number, first, watermark)
        return retired

    def take_lease(self, work: str, holder: str, *, now_s: float, lease_s: float, epoch: int = 0) -> LearnerLease:
        """Extend or take a lease; see `DecisionLog`."""
        with self.session.transaction(write=True):
            rows = self.session.rows("select holder, epoch, until_s from leases where work = ?", (work,))
            owner, present, until_s = rows[0] if rows else ("", 0, 0.0)
            if owner == holder or until_s <= now_s:
                present += not (owner == holder and present == epoch)
                owner, until_s = holder, now_s + lease_s
                statement = (
                    "insert into leases (work, holder, epoch, until_s) values (?, ?, ?, ?) on conflict (work) do "
                    "update set holder = excluded.holder, epoch = excluded.epoch, until_s = excluded.until_s"
                )
                self.session.run(statement, (work, owner, present, until_s))
        return LearnerLease(work=work, holder=owner, epoch=present, until_s=until_s)

    def give_lease_back(self, lease: LearnerLease) -> None:
        """End a lease; see `DecisionLog`."""
        with self.session.transaction(write=True):
            statement = "update leases set until_s = 0 where work = ? and holder = ? and epoch = ?"
            self.session.run(statement, (lease.work, lease.holder, lease.epoch))

    def save_learnt(self, lease: LearnerLease, states: Mapping[str, bytes], *, now_s: float) -> bool:
        """Replace states of a work; see `DecisionLog`."""
        with self.session.transaction(write=True):
            statement = "select 1 from leases where work = ? and holder = ? and epoch = ? and until_s > ?"
            if not self.session.rows(statement, (lease.work, lease.holder, lease.epoch, now_s)):
                return False
            for name, body in states.items():
                statement = (
                    "insert into learnt (work, name, number, body) values (?, ?, 1, ?) on conflict (work, name) do "
                    "update set number = learnt.number + 1, body = excluded.body"
                )
                self.session.run(statement, (lease.work, name, body))
            failpoint("decisions.before_learnt")
        return True

    def learnt(self, work: str, names: Mapping[str, int]) -> dict[str, SavedState]:
        """States of a work; see `DecisionLog`."""
        states: dict[str, SavedState] = {}
        with self.session.transaction(write=False):
            for name, number in self.session.rows("select name, number from learnt where work = ?", (work,)):
                if names.get(name, number) != number:
                    rows = self.session.rows("select body from learnt where work = ? and name = ?", (work, name))
                    states[name] = SavedState(int(number), bytes(rows[0][0]))
        return states

    def close(self) -> None:
        """Close the connection; see `DecisionLog`."""
        self.session.close()

    @contextmanager
    def _transaction(self) -> Generator[None]:
        """A transaction that writes; if it is rolled back, all that was learnt inside is forgotten."""
        try:
            with self.session.transaction(write=True):
                yield
        except BaseException:
            self.parts.forget()
            self._erased.clear()
            self._last_erased = 0
            raise

    def _refresh(self) -> None:
        """Learn of erasures by other processes since the last transaction."""
        news = self.session.rows("select id, digest from erased where id > ? order by id", (self._last_erased,))
        if news:
            self._erased.update(bytes(digest) for _, digest in news)
            self._last_erased = news[-1][0]
            self.parts.forget()  # sets of actions that only erased records used are gone

    def _new_row(self, one: EncodedRecord, source: int) -> StoredRow:
        """Row of a new record, empty if its unit or its decision was erased; then no part of it is stored."""
        if self._erased and self._is_erased(one):
            return StoredRow(source, one.seq, 0.0, None, None, None, None, None)
        actions = None if one.actions is None else self.parts.actions_number(one.actions)
        labels = self.parts.labels_number(one.labels)
        return StoredRow(source, one.seq, one.at_s, one.decision, one.unit, actions, labels, one.body)

    def _differing(self, stored: StoredRow, one: EncodedRecord) -> list[str]:
        """Fields in which a record differs from the stored one."""
        if stored.body is None:
            return []  # there is nothing to compare with
        actions = None if one.actions is None else self.parts.known_actions(one.actions)
        labels = self.parts.known_labels(one.labels)
        arrived = StoredRow(stored.source, one.seq, one.at_s, one.decision, one.unit, actions, labels, one.body)
        return stored.differing_fields(arrived)

    def _read(self, where: str, values: Sequence[object]) -> list[LoggedRecord]:
        statement = (
            f"select {_RECORD} from records r join sources s on s.id = r.source where r.body is not null and {where}"
        )
        with self.session.transaction(write=False):
            return self._decoded(self.session.rows(statement, values))

    def _decoded(self, rows: Sequence[Row]) -> list[LoggedRecord]:
        """Records of rows with the columns `_RECORD`, within their transaction."""
        actions_of = self.parts.actions({row[7] for row in rows})
        labels_of = self.parts.labels({row[8] for row in rows})
        records: list[LoggedRecord] = []
        for position, tenant, source, seq, at_s, decision, unit, actions, labels, body in rows:
            shared = None if actions is None else actions_of[actions]
            one = EncodedRecord(tenant, source, seq, at_s, decision, unit, shared, labels_of[labels], bytes(body))
            records.append(LoggedRecord(position, one.decode()))
        return records

    def _digest(self, kind: str, tenant: str, name: str) -> bytes:
        return name_digest(self.session.salt, kind, tenant, name)

    # ---- sources

    def _progress(self, names: Iterable[tuple[str, str]]) -> dict[tuple[str, str], SourceProgress]:
        columns = "id, tenant, name, first, watermark, highest, seen"
        result: dict[tuple[str, str], SourceProgress] = {}
        for tenant, source in sorted(names):
            rows = self.session.rows(f"select {columns} from sources where tenant = ? and name = ?", (tenant, source))
            if not rows:
                statement = f"insert into sources (tenant, name) values (?, ?) returning {columns}"
                rows = self.session.rows(statement, (tenant, source))
            result[tenant, source] = SourceProgress(*rows[0])
        return result

    def _known_rows(
        self, encoded: Sequence[EncodedRecord], sources: dict[tuple[str, str], SourceProgress]
    ) -> dict[tuple[int, int], StoredRow]:
        """Rows that the log has already, of records that arrive."""
        seqs: dict[int, list[int]] = {}
        for one in encoded:
            progress = sources[one.tenant, one.source]
            if progress.first <= one.seq <= progress.highest:
                seqs.setdefault(progress.number, []).append(one.seq)
        known: dict[tuple[int, int], StoredRow] = {}
        for number, wanted in seqs.items():
            for chunk in chunks(wanted):
                statement = (
                    f"select {', '.join(StoredRow._fields)} from records where source = ? and seq in {_marks(chunk)}"
                )
                for row in self.session.rows(statement, (number, *chunk)):
                    stored = StoredRow(*row)
                    known[number, stored.seq] = stored
        return known

    def _advance(self, progress: SourceProgress) -> None:
        """Move a watermark over seqs that stood behind a gap until now."""
        if not progress.has_gaps:
            return
        statement = (
            "select r.seq from records r where r.source = ? and r.seq >= ? and not exists (select 1 from records n "
            "where n.source = r.source and n.seq = r.seq + 1) order by r.seq limit 1"
        )
        following = (progress.number, progress.watermark + 1)
        if self.session.rows("select 1 from records where source = ? and seq = ?", following):
            progress.watermark = int(self.session.rows(statement, following)[0][0])

    def _save(self, progress: SourceProgress) -> None:
        self.session.run(
            _SAVE, (progress.watermark, progress.highest, progress.seen, *progress.tally.values, progress.number)
        )

    # ---- erasure and retirement

    def _is_erased(self, one: EncodedRecord) -> bool:
        """True if a record's unit, or an outcome's decision, was erased."""
        kind, name = ("decision", one.decision) if one.unit is None else ("unit", one.unit)
        return name_digest(self.session.salt, kind, one.tenant, name) in self._erased

    def _erase_late(self, encoded: Iterable[EncodedRecord]) -> None:
        """Note new decisions of erased units, and erase their outcomes that came first."""
        for one in encoded:
            if one.unit is not None and self._is_erased(one):
                self._note_erased([name_digest(self.session.salt, "decision", one.tenant, one.decision)])
                self._empty(self._outcomes_of(one.tenant, [one.decision]), "erased")

    def _note_erased(self, digests: Iterable[bytes]) -> None:
        for digest in digests:
            if digest not in self._erased:
                self.session.run("insert into erased (digest) values (?) on conflict do nothing", (digest,))
                self._erased.add(digest)

    def _decision_ids(self, tenant: str, unit: str) -> tuple[str, ...]:
        statement = (
            "select distinct r.decision from records r join sources s on s.id = r.source "
            "where s.tenant = ? and r.unit = ?"
        )
        return tuple(sorted(str(row[0]) for row in self.session.rows(statement, (tenant, unit))))

    def _positions(self, tenant: str, where: str, values: Sequence[object]) -> list[int]:
        statement = f"select r.position from records r join sources s on s.id = r.source where s.tenant = ? and {where}"
        return [int(row[0]) for row in self.session.rows(statement, (tenant, *values))]

    def _outcomes_of(self, tenant: str, ids: Sequence[str]) -> list[int]:
        return [
            position
            for chunk in chunks(ids)
            for position in self._positions(tenant, f"r.unit is null and r.decision in {_marks(chunk)}", chunk)
        ]

    def _empty(self, positions: Sequence[int], kind: Literal["erased", "retired"]) -> int:
        """Take the content out of records, and count them as erased or retired -> records that had content."""
        emptied = 0
        for chunk in chunks(positions):
            inside = f"position in {_marks(chunk)} and body is not null"
            sums = "sum(case when unit is null then 0 else 1 end), sum(case when unit is null then 1 else 0 end)"
            rows = self.session.rows(f"select source, {sums} from records where {inside} group by source", chunk)
            actions = self.session.rows(f"select distinct actions from records where {inside}", chunk)
            nothing = "at_s = 0, decision = null, unit = null, actions = null, labels = null, body = null"
            self.session.run(f"update records set {nothing} where {inside}", chunk)
            for source, decisions, outcomes in rows:
                statement = (
                    f"update sources set decisions = decisions - ?, outcomes = outcomes - ?, {kind} = {kind} + ? "
                )
                self.session.run(f"{statement}where id = ?", (decisions, outcomes, decisions + outcomes, source))
                emptied += decisions + outcomes
            if kind == "erased":
                self._drop_actions([row[0] for row in actions if row[0] is not None])
        return emptied

    def _drop_actions(self, numbers: Sequence[int]) -> None:
        """Delete sets of actions that no record uses any more: their names may be personal."""
        if not numbers:
            return
        statement = f"select distinct actions from records where actions in {_marks(numbers)}"
        used = {row[0] for row in self.session.rows(statement, numbers)}
        unused = [number for number in numbers if number not in used]
        if unused:
            self.session.run(f"delete from action_sets where id in {_marks(unused)}", unused)
        self.parts.forget()

    def _drop_empty(self, number: int, first: int, watermark: int) -> None:
        """Delete the empty rows at the beginning of a source: all its seqs below `first` are known without them."""
        statement = "select seq from records where source = ? and body is not null order by seq limit 1"
        held = self.session.rows(statement, (number,))
        begin = min(watermark + 1, int(held[0][0]) if held else watermark + 1)
        if begin > first:
            self.session.run("delete from records where source = ? and seq < ?", (number, begin))
            self.session.run("update sources set first = ? where id = ?", (begin, number))
