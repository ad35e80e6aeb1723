"""Generalised advantages with one lambda for the policy and another for the critic, and what the critic explains.

Only decisions are steps, as in `credit.returns`: tokens that the environment wrote between two answers neither decay
nor end an advantage, and nothing is bootstrapped from them.
"""

import numpy as np
from numpy.typing import NDArray

from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError
from hone.credit.returns import discounted_sums, last_decisions, recurrence, scored_decisions, values_around

Floats = NDArray[np.float64]


def length_adaptive_lambda(lengths: NDArray[np.integer], scale: float) -> Floats:
    """lambda = 1 - 1 / (scale * length), at least 0, for episodes of `lengths` `[E]` decisions (VAPO, Yue et al., 2025,
    2504.05118, with scale 0.05): the sum of lambda's weights is proportional to the length."""
    return np.maximum(0.0, 1.0 - 1.0 / (scale * np.maximum(lengths, 1)))


def decoupled_gae(
    episodes: Episodes,
    values: Values,
    *,
    discount: float = 1.0,
    policy_lambda: float = 0.95,
    critic_lambda: float = 1.0,
    length_scale: float | None = None,
) -> Credits:
    """A by GAE with the policy's lambda, target = V + GAE with the critic's (VC-PPO, Yuan et al., 2025, 2503.01491).

    delta_t = r_t + discount * V_{t+1} - V_t; A_t = sum over k of (discount * policy_lambda)^k * delta_{t+k}; the target
    adds to V_t the same sum with `critic_lambda`, which is the return for 1: a target without the critic's own errors.
    With `length_scale` the policy's lambda is each episode's `length_adaptive_lambda`. An episode without a score has
    advantage 0 and its own values as target. Tells `critic/explained_variance` of the returns (lambda 1). Raises
    ConfigError without a critic, and for a lambda outside [0, 1].
    """
    for name, value in (("policy_lambda", policy_lambda), ("critic_lambda", critic_lambda)):
        if not 0.0 <= value <= 1.0:
            raise ConfigError(f"decoupled_gae: {name} = {value}; it must be in [0, 1]")
    worth, after = values_around(episodes, values, "decoupled_gae")
    step = episodes.reward + discount * after - worth
    adaptive = None if length_scale is None else length_adaptive_lambda(episodes.lengths, length_scale)
    decay = np.full(len(episodes), policy_lambda) if adaptive is None else adaptive
    factors = discount * np.repeat(decay, episodes.lengths)
    factors[last_decisions(episodes)[0]] = 0.0
    scored = scored_decisions(episodes)
    advantage = np.where(scored, recurrence(step, factors), 0.0)
    target = worth + np.where(scored, discounted_sums(step, episodes.offsets, discount * critic_lambda), 0.0)
    returns = worth + discounted_sums(step, episodes.offsets, discount)
    explained = explained_variance(worth[scored], returns[scored])
    return Credits(
        advantage=advantage.astype(np.float32),
        target=target.astype(np.float32),
        metrics={} if explained is None else {"critic/explained_variance": explained},
    )


def explained_variance(value: NDArray[np.floating], returns: NDArray[np.floating]) -> float | None:
    """1 - Var(returns - value) / Var(returns): 1 for a perfect critic, 0 for one that predicts the mean, below 0 for a
    worse one. None where there is no variance to explain."""
    spread = float(np.var(returns)) if len(returns) else 0.0
    if spread <= 1e-12 * float(np.abs(returns).max(initial=1.0)) ** 2:
        return None
    return 1.0 - float(np.var(returns - value)) / spread
