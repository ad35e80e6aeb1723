"""Environments that a stranger could bring: own spaces, masks, memory, ends, vectors and types of numbers in unusual
combinations, each with a known best return. Written without a look at what hone reads: rows of `worlds.py`.
"""

from decimal import Decimal
from fractions import Fraction
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv


class Workshop(gymnasium.Env[Any, Any]):
    """Five jobs: name the tool that lamps and a shelf point at. Only it, its neighbour and "pass" are legal, as a leaf
    of a nested observation tells; tools are numbered from 5. An illegal action raises. The best return is 5."""

    observation_space = spaces.Dict(
        {
            "room": spaces.Dict(
                {
                    "lamps": spaces.MultiBinary(2),
                    "shelf": spaces.Tuple((spaces.Discrete(2, start=7), spaces.Box(-np.inf, np.inf, (), np.float64))),
                }
            ),
            "action_mask": spaces.Box(0, 1, (9,), np.int8),
        }
    )
    action_space = spaces.Discrete(9, start=5)

    def _seen(self) -> Any:
        self.tool = int(self.np_random.integers(8))
        self.mask = np.zeros(9, np.int8)
        self.mask[[self.tool, (self.tool + 1) % 8, 8]] = 1
        lamps = np.array([self.tool & 1, self.tool >> 1 & 1], np.int8)
        shelf = (np.int64(7 + (self.tool >> 2)), np.array(1e3 * self.jobs))
        return {"room": {"lamps": lamps, "shelf": shelf}, "action_mask": self.mask}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.jobs = 0
        return self._seen(), {"version": "a"}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if not self.mask[int(action) - 5]:
            raise ValueError(f"there is no tool {action}")
        reward = float(int(action) - 5 == self.tool)
        self.jobs += 1
        return self._seen(), reward, self.jobs == 5, False, {}


class MixingDesk(gymnasium.Env[Any, Any]):
    """Six mixes by a Tuple of a channel, two faders and a switch. The observation, a Tuple, tells all three. A mix pays
    a half for channel and switch, and a half less the mean distance of the faders. The best return is 6."""

    observation_space = spaces.Tuple((spaces.MultiDiscrete([3, 2]), spaces.Box(-2.0, 3.0, (2, 1), np.float64)))
    action_space = spaces.Tuple(
        (spaces.Discrete(3), spaces.Box(np.array([-2.0, -2.0]), np.array([3.0, 3.0]), dtype=np.float64),
         spaces.MultiBinary(1))
    )  # fmt: skip

    def _seen(self) -> Any:
        self.channel, self.switch = int(self.np_random.integers(3)), int(self.np_random.integers(2))
        self.levels = self.np_random.choice([-1.0, 1.5], 2)
        return np.array([self.channel, self.switch]), self.levels[:, None]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        channel, faders, switch = action
        named = int(channel) == self.channel and int(switch[0]) == self.switch
        reward = 0.5 * named + 0.5 - 0.5 * float(np.abs(np.asarray(faders) - self.levels).mean())
        self.time += 1
        return self._seen(), np.float64(reward), np.bool_(self.time == 6), np.bool_(False), {}


class PhotoAndGauges(gymnasium.Env[Any, Any]):
    """Eight steps: a picture of 12 x 12 shows in which quarter a bright square is, gauges tell by how much to turn it;
    the action is their sum modulo 4. Rewards are numpy's bools. The best return is 8."""

    observation_space = spaces.Dict(
        {"photo": spaces.Box(0, 255, (12, 12, 1), np.uint8), "gauges": spaces.Box(-1.0, 1.0, (2,), np.float32)}
    )
    action_space = spaces.Discrete(4)

    def _seen(self) -> Any:
        quarter, turn = int(self.np_random.integers(4)), int(self.np_random.integers(2))
        photo = self.np_random.integers(0, 60, (12, 12, 1)).astype(np.uint8)
        row, column = divmod(quarter, 2)
        photo[6 * row + 2 : 6 * row + 4, 6 * column + 2 : 6 * column + 4] = 250
        self.want = (quarter + turn) % 4
        return {"photo": photo, "gauges": np.array([turn, -turn], np.float32)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        reward = np.bool_(int(action) == self.want)
        self.time += 1
        return self._seen(), reward, False, self.time == 8, {"seen": [self.time] * self.time}


class Thermostat(gymnasium.Env[Any, Any]):
    """A temperature without an end, truncated after 20 steps; observation and action are arrays without axes, and the
    reward is an exact fraction, minus the tenths by which the temperature misses 20 after the action, at most 1. The
    best return is -0.4, since a step is of at most 2 degrees and the first is 15."""

    observation_space = spaces.Box(-100.0, 100.0, (), np.float64)
    action_space = spaces.Box(-2.0, 2.0, (), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time, self.heat = 0, 15.0
        return np.array(self.heat - 20.0), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.heat += float(np.clip(action, -2.0, 2.0))
        self.time += 1
        missed = Fraction(round(abs(self.heat - 20.0) * 1000), 10_000)
        reward = -min(missed, Fraction(1))
        return np.array(self.heat - 20.0), reward, False, self.time == 20, {}


class ThreeBack(gymnasium.Env[Any, Any]):
    """A symbol a step, of three; each of twelve steps after the third pays 1 for the symbol of three steps before. The
    best return is 12; without a memory a third of it."""

    observation_space = spaces.Discrete(3, start=-1)
    action_space = spaces.Discrete(3, start=-1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.shown = [int(self.np_random.integers(-1, 2))]
        return self.shown[0], {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        reward = int(len(self.shown) > 3 and int(action) == self.shown[-4])
        self.shown.append(int(self.np_random.integers(-1, 2)))
        return self.shown[-1], reward, len(self.shown) > 15, False, {}


class LongWay(gymnasium.Env[Any, Any]):
    """A walk of 5 x 5 fields with a wall to walk around, -1 a step until the goal; states are a pair of numbers. There
    is no limit of its own. The best return is -12."""

    observation_space = spaces.MultiDiscrete([5, 5])
    action_space = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = (0, 0)
        return np.array(self.place), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        row, column = self.place
        down, right = ((-1, 0), (1, 0), (0, -1), (0, 1))[int(action)]
        there = (row + down, column + right)
        inside = 0 <= there[0] < 5 and 0 <= there[1] < 5
        self.place = there if inside and not (there[0] == 2 and there[1] != 4) else self.place
        return np.array(self.place), -1, self.place == (4, 0), False, {}


class WideNumbers(gymnasium.Env[Any, Any]):
    """Ten steps; observations of float64 without bounds, one of millions, one of millionths, one that never moves. The
    action tells whether both are above their means. Rewards are Python's decimals. The best return is 10."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = spaces.Discrete(4, start=5)

    def _seen(self) -> Any:
        signs = self.np_random.choice([-1.0, 1.0], 2)
        self.want = 5 + int(signs[0] > 0) + 2 * int(signs[1] > 0)
        size = self.np_random.uniform(0.5, 1.5, 2)
        return np.array([4e6 + 1e6 * signs[0] * size[0], 3e-6 + 1e-6 * signs[1] * size[1], 12.5])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        reward = Decimal(int(int(action) == self.want))
        self.time += 1
        return self._seen(), reward, self.time == 10, False, {}


class RestlessInfo(gymnasium.Env[Any, Any]):
    """Ten steps whose `info` has other keys, types and shapes at every step; observations are Python lists of bools.
    The action is the number of the bit that is set. The best return is 10."""

    observation_space = spaces.Box(0, 1, (4,), np.bool_)
    action_space = spaces.Discrete(4)

    def _seen(self) -> Any:
        self.bit = int(self.np_random.integers(4))
        return [place == self.bit for place in range(4)]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return np.array(self._seen()), {"episode": None}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        reward = int(int(action) == self.bit)
        self.time += 1
        infos: list[dict[str, Any]] = [
            {}, {"x": np.zeros(self.time)}, {"x": "words"}, {"deep": {"x": {self.time: object()}}}, {"x": None},
            {"final_obs": 3, "episode": {"r": 1}},
        ]  # fmt: skip
        return np.array(self._seen()), reward, self.time == 10, False, infos[self.time % len(infos)]


class Sliders(gymnasium.Env[Any, Any]):
    """Ten steps, truncated; four sliders in a 2 x 2 array whose bounds differ are to be put where parts of the
    observation say. A step pays 1 less the mean distance as a share of a slider's way. The best return is 10."""

    low, high = np.array([[0.0, -1.0], [10.0, -5.0]], np.float32), np.array([[1.0, 1.0], [12.0, 0.0]], np.float32)
    observation_space = spaces.Dict({"left": spaces.Box(0.0, 1.0, (2,)), "right": spaces.Discrete(3)})
    action_space = spaces.Box(low, high, dtype=np.float32)

    def _seen(self) -> Any:
        left, right = self.np_random.random(2).astype(np.float32), int(self.np_random.integers(3))
        self.share = np.array([[left[0], left[1]], [right / 2, 0.25]])
        return {"left": left, "right": right}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        share = (np.asarray(action) - self.low) / (self.high - self.low)
        reward = np.array([1.0 - np.abs(share - self.share).mean()])[0]
        self.time += 1
        return self._seen(), reward, False, self.time == 10, {}


class Grid(gymnasium.Env[Any, Any]):
    """Bandits of one step each: observations and actions are MultiDiscrete of two axes; a quarter for each equal
    number. The best return is 1."""

    observation_space = spaces.MultiDiscrete(np.array([[2, 3], [4, 2]]))
    action_space = spaces.MultiDiscrete(np.array([[2, 3], [4, 2]]))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seen = self.np_random.integers(0, [[2, 3], [4, 2]])
        return self.seen, {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return self.seen, float((np.asarray(action) == self.seen).mean()), True, False, {}


class Whole(gymnasium.Env[Any, Any]):
    """Five steps; two whole numbers of 0 to 10 are to be set as bytes (0 to 250) of the observation say, divided by 25.
    A step pays 1 less a twentieth of the distances. The best return is 5."""

    observation_space = spaces.Box(0, 255, (2,), np.uint8)
    action_space = spaces.Box(0, 10, (2,), np.int64)

    def _seen(self) -> Any:
        self.want = self.np_random.integers(0, 11, 2)
        return (25 * self.want).astype(np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if np.asarray(action).dtype.kind != "i":
            raise TypeError(f"{action} is not whole")
        reward = 1.0 - float(np.abs(np.asarray(action) - self.want).sum()) / 20.0
        self.time += 1
        return self._seen(), reward, self.time == 5, False, {}


class Lanes(VectorEnv[Any, Any, Any]):
    """Lanes in a vector form of its own with any of Gymnasium's ways to begin anew: the action is the lane's colour,
    which a Dict with bits tells. A lane ends after 4 to 6 steps, by an end or a cut. The best return is 1."""

    def __init__(self, num_envs: int = 1, mode: str = "NEXT_STEP") -> None:
        self.metadata = {"autoreset_mode": AutoresetMode[mode]}
        self.mode, self.num_envs = AutoresetMode[mode], num_envs
        self.single_observation_space = spaces.Dict(
            {"colour": spaces.MultiBinary(2), "time": spaces.Box(0.0, 1.0, (1,), np.float64)}
        )
        self.single_action_space = spaces.Discrete(4, start=10)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)
        self.draws = np.random.default_rng(0)
        self.colour, self.time, self.length = (np.zeros(num_envs, np.int64) for _ in range(3))
        self.ended = np.zeros(num_envs, np.bool_)

    def _begin(self, which: Any) -> None:
        self.time[which] = 0
        self.length[which] = self.draws.integers(4, 7, int(which.sum()))

    def _seen(self) -> dict[str, Any]:
        bits = np.stack([self.colour & 1, self.colour >> 1], axis=1).astype(np.int8)
        return {"colour": bits, "time": (self.time / 6.0)[:, None]}

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.draws = np.random.default_rng(seed)
        which = np.ones(self.num_envs, np.bool_) if options is None else np.asarray(options["reset_mask"])
        self._begin(which)
        self.ended[which] = False
        self.colour[which] = self.draws.integers(0, 4, int(which.sum()))
        return self._seen(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        fresh = self.ended & (self.mode == AutoresetMode.NEXT_STEP)
        assert not (self.ended & (self.mode == AutoresetMode.DISABLED)).any(), "a lane that has ended stepped"
        reward = np.where(fresh, 0.0, (np.asarray(actions) - 10 == self.colour) / self.length)
        self._begin(fresh)
        self.time[~fresh] += 1
        over = ~fresh & (self.time == self.length)
        cut = over & (self.length == 5)
        self.colour = self.draws.integers(0, 4, self.num_envs)
        infos: dict[str, Any] = {}
        self.ended = over.copy()
        if self.mode == AutoresetMode.SAME_STEP and over.any():
            last, last_seen = np.full(self.num_envs, None, dtype=object), self._seen()
            for lane in np.flatnonzero(over):
                last[lane] = {name: value[lane].copy() for name, value in last_seen.items()}
            infos = {"final_obs": last, "_final_obs": over.copy()}
            self._begin(over)
            self.colour[over] = self.draws.integers(0, 4, int(over.sum()))
            self.ended[:] = False
        return self._seen(), reward, over & ~cut, cut, infos


class LateFlags(gymnasium.Env[Any, Any]):
    """Ends that are words: refused, since `terminated` must be true or false."""

    observation_space = spaces.Box(0.0, 1.0, (1,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), 0.0, "no", False, {}


class GrowingList(gymnasium.Env[Any, Any]):
    """A list that grows, inside a Dict: refused with the name of the part, unless `env.pad` says how long it gets."""

    observation_space = spaces.Dict({"list": spaces.Sequence(spaces.Discrete(3)), "x": spaces.Box(0.0, 1.0, (1,))})
    action_space = spaces.Discrete(2)
