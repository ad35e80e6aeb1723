"""The answer to drift: a state machine from an alarm to a recall, a training job or a log line. Pure."""

import json
from dataclasses import dataclass
from typing import Literal

from hone.core.decisions import Evidence
from hone.decide.monitor.alarms import AlarmSink, MonitorAlarm
from hone.decide.monitor.config import MonitorConfig
from hone.decide.monitor.monitor import ServiceMonitor
from hone.decide.monitor.recall import ALPHA, VersionLibrary, fit_versions, recall_evidence

LOOKS = (40, 80, 160, 280)
"""Rewards since the change at which older versions are compared; `ALPHA` is shared by the looks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftAction:
    """Action that a service should take about drift."""

    kind: Literal["alert", "recall", "retrain"]
    tenant: str
    evidence: Evidence
    version: str = ""
    """The version to recall."""
    count: int = 0
    """Rewards since the change, estimated: what a fresh model may learn from."""
    since_s: float = 0.0
    """Time of the first decision since the change, as far as the monitor's window reaches."""

    def line(self) -> str:
        """One line of JSON."""
        fields = {
            "event": "drift", "act": self.kind, "tenant": self.tenant, "version": self.version,
            "rewards_since": self.count, "verdict": self.evidence.verdict, "words": self.evidence.words,
        }  # fmt: skip
        return json.dumps(fields)


class DriftResponder:
    """Answers alarms of the watched number. It is the sink of a monitor, and hands alarms on to `then`.

    `step` is called now and then, off the path of decisions. A recall needs an older version that explains the rewards
    since the change; it is looked for at 40, 80, 160 and 280 of them.
    """

    def __init__(
        self, config: MonitorConfig, library: VersionLibrary | None = None, then: AlarmSink | None = None
    ) -> None:
        self.config, self._library, self._then = config, library, then
        self._alarms: dict[str, MonitorAlarm] = {}
        self._looked: dict[str, int] = {}
        self._since_s: dict[str, float] = {}

    def alarm(self, alarm: MonitorAlarm) -> None:
        """Take an alarm; a later one of the same tenant replaces it."""
        if alarm.signal == self.config.on:
            self._alarms[alarm.tenant] = alarm
            self._looked[alarm.tenant] = 0
            self._since_s.pop(alarm.tenant, None)
        if self._then is not None:
            self._then.alarm(alarm)

    def step(self, monitor: ServiceMonitor, now_s: float) -> tuple[DriftAction, ...]:
        """The actions that are due."""
        for tenant, alarm in self._alarms.items():
            if tenant not in self._since_s:
                since = alarm.recent + monitor.rewards(tenant) - alarm.count
                rows = monitor.recent(tenant, max(1, since))
                self._since_s[tenant] = rows[0].decision.at_s if rows else alarm.at_s
        found = [self._answer(alarm, monitor, now_s) for alarm in tuple(self._alarms.values())]
        actions = tuple(action for action in found if action is not None)
        for action in actions:
            for known in (self._alarms, self._looked, self._since_s):
                del known[action.tenant]
        return actions

    def _answer(self, alarm: MonitorAlarm, monitor: ServiceMonitor, now_s: float) -> DriftAction | None:
        since = alarm.recent + monitor.rewards(alarm.tenant) - alarm.count
        if self.config.act == "recall" and self._library is not None:
            action = self._recall(alarm, monitor, since, now_s)
            if action is not None or self._looked[alarm.tenant] < len(LOOKS):
                return action
        retrain = self.config.retrain if self.config.act != "alert" else None
        if retrain is not None and since < retrain.minimum_rewards:
            return None
        return DriftAction(
            kind="alert" if retrain is None else "retrain", tenant=alarm.tenant, evidence=alarm.evidence(), count=since,
            since_s=self._since_s[alarm.tenant],
        )  # fmt: skip

    def _recall(
        self, alarm: MonitorAlarm, monitor: ServiceMonitor, since: int, now_s: float
    ) -> DriftAction | None:  # fmt: skip
        assert self._library is not None
        tenant, looked = alarm.tenant, self._looked[alarm.tenant]
        if looked == len(LOOKS) or since < LOOKS[looked]:
            return None
        self._looked[tenant] = 1 + max(k for k in range(len(LOOKS)) if since >= LOOKS[k])
        fits = fit_versions(monitor.recent(tenant, since), self._library, tenant, alpha=ALPHA / len(LOOKS))
        if not fits or not fits[0].explains:
            return None
        evidence = recall_evidence(fits[0], at_s=now_s)
        return DriftAction(
            kind="recall", tenant=tenant, evidence=evidence, version=fits[0].version, count=since,
            since_s=self._since_s[tenant],
        )  # fmt: skip
