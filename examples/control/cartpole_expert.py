"""An expert that can be asked: a linear controller that balances CartPole-v1 for as long as an episode lasts."""

import numpy as np


def steady(observations: np.ndarray) -> np.ndarray:
    """`[n, 4]` (position, velocity, angle, angular velocity) -> `[n]` push right (1) or left (0)."""
    return (observations @ np.array([0.1, 0.4, 3.0, 1.0]) > 0.0).astype(np.int64)
