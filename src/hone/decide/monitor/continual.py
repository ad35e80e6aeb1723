"""Bandits that keep learning in a world that changes.

`ContinualLearner` starts anew when the monitor finds drift, and goes on from an older version when one explains the
recent rewards. `WindowEnsemble` needs no alarm: learners with memories of several lengths decide together.
`VersionTraffic` learns nothing but which of several versions is the best, and sends it the most decisions. The last two
are learners of a service, by `[policy.windows]` and `kind = "traffic"` of its file.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hone.core.decisions import ActionSet, Decision, DecisionPolicy, Floats, Outcome
from hone.core.errors import ConfigError, DataError
from hone.core.state import State, array, substate
from hone.decide.bandits.greedy import normal_best
from hone.decide.bandits.learning import BanditLearner, declared_action
from hone.decide.bandits.policy import BanditPolicy, as_bandit_policy
from hone.decide.bandits.saving import copy_policy
from hone.decide.bandits.wrappers import Routed
from hone.decide.monitor.alarms import MonitorAlarm
from hone.decide.monitor.config import MonitorConfig
from hone.decide.monitor.monitor import RewardedDecision, ServiceMonitor
from hone.decide.monitor.page import ServedPeriod
from hone.decide.monitor.response import DriftAction, DriftResponder


@dataclass(frozen=True, slots=True, kw_only=True)
class _ShelvedLearner:
    """Learner of an earlier phase."""

    state: State
    policy: BanditPolicy


class WindowEnsemble:
    """Policies learnt over time windows of several lengths, mixed by how well each predicts the rewards of late.

    The mixture is by exponential weights of the squared errors with a fixed share (Herbster and Warmuth, 1998): each
    reward multiplies a weight by exp(-rate * (reward - predicted)^2), and a share of all weight is then spread evenly,
    so that a window that was wrong for long can come back. The served policy is the mixture's whole distribution.
    """

    def __init__(self, learners: Mapping[str, BanditLearner], *, rate: float = 2.0, share: float = 0.01) -> None:
        if not learners or rate <= 0 or not 0 <= share < 1:
            raise ConfigError(
                f"an ensemble needs learners, a rate above 0 and a share from 0 to below 1, got {len(learners)}, "
                f"{rate:g} and {share:g}"
            )
        self.learners = dict(learners)
        """By the name of their window; all of one kind of model, and of the same actions."""
        self.weights: Floats = np.full(len(learners), 1 / len(learners))
        """`[windows]`, their sum is 1."""
        self._rate, self._share = rate, share

    @property
    def actions(self) -> ActionSet:
        return next(iter(self.learners.values())).actions

    @property
    def shares(self) -> dict[str, float]:
        return dict(zip(self.learners, self.weights.tolist(), strict=True))

    @property
    def served(self) -> BanditPolicy:
        """The policy as it decides now."""
        return Routed([learner.policy for learner in self.learners.values()], self.weights.tolist())

    def learn(self, decision: Decision, reward: float) -> None:
        """Weigh the windows by their errors, then teach each."""
        number, actions = declared_action(decision, self.actions)
        errors = np.zeros(len(self.learners))
        for place, learner in enumerate(self.learners.values()):
            errors[place] = (reward - float(learner.model.mean(decision.context, actions)[number])) ** 2
        for learner in self.learners.values():
            learner.learn(decision, reward)
        weights = self.weights * np.exp(-self._rate * (errors - errors.min()))
        self.weights = (1 - self._share) * weights / weights.sum() + self._share / len(weights)

    def snapshot(self) -> BanditPolicy:
        return copy_policy(self.served)

    def state(self) -> State:
        return {"weights": self.weights, **{f"learner{k}": one.state() for k, one in enumerate(self.learners.values())}}

    def restore(self, state: State) -> None:
        self.weights = array(state, "weights").astype(np.float64)
        for place, learner in enumerate(self.learners.values()):
            learner.restore(substate(state, f"learner{place}"))


class VersionTraffic:
    """Traffic between versions by a bandit: each has the share with which it is the best, and a floor.

    A decision is drawn from the mixture of the versions, so that its reward tells of all of them: version v's value is
    the self-normalised mean of the rewards with the weights p_v(action) / p(action), where p is the logged probability,
    whoever decided. The floor bounds the weights of the mixture's own decisions by K / floor; those of others are cut
    off there. Shares are Thompson sampling's (Thompson, 1933), (1 - floor) P(v is best) + floor / K, for independent
    normal values with the means' standard errors; `spread` is the standard deviation of a value before any reward.

    Decisions of a fallback teach nothing: the safe action says little of what a version would have done. `wrap` is what
    a service puts around every policy that it serves (names of actions, a shield), so that p_v is of the version as it
    would be served.
    """

    def __init__(
        self,
        versions: Mapping[str, BanditPolicy],
        actions: ActionSet,
        *,
        floor: float = 0.1,
        spread: float = 1.0,
        wrap: Callable[[DecisionPolicy], DecisionPolicy] = as_bandit_policy,
    ) -> None:
        if not versions or not 0 < floor <= 1 or spread <= 0:
            raise ConfigError(
                f"traffic needs versions, a floor above 0 and at most 1, and a spread above 0, got {len(versions)}, "
                f"{floor:g} and {spread:g}"
            )
        self.versions, self.actions = dict(versions), actions
        self._served_alone = [wrap(policy) for policy in versions.values()]
        self._floor, self._spread = floor, spread
        self.sums: Floats = np.zeros((5, len(versions)))
        """Per version: sums of w, w r, w^2, w^2 r, w^2 r^2."""

    def values(self) -> tuple[Floats, Floats]:
        """Means and standard errors `[K]` of the versions' rewards; each with one pseudo-reward of 0."""
        weight, paid, square, square_paid, square_square = self.sums
        mean = paid / (weight + 1)
        noise = square_square - 2 * mean * square_paid + mean**2 * square
        return mean, np.sqrt(np.maximum(noise, 0.0) + self._spread**2) / (weight + 1)

    @property
    def shares(self) -> dict[str, float]:
        mean, error = self.values()
        best = normal_best(mean, error**2)
        shares = (1 - self._floor) * best / best.sum() + self._floor / len(mean)
        return dict(zip(self.versions, shares.tolist(), strict=True))

    def snapshot(self) -> BanditPolicy:
        return Routed(list(self.versions.values()), list(self.shares.values()))

    def learn(self, decision: Decision, reward: float) -> None:
        if decision.choice.intervention.startswith("fallback"):
            return
        context, actions = decision.context, decision.actions
        logp = np.array([policy.logp(context, actions)[decision.executed] for policy in self._served_alone])
        most = math.log(len(logp) / self._floor)
        weight = np.exp(np.minimum(logp - decision.executed_logp, most))
        self.sums = self.sums + np.stack(
            [weight, weight * reward, weight**2, weight**2 * reward, weight**2 * reward**2]
        )

    def state(self) -> State:
        return {"sums": self.sums}

    def restore(self, state: State) -> None:
        sums = array(state, "sums").astype(np.float64)
        if sums.shape != self.sums.shape:
            raise DataError(f"the saved traffic is of {sums.shape[-1]} versions, not {len(self.versions)}")
        self.sums = sums


class ContinualLearner:
    """Learner of one tenant's decisions with a monitor on its residual.

    After an alarm a fresh learner takes over, taught by the rewards since the change. With `act = "recall"` the learner
    of each phase is kept, at most `most` of them, and goes on where its scores predict the rewards since a later change
    better than the served scores did. Rewards come in the order of their decisions' arrival in `learn`.
    """

    def __init__(
        self,
        make: Callable[[], BanditLearner],
        config: MonitorConfig,
        *,
        names: Sequence[str] = (),
        seed: int = 0,
        most: int = 8,
    ) -> None:
        self._make, self._most = make, most
        self.learner = make()
        self.alarms: list[MonitorAlarm] = []
        self.actions: list[DriftAction] = []
        self.version = "phase-0"
        """Name of the phase that is learnt now; recalls bring an older name back."""
        self._phases = 1
        self._shelf: dict[str, _ShelvedLearner] = {}
        self._left = self.version
        self._changed: MonitorAlarm | None = None
        self._responder = DriftResponder(config, self, self)
        self.monitor = ServiceMonitor(config, self._responder, names=names, seed=seed)
        self.served_periods: list[ServedPeriod] = []
        """Earlier periods of each phase, by number of rewards."""
        self._period, self._reason = 0, "first"

    @property
    def served(self) -> BanditPolicy:
        """The policy as it decides now."""
        return self.learner.policy

    def learn(self, decision: Decision, outcome: Outcome) -> None:
        """Take a decision with its reward: judge it, learn from it, and answer drift."""
        self.monitor.observe(decision)
        self.monitor.observe(outcome)
        if np.isfinite(outcome.value):
            self._teach([RewardedDecision(decision=decision, reward=outcome.value, predicted=0.0)])
        if self._changed is not None:
            self._start_anew(decision.tenant, self._changed)
        for action in self._responder.step(self.monitor, outcome.at_s):
            self.actions.append(action)
            if action.kind == "recall":
                self._go_on(action)

    def alarm(self, alarm: MonitorAlarm) -> None:
        """Take an alarm of the monitor."""
        self.alarms.append(alarm)
        if alarm.signal == self._responder.config.on:
            self._changed = alarm

    def older(self, tenant: str) -> Sequence[str]:
        """Names of the earlier phases, latest first, without the one that the last alarm ended: it learnt from the
        rewards that it would be judged by."""
        del tenant
        return [name for name in reversed(self._shelf) if name not in (self.version, self._left)]

    def policy(self, version: str) -> DecisionPolicy:
        """The policy at the end of a phase."""
        return self._shelf[version].policy

    def _start_anew(self, tenant: str, alarm: MonitorAlarm) -> None:
        self._changed, self._left = None, self.version
        self._end_period(tenant, "started anew")
        self._shelf.pop(self.version, None)
        self._shelf[self.version] = _ShelvedLearner(state=self.learner.state(), policy=self.learner.snapshot())
        if len(self._shelf) > self._most:
            del self._shelf[next(iter(self._shelf))]
        self.learner, self.version = self._make(), f"phase-{self._phases}"
        self._phases += 1
        self._teach(self.monitor.recent(tenant, alarm.recent))

    def _go_on(self, action: DriftAction) -> None:
        self._end_period(action.tenant, "recall")
        self.learner, self.version = self._make(), action.version
        self.learner.restore(self._shelf[action.version].state)
        self._teach(self.monitor.recent(action.tenant, action.count))

    def periods(self, tenant: str) -> list[ServedPeriod]:
        """All periods with the one that goes on."""
        return [*self.served_periods, self._running(tenant)]

    def _end_period(self, tenant: str, reason: str) -> None:
        self.served_periods.append(self._running(tenant))
        self._period, self._reason = self.monitor.rewards(tenant), reason

    def _running(self, tenant: str) -> ServedPeriod:
        return ServedPeriod(
            version=self.version, first=self._period, last=self.monitor.rewards(tenant), reason=self._reason
        )  # fmt: skip

    def _teach(self, rows: Sequence[RewardedDecision]) -> None:
        for row in rows:
            self.learner.learn(row.decision, row.reward)
