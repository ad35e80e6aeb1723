"""Betting e-process for bounded scores, in its mixture form (Waudby-Smith and Ramdas, 2020; Shafer, 2021).

Null hypothesis: given the past, E[z_t] <= 0, for scores z_t in [-1, 1]. A gambler who stakes the share s of a wealth
of 1 on "z > 0" holds

    W_t(s) = prod_{i <= t} (1 + s z_i)

a nonnegative supermartingale under the null for each s in [0, 1), and so is the mean over K fixed stakes,

    e_t = 1/K sum_k W_t(s_k).

By Ville's inequality P(there is a t with e_t >= 1/alpha) <= alpha: the test may be looked at after every event, through
every stage, and spends alpha once. Nothing is asymptotic; the scores may depend on the past.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

STAKES: Final = tuple(float(f"{stake:.6g}") for stake in np.geomspace(0.02, 0.9, 8))
"""Eight fixed stakes from .02 (small effects, long rollouts) to .9 (a version that fails at once)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureProcess:
    """E-process after `count` scores. Immutable: `advance` returns the next one."""

    log_wealth: tuple[float, ...] = (0.0,) * len(STAKES)
    """nats: log-wealth of each stake."""
    count: int = 0

    @property
    def log_e(self) -> float:
        """nats: logarithm of the e-value now."""
        return float(log_mean_exp(np.array(self.log_wealth)))

    def advance(self, scores: Floats) -> tuple["MixtureProcess", Floats]:
        """Take scores `[n]` in [-1, 1] -> the next process, and log e after each of them `[n]`."""
        if not len(scores):
            return self, np.zeros(0)
        wealth = mixture_wealth(scores, start=np.array(self.log_wealth))
        last = tuple(float(value) for value in wealth[-1])
        return MixtureProcess(log_wealth=last, count=self.count + len(scores)), log_mean_exp(wealth)


def mixture_wealth(scores: Floats, *, start: Floats | float = 0.0) -> Floats:
    """Log-wealth of each stake after each score `[..., n]` -> `[..., n, K]` in nats. Raises ValueError beyond [-1, 1].

    `start` `[K]` is the log-wealth before the first score. Sums run in order, so that batches make no difference.
    """
    if not np.all(np.abs(scores) <= 1):  # NaN too
        worst = scores.ravel()[int(np.argmax(np.nan_to_num(np.abs(scores.ravel()), nan=np.inf)))]
        raise ValueError(f"scores of an e-process lie in [-1, 1], got {worst}; scale them by their bounds")
    steps = np.log1p(scores[..., None] * np.array(STAKES))
    steps[..., 0, :] += start
    return np.cumsum(steps, axis=-2)


def log_mean_exp(values: Floats) -> Floats:
    """log of the mean of exp(values) over the last axis, without overflow."""
    top = values.max(axis=-1)
    return top + np.log(np.exp(values - top[..., None]).mean(axis=-1))


def mixture_paths(scores: Floats) -> Floats:
    """log e after each score of many runs at once `[..., n]` -> `[..., n]` in nats."""
    return log_mean_exp(mixture_wealth(scores))


def shared_log_e(log_e: Sequence[float]) -> float:
    """E-value of several guardrails together, in nats: the mean of their e-values is an e-process.

    It holds for any dependence between them, so alpha is spent once for all.
    """
    if not log_e:
        return 0.0
    return float(log_mean_exp(np.array(log_e, dtype=np.float64)))


def alarm_at(log_e: Floats, alpha: float) -> int | None:
    """Place of the first log e-value `[n]` that reaches log(1/alpha); None: none does."""
    reached = np.flatnonzero(log_e >= -math.log(alpha))
    return int(reached[0]) if len(reached) else None
