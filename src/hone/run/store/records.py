"""Findings of a run, one small JSON file each: a frozen dataclass, read and written field by field.

Values are read strictly: a missing field, or one of another type, is a DataError that names the file and the place.
Numbers that are not finite are null. Who computes them: `hone.run` (memory, speed), `hone.certify`, evaluations.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, TypeVar, cast

import numpy as np
from pydantic import BeforeValidator, TypeAdapter, ValidationError

from hone.core.errors import DataError
from hone.core.strict_json import Json
from hone.estimators.calibration import ReliabilityBin
from hone.run.store.durable import human_bytes, read_json, replace_file, to_json
from hone.run.store.metrics import MetricColumns

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
_adapter: "Callable[[type], TypeAdapter[Any]]" = cache(TypeAdapter)  # pyright: ignore[reportUnknownArgumentType]
"""Reader of a kind of record: a run reads twenty, and making one takes as long as reading forty."""
_REWRITTEN = ("remove the file: the end of a run writes a new one",)

Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""A float of a record that is NaN where the file has null."""


def record_json(record: "DataclassInstance") -> dict[str, Json]:
    """Convert a frozen dataclass, and those in it, to JSON values under the names of their fields."""
    return {name: _plain(value) for name, value in asdict(record).items()}


def _plain(value: object) -> Json:
    if is_dataclass(value) and not isinstance(value, type):
        return record_json(value)
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(key): _plain(inner) for key, inner in cast("Mapping[object, object]", value).items()}
        case list() | tuple():
            return [_plain(inner) for inner in cast("list[object]", value)]
        case _:
            return cast("Json", value)


def read_record(kind: type[T], path: Path) -> T | None:
    """Read a dataclass, or a list of them (`list[Row]`), from a JSON file; None without the file.

    Keys that are no field are ignored. Raises DataError for a damaged file.
    """
    return parse_record(kind, read_json(path), path) if path.exists() else None


def parse_record(kind: type[T], value: Json, path: Path) -> T:
    """Convert JSON values from `path` to a dataclass or a list of them. Raises DataError with every fault."""
    try:
        return _adapter(kind).validate_json(to_json(value), strict=True)
    except ValidationError as error:
        faults = [
            f"{path}: {'.'.join(map(str, fault['loc'])) or 'the file'}: {fault['msg']}" for fault in error.errors()
        ]
        raise DataError(*faults) from None


@dataclass(frozen=True, slots=True)
class RecordFile(Generic[T]):
    """A file in the folder of a run that holds a record, or a list of them: `CALIBRATION.read(folder)`."""

    name: str
    kind: type[T]
    format: int | None = None
    """Written beside the record's fields; None: not at all."""
    remedy: tuple[str, ...] = ()
    """Said with the faults of a damaged file."""
    indent: int | None = 1

    def read(self, folder: Path) -> T | None:
        """Read the file; None without it. Raises DataError for a damaged one."""
        try:
            return read_record(self.kind, folder / self.name)
        except DataError as error:
            raise DataError(*error.messages, *self.remedy) from None

    def write(self, folder: Path, record: T) -> None:
        """Write the file atomically. Raises ResourceError."""
        document = _plain(record)
        if self.format is not None and isinstance(document, dict):
            document = {"format": self.format, **document}
        replace_file(folder / self.name, to_json(document, indent=self.indent))


# ------------------------------------------------------------------------------------------------------------- learning


LEARNING = RecordFile("learning.json", list[str])
"""Sentences about steps that taught nothing."""


# ----------------------------------------------------------------------------------------------------------- robustness


ROBUSTNESS = "robustness.json"
UNPERTURBED = "unperturbed"
_OLD_UNPERTURBED = "as it was"


@dataclass(frozen=True, slots=True, kw_only=True)
class PerturbedScore:
    """Score under one perturbation and its difference from the unperturbed score, with 95% intervals; `n` episodes."""

    name: str
    mean: Number
    low: Number
    high: Number
    difference: Number
    difference_low: Number
    difference_high: Number
    p_value: Number
    n: int


def write_robustness(folder: Path, rows: Sequence[PerturbedScore]) -> None:
    """Write the file atomically. Raises ResourceError."""
    replace_file(folder / ROBUSTNESS, to_json(_plain(list(rows)), indent=1))


def read_robustness(folder: Path) -> list[PerturbedScore]:
    """Read the file; empty without it. Raises DataError for a damaged one."""
    rows = read_record(list[PerturbedScore], folder / ROBUSTNESS) or []
    return [replace(row, name=UNPERTURBED) if row.name == _OLD_UNPERTURBED else row for row in rows]


# ---------------------------------------------------------------------------------------------------------- calibration


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationBin(ReliabilityBin):
    """A bin of a record: its means are null in the file where it is empty."""

    predicted: Number
    observed: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionRow:
    """Mean truth of the answer selected from `n`: the best-scored one with its 95% interval, the voted one, the one of
    a vote weighted by the scorer, and the best there is."""

    n: int
    best: float
    low: float
    high: float
    vote: float
    weighted_vote: float
    oracle: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationRecord:
    """Figures of a scorer on held-out answers."""

    step: int | None
    """Step after which it was evaluated; None if unknown."""
    kind: str
    """`pairs`, `outcomes` or `steps`."""
    bins: tuple[CalibrationBin, ...]
    figures: Mapping[str, Number]
    """Figures by name: accuracy as `score`, `auc`, `ece`, `temperature` and others."""
    selection: tuple[SelectionRow, ...] = ()
    warnings: tuple[str, ...] = ()


CALIBRATION = RecordFile("calibration.json", CalibrationRecord)


# ----------------------------------------------------------------------------------------------------------- memory use


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Most memory of a run's process on its device."""

    device: str
    before_bytes: int
    """Held before the run was built: the interpreter and its libraries, on a GPU usually nothing."""
    peak_bytes: int
    """Most at once, `before_bytes` included."""
    planned_bytes: int
    """Planned peak of networks, activations and pages; 0: not planned."""
    components: Mapping[str, int]
    """Planned bytes by component."""
    phases: Mapping[str, int]
    """Planned bytes of each phase."""

    @property
    def taken_bytes(self) -> int:
        """Most bytes beyond those held before."""
        return self.peak_bytes - self.before_bytes


MEMORY = RecordFile("memory.json", MemoryUse, format=1, remedy=_REWRITTEN)


def memory_line(use: MemoryUse) -> str:
    """Sentence about the memory of a run, and its plan where there was one."""
    taken, before = human_bytes(use.taken_bytes), human_bytes(use.before_bytes)
    line = f"memory of {use.device}: at most {taken} beyond {before} at the start"
    if not use.planned_bytes:
        return line
    phase = max(use.phases, key=lambda name: use.phases[name])
    return f"{line}; planned {human_bytes(use.planned_bytes)} (in {phase}) for networks, activations and pages"


# ----------------------------------------------------------------------------------------------------------------- maps


@dataclass(frozen=True, slots=True, kw_only=True)
class GridCell:
    """Cell of a grid."""

    mark: str
    """Mark on the environment's own map: `S`, `G`, `#`; a space for plain floor."""
    worth: float | None
    """Value of the cell; None without a decision."""
    moves: Mapping[str, float]
    """Action name -> probability, the largest first; below a tenth left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridSlice:
    """One grid; an environment with further state variables has several."""

    title: str
    rows: int
    columns: int
    cells: Sequence[GridCell]
    """`rows * columns`, row by row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyMap:
    """Map of a policy."""

    step: int
    """Step of the checkpoint."""
    worth_is: str
    """Meaning of the values, in words."""
    slices: Sequence[GridSlice]


MAP = RecordFile("map.json", PolicyMap, indent=None)


def read_map(folder: Path) -> PolicyMap | None:
    """Read the file; None without it. Raises DataError for a damaged one."""
    path = folder / MAP.name
    grid = MAP.read(folder)
    for one in grid.slices if grid is not None else ():
        if len(one.cells) != one.rows * one.columns:
            raise DataError(f"{path}: {one.title!r} has {len(one.cells)} cells, expected {one.rows} x {one.columns}")
    return grid


# ---------------------------------------------------------------------------------------------------------------- speed


_PREFIXES: Final = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulRate:
    """Rate of large matrix products on the run's device."""

    dtype: str
    device: str
    threads: int
    matmul_flops_per_s: float
    """Floating-point operations per second; a multiplication and an addition are two."""


SPEED = RecordFile("speed.json", MatmulRate, format=1, remedy=_REWRITTEN)


def update_flops_per_s(metrics: MetricColumns) -> float | None:
    """Floating-point operations of all updates (`learner/flops`, a mean over the steps of each line) per second of
    update time (`time/update_s`, a total); None if they were not counted."""
    flops, seconds = metrics.values.get("learner/flops"), metrics.values.get("time/update_s")
    if flops is None or seconds is None:
        return None
    known = np.isfinite(flops) & np.isfinite(seconds)
    steps = np.diff(metrics.steps, prepend=0)[known]
    spent = float(seconds[known].sum())
    return float((flops[known] * steps).sum()) / spent if spent > 0 else None


def speed_line(metrics: MetricColumns, rate: MatmulRate | None) -> str:
    """Sentence about the speed of the updates; empty if it was not measured."""
    reached = update_flops_per_s(metrics)
    if reached is None:
        return ""
    line = f"updates computed at {format_flops(reached)}"
    if rate is None or not rate.matmul_flops_per_s > 0:
        return line
    share = reached / rate.matmul_flops_per_s
    return (
        f"{line}, {share:.0%} of the {format_flops(rate.matmul_flops_per_s)} at which this machine multiplies "
        f"{rate.dtype} matrices ({rate.device}, {rate.threads} threads)"
    )


def format_flops(rate: float) -> str:
    """Format a rate: `4.12e10 -> '41.2 GFLOP/s'`."""
    for size, prefix in _PREFIXES:
        if rate >= size:
            return f"{rate / size:.3g} {prefix}FLOP/s"
    return f"{rate:.3g} FLOP/s"


# --------------------------------------------------------------------------------------------------------------- search


ORACLE = "pass"
"""Family of the chance that one of N answers is right, which no selection exceeds."""
SINGLE = "pass:1"
"""A single answer, without a search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanScore:
    """Accuracy of one plan with its 95% interval, and what it cost for each problem."""

    plan: str
    """Short form: `weighted_vote:16`."""
    family: str
    """Plans of one family differ in size: `weighted_vote`, `beam` ..."""
    mean: Number
    low: Number
    high: Number
    drawn_tokens: Number
    """Tokens sampled for each problem, those of answers that were thrown away included."""
    scored_tokens: Number
    """Tokens that the scorer's network read for each problem."""
    seconds: Number
    """Seconds for each problem, generation and scoring."""

    @property
    def tokens(self) -> float:
        """Tokens drawn and scored for each problem."""
        return self.drawn_tokens + self.scored_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRecord:
    """Searches on the same `problems`."""

    problems: int
    scorer: str
    """Name of the scorer; empty without one."""
    auc: Number
    """Chance that a right answer scores higher than a wrong one; NaN without a scorer."""
    plans: tuple[PlanScore, ...]
    notes: tuple[str, ...] = ()
    """Sentences about selecting that did worse than voting, or than fewer answers."""


SEARCH = RecordFile("search.json", SearchRecord)


def frontier(plans: Sequence[PlanScore]) -> list[PlanScore]:
    """Plans that no other one beats with as few tokens, by rising tokens; not those that know the truth, `pass:N` of
    more than one answer."""
    known = [one for one in plans if one.family != ORACLE or one.plan == SINGLE]
    best: list[PlanScore] = []
    for plan in sorted(known, key=lambda one: (one.tokens, -one.mean)):
        if not best or plan.mean > best[-1].mean:
            best.append(plan)
    return best


# ---------------------------------------------------------------------------------------------------------- certificate


CERTIFICATE = "certificate.json"
CERTIFICATE_FORMAT = 1
TOLERANCE = 1e-12
"""Largest difference of two float64 gradients, relative to the largest component, that counts as rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientCheck:
    """Comparison of a batch's gradient as a whole and split."""

    name: str
    """Description of the split."""
    detail: str
    """Parts of the split batch."""
    difference: Number
    """Largest |difference| of a component; NaN for a NaN gradient."""
    relative: Number
    """`difference` divided by the largest |component| of the whole batch's gradient."""

    @property
    def passed(self) -> bool:
        """True if the difference is rounding."""
        return self.relative <= TOLERANCE

    @property
    def is_empty(self) -> bool:
        """True if the whole batch has no gradient, so that nothing could be compared."""
        return math.isnan(self.relative) and math.isfinite(self.difference)


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientCertificate:
    """Gradient checks of one config."""

    recipe: str
    config_hash: str
    """Hash of the settings, as in `manifest.json`."""
    batch: str
    """Description of the batch."""
    checks: tuple[GradientCheck, ...]
    versions: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def passed(self) -> bool:
        """True if every check passed."""
        return bool(self.checks) and all(check.passed for check in self.checks)

    def summary(self) -> str:
        """Summary in a sentence."""
        failed = [check for check in self.checks if not check.passed]
        if any(check.is_empty for check in failed):
            names = ", ".join(check.name for check in failed if check.is_empty)
            return f"the gradient of the synthetic batch is 0, which shows nothing: {names}"
        if failed:
            shown = ", ".join(f"{check.name} (relative difference {check.relative:.1e})" for check in failed)
            return f"the gradient depends on the split of a batch: {shown}"
        worst = max((check.relative for check in self.checks), default=0.0)
        return (
            f"the gradient does not depend on the split of a batch: {len(self.checks)} splits agree to {worst:.1e} "
            "of it in float64"
        )


def write_certificate(folder: Path, certificate: GradientCertificate) -> None:
    """Write `certificate.json` atomically. Raises ResourceError."""
    checks: list[Json] = [record_json(check) | {"passed": check.passed} for check in certificate.checks]
    document: dict[str, Json] = {
        "format": CERTIFICATE_FORMAT,
        **record_json(certificate),
        "tolerance": TOLERANCE,
        "passed": certificate.passed,
        "checks": checks,
    }
    replace_file(folder / CERTIFICATE, to_json(document, indent=1))


def read_certificate(folder: Path) -> GradientCertificate | None:
    """Read `certificate.json`; None without the file. Raises DataError for a damaged one."""
    try:
        return read_record(GradientCertificate, folder / CERTIFICATE)
    except DataError as error:
        raise DataError(*error.messages, "`hone doctor loss` writes a new certificate") from None
