"""A shop's log of 8,000 decisions by one policy, and two candidates that learn from its first half.

Writes decisions.db, and the candidates' folders `candidates/careful` and `candidates/bold`.
"""

from contextlib import closing
from pathlib import Path

import numpy as np

from hone.decide.bandits.greedy import BoltzmannPolicy, EpsilonGreedyPolicy
from hone.decide.bandits.models import LinearGaussianPosterior
from hone.decide.bandits.saving import save_policy
from hone.decide.joins.view import take_decisions
from hone.decide.log.opening import open_decision_log
from hone.decide.simulators.logged_choices import logged_choice_world, logged_records

world = logged_choice_world(1)
table = world.log(8_000, seed=100)
with closing(open_decision_log("decisions.db")) as log:
    log.append(list(logged_records(table)))

first_half = take_decisions(table, np.arange(4_000))
model = LinearGaussianPosterior(arms=len(world.actions), features=table.contexts.shape[1])
weights = np.ones(len(first_half))
model.observe(first_half.contexts, first_half.executed, first_half.reward, weights, world.actions)
save_policy(BoltzmannPolicy(model, temperature=0.3), Path("candidates/careful"))
save_policy(EpsilonGreedyPolicy(model, epsilon=0.0), Path("candidates/bold"))
