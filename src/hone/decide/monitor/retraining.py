"""Retraining: a job becomes a frozen view of the log, a `hone train` in a process of its own, and a candidate version
with evidence from decisions that it was not trained on."""

import json
import shutil
import sqlite3
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Literal

import numpy as np

from hone.core.clock import Clock
from hone.core.decisions import DecisionPolicy, DecisionTable, Evidence, Verdict
from hone.core.errors import DataError, HoneError, ResourceError
from hone.decide.bandits.saving import open_decision_policy
from hone.decide.estimators.terms import LoggedFeedback
from hone.decide.evaluate.off_policy import LOGGED, estimate_policies, logged_feedback
from hone.decide.joins.parquet import freeze_view, frozen_hash, is_frozen_view
from hone.decide.joins.view import DecisionView, take_decisions
from hone.decide.monitor.config import RetrainConfig
from hone.decide.monitor.response import DriftAction
from hone.decide.registry import VersionOrigin, VersionRegistry
from hone.process.child import ChildLostError, ChildProcess, LineParser
from hone.run.store.folder import open_run

# ----------------------------------------------------------------------------------------------------------------- jobs


JobState = Literal["queued", "leased", "done", "failed", "dropped"]
_SCHEMA = """
create table if not exists jobs (
  id text primary key, tenant text not null, work text not null, state text not null, attempt integer not null,
  worker text not null, lease_until_s real not null, submitted_s real not null, result text not null
) without rowid
"""
_COLUMNS = "id, tenant, work, state, attempt, worker, lease_until_s, result"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A job as the queue knows it."""

    id: str
    tenant: str
    work: Mapping[str, str]
    """Description of the work, by name."""
    state: JobState
    attempt: int
    """Number of claims; the fencing token of the lease."""
    worker: str
    lease_until_s: float
    result: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class JobQueue:
    """Queue in a SQLite file. Holds no connection: each call is one transaction."""

    path: Path

    def submit(self, job: str, *, tenant: str, work: Mapping[str, str], at_s: float) -> bool:
        """Add a job; False if the identity is known, or if the tenant has a job that is not finished."""
        with self._transaction() as connection:
            cursor = connection.execute(
                "insert or ignore into jobs select ?, ?, ?, 'queued', 0, '', 0, ?, '{}' where not exists "
                "(select 1 from jobs where tenant = ? and state in ('queued', 'leased'))",
                (job, tenant, json.dumps(dict(work)), at_s, tenant),
            )
            return cursor.rowcount == 1

    def claim(self, worker: str, *, now_s: float, lease_s: float) -> QueuedJob | None:
        """Lease the oldest job that is queued, or whose lease has run out; None: there is none."""
        with self._transaction() as connection:
            row = connection.execute(
                "update jobs set state = 'leased', attempt = attempt + 1, worker = ?, lease_until_s = ? where id = "
                "(select id from jobs where state = 'queued' or (state = 'leased' and lease_until_s < ?) "
                f"order by submitted_s, id limit 1) returning {_COLUMNS}",
                (worker, now_s + lease_s, now_s),
            ).fetchone()
        return None if row is None else _job(row)

    def renew(self, job: QueuedJob, *, until_s: float) -> None:
        """Extend a lease. Raises DataError if another worker holds the job."""
        self._change(job, "state = 'leased', lease_until_s = ?", (until_s,))

    def finish(self, job: QueuedJob, result: Mapping[str, str], *, failed: bool = False) -> None:
        """Write the result. Raises DataError if another worker holds the job: nothing is written then."""
        state = "failed" if failed else "done"
        self._change(job, "state = ?, result = ?", (state, json.dumps(dict(result))))

    def drop(self, tenant: str, *, reason: str) -> int:
        """Drop a tenant's jobs that are not finished -> how many. A worker that holds one loses it, and its result."""
        with self._transaction() as connection:
            cursor = connection.execute(
                "update jobs set state = 'dropped', result = ? where tenant = ? and state in ('queued', 'leased')",
                (json.dumps({"words": reason}), tenant),
            )
            return cursor.rowcount

    def jobs(self) -> tuple[QueuedJob, ...]:
        """All jobs, oldest first."""
        with self._transaction() as connection:
            rows = connection.execute(f"select {_COLUMNS} from jobs order by submitted_s, id").fetchall()
        return tuple(map(_job, rows))

    def _change(self, job: QueuedJob, assignment: str, values: tuple[object, ...]) -> None:
        with self._transaction() as connection:
            cursor = connection.execute(
                f"update jobs set {assignment} where id = ? and attempt = ? and state = 'leased'",
                (*values, job.id, job.attempt),
            )
            if cursor.rowcount != 1:
                raise DataError(
                    f"job {job.id} of {self.path} is no longer held by {job.worker!r} (claim {job.attempt}): its lease "
                    "ran out and another worker took it, or a later alarm of its tenant dropped it; this worker's "
                    "result is dropped"
                )

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        try:
            connection = sqlite3.connect(self.path, timeout=30, isolation_level=None)
        except sqlite3.Error as error:
            raise ResourceError(f"cannot open the queue {self.path}: {error}") from None
        try:
            connection.execute("begin immediate")
            connection.execute(_SCHEMA)
            yield connection
            connection.execute("commit")
        except sqlite3.DatabaseError as error:
            raise ResourceError(f"cannot use the queue {self.path}: {error}") from error
        finally:
            connection.close()

    def submit_retraining(self, action: DriftAction, *, service: str, at_s: float) -> bool:
        """Queue the retraining that drift asks for, and drop an unfinished one of an earlier alarm: its rewards are
        those of two worlds. False if this very job is known."""
        job = f"{service}-{action.tenant}-{int(at_s * 1000)}"
        if any(known.id == job for known in self.jobs()):
            return False
        self.drop(action.tenant, reason=f"superseded by job {job}, of a later alarm")
        work = {"since_s": repr(action.since_s), "words": action.evidence.words}
        return self.submit(job, tenant=action.tenant, work=work, at_s=at_s)


def _job(row: tuple[str, str, str, JobState, int, str, float, str]) -> QueuedJob:
    return QueuedJob(
        id=row[0], tenant=row[1], work=json.loads(row[2]), state=row[3], attempt=row[4], worker=row[5],
        lease_until_s=row[6], result=json.loads(row[7]),
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ candidate


NAME = "candidate"
SPREAD = 1e-9
"""Largest difference of probabilities over all contexts at which a policy counts as constant."""


def candidate_evidence(
    table: DecisionTable, candidate: DecisionPolicy, *, minimum_gain: float, made_by: str, at_s: float
) -> tuple[Evidence, ...]:
    """Three rows of evidence: `sound`, `offline` and `paired`; a candidate that cannot be estimated has `sound` alone.

    `sound` refuses probabilities that are no distribution, and those that are equal in all of several contexts.
    `paired` compares with the policy that wrote the log, on the same rows: `ok` if the lower end of the difference is
    at least `minimum_gain`, `refuse` if the upper end is below it.
    """
    try:
        logged = logged_feedback(table, candidate, name=NAME)
        report = estimate_policies(table, {NAME: candidate})
    except HoneError as error:
        return (_row("sound", "refuse", f"the candidate cannot be judged: {error}", made_by, at_s),)
    sound = _soundness(logged, made_by, at_s)
    offline = report.of(NAME).evidence(report, made_by=made_by, at_s=at_s)
    difference = next(one for one in report.differences if (one.first, one.second) == (LOGGED, NAME))
    estimate = difference.estimate
    verdict: Verdict = "weak"
    if estimate.verdict == "refuse" or estimate.high < minimum_gain:
        verdict = "refuse"
    elif estimate.low >= minimum_gain:
        verdict = "ok"
    words = f"{difference.words}; at least {minimum_gain:+.4g} is wanted"
    paired = Evidence(
        kind="paired", verdict=verdict, words=words, value=estimate.value, low=estimate.low, high=estimate.high,
        count=estimate.n, made_by=made_by, at_s=at_s,
    )  # fmt: skip
    return (sound, offline, paired)


def refusal_words(evidence: tuple[Evidence, ...]) -> str:
    """The reasons why a candidate may not be shipped; empty: none."""
    return "; ".join(f"{row.kind}: {row.words}" for row in evidence if row.verdict != "ok")


def _soundness(logged: LoggedFeedback, made_by: str, at_s: float) -> Evidence:
    probability = np.exp(logged.target_logp)
    several = len(np.unique(logged.contexts, axis=0)) > 1 and probability.shape[1] > 1
    if several and float(np.ptp(probability, axis=0).max()) < SPREAD:
        words = "the candidate has the same distribution in every context: it has learnt nothing from them"
        return _row("sound", "refuse", words, made_by, at_s)
    words = f"a distribution in each of {len(logged)} contexts, different by context"
    return _row("sound", "ok", words, made_by, at_s, count=len(logged))


def _row(kind: str, verdict: Verdict, words: str, made_by: str, at_s: float, count: int = 0) -> Evidence:
    return Evidence(kind=kind, verdict=verdict, words=words, count=count, made_by=made_by, at_s=at_s)


# ----------------------------------------------------------------------------------------------------- training process


CHILD = "hone.decide.monitor.training_child"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingEnd:
    """End of a training process."""

    state: Literal["finished", "failed", "late"]
    words: str
    """Reason of the end, with the last output unless it finished."""
    seconds: float


def run_training(
    arguments: Sequence[str], *, timeout_s: float, memory_bytes: int = 0, clock: Clock,
    abandoned: Callable[[], bool] = lambda: False,
) -> TrainingEnd:  # fmt: skip
    """Run `hone train ARGUMENTS`. `abandoned` is asked many times a second; once it is true, the process is killed.

    Raises ResourceError if no process can be started.
    """
    begin = clock.monotonic_s()
    limits = (str(memory_bytes), "train", *arguments)
    child = ChildProcess(CHILD, LineParser(), clock=clock, arguments=limits, abandoned=abandoned)
    try:
        child.start()
        code = json.loads(child.receive(timeout_s))["code"]
        words = "finished" if code == 0 else f"hone train ended with exit code {code}{child.last_output()}"
        state = "finished" if code == 0 else "failed"
    except ChildLostError as error:
        state, words = "late" if error.timeout else "failed", str(error)
    finally:
        child.kill()
    return TrainingEnd(state=state, words=words, seconds=clock.monotonic_s() - begin)


# ----------------------------------------------------------------------------------------------------------- retraining


JUDGED_SHARE = 0.5
"""Share of the units whose decisions judge the candidate and are not trained on."""
LEASE_S = 30.0
RUN = "candidate"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrainParts:
    """Parts of a retraining beside its job."""

    service: str
    config: RetrainConfig
    folder: Path
    """Folder of the jobs' views and runs."""
    registry: VersionRegistry
    view: Callable[[str], DecisionView]
    """The joined log of a tenant as it is known now."""
    clock: Clock

    def work_once(self, queue: JobQueue, *, worker: str) -> QueuedJob | None:
        """Claim a job, carry it out and write its result; None: there was none. A failure is the result of its job."""
        job = queue.claim(worker, now_s=self.clock.now_s(), lease_s=LEASE_S)
        if job is None:
            return None
        lease = _JobLease(queue, job, self.clock)
        try:
            done = self.retrain(job, abandoned=lease.lost, held=lambda: not lease.lost(at_once=True))
            result = {"version": done.version, "words": done.words}
            refused = any(row.verdict != "ok" for row in done.evidence)
            queue.finish(job, {**result, "refused": "yes" if refused else "no"})
        except HoneError as error:
            if not lease.lost(at_once=True):
                queue.finish(job, {"words": str(error)}, failed=True)
        return job

    def retrain(
        self,
        job: QueuedJob,
        *,
        abandoned: Callable[[], bool] = lambda: False,
        held: Callable[[], bool] = lambda: True,
    ) -> "RetrainResult":
        """Train a candidate on the decisions since the change and judge it on those of other units.

        `abandoned` ends the training; a version is added only if the job is still `held` after it.

        Raises DataError for too few decisions and for a training that does not finish, with its last output.
        """
        folder = self.folder / job.id
        trained, judged = split_view(self.view(job.tenant), since_s=float(job.work["since_s"]))
        if min(len(trained.closed()), len(judged.closed())) < 2:
            raise DataError(
                f"job {job.id}: {len(trained.table)} decisions to train on and {len(judged.table)} to judge by since "
                f"{job.work['since_s']} s are too few; wait for more rewards"
            )
        view, runs = folder / "view", folder / f"attempt-{job.attempt}"
        digest = frozen_hash(view) if is_frozen_view(view) else freeze_view(trained, view)
        resumed = _take_over_run(folder, job.attempt, self.clock)
        config = self.config
        end = run_training(
            (config.config, "--runs", str(runs), "--name", RUN, f"{config.log_key}={view}", *resumed),
            timeout_s=config.timeout_s, memory_bytes=config.memory_bytes, clock=self.clock, abandoned=abandoned,
        )  # fmt: skip
        if end.state != "finished":
            raise DataError(f"job {job.id}: training on {len(trained.table)} decisions failed: {end.words}")
        if not held():
            raise DataError(f"job {job.id} was dropped or taken over while it trained; no version is added")
        run, at_s = runs / RUN, self.clock.now_s()
        origin = VersionOrigin(
            config=Path(config.config).read_text(encoding="utf-8"), parent=self.registry.live(self.service), view=digest
        )  # fmt: skip
        files = _policy_folder(run, self.clock)
        version = self.registry.add(files, origin, at_s=at_s, made_by=job.id).id
        evidence = candidate_evidence(
            judged.closed(), open_decision_policy(run), minimum_gain=config.minimum_gain, made_by=job.id, at_s=at_s
        )  # fmt: skip
        for row in evidence:
            self.registry.add_evidence(version, row)
        return RetrainResult(version=version, evidence=evidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrainResult:
    """End of a retraining that trained a policy."""

    version: str
    evidence: tuple[Evidence, ...]

    @property
    def words(self) -> str:
        """The judgement in one sentence."""
        refused = refusal_words(self.evidence)
        return f"version {self.version} is refused: {refused}" if refused else f"version {self.version} may be shipped"


def _take_over_run(folder: Path, attempt: int, clock: Clock) -> tuple[str, ...]:
    """Copy the run of the latest attempt that left a checkpoint into this attempt's folder -> the options of
    `hone train` that go on from it. A copy, as a worker that was only stopped may still write into its own."""
    for earlier in range(attempt - 1, 0, -1):
        run = folder / f"attempt-{earlier}" / RUN
        try:
            open_run(run, clock=clock).checkpoints().newest_intact()
        except DataError:  # it left none
            continue
        shutil.copytree(run, folder / f"attempt-{attempt}" / RUN, ignore=shutil.ignore_patterns("lock"))
        return ("--resume",)
    return ()


def split_view(view: DecisionView, *, since_s: float) -> tuple[DecisionView, DecisionView]:
    """The decisions from `since_s` on, apart by unit: those to train on, and those to judge by.

    A unit's side is a hash of its name, so that it is the same in every view.
    """
    recent = view.table.at_s >= since_s
    hashes = (blake2b(unit.encode(), digest_size=8, person=b"hone-retrain").digest() for unit in view.table.units)
    judged = np.array([int.from_bytes(one, "big") * 2.0**-64 < JUDGED_SHARE for one in hashes], np.bool_)
    return _rows_of(view, np.flatnonzero(recent & ~judged)), _rows_of(view, np.flatnonzero(recent & judged))


def _rows_of(view: DecisionView, rows: np.ndarray) -> DecisionView:
    return replace(
        view, table=take_decisions(view.table, rows), first_delay_s=view.first_delay_s[rows],
        reward_so_far=view.reward_so_far[rows], corrected=view.corrected[rows],
    )  # fmt: skip


class _JobLease:
    """Lease of a job, renewed at a third of its length while the work goes on."""

    def __init__(self, queue: JobQueue, job: QueuedJob, clock: Clock) -> None:
        self._queue, self._job, self._clock = queue, job, clock
        self._renewed_s, self._lost = clock.now_s(), False

    def lost(self, *, at_once: bool = False) -> bool:
        """True once another worker holds the job, or it was dropped: known at a third of the lease, or `at_once`."""
        now_s = self._clock.now_s()
        if not self._lost and (at_once or now_s - self._renewed_s > LEASE_S / 3):
            try:
                self._queue.renew(self._job, until_s=now_s + LEASE_S)
                self._renewed_s = now_s
            except DataError:
                self._lost = True
        return self._lost


def _policy_folder(run: Path, clock: Clock) -> Path:
    """Files of a run's newest policy, which become the version."""
    return open_run(run, clock=clock).checkpoints().newest_policy().policy_folder
