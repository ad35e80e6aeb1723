"""A decision log in Redis, for the processes of several hosts. Needs the extra `redis`.

A batch is one script, which runs whole or not at all. It takes a record's seq with HSETNX, and appends to the stream
with an id that the server gives: ids made of seqs would lose records that arrive out of order, without an error. The
server must write each command to its append-only file before it answers (`appendonly yes`, `appendfsync always`), and
have rewritten that file since it started.
"""

import re
import secrets
import struct
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, TypeVar, cast

import redis
from redis.backoff import NoBackoff
from redis.connection import Connection
from redis.exceptions import OutOfMemoryError, ResponseError
from redis.retry import Retry

from hone.core.decisions import ActionSet, Decision, DecisionRecord
from hone.core.errors import DataError, ResourceError
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
    SavedState,
    SourceProgress,
    SourceWatermark,
    StoredRow,
    log_name,
    name_digest,
    refusal,
    without_secrets,
)
from hone.decide.log.redis_scripts import APPEND, EMPTY, END_LEASE, FENCE, LEASE, NAME, SAVE
from hone.decide.log.relational import DAY_S, chunks
from hone.run.store.durable import DiskFullError, failpoint

# ----------------------------------------------------------------------------------------------------- redis connection
# Connections to a Redis server that has rewritten its append-only file since it started.
#
# A server that is killed while it writes a transaction leaves the first commands of it at the end of its append-only
# file. When it starts again it does not run them, but (Redis 6.2 and 7.0) it keeps those that are whole, and appends
# what comes next behind them. The start after that runs both as one transaction: records that were sent again are then
# in the stream twice. So a server that was started on a log must rewrite its file before anything is appended; it tells
# how long its last rewrite took, and -1 before the first one since its start.


PREFIX: Final = "{hone}:decisions:"
_POLL_S: Final = 0.05
_REWRITE_S: Final = 60.0


def _connect(connection: Connection) -> None:
    """Greet the server; if it was started on a log, have it rewrite its append-only file. Raises RedisError."""

    def ask(*command: str) -> Any:  # noqa: ANN401 - replies have the form of their command
        connection.send_command(*command)  # pyright: ignore[reportUnknownMemberType]
        return cast("Any", connection.read_response())  # pyright: ignore[reportUnknownMemberType]

    def state() -> dict[str, str]:
        lines = bytes(ask("INFO", "persistence")).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    connection.on_connect()
    if ask("EXISTS", f"{PREFIX}meta"):
        rewrite_file(state, lambda: ask("BGREWRITEAOF"), again=False)


def rewrite_file(state: Callable[[], Mapping[str, Any]], start: Callable[[], object], *, again: bool) -> None:
    """Rewrite the append-only file, and wait for it: always (`again`), or if the server has not since its start.

    `state` asks for the server's section `persistence`. Raises RedisError if it fails or takes over a minute.
    """
    deadline, started = time.monotonic() + _REWRITE_S, False
    while time.monotonic() < deadline:
        now = state()
        if not (int(now["aof_rewrite_in_progress"]) or int(now["aof_rewrite_scheduled"])):
            if started and now["aof_last_bgrewrite_status"] != "ok":
                break
            if started or not (again or int(now["aof_last_rewrite_time_sec"]) == -1):
                return
            started = _is_started(start)
        time.sleep(_POLL_S)
    raise ResponseError("its append-only file was not rewritten; the server's own log says why")


def _is_started(start: Callable[[], object]) -> bool:
    """False if another client was faster: what it began may be older than what must leave the file."""
    try:
        start()
    except ResponseError as error:
        if "in progress" not in str(error):
            raise
        return False
    return True


# -------------------------------------------------------------------------------------------------------- redis records


_NAMED: Final = re.compile(rb"(\d+):(\d+):(.*)", re.DOTALL)
"""Number of a source, seq, and what was sent under the name."""
HEAD: Final = struct.Struct("<cd16s16sII")
"""Kind (d, o), at_s, digests of the actions and of the labels, bytes of the decision's id and of the unit."""


def _pack_record(one: EncodedRecord) -> tuple[bytes, bytes]:
    """The record as the server holds it, and the digest of its actions (empty: an outcome)."""
    decision, unit = one.decision.encode(), b"" if one.unit is None else one.unit.encode()
    actions = b"" if one.actions is None else _part_digest(encode_actions(one.actions))
    kind = b"o" if one.unit is None else b"d"
    head = HEAD.pack(kind, one.at_s, actions, _part_digest(encode_labels(one.labels)), len(decision), len(unit))
    return head + decision + unit + one.body, actions


def _stored_row(data: bytes) -> StoredRow:
    """The record's columns, with digests in place of its shared parts."""
    kind, at_s, actions, labels, decision, unit = HEAD.unpack_from(data)
    begin = HEAD.size
    middle, end = begin + decision, begin + decision + unit
    is_decision = kind == b"d"
    return StoredRow(
        0, 0, at_s, data[begin:middle].decode(), data[middle:end].decode() if is_decision else None,
        actions if is_decision else None, labels, data[end:],
    )  # fmt: skip


def _entry_id(position: int) -> str:
    """Id of the entry at a position."""
    return f"{position >> 64}-{position & (2**64 - 1)}"


def _position(entry: bytes | str) -> int:
    """Position of an entry: both halves of its id in one number."""
    milliseconds, _, within = _text_of(entry).partition("-")
    return int(milliseconds) << 64 | int(within)


def _part_digest(data: bytes) -> bytes:
    """Digest of a shared part -> 16 bytes."""
    return blake2b(data, digest_size=16).digest()


def _text_of(value: str | bytes) -> str:
    """A reply as text."""
    return value if isinstance(value, str) else value.decode()


# -------------------------------------------------------------------------------------------------------- redis streams


FORMAT: Final = 1
_WAIT_S: Final = 30.0
_COUNTS: Final = ("decisions", "outcomes", "repeated", "refused", "erased", "retired")
_PAGE: Final = 2000
_CACHED: Final = 1024
"""Shared parts of each kind that are kept in memory."""
Item = TypeVar("Item")


def open_redis_log(address: str) -> "_RedisLog":
    """Open the log of a Redis database: `redis://host:6379/0`.

    Raises ResourceError if the server cannot be reached or may lose what it acknowledged, DataError if the log is of
    another format.
    """
    client = redis.Redis.from_url(  # pyright: ignore[reportUnknownMemberType]
        address, socket_timeout=_WAIT_S, socket_connect_timeout=_WAIT_S, retry=Retry(NoBackoff(), 1),
        redis_connect_func=_connect,
    )  # fmt: skip
    log = _RedisLog(client, log_name(address).removeprefix("redis://"), address)
    try:
        with log.talking():
            log.prepare()
    except BaseException:
        client.close()
        raise
    return log


@dataclass(slots=True)
class _RedisLog:
    """A `DecisionLog` over a Redis server. Threads may share it."""

    client: redis.Redis
    name: str
    """Address, for messages."""
    _address: str = field(default="", repr=False)
    _salt: bytes = b""
    _erased: set[bytes] = field(default_factory=set[bytes])
    _actions_read: dict[bytes, ActionSet] = field(default_factory=dict[bytes, ActionSet])
    _labels_read: dict[bytes, tuple[str, ...]] = field(default_factory=dict[bytes, tuple[str, ...]])

    def prepare(self) -> None:
        """Check the server's settings, and make or check the log's format. Raises ResourceError, DataError."""
        for setting, wanted in (("appendonly", "yes"), ("appendfsync", "always")):
            value = self._ask("CONFIG GET", setting)
            setting_value = value.get(setting, "unknown")
            if setting_value != wanted:
                raise ResourceError(
                    f"the Redis server {self.name} has {setting} {setting_value}, so it could lose acknowledged "
                    f"records; set {setting} {wanted} (redis.conf, or CONFIG SET)"
                )
        for field_name, value in (("format", str(FORMAT).encode()), ("salt", secrets.token_bytes(16))):
            self._ask("HSETNX", f"{PREFIX}meta", field_name, value)
        kind, self._salt, named = self._ask("HMGET", f"{PREFIX}meta", "format", "salt", "names")
        if int(kind) != FORMAT:
            raise DataError(f"{self.name} holds a log of format {int(kind)}, this version of hone reads {FORMAT}")
        if named is None:
            self._index_names()

    def _index_names(self) -> None:
        """Index the ids of decisions of a log that an earlier hone made."""
        numbers = {(one.tenant, one.source): one.number for one in map(self._progress, self._sources())}
        pairs: list[bytes | str] = []
        for _, record in self._scan():
            if record.unit is not None:
                digest = name_digest(self._salt, "decision", record.tenant, record.decision)
                pairs += [digest, f"{numbers[record.tenant, record.source]}:{record.seq}:"]
        for chunk in chunks(pairs):
            self._ask("EVAL", NAME, 1, PREFIX, *chunk)
        self._ask("HSET", f"{PREFIX}meta", "names", 1)

    def append(self, batch: Sequence[DecisionRecord], claims: Sequence[RecordClaim] = ()) -> AppendAck:
        """Store a batch; see `DecisionLog`."""
        encoded = encode_batch(batch)
        with self.talking():
            while True:
                known, arguments = len(self._erased), self._arguments(encoded, claims)
                if known != len(self._erased):
                    continue  # a decision of an erased unit was new: its outcomes are judged again
                status, *answer = self._ask("EVAL", APPEND, 1, PREFIX, known, *arguments)
                if status == b"done":
                    break
                if status == b"taken":
                    raise NameTakenError([int(place) for place in answer[0]])
                self._refresh()
            results, numbers, earlier, newest = answer
            marks = tuple(self._progress(number).public for number in numbers)
        results = [bytes(one) for one in results]
        refused = [
            refusal(one, _stored_row(held).differing_fields(_stored_row(_pack_record(one)[0])))
            for one, held in zip(encoded, results, strict=True)
            if held not in {b"stored", b"repeated", b"erased"}
        ]
        return AppendAck(
            stored=results.count(b"stored"), repeated=results.count(b"repeated"), erased=results.count(b"erased"),
            refused=tuple(refused), watermarks=tuple(sorted(marks, key=lambda one: (one.tenant, one.source))),
            repeats=tuple(place for place, result in enumerate(results) if result == b"repeated"),
            after=_position(earlier) if newest else 0, position=_position(newest) if newest else 0,
        )  # fmt: skip

    def find(self, tenant: str, *, ids: Sequence[str] = (), keys: Sequence[str] = ()) -> KnownNames:
        """What the log knows of names; see `DecisionLog`."""
        decisions: dict[str, Decision | None] = {}
        hashes: dict[str, bytes] = {}
        names = [*(("decision", one) for one in ids), *(("key", one) for one in keys)]
        for chunk in chunks(names):
            digests = [name_digest(self._salt, kind, tenant, name) for kind, name in chunk]
            with self.talking():
                values = [_NAMED.fullmatch(value or b"") for value in self._ask("HMGET", f"{PREFIX}names", *digests)]
                records = self._records([(_text_of(one[1]), _text_of(one[2])) for one in values if one is not None])
            for one, (kind, name) in zip(values, chunk, strict=True):
                if one is not None and kind == "key":
                    hashes[name] = one[3]
                elif one is not None:
                    encoded = records.get((_text_of(one[1]), _text_of(one[2])))
                    record = None if encoded is None else encoded.decode()
                    decisions[name] = record if isinstance(record, Decision) else None
        return KnownNames(decisions=decisions, keys=hashes)

    def read(self, after: int = 0, limit: int = 1000, *, tenant: str | None = None) -> list[LoggedRecord]:
        """Records above a position; see `DecisionLog`."""
        records: list[LoggedRecord] = []
        with self.talking():
            for position, record in self._scan(after):
                if len(records) >= limit:
                    break
                if tenant is None or record.tenant == tenant:
                    records.append(LoggedRecord(position, record.decode()))
        return records

    def read_day(self, tenant: str, day: int) -> list[LoggedRecord]:
        """Records of a tenant's day; see `DecisionLog`."""
        with self.talking():
            return [
                LoggedRecord(position, record.decode())
                for position, record in self._scan()
                if record.tenant == tenant and int(record.at_s // DAY_S) == day
            ]

    def days(self) -> list[tuple[str, int]]:
        """Tenants and days; see `DecisionLog`."""
        with self.talking():
            return sorted({(record.tenant, int(record.at_s // DAY_S)) for _, record in self._scan()})

    def counts(self) -> LogCounts:
        """Counts over all tenants; see `DecisionLog`."""
        with self.talking():
            values = [self._source(number, *_COUNTS) for number in self._sources()]
        return LogCounts(*(sum(column) for column in zip(*values, strict=True)))

    def watermarks(self) -> tuple[SourceWatermark, ...]:
        """Progress of every source; see `DecisionLog`."""
        with self.talking():
            marks = [self._progress(number).public for number in self._sources()]
        return tuple(sorted(marks, key=lambda one: (one.tenant, one.source)))

    def decision_ids(self, tenant: str, unit: str) -> tuple[str, ...]:
        """Ids of a unit's decisions; see `DecisionLog`."""
        with self.talking():
            decisions = {
                record.decision for _, record in self._scan() if (record.tenant, record.unit) == (tenant, unit)
            }
        return tuple(sorted(decisions))

    def erase(self, tenant: str, unit: str, *, decision_ids: Iterable[str] = ()) -> int:
        """Erase a unit; see `DecisionLog`. The append-only file is rewritten without it."""
        with self.talking():
            self._note_erased([name_digest(self._salt, "unit", tenant, unit)])
        ids = {*decision_ids, *self.decision_ids(tenant, unit)}
        with self.talking():
            self._note_erased(name_digest(self._salt, "decision", tenant, one) for one in sorted(ids))
            failpoint("decisions.before_erasure")
            own = [
                (record.unit is not None, position)
                for position, record in self._scan()
                if record.tenant == tenant and (record.unit == unit or (record.unit is None and record.decision in ids))
            ]
            # Decisions go last: they tell which outcomes are the unit's, if this is cut short and made again.
            erased = self._empty("erased", [position for _, position in sorted(own)])
            self._ask("EVAL", FENCE, 1, PREFIX, CHECKPOINT)
            self._rewrite_file()
        return erased

    def retire(self, positions: Sequence[int]) -> int:
        """Forget records that were copied elsewhere; see `DecisionLog`."""
        with self.talking():
            return self._empty("retired", positions)

    def take_lease(self, work: str, holder: str, *, now_s: float, lease_s: float, epoch: int = 0) -> LearnerLease:
        """Extend or take a lease; see `DecisionLog`."""
        with self.talking():
            answer = self._ask("EVAL", LEASE, 1, PREFIX, work, holder, repr(now_s), repr(now_s + lease_s), epoch)
        number, until_s, owner = map(_text_of, answer)
        return LearnerLease(work=work, holder=owner, epoch=int(number), until_s=float(until_s))

    def give_lease_back(self, lease: LearnerLease) -> None:
        """End a lease; see `DecisionLog`."""
        with self.talking():
            self._ask("EVAL", END_LEASE, 1, PREFIX, lease.work, lease.holder, lease.epoch)

    def save_learnt(self, lease: LearnerLease, states: Mapping[str, bytes], *, now_s: float) -> bool:
        """Replace states of a work; see `DecisionLog`."""
        pairs = [item for pair in states.items() for item in pair]
        failpoint("decisions.before_learnt")
        with self.talking():
            return bool(self._ask("EVAL", SAVE, 1, PREFIX, lease.work, lease.holder, lease.epoch, repr(now_s), *pairs))

    def learnt(self, work: str, names: Mapping[str, int]) -> dict[str, SavedState]:
        """States of a work; see `DecisionLog`."""
        states: dict[str, SavedState] = {}
        with self.talking():
            for name, number in self._ask("HGETALL", f"{PREFIX}numbers:{work}").items():
                text, present = _text_of(name), int(number)
                changed = names.get(text, present) != present
                body = self._ask("HGET", f"{PREFIX}learnt:{work}", text) if changed else None
                if body is not None:  # None: an erasure was faster
                    states[text] = SavedState(present, bytes(body))
        return states

    def close(self) -> None:
        """Close the connections; see `DecisionLog`."""
        self.client.close()

    @contextmanager
    def talking(self) -> Generator[None]:
        """Convert errors of the block's commands. Raises ResourceError, DiskFullError."""
        try:
            yield
        except redis.RedisError as error:
            words = f"{self.name}: {without_secrets(error, self._address)}"
            # Redis 6 reports memory that ran out within a script as an error of the script.
            if isinstance(error, OutOfMemoryError) or "OOM command" in str(error) or "MISCONF" in str(error):
                raise DiskFullError(f"no space left at {words}; free some and send the batch again") from error
            raise ResourceError(
                f"cannot use the decision log {words}; acknowledged records are kept, send the batch again when the "
                "server answers"
            ) from error

    def _ask(self, *command: str | bytes | float) -> Any:  # noqa: ANN401 - replies have the form of their command
        return cast("Any", self.client.execute_command(*command))  # pyright: ignore[reportUnknownMemberType]

    # ---- sources

    def _sources(self) -> list[bytes]:
        return sorted(self._ask("HVALS", f"{PREFIX}sources"), key=int)

    def _source(self, number: bytes, *names: str) -> list[int]:
        values = self._ask("HMGET", f"{PREFIX}source:{_text_of(number)}", *names)
        return [0 if value is None else int(value) for value in values]

    def _progress(self, number: bytes) -> SourceProgress:
        names = self._ask("HMGET", f"{PREFIX}source:{_text_of(number)}", "tenant", "name")
        first, watermark, highest, seen = self._source(number, "first", "watermark", "highest", "seen")
        return SourceProgress(int(number), _text_of(names[0]), _text_of(names[1]), first, watermark, highest, seen)

    # ---- records

    def _arguments(self, encoded: Sequence[EncodedRecord], claims: Sequence[RecordClaim]) -> list[bytes | str | int]:
        """Arguments of the script: shared parts of the batch, then its records."""
        parts: dict[bytes, tuple[str, bytes]] = {}
        records: list[bytes | str | int] = []
        claimed = {claim.place: claim for claim in claims}
        for place, one in enumerate(encoded):
            claim = claimed.get(place)
            kind, name = ("decision", one.decision) if one.unit is not None else ("key", claim.key if claim else "")
            digest = name_digest(self._salt, kind, one.tenant, name) if name else b""
            named = (digest, claim.digest if claim and claim.key else b"", int(claim is not None))
            data, actions = _pack_record(one)
            if self._erased and self._is_erased(one):
                records += [one.tenant, one.source, one.seq, b"", *named]
                continue
            records += [one.tenant, one.source, one.seq, data, *named]
            labels = encode_labels(one.labels)
            parts[_part_digest(labels)] = ("labels", labels)
            if one.actions is not None:
                parts[actions] = ("actions", encode_actions(one.actions))
        shared = [item for digest, (kind, part) in parts.items() for item in (kind, digest, part)]
        return [len(parts), *shared, *records]

    def _scan(self, after: int = 0) -> Iterator[tuple[int, EncodedRecord]]:
        """Records by position, a page at a time."""
        while True:
            entries = self._ask("XRANGE", f"{PREFIX}stream", f"({_entry_id(after)}", "+", "COUNT", _PAGE)
            if not entries:
                return
            keys = [_text_of(fields[b"k"]).partition(":") for _, fields in entries]
            places = [(number, seq) for number, _, seq in keys]
            records = self._records(places)
            for (entry, _), place in zip(entries, places, strict=True):
                after = _position(entry)
                if (record := records.get(place)) is not None:
                    yield after, record

    def _records(self, places: Sequence[tuple[str, str]]) -> dict[tuple[str, str], EncodedRecord]:
        """Records by the number of their source and their seq, without those that are empty."""
        held = self._held(places)
        sources = {number: self._progress(number.encode()) for number in sorted({one[0] for one in places})}
        self._load_parts(held.values())
        return {
            (number, seq): self._unpack(data, sources[number], int(seq))
            for (number, seq), data in held.items() if self._has_parts(data, number, seq)
        }  # fmt: skip

    def _held(self, places: Sequence[tuple[str, str]]) -> dict[tuple[str, str], bytes]:
        """Contents of records by the number of their source and their seq, without those that are empty."""
        held: dict[tuple[str, str], bytes] = {}
        for number in sorted({one[0] for one in places}):
            seqs = [seq for other, seq in places if other == number]
            values = self._ask("HMGET", f"{PREFIX}records:{number}", *seqs)
            held.update({(number, seq): value for seq, value in zip(seqs, values, strict=True) if value})
        return held

    def _load_parts(self, held: Iterable[bytes]) -> None:
        heads = [HEAD.unpack_from(data) for data in held]
        _load(self._ask, self._actions_read, "actions", {head[2] for head in heads if head[0] == b"d"}, decode_actions)
        _load(self._ask, self._labels_read, "labels", {head[3] for head in heads}, decode_labels)

    def _has_parts(self, data: bytes, number: str, seq: str) -> bool:
        """False for a record that was erased while it was read. Raises DataError if its shared parts are lost."""
        row = _stored_row(data)
        if row.labels in self._labels_read and (row.unit is None or row.actions in self._actions_read):
            return True
        if self._held([(number, seq)]):
            raise DataError(f"{self.name}: the set of actions or the labels of seq {seq}, source {number}, are missing")
        return False

    def _unpack(self, data: bytes, progress: SourceProgress, seq: int) -> EncodedRecord:
        row = _stored_row(data)
        actions = None if row.unit is None else self._actions_read[cast("bytes", row.actions)]
        labels = self._labels_read[cast("bytes", row.labels)]
        return EncodedRecord(
            progress.tenant, progress.source, seq, row.at_s, row.decision or "", row.unit, actions, labels,
            row.body or b"",
        )  # fmt: skip

    # ---- erasure and retirement

    def _is_erased(self, one: EncodedRecord) -> bool:
        """True if a record's unit or decision was erased; outcomes that came before their decision are erased now."""
        decision = name_digest(self._salt, "decision", one.tenant, one.decision)
        if one.unit is None:
            return decision in self._erased
        if name_digest(self._salt, "unit", one.tenant, one.unit) not in self._erased:
            return False
        if decision not in self._erased:
            self._note_erased([decision])
            self._empty(
                "erased",
                [
                    position
                    for position, record in self._scan()
                    if (record.tenant, record.decision, record.unit) == (one.tenant, one.decision, None)
                ],
            )
        return True

    def _note_erased(self, digests: Iterable[bytes]) -> None:
        for digest in digests:
            self._ask("HSETNX", f"{PREFIX}erased", digest, 1)
        self._refresh()

    def _refresh(self) -> None:
        """Learn of erasures by other processes."""
        self._erased = {bytes(digest) for digest in self._ask("HKEYS", f"{PREFIX}erased")}

    def _empty(self, kind: str, positions: Sequence[int]) -> int:
        """Take the content out of records -> records that had content."""
        return sum(
            int(self._ask("EVAL", EMPTY, 1, PREFIX, kind, *map(_entry_id, chunk))) for chunk in chunks(positions)
        )

    def _rewrite_file(self) -> None:
        """Rewrite the append-only file, as the old one holds the erased bytes. Raises ResourceError."""
        try:
            rewrite_file(lambda: self._ask("INFO", "persistence"), lambda: self._ask("BGREWRITEAOF"), again=True)
        except ResponseError as error:
            raise ResourceError(
                f"erased from {self.name}, but not from its file ({without_secrets(error, self._address)}); erase again"
            ) from error


def _load(
    ask: Callable[..., Any],
    cache: dict[bytes, Item],
    kind: str,
    digests: set[bytes],
    decode: Callable[[bytes], Item],
) -> None:
    if len(cache) + len(digests) > _CACHED:
        cache.clear()
    missing = sorted(digests - cache.keys())
    if missing:
        for digest, part in zip(missing, ask("HMGET", f"{PREFIX}{kind}", *missing), strict=True):
            if part is not None:  # None: its last record was erased since
                cache[digest] = decode(part)
