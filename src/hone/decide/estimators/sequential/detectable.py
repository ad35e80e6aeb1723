"""Smallest fall of a mean that an e-process finds by a given number of events: the preview of a rollout's plan.

With n events of matched arms, a fall d of the mean and a standard deviation sd of the value, the log-wealth of stake s
is close to a Brownian motion with drift g = n (s d / 2 - s^2 sd^2 / 2) and variance v = n s^2 sd^2. It reaches
b = log(1/alpha) + cost, the cost of the other stakes, with the probability (Siegmund, 1985)

    Phi((g - b) / sqrt(v)) + exp(2 g b / v) Phi(-(g + b) / sqrt(v))

and the power is that of the best stake. Approximate: within about 5 points of simulated rollouts.
"""

import math
from statistics import NormalDist

from hone.decide.estimators.sequential.e_process import STAKES

_NORMAL = NormalDist()
_COST = 1.2
"""nats: price of eight stakes instead of the best one; set so that the power of simulated rollouts is met."""


def detection_power(fall: float, *, sd: float, events: int, alpha: float) -> float:
    """Probability that a fall of the mean is found within `events` events of both arms together."""
    if fall <= 0 or events < 1 or sd <= 0:
        return alpha if events >= 1 else 0.0
    return max(_crossing(stake, fall, sd, events, alpha) for stake in STAKES)


def _crossing(stake: float, fall: float, sd: float, events: int, alpha: float) -> float:
    barrier = -math.log(alpha) + _COST
    drift = events * (stake * fall / 2 - stake**2 * sd**2 / 2)
    spread = math.sqrt(events) * stake * sd
    reflected = 2 * drift * barrier / spread**2
    tail = _NORMAL.cdf(-(drift + barrier) / spread)
    return _NORMAL.cdf((drift - barrier) / spread) + (math.exp(min(reflected, 700)) * tail if tail > 0 else 0.0)


def detectable_fall(*, sd: float, events: int, alpha: float, power: float = 0.8, most: float = 1.0) -> float | None:
    """Smallest fall of the mean that is found with probability `power`; None: not even one of size `most`."""
    if detection_power(most, sd=sd, events=events, alpha=alpha) < power:
        return None
    low, high = 0.0, most
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (
            (low, middle) if detection_power(middle, sd=sd, events=events, alpha=alpha) >= power else (middle, high)
        )
    return high


def events_to_detect(fall: float, *, sd: float, alpha: float, power: float = 0.8) -> int | None:
    """Events of both arms after which a fall is found with probability `power`; None: more than 1e12."""
    high = 1
    while detection_power(fall, sd=sd, events=high, alpha=alpha) < power:
        high *= 2
        if high > 10**12:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (low, middle) if detection_power(fall, sd=sd, events=middle, alpha=alpha) >= power else (middle, high)
        )
    return high
