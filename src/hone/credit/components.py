"""Several reward functions at once: scores are normalised per reward function before they are added."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError, DataError
from hone.core.ragged import Ints
from hone.credit.group import Ddof
from hone.credit.grouping import STD_FLOOR, Floats, broadcast_advantage, centred, group_deviation


def gdpo(
    episodes: Episodes,
    _values: Values,
    *,
    weights: Sequence[float] | None = None,
    ddof: Ddof = 1,
    epsilon: float = 1e-4,
    over: Literal["answers", "decisions"] = "answers",
) -> Credits:
    """A = z over the batch of sum_c w_c (R_c - mean_g,c) / (std_g,c + epsilon) (GDPO, 2026, 2601.05242).

    Normalised per reward function first, so that one with a large range does not dominate the others; then over the
    batch's answers, again with epsilon; with `over="decisions"` over its decisions, so that long answers count more
    (verl). `weights` defaults to 1 each. The source must
    keep each function's score in `episodes.components`. A component that is missing for an answer leaves that
    component's statistics and adds nothing; a group is dead if it is dead in every component. Raises DataError without
    components and ConfigError for a wrong number of weights. Elsewhere: verl's epsilon is 1e-6 in the groups and 1e-8
    in the variance of its last step; TRL's name is `normalize_then_sum`.
    """
    components = episodes.components
    if components is None:
        raise DataError("gdpo needs episodes.components: the source must keep each reward function's score")
    factors = [1.0] * components.shape[1] if weights is None else weights
    if len(factors) != components.shape[1]:
        raise ConfigError(f"gdpo: {len(factors)} weights for {components.shape[1]} reward functions")
    scored = episodes.scored
    numbers = np.unique(episodes.group[scored], return_inverse=True)[1].astype(np.int64)
    total = np.zeros(len(numbers))
    alive = np.zeros(int(numbers.max(initial=-1)) + 1, dtype=np.bool_)
    for place, weight in enumerate(factors):
        component = components[scored, place]
        known = np.isfinite(component)
        advantage, dead = _standardised(component[known], numbers[known], ddof=ddof, epsilon=epsilon)
        total[known] += weight * advantage
        alive[numbers[known][~dead]] = True
    counted = total if over == "answers" else np.repeat(total, episodes.lengths[scored])
    deviation = counted.std(ddof=ddof) if len(counted) > 1 else 0.0
    if deviation > STD_FLOOR * np.abs(counted).max(initial=0.0):
        total = (total - counted.mean()) / (deviation + epsilon)
    return broadcast_advantage(episodes, np.where(alive[numbers], total, 0.0), ~alive)


def _standardised(values: Floats, groups: Ints, *, ddof: Ddof, epsilon: float) -> tuple[Floats, np.ndarray]:
    """One component's z-scores within its groups `[K]`, and the flags of its answers in dead groups `[K]`."""
    numbers = np.unique(groups, return_inverse=True)[1].astype(np.int64)
    deviation, dead = group_deviation(values, numbers, ddof=ddof)
    silent = dead[numbers]
    divisor = np.where(dead, 1.0, deviation + epsilon)
    return np.where(silent, 0.0, centred(values, numbers) / divisor[numbers]), silent
