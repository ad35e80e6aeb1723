"""Records of a service that a monitor reads."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from hone.core.decisions import ActionSet, Choice, Decision, Outcome
from hone.decide.monitor.alarms import MonitorAlarm

ACTIONS = ActionSet(names=("low", "high"))


@dataclass
class AlarmList:
    """Sink that keeps every alarm."""

    alarms: list[MonitorAlarm] = field(default_factory=list[MonitorAlarm])

    def alarm(self, alarm: MonitorAlarm) -> None:
        self.alarms.append(alarm)

    @property
    def signals(self) -> list[str]:
        return [alarm.signal for alarm in self.alarms]


def decision(number: int, *, tenant: str = "shop", context: Sequence[float] = (0.0,), executed: int = 0,
             scores: Sequence[float] | None = (0.5, 0.5)) -> Decision:  # fmt: skip
    """Decision `number` of a tenant, at that second."""
    choice = Choice(
        action=executed, logp=float(np.log(0.5)), scores=None if scores is None else np.array(scores, np.float64)
    )
    return Decision(
        id=f"d{number}", tenant=tenant, unit=f"u{number}", at_s=float(number), context=np.array(context, np.float64),
        actions=ACTIONS, choice=choice, executed=executed, executed_logp=choice.logp, version="v1", source="gate",
        seq=2 * number,
    )  # fmt: skip


def reward(number: int, value: float, *, tenant: str = "shop") -> Outcome:
    """Reward of decision `number`, a second later."""
    return Outcome(
        decision_id=f"d{number}", tenant=tenant, value=value, at_s=number + 1.0, source="gate", seq=2 * number + 1
    )


def stream(rewards: Sequence[float], *, tenant: str = "shop", start: int = 0) -> Iterator[Decision | Outcome]:
    """A decision and its reward, for each of `rewards`."""
    for number, value in enumerate(rewards, start=start):
        yield decision(number, tenant=tenant)
        yield reward(number, value, tenant=tenant)
