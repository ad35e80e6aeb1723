"""Estimators of a policy's value from trajectories: importance sampling per decision, and doubly robust.

With rho_t the product of target / behaviour probabilities up to step t, discount g, rewards r_t:

    trajectory-wise      sum over t of g^t rho_T r_t                                    T the last step
    per decision         sum over t of g^t rho_t r_t                                    Precup, Sutton and Singh, 2000
    doubly robust        v(s_0) + sum over t of g^t rho_t (r_t + g v(s_t+1) - q(s_t, a_t))       Jiang and Li, 2016

Each may be self-normalised: rho_t is divided at each t by its mean over the episodes (Thomas and Brunskill, 2016).
An episode that has ended keeps its last rho, with terms of 0.
"""

from dataclasses import dataclass

import numpy as np

from hone.core.decisions import Bools, Floats, Ints
from hone.decide.estimators.terms import EstimatorTerms


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedTrajectories:
    """E logged episodes of N decisions in total, one after another."""

    offsets: Ints
    """Bounds `[E+1]` of the episodes' decisions; no episode is empty."""
    logp: Floats
    """`[N]` nats: log-probability of each action under the behaviour policy."""
    target_logp: Floats
    """`[N]` nats: the same under the target policy."""
    reward: Floats
    """`[N]`."""
    discount: float
    """Discount factor in (0, 1]."""

    @property
    def episodes(self) -> int:
        """Number of episodes."""
        return len(self.offsets) - 1


def trajectory_wise(logged: LoggedTrajectories, *, normalised: bool = False) -> EstimatorTerms:
    """Importance sampling by whole trajectories: the discounted return times the product of all ratios."""
    there, ratio = _ratios(logged)
    last = ratio[:, -1:]
    returns = (_discounts(logged, there) * _table(logged.reward, there)).sum(axis=1, keepdims=True)
    return _trajectory_terms(np.zeros(logged.episodes), last * returns, last, normalised=normalised)


def per_decision(logged: LoggedTrajectories, *, normalised: bool = False) -> EstimatorTerms:
    """Per-decision importance sampling: a reward is weighted by the ratios of the actions before it only (Precup,
    Sutton and Singh, 2000)."""
    there, ratio = _ratios(logged)
    paid = _discounts(logged, there) * _table(logged.reward, there)
    return _trajectory_terms(np.zeros(logged.episodes), ratio * paid, ratio, normalised=normalised)


def doubly_robust_trajectories(
    logged: LoggedTrajectories, *, q: Floats, value: Floats, final_value: Floats, normalised: bool = False
) -> EstimatorTerms:
    """Doubly robust for trajectories (Jiang and Li, 2016); normalised: weighted doubly robust (Thomas and Brunskill).

    `q` `[N]`: model's action value of each decision; `value` `[N]`: its state value under the target, sum over a of
    pi(a) q(s, a); `final_value` `[E]`: state value after each episode's last step, 0 where it terminated.
    """
    there, ratio = _ratios(logged)
    after = np.append(value[1:], 0.0)
    after[logged.offsets[1:] - 1] = final_value
    error = logged.reward + logged.discount * after - q
    corrected = ratio * _discounts(logged, there) * _table(error, there)
    return _trajectory_terms(value[logged.offsets[:-1]], corrected, ratio, normalised=normalised)


def _trajectory_terms(base: Floats, numerator: Floats, ratio: Floats, *, normalised: bool) -> EstimatorTerms:
    return EstimatorTerms(base=base, numerator=numerator, denominator=ratio if normalised else np.ones_like(numerator))


def _ratios(logged: LoggedTrajectories) -> tuple[Bools, Floats]:
    """Mask of the steps that exist `[E, T]`, and rho `[E, T]`, an ended episode's last one repeated."""
    lengths = np.diff(logged.offsets)
    there = np.arange(int(lengths.max())) < lengths[:, None]
    return there, np.exp(_table(logged.target_logp - logged.logp, there).cumsum(axis=1))


def _table(values: Floats, there: Bools) -> Floats:
    """Values `[N]` as `[E, T]`, 0 after an episode's end."""
    table = np.zeros(there.shape)
    table[there] = values
    return table


def _discounts(logged: LoggedTrajectories, there: Bools) -> Floats:
    return logged.discount ** np.arange(there.shape[1], dtype=np.float64)
