"""A view: logged decisions with the rewards that were known at one moment.

Rows have three states. *Joined*: the window has closed, and its outcomes make the reward. *Defaulted*: it has closed
without an outcome. *Censored*: it is open, the reward is NaN, and the row is counted, never a 0. A reward, once final,
is the same in every later view of the same log; an outcome after its window makes a correction beside it.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hone.core.decisions import DecisionTable
from hone.core.episodes import Episodes
from hone.core.errors import DataError
from hone.decide.joins.config import JoinConfig
from hone.decide.joins.delays import DelayCurve, censoring_weights, delay_curve

Floats = NDArray[np.float64]
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

    def delays(self) -> DelayCurve:
        """Kaplan-Meier curve of the delay to the first outcome."""
        return delay_curve(self.first_delay_s, self.age_s)

    def weights(self) -> Floats:
        """Censoring weights `[n]` of the outcomes that have arrived; see `censoring_weights`."""
        return censoring_weights(self.delays(), self.age_s, self.join.window_s)

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


def view_episodes(view: DecisionView) -> Episodes:
    """Final rows as episodes of one decision each, with the log-probability of the behaviour policy.

    Versions are numbered in the order of their first decision. Raises DataError if no reward is final, or if there are
    several sets of actions: their numbers would mean different actions.
    """
    table = view.closed()
    if not len(table):
        raise DataError(
            f"no reward is final: all {view.counts.decisions} windows of {view.join.window_s:g} s are open at "
            f"{view.as_of_s:.15g}; make a later view"
        )
    if len(view.table.action_sets) > 1:
        few = "; ".join(", ".join(one.names[:5]) for one in view.table.action_sets[:3])
        raise DataError(
            f"{len(view.table.action_sets)} sets of actions in one view ({few}): a learner needs one; join the "
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardChange:
    """A decision whose final reward differs between two views: its outcomes arrived after the first was made."""

    id: str
    before: float
    after: float


def changes_between(older: DecisionView, newer: DecisionView) -> tuple[RewardChange, ...]:
    """Final rewards of `older` that `newer` knows differently, by time: records that reached the log in between.

    A view is a function of the log as it was read. Outcomes that happened before `older.as_of_s` and were delivered
    after it was made are in `newer` only; a learner that used `older` needs these corrections.
    """
    after = dict(zip(newer.table.ids, newer.table.reward.tolist(), strict=True))
    final = zip(older.table.ids, older.table.reward.tolist(), older.table.known.tolist(), strict=True)
    return tuple(
        RewardChange(id=name, before=reward, after=after[name])
        for name, reward, known in final
        if known and name in after and after[name] != reward and not np.isnan(after[name])
    )
