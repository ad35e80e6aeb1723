"""The answer to drift: a state machine from an alarm to a recall, a training job or a log line. Pure.

Recall: the older version of a policy that explains the recent rewards best.

Drift that comes back (a season, a campaign that runs again) is answered in as many rewards as it takes to recognise it,
instead of those that it takes to learn it.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Literal, Protocol

import numpy as np

from hone.core.decisions import DecisionPolicy, Evidence, Floats
from hone.decide.monitor.alarms import AlarmSink, MonitorAlarm
from hone.decide.monitor.config import MonitorConfig
from hone.decide.monitor.monitor import RewardedDecision, ServiceMonitor
from hone.decide.registry import VersionRegistry

# --------------------------------------------------------------------------------------------------------------- recall


ALPHA = 0.01
"""Probability of a needless recall at one look, over all older versions."""


class _VersionLibrary(Protocol):
    """Older versions of the policy in service."""

    def older(self, tenant: str) -> Sequence[str]:
        """Versions that served a tenant before the present one, each once."""
        ...

    def policy(self, version: str) -> DecisionPolicy:
        """The policy of a version; its choices must have scores."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _VersionFit:
    """Error of a version's scores on the recent rewards."""

    version: str
    error: float
    """Mean squared difference of reward and score."""
    served: float
    """Its error minus that of the scores that were served."""
    constant: float
    """Its error minus that of the mean of these rewards, the best score that knows no context."""
    high: float
    """Upper end of the one-sided interval of `constant`."""
    count: int

    @property
    def explains(self) -> bool:
        """True if it predicts surely better than a constant, and better than was served. The second alone would not do:
        after a change every version beats the one that was served, right or wrong."""
        return self.high < 0 and self.served < 0


def fit_versions(
    rows: Sequence[RewardedDecision], library: _VersionLibrary, tenant: str, *, alpha: float = ALPHA
) -> tuple[_VersionFit, ...]:
    """Fit of every older version that has scores to the rows; those that explain them first, by their error.

    Differences of squared errors are paired by row; the interval is normal at level 1 - alpha / versions. Fewer than
    two rows fit nothing.
    """
    versions = library.older(tenant)
    if len(rows) < 2 or not versions:
        return ()
    quantile = NormalDist().inv_cdf(1 - alpha / len(versions))
    reward = np.array([row.reward for row in rows])
    served = (reward - np.array([row.predicted for row in rows])) ** 2
    constant = (reward - reward.mean()) ** 2
    fits: list[_VersionFit] = []
    for version in versions:
        predicted = _scores(rows, library.policy(version))
        if predicted is None:
            continue
        errors = (reward - predicted) ** 2
        over = errors - constant
        fits.append(_VersionFit(
            version=version, error=float(errors.mean()), served=float((errors - served).mean()),
            constant=float(over.mean()), count=len(rows),
            high=float(over.mean() + quantile * over.std(ddof=1) / math.sqrt(len(over))),
        ))  # fmt: skip
    return tuple(sorted(fits, key=lambda fit: (not fit.explains, fit.error, fit.version)))


def _recall_evidence(fit: _VersionFit, *, at_s: float) -> Evidence:
    """Evidence for the recall of a version: `ok` if it explains the rewards."""
    words = (
        f"version {fit.version} predicts the last {fit.count} rewards with a mean squared error of {fit.error:.4f}: "
        f"{fit.served:+.4f} beside the served scores, {fit.constant:+.4f} beside a constant (at most {fit.high:+.4f})"
    )
    return Evidence(
        kind="recall", verdict="ok" if fit.explains else "weak", words=words, value=fit.constant, high=fit.high,
        count=fit.count, made_by="monitor", at_s=at_s,
    )  # fmt: skip


def _scores(rows: Sequence[RewardedDecision], policy: DecisionPolicy) -> Floats | None:
    """Score of the executed action of each row; None if the policy has none, or one that is not finite."""
    predicted: list[float] = []
    for row in rows:
        decision = row.decision
        scores = policy.act(decision.context, decision.actions, decision.draw_key).scores
        if scores is None or not math.isfinite(scores[decision.executed]):
            return None
        predicted.append(float(scores[decision.executed]))
    return np.array(predicted)


class RegistryLibrary:
    """The versions of a registry that were live in a service, latest first; at most `most` of them are tried."""

    def __init__(
        self, registry: VersionRegistry, service: str, load: Callable[[Path], DecisionPolicy], *, most: int = 16
    ) -> None:
        self.registry, self.service, self._load, self._most = registry, service, load, most
        self._opened: dict[str, DecisionPolicy] = {}

    def older(self, tenant: str) -> Sequence[str]:
        """Versions that were live before the present one; all tenants of a service share them."""
        del tenant
        live = self.registry.live(self.service)
        moved = [move.version for move in reversed(self.registry.moves(self.service)) if move.after == "live"]
        return [version for version in dict.fromkeys(moved) if version != live][: self._most]

    def policy(self, version: str) -> DecisionPolicy:
        """Open a version. Raises DataError for a damaged one."""
        if version not in self._opened:
            self._opened[version] = self._load(self.registry.policy_folder(version))
        return self._opened[version]


# ------------------------------------------------------------------------------------------------------------- response


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
        self, config: MonitorConfig, library: _VersionLibrary | None = None, then: AlarmSink | None = None
    ) -> None:
        self.config, self._library, self._then = config, library, then
        self._alarms: dict[str, MonitorAlarm] = {}
        self._looked: dict[str, int] = {}
        self._since_s: dict[str, float] = {}
        self._fresh: list[str] = []

    def alarm(self, alarm: MonitorAlarm) -> None:
        """Take an alarm; a later one of the same tenant replaces it."""
        if alarm.signal == self.config.on:
            self._alarms[alarm.tenant] = alarm
            self._looked[alarm.tenant] = 0
            self._since_s.pop(alarm.tenant, None)
            self._fresh.append(alarm.tenant)
        if self._then is not None:
            self._then.alarm(alarm)

    def changed_tenants(self) -> tuple[str, ...]:
        """Tenants with an alarm since the last call: answers to their earlier alarms, jobs too, are void."""
        fresh, self._fresh = tuple(dict.fromkeys(self._fresh)), []
        return fresh

    def step(self, monitor: ServiceMonitor, now_s: float) -> tuple[DriftAction, ...]:
        """The actions that are due."""
        for tenant, alarm in self._alarms.items():
            if tenant not in self._since_s:
                since = alarm.recent + monitor.rewards(tenant) - alarm.count
                rows = monitor.recent(tenant, max(1, since))
                self._since_s[tenant] = rows[0].decision.at_s if rows else alarm.at_s
        answers = [self._answer(alarm, monitor, now_s) for alarm in tuple(self._alarms.values())]
        actions = tuple(action for action in answers if action is not None)
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
        evidence = _recall_evidence(fits[0], at_s=now_s)
        return DriftAction(
            kind="recall", tenant=tenant, evidence=evidence, version=fits[0].version, count=since,
            since_s=self._since_s[tenant],
        )  # fmt: skip
