"""The contract of decision logs, the same for every engine.

One suite of tests holds every engine to it:

- An acknowledged record survives the death of the writer (`kill -9`) and, where the engine flushes each
  commit, a loss of power.
- A record is identified by its tenant, source and seq: sent again, it changes nothing. Sent again with other content it
  is refused by name, and the first one stays.
- Records arrive in any order. The watermark of a source is the highest seq below which nothing is missing, so that a
  loss is seen.
- Tenants share no key: equal names of two tenants are two units, sources and decisions.
- An erased unit stays erased: its records are acknowledged, counted, and not stored.
- The id of a decision, and the key that a caller gave an outcome, are known for ever, after retention and erasure too.
  A writer claims them; a batch with one that another record has is not stored.
- What was learnt from a log stands beside it: a lease says which process learns, and its epoch is a fencing token, so
  that a learner whose lease has run out writes nothing.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple, Protocol
from urllib.parse import unquote

from hone.core.decisions import Decision, DecisionRecord
from hone.core.errors import DataError, hide_passwords
from hone.decide.log.codec import EncodedRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceWatermark:
    """Progress of one source, as far as a log has seen it."""

    tenant: str
    source: str
    watermark: int
    """Highest seq below which no seq is missing; -1: the first one is missing."""
    highest: int
    """Highest seq."""
    missing: int
    """Seqs below `highest` that have not arrived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRecord:
    """A record that was sent again with other content, and is not stored."""

    tenant: str
    source: str
    seq: int
    message: str
    """Names the record and the fields that differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendAck:
    """Acknowledgement of a batch: every record of it is stored, known already, erased, or refused."""

    stored: int
    """New records."""
    repeated: int
    """Records that the log had already."""
    erased: int
    """Records of erased units: acknowledged, and not stored."""
    refused: tuple[RefusedRecord, ...]
    watermarks: tuple[SourceWatermark, ...]
    """Progress of the batch's sources."""
    repeats: tuple[int, ...] = ()
    """Places in the batch of records that the log had already."""
    after: int = 0
    """Position that every earlier record is at or below, and every new one above; 0 if nothing was stored."""
    position: int = 0
    """Position of the last new record; 0 if nothing was stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordClaim:
    """A name that a record of a batch must be the first to have: the id of a decision, or a caller's key."""

    place: int
    """The record's place in the batch."""
    key: str = ""
    """Key of an outcome; empty: the record is a decision, and claims its id."""
    digest: bytes = b""
    """Hash of what the caller sent under the key, to tell a repetition from another use."""


class NameTakenError(DataError):
    """A claimed name belongs to another record; nothing of the batch was stored."""

    def __init__(self, places: Sequence[int]) -> None:
        super().__init__(f"{len(places)} records have an id or a key that is taken: nothing of the batch was stored")
        self.places = tuple(places)
        """Places of the claims in the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownNames:
    """Names that a log knows, of those that it was asked for."""

    decisions: Mapping[str, Decision | None]
    """Id -> the first decision of it; None: its content was erased, or moved to parquet files."""
    keys: Mapping[str, bytes]
    """Key -> hash of what the caller sent under it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerLease:
    """The right of one process to learn from a log, until a time."""

    work: str
    """What is learnt."""
    holder: str
    epoch: int
    """Fencing token: higher for each new holder. What an earlier holder writes is refused by it."""
    until_s: float
    """Seconds since the epoch, by the holder's clock."""


@dataclass(slots=True)
class LogCounts:
    """Records of a log since it was made, or what one transaction changes of them."""

    decisions: int = 0
    """Held now."""
    outcomes: int = 0
    """Held now."""
    repeated: int = 0
    """Times that a known record arrived again."""
    refused: int = 0
    """Times that a known record arrived with other content."""
    erased: int = 0
    """Records that were erased with their unit."""
    retired: int = 0
    """Records that moved to parquet files."""

    def note(self, *, decision: bool, erased: bool) -> None:
        """Count a new record."""
        self.erased += erased
        self.decisions += decision and not erased
        self.outcomes += not (decision or erased)

    @property
    def values(self) -> tuple[int, int, int, int, int, int]:
        """The six counts, in the order of their declaration."""
        return (self.decisions, self.outcomes, self.repeated, self.refused, self.erased, self.retired)


class SavedState(NamedTuple):
    """A state that a learner saved beside the log."""

    number: int
    """Another one for each save of the name."""
    body: bytes


@dataclass(frozen=True, slots=True)
class LoggedRecord:
    """A record and its place in the order of arrival."""

    position: int
    """Ascending in the order of arrival, with holes, never used twice. Redis' positions are wider than 64 bits."""
    record: DecisionRecord


class DecisionLog(Protocol):
    """A log of decisions and outcomes. Several threads and processes may append to one at the same time."""

    def append(self, batch: Sequence[DecisionRecord], claims: Sequence[RecordClaim] = ()) -> AppendAck:
        """Store a batch: all of it or, if this raises, nothing of it.

        Raises DataError that lists every unsound record of the batch, NameTakenError for claims of names that other
        records have, DiskFullError, and ResourceError if the engine cannot be reached; the batch can then be sent
        again.
        """
        ...

    def find(self, tenant: str, *, ids: Sequence[str] = (), keys: Sequence[str] = ()) -> KnownNames:
        """What the log knows of ids of decisions and of keys, however old they are."""
        ...

    def read(self, after: int = 0, limit: int = 1000, *, tenant: str | None = None) -> list[LoggedRecord]:
        """Records with a position above `after`, ascending, at most `limit`; of one tenant, or of all.

        A position that has been read is final: nothing arrives below it later.
        """
        ...

    def read_day(self, tenant: str, day: int) -> list[LoggedRecord]:
        """Records of one tenant and one day, by position; days are counted from the epoch, in UTC."""
        ...

    def days(self) -> list[tuple[str, int]]:
        """Tenants and days (from the epoch, UTC) that the log holds records of, sorted."""
        ...

    def counts(self) -> LogCounts:
        """Counts over all tenants."""
        ...

    def watermarks(self) -> tuple[SourceWatermark, ...]:
        """Progress of every source, sorted by tenant and source."""
        ...

    def decision_ids(self, tenant: str, unit: str) -> tuple[str, ...]:
        """Ids of a unit's decisions that the log holds, sorted."""
        ...

    def erase(self, tenant: str, unit: str, *, decision_ids: Iterable[str] = ()) -> int:
        """Erase a unit's decisions and their outcomes, for good -> records erased.

        `decision_ids` are further decisions of the unit, that were moved to parquet files before: their outcomes are
        erased too. Their seqs stay known, so watermarks do not move. Checkpoints of what was learnt are deleted, and
        every lease gets a new epoch: a learner that runs must begin anew, without the unit.
        """
        ...

    def retire(self, positions: Sequence[int]) -> int:
        """Forget the content of records that were copied elsewhere -> records retired. Their seqs stay known."""
        ...

    def take_lease(self, work: str, holder: str, *, now_s: float, lease_s: float, epoch: int = 0) -> LearnerLease:
        """Extend the lease of `epoch`, or take one that is free or has run out -> the lease that is valid now.

        It is the caller's if its holder is `holder`. A holder that comes without its epoch, because it was started
        again, gets a new one; one whose lease has run out keeps it, if nobody took it.
        """
        ...

    def give_lease_back(self, lease: LearnerLease) -> None:
        """End a lease at once; without effect if it is another's now."""
        ...

    def save_learnt(self, lease: LearnerLease, states: Mapping[str, bytes], *, now_s: float) -> bool:
        """Replace states of the lease's work by name, all or none -> False, and nothing is saved, if the lease has run
        out or is another's."""
        ...

    def learnt(self, work: str, names: Mapping[str, int]) -> dict[str, SavedState]:
        """States of a work by name, of those in `names`, where their number is not the one there; 0: not seen yet."""
        ...

    def close(self) -> None:
        """Close the connection; a second call has no effect."""
        ...


# ------------------------------------------------------------------------------------------------------------ addresses


def log_name(address: str | Path) -> str:
    """Address of a log for screens, pages and messages: without user, password and options."""
    scheme, colon, rest = str(address).partition("://")
    if not colon:
        return str(address)
    before, at, after = rest.rpartition("@")
    if at and any(mark in before for mark in "/?#"):  # the `@` may be one of the options, or the password holds a mark
        return f"{scheme}://(not shown)"
    return f"{scheme}://{after.partition('?')[0].partition('#')[0]}"


def without_secrets(error: Exception, address: str) -> str:
    """Words of an engine's error without the password of the log's address, which some errors repeat."""
    words = str(error).strip() or type(error).__name__
    user = address.partition("://")[2].rpartition("@")[0]
    options = re.findall(r"(?i)(?:password|passwd|token|secret)=([^&#\s]+)", address)
    for secret in filter(None, (user.partition(":")[2], *options)):
        for written in {secret, unquote(secret), *secret.split("@"), *re.split(r"[/?#]", secret)} - {""}:
            words = words.replace(written, "***") if len(written) > 2 else words
    return hide_passwords(words.replace(address, log_name(address)))


CHECKPOINT: Final = "checkpoint"
"""Name of the state that a learner begins with; deleted by an erasure."""


# ------------------------------------------------------------------------------------------------------------- arrivals


_FIELDS: Final = ("at_s", "decision", "unit", "actions", "labels", "body")


class StoredRow(NamedTuple):
    """A record in a database: columns of `EncodedRecord` with numbers in place of its names and shared parts."""

    source: int
    seq: int
    at_s: float
    decision: str | None
    """None: the content was erased, or moved to parquet files."""
    unit: str | None
    actions: int | bytes | None
    """Number, or digest where the engine has no numbers."""
    labels: int | bytes | None
    body: bytes | None

    def differing_fields(self, arrived: "StoredRow") -> list[str]:
        """Names of the fields that differ; none for a row without content, as there is nothing to compare with."""
        if self.body is None or self[2:] == arrived[2:]:
            return []
        if (self.unit is None) != (arrived.unit is None):
            return ["kind of record"]
        differ = [name for name, old, new in zip(_FIELDS, self[2:], arrived[2:], strict=True) if old != new]
        return [name for name in differ if name != "body"] or ["value" if arrived.unit is None else "numbers"]


@dataclass(slots=True)
class SourceProgress:
    """Progress of one source. Seqs below `first` are known, and their rows are gone."""

    number: int
    tenant: str
    source: str
    first: int = 0
    watermark: int = -1
    highest: int = -1
    seen: int = 0
    """Distinct seqs that have arrived."""
    tally: LogCounts = field(default_factory=LogCounts)
    """Changes by this batch."""

    def add(self, seq: int) -> None:
        """Note a seq that arrived for the first time."""
        self.seen += 1
        self.highest = max(self.highest, seq)
        if seq == self.watermark + 1:
            self.watermark = seq
        if self.seen == self.highest + 1:
            self.watermark = self.highest

    @property
    def has_gaps(self) -> bool:
        """True if seqs below the highest one are missing."""
        return self.watermark < self.highest

    @property
    def public(self) -> SourceWatermark:
        """The progress as callers see it."""
        return SourceWatermark(
            tenant=self.tenant, source=self.source, watermark=self.watermark, highest=self.highest,
            missing=self.highest + 1 - self.seen,
        )  # fmt: skip


def refusal(record: EncodedRecord, fields: Iterable[str]) -> RefusedRecord:
    """Refusal of a record that differs from the stored one in some fields."""
    kind = "outcome" if record.unit is None else "decision"
    return RefusedRecord(
        tenant=record.tenant, source=record.source, seq=record.seq,
        message=f"seq {record.seq} of source {record.source!r}, tenant {record.tenant!r}, is stored with other content "
        f"(different: {', '.join(fields)}); the stored record stays, and this {kind} (decision "
        f"{record.decision!r:.60}) is not stored; give new records new numbers",
    )  # fmt: skip


def name_digest(salt: bytes, kind: str, tenant: str, name: str) -> bytes:
    """Keyed digest by which a decision, a key or an erased unit is known -> 16 bytes."""
    text = "\x00".join((kind, tenant, name)).encode()
    return blake2b(text, key=salt, digest_size=16).digest()
