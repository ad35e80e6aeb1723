"""Streams on which detectors of drift are tried."""

import numpy as np
from numpy.typing import NDArray

from hone.core.random import generator

Floats = NDArray[np.float64]


def bernoulli(rates: list[float], each: int, seed: int) -> Floats:
    """0 and 1, `each` values of every rate."""
    return (generator(seed, "bernoulli").random(each * len(rates)) < np.repeat(rates, each)).astype(np.float64)


def normal(means: list[float], each: int, seed: int) -> Floats:
    """Normal values of standard deviation 1, `each` of every mean."""
    return generator(seed, "normal").standard_normal(each * len(means)) + np.repeat(means, each)


def golden_streams() -> list[Floats]:
    """Streams of ADWIN's golden alarms."""
    each = [(bernoulli([0.3, 0.5, 0.2, 0.8], 800, seed), normal([0.0, 0.5, 3.0], 800, seed)) for seed in range(3)]
    ramp = normal([0.0], 2500, 7) * 0.5 + np.linspace(0.0, 2.0, 2500)
    return [stream for pair in each for stream in pair] + [ramp, np.repeat([0.5, 0.6, 0.6], 300), np.zeros(700)]
