"""A shop ships three versions: the first one, a better one, and a broken one. Hours of traffic take seconds.

python shop.py                                  serves shop.toml and ships the versions, one after another
hone ship shop.toml --status --name r3          shows the last rollout
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hone.api import serve_decisions, ship
from hone.core.decisions import ActionSet
from hone.decide.bandits.greedy import EpsilonGreedyPolicy
from hone.decide.bandits.models import BetaBernoulliPosterior
from hone.decide.bandits.saving import save_policy

FILE = Path(__file__).with_name("shop.toml")
RATES = {"list": 0.2, "banner": 0.6}  # of purchases; the policies below have learnt it, or not


@dataclass
class SimulatedClock:
    """One request every two seconds, so that nobody has to wait."""

    time_s: float = 1_800_000_000.0

    def now_s(self) -> float:
        return self.time_s

    def monotonic_s(self) -> float:
        return self.time_s


def save_version(name: str, better: int, epsilon: float) -> Path:
    """Save a policy that takes the action `better`, and any with probability `epsilon`."""
    model = BetaBernoulliPosterior(2)
    rows = np.full(20, better)
    actions = ActionSet(names=("list", "banner"))
    model.observe(np.zeros((20, 0)), rows, np.ones(20), np.ones(20), actions)
    save_policy(EpsilonGreedyPolicy(model, epsilon), FILE.parent / "policies" / name)
    return FILE.parent / "policies" / name


clock, random = SimulatedClock(), np.random.default_rng(100)
visitors, live = 0, ""
with serve_decisions(FILE, clock=clock) as shop:
    for name, (better, epsilon) in {"first": (1, 0.8), "better": (1, 0.2), "broken": (0, 0.1)}.items():
        with ship(save_version(name, better, epsilon), to=FILE, parent=live, clock=clock) as ramp:
            while not ramp.state.finished:
                for transition in ramp.step():
                    print(f"{name}: {transition.before} -> {transition.after}: {transition.words}")
                for visitor in range(visitors, visitors + 100):
                    clock.time_s += 2
                    decided = shop.decide(unit=f"visitor-{visitor}", id=f"visit-{visitor}")
                    shop.reward(decided.id, float(random.random() < RATES[decided.action]))
                visitors += 100
            live = ramp.plan.version if ramp.state.stage == "100%" else live
