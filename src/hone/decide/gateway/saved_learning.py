"""Checkpoints of what a service has learnt, so that a restart does not read its whole log.

FOLDER/NUMBER/     one checkpoint, whole or not there; the latest two are kept

A checkpoint is the exact state of every learner and of the joins that are open, after the log's records up to a
position. The decisions that are open stand in the log and are read from there. State of a checkpoint and the records
after it give the state of the whole log, to the bit. A checkpoint counts for nothing where the log is another one,
where units were erased since (what was learnt from them must go), and where the service file learns otherwise.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

import numpy as np

from hone.core.clock import Clock
from hone.core.decisions import Decision, DecisionRecord
from hone.core.errors import DataError, HoneError
from hone.core.state import State, array, integer, substate
from hone.decide.gateway.online_policies import JoinKey, OnlineJoiner, OnlinePolicies, TenantLearning
from hone.decide.log.protocol import DecisionLog, LoggedRecord
from hone.decide.rollout.router import end_position
from hone.run.store.codec import read_state, write_state
from hone.run.store.durable import failpoint, remove_tree, sync_path

EVERY_S: Final = 60.0
"""Seconds between two checkpoints."""
_KEPT: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _LogMark:
    """A place of the log, and how far the service was there."""

    position: int
    decisions: int
    """Decisions up to the position."""
    next_seq: Mapping[str, int]
    """Number of the next own record, by tenant."""


BEGIN: Final = _LogMark(position=0, decisions=0, next_seq={})


@dataclass(frozen=True, slots=True, kw_only=True)
class _SavedLearning:
    """A checkpoint that fits the log."""

    start: int
    """Records after this position, up to `position`, hold the open decisions and the latest answers."""
    position: int
    """Records after this position are learnt from."""
    tenants: State
    marks: tuple[_LogMark, ...]

    def open_ids(self) -> set[JoinKey]:
        """Decisions whose windows are open."""
        return {
            (tenant, one)
            for tenant in self.tenants
            for one in cast("list[str]", substate(self.tenants, tenant)["open"])
        }

    def restore(
        self, policies: OnlinePolicies, found: Mapping[JoinKey, Decision], last: Mapping[str, Decision]
    ) -> None:
        """Put the learners back; `found` are the open decisions, `last` the latest one of each tenant.

        Raises DataError for a state of another model.
        """
        for tenant in self.tenants:
            learning, saved = policies.tenants[tenant].learning, substate(self.tenants, tenant)
            if learning is None:
                raise DataError(f"tenant {tenant!r} does not learn")
            learning.learner.restore(substate(saved, "learner"))
            _restore_joins(learning.joiner, saved, tenant, found)
            if tenant in last:
                learning.last = last[tenant].context, last[tenant].actions


@dataclass(slots=True, eq=False, kw_only=True)
class LearningCheckpoints:
    """Listener of a service that saves its learning; made before the log is read, so that it counts all records."""

    folder: Path
    log: DecisionLog
    policies: OnlinePolicies
    source: str
    """Name of the service as the writer of records."""
    digest: str
    """Hash of everything in the service file that learning depends on."""
    remember: int
    """Latest decisions whose answers a restart needs."""
    waiting: Callable[[], int]
    """Records that are observed and not yet in the log."""
    clock: Clock
    tell: Callable[[str, str], None]
    marks: list[_LogMark] = field(default_factory=lambda: [BEGIN])
    observed: int = 0
    """Records since the start, those that were read from the log included."""
    decisions: int = 0
    _next_seq: dict[str, int] = field(default_factory=dict[str, int])
    _before: int = 0
    """Records of the log that were not observed: the checkpoint has them, or they have no content any more."""
    _erased: int = 0
    """Records of the log that were erased at the start."""
    _saved: int = 0
    """`observed` at the last checkpoint."""
    _next_s: float = 0.0
    _disagrees: bool = False
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "learning"))
    _writing: Future[None] | None = None

    def observe(self, record: DecisionRecord) -> None:
        """Count a record."""
        self.observed += 1
        if isinstance(record, Decision):
            self.decisions += 1
            if record.source == self.source:
                self._next_seq[record.tenant] = record.seq + 1

    def tick(self, now_s: float) -> None:
        """Save, if it is time and something was learnt."""
        del now_s
        if self.clock.monotonic_s() < self._next_s:
            return
        self._next_s = self.clock.monotonic_s() + EVERY_S
        if self.observed > self._saved and (self._writing is None or self._writing.done()):
            self.save()

    def started(self) -> None:
        """Begin to save: the log as it was at `load` has been read."""
        self._before -= self.observed
        self._next_s = self.clock.monotonic_s() + EVERY_S

    def save(self) -> None:
        """Save what was learnt, on a thread; without effect while the log has other records than were learnt from."""
        try:
            state = self._state()
        except HoneError as error:
            self.tell("learning_unsaved", str(error))
            return
        if state is not None:
            self._saved = self.observed
            self._writing = self._thread.submit(self._write, state)

    def close(self) -> None:
        """Save, and wait until it is written; a service that did not start saves nothing."""
        if self._next_s > 0.0 and self.observed > self._saved:
            self.save()
        self._thread.shutdown(wait=True)

    def load(self) -> _SavedLearning | None:
        """The latest checkpoint that fits; None: the whole log must be read. Raises as the log."""
        self._before, self._erased = _records(self.log)
        for folder in reversed(self._folders()):
            try:
                saved = self._fitting(read_state(folder))
            except HoneError as error:
                self.tell("learning_unreadable", f"{folder}: {error}; an older one, or the whole log, is read")
                continue
            if saved is None:
                return None
            self.marks, self._next_seq = list(saved.marks), dict(saved.marks[-1].next_seq)
            self.decisions = saved.marks[-1].decisions
            return saved
        return None

    def _state(self) -> "State | None":
        """The state, copied; None while records wait, where another process writes to the log, and once a unit was
        erased: what was learnt from it goes at the next start."""
        held, erased = _records(self.log)
        if erased != self._erased:
            return None
        if self.waiting() or held != self._before + self.observed:
            if not self.waiting() and not self._disagrees:
                self._disagrees = True
                message = (
                    f"the log has {held} records, {self._before + self.observed} were learnt from: another process "
                )
                self.tell("learning_unsaved", message + "writes to it, or a reward was repeated; a restart reads more")
            return None
        position = end_position(self.log)
        last = self.log.read(position - 1, 1) if position else []
        if not last:
            return None
        mark = _LogMark(position=position, decisions=self.decisions, next_seq=dict(self._next_seq))
        learning = {name: one.learning for name, one in self.policies.tenants.items() if one.learning is not None}
        start = self._start(learning)
        self.marks = [one for one in self.marks if one.position >= start.position] + [mark]
        tenants: State = {name: _learning_state(one) for name, one in learning.items()}
        return {
            "digest": self.digest, "records": held, "erased": erased, "start": start.position, "position": position,
            "last": _identity(last[0]), "tenants": tenants,
            "marks": {
                str(place): {
                    "position": one.position, "decisions": one.decisions, "tenants": list(one.next_seq),
                    "next_seq": list(one.next_seq.values()),
                } for place, one in enumerate(self.marks)
            },
        }  # fmt: skip

    def _start(self, learning: Mapping[str, TenantLearning]) -> _LogMark:
        """The latest mark before every open decision and before the latest answers."""
        oldest = {name: one.joiner.oldest() for name, one in learning.items()}
        foreign = any(one is not None and one.source != self.source for one in oldest.values())
        fits = [
            mark for mark in self.marks
            if mark.decisions <= self.decisions - self.remember
            and all(one is None or mark.next_seq.get(name, 0) <= one.seq for name, one in oldest.items())
        ]  # fmt: skip
        return fits[-1] if fits and not foreign else self.marks[0]

    def _write(self, state: State) -> None:
        folders = self._folders()
        place = self.folder / f"{int(folders[-1].name) + 1 if folders else 1:08d}"
        beside = place.with_suffix(".new")
        try:
            if beside.exists():
                remove_tree(beside)
            beside.mkdir(parents=True)
            write_state(beside, state)
            failpoint("learning.before_rename")
            beside.rename(place)
            sync_path(self.folder)
            for old in self._folders()[:-_KEPT]:
                remove_tree(old)
        except (HoneError, OSError) as error:
            self.tell("learning_unsaved", f"{place}: {error}")

    def _folders(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("*") if path.name.isdigit())

    def _fitting(self, state: State) -> _SavedLearning | None:
        position, (held, erased) = integer(state, "position"), _records(self.log)
        if (state["digest"], integer(state, "erased")) != (self.digest, erased) or integer(state, "records") > held:
            return None
        here = self.log.read(position - 1, 1)
        if not here or here[0].position != position or _identity(here[0]) != state["last"]:
            return None
        marks = substate(state, "marks")
        return _SavedLearning(
            start=integer(state, "start"), position=position, tenants=substate(state, "tenants"),
            marks=tuple(_mark(substate(marks, name)) for name in marks),
        )  # fmt: skip


def _records(log: DecisionLog) -> tuple[int, int]:
    """Records that a log has taken, those without content included; and those that were erased."""
    counts = log.counts()
    return counts.decisions + counts.outcomes + counts.erased + counts.retired, counts.erased


def _identity(logged: LoggedRecord) -> list[str]:
    record = logged.record
    return [record.tenant, record.source, str(record.seq), repr(record.at_s)]


def _mark(state: State) -> _LogMark:
    names, numbers = cast("list[str]", state["tenants"]), cast("list[int]", state["next_seq"])
    position, decisions = integer(state, "position"), integer(state, "decisions")
    return _LogMark(position=position, decisions=decisions, next_seq=dict(zip(names, numbers, strict=True)))


def _learning_state(learning: TenantLearning) -> State:
    """The learner, and its joins: open decisions by their ids, with the reward so far (NaN: none)."""
    model = learning.learner.state()
    arrays = {name: cast("np.ndarray", one).copy() for name, one in substate(model, "model").items()}
    joiner = learning.joiner
    held = [(key[1], value) for key, value in joiner.open_values()]
    early = [(key[1], value, at_s) for key, waiting in joiner.early_rewards() for value, at_s in waiting]
    counts = joiner.counts
    return {
        "learner": {**model, "model": cast("State", arrays)},
        "open": [one for one, _ in held],
        "values": np.array([np.nan if value is None else value for _, value in held]),
        "early": [one for one, _, _ in early],
        "early_rewards": np.array([(value, at_s) for _, value, at_s in early]).reshape(-1, 2),
        "counts": [counts.joined, counts.defaulted, counts.evicted, counts.early, counts.late],
    }


def _restore_joins(joiner: OnlineJoiner, saved: State, tenant: str, found: Mapping[JoinKey, Decision]) -> None:
    values = array(saved, "values").astype(np.float64)
    names = cast("list[str]", saved["open"])
    for name, value in zip(names, values, strict=True):
        decision = found.get((tenant, name))
        if decision is not None:  # else its content moved to an archive
            joiner.reopen(decision, None if np.isnan(value) else float(value))
    rewards = array(saved, "early_rewards").astype(np.float64)
    for name, (value, at_s) in zip(cast("list[str]", saved["early"]), rewards, strict=True):
        joiner.wait_again((tenant, name), float(value), float(at_s))
    joined, defaulted, evicted, early, late = cast("list[int]", saved["counts"])
    counts = joiner.counts
    counts.joined, counts.defaulted, counts.evicted, counts.early, counts.late = joined, defaulted, evicted, early, late
