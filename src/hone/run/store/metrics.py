"""Metrics of a run, `metrics.jsonl`: one line per step, appended and flushed.

Belongs here: the format of the file, and the means over the steps of a line. A line is strict JSON: `step`, the metrics
in the order given, and for a NaN or infinite value null, with its name in `non_finite`. Keys that start with `time/`
depend on the clock; without them, two runs can be compared byte for byte.
"""

import json
import math
import os
import re
import tomllib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from hone.core.errors import DataError, nearest_name
from hone.core.state import State, substate
from hone.core.strict_json import Json
from hone.run.store.durable import from_json, raise_write_error, replace_file, sync_path, write_all, writing

CLOCK_PREFIX = "time/"
MACHINE_PREFIX = "machine/"
"""Readings of the machine that a run is on."""
LOGGED_PREFIX = "logged/"
"""Means that reward functions record: how answers are cut into calls depends on time, and so does their rounding."""
CLOCK_NAMES = frozenset(
    {
        "world/wait_s",
        "world/p95_s",
        "world/late",
        "rollout/idle_world",
        "fleet/replicas",
        "fleet/lost",
        "fleet/asked_again",
        "fleet/largest_share",
        "fleet/wait_s",
        "fleet/publish_s",
    }
)
"""Further metrics that depend on time; those of an evaluation have `eval/` before them."""
CATALOGUE = Path(__file__).with_name("metrics.toml")
"""Every metric that hone's own recipes can write, with unit and meaning."""
STEP = "step"
NON_FINITE = "non_finite"
_MAX_STEP = 1 << 62


@dataclass(slots=True, kw_only=True)
class MetricsWriter:
    """Writer of one line per step, made by `open_metrics`; what `append` writes has reached the operating system."""

    path: Path
    descriptor: int
    last_step: int
    _closed: bool = field(default=False, init=False)

    def append(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the line of `step`, as `append_lines` does."""
        self.append_lines([(step, metrics)])

    def append_lines(self, lines: Sequence[tuple[int, Mapping[str, float]]]) -> None:
        """Write lines `(step, metrics)` together. Raises ValueError for a step that does not increase or a reserved
        name.

        Raises ResourceError for a disk error; the file then ends with the last line before them.
        """
        if not lines:
            return
        last_step = self.last_step
        for step, _ in lines:
            if step <= last_step:
                raise ValueError(f"metrics of step {step} after those of step {last_step}")
            last_step = step
        data = "".join(metrics_line(step, metrics) for step, metrics in lines).encode()
        whole_bytes = os.fstat(self.descriptor).st_size
        try:
            write_all(self.descriptor, data)
        except OSError as error:
            os.ftruncate(self.descriptor, whole_bytes)
            raise_write_error(self.path, error, len(data))
        self.last_step = last_step

    def sync(self) -> None:
        """Fsync the file; call it before a checkpoint, so that no checkpoint is newer than its metrics."""
        with writing(self.path):
            os.fsync(self.descriptor)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.sync()
            os.close(self.descriptor)


@dataclass
class MetricsWindow:
    """Means of metrics over the steps since the last line: the largest where a name ends in `_max`, totals for times.
    Saved with a checkpoint, so that a resume changes nothing."""

    sums: dict[str, float] = field(default_factory=dict[str, float])
    counts: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, metrics: Mapping[str, float]) -> None:
        """Take in a step."""
        for name, value in metrics.items():
            if name.endswith("_max") and name in self.sums:
                self.sums[name] = max(self.sums[name], value)
                continue
            self.sums[name] = self.sums.get(name, 0.0) + value
            self.counts[name] = self.counts.get(name, 0) + 1

    def means(self) -> dict[str, float]:
        """Means of the steps so far; the window is empty then."""
        means = {
            name: total if name.startswith(CLOCK_PREFIX) else total / self.counts[name]
            for name, total in self.sums.items()
        }
        self.sums, self.counts = {}, {}
        return means

    def state(self) -> State:
        """State for a checkpoint."""
        return {"sums": dict(self.sums), "counts": dict(self.counts)}

    def restore(self, state: State) -> None:
        """Continue from a checkpoint. Raises DataError for a damaged state."""
        self.sums = {name: _number(value) for name, value in substate(state, "sums").items()}
        self.counts = {name: int(_number(value)) for name, value in substate(state, "counts").items()}


def _number(value: object) -> float:
    if not isinstance(value, int | float):
        raise DataError(f"the saved report state holds {value!r} where a number should be")
    return float(value)


class OpenedMetrics(NamedTuple):
    """Writer of metrics, and notes about repairs for the log."""

    writer: MetricsWriter
    repairs: list[str]


def open_metrics(path: Path, *, after_step: int = 0, every: int = 1) -> OpenedMetrics:
    """Open for appending after `after_step`: an incomplete last line, damaged lines and lines of later steps are
    removed, and the removal is noted, as are lines that the file lacks. `every` is the steps of a line. Raises
    ResourceError for the disk."""
    repairs: list[str] = []
    there = path.exists()
    if there:
        torn = repair_last_line(path)
        repairs += [torn] if torn else []
        repairs += remove_damaged_lines(path)
        removed = truncate_after(path, after_step)
        repairs += [f"{path.name}: {removed} lines after step {after_step} cut"] if removed else []
    steps = _read_lines(path).steps
    spacing = max([every, *(after - before for before, after in pairwise(steps))])
    if after_step - (last := steps[-1] if steps else 0) >= spacing:
        ends = f"ends at step {last}" if last else "is empty" if there else "is gone"
        repairs.append(
            f"{path.name} {ends}: the metrics of steps {last + 1} to {after_step} are lost to the report, to plots and "
            "to hone compare. The checkpoint holds all that training needs, so the run goes on with the same bits; to "
            "have the metrics as well, stop, put the file back from a copy, and resume again"
        )
    with writing(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    return OpenedMetrics(MetricsWriter(path=path, descriptor=descriptor, last_step=after_step), repairs)


def metrics_line(step: int, metrics: Mapping[str, float]) -> str:
    """Format one line, with its newline. Floats use repr: the same bits give the same bytes."""
    line: dict[str, Json] = {STEP: step}
    non_finite: list[Json] = []
    for name, value in metrics.items():
        if name in (STEP, NON_FINITE):
            raise ValueError(f"a metric cannot be called {name}: the file format reserves this name")
        number = value if isinstance(value, int) else float(value)
        finite = math.isfinite(number)
        line[name] = number if finite else None
        if not finite:
            non_finite.append(name)
    if non_finite:
        line[NON_FINITE] = non_finite
    return json.dumps(line, allow_nan=False) + "\n"


def repair_last_line(path: Path) -> str | None:
    """Remove an incomplete last line, left by a killed process; returns a message or None."""
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole == len(data):
        return None
    torn = data[whole:]
    _truncate(path, whole)
    return f"{path.name}: torn last line cut ({len(torn)} bytes: {torn[:40].decode('utf-8', 'replace')!r})"


def remove_damaged_lines(path: Path) -> list[str]:
    """Remove whole lines that `read_metrics` leaves out, atomically; returns a message for each. Raises
    ResourceError."""
    lines = _read_lines(path)
    if lines.faults:
        replace_file(path, b"".join(lines.raw))
    return [f"{fault}; the line is removed, {len(lines.raw)} others are kept" for fault in lines.faults]


def truncate_after(path: Path, step: int) -> int:
    """Remove the lines of steps after `step` from an intact file; returns their number. Raises ResourceError."""
    lines = _read_lines(path)
    kept = bisect_right(lines.steps, step)
    if kept < len(lines.raw):
        _truncate(path, sum(map(len, lines.raw[:kept])))
    return len(lines.raw) - kept


def _truncate(path: Path, size_bytes: int) -> None:
    with writing(path):
        os.truncate(path, size_bytes)
    sync_path(path)


class MetricColumns(NamedTuple):
    """Metrics as columns: `steps` `[N]`, and each metric `[N]` with NaN for missing and non-finite values."""

    steps: NDArray[np.int64]
    values: dict[str, NDArray[np.float64]]
    faults: tuple[str, ...] = ()
    """Lines that are damaged and left out, with file, line and reason."""


def read_metrics(path: Path) -> MetricColumns:
    """Read the file into columns, in order of first appearance; an incomplete last line (a running process) is ignored.

    A line that is not JSON, has no step, or a step out of order is left out and named in `faults`.
    """
    lines = _read_lines(path)
    values: dict[str, NDArray[np.float64]] = {}
    for row, line in enumerate(lines.parsed):
        for name, value in line.items():
            if name in (STEP, NON_FINITE):
                continue
            if name not in values:
                values[name] = np.full(len(lines.parsed), np.nan)
            if isinstance(value, int | float):
                values[name][row] = value
    return MetricColumns(np.array(lines.steps, dtype=np.int64), values, tuple(lines.faults))


def tail_metrics(path: Path, offset: int) -> tuple[list[tuple[int, dict[str, float]]], int]:
    """Read the whole lines from byte `offset` on: step and metrics of each (NaN for null), and the offset after them.

    A damaged line is left out. A file that is shorter than `offset`, as after a resume, is read from its beginning.
    """
    with path.open("rb") as file:
        file.seek(offset if offset <= os.fstat(file.fileno()).st_size else 0)
        begin, data = file.tell(), file.read()
    whole = data[: data.rfind(b"\n") + 1]
    rows: list[tuple[int, dict[str, float]]] = []
    for raw in whole.splitlines():
        with suppress(DataError):
            line = _parse(raw, path, 0)
            step = _step_of(line, path, 0)
            metrics = {
                name: float(value) if isinstance(value, int | float) else math.nan
                for name, value in line.items()
                if name not in (STEP, NON_FINITE)
            }
            rows.append((step, metrics))
    return rows, begin + len(whole)


class _MetricLines(NamedTuple):
    """Intact lines of a file, and a message for each damaged one."""

    raw: list[bytes]
    parsed: list[dict[str, Json]]
    steps: list[int]
    faults: list[str]


def _read_lines(path: Path) -> _MetricLines:
    """Read the whole lines. Where steps are out of order, the fewest lines are taken for damaged."""
    data = path.read_bytes() if path.exists() else b""
    faults: dict[int, str] = {}
    intact: list[tuple[int, bytes, dict[str, Json], int]] = []
    for number, raw in enumerate(data[: data.rfind(b"\n") + 1].split(b"\n")[:-1], start=1):
        try:
            line = _parse(raw, path, number)
            intact.append((number, raw + b"\n", line, _step_of(line, path, number)))
        except DataError as error:
            faults[number] = f"{error} ({raw[:40].decode('utf-8', 'replace')!r})"
    kept = _longest_increasing([step for *_, step in intact])
    for place in sorted({*range(len(intact))} - {*kept}):
        number, raw, _, step = intact[place]
        faults[number] = f"{path}:{number} has step {step} out of order ({raw[:40].decode('utf-8', 'replace')!r})"
    chosen = [intact[place] for place in kept]
    return _MetricLines(
        raw=[raw for _, raw, _, _ in chosen],
        parsed=[line for _, _, line, _ in chosen],
        steps=[step for *_, step in chosen],
        faults=[faults[number] for number in sorted(faults)],
    )


def _longest_increasing(steps: Sequence[int]) -> list[int]:
    """Places of a longest strictly increasing subsequence, by patience sorting."""
    tops: list[int] = []
    places: list[int] = []
    before: list[int] = []
    for place, step in enumerate(steps):
        pile = bisect_left(tops, step)
        before.append(places[pile - 1] if pile else -1)
        if tops[pile : pile + 1] != [step]:  # of equal steps the first one counts
            tops[pile : pile + 1], places[pile : pile + 1] = [step], [place]
    chain: list[int] = []
    place = places[-1] if places else -1
    while place >= 0:
        chain.append(place)
        place = before[place]
    return chain[::-1]


def without_clock_metrics(lines: Iterable[str]) -> list[str]:
    """Remove metrics that depend on the clock: equal runs then have equal lines."""
    remaining: list[str] = []
    for line in lines:
        parsed = cast("dict[str, Json]", json.loads(line))
        kept = {name: value for name, value in parsed.items() if not depends_on_clock(name)}
        non_finite = kept.pop(NON_FINITE, None)
        if isinstance(non_finite, list):
            names = [name for name in non_finite if not depends_on_clock(str(name))]
            kept |= {NON_FINITE: names} if names else {}
        remaining.append(json.dumps(kept, allow_nan=False) + "\n")
    return remaining


def depends_on_clock(name: str) -> bool:
    """True for a metric that two equal runs do not have in common."""
    return name.startswith((CLOCK_PREFIX, LOGGED_PREFIX, MACHINE_PREFIX)) or name.removeprefix("eval/") in CLOCK_NAMES


def _parse(line: bytes, path: Path, number: int) -> dict[str, Json]:
    parsed = from_json(line, f"{path}:{number}")
    if not isinstance(parsed, dict):
        raise DataError(f"{path}:{number} must be a JSON object, got {type(parsed).__name__}")
    return parsed


def _step_of(line: dict[str, Json], path: Path, number: int) -> int:
    step = line.get(STEP)
    if not isinstance(step, int) or isinstance(step, bool) or not 0 < step < _MAX_STEP:
        raise DataError(f"{path}:{number} has no step: {step!r}")
    return step


# ------------------------------------------------------------------------------------------------------------ catalogue


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricCatalogue:
    """Every metric that hone's own recipes can write."""

    groups: Mapping[str, Mapping[str, tuple[str, str]]]
    """Group -> metric -> (unit, meaning)."""
    parts: Mapping[str, Sequence[str]]
    """The values of `{phase}`, `{stop}`, `{part}`; other names in braces stand for a number, or for another metric."""
    aliases: Mapping[str, Mapping[str, str]]
    """Library -> metric -> its name for the same figure: `trl`, `verl`; `hone` has none."""

    @property
    def names(self) -> list[str]:
        """Names of all groups; those in braces stand for a part that varies."""
        return [name for own in self.groups.values() for name in own]

    def pattern(self) -> re.Pattern[str]:
        """Matches every name that the catalogue lists."""
        parts = {name: "|".join(values) for name, values in self.parts.items()}
        parts |= {
            "task": r"\d+",
            "seat": r"\d+",
            "player": r"[\w.-]+",
            "step": r"\d+",
            "metric": r".+",
            "reward": r".+",
            "fact": r"\w+",
            "dialogue": r"\w+/\w+",
        }
        braces = re.compile(r"\\\{(\w+)\\\}")
        return re.compile(
            "|".join(braces.sub(lambda part: f"(?:{parts[part[1]]})", re.escape(one)) for one in self.names)
        )

    def absence(self, name: str, *, evaluates: bool) -> list[str]:
        """The reason why no recipe of hone's writes a metric of this name; none where one may.

        A name with a part that varies (`rewards/NAME`, `world/FACT`) passes: it is known once a run writes.
        """
        if not self.pattern().fullmatch(name):
            near = nearest_name(name, [one for one in self.names if "{" not in one])
            others = "such as reward/mean, eval/score; docs/reference/metrics.md has all"
            return [f"is no metric that a run writes; {f'did you mean {near}?' if near else others}"]
        if name.startswith("eval/") and not evaluates:
            return ["is written by evaluations, and the config has no [evaluation]; add one, or take reward/mean"]
        return []


@cache
def metric_catalogue() -> MetricCatalogue:
    """The catalogue, read once."""
    content = tomllib.loads(CATALOGUE.read_text(encoding="utf-8"))
    groups = {group: {name: (row[0], row[1]) for name, row in own.items()} for group, own in content["group"].items()}
    return MetricCatalogue(groups=groups, parts=content["names"], aliases={"hone": {}, **content["aliases"]})
