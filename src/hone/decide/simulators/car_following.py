"""Car following: keep the speed up without hitting the car in front, which brakes when it likes.

Belongs here: the world and its exact motion, on an open road or on a lattice whose finite process is solved exactly.
The bounds on the other car are those that a shield assumes.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from hone.core.errors import ConfigError

Floats = NDArray[np.float64]
SENSORS: Final = ("gap", "speed", "lead")
"""Observation: metres to the car in front, our speed, its speed (m/s)."""
CRASH_M: Final = -1e-9
"""Gap below which the cars have touched, allowing for the rounding of sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _RoadPhysics:
    """Numbers of a road, in metres and seconds."""

    step_s: float
    actions: tuple[str, ...]
    accelerations: tuple[float, ...]
    """Our actions, from the hardest brake on."""
    lead_moves: tuple[tuple[float, float], ...]
    """Accelerations of the car in front, and their probabilities."""
    lead_low: float
    lead_high: float
    """Bounds of its acceleration."""
    lead_top: float
    """Speed at which it stops accelerating."""
    jitter: float
    """Largest random change of its acceleration."""
    top: float
    """Our largest speed."""
    sight: float
    """Largest gap that is seen: a car farther away looks like one at this distance. On a lattice it is there."""
    gap_step: float
    speed_step: float
    """Cells of a grid over gaps and speeds."""

    def drive(self, state: tuple[float, float, float], own: float, lead: float) -> "_RoadStep":
        """Step of both cars at constant accelerations; a car that would pass its top speed has it at the step's end."""
        gap, speed, front = state
        own = min(own, (self.top - speed) / self.step_s)
        lead = min(lead, max(self.lead_top - front, 0.0) / self.step_s)
        stops = [speed / -own if own < 0 else math.inf, front / -lead if lead < 0 else math.inf]
        times = [self.step_s, *(min(stop, self.step_s) for stop in stops)]
        if own != lead:  # where both speeds are equal
            times.append(min(max((speed - front) / (lead - own), 0.0), *times))
        gaps = [gap + travelled(front, lead, t) - travelled(speed, own, t) for t in times]
        return _RoadStep(
            gap=gaps[0], speed=max(speed + own * self.step_s, 0.0),
            lead=max(front + lead * self.step_s, 0.0), closest=min(gap, *gaps),
        )  # fmt: skip

    def shield_tables(self) -> dict[str, Any]:
        """Tables of a shield's file that state the bounds and the motion of both cars, for `hone.decide.shield`."""
        own = dict(zip(self.actions, self.accelerations, strict=True))
        hardest = self.actions[0]
        columns = {name: {"u": "-brake" if name == hardest else f"{value:g}"} for name, value in own.items()}
        speeds = {"low": 0.0, "step": self.speed_step}
        model = {
            "step_s": self.step_s,
            "safe": "gap >= 0",
            "constants": {"brake": -own[hardest], "top": self.top},
            "variables": {
                "gap": {"low": 0.0, "high": self.sight, "step": self.gap_step, "worse": "low"},
                "speed": {**speeds, "high": self.top, "worse": "high"},
                "lead": {**speeds, "high": self.lead_top, "worse": "low"},
            },
            "actions": columns,
            "disturbances": {"a": {"low": self.lead_low, "high": self.lead_high}},
            "let": {
                "speed_after": "min(max(speed + u * dt, 0), top)",
                "lead_after": "max(lead + a * dt, 0)",
                "way": "speed**2 / (-2 * u) if speed + u * dt < 0 else (speed + speed_after) / 2 * dt",
                "lead_way": "lead**2 / (-2 * a) if lead + a * dt < 0 else (lead + lead_after) / 2 * dt",
            },
            "next": {"gap": "gap + lead_way - way", "speed": "speed_after", "lead": "lead_after"},
        }
        return {"kind": "game", "fallback": hardest, "model": model}

    def lattice_states(self) -> Floats:
        """Gap, speed and lead of every state of a lattice `[S, 3]`."""
        axes = [np.arange(round(top / step) + 1) * step for top, step in (
            (self.sight, self.gap_step), (self.top, self.speed_step), (self.lead_top, self.speed_step))]  # fmt: skip
        return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3).astype(np.float64)

    def lattice_number(self, state: tuple[float, float, float]) -> int:
        """Number of a state of a lattice."""
        gap, speed, lead = state
        speeds, leads = round(self.top / self.speed_step) + 1, round(self.lead_top / self.speed_step) + 1
        row = round(gap / self.gap_step) * speeds + round(speed / self.speed_step)
        return row * leads + round(lead / self.speed_step)


OPEN_ROAD: Final = _RoadPhysics(
    step_s=0.5, actions=("full_brake", "brake_hard", "ease", "keep", "accelerate"),
    accelerations=(-6.0, -4.0, -2.0, 0.0, 2.0),
    lead_moves=((-8.0, 0.05), (-3.0, 0.05), (0.0, 0.4), (1.0, 0.25), (2.0, 0.25)), lead_low=-8.0, lead_high=2.0,
    lead_top=20.0, jitter=0.5, top=20.0, sight=60.0, gap_step=0.5, speed_step=1.0,
)  # fmt: skip
LATTICE_ROAD: Final = _RoadPhysics(
    step_s=1.0, actions=("full_brake", "keep", "accelerate"), accelerations=(-1.0, 0.0, 1.0),
    lead_moves=((-1.0, 0.2), (0.0, 0.5), (1.0, 0.3)), lead_low=-1.0, lead_high=1.0, lead_top=5.0, jitter=0.0, top=5.0,
    sight=20.0, gap_step=0.5, speed_step=1.0,
)  # fmt: skip
"""Gaps are multiples of 0.5 m and speeds of 1 m/s: a finite process."""
ROADS: Final = {"open": OPEN_ROAD, "lattice": LATTICE_ROAD}


@dataclass(frozen=True, slots=True, kw_only=True)
class _RoadStep:
    """Outcome of one step."""

    gap: float
    speed: float
    lead: float
    closest: float
    """Smallest gap at any time within the step."""


def travelled(speed: float, acceleration: float, time_s: float) -> float:
    """Metres of a car that stands still once it has stopped."""
    if acceleration < 0 and speed + acceleration * time_s < 0:
        return speed * speed / (-2.0 * acceleration)
    return speed * time_s + 0.5 * acceleration * time_s * time_s


class CarFollowingEnv(gymnasium.Env[Any, np.int64]):
    """Follow a car: reward speed / top speed in each step, and the end of the episode at a crash.

    `road` is `open` or `lattice`. With `numbered`, on the lattice, the observation is the number of the state, and
    `P` and `initial_state_distrib` are the exact process; `info["context"]` holds gap, speed and lead.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 2}

    def __init__(self, road: str = "open", *, numbered: bool = False, render_mode: str | None = None) -> None:
        if road not in ROADS:
            raise ConfigError(f"hone/CarFollowing-v0: road = {road!r}; known: {', '.join(ROADS)}")
        if numbered and road != "lattice":
            raise ConfigError("hone/CarFollowing-v0: numbered = true needs road = 'lattice'")
        self.road, self.numbered, self.render_mode = ROADS[road], numbered, render_mode
        ends = np.array([self.road.sight, self.road.top, max(self.road.lead_top, self.road.top)])
        self.action_space = spaces.Discrete(len(self.road.accelerations))
        self.observation_space = (
            spaces.Discrete(len(self.road.lattice_states()))
            if numbered
            else spaces.Box(np.zeros(3), ends, dtype=np.float64)
        )
        self.state: tuple[float, float, float] = (self.road.sight, 0.0, 0.0)
        self.closest = self.road.sight
        self._bounds = list(accumulate(chance for _, chance in self.road.lead_moves))[:-1]

    @property
    def P(self) -> dict[int, dict[int, list[tuple[float, int, float, bool]]]]:  # noqa: N802 - Gymnasium's name
        """Outcomes of every state and action: probability, next state, reward, terminated."""
        return _lattice_table(self.road)

    @property
    def initial_state_distrib(self) -> Floats:
        """Probability `[S]` of each start: both cars stand, half the sight apart."""
        states = self.road.lattice_states()
        return (states == [self.road.sight / 2, 0.0, 0.0]).all(axis=1).astype(np.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        del options
        super().reset(seed=seed)
        speed = 0.0 if self.road.jitter == 0 else float(self.np_random.uniform(0.0, self.road.top / 4))
        self.state = (self.road.sight / 2, speed, speed)
        return self._seen(), {"context": self._context()}

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        lead = self.road.lead_moves[bisect_right(self._bounds, self.np_random.random())][0]
        if self.road.jitter:
            lead += float(self.np_random.uniform(-self.road.jitter, self.road.jitter))
        after = self.road.drive(
            self.state, self.road.accelerations[int(action)],
            min(max(lead, self.road.lead_low), self.road.lead_high),
        )  # fmt: skip
        crashed = after.closest < CRASH_M
        gap = max(after.gap, 0.0) if self.road.jitter else min(max(after.gap, 0.0), self.road.sight)
        self.state, self.closest = (gap, after.speed, after.lead), after.closest
        reward = 0.0 if crashed else after.speed / self.road.top
        return self._seen(), reward, crashed, False, {"context": self._context()}

    def render(self) -> NDArray[np.uint8]:  # type: ignore[override]
        """Both cars from the side `[40, 320, 3]`."""
        gap = self.state[0]
        picture = np.full((40, 320, 3), 245, np.uint8)
        picture[30:32] = 120
        front = 60 + round(max(gap, 0.0) / self.road.sight * 220)
        picture[18:30, 30:60] = (200, 40, 40) if gap < 0 else (40, 90, 200)  # red where the cars touch
        picture[18:30, front : front + 30] = (90, 90, 90)
        return picture

    def _context(self) -> Floats:
        return np.array([min(self.state[0], self.road.sight), *self.state[1:]])

    def _seen(self) -> Any:  # noqa: ANN401 - a number or an array
        if not self.numbered:
            return self._context()
        return np.int64(self.road.lattice_number(self.state))


def _lattice_table(road: _RoadPhysics) -> dict[int, dict[int, list[tuple[float, int, float, bool]]]]:
    """The finite process of a lattice as Gymnasium writes tables."""
    table: dict[int, dict[int, list[tuple[float, int, float, bool]]]] = {}
    for number, row in enumerate(road.lattice_states()):
        state = (float(row[0]), float(row[1]), float(row[2]))
        outcomes = {
            action: [_outcome(road, state, own, move, chance) for move, chance in road.lead_moves]
            for action, own in enumerate(road.accelerations)
        }
        table[number] = outcomes
    return table


def _outcome(
    road: _RoadPhysics, state: tuple[float, float, float], own: float, move: float, chance: float
) -> tuple[float, int, float, bool]:
    after = road.drive(state, own, move)
    crashed = after.closest < CRASH_M
    number = road.lattice_number((min(max(after.gap, 0.0), road.sight), after.speed, after.lead))
    return chance, number, 0.0 if crashed else after.speed / road.top, crashed
