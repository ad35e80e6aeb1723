"""Stitching task: no logged episode solves it, but parts of two episodes combined do.

Two halves, each a fork into two lanes, one with a reward of 1 at its end. Every logged episode takes the rewarded lane
in exactly one half, more than half of them in the first. So each returns 1, imitation of the most frequent action (or
of the best episodes) returns 1, and dynamic programming over the logged steps returns 2. The exact solution is known
from the table.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from hone.control.finite.model import FiniteMdp, MdpOutcomes, make_mdp
from hone.control.logs.parquet import BehaviourLog
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError
from hone.core.random import generator

FORWARD = 1
"""Action along a lane; the other action, never logged, terminates the episode."""
PAYING = (1, 0)
"""Rewarded lane of each half."""


def state_count(length: int) -> int:
    """Number of states of two forks and four lanes. Raises ConfigError for a length below 1."""
    if length < 1:
        raise ConfigError(f"the lanes have length {length}, expected at least 1")
    return 2 * (1 + 2 * length)


def stitching_step(state: int, action: int, length: int) -> tuple[int, float, bool]:
    """Next state, reward, and whether the episode terminates."""
    half, place = divmod(state, 1 + 2 * length)
    fork = half * (1 + 2 * length)
    if place == 0:
        return fork + 1 + action * length, 0.0, False
    lane, step = divmod(place - 1, length)
    if action != FORWARD:
        return state, 0.0, True
    if step < length - 1:
        return state + 1, 0.0, False
    paid = float(lane == PAYING[half])
    return (1 + 2 * length, paid, False) if half == 0 else (state, paid, True)


def stitching_mdp(*, length: int = 3, discount: float = 0.99) -> FiniteMdp:
    """Build the table. The optimal value of the start is discount^length + discount^(2 length + 1)."""
    count = state_count(length)
    pairs = [(state, action) for state in range(count) for action in range(2)]
    after, reward, ends = zip(*(stitching_step(state, action, length) for state, action in pairs), strict=True)
    state, action = (np.array(column) for column in zip(*pairs, strict=True))
    start = np.zeros(count)
    start[0] = 1.0
    outcomes = MdpOutcomes(
        state=state,
        action=action,
        next_state=np.array(after),
        probability=np.ones(len(pairs)),
        reward=np.array(reward),
        terminates=np.array(ends),
    )
    return make_mdp(outcomes, states=count, actions=2, start=start, discount=discount)


def stitching_log(
    *, length: int = 3, episodes: int = 200, first_half_share: float = 0.6, seed: int = 0
) -> BehaviourLog:
    """Generate `episodes` logged episodes; a share of `first_half_share` (0.5 to 1) has its reward in the first half.

    Raises ConfigError for a share with which the most frequent actions would be optimal.
    """
    if not 0.5 < first_half_share < 1:
        raise ConfigError(
            f"share = {first_half_share}: with 0.5 < share < 1 the log's most frequent actions are not optimal"
        )
    first = round(first_half_share * episodes)
    kind = generator(seed, "stitching").permutation(np.arange(episodes) < first)
    lanes = {True: (PAYING[0], 1 - PAYING[1]), False: (1 - PAYING[0], PAYING[1])}
    paths = {bool(paid): _path(lanes[bool(paid)], length) for paid in (True, False)}
    steps = [step for paid in kind for step in paths[bool(paid)]]
    seen, chosen, reward, after = (np.array(column) for column in zip(*steps, strict=True))
    each = 2 * (1 + length)
    density = np.zeros(len(steps), np.float32)
    took = {True: np.log(first_half_share), False: np.log1p(-first_half_share)}
    density[::each] = [took[bool(paid)] for paid in kind]
    return BehaviourLog(
        episodes=Episodes(
            offsets=np.arange(0, episodes * each + 1, each, dtype=np.int64),
            seen=seen,
            chosen=chosen,
            logp=density,  # the second fork is determined by the first
            version=np.zeros(len(steps), np.int32),
            reward=reward.astype(np.float32),
            group=np.arange(episodes, dtype=np.int64),
            terminated=np.ones(episodes, np.bool_),
            truncated=np.zeros(episodes, np.bool_),
            final=after[each - 1 :: each],
            score=reward.reshape(episodes, each).sum(axis=1).astype(np.float64),
        ),
        observation_space=spaces.Discrete(state_count(length)),
        action_space=spaces.Discrete(2),
    )


def _path(lanes: tuple[int, int], length: int) -> list[tuple[int, int, float, int]]:
    """States, actions, rewards and next states of an episode in these lanes."""
    state, ended, steps = 0, False, list[tuple[int, int, float, int]]()
    while not ended:
        half, place = divmod(state, 1 + 2 * length)
        action = FORWARD if place else lanes[half]
        after, reward, ended = stitching_step(state, action, length)
        steps.append((state, action, reward, after))
        state = after
    return steps


class StitchingEnv(gymnasium.Env[Any, Any]):
    """Stitching task as a Gymnasium environment, `hone/Stitching-v0`. An episode has at most 2 (1 + length) steps."""

    def __init__(self, length: int = 3) -> None:
        self.length = length
        self.observation_space = spaces.Discrete(state_count(length))
        self.action_space = spaces.Discrete(2)
        self.state = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.state = 0
        return self.state, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.state, reward, ended = stitching_step(self.state, int(action), self.length)
        return self.state, reward, ended, False, {}
