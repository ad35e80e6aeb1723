"""The log on the path of an answer, or behind it.

`before`: a record is in the log before its request is answered; a request whose record the log did not take gets 503.
`after`: records wait in a bounded buffer that a thread writes; a kill loses what waits. The numbers that were given out
are kept in a small memory-mapped file, which survives the kill of the process: after a restart the numbers go on, and
the log's watermarks show the gap.
"""

import mmap
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Final, Protocol

from hone.core.clock import Clock
from hone.core.decisions import Decision, DecisionRecord
from hone.core.errors import HoneError
from hone.decide.gateway.requests import RequestError
from hone.decide.log.protocol import AppendAck, DecisionLog, KnownNames, NameTakenError, RecordClaim

FLUSH_S: Final = 0.05
"""Longest time that a record waits in the buffer of `after`, while the log is quick enough."""
BATCH: Final = 500
REPEATED_PREFIX: Final = "repeated:"
"""Beginning of the kinds of rewards that two gateways took under one key before either was in the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedBatch:
    """Records that the log took, and its acknowledgement."""

    records: Sequence[DecisionRecord]
    ack: AppendAck


class LogWriter(Protocol):
    """Takes the records of answers."""

    @property
    def refuses_names(self) -> bool:
        """True if `write` raises NameTakenError; else names must be asked for before."""
        ...

    def write(self, records: Sequence[DecisionRecord], claims: Sequence[RecordClaim]) -> LoggedBatch | None:
        """Take records; None: they wait. Raises RequestError (503) if they cannot be taken, and NameTakenError for
        claims of names that are taken: then their requests must not be answered."""
        ...

    def find(self, tenant: str, ids: Sequence[str], keys: Sequence[str]) -> KnownNames:
        """What the log knows of ids and keys. Raises RequestError (503)."""
        ...

    def flushed(self) -> list[LoggedBatch]:
        """Records that waited, and were logged since the last call."""
        ...

    def waiting(self) -> int:
        """Records that are taken and not yet in the log."""
        ...

    def failed_s(self) -> float:
        """Monotonic time of the latest append, if it failed; else minus infinity."""
        ...

    def close(self) -> None:
        """Write the records that wait."""
        ...


def _unavailable(error: Exception) -> RequestError:
    message = f"the decision log does not take records ({error!s:.200}): nothing was decided; try again"
    return RequestError(message, status=503, code="log_unavailable")


class WriteBefore:
    """Append on the path."""

    def __init__(self, log: DecisionLog, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._failed_s = float("-inf")

    @property
    def refuses_names(self) -> bool:
        """The log refuses them."""
        return True

    def write(self, records: Sequence[DecisionRecord], claims: Sequence[RecordClaim]) -> LoggedBatch:
        """Append the records. Raises RequestError (503), NameTakenError."""
        try:
            ack = self._log.append(records, claims)
        except NameTakenError:
            raise
        except (HoneError, OSError) as error:
            self._failed_s = self._clock.monotonic_s()
            raise _unavailable(error) from error
        self._failed_s = float("-inf")
        return LoggedBatch(records=records, ack=ack)

    def failed_s(self) -> float:
        """See `LogWriter`."""
        return self._failed_s

    def find(self, tenant: str, ids: Sequence[str], keys: Sequence[str]) -> KnownNames:
        """What the log knows. Raises RequestError (503)."""
        return _find(self._log, tenant, ids, keys)

    def flushed(self) -> list[LoggedBatch]:
        """None waited."""
        return []

    def waiting(self) -> int:
        """None wait."""
        return 0

    def close(self) -> None:
        """Nothing waits."""


def _find(log: DecisionLog, tenant: str, ids: Sequence[str], keys: Sequence[str]) -> KnownNames:
    try:
        return log.find(tenant, ids=ids, keys=keys)
    except (HoneError, OSError) as error:
        raise _unavailable(error) from error


class WriteAfter:
    """A bounded buffer with a thread that writes it. `start` before use."""

    def __init__(self, log: DecisionLog, *, capacity: int, tell: Callable[[str, str], None], clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._failed_s = float("-inf")
        self._capacity = capacity
        self._tell = tell
        self._buffer: deque[tuple[DecisionRecord, RecordClaim | None]] = deque()
        self._flushed: deque[LoggedBatch] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="log-writer", daemon=True)

    @property
    def refuses_names(self) -> bool:
        """The answer is given before the log has the record."""
        return False

    def start(self) -> "WriteAfter":
        """Start the thread."""
        self._thread.start()
        return self

    def write(self, records: Sequence[DecisionRecord], claims: Sequence[RecordClaim]) -> None:
        """Put the records into the buffer; refusals are told later. Raises RequestError (503) if it is full."""
        claimed = {claim.place: claim for claim in claims}
        with self._wake:
            if len(self._buffer) + len(records) > self._capacity:
                raise _unavailable(BufferError(f"{len(self._buffer)} records wait, the buffer is full"))
            self._buffer.extend((record, claimed.get(place)) for place, record in enumerate(records))
            if len(self._buffer) >= BATCH:
                self._wake.notify()

    def find(self, tenant: str, ids: Sequence[str], keys: Sequence[str]) -> KnownNames:
        """What the log knows. Raises RequestError (503)."""
        return _find(self._log, tenant, ids, keys)

    def flushed(self) -> list[LoggedBatch]:
        """Batches that were logged since the last call."""
        return [self._flushed.popleft() for _ in range(len(self._flushed))]

    def waiting(self) -> int:
        """Records in the buffer."""
        return len(self._buffer)

    def failed_s(self) -> float:
        """See `LogWriter`."""
        return self._failed_s

    def close(self) -> None:
        """Write the records that wait; gives up after the log has failed for ten seconds."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(10.0)
        if self._buffer:
            self._tell("log_unavailable", f"{len(self._buffer)} records could not be written before the end")

    def _work(self) -> None:
        while True:
            with self._wake:
                if not self._closing and len(self._buffer) < BATCH:
                    self._wake.wait(FLUSH_S)
                batch = [self._buffer[place] for place in range(min(BATCH, len(self._buffer)))]
                if not batch and self._closing:
                    return
            if batch and self._written(batch):
                self._drop(len(batch))

    def _drop(self, count: int) -> None:
        with self._wake:
            for _ in range(count):
                self._buffer.popleft()

    def _written(self, batch: Sequence[tuple[DecisionRecord, RecordClaim | None]]) -> bool:
        """Append; a failure is told, and tried again: sending twice stores once."""
        records = [record for record, _ in batch]
        claims = {place: replace(claim, place=place) for place, (_, claim) in enumerate(batch) if claim is not None}
        while True:
            try:
                ack = self._log.append(records, list(claims.values()))
                break
            except NameTakenError as taken:
                for place in taken.places:
                    del claims[place]
                    records[place] = self._repeated(records[place])
            except (HoneError, OSError) as error:
                self._failed_s = self._clock.monotonic_s()
                self._tell("log_unavailable", f"{len(self._buffer)} records wait: {error!s:.200}")
                with self._wake:
                    self._wake.wait(FLUSH_S if not self._closing else 1.0)
                return False
        self._failed_s = float("-inf")
        for refused in ack.refused:
            self._tell("record_refused", refused.message)
        self._flushed.append(LoggedBatch(records=records, ack=ack))
        return True

    def _repeated(self, record: DecisionRecord) -> DecisionRecord:
        """A record that another gateway logged under the same name at the same time: it was answered, and its number
        is given out. A decision stays as it was made; a reward stands in the log under a kind that no join reads."""
        if isinstance(record, Decision):
            self._tell("record_repeated", f"id {record.id!r:.60} was decided by two gateways at once")
            return record
        self._tell(
            "record_repeated", f"a reward of decision {record.decision_id!r:.60} was taken by two gateways at once"
        )
        return replace(record, kind=f"{REPEATED_PREFIX}{record.kind}")


class SequenceNumbers:
    """Numbers of records, from 0 without a gap, one sequence for each tenant.

    With a folder (`after`) they survive a kill of the process. Without one (`before`) the log knows them: after a
    failed append, which may have stored its records all the same, the log is asked again.
    """

    def __init__(self, logged: Callable[[str], int], folder: Path | None = None) -> None:
        self._logged = logged
        """Records of a tenant that the log has."""
        self._folder = folder
        self._next: dict[str, int] = {}
        self._maps: dict[str, mmap.mmap] = {}

    def resume(self, tenant: str) -> int:
        """Go on after the log's records; how many numbers were given out before and are not in the log."""
        issued = logged = self._logged(tenant)
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            # eight bytes, in a file named by a hash: a tenant's name is no path
            path = self._folder / f"{blake2b(tenant.encode(), digest_size=16).hexdigest()}.count"
            with path.open("a+b") as file:
                if path.stat().st_size < 8:
                    file.truncate(8)
                self._maps[tenant] = held = mmap.mmap(file.fileno(), 8)
            issued = max(logged, int.from_bytes(held[:8], "little"))
        self._set(tenant, issued)
        return issued - logged

    def take(self, tenant: str) -> int:
        """The next number. Raises RequestError (503) while the log cannot be asked."""
        if tenant not in self._next:
            try:
                self._set(tenant, self._logged(tenant))
            except (HoneError, OSError) as error:
                raise _unavailable(error) from error
        number = self._next[tenant]
        self._set(tenant, number + 1)
        return number

    def refused(self, records: Sequence[DecisionRecord], source: str) -> None:
        """Take numbers of records that were not written again."""
        own = [record for record in records if record.source == source]
        for tenant in {record.tenant for record in own}:
            if self._folder is None:
                self._next.pop(tenant, None)
            else:
                self._set(tenant, min(record.seq for record in own if record.tenant == tenant))

    def close(self) -> None:
        """Close the files."""
        for held in self._maps.values():
            held.close()
        self._maps.clear()

    def _set(self, tenant: str, number: int) -> None:
        self._next[tenant] = number
        held = self._maps.get(tenant)
        if held is not None:
            held[:8] = number.to_bytes(8, "little")
