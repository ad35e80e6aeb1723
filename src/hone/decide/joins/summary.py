"""Figures of a view: rewards by action, probabilities of what was executed, delays."""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hone.decide.joins.view import DecisionView

Floats = NDArray[np.float64]

LOG10_EDGES: Final = tuple(-4.0 + 0.25 * step for step in range(17))
"""Bounds of the bins of probabilities, as powers of ten; the first bin has all that is lower."""
_NORMAL_95: Final = 1.959963984540054
_CURVE_POINTS: Final = 60
_QUANTILES: Final = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionFigures:
    """One action of a view."""

    name: str
    decisions: int
    """Times that it was executed."""
    known: int
    """Those with a final reward."""
    mean: float
    """Mean final reward; NaN without one."""
    low: float
    """Lower end of its 95% interval (normal); NaN below two rewards."""
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayFigures:
    """Delays of first outcomes, with those that are still to come."""

    delay_s: tuple[float, ...]
    """Points of the Kaplan-Meier curve."""
    arrived: tuple[float, ...]
    median_s: float
    """Delay by which half of the outcomes that come within the window have come; NaN without any."""
    p90_s: float
    p99_s: float
    within_window: float
    """Share of decisions with an outcome within the window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewSummary:
    """A view in figures."""

    tenant: str
    as_of_s: float
    begin_s: float
    """Time of the first decision; NaN of an empty view."""
    end_s: float
    units: int
    versions: tuple[str, ...]
    open_share: float
    corrections: int
    mean_reward: float
    smallest_p: float
    """Least probability of an executed action."""
    largest_p: float
    p_counts: tuple[int, ...]
    """Decisions by the bins of `LOG10_EDGES`: the lowest, then one between each two bounds."""
    actions: tuple[ActionFigures, ...]
    delays: DelayFigures


def summarize_view(view: DecisionView) -> ViewSummary:
    """The figures of a view."""
    table = view.table
    p = np.exp(table.logp)
    bins = np.searchsorted(LOG10_EDGES[:-1], np.log10(np.maximum(p, 1e-300)), side="left")
    some, final = len(table) > 0, table.reward[table.known]
    return ViewSummary(
        tenant=view.tenant,
        as_of_s=view.as_of_s,
        begin_s=float(table.at_s[0]) if some else math.nan,
        end_s=float(table.at_s[-1]) if some else math.nan,
        units=len(set(table.units)),
        versions=tuple(dict.fromkeys(table.versions)),
        open_share=view.open_share,
        corrections=len(view.corrections),
        mean_reward=float(final.mean()) if len(final) else math.nan,
        smallest_p=float(p.min()) if some else math.nan,
        largest_p=float(p.max()) if some else math.nan,
        p_counts=tuple(np.bincount(bins, minlength=len(LOG10_EDGES)).tolist()),
        actions=_actions(view),
        delays=_delays(view),
    )


def _actions(view: DecisionView) -> tuple[ActionFigures, ...]:
    """Actions of all sets by name, in the order in which the sets name them."""
    table = view.table
    names = list(dict.fromkeys(name for one in table.action_sets for name in one.names))
    place = {name: number for number, name in enumerate(names)}
    number = np.zeros(len(table), np.int64)
    for at, one in enumerate(table.action_sets):
        rows = table.action_set == at
        number[rows] = np.array([place[name] for name in one.names], np.int64)[table.executed[rows]]
    figures: list[ActionFigures] = []
    for at, name in enumerate(names):
        rows = number == at
        reward = table.reward[rows & table.known]
        mean = float(reward.mean()) if len(reward) else math.nan
        half = _NORMAL_95 * float(reward.std(ddof=1)) / math.sqrt(len(reward)) if len(reward) > 1 else math.nan
        counts = int(rows.sum()), len(reward)
        figures.append(
            ActionFigures(name=name, decisions=counts[0], known=counts[1], mean=mean, low=mean - half, high=mean + half)
        )
    return tuple(figures)


def _delays(view: DecisionView) -> DelayFigures:
    curve, window = view.delays(), view.join.window_s
    within = float(curve.at(np.array([window]))[0])
    inside = curve.delay_s <= window
    share = curve.arrived[inside] / within if within > 0 else curve.arrived[:0]
    quantiles = [
        float(curve.delay_s[np.searchsorted(share, level - 1e-12)]) if len(share) else math.nan for level in _QUANTILES
    ]
    thin = curve.thinned(_CURVE_POINTS)
    return DelayFigures(
        delay_s=tuple(thin.delay_s.tolist()),
        arrived=tuple(thin.arrived.tolist()),
        median_s=quantiles[0],
        p90_s=quantiles[1],
        p99_s=quantiles[2],
        within_window=within,
    )
