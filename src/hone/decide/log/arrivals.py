"""Arrivals at a log: new, known, different or erased. Pure bookkeeping that the engines share."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, NamedTuple

from hone.decide.log.codec import EncodedRecord
from hone.decide.log.protocol import LogCounts, RefusedRecord, SourceWatermark

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


@dataclass(slots=True)
class RecordTally:
    """Counts of records, or changes of them within one transaction."""

    decisions: int = 0
    outcomes: int = 0
    repeated: int = 0
    refused: int = 0
    erased: int = 0
    retired: int = 0

    def note(self, *, decision: bool, erased: bool) -> None:
        """Count a new record."""
        self.erased += erased
        self.decisions += decision and not erased
        self.outcomes += not (decision or erased)

    @property
    def values(self) -> tuple[int, int, int, int, int, int]:
        """The six counts, in the order of their declaration."""
        return (self.decisions, self.outcomes, self.repeated, self.refused, self.erased, self.retired)

    @property
    def public(self) -> LogCounts:
        """The counts as callers see them."""
        return LogCounts(
            decisions=self.decisions, outcomes=self.outcomes, repeated=self.repeated, refused=self.refused,
            erased=self.erased, retired=self.retired,
        )  # fmt: skip


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
    tally: RecordTally = field(default_factory=RecordTally)
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


def differing_fields(stored: StoredRow, arrived: StoredRow) -> list[str]:
    """Names of the fields that differ; none for a row without content, as there is nothing to compare with."""
    if stored.body is None or stored[2:] == arrived[2:]:
        return []
    if (stored.unit is None) != (arrived.unit is None):
        return ["kind of record"]
    differ = [name for name, old, new in zip(_FIELDS, stored[2:], arrived[2:], strict=True) if old != new]
    return [name for name in differ if name != "body"] or ["value" if arrived.unit is None else "numbers"]


def erasure_digest(salt: bytes, kind: str, tenant: str, name: str) -> bytes:
    """Keyed digest by which an erased unit or decision is known -> 16 bytes."""
    text = "\x00".join((kind, tenant, name)).encode()
    return blake2b(text, key=salt, digest_size=16).digest()
