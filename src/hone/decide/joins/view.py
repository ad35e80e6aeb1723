"""A view: logged decisions with the rewards that were known at one moment.

Rows have three states. *Joined*: the window has closed, and its outcomes make the reward. *Defaulted*: it has closed
without an outcome. *Censored*: it is open, the reward is NaN, and the row is counted, never a 0. A reward, once final,
is the same in every later view of the same log; an outcome after its window makes a correction beside it.
"""

import math
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from hone.core.config import Config
from hone.core.decisions import DecisionTable
from hone.core.episodes import Episodes
from hone.core.errors import DataError

# --------------------------------------------------------------------------------------------------------------- config


JoinRule = Literal["sum", "first", "last", "max"]
"""Reward of a decision with several outcomes: their sum, the first, the last, or the greatest."""


class JoinConfig(Config):
    """How outcomes become the reward of their decision."""

    window_s: float = Field(default=86_400.0, gt=0)
    """Seconds after a decision in which its outcomes count. A later outcome makes a correction."""
    default: float = 0.0
    """Reward of a decision whose window closed without an outcome."""
    rule: JoinRule = "sum"
    """Reward of several outcomes: `sum`, `first`, `last` or `max`."""
    kind: str = Field(default="reward", min_length=1)
    """Kind of the outcomes that are rewards; others are counted and left out."""
    low: float | None = None
    """Least value of an outcome; None: no bound."""
    high: float | None = None
    """Greatest value of an outcome; None: no bound."""
    beyond: Literal["refuse", "clip"] = "refuse"
    """An outcome beyond them is refused, or counts as the nearest bound; both are counted."""

    @model_validator(mode="after")
    def _check(self) -> "JoinConfig":
        low, high = self.bounds
        if not low < high:
            raise ValueError(f"low {self.low:g} must be below high {self.high:g}")
        if not low <= self.default <= high:
            raise ValueError(f"default {self.default:g} is no value from low {low:g} to high {high:g}")
        return self

    @property
    def bounds(self) -> tuple[float, float]:
        """Least and greatest value of an outcome, infinite where there is no bound."""
        return -math.inf if self.low is None else self.low, math.inf if self.high is None else self.high

    def accepted(self, value: float) -> float | None:
        """The value that an outcome counts as; None: it is refused."""
        low, high = self.bounds
        if low <= value <= high:
            return value
        return None if self.beyond == "refuse" else min(max(value, low), high)


# ----------------------------------------------------------------------------------------------------------------- view


Floats = NDArray[np.float64]

# --------------------------------------------------------------------------------------------------------------- delays
# The delay between a decision and its first outcome, where some outcomes are still to come (Kaplan and Meier, 1958).
#
# The outcome of a decision of age a is *censored* if it has not arrived: its delay is longer than a, or it is lost.
# With d_j first outcomes at delay t_j and r_j decisions that were observed at least that long without one,
#
#     arrived(t) = 1 - prod over t_j <= t of (1 - d_j / r_j)


@dataclass(frozen=True, slots=True, kw_only=True)
class _DelayCurve:
    """Share of decisions whose first outcome has arrived, by the time since the decision."""

    delay_s: Floats
    """`[m]` distinct delays of first outcomes, ascending."""
    arrived: Floats
    """`[m]` share of decisions with an outcome by then; less than 1 where some never have one."""
    longest_s: float
    """Age of the oldest decision: nothing is known of longer delays."""

    def at(self, delay_s: Floats) -> Floats:
        """Share that has arrived by each delay `[n]`: a step function, 0 before the first outcome."""
        place = np.searchsorted(self.delay_s, delay_s, side="right")
        return np.concatenate([[0.0], self.arrived])[place]

    def share_within(self, age_s: Floats, window_s: float) -> Floats:
        """P(delay <= age | delay <= window) at each age `[n]`; 1 from the window on.

        Raises DataError if no decision is as old as the window: the curve then ends before it.
        """
        if self.longest_s < window_s:
            raise DataError(
                f"no window has closed: the oldest decision is {self.longest_s:g} s old and the window is {window_s:g} "
                "s; nothing is known of longer delays, so open rows cannot be weighted. Wait, or take a shorter window"
            )
        within = float(self.at(np.array([window_s]))[0])
        early = self.at(age_s) / within if within > 0 else np.zeros_like(age_s)
        return np.where(age_s >= window_s, 1.0, early)

    def thinned(self, points: int) -> "_DelayCurve":
        """The curve at no more than `points` of its delays, first and last included: for tables and pictures."""
        if len(self.delay_s) <= points:
            return self
        kept = np.unique(np.linspace(0, len(self.delay_s) - 1, points).round().astype(np.int64))
        return _DelayCurve(delay_s=self.delay_s[kept], arrived=self.arrived[kept], longest_s=self.longest_s)

    def censoring_weights(self, age_s: Floats, window_s: float) -> Floats:
        """Weights `[n]` of outcomes that have arrived: 1 / P(delay <= age | delay <= window), and 1 for closed windows.

        With them, `default + weight * (reward so far - default)` has the expectation of the final reward, if the delay
        depends on neither reward, context nor action (inverse probability of censoring; Robins and Rotnitzky, 1992). 0
        where no outcome can have arrived. Raises DataError as `_DelayCurve.share_within`.
        """
        share = self.share_within(age_s, window_s)
        return np.divide(1.0, share, out=np.zeros_like(share), where=share > 0)


def delay_curve(first_delay_s: Floats, age_s: Floats) -> _DelayCurve:
    """Kaplan-Meier estimate from delays of first outcomes `[n]` (NaN: none so far) and ages of decisions `[n]`."""
    arrived = ~np.isnan(first_delay_s)
    observed = np.sort(np.where(arrived, first_delay_s, age_s))
    times, events = np.unique(first_delay_s[arrived], return_counts=True)
    at_risk = len(observed) - np.searchsorted(observed, times, side="left")
    longest = float(age_s.max()) if len(age_s) else 0.0
    arrived_by = np.asarray(1.0 - np.cumprod(1.0 - events / at_risk), np.float64)
    return _DelayCurve(delay_s=times, arrived=arrived_by, longest_s=longest)


# ----------------------------------------------------------------------------------------------------------------- view


Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewCounts:
    """Numbers of records that a join met, all known at its moment."""

    decisions: int = 0
    """Rows of the view."""
    joined: int = 0
    """Rows whose window closed with an outcome."""
    defaulted: int = 0
    """Rows whose window closed without one."""
    censored: int = 0
    """Rows whose window is open."""
    outcomes: int = 0
    """Outcomes of the reward's kind that belong to a row."""
    late: int = 0
    """Outcomes after the window of their decision."""
    early: int = 0
    """Outcomes before their decision, by the clocks of their sources; they count as if they came with it."""
    orphans: int = 0
    """Outcomes without a decision so far."""
    duplicates: int = 0
    """Records that were there twice, and decisions with an id that an earlier one has."""
    other_kinds: int = 0
    """Outcomes of other kinds."""
    not_finite: int = 0
    """Outcomes whose value is NaN or infinite: missing, not 0."""
    out_of_range: int = 0
    """Outcomes beyond the declared range: left out, or clipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionView:
    """Decisions of one tenant with their rewards as known at `as_of_s`. A pure function of the log."""

    table: DecisionTable
    """n rows, by time."""
    as_of_s: float
    """Seconds since the epoch; no row uses a record after it."""
    join: JoinConfig
    """Rules that made the rewards."""
    tenant: str
    counts: ViewCounts
    first_delay_s: Floats
    """`[n]` seconds from each decision to its first outcome, 0 at least; NaN: none so far."""
    reward_so_far: Floats
    """`[n]` reward of the outcomes within the window that have arrived, of open windows too; NaN: none."""
    corrected: Floats
    """`[n]` reward with the outcomes after the window; NaN where they change nothing."""

    @property
    def schema(self) -> str:
        """Hash of the names of the features; empty: not recorded."""
        return self.table.schemas[0] if self.table.schemas else ""

    @property
    def corrections(self) -> Ints:
        """Numbers of the rows that later outcomes would change, ascending."""
        return np.flatnonzero(~np.isnan(self.corrected))

    @property
    def age_s(self) -> Floats:
        """`[n]` seconds from each decision to the moment of the view."""
        return self.as_of_s - self.table.at_s

    @property
    def open_share(self) -> float:
        """Share of the rows whose window is open; 0 of an empty view."""
        return self.counts.censored / max(1, self.counts.decisions)

    def delays(self) -> _DelayCurve:
        """Kaplan-Meier curve of the delay to the first outcome."""
        return delay_curve(self.first_delay_s, self.age_s)

    def weights(self) -> Floats:
        """Censoring weights `[n]` of the outcomes that have arrived; see `censoring_weights`."""
        return self.delays().censoring_weights(self.age_s, self.join.window_s)

    def closed(self) -> DecisionTable:
        """The rows whose reward is final."""
        return take_decisions(self.table, np.flatnonzero(self.table.known))

    def with_corrections(self) -> DecisionTable:
        """The table with corrected rewards. Its rows had unequal time for their outcomes: older ones had more."""
        reward = np.where(np.isnan(self.corrected), self.table.reward, self.corrected)
        return replace(self.table, reward=reward)

    def with_open_rows(self, *, largest_weight: float = 10.0) -> DecisionTable:
        """The table with a reward in open rows too: `default + weight * (so far - default)`.

        The mean is unbiased if the delay depends on neither reward, context nor action. One reward can be beyond the
        range of rewards. Rows so young that an outcome would weigh more than `largest_weight` stay unknown. Raises
        DataError as `censoring_weights`.
        """
        default, so_far = self.join.default, self.reward_so_far
        share = self.delays().share_within(self.age_s, self.join.window_s)
        known = share >= 1.0 / largest_weight
        weight = np.divide(1.0, share, out=np.zeros_like(share), where=known)
        arrived = np.where(np.isnan(so_far), 0.0, weight * (so_far - default))
        reward = np.where(self.table.known, self.table.reward, np.where(known, default + arrived, np.nan))
        return replace(self.table, reward=reward, known=known | self.table.known)

    def episodes(self) -> Episodes:
        """Final rows as episodes of one decision each, with the log-probability of the behaviour policy.

        Versions are numbered in the order of their first decision. Raises DataError if no reward is final, or if
        there are several sets of actions: their numbers would mean different actions.
        """
        table = self.closed()
        if not len(table):
            raise DataError(
                f"no reward is final: all {self.counts.decisions} windows of {self.join.window_s:g} s are open at "
                f"{self.as_of_s:.15g}; make a later view"
            )
        if len(self.table.action_sets) > 1:
            few = "; ".join(", ".join(one.names[:5]) for one in self.table.action_sets[:3])
            raise DataError(
                f"{len(self.table.action_sets)} sets of actions in one view ({few}): a learner needs one; join the "
                "decisions of each by themselves"
            )
        count, numbers = len(table), {name: number for number, name in enumerate(dict.fromkeys(table.versions))}
        done = np.ones(count, np.bool_)
        return Episodes(
            offsets=np.arange(count + 1, dtype=np.int64),
            seen=table.contexts,
            chosen=table.executed,
            logp=table.logp.astype(np.float32),
            version=np.array([numbers[name] for name in table.versions], np.int32),
            reward=table.reward.astype(np.float32),
            group=np.arange(count, dtype=np.int64),
            terminated=done,
            truncated=~done,
            final=table.contexts,
            score=table.reward,
            time=table.at_s,
        )

    def changes_to(self, newer: "DecisionView") -> "tuple[_RewardChange, ...]":
        """Final rewards of `self` that `newer` knows differently, by time: records that reached the log in between.

        A view is a function of the log as it was read. Outcomes that happened before `as_of_s` and were delivered
        after it was made are in `newer` only; a learner that used `self` needs these corrections.
        """
        after = dict(zip(newer.table.ids, newer.table.reward.tolist(), strict=True))
        final = zip(self.table.ids, self.table.reward.tolist(), self.table.known.tolist(), strict=True)
        return tuple(
            _RewardChange(id=name, before=reward, after=after[name])
            for name, reward, known in final
            if known and name in after and after[name] != reward and not np.isnan(after[name])
        )

    def summary(self) -> "ViewSummary":
        """The figures of a view."""
        table = self.table
        p = np.exp(table.logp)
        bins = np.searchsorted(LOG10_EDGES[:-1], np.log10(np.maximum(p, 1e-300)), side="left")
        some, final = len(table) > 0, table.reward[table.known]
        return ViewSummary(
            tenant=self.tenant,
            as_of_s=self.as_of_s,
            begin_s=float(table.at_s[0]) if some else math.nan,
            end_s=float(table.at_s[-1]) if some else math.nan,
            units=len(set(table.units)),
            versions=tuple(dict.fromkeys(table.versions)),
            open_share=self.open_share,
            corrections=len(self.corrections),
            mean_reward=float(final.mean()) if len(final) else math.nan,
            smallest_p=float(p.min()) if some else math.nan,
            largest_p=float(p.max()) if some else math.nan,
            p_counts=tuple(np.bincount(bins, minlength=len(LOG10_EDGES)).tolist()),
            actions=_actions(self),
            delays=_delays(self),
        )


def take_decisions(table: DecisionTable, rows: Ints) -> DecisionTable:
    """Rows of a table, by their numbers."""
    places: list[int] = rows.tolist()
    return DecisionTable(
        contexts=table.contexts[rows],
        action_sets=table.action_sets,
        action_set=table.action_set[rows],
        executed=table.executed[rows],
        logp=table.logp[rows],
        reward=table.reward[rows],
        known=table.known[rows],
        at_s=table.at_s[rows],
        ids=tuple(table.ids[row] for row in places),
        units=tuple(table.units[row] for row in places),
        versions=tuple(table.versions[row] for row in places),
        routes=tuple(table.routes[row] for row in places) if table.routes else (),
        schemas=tuple(table.schemas[row] for row in places) if table.schemas else (),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _RewardChange:
    """A decision whose final reward differs between two views: its outcomes arrived after the first was made."""

    id: str
    before: float
    after: float


# -------------------------------------------------------------------------------------------------------------- summary


LOG10_EDGES: Final = tuple(-4.0 + 0.25 * step for step in range(17))
"""Bounds of the bins of probabilities, as powers of ten; the first bin has all that is lower."""
_NORMAL_95: Final = 1.959963984540054
_CURVE_POINTS: Final = 60
_QUANTILES: Final = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ActionFigures:
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
class _DelayFigures:
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
    actions: tuple[_ActionFigures, ...]
    delays: _DelayFigures


def _actions(view: DecisionView) -> tuple[_ActionFigures, ...]:
    """Actions of all sets by name, in the order in which the sets name them."""
    table = view.table
    names = list(dict.fromkeys(name for one in table.action_sets for name in one.names))
    place = {name: number for number, name in enumerate(names)}
    number = np.zeros(len(table), np.int64)
    for at, one in enumerate(table.action_sets):
        rows = table.action_set == at
        number[rows] = np.array([place[name] for name in one.names], np.int64)[table.executed[rows]]
    figures: list[_ActionFigures] = []
    for at, name in enumerate(names):
        rows = number == at
        reward = table.reward[rows & table.known]
        mean = float(reward.mean()) if len(reward) else math.nan
        half = _NORMAL_95 * float(reward.std(ddof=1)) / math.sqrt(len(reward)) if len(reward) > 1 else math.nan
        counts = int(rows.sum()), len(reward)
        figures.append(
            _ActionFigures(
                name=name, decisions=counts[0], known=counts[1], mean=mean, low=mean - half, high=mean + half
            )
        )
    return tuple(figures)


def _delays(view: DecisionView) -> _DelayFigures:
    curve, window = view.delays(), view.join.window_s
    within = float(curve.at(np.array([window]))[0])
    inside = curve.delay_s <= window
    share = curve.arrived[inside] / within if within > 0 else curve.arrived[:0]
    quantiles = [
        float(curve.delay_s[np.searchsorted(share, level - 1e-12)]) if len(share) else math.nan for level in _QUANTILES
    ]
    thin = curve.thinned(_CURVE_POINTS)
    return _DelayFigures(
        delay_s=tuple(thin.delay_s.tolist()),
        arrived=tuple(thin.arrived.tolist()),
        median_s=quantiles[0],
        p90_s=quantiles[1],
        p99_s=quantiles[2],
        within_window=within,
    )
