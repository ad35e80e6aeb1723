"""Tracking: what the folder of a run holds is sent to the trackers that its config names.

Belongs here: the table `[[track]]`, what is sent when, and the thread. A tracker follows the files of the run, so its
queue is `metrics.jsonl`: a slow or absent tracker costs no memory, loses nothing and stops no run; what it lacks at the
end, `hone track` sends by the same code.
"""

import hashlib
import importlib.util
import sys
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

from hone.core.clock import LongWork, long_work
from hone.core.errors import ConfigError, HoneError, UserCodeError, did_you_mean
from hone.process.user_files import check_reference, describe_error, load_reference, user_traceback
from hone.run.alarms import NO_CAUSE, read_diagnosis
from hone.run.job import TrackConfig
from hone.run.store.durable import writing
from hone.run.store.events import EVENTS_FILE
from hone.run.store.folder import CONFIG, MANIFEST
from hone.run.store.manifest import read_config, read_manifest
from hone.run.store.metrics import metric_catalogue, tail_metrics
from hone.run.store.records import RecordFile
from hone.run.store.rollouts import read_samples, rollout_files, rollout_kind
from hone.run.trackers import TRACKERS, EndState, MetricRow, TrackedRun, Tracker

BATCH_ROWS: Final = 200
"""Lines that are sent at a time."""
EVERY_S: Final = 5.0
"""Seconds between two looks at the run's files: line by line, following would take three times the processor time."""
FINISH_S: Final = 30.0
"""Longest wait, in seconds, for a tracker once the run has ended."""
RETRIES_S: Final = (1.0, 5.0, 30.0, 120.0)
"""Pauses after failures one after another, the last one from then on."""
AT: Final = "time/at_s"


def check_trackers(trackers: Sequence[TrackConfig]) -> None:
    """Raise ConfigError for unknown trackers, packages that are not installed, and classes that are not there."""
    faults: list[str] = []
    for place, one in enumerate(trackers):
        where = f'track.{place}.to = "{one.to}"'
        if one.to in TRACKERS:
            if importlib.util.find_spec(one.to) is None:
                faults.append(f"{where}: the package is not installed; fix: pip install {one.to}")
        elif ":" in one.to:
            try:
                check_reference(one.to, kind=f"track.{place}.to")
            except HoneError as fault:
                faults += fault.messages
        else:
            faults.append(f"{where} is not known{did_you_mean(one.to, list(TRACKERS))}; known: {', '.join(TRACKERS)}")
    places = [(one.to, one.project, one.place) for one in trackers]
    faults += [
        f'track names "{one[0]}" twice with one project and place' for one in sorted({*places}) if places.count(one) > 1
    ]
    if faults:
        raise ConfigError(*faults)


def _open_tracker(to: str) -> Tracker:
    """Make a tracker by its name or reference. Raises UserCodeError for a class that cannot be loaded."""
    made = TRACKERS[to]() if to in TRACKERS else cast("Callable[[], Tracker]", load_reference(to, kind="tracker"))()
    missing = [name for name in ("start", "log", "samples", "finish") if name not in dir(made)]
    if missing:
        raise ConfigError(
            f"tracker {to!r} has no {', '.join(missing)}; a tracker has the methods of hone.run.trackers.Tracker"
        )
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class _SentRecord:
    """What a tracker has been sent, `track/NAME.json`."""

    step: int
    cause: str = ""
    """Likely cause of its alarms, as the tracker shows it."""


@dataclass(slots=True, kw_only=True)
class RunFollower:
    """Sends what is new in the folder of a run to one tracker, in the thread that calls it."""

    folder: Path
    config: TrackConfig
    sent_step: int = 0
    """Last step whose metrics the tracker has."""
    _tracker: Tracker | None = None
    sent_cause: str = ""
    """Likely cause of the run's alarms that the tracker shows; empty before the first."""
    _events_bytes: int = 0
    """Bytes of the events when the cause was last looked for."""
    _offset: int = 0
    _waiting: list[tuple[int, Mapping[str, float]]] = field(default_factory=list[tuple[int, Mapping[str, float]]])

    @property
    def _record(self) -> RecordFile[_SentRecord]:
        own = hashlib.sha256(repr((self.config.to, self.config.project, self.config.place)).encode()).hexdigest()[:8]
        return RecordFile(f"track/{self.config.to.rpartition(':')[2]}_{own}.json", _SentRecord)

    def start(self) -> None:
        """Begin the run in the tracker, or go on with it after the last step that the tracker has."""
        settings = {key: setting.value for key, setting in read_config(self.folder / CONFIG).items()}
        name, created_at = str(settings["name"]), read_manifest(self.folder / MANIFEST).created_at
        own = f"{created_at} {name} {settings['recipe']} {settings['seed']}"
        tracker = _open_tracker(self.config.to)
        known_step = tracker.start(
            TrackedRun(
                folder=self.folder,
                name=name,
                identity=hashlib.sha256(own.encode()).hexdigest()[:16],
                project=self.config.project,
                place=self.config.place,
                settings=settings,
            )
        )
        with writing(self.folder / "track"):
            (self.folder / "track").mkdir(exist_ok=True)
        record = self._record.read(self.folder)
        self.sent_step = known_step if known_step is not None else record.step if record is not None else 0
        self.sent_cause = "" if record is None else record.cause
        self._tracker = tracker

    def send(self, last_step: int) -> None:
        """Send the lines after `sent_step` up to `last_step`, the answers that were saved up to the last of them, and
        the likely cause of the run's alarms where it has changed.

        Raises whatever the tracker raises; what was not sent is sent by the next call.
        """
        if self._tracker is None:
            self.start()
        assert self._tracker is not None
        at_s = self._send_lines(self._tracker, last_step)
        self._send_cause(self._tracker, at_s)

    def _send_lines(self, tracker: Tracker, last_step: int) -> float:
        """Send lines and answers; returns when the last of them was written."""
        lines, self._offset = tail_metrics(self.folder / "metrics.jsonl", self._offset)
        self._waiting += lines
        answers = self._answers()
        with long_work("lines sent", bisect_right(self._waiting, last_step, key=lambda line: line[0])) as work:
            return self._send_waiting(tracker, last_step, answers, work)

    def _send_waiting(self, tracker: Tracker, last_step: int, answers: Mapping[int, Path], work: LongWork) -> float:
        names, at_s = metric_catalogue().aliases[self.config.names], 0.0
        while True:
            del self._waiting[: bisect_right(self._waiting, self.sent_step, key=lambda line: line[0])]
            due, sampled_step = self._due(last_step, sorted(answers))
            if not due and sampled_step is None:
                return at_s
            rows = [
                MetricRow(
                    step,
                    metrics.get(AT, 0.0),
                    {names.get(name, name): value for name, value in metrics.items() if name != AT},
                )
                for step, metrics in due
            ]
            at_s = (due[-1] if due else self._waiting[0])[1].get(AT, 0.0)
            if rows:
                tracker.log(rows)
            if sampled_step is not None and (path := answers[sampled_step]).is_file():  # not thinned out meanwhile
                tracker.samples(sampled_step, at_s, read_samples(path))
            self.sent_step = due[-1][0] if sampled_step is None else sampled_step
            self._record.write(self.folder, _SentRecord(step=self.sent_step, cause=self.sent_cause))
            work.advance(len(due))

    def _send_cause(self, tracker: Tracker, at_s: float) -> None:
        """Send the cause that the run has written down, if it is another than the tracker's. The events are read only
        where there are new ones."""
        events = self.folder / EVENTS_FILE
        size = events.stat().st_size if events.exists() else 0
        if size == self._events_bytes or "conclude" not in dir(tracker):
            return
        cause = read_diagnosis(self.folder)
        words = cause.sentence if cause is not None else NO_CAUSE if self.sent_cause else ""
        if words != self.sent_cause:
            tracker.conclude(self.sent_step, at_s, words)
            self.sent_cause = words
            self._record.write(self.folder, _SentRecord(step=self.sent_step, cause=words))
        self._events_bytes = size

    def _due(self, last_step: int, answers: Sequence[int]) -> tuple[list[tuple[int, Mapping[str, float]]], int | None]:
        """The next lines to send together, and which of the steps of saved `answers` follows them, if any.

        Answers end a batch, because trackers want growing steps; their step need not have a line (`run.log_every`).
        """
        due = [line for line in self._waiting[:BATCH_ROWS] if line[0] <= last_step]
        sampled = next((step for step in answers if due and self.sent_step < step <= due[-1][0]), None)
        return due if sampled is None else [line for line in due if line[0] <= sampled], sampled

    def _answers(self) -> dict[int, Path]:
        """Files of the run's answers by step; none of a run that saves episodes."""
        files = rollout_files(self.folder)
        newest = next(reversed(files.values()), None)
        return {} if newest is None or rollout_kind(newest) != "answers" else files

    def finish(self, state: EndState) -> None:
        """End the run in the tracker."""
        if self._tracker is not None:
            self._tracker.finish(state)


class RunTracking:
    """The trackers of a running run, a thread each. Nothing that a tracker does ends or delays a step."""

    def __init__(self, folder: Path, configs: Sequence[TrackConfig], *, finish_s: float = FINISH_S) -> None:
        self._threads = [_TrackerThread(RunFollower(folder=folder, config=one)) for one in configs]
        self._finish_s = finish_s

    def complete(self, step: int) -> None:
        """The files of the run are whole up to `step`."""
        for thread in self._threads:
            thread.complete(step)

    def pop_notices(self) -> list[str]:
        """Notices for the user since the last call."""
        return [thread.notices.popleft() for thread in self._threads for _ in range(len(thread.notices))]

    def close(self, state: EndState) -> list[str]:
        """End the run in every tracker, together within `finish_s` seconds. Returns notices for the user."""
        for thread in self._threads:
            thread.end(state)
        deadline_s = time.monotonic() + self._finish_s
        notices: list[str] = []
        for thread in self._threads:
            if thread.is_begun:
                thread.join(max(0.0, deadline_s - time.monotonic()))
            notices += thread.closing_notices()
        return [*self.pop_notices(), *notices]


class _TrackerThread(threading.Thread):
    """Follows one run for one tracker: looks at its files now and then, and is patient after a failure."""

    def __init__(self, follower: RunFollower) -> None:
        super().__init__(name=f"tracker {follower.config.to}", daemon=True)  # one that hangs keeps no process alive
        self.follower = follower
        self.notices: deque[str] = deque()
        self.is_begun = False
        self._step = 0
        self._end: EndState | None = None
        self._has_end = threading.Event()
        self._is_ended = False

    def complete(self, step: int) -> None:
        self._step = step  # wakes nobody, so that it costs a step nothing
        if not self.is_begun:
            self.is_begun = True
            self.start()

    def end(self, state: EndState) -> None:
        self._end = state
        self._has_end.set()

    def closing_notices(self) -> list[str]:
        if not self.is_begun or self._is_ended:
            return []
        to, sent, folder = self.follower.config.to, self.follower.sent_step, self.follower.folder
        return [
            f"tracker {to} has the metrics up to step {sent} of {self._step} and was not closed; the run's folder has "
            f"them all: hone track {folder} --to {to} sends the rest"
        ]

    def run(self) -> None:
        failures, seen_step = 0, 0
        while True:
            end, step = self._end, self._step
            try:
                if end is not None or failures or step > seen_step:
                    self.follower.send(step)
                failures, seen_step = 0, step
                if end is not None:
                    self.follower.finish(end)
                    self._is_ended = True
                    return
            except Exception as fault:  # noqa: BLE001 - whatever a tracker raises, the run goes on
                failures += 1
                if failures == 1:
                    self.notices.append(
                        f"tracker {self.follower.config.to}: {describe_error(fault)}; the run goes on, and the metrics "
                        "are sent when it works again"
                    )
                if end is not None:
                    return
            self._has_end.wait(RETRIES_S[min(failures, len(RETRIES_S)) - 1] if failures else EVERY_S)


def send_run(folder: Path, config: TrackConfig) -> int:
    """Send a run's folder to a tracker, from the first step that it lacks. Returns the last step that it has then.

    Raises DataError for a folder that is no run, UserCodeError for what the tracker raises.
    """
    follower = RunFollower(folder=folder, config=config)
    try:
        follower.send(sys.maxsize)
        follower.finish("finished")
    except HoneError:
        raise
    except Exception as fault:
        raise UserCodeError(f"tracker {config.to}: {describe_error(fault)}", user_traceback(fault)) from fault
    return follower.sent_step
