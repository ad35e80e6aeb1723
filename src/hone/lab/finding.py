"""Results of an experiment: a table, plots, a verdict, and claims with their margins."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.core.errors import ConfigError

Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedClaim:
    """A measured figure and its bound, which must hold for the verdict to be true."""

    says: str
    value: float
    at_least: float | None = None
    at_most: float | None = None

    def __post_init__(self) -> None:
        if (self.at_least is None) == (self.at_most is None):
            raise ConfigError(f"claim {self.says!r} needs one bound: at_least or at_most")

    @property
    def bound(self) -> float:
        """The bound, lower or upper."""
        return self.at_least if self.at_least is not None else self.at_most or 0.0

    @property
    def margin(self) -> float:
        """Distance from the bound as a share of the larger of both: 0 on the edge, above 0 where the claim holds."""
        room = self.value - self.bound if self.at_least is not None else self.bound - self.value
        return room / max(abs(self.value), abs(self.bound), 1e-12)

    @property
    def holds(self) -> bool:
        """True if the value is beyond the bound."""
        return self.margin > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotSeries:
    """One line of a plot: `x` and `y` `[P]`, and the band of the runs around it."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    """`[P]` the least of the runs at each point; empty where one number was measured."""
    high: Sequence[float] = ()
    """`[P]` the largest of the runs at each point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinePlot:
    """Lines over a common axis."""

    title: str
    x_label: str
    series: Sequence[PlotSeries]
    log_y: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BarPlot:
    """One horizontal bar per label, and the range of the runs over it."""

    title: str
    labels: Sequence[str]
    values: Sequence[float]
    low: Sequence[float] = ()
    """The least of the runs of each bar; empty where one number was measured."""
    high: Sequence[float] = ()
    """The largest of the runs of each bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedBarPlot:
    """One horizontal bar per label, made of parts that add up, and a mark where another measurement of the sum is."""

    title: str
    labels: Sequence[str]
    parts: Mapping[str, Sequence[float]]
    """Sizes of a part in every bar, by its name."""
    marks: Sequence[float]


Panel: TypeAlias = LinePlot | BarPlot | StackedBarPlot


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentResult:
    """Result of an experiment. `verdict` is one sentence with its figures; it must state no more than `claims` hold."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    panels: Sequence[Panel]
    verdict: str
    claims: Sequence[BoundedClaim]
    figures: Mapping[str, float] = field(default_factory=dict[str, float])
    """Further figures by name, for the JSON file."""

    @property
    def holds(self) -> bool:
        """True if every claim holds."""
        return all(claim.holds for claim in self.claims)

    @property
    def margin(self) -> float:
        """The least margin of the claims."""
        return min(claim.margin for claim in self.claims)


class _ExperimentFunction(Protocol):
    """The experiment's function: deterministic by `seed`; `quick` runs a smaller version, for the tests."""

    def __call__(self, seed: int, *, quick: bool = False) -> ExperimentResult: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A question with the experiment that answers it."""

    title: str
    question: str
    run: _ExperimentFunction
    source: str = ""
    """Source of the idea: paper, year."""


def error_bound(error: float) -> str:
    """The power of ten above a rounding error, at least 1e-12: `3e-10 -> '1e-9'`."""
    return f"1e{math.ceil(math.log10(max(error, 1e-12)))}"


def at_least(says: str, value: float, bound: float) -> BoundedClaim:
    """A claim that `value` is above `bound`."""
    return BoundedClaim(says=says, value=float(value), at_least=bound)


def at_most(says: str, value: float, bound: float) -> BoundedClaim:
    """A claim that `value` is below `bound`."""
    return BoundedClaim(says=says, value=float(value), at_most=bound)


def line_plot(
    title: str, x_label: str, x: Iterable[float], paths: Mapping[str, Sequence[float] | Floats], *, log_y: bool = False
) -> LinePlot:
    """Several lines over the same `x`: a path `[P]`, or the mean of runs `[runs, P]` with the band from least to
    largest.
    """
    where = [float(value) for value in x]
    drawn = [_series(name, where, np.asarray(path, np.float64)) for name, path in paths.items()]
    return LinePlot(title=title, x_label=x_label, series=drawn, log_y=log_y)


def _series(name: str, x: list[float], path: Floats) -> PlotSeries:
    if path.ndim == 1:
        return PlotSeries(label=name, x=x, y=path.tolist())
    low, high = path.min(axis=0).tolist(), path.max(axis=0).tolist()
    return PlotSeries(label=name, x=x, y=path.mean(axis=0).tolist(), low=low, high=high)


def bar_plot(title: str, values: Mapping[str, float | Sequence[float] | Floats]) -> BarPlot:
    """One bar per name: a number, or the mean of runs `[runs]` with the range from least to largest."""
    runs = [np.atleast_1d(np.asarray(each, np.float64)) for each in values.values()]
    return BarPlot(
        title=title,
        labels=list(values),
        values=[float(each.mean()) for each in runs],
        low=[float(each.min()) for each in runs],
        high=[float(each.max()) for each in runs],
    )


def plot_by_step(
    title: str, paths: Mapping[str, Sequence[float] | Floats], *, first: int = 1, log_y: bool = False
) -> LinePlot:
    """Lines over steps that are counted from `first` (0 where the initial state is included); see `line_plot`."""
    count = np.asarray(next(iter(paths.values()))).shape[-1]
    return line_plot(title, "step", range(first, first + count), paths, log_y=log_y)
