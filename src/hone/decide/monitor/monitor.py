"""The monitor of a service: reads records as they are logged, joins rewards to decisions, and raises alarms."""

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hone.core.decisions import Decision, DecisionRecord, Floats, Outcome
from hone.core.errors import DataError
from hone.core.random import key
from hone.core.state import State, array, integer, number, substate
from hone.decide.estimators.drift.detector import (
    AdaptiveWindow,
    BlockMeans,
    ConformalDetector,
    DriftDetector,
    FalseAlarmBudget,
    PageHinkley,
)
from hone.decide.estimators.drift.health import (
    ActionEntropy,
    FeatureShift,
    FeatureWindows,
    GrowthCheck,
    NonFiniteCheck,
    StalenessCheck,
)
from hone.decide.estimators.drift.samples import SIGNIFICANT_NATS, SeasonalErrors
from hone.decide.monitor.alarms import AlarmSink, MonitorAlarm
from hone.decide.monitor.config import MonitorConfig

# --------------------------------------------------------------------------------------------------------------- tenant


REFERENCE_WINDOWS = 4
"""Windows of features that make the reference."""
_ADWIN_EVERY = 32
_SIGNIFICANT = 5.0
"""Standard errors at which a correlation of neighbours counts as one."""
_LEAST_SCALE = 0.25
"""Least standard deviation of errors of variance 1 that is believed."""


def _make_detector(config: MonitorConfig, *, seed: int) -> DriftDetector:
    """The detector that the config names, with its run length in single rewards."""
    arl = config.arl / config.block
    detector: DriftDetector
    if config.detector == "adwin":
        detector = AdaptiveWindow(delta=min(0.5, _ADWIN_EVERY / arl), every=_ADWIN_EVERY)
    elif config.detector == "conformal":
        detector = ConformalDetector(arl=arl, seed=seed)
    else:
        detector = PageHinkley(arl=arl, least_scale=_LEAST_SCALE / math.sqrt(config.block), seed=seed)
    return detector


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardedDecision:
    """A decision with its reward and the score that the served model had given the executed action."""

    decision: Decision
    reward: float
    predicted: float


class _TenantMonitor:
    """Detectors and latest rewards of one tenant. Memory is bounded by the windows of the config.

    `page_hinkley` and `adwin` read the errors of a forecast that knows the time of day, `conformal` the values: its
    ranks cannot tell a cycle or a learning model from a change, so that it refuses to judge where there is one. A
    residual that has come nearer to 0 is a model that has learnt: no drift.
    """

    def __init__(self, tenant: str, config: MonitorConfig, names: Sequence[str], *, seed: int, since_s: float) -> None:
        self.tenant, self.config, self.names = tenant, config, tuple(names)
        self.recent: deque[RewardedDecision] = deque(maxlen=config.window)
        self.shifts: tuple[FeatureShift, ...] = ()
        """Comparison of every feature in the last full window."""
        own = key(seed, "monitor", tenant) >> 65
        inner, self._errors = _make_detector(config, seed=own), SeasonalErrors(config.cycle_s, seed=own)
        self._ranks = inner if isinstance(inner, ConformalDetector) else None
        self._detector = inner if config.block == 1 else BlockMeans(inner, config.block)
        self._values: deque[float] = deque(maxlen=config.window)
        """Values since the detector began, clipped: the latest ones, and the sum and the number of all."""
        self._total, self._judged, self._refused = 0.0, 0, 0
        self._settled, self.rewards, self.decisions = 0, 0, 0
        self._not_finite = NonFiniteCheck()
        self._stale = StalenessCheck(config.stale_s, since_s=since_s)
        self._entropy = ActionEntropy(least_nats=config.least_entropy_nats)
        self._reference: list[Floats] = []
        self._features: FeatureWindows | None = None

    def decided(self, decision: Decision) -> list[MonitorAlarm]:
        """Read a decision's features, scores and executed action."""
        self.decisions += 1
        scores = decision.choice.scores
        alarms = self._finite(decision.context if scores is None else np.append(decision.context, scores), decision)
        if self.config.least_entropy_nats and self._entropy.update(decision.executed):
            words = (
                f"the last {self._entropy.window} actions have an entropy of {self._entropy.entropy:.3f} nats, and "
                f"{self.config.least_entropy_nats:g} or more are wanted: the policy has collapsed onto few actions"
            )
            value, bound = self._entropy.entropy, self.config.least_entropy_nats
            alarms.append(self._alarm("actions", decision.at_s, words, self._entropy.budget, (value, bound)))
        if self.config.feature_window and len(decision.context) == len(self.names):
            alarms += self._read_features(decision)
        return alarms

    def rewarded(self, row: RewardedDecision, at_s: float) -> list[MonitorAlarm]:
        """Read a reward. One that is not finite is counted and goes no further."""
        self._stale.arrived(at_s)
        alarms = self._finite(np.array([row.reward]), row.decision)
        if not math.isfinite(row.reward) or not math.isfinite(row.predicted):
            return alarms
        self.recent.append(row)
        self.rewards += 1
        value = row.reward - row.predicted if self.config.on == "residual" else row.reward
        error = self._errors.update(value, row.decision.at_s)
        if self._settled < self.config.settle:
            self._settled += 1
            if self._settled == self.config.settle:
                self._errors.forget_level()
            return alarms
        value = self._errors.clipped(value)
        self._values.append(value)
        self._total += value
        self._judged += 1
        if self._detector.update(value if self.config.detector == "conformal" else error):
            alarms += self._changed(row, at_s)
        return alarms

    def _changed(self, row: RewardedDecision, at_s: float) -> list[MonitorAlarm]:
        """The alarm of a change, unless the model has learnt or a cycle explains it; what was judged is forgotten."""
        latest = np.array(list(self._values)[-max(1, min(self._detector.recent, self.rewards)) :])
        if self._judged > len(latest):  # the detector's excursion may have begun before the change
            before = (self._total - float(latest.sum())) / (self._judged - len(latest))
            sums = np.cumsum(latest[::-1] - before)
            latest = latest[-1 - int((sums**2 / np.arange(1, len(sums) + 1)).argmax()) :]
        recent = len(latest) if len(latest) < self.config.window else min(self._detector.recent, self.rewards)
        learnt = False
        if self.config.on == "residual" and row.decision.choice.scores is not None and self._judged > len(latest):
            now = float(latest.mean())
            before = (self._total - float(latest.sum())) / (self._judged - len(latest))
            crossed = now * before < 0 and abs(now) > 2 * float(latest.std()) / math.sqrt(len(latest))
            learnt = abs(now) < abs(before) and not crossed
        self._values.clear()
        self._total, self._judged, self._settled = 0.0, 0, 0
        self._errors.forget_level()
        figures = (self._detector.statistic, self._detector.threshold)
        if learnt:
            return []
        void = self._void_reason(self._ranks) if self._ranks is not None else ""
        if void:
            self._refused += 1
            if self._refused > 1:
                return []
            words = (
                f'the {self.config.on} {void}, which voids the run length of detector = "conformal": changes are not '
                'told while it does; take "page_hinkley"'
            )
            return [self._alarm("refused", at_s, words, self._detector.budget, figures)]
        words = (
            f"the {self.config.on} has changed about {recent} rewards ago: {figures[0]:.4g}, the threshold is "
            f"{figures[1]:.4g}; one false alarm in {self._detector.budget.value:.0f} rewards is expected at most"
        )
        return [self._alarm(self.config.on, at_s, words, self._detector.budget, figures, recent=recent)]

    def _void_reason(self, ranks: ConformalDetector) -> str:
        """Why ranks are not exchangeable; empty: nothing is known against it."""
        if self._errors.evidence_nats > SIGNIFICANT_NATS:
            return f"follows the time of day ({self._errors.evidence_nats:.0f} nats)"
        if ranks.neighbour_errors > _SIGNIFICANT:
            errors = f"{ranks.neighbour_errors:.1f} standard errors"
            return f"correlates with its neighbours, as that of a model that learns does ({errors})"
        return ""

    def tick(self, now_s: float) -> list[MonitorAlarm]:
        """Alarm if no reward has arrived for too long."""
        if not self.config.stale_s or not self._stale.check(now_s):
            return []
        gap = now_s - self._stale.last_s
        words = f"no reward for {gap:.0f} s, {self.config.stale_s:g} s are allowed: is the sender of rewards alive?"
        budget = FalseAlarmBudget(kind="alpha", value=0.0)
        return [self._alarm("stale", now_s, words, budget, (gap, self.config.stale_s))]

    def _finite(self, values: Floats, decision: Decision) -> list[MonitorAlarm]:
        """An alarm for the first, the second, the fourth, the eighth ... row with a number that is not finite."""
        check = self._not_finite
        if not check.update(values) or check.count & (check.count - 1):
            return []
        words = f"{check.count} records hold NaN or an infinity, the last in decision {decision.id!r}; unused"
        return [self._alarm("not finite", decision.at_s, words, check.budget, (float(check.count), 0.0))]

    def _read_features(self, decision: Decision) -> list[MonitorAlarm]:
        config = self.config
        if self._features is None:
            if np.isfinite(decision.context).all():
                self._reference.append(decision.context)
            if len(self._reference) == REFERENCE_WINDOWS * config.feature_window:
                self._open_features(np.array(self._reference))
            return []
        shifts = self._features.update(decision.context)
        self.shifts = shifts or self.shifts
        return [
            self._alarm(
                f"feature {shift.feature}", decision.at_s,
                f"feature {shift.feature} has shifted: Kolmogorov-Smirnov distance {shift.ks:.3f} (p = "
                f"{shift.p_value:.1e}), stability index {shift.psi:.2f}",
                self._features.budget, (shift.ks, config.feature_alpha), recent=config.feature_window,
            )
            for shift in shifts if shift.changed
        ]  # fmt: skip

    def _open_features(self, reference: Floats) -> FeatureWindows:
        config = self.config
        self._features = FeatureWindows(
            reference, self.names, window=config.feature_window, alpha=config.feature_alpha
        )  # fmt: skip
        self._reference = []
        return self._features

    def _alarm(
        self,
        signal: str,
        at_s: float,
        words: str,
        budget: FalseAlarmBudget,
        figures: tuple[float, float],
        recent: int = 0,
    ) -> MonitorAlarm:
        count = self.rewards if signal in ("residual", "reward", "refused") else self.decisions
        return MonitorAlarm(
            tenant=self.tenant, signal=signal, at_s=at_s, count=count, statistic=figures[0], threshold=figures[1],
            budget=budget, recent=recent, words=words,
        )  # fmt: skip

    def state(self) -> State:
        """Detectors, features and counts; `recent` is not part of it."""
        gathered = np.array(self._reference, np.float64).reshape(-1, len(self.names))
        return {
            "detector": self._detector.state(), "errors": self._errors.state(), "values": np.array(self._values),
            "total": self._total, "judged": self._judged, "refused": self._refused,
            "settled": self._settled, "rewards": self.rewards,
            "decisions": self.decisions, "not_finite": self._not_finite.state(), "stale": self._stale.state(),
            "entropy": self._entropy.state(), "features": {} if self._features is None else self._features.state(),
            "reference": gathered if self._features is None else self._features.reference,
        }  # fmt: skip

    def restore(self, state: State) -> None:
        """Take up a state of a tenant with the same config. Raises DataError."""
        self._detector.restore(substate(state, "detector"))
        self._errors.restore(substate(state, "errors"))
        self._values.extend(float(value) for value in array(state, "values"))
        self._total = number(state, "total")
        self._judged, self._refused = integer(state, "judged"), integer(state, "refused")
        self._settled, self.rewards = integer(state, "settled"), integer(state, "rewards")
        self.decisions = integer(state, "decisions")
        self._not_finite.restore(substate(state, "not_finite"))
        self._stale.restore(substate(state, "stale"))
        self._entropy.restore(substate(state, "entropy"))
        reference, features = array(state, "reference").astype(np.float64), substate(state, "features")
        self._reference, self._features = list(reference), None
        if features:
            self._open_features(reference).restore(features)


# -------------------------------------------------------------------------------------------------------------- history


POINTS = 256
"""Most points that are kept; at least half as many are shown."""
MARKS = 200


@dataclass
class SignalHistory:
    """Means of consecutive blocks of `block` values, and the alarms raised meanwhile."""

    block: int = 1
    means: list[float] = field(default_factory=list[float])
    alarms: list[MonitorAlarm] = field(default_factory=list[MonitorAlarm])
    """The latest alarms; the oldest are dropped beyond 200."""
    _count: int = 0
    _total: float = 0.0

    def add(self, value: float) -> None:
        """Read a finite value."""
        self._count += 1
        self._total += value
        if self._count < self.block:
            return
        self.means.append(self._total / self.block)
        self._count, self._total = 0, 0.0
        if len(self.means) == POINTS:
            self.means = [math.fsum(self.means[k : k + 2]) / 2 for k in range(0, POINTS, 2)]
            self.block *= 2

    def mark(self, alarm: MonitorAlarm) -> None:
        """Note an alarm."""
        self.alarms = [*self.alarms, alarm][-MARKS:]


# -------------------------------------------------------------------------------------------------------------- monitor


MAX_TENANTS = 1000
MAX_OPEN = 100_000
GROWTH_BYTES = 1024.0
"""Growth of the resident memory per 1,000 decisions that is still no leak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorLimits:
    """Bounds of the monitor's memory."""

    tenants: int = MAX_TENANTS
    """Tenants that are watched; the one that was silent longest is forgotten first."""
    open_decisions: int = MAX_OPEN
    """Decisions that wait for a reward; the oldest is forgotten first."""
    memory_every: int = 1000
    """Decisions between two readings of the resident memory."""


class ServiceMonitor:
    """Monitor of all tenants of a service; a listener of its log.

    Of each decision the first finite outcome of kind `reward` is read: repeated ones, and rewards of decisions that
    are unknown, change nothing. One thread at a time may use it.
    """

    def __init__(
        self,
        config: MonitorConfig,
        sink: AlarmSink,
        *,
        names: Sequence[str] = (),
        seed: int = 0,
        limits: MonitorLimits | None = None,
        memory: Callable[[], float] | None = None,
    ) -> None:
        """`names` of the features, in their order; `memory` reads the resident bytes of the service."""
        self.config, self._sink, self.names, self.seed = config, sink, tuple(names), seed
        self._limits, self._memory = limits or MonitorLimits(), memory
        self._tenants: OrderedDict[str, _TenantMonitor] = OrderedDict()
        self._open: OrderedDict[tuple[str, str], Decision] = OrderedDict()
        self._growth = GrowthCheck(bound=GROWTH_BYTES)
        self._decisions = 0
        self.history: dict[str, SignalHistory] = {}
        """Means of the watched number by tenant, for the report."""

    def observe(self, record: DecisionRecord) -> None:
        """Read a record of the log."""
        if isinstance(record, Decision):
            self._decided(record)
        elif record.kind == "reward":
            self._rewarded(record)

    def tick(self, now_s: float) -> None:
        """Look for tenants without rewards."""
        for tenant in list(self._tenants.values()):
            self._tell(tenant.tick(now_s))

    def reopen(self, decisions: Iterable[Decision]) -> None:
        """Take up decisions of the log that wait for a reward, in their order, after a restart."""
        self._open.update(((decision.tenant, decision.id), decision) for decision in decisions)

    def recent(self, tenant: str, count: int) -> tuple[RewardedDecision, ...]:
        """The latest `count` rewards of a tenant with their decisions, or fewer; oldest first."""
        known = self._tenants.get(tenant)
        rows: deque[RewardedDecision] = known.recent if known is not None else deque()
        return tuple(rows)[max(0, len(rows) - count) :]

    def rewards(self, tenant: str) -> int:
        """Rewards of a tenant that were read."""
        known = self._tenants.get(tenant)
        return known.rewards if known is not None else 0

    def shifts(self, tenant: str) -> tuple[FeatureShift, ...]:
        """Comparison of each feature with the reference in the last full window; empty before one."""
        known = self._tenants.get(tenant)
        return known.shifts if known is not None else ()

    def _decided(self, decision: Decision) -> None:
        self._open[decision.tenant, decision.id] = decision
        if len(self._open) > self._limits.open_decisions:
            self._open.popitem(last=False)
        self._tell(self._tenant(decision.tenant, decision.at_s).decided(decision))
        self._decisions += 1
        if self._memory is not None and self._decisions % self._limits.memory_every == 0:
            self._read_memory(decision, self._memory())

    def _rewarded(self, outcome: Outcome) -> None:
        place = (outcome.tenant, outcome.decision_id)
        decision = self._open.get(place)
        if decision is None:
            return
        if math.isfinite(outcome.value):  # after one that is not, the reward may still come
            del self._open[place]
        scores = decision.choice.scores
        predicted = 0.0 if scores is None else float(scores[decision.executed])
        value = outcome.value - predicted if self.config.on == "residual" else outcome.value
        if math.isfinite(value):
            self.history.setdefault(outcome.tenant, SignalHistory()).add(value)
        row = RewardedDecision(decision=decision, reward=outcome.value, predicted=predicted)
        self._tell(self._tenant(outcome.tenant, outcome.at_s).rewarded(row, outcome.at_s))

    def _tenant(self, name: str, at_s: float) -> _TenantMonitor:
        known = self._tenants.get(name)
        if known is None:
            known = _TenantMonitor(name, self.config, self.names, seed=self.seed, since_s=at_s)
            self._tenants[name] = known
            if len(self._tenants) > self._limits.tenants:
                forgotten, _ = self._tenants.popitem(last=False)
                self.history.pop(forgotten, None)
        self._tenants.move_to_end(name)
        return known

    def _tell(self, alarms: Sequence[MonitorAlarm]) -> None:
        for alarm in alarms:
            if alarm.signal == self.config.on:
                self.history[alarm.tenant].mark(alarm)
            self._sink.alarm(alarm)

    def _read_memory(self, decision: Decision, resident: float) -> None:
        check = self._growth
        if not check.update(self._decisions / 1000, resident):
            return
        words = (
            f"resident memory grows by {check.slope:.0f} bytes per 1,000 decisions over the last {check.samples} "
            f"readings; up to {GROWTH_BYTES:.0f} are no leak"
        )
        alarm = MonitorAlarm(
            tenant="", signal="memory", at_s=decision.at_s, count=self._decisions, statistic=check.slope,
            threshold=GROWTH_BYTES, budget=check.budget, words=words,
        )  # fmt: skip
        self._tell([alarm])

    def state(self) -> State:
        """Detectors of every tenant. Decisions that wait for a reward are not part of it: they are in the log, and
        `reopen` takes them up after a restart."""
        tenants: State = {name: tenant.state() for name, tenant in self._tenants.items()}
        return {"tenants": tenants, "order": list(self._tenants), "decisions": self._decisions}

    def restore(self, state: State) -> None:
        """Take up the state of a monitor with the same config. Raises DataError."""
        order = state["order"]
        if not isinstance(order, list):
            raise DataError("the saved monitor names no tenants")
        self._decisions = integer(state, "decisions")
        for name in map(str, order):
            saved = substate(substate(state, "tenants"), name)
            tenant = _TenantMonitor(name, self.config, self.names, seed=self.seed, since_s=0.0)
            tenant.restore(saved)
            self._tenants[name] = tenant


def resident_bytes() -> float:
    """Resident memory of this process, by `/proc`; NaN where there is none."""
    path = Path("/proc/self/statm")
    if not path.exists():
        return math.nan
    return float(path.read_text(encoding="ascii").split()[1]) * 4096
