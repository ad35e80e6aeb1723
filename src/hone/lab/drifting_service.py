"""A service of LinUCB in a world that drifts: with a monitor, and without."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hone.core.decisions import ActionSet, Choice, Decision, Floats, Ints, Outcome, decision_key
from hone.decide.bandits.greedy import LinUcbPolicy
from hone.decide.bandits.learning import BanditLearner
from hone.decide.bandits.models import LinearGaussianPosterior
from hone.decide.bandits.wrappers import EpsilonFloor
from hone.decide.monitor.config import MonitorConfig
from hone.decide.monitor.continual import ContinualLearner, WindowEnsemble
from hone.decide.simulators.drifting import DriftingArms

_FLOOR, _ALPHA = 0.01, 0.5
"""Share of random actions of every policy, and the width of LinUCB's bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ServedRun:
    """A run of a service in a world."""

    share: float
    """Expected reward as a share of the best arm's."""
    shares: Floats = field(repr=False)
    """`[rounds]` the same of each round."""
    learner: ContinualLearner | None = None


def _fresh_learner(world: DriftingArms) -> BanditLearner:
    """LinUCB with a floor, before its first reward."""
    model = LinearGaussianPosterior(world.arms, world.features)
    return BanditLearner(EpsilonFloor(LinUcbPolicy(model, _ALPHA), _FLOOR), model, world.actions)


def serve_continually(world: DriftingArms, config: MonitorConfig) -> _ServedRun:
    """Serve with a monitor that answers drift."""
    learner = ContinualLearner(lambda: _fresh_learner(world), config, seed=world.seed)
    chosen = np.empty(world.rounds, np.int64)
    for t in range(world.rounds):
        context = world.contexts[t]
        choice = learner.served.act(context, world.actions, decision_key(world.seed, "shop", str(t)))
        chosen[t] = choice.action
        value = float(world.rewards[t, choice.action])
        learner.learn(*_records(t, context, world.actions, choice, value, learner.version))
    return _served(world, chosen, learner)


def serve_plainly(world: DriftingArms, *, resets: Sequence[int] = (), freeze: int | None = None) -> _ServedRun:
    """Serve without a monitor: starting anew at the rounds `resets`, and with no more learning from round `freeze`."""
    learner = _fresh_learner(world)
    chosen = np.empty(world.rounds, np.int64)
    for t in range(world.rounds):
        if t in resets:
            learner = _fresh_learner(world)
        context = world.contexts[t]
        choice = learner.policy.act(context, world.actions, decision_key(world.seed, "shop", str(t)))
        chosen[t] = choice.action
        if freeze is None or t < freeze:
            learner.observe(context[None], np.array([choice.action]), np.array([world.rewards[t, choice.action]]))
    return _served(world, chosen)


def serve_windows(world: DriftingArms, windows: Sequence[int]) -> _ServedRun:
    """Serve an ensemble of learners that forget with these windows, in rounds; 0: never."""
    learners: dict[str, BanditLearner] = {}
    for window in windows:
        discount = 1.0 - 1.0 / window if window else 1.0
        model = LinearGaussianPosterior(world.arms, world.features, discount=discount)
        policy = EpsilonFloor(LinUcbPolicy(model, _ALPHA), _FLOOR)
        learners[str(window)] = BanditLearner(policy, model, world.actions)
    ensemble, chosen = WindowEnsemble(learners), np.empty(world.rounds, np.int64)
    for t, context in enumerate(world.contexts):
        choice = ensemble.served.act(context, world.actions, decision_key(world.seed, "shop", str(t)))
        chosen[t] = choice.action
        value = float(world.rewards[t, choice.action])
        ensemble.learn(_records(t, context, world.actions, choice, value, "ensemble")[0], value)
    return _served(world, chosen)


def serve_table(contexts: Floats, right: Ints, seed: int, *, watched: bool) -> Floats:
    """Serve rows `[n, d]` of which one arm of ten, `right` `[n]`, pays 1 -> the rewards `[n]`.

    Without `watched` nothing is judged. The bound is 0.2 wide, and there is no floor.
    """
    arms = ActionSet(names=tuple(f"arm_{k}" for k in range(10)))

    def make() -> BanditLearner:
        model = LinearGaussianPosterior(len(arms), contexts.shape[1])
        return BanditLearner(LinUcbPolicy(model, 0.2), model, arms)

    config = MonitorConfig(feature_window=0, settle=200 if watched else len(contexts))
    learner, rewards = ContinualLearner(make, config, seed=seed), np.empty(len(contexts))
    for t, context in enumerate(contexts):
        choice = learner.served.act(context, arms, decision_key(seed, "table", str(t)))
        rewards[t] = choice.action == right[t]
        learner.learn(*_records(t, context, arms, choice, float(rewards[t]), learner.version))
    return rewards


def _records(
    t: int, context: Floats, arms: ActionSet, choice: Choice, value: float, version: str
) -> tuple[Decision, Outcome]:  # fmt: skip
    """The records of round t."""
    decision = Decision(
        id=str(t), tenant="shop", unit=str(t), at_s=float(t), context=context, actions=arms, choice=choice,
        executed=choice.action, executed_logp=choice.logp, version=version, source="gate", seq=2 * t,
    )  # fmt: skip
    return decision, Outcome(
        decision_id=str(t), tenant="shop", value=value, at_s=float(t), source="gate", seq=2 * t + 1
    )  # fmt: skip


def _served(world: DriftingArms, chosen: Ints, learner: ContinualLearner | None = None) -> _ServedRun:
    taken = world.rates[np.arange(world.rounds), chosen]
    return _ServedRun(share=world.share_of_best(chosen), shares=taken / world.rates.max(axis=1), learner=learner)
