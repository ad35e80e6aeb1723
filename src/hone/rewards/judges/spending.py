"""Spending of a judge: the cache of replies, limits of rate and of totals, waits between attempts, a file of totals."""

import contextlib
import json
import os
import tempfile
import threading
from collections import deque
from dataclasses import asdict, dataclass, field
from email.utils import parsedate_to_datetime
from hashlib import sha256
from pathlib import Path

from hone.core.clock import Clock
from hone.core.errors import DataError, LostResourceError, ResourceError
from hone.core.random import uniforms
from hone.core.strict_json import strict_json
from hone.rewards.judges.config import JudgeBudget
from hone.rewards.judges.questions import JudgeReply

# ---------------------------------------------------------------------------------------------------------------- cache
# Cache of replies on disk: one JSON file for each reply, named by the hash of its question.
#
# A file is written under another name and renamed, so that several processes can share a folder. An entry that cannot
# be read, or has a wrong checksum, is counted and asked again; it is never an error.


class ReplyCache:
    """Replies by the keys of their questions, in a folder; safe with several threads and processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.damaged: list[Path] = []
        """Entries that could not be read so far."""

    def load(self, key: str) -> JudgeReply | None:
        """The reply under `key`; None if there is none, or if its entry is damaged. Raises ResourceError."""
        path = self._path(key)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ResourceError(f"cannot read {path}: {error.strerror}") from None
        reply = _parse(content, key)
        if reply is None:
            self.damaged.append(path)
        return reply

    def save(self, key: str, reply: JudgeReply) -> None:
        """Keep a reply. Raises ResourceError."""
        path, body = self._path(key), reply.to_json()
        entry = {"key": key, "reply": body, "sha256": _checksum(key, body)}
        _write_atomically(path, json.dumps(entry).encode())

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


def _write_atomically(path: Path, content: bytes) -> None:
    """Write a file under another name and rename it; makes its folder. Raises ResourceError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            Path(name).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise
    except OSError as error:
        raise ResourceError(
            f"cannot write the judge's file {path}: {error.strerror}; free some space, or set another cache"
        ) from None


def _parse(content: bytes, key: str) -> JudgeReply | None:
    try:
        entry = strict_json(content)
    except ValueError:
        return None
    if not isinstance(entry, dict) or entry.get("key") != key:
        return None
    reply = JudgeReply.from_json(entry.get("reply"))
    return reply if reply is not None and entry.get("sha256") == _checksum(key, reply.to_json()) else None


def _checksum(key: str, body: dict[str, object]) -> str:
    return sha256(json.dumps([key, body], sort_keys=True).encode()).hexdigest()


# ------------------------------------------------------------------------------------------------------------- spending

_MINUTE_S = 60.0
_MILLION = 1e6


_FILES = threading.Lock()
"""Held while a file of totals is read and written."""


@dataclass
class RateLimit:
    """A limit on amounts in any minute."""

    per_minute: float | None
    _times: deque[tuple[float, float]] = field(default_factory=deque[tuple[float, float]])
    """Time and amount of everything in the last minute."""

    def wait_s(self, now_s: float) -> float:
        """Seconds until more may be taken; 0 at once."""
        if self.per_minute is None:
            return 0.0
        while self._times and now_s - self._times[0][0] >= _MINUTE_S:
            self._times.popleft()
        wait_s = 0.0
        left = sum(amount for _, amount in self._times)
        for time_s, amount in self._times:
            if left < self.per_minute:
                break
            left -= amount
            wait_s = _MINUTE_S - (now_s - time_s)  # in this order rounding gives no more than a minute
        return wait_s

    def take(self, now_s: float, amount: float) -> None:
        if self.per_minute is not None and amount:
            self._times.append((now_s, amount))


@dataclass(frozen=True, slots=True)
class SpendingTotals:
    """Requests, tokens and money that were spent."""

    requests: int
    tokens: int
    money: float


class JudgeSpending:
    """Requests, tokens and money of a judge so far, and its rate. One thread at a time may call it. Requests count when
    they are sent, tokens and money with the reply, so that requests under way can exceed a budget of tokens or money by
    their own cost."""

    def __init__(self, name: str, budget: JudgeBudget) -> None:
        self.name, self.budget = name, budget
        self.requests, self.tokens, self.money = 0, 0, 0.0
        self.cached = 0
        """Verdicts that cost nothing."""
        self._rates = RateLimit(budget.requests_per_minute), RateLimit(budget.tokens_per_minute)

    def wait_s(self, now_s: float) -> float:
        """Seconds until the next request may be sent."""
        return max(rate.wait_s(now_s) for rate in self._rates)

    def send(self, now_s: float) -> None:
        """Count one request. Raises LostResourceError, and counts nothing, where a total is spent."""
        spent = self.spent()
        if spent:
            raise LostResourceError(
                f"judge {self.name!r} has spent its budget: {spent}; its cache has every reply. Raise the budget, and "
                "resume with --resume --allow-changed-config"
            )
        self.requests += 1
        self._rates[0].take(now_s, 1)

    def receive(self, reply: JudgeReply, now_s: float) -> None:
        """Count the tokens of a reply. Raises LostResourceError where a budget needs tokens that nobody counted."""
        limits = self.budget
        if not reply.tokens and (limits.tokens or limits.money or limits.tokens_per_minute):
            raise LostResourceError(
                f"judge {self.name!r}: the server does not report `usage`, so that tokens and money cannot be counted; "
                "set budget.requests and budget.requests_per_minute instead"
            )
        self.tokens += reply.tokens
        self.money += (limits.price_read * reply.read_tokens + limits.price_written * reply.written_tokens) / _MILLION
        self._rates[1].take(now_s, reply.tokens)

    def spent(self) -> str:
        """The totals that are spent, in words; empty while there is something left."""
        totals = {
            "requests": (self.requests, self.budget.requests),
            "tokens": (self.tokens, self.budget.tokens),
            "money": (self.money, self.budget.money),
        }
        over = {name: both for name, both in totals.items() if both[1] is not None and both[0] >= both[1]}
        return ", ".join(f"budget.{name} = {limit:g}, {used:g} used" for name, (used, limit) in over.items())

    def totals(self) -> SpendingTotals:
        return SpendingTotals(self.requests, self.tokens, self.money)

    def add(self, other: SpendingTotals) -> None:
        """Count the spending of another judge under the same budget."""
        self.requests += other.requests
        self.tokens += other.tokens
        self.money += other.money


class _SpendingFile:
    """The totals of a run's judge in a file of the run, so that a run that was killed keeps counting where it was. The
    judges of training and of the evaluation share the file of their name, and so the budget."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> SpendingTotals:
        """The totals; zeros before the first. Raises DataError for a damaged file."""
        try:
            table = strict_json(self.path.read_bytes())
        except FileNotFoundError:
            return SpendingTotals(0, 0, 0.0)
        except (OSError, ValueError) as error:
            raise self._damaged(str(error)) from None
        match table:
            case {"requests": int(requests), "tokens": int(tokens), "money": float(money)}:
                return SpendingTotals(requests, tokens, money)
            case _:
                raise self._damaged("requests, tokens or money is missing")

    def save(self, totals: SpendingTotals) -> None:
        """Replace the totals. Raises ResourceError."""
        _write_atomically(self.path, json.dumps(asdict(totals)).encode())

    def _damaged(self, why: str) -> DataError:
        return DataError(f"{self.path} cannot be read: {why}; delete it to count the judge's spending from 0")


@dataclass
class JudgeLedger:
    """What a judge's replies cost, and where they are kept; for any number of threads."""

    spending: JudgeSpending
    cache: ReplyCache | None
    clock: Clock

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._file: _SpendingFile | None = None
        self._written = self.spending.totals()

    def keep_totals(self, path: Path) -> None:
        """Count on from the totals in a file, and write them there. Raises DataError for a damaged file."""
        self._file = _SpendingFile(path)
        self.write_totals()

    def write_totals(self) -> None:
        """Add the spending since the last call to the file, and take over that of others. Raises ResourceError,
        DataError."""
        if self._file is None:
            return
        with self._lock, _FILES:
            own, before, others = self.spending.totals(), self._written, self._file.load()
            self.spending.add(
                SpendingTotals(
                    others.requests - before.requests, others.tokens - before.tokens, others.money - before.money
                )
            )
            self._written = self.spending.totals()
            if own != before:
                self._file.save(self._written)

    def load(self, key: str) -> JudgeReply | None:
        """The reply that was paid for before."""
        reply = None if self.cache is None else self.cache.load(key)
        if reply is not None:
            with self._lock:
                self.spending.cached += 1
        return reply

    def try_send(self) -> float:
        """Count one request and return 0, or return the seconds to wait first. Raises LostResourceError where the
        budget is spent."""
        with self._lock:
            now_s = self.clock.monotonic_s()
            wait_s = self.spending.wait_s(now_s)
            if wait_s <= 0:
                self.spending.send(now_s)
            return wait_s

    def keep(self, key: str, reply: JudgeReply) -> None:
        """Keep a reply and count its tokens. Raises LostResourceError, ResourceError."""
        if self.cache is not None:
            self.cache.save(key, reply)
        with self._lock:
            self.spending.receive(reply, self.clock.monotonic_s())


# -------------------------------------------------------------------------------------------------------------- retries

FIRST_WAIT_S = 0.5
"""Upper end of the first wait; it doubles with each attempt."""


def backoff_s(attempt: int, *, key: str, most_s: float, first_s: float = FIRST_WAIT_S) -> float:
    """Seconds to wait after attempt number `attempt` (from 1): uniform in [half, whole] of `first_s * 2^(attempt - 1)`.
    The draw is a function of the request's key and the attempt, so that requests that fail together come back apart."""
    whole = min(most_s, first_s * 2.0 ** min(attempt - 1, 30))
    return whole * (0.5 + 0.5 * float(uniforms(0, "judge backoff", key, attempt, count=1)[0]))


def wait_before_retry_s(attempt: int, *, key: str, most_s: float, retry_after_s: float | None) -> float | None:
    """Seconds to wait; None where the server asks for more than `most_s`: trying earlier would be rude and useless."""
    wait_s = backoff_s(attempt, key=key, most_s=most_s)
    if retry_after_s is None:
        return wait_s
    return None if retry_after_s > most_s else max(wait_s, retry_after_s)


def parse_retry_after(value: str | None, *, now_s: float) -> float | None:
    """Seconds of a `Retry-After` header: a number, or an HTTP date (RFC 9110, 10.2.3); None for anything else."""
    text = (value or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now_s)
    except (TypeError, ValueError, OverflowError):
        return None
