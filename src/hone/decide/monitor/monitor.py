"""The monitor of a service: reads records as they are logged, joins rewards to decisions, and raises alarms."""

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hone.core.decisions import Decision, DecisionRecord, Outcome
from hone.core.errors import DataError
from hone.core.state import State, integer, substate
from hone.decide.estimators.drift.features import FeatureShift
from hone.decide.estimators.drift.health import GrowthCheck
from hone.decide.monitor.alarms import AlarmSink, MonitorAlarm
from hone.decide.monitor.config import MonitorConfig
from hone.decide.monitor.history import SignalHistory
from hone.decide.monitor.tenant import RewardedDecision, TenantMonitor

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

    Of each decision the first outcome of kind `reward` is read: repeated ones, and rewards of decisions that are
    unknown, change nothing. One thread at a time may use it.
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
        self._tenants: OrderedDict[str, TenantMonitor] = OrderedDict()
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
        decision = self._open.pop((outcome.tenant, outcome.decision_id), None)
        if decision is None:
            return
        scores = decision.choice.scores
        predicted = 0.0 if scores is None else float(scores[decision.executed])
        value = outcome.value - predicted if self.config.on == "residual" else outcome.value
        if math.isfinite(value):
            self.history.setdefault(outcome.tenant, SignalHistory()).add(value)
        row = RewardedDecision(decision=decision, reward=outcome.value, predicted=predicted)
        self._tell(self._tenant(outcome.tenant, outcome.at_s).rewarded(row, outcome.at_s))

    def _tenant(self, name: str, at_s: float) -> TenantMonitor:
        known = self._tenants.get(name)
        if known is None:
            known = TenantMonitor(name, self.config, self.names, seed=self.seed, since_s=at_s)
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
            tenant = TenantMonitor(name, self.config, self.names, seed=self.seed, since_s=0.0)
            tenant.restore(saved)
            self._tenants[name] = tenant


def resident_bytes() -> float:
    """Resident memory of this process, by `/proc`; NaN where there is none."""
    path = Path("/proc/self/statm")
    if not path.exists():
        return math.nan
    return float(path.read_text(encoding="ascii").split()[1]) * 4096
