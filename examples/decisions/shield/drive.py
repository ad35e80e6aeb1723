"""A careless driver on a road, with the shield's service between the driver and the car.

hone shield car.toml        proves the shield and writes car.json
python drive.py             600 decisions through service.toml, each in the decision log with its probability
"""

from collections import Counter
from pathlib import Path

import gymnasium
import numpy as np

from hone.api import serve_decisions
from hone.control.environments.registration import register_builtin_envs
from hone.core.decisions import ActionSet
from hone.decide.bandits.greedy import EpsilonGreedyPolicy
from hone.decide.bandits.models import BetaBernoulliPosterior
from hone.decide.bandits.saving import save_policy

FOLDER = Path(__file__).parent
names = ("full_brake", "brake_hard", "ease", "keep", "accelerate")
model = BetaBernoulliPosterior(len(names))  # it was rewarded for speed only
model.observe(np.zeros((20, 0)), np.full(20, 4), np.ones(20), np.ones(20), ActionSet(names=names))
save_policy(EpsilonGreedyPolicy(model, epsilon=0.1), FOLDER / "careless")

register_builtin_envs()
road = gymnasium.make("hone/CarFollowing-v0", max_episode_steps=600)
seen, _ = road.reset(seed=100)
crashes, reasons = 0, Counter[str]()
with serve_decisions(FOLDER / "service.toml") as driver:
    for step in range(600):
        context = dict(zip(("gap", "speed", "lead"), seen.tolist(), strict=True))
        decided = driver.service.decide(unit="car-1", context=context, id=f"step-{step}")
        seen, _, crashed, _, _ = road.step(decided.index)
        crashes += crashed
        reasons[decided.intervention or "the driver's own action"] += 1
print(f"{crashes} crashes; {dict(reasons)}")
