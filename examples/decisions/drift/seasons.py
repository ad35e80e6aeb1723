"""A shop with seasons: LinUCB under a monitor recalls what it knew of the season that comes back.

python examples/decisions/drift/seasons.py            a few seconds; writes seasons.html
"""

from pathlib import Path

from hone.core.decisions import Decision, Outcome, decision_key
from hone.decide.bandits.greedy import LinUcbPolicy
from hone.decide.bandits.learning import BanditLearner
from hone.decide.bandits.models import LinearGaussianPosterior
from hone.decide.bandits.wrappers import EpsilonFloor
from hone.decide.monitor.config import MonitorConfig
from hone.decide.monitor.continual import ContinualLearner
from hone.decide.monitor.page import write_monitor_page
from hone.decide.simulators.drifting import DriftingArms, abrupt_changes

shop = DriftingArms(rounds=4800, phases=abrupt_changes(4800, [0, 1, 0]), seed=7, arms=8, features=8, spread=3.0)


def fresh() -> BanditLearner:
    model = LinearGaussianPosterior(shop.arms, shop.features)
    return BanditLearner(EpsilonFloor(LinUcbPolicy(model, alpha=0.5), epsilon=0.05), model, shop.actions)


config = MonitorConfig(act="recall", feature_window=200)
learner = ContinualLearner(fresh, config, names=[f"feature {k}" for k in range(shop.features)])
for t, context in enumerate(shop.contexts):
    choice = learner.served.act(context, shop.actions, decision_key(0, "shop", str(t)))
    decision = Decision(
        id=str(t), tenant="shop", unit=str(t), at_s=t, context=context, actions=shop.actions, choice=choice,
        executed=choice.action, executed_logp=choice.logp, version=learner.version, source="shop", seq=2 * t,
    )  # fmt: skip
    reward = float(shop.rewards[t, choice.action])
    learner.learn(
        decision, Outcome(decision_id=str(t), tenant="shop", value=reward, at_s=t, source="shop", seq=2 * t + 1)
    )

for alarm in learner.alarms:
    print(f"at {alarm.count}: {alarm.words}")
for action in learner.actions:
    print(f"{action.kind} {action.version}: {action.evidence.words}")
write_monitor_page(Path("seasons.html"), learner.monitor, "shop", served=learner.periods("shop"))
