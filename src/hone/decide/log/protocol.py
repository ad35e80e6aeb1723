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
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hone.core.decisions import DecisionRecord


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCounts:
    """Records of a log since it was made."""

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


@dataclass(frozen=True, slots=True)
class LoggedRecord:
    """A record and its place in the order of arrival."""

    position: int
    """Ascending in the order of arrival, with holes, never used twice. Redis' positions are wider than 64 bits."""
    record: DecisionRecord


class DecisionLog(Protocol):
    """A log of decisions and outcomes. Several threads and processes may append to one at the same time."""

    def append(self, batch: Sequence[DecisionRecord]) -> AppendAck:
        """Store a batch: all of it or, if this raises, nothing of it.

        Raises DataError that lists every unsound record of the batch, DiskFullError, and ResourceError if the engine
        cannot be reached; the batch can then be sent again.
        """
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
        erased too. Their seqs stay known, so watermarks do not move.
        """
        ...

    def retire(self, positions: Sequence[int]) -> int:
        """Forget the content of records that were copied elsewhere -> records retired. Their seqs stay known."""
        ...

    def close(self) -> None:
        """Close the connection; a second call has no effect."""
        ...
