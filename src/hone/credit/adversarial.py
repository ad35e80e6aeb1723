"""Rewards from a discriminator's logit, which replace the environment's rewards in adversarial imitation (GAIL).

The logit l = log D - log(1 - D) is high where a decision resembles the expert's. Three increasing functions of it
differ in sign, which decides whether the end of an episode is favoured, because terminal states have value 0
(Kostrikov et al., Discriminator-Actor-Critic, 2019, on this bias).

| reward | sign | for environments in which |
|---|---|---|
| `positive_reward` | never below 0: favours long episodes | an end is a failure (a balance, a walk) |
| `negative_reward` | never above 0: favours termination | the end is the goal (a maze, a reach) |
| `log_odds_reward` | either, 0 at D = 1/2 | ends are of both kinds, or only a time limit ends an episode |

A time limit does not terminate: truncated episodes bootstrap from the critic's value of the final observation.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.credit.columns import CreditFunction, DecisionColumn, Floats, checked_column

LogitReward: TypeAlias = Callable[[Floats], Floats]
"""Logits `[N]` -> rewards `[N]`."""


def positive_reward(logit: Floats) -> Floats:
    """-log(1 - D) = softplus(l), above 0: GAIL's own (Ho and Ermon, 2016)."""
    return np.logaddexp(0.0, logit)


def negative_reward(logit: Floats) -> Floats:
    """log D = -softplus(-l), below 0."""
    return -np.logaddexp(0.0, -logit)


def log_odds_reward(logit: Floats) -> Floats:
    """log D - log(1 - D) = l, of either sign (AIRL's form: Fu et al., 2018)."""
    return logit


def with_imitation_reward(
    episodes: Episodes, values: Values, *, imitation_reward: DecisionColumn, credit: CreditFunction
) -> Credits:
    """`credit` with r = the imitation reward (GAIL: Ho and Ermon, 2016) in place of the environment's reward.

    Scores remain the environment's. Metric: `imitation/reward_mean`. Raises DataError where `imitation_reward` does not
    give one finite number per decision.
    """
    paid = checked_column(imitation_reward, episodes, "likeness")
    credits = credit(replace(episodes, reward=paid.astype(np.float32)), values)
    metrics = {"imitation/reward_mean": float(paid.mean())} if len(paid) else {}
    return replace(credits, metrics={**credits.metrics, **metrics})
