"""Detectors of one tenant, and its latest rewards."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hone.core.decisions import Decision, Floats
from hone.core.random import key
from hone.core.state import State, array, integer, substate
from hone.decide.estimators.drift.adaptive_window import AdaptiveWindow
from hone.decide.estimators.drift.detector import BlockMeans, DriftDetector, FalseAlarmBudget
from hone.decide.estimators.drift.e_detector import ConformalDetector
from hone.decide.estimators.drift.features import FeatureShift, FeatureWindows
from hone.decide.estimators.drift.health import ActionEntropy, NonFiniteCheck, StalenessCheck
from hone.decide.estimators.drift.page_hinkley import PageHinkley
from hone.decide.monitor.alarms import MonitorAlarm
from hone.decide.monitor.config import MonitorConfig

REFERENCE_WINDOWS = 4
"""Windows of features that make the reference."""
_ADWIN_EVERY = 32


def _make_detector(config: MonitorConfig, *, seed: int) -> DriftDetector:
    """The detector that the config names, with its run length in single rewards."""
    arl = config.arl / config.block
    detector: DriftDetector
    if config.detector == "adwin":
        detector = AdaptiveWindow(delta=min(0.5, _ADWIN_EVERY / arl), every=_ADWIN_EVERY)
    elif config.detector == "conformal":
        detector = ConformalDetector(arl=arl, seed=seed)
    else:
        detector = PageHinkley(arl=arl)
    return detector if config.block == 1 else BlockMeans(detector, config.block)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardedDecision:
    """A decision with its reward and the score that the served model had given the executed action."""

    decision: Decision
    reward: float
    predicted: float


class TenantMonitor:
    """Detectors and latest rewards of one tenant. Memory is bounded by the windows of the config."""

    def __init__(self, tenant: str, config: MonitorConfig, names: Sequence[str], *, seed: int, since_s: float) -> None:
        self.tenant, self.config, self.names = tenant, config, tuple(names)
        self.recent: deque[RewardedDecision] = deque(maxlen=config.window)
        self.shifts: tuple[FeatureShift, ...] = ()
        """Comparison of every feature in the last full window."""
        self._detector = _make_detector(config, seed=key(seed, "monitor", tenant) >> 65)
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
        if self._settled < self.config.settle:
            self._settled += 1
            return alarms
        value = row.reward - row.predicted if self.config.on == "residual" else row.reward
        if self._detector.update(value):
            self._settled = 0
            recent = min(self._detector.recent, self.rewards)
            words = (
                f"the {self.config.on} has changed about {recent} rewards ago: {self._detector.statistic:.4g}, the "
                f"threshold is {self._detector.threshold:.4g}; one false alarm in {self._detector.budget.value:.0f} "
                "rewards is expected at most"
            )
            figures = (self._detector.statistic, self._detector.threshold)
            alarms.append(self._alarm(self.config.on, at_s, words, self._detector.budget, figures, recent=recent))
        return alarms

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
        count = self.rewards if signal in ("residual", "reward") else self.decisions
        return MonitorAlarm(
            tenant=self.tenant, signal=signal, at_s=at_s, count=count, statistic=figures[0], threshold=figures[1],
            budget=budget, recent=recent, words=words,
        )  # fmt: skip

    def state(self) -> State:
        """Detectors, features and counts; `recent` is not part of it."""
        gathered = np.array(self._reference, np.float64).reshape(-1, len(self.names))
        return {
            "detector": self._detector.state(), "settled": self._settled, "rewards": self.rewards,
            "decisions": self.decisions, "not_finite": self._not_finite.state(), "stale": self._stale.state(),
            "entropy": self._entropy.state(), "features": {} if self._features is None else self._features.state(),
            "reference": gathered if self._features is None else self._features.reference,
        }  # fmt: skip

    def restore(self, state: State) -> None:
        """Take up a state of a tenant with the same config. Raises DataError."""
        self._detector.restore(substate(state, "detector"))
        self._settled, self.rewards = integer(state, "settled"), integer(state, "rewards")
        self.decisions = integer(state, "decisions")
        self._not_finite.restore(substate(state, "not_finite"))
        self._stale.restore(substate(state, "stale"))
        self._entropy.restore(substate(state, "entropy"))
        reference, features = array(state, "reference").astype(np.float64), substate(state, "features")
        self._reference, self._features = list(reference), None
        if features:
            self._open_features(reference).restore(features)
