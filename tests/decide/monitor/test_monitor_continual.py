"""A learner in a world that changes: it starts anew, keeps its phases, and goes on from the one that explains."""

import numpy as np

from hone.core.decisions import Decision, Outcome, decision_key
from hone.decide.bandits.greedy import LinUcbPolicy
from hone.decide.bandits.learning import BanditLearner
from hone.decide.bandits.models import LinearGaussianPosterior
from hone.decide.bandits.wrappers import EpsilonFloor
from hone.decide.monitor.config import MonitorConfig
from hone.decide.monitor.continual import ContinualLearner
from hone.decide.simulators.drifting import DriftingArms, abrupt_changes


def served(world: DriftingArms, config: MonitorConfig, *, most: int = 8) -> ContinualLearner:
    """A learner after every round of the world."""

    def make() -> BanditLearner:
        model = LinearGaussianPosterior(world.arms, world.features)
        return BanditLearner(EpsilonFloor(LinUcbPolicy(model, 0.5), 0.05), model, world.actions)

    learner = ContinualLearner(make, config, most=most)
    for t in range(world.rounds):
        choice = learner.served.act(world.contexts[t], world.actions, decision_key(world.seed, "shop", str(t)))
        decision = Decision(
            id=str(t), tenant="shop", unit=str(t), at_s=float(t), context=world.contexts[t], actions=world.actions,
            choice=choice, executed=choice.action, executed_logp=choice.logp, version="v", source="gate", seq=2 * t,
        )  # fmt: skip
        learner.learn(decision, Outcome(
            decision_id=str(t), tenant="shop", value=float(world.rewards[t, choice.action]), at_s=float(t),
            source="gate", seq=2 * t + 1,
        ))  # fmt: skip
    return learner


def make_world(regimes: list[int]) -> DriftingArms:
    return DriftingArms(
        rounds=800 * len(regimes), phases=abrupt_changes(800 * len(regimes), regimes), seed=7, arms=8, features=8,
        spread=3.0,
    )  # fmt: skip


def test_a_regime_that_comes_back_is_recalled() -> None:
    learner = served(make_world([0, 1, 0]), MonitorConfig(act="recall"))
    assert [alarm.signal for alarm in learner.alarms] == ["residual"] * 2
    recall = learner.actions[-1]
    assert (recall.kind, recall.version, learner.version) == ("recall", "phase-0", "phase-0")
    assert 1600 < recall.evidence.at_s <= 1900
    assert learner.learner.observed > 1200  # what phase 0 had learnt, and the rewards since
    assert list(learner.older("shop")) == []  # phase 0 goes on, and phase 1 has just ended


def test_without_recall_every_phase_starts_anew_and_the_shelf_is_bounded() -> None:
    learner = served(make_world([0, 1, 2, 0]), MonitorConfig(), most=1)
    assert len(learner.alarms) == 3
    assert {action.kind for action in learner.actions} == {"alert"}
    assert learner.version == "phase-3"
    assert learner.learner.observed < 900
    assert len(learner.older("shop")) == 0


def test_a_reward_that_is_not_finite_teaches_nothing() -> None:
    world = make_world([0])
    learner = served(world, MonitorConfig())
    known = learner.learner.observed
    choice = learner.served.act(world.contexts[0], world.actions, 1)
    decision = Decision(
        id="broken", tenant="shop", unit="u", at_s=900.0, context=world.contexts[0], actions=world.actions,
        choice=choice, executed=0, executed_logp=choice.logp, version="v", source="gate", seq=9999,
    )  # fmt: skip
    outcome = Outcome(decision_id="broken", tenant="shop", value=float("nan"), at_s=900.0, source="gate", seq=10_000)
    learner.learn(decision, outcome)
    assert learner.learner.observed == known
    assert learner.alarms[-1].signal == "not finite"
    assert np.isfinite(learner.served.logp(world.contexts[0], world.actions)).all()
