"""Credit for being taken for the expert: what a discriminator's logit pays, in the place of what the world pays.

The logit l = log D - log(1 - D) is high where a decision looks like one of the expert's. Three functions of it rise
together, and differ in their sign, which is what they say of the end of an episode: beyond an end nothing is paid, so
its worth is 0 (Kostrikov et al., Discriminator-Actor-Critic, 2019, on this bias).

| pays | sign | asks for a world in which |
|---|---|---|
| `positive` | never below 0: living on pays | an end is a failure (a balance, a walk) |
| `negative` | never above 0: every step costs | the end is the goal (a maze, a reach) |
| `odds` | either, 0 where nobody can tell | ends are of both kinds, or only a clock ends an episode |

A limit of time is no end: whoever is cut off there is credited with the critic's value of what was seen last, whatever
the sign.
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
    """`credit` of r = likeness (GAIL: Ho and Ermon, 2016) in the place of what the world paid, which nothing is learned
    from.

    Scores stay the world's own. The mean of what was paid instead is `imitation/reward_mean`. Raises DataError where
    `likeness` does not give one finite number per decision.
    """
    paid = checked_column(imitation_reward, episodes, "likeness")
    credits = credit(replace(episodes, reward=paid.astype(np.float32)), values)
    told = {"imitation/reward_mean": float(paid.mean())} if len(paid) else {}
    return replace(credits, metrics={**credits.metrics, **told})
