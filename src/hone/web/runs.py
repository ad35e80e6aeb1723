"""List of runs: which there are, what state each is in, its score, its alarms and its settings.

Belongs here: finding runs below a folder, and the figures of one row of the list. Ids are looked up in the listing
and never joined to a path; a link that leads out of the folder is left out. Figures come from `hone.evaluate` and the
files of the run. A row is kept until one of its files changes.
"""

import json
import math
import os
import re
import socket
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, cast

import numpy as np

from hone.core.clock import Clock
from hone.core.errors import DataError, HoneError
from hone.core.strict_json import Json
from hone.estimators.across_runs import interquartile_mean
from hone.run.alarms import MIN_STALL_S, STALL_STEPS, Diagnosis, read_alarms, read_diagnosis
from hone.run.store.durable import read_json_object, replace_file, to_json
from hone.run.store.evaluations import EVALUATIONS, EvaluationScore, read_evaluations
from hone.run.store.events import EVENTS_FILE, RunEvent, read_events
from hone.run.store.folder import CONFIG, LOCK, MANIFEST
from hone.run.store.manifest import read_config, read_manifest
from hone.web.columns import CACHED_BYTES, RunColumns
from hone.web.series import bucket_edges, bucketed

RunState = Literal["running", "stalled", "finished", "interrupted", "crashed", "diverged"]
_DEPTH: Final = 3
"""Levels of folders below the root that may hold runs: pipelines and sweeps have theirs one or two further down."""
_SKIPPED: Final = frozenset({"checkpoints", "samples", "rollouts", "evaluation"})
_SPARK_POINTS: Final = 48
_STEP_SECONDS: Final = "time/step_s"
_LOG_BYTES: Final = 64 << 10
_FILES: Final = (MANIFEST, CONFIG, "metrics.jsonl", EVALUATIONS, EVENTS_FILE, "log.txt")


# ---------------------------------------------------------------------------------------------------------------- state


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFacts:
    """What is known of a run's process and its files."""

    held: bool
    """A process holds the run's lock."""
    step: int
    steps: int
    """Steps of the config; 0: unknown."""
    idle_s: float
    """Seconds since the last line of metrics, or since the run was made."""
    median_step_s: float
    """NaN if unknown."""
    last: str
    """How the process last ended, by its last event about its life, or the last lines of its log; empty if unknown."""


def run_state(facts: StateFacts) -> RunState:
    """State of a run: running until five median steps (at least a minute) bring no line."""
    if facts.held:
        patience = STALL_STEPS * facts.median_step_s if math.isfinite(facts.median_step_s) else 0.0
        return "stalled" if facts.idle_s > max(MIN_STALL_S, patience) else "running"
    if (facts.steps and facts.step >= facts.steps) or facts.last == "finish":
        return "finished"
    if "diverged" in facts.last:
        return "diverged"
    return "crashed" if "failure" in facts.last else "interrupted"


def _how_it_ended(folder: Path, events: Sequence[RunEvent]) -> str:
    life = [one for one in events if one.kind in ("start", "resume", "failure", "stop", "finish")]
    if life:
        kind, words = life[-1].kind, f"{life[-1].words} {life[-1].data.get('error', '')}".lower()
        if kind in ("start", "resume"):  # nobody holds the lock, and no last word: killed
            return "failure"
        return "failure diverged" if kind == "failure" and "diverge" in words else kind
    if any(folder.glob("diverged*")):
        return "diverged"
    lines = last_lines(folder / "log.txt", 12)
    if any(re.search(r" finished step \d+$", line) for line in lines):
        return "finish"
    return "failure" if lines and " ERROR " in lines[-1] else ""


def last_lines(path: Path, count: int) -> list[str]:
    """Last lines of a text file, from its last 64 KiB; none without the file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES))
            return file.read().decode("utf-8", "replace").splitlines()[-count:]
    except OSError:
        return []


class HeldLocks:
    """Locks that processes of this machine hold. Nothing is locked to find out: a trainer that starts at that moment
    would find its run in use."""

    def __init__(self, table: Path = Path("/proc/locks")) -> None:
        self._inodes: set[str] | None = None
        """`major:minor:inode` of each lock; None where the system has no such list, unlike an empty one."""
        try:
            text = table.read_text(encoding="ascii", errors="replace")
        except OSError:
            return
        self._inodes = {match[1] for match in re.finditer(r"FLOCK .* ([0-9a-f]+:[0-9a-f]+:\d+) ", text)}

    def holds(self, lock: Path) -> bool:
        """True if a process holds the lock; by the holder's process number where the system lists no locks."""
        try:
            status = lock.stat()
        except OSError:
            return False
        key = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        if self._inodes is None:
            return _holder_lives(lock)
        # filesystems of layers tell the device of a layer
        return key in self._inodes or any(entry.endswith(f":{status.st_ino}") for entry in self._inodes)


def _holder_lives(lock: Path) -> bool:
    try:
        holder = read_json_object(lock)
    except DataError:
        return False
    pid = holder.get("pid")
    if not isinstance(pid, int) or holder.get("host") != socket.gethostname():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


# --------------------------------------------------------------------------------------------------------------- alarms


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmState:
    """An alarm of a run: raised, or ended by itself."""

    name: str
    level: str
    """`amber` or `red`."""
    raised: bool
    step: int
    """Step at which it got this level, or ended."""
    words: str
    """Its evidence."""
    remedy: str


def alarm_states(folder: Path, events: Sequence[RunEvent]) -> tuple[list[AlarmState], Diagnosis | None]:
    """Alarms of a run as `hone show --alarms` tells them, and those that ended: the cause first, then raised and red
    ones; and that cause.

    A run of an earlier version, which wrote no events, is judged by its metrics if they are few enough.
    """
    path = folder / "metrics.jsonl"
    if not path.exists() or (not events and path.stat().st_size > CACHED_BYTES):
        return [], None
    raised_now = read_alarms(folder)
    cause = read_diagnosis(folder) if raised_now else None
    states = [
        AlarmState(name=one.name, level=one.level, raised=True, step=one.step, words=one.evidence, remedy=one.advice)
        for one in raised_now
    ]
    raised = {one.name for one in states}
    last = {str(one.data.get("alarm")): one for one in events if one.kind == "alarm"}
    if cause is not None:
        states.sort(key=lambda one: one.name != cause.alarm)
    ended = [
        AlarmState(
            name=name, level=str(one.data.get("level", "amber")), raised=False, step=one.step,
            words=str(one.data.get("evidence", "")), remedy="",
        )
        for name, one in last.items()
        if name not in raised
    ]  # fmt: skip
    return [*states, *ended], cause


# ------------------------------------------------------------------------------------------------------------- one row


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run in the list. NaN stands for an unknown number."""

    id: str
    name: str
    recipe: str
    created_at: str
    seed: int | None
    group: str
    """Runs of one value differ in their seed alone."""
    step: int
    steps: int
    median_step_s: float
    last_line_s: float
    """Wall clock of the newest line."""
    how_it_ended: str
    score: float
    low: float
    high: float
    score_is: str
    """Meaning of the score, in words."""
    spark: tuple[float, ...]
    alarms: tuple[AlarmState, ...]
    settings: Mapping[str, Json]
    fault: str = ""
    """Reason why the folder cannot be read."""
    state: RunState = "interrupted"
    left_s: float = math.nan
    """Seconds to the last step, for a running one."""
    diagnosis: Diagnosis | None = None
    """The cause of the alarms that are raised."""


@cache
def load_figures() -> Any:  # noqa: ANN401 - a module
    """The module of final scores, imported on use: it takes a second."""
    from hone.evaluate import comparison  # noqa: PLC0415

    return comparison


def read_row(folder: Path, columns: RunColumns, run_id: str) -> RunRow:
    """Read a run's row from its files; a folder that cannot be read has a row with the reason."""
    try:
        return _read_row(folder, columns, run_id)
    except HoneError as error:
        return RunRow(
            id=run_id, name=folder.name, recipe="", created_at="", seed=None, group=run_id, step=0, steps=0,
            median_step_s=math.nan, last_line_s=math.nan, how_it_ended="failure", score=math.nan, low=math.nan,
            high=math.nan, score_is="", spark=(), alarms=(), settings={}, fault="; ".join(error.messages),
        )  # fmt: skip


def _read_row(folder: Path, columns: RunColumns, run_id: str) -> RunRow:
    manifest = read_manifest(folder / MANIFEST)
    settings = {key: one.value for key, one in read_config(folder / CONFIG).items()}
    columns.refresh()
    events = read_events(folder).events
    alarms, diagnosis = alarm_states(folder, events)
    comparison = load_figures()
    known = comparison.SCORE_METRICS
    score, score_is = comparison.final_score(folder, columns.metric_columns(list(known)), "")
    low, high = _interval(read_evaluations(folder)[0], columns, score)
    metric = next((name for name in known if name in columns.names), "")
    curve = columns.column(metric) if metric else np.zeros(0)
    curve = np.asarray(curve[np.isfinite(curve)])
    metrics_path = folder / "metrics.jsonl"
    newest = metrics_path if metrics_path.exists() else folder / MANIFEST
    steps, seed = settings.get("steps"), settings.get("seed")
    kept = {key: value for key, value in settings.items() if not comparison.IGNORED_KEYS.match(key)}
    return RunRow(
        id=run_id,
        name=folder.name,
        recipe=manifest.metadata.recipe,
        created_at=manifest.created_at,
        seed=seed if isinstance(seed, int) else None,
        group=json.dumps([manifest.metadata.recipe, comparison.SEED_ENDING.sub("", folder.name), _text(kept)]),
        step=int(columns.steps[-1]) if columns.rows else 0,
        steps=steps if isinstance(steps, int) else 0,
        median_step_s=_median_step_s(columns),
        last_line_s=newest.stat().st_mtime,
        how_it_ended=_how_it_ended(folder, events),
        score=score,
        low=low,
        high=high,
        score_is=score_is if math.isfinite(score) else "",
        spark=tuple(bucketed(curve, bucket_edges(0, len(curve), _SPARK_POINTS)).mean.tolist()),
        alarms=tuple(alarms),
        diagnosis=diagnosis,
        settings=settings,
    )


def _text(settings: Mapping[str, Json]) -> str:
    return json.dumps(settings, sort_keys=True)


def _interval(evaluations: Sequence[EvaluationScore], columns: RunColumns, score: float) -> tuple[float, float]:
    """Interval of the score: of the newest evaluation in the files, or the newest one in the metrics."""
    scores = [one for one in evaluations if one.metric == "score"]
    if scores:
        return scores[-1].low, scores[-1].high
    if "eval/low" in columns.names and "eval/high" in columns.names and math.isfinite(score):
        known = np.flatnonzero(np.isfinite(columns.column("eval/low")))
        if len(known):
            return float(columns.column("eval/low")[known[-1]]), float(columns.column("eval/high")[known[-1]])
    return math.nan, math.nan


def _median_step_s(columns: RunColumns) -> float:
    if _STEP_SECONDS not in columns.names:
        return math.nan
    values = np.asarray(columns.column(_STEP_SECONDS)[-200:])
    known = values[np.isfinite(values)]
    steps = columns.steps[-201:]
    spacing = float(np.median(np.diff(steps))) if len(steps) > 1 else 1.0
    return float(np.median(known)) / max(1.0, spacing) if len(known) else math.nan


# -------------------------------------------------------------------------------------------------------------- listing


@dataclass(slots=True)
class RunListing:
    """Runs below a folder."""

    root: Path
    cache: Path
    clock: Clock
    _rows: dict[str, tuple[list[int], RunRow]] = field(default_factory=dict[str, tuple[list[int], RunRow]])
    in_use: dict[str, tuple[RunColumns, threading.Lock]] = field(
        default_factory=dict[str, tuple[RunColumns, threading.Lock]]
    )
    """Columns of runs that a page has open: they are read once, by whoever comes first."""
    gates: defaultdict[str, threading.Lock] = field(default_factory=lambda: defaultdict(threading.Lock))
    """Held while a run is opened or its row is read: two that read a long run at once would both hold all of it, since
    one alone has its cache."""
    _loaded: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def folders(self) -> dict[str, Path]:
        """Folders of runs by id: their path below the root; the root itself where it is a run."""
        root = self.root.resolve()
        if (root / MANIFEST).is_file():
            return {root.name: root}
        folders: dict[str, Path] = {}
        _walk(root, root, _DEPTH, folders)
        return dict(sorted(folders.items()))

    def folder(self, run_id: str) -> Path:
        """Folder of a run. Raises DataError for an id that is not in the listing."""
        folder = self.folders().get(run_id)
        if folder is None:
            raise DataError(f"there is no run {run_id[:200]!r} below {self.root}")
        return folder

    def rows(self) -> list[RunRow]:
        """A row for each run, its state as of now."""
        with self._lock:
            return self._rows_now()

    def _rows_now(self) -> list[RunRow]:
        if not self._loaded:
            self._load()
        locks, now_s = HeldLocks(), self.clock.now_s()
        rows: list[RunRow] = []
        changed = False
        folders = self.folders()
        for run_id, folder in folders.items():
            signature = _signature(folder)
            kept = self._rows.get(run_id)
            if kept is None or kept[0] != signature:
                kept = (signature, self._read(run_id, folder))
                self._rows[run_id] = kept
                changed = True
            rows.append(with_state(kept[1], held=locks.holds(folder / LOCK), now_s=now_s))
        for gone in self._rows.keys() - folders.keys():
            del self._rows[gone]
        if changed:
            self._save()
        return rows

    def _read(self, run_id: str, folder: Path) -> RunRow:
        with self.gates[run_id]:
            if run_id in self.in_use:
                columns, lock = self.in_use[run_id]
                with lock:
                    return read_row(folder, columns, run_id)
            columns = RunColumns(folder / "metrics.jsonl", self.cache)
            row = read_row(folder, columns, run_id)
            columns.close()
            return row

    def row(self, run_id: str, columns: RunColumns) -> RunRow:
        """The row of one run, from columns that are open. Raises DataError for an unknown id."""
        folder = self.folder(run_id)
        held = HeldLocks().holds(folder / LOCK)
        return with_state(read_row(folder, columns, run_id), held=held, now_s=self.clock.now_s())

    def _file(self) -> Path:
        name = re.sub(r"\W+", "_", str(self.root.resolve()))[-120:]
        return self.cache / f"rows_2_{name}.json"

    def _load(self) -> None:
        self._loaded = True
        try:
            kept = json.loads(self._file().read_text(encoding="utf-8"))
            self._rows = {key: (one["files"], _row_of(one["row"])) for key, one in kept.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            self._rows = {}  # none yet, or of another version

    def _save(self) -> None:
        self.cache.mkdir(parents=True, exist_ok=True)
        kept = {key: {"files": files, "row": plain(asdict(row))} for key, (files, row) in self._rows.items()}
        replace_file(self._file(), to_json(cast("Json", kept)))


def _walk(folder: Path, root: Path, depth: int, folders: dict[str, Path]) -> None:
    try:
        entries = [entry for entry in os.scandir(folder) if entry.is_dir() and entry.name not in _SKIPPED]
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        path = Path(entry.path)
        if entry.is_symlink() and not path.resolve().is_relative_to(root):
            continue
        if (path / MANIFEST).is_file():
            folders[path.relative_to(root).as_posix()] = path
        elif depth > 1 and not entry.is_symlink():
            _walk(path, root, depth - 1, folders)


def _signature(folder: Path) -> list[int]:
    """Sizes and times of the files that a row is made of."""
    result: list[int] = []
    for name in _FILES:
        try:
            status = (folder / name).stat()
            result += [status.st_size, status.st_mtime_ns, status.st_ino]
        except OSError:
            result += [-1, 0, 0]
    return result


def with_state(row: RunRow, *, held: bool, now_s: float) -> RunRow:
    """The row with its state and the time left."""
    if row.fault:
        return replace(row, state="crashed")
    facts = StateFacts(
        held=held,
        step=row.step,
        steps=row.steps,
        idle_s=now_s - row.last_line_s,
        median_step_s=row.median_step_s,
        last=row.how_it_ended,
    )
    state = run_state(facts)
    left = max(0, row.steps - row.step) * row.median_step_s if state == "running" and row.steps else math.nan
    return replace(row, state=state, left_s=left)


def folded_scores(rows: Sequence[RunRow]) -> dict[str, dict[str, float | int | None]]:
    """Interquartile mean of the scores of each group of two runs or more, and the number of its runs."""
    groups: dict[str, list[RunRow]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    result: dict[str, dict[str, float | int | None]] = {}
    for name, members in groups.items():
        known = np.array([one.score for one in members if math.isfinite(one.score)], np.float64)
        if len(members) > 1:
            mean = float(interquartile_mean([known])) if len(known) else None
            result[name] = {"iqm": mean, "count": len(members)}
    return result


def _row_of(kept: dict[str, Any]) -> RunRow:
    numbers = ("median_step_s", "last_line_s", "score", "low", "high", "left_s")
    values: dict[str, Any] = {
        key: math.nan if key in numbers and value is None else value for key, value in kept.items()
    }
    values["spark"] = tuple(values["spark"])
    values["alarms"] = tuple(AlarmState(**one) for one in values["alarms"])
    if (cause := values["diagnosis"]) is not None:
        values["diagnosis"] = Diagnosis(**{**cause, "follows": tuple(cause["follows"])})
    return RunRow(**values)


def plain(value: Any) -> Any:  # noqa: ANN401 - values of any answer
    """JSON values: numbers that are not finite become null, arrays lists."""
    match value:
        case float() | np.floating():
            number = float(value)
            return number if math.isfinite(number) else None
        case np.integer():
            return int(value)
        case np.bool_():
            return bool(value)
        case np.ndarray():
            return plain(value.tolist())
        case dict() | Mapping():
            return {str(key): plain(one) for key, one in value.items()}
        case list() | tuple():
            return [plain(one) for one in value]
        case _:
            return value
