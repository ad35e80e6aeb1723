"""Advantages and value targets from rewards over time: returns, GAE, n-step and one-step targets.

Arithmetic on rewards and values, over pieces of episodes of any lengths at once. A terminated piece has value 0 beyond
its end; any other (truncated by a limit, or cut by the end of a rollout) has the value of its final observation. Where
a piece both terminated and was truncated, termination wins.

Only decisions are steps. Environment turns between two decisions of a conversation (tool output) are not: value and
advantage are carried over them without discount, as in verl, AReaL and NeMo-RL; slime, SkyRL and TRL recur over those
positions too. An episode with a missing score has advantage 0 and, with a critic, its own value as target: a failed
reward function does not mean a reward of 0.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError
from hone.core.ragged import Ints
from hone.credit.grouping import DecisionColumn, behaviour_logp, checked_column

Floats = NDArray[np.float64]


def discounted_sums(values: NDArray[np.floating], offsets: Ints, factor: float) -> Floats:
    """Sum over k >= 0 of factor^k * values[t + k], within each row of a ragged array -> `[N]`, float64.

    By doubling: sums over windows of 1, 2, 4, ... decisions, so the work is N * log2(longest row).
    """
    total = values.astype(np.float64)
    left = _left(offsets)
    longest, width, weight = int(np.diff(offsets).max(initial=0)), 1, factor
    while width < longest and weight != 0.0:
        reaches = left[:-width] > width
        total[:-width] += np.where(reaches, weight * total[width:], 0.0)  # numpy evaluates the right side before adding
        width, weight = 2 * width, weight * weight
    return total


def recurrence(values: NDArray[np.floating], factors: NDArray[np.floating]) -> Floats:
    """x_t = values_t + factors_t x_{t+1} -> `[N]`, float64; a factor of 0 ends a row, and the last must be 0.

    By doubling, as `discounted_sums`: after each round an entry spans twice as many decisions.
    """
    total, reach = values.astype(np.float64), factors.astype(np.float64)
    width = 1
    while width < len(total) and reach.any():
        total[:-width] += reach[:-width] * total[width:]
        reach[:-width] *= reach[width:]
        width *= 2
    return total


def gae(episodes: Episodes, values: Values, *, discount: float, gae_lambda: float) -> Credits:
    """Generalised advantage estimation (Schulman et al., 2016, 1506.02438).

    delta_t = r_t + discount * V_{t+1} - V_t; A_t = sum over k of (discount * gae_lambda)^k * delta_{t+k}; target = A +
    V. After the last decision of a piece, V_{t+1} is 0 if it terminated and `values.final` otherwise.

    Elsewhere: most language-model trainers treat a truncated answer as terminated; AReaL bootstraps it, as here. SkyRL
    reads V of padding after the last token. Whitening is a separate wrapper (`whitened`, `standardised`).
    """
    worth, after = values_around(episodes, values, "gae")
    advantage = discounted_sums(episodes.reward + discount * after - worth, episodes.offsets, discount * gae_lambda)
    return _above(episodes, worth, advantage)


def td_lambda(episodes: Episodes, values: Values, *, discount: float, trace_lambda: float) -> Credits:
    """TD(lambda): the lambda-return as target, and its difference to the value as advantage (Sutton, 1988).

    G_t = r_t + discount * [(1 - trace_lambda) V_{t+1} + trace_lambda G_{t+1}], with G = V beyond the end of a piece.
    trace_lambda 0 is the one-step target, 1 the return. The same numbers as `gae`, by another recursion.
    """
    worth, after = values_around(episodes, values, "td_lambda")
    step = episodes.reward + discount * (1 - trace_lambda) * after
    last, _ = last_decisions(episodes)
    step[last] += discount * trace_lambda * after[last]
    return _above(episodes, worth, discounted_sums(step, episodes.offsets, discount * trace_lambda) - worth)


def n_step(episodes: Episodes, values: Values, *, discount: float, steps: int) -> Credits:
    """n-step returns as target, and their difference to the value as advantage (Sutton & Barto, 2018, chapter 7).

    G_t = r_t + ... + discount^(m-1) r_{t+m-1} + discount^m V_{t+m}, m = min(steps, decisions left in the piece). Raises
    ConfigError for less than one step.
    """
    if steps < 1:
        raise ConfigError(f"n_step: steps = {steps}; it must be at least 1")
    worth, after = values_around(episodes, values, "n_step")
    ahead = np.minimum(steps, _left(episodes.offsets))
    power = discount**ahead
    end = np.arange(episodes.decisions) + ahead
    whole = np.append(discounted_sums(episodes.reward, episodes.offsets, discount), 0.0)
    beyond = np.where(ahead == _left(episodes.offsets), 0.0, whole[end])  # what is paid after the window
    return _above(episodes, worth, whole[:-1] - power * beyond + power * after[end - 1] - worth)


def discounted_returns(episodes: Episodes, values: Values, *, discount: float) -> Credits:
    """Discounted return to go, as advantage and target; a critic, if any, only bootstraps pieces that did not
    terminate.

    Without a critic (`values` empty) nothing is added beyond the end: a truncated episode is treated as terminated.
    With `discount=1` and a score at the end, every decision is credited with the score (REINFORCE, Williams 1992).
    """
    reward = episodes.reward.astype(np.float64)
    if len(values.final):
        last, owners = last_decisions(episodes)
        reward[last] += np.where(episodes.terminated[owners], 0.0, discount * values.final[owners])
    total = discounted_sums(reward, episodes.offsets, discount)
    scored = scored_decisions(episodes)
    target = np.where(scored, total, values.value if len(values.value) else 0.0).astype(np.float32)
    return Credits(advantage=np.where(scored, total, 0.0).astype(np.float32), target=target)


def reward_as_advantage(episodes: Episodes, values: Values) -> Credits:
    """A = r: each decision is credited with its own reward (bandits, imitation)."""
    del values
    return Credits(advantage=episodes.reward)


def expected_baseline(episodes: Episodes, values: Values) -> Credits:
    """A = r - sum_a pi(a) r(a) of episodes that hold every action of a state once, with its probability: where rewards
    are counterfactual values, the instantaneous regret (Zinkevich et al., 2007)."""
    del values
    share = np.exp(episodes.logp.astype(np.float64)) * episodes.reward
    mean = np.bincount(episodes.owner, share, minlength=len(episodes))
    return Credits(advantage=(episodes.reward - mean[episodes.owner]).astype(np.float32))


def one_step_target(episodes: Episodes, values: Values, *, discount: float) -> Credits:
    """The parts of r + discount * V(s'): reward as advantage, and a discount that is 0 at terminal states (Watkins,
    1989).
    """
    del values
    factor = np.full(episodes.decisions, discount, dtype=np.float32)
    last, owners = last_decisions(episodes)
    factor[last[episodes.terminated[owners]]] = 0.0
    return Credits(advantage=episodes.reward, discount=factor)


def standardised(credits: Credits) -> Credits:
    """A = (A - mean) / (std + 1e-8) over all decisions of the batch (PPO's code, 2017); std of a population (ddof 0).

    Ignores missing scores: where there may be any, use `whitened` of credit.reinforce.
    """
    advantage = credits.advantage
    if len(advantage) < 2:
        return credits
    return replace(credits, advantage=(advantage - advantage.mean()) / (advantage.std() + 1e-8))


def scored_decisions(episodes: Episodes) -> NDArray[np.bool_]:
    """Flags of decisions whose episode has a score `[N]`."""
    return np.repeat(episodes.scored, episodes.lengths)


def values_around(episodes: Episodes, values: Values, name: str) -> tuple[Floats, Floats]:
    """V of the observation before `[N]` and after `[N]` each decision; raises ConfigError without a critic."""
    if len(values.value) != episodes.decisions or len(values.final) != len(episodes):
        raise ConfigError(
            f"{name} needs a critic: {len(values.value)} values for {episodes.decisions} decisions, "
            f"{len(values.final)} for the ends of {len(episodes)} episodes"
        )
    worth = values.value.astype(np.float64)
    after = np.empty_like(worth)
    after[:-1] = worth[1:]
    last, owners = last_decisions(episodes)
    after[last] = np.where(episodes.terminated[owners], 0.0, values.final[owners])
    return worth, after


def _above(episodes: Episodes, worth: Floats, advantage: Floats) -> Credits:
    """Target minus value as advantage; missing scores get advantage 0 and their own value as target."""
    if not episodes.scored.all():
        advantage = np.where(scored_decisions(episodes), advantage, 0.0)
    return Credits(advantage=advantage.astype(np.float32), target=(advantage + worth).astype(np.float32))


def _left(offsets: Ints) -> Ints:
    """Decisions from each one to its row's end, itself included `[N]`."""
    lengths = np.diff(offsets)
    return np.repeat(offsets[1:], lengths) - np.arange(int(offsets[-1]))


def last_decisions(episodes: Episodes) -> tuple[Ints, Ints]:
    """Position of the last decision of each episode that has one, and the numbers of those episodes."""
    owners = np.flatnonzero(episodes.lengths > 0)
    return episodes.offsets[1:][owners] - 1, owners


# --------------------------------------------------------------------------------------------------------------- vtrace


LOG_RATIO_BOUND = 20.0


def v_trace(
    episodes: Episodes,
    values: Values,
    *,
    current: DecisionColumn,
    discount: float,
    trace_lambda: float = 1.0,
    ratio_cap: float = 1.0,
    trace_cap: float = 1.0,
) -> Credits:
    """V-trace (IMPALA, Espeholt et al., 2018, 1802.01561).

    ratio_t = pi(a_t) / mu(a_t); rho_t = min(ratio_cap, ratio_t); c_t = trace_lambda * min(trace_cap, ratio_t); delta_t
    = rho_t (r_t + discount V_{t+1} - V_t); v_t = V_t + delta_t + discount c_t (v_{t+1} - V_{t+1}); A_t = rho_t (r_t +
    discount v_{t+1} - V_t); target = v. Beyond the end of a piece v and V are 0 if it terminated and `values.final`
    otherwise.

    `current` gives log pi of each action under the current policy, in nats `[N]`; mu is `episodes.logp`. A includes
    rho_t: use the loss -A log pi, without another ratio. On-policy (ratio 1) the target is that of `gae`, while A is r
    + discount v' - V, which equals GAE for trace_lambda 1 only. ratio_cap determines which policy's value is learned,
    trace_cap the speed. Log-ratios are clamped to +-20 before exp. Raises ConfigError without a critic or for a
    ratio_cap below trace_cap (the paper requires rho-bar >= c-bar), DataError where a log-probability is not finite.
    """
    worth, after = values_around(episodes, values, "v_trace")
    if not 0 < trace_cap <= ratio_cap:
        raise ConfigError(f"v_trace: trace_cap = {trace_cap} must be in (0, ratio_cap = {ratio_cap}]")
    behaviour = checked_column(behaviour_logp, episodes, "the recorded log-probability")
    gap = checked_column(current, episodes, "the current log-probability") - behaviour
    ratio = np.exp(np.clip(gap, -LOG_RATIO_BOUND, LOG_RATIO_BOUND))
    rho, trace = np.minimum(ratio_cap, ratio), discount * trace_lambda * np.minimum(trace_cap, ratio)
    last, _ = last_decisions(episodes)
    trace[last] = 0.0
    target = worth + recurrence(rho * (episodes.reward + discount * after - worth), trace)
    corrected = np.append(target[1:], 0.0)[: len(target)]
    corrected[last] = after[last]
    advantage = rho * (episodes.reward + discount * corrected - worth)
    scored = scored_decisions(episodes)
    return Credits(
        advantage=np.where(scored, advantage, 0.0).astype(np.float32),
        target=np.where(scored, target, worth).astype(np.float32),
        metrics={"credit/ratio_capped": float((ratio > ratio_cap).mean()) if len(ratio) else 0.0},
    )


# -------------------------------------------------------------------------------------------------------- decoupled gae
# Generalised advantages with one lambda for the policy and another for the critic, and what the critic explains.
#
# Only decisions are steps, as in `credit.returns`: tokens that the environment wrote between two answers neither decay
# nor end an advantage, and nothing is bootstrapped from them.


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
