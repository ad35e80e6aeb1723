"""Cart-pole swing-up: swing a hanging pole up and hold it by forces on the cart.

Belongs here: this environment, single (`CartPoleSwingUpEnv`) and vectorised (`CartPoleSwingUpVectorEnv`), with its
equations. A uniform rod of 0.5 kg on a cart of 0.5 kg, as in PILCO (Deisenroth & Rasmussen, 2011).
Episodes end by the time limit only; the cart stops at the ends of its rail.

Observations are `[x, x', cos, sin, angle']` with the angle from upright; the action is a force in [-1, 1] times 10 N;
the reward in [0, 1] is exp(-(distance of the pole's tip from upright above the centre / length)^2).
"""

from typing import Any, ClassVar, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Seen: TypeAlias = NDArray[np.float32]

STEPS = 200
"""Default number of steps of an episode: 10 seconds."""
STEP_S = 0.05
CART_KG, POLE_KG, LENGTH_M, FRICTION, GRAVITY = 0.5, 0.5, 0.6, 0.1, 9.82
PUSH_N = 10.0
RAIL_M = 2.4
"""Position of the ends of the rail, in metres from the centre."""
_INITIAL_STD = 0.1
"""Standard deviation of the initial state's components around hanging still in the centre."""

OBSERVATION = spaces.Box(
    np.array([-RAIL_M, -np.inf, -1, -1, -np.inf], np.float32), np.array([RAIL_M, np.inf, 1, 1, np.inf], np.float32)
)
_ACTION = spaces.Box(-1.0, 1.0, (1,), np.float32)


def state_derivative(state: Floats, force: Floats, *, friction: float = FRICTION) -> Floats:
    """Time derivative of states `[n, 4]` = (x, x', angle from hanging, angle') under forces `[n]` in newtons."""
    speed, angle, turn = state[:, 1], state[:, 2], state[:, 3]
    sine, cosine, total = np.sin(angle), np.cos(angle), CART_KG + POLE_KG
    swing = POLE_KG * LENGTH_M * turn * turn * sine
    push = force - friction * speed
    shared = 4.0 * total - 3.0 * POLE_KG * cosine * cosine
    cart = (2.0 * swing + 3.0 * POLE_KG * GRAVITY * sine * cosine + 4.0 * push) / shared
    pole = (-3.0 * swing * cosine - 6.0 * total * GRAVITY * sine - 6.0 * push * cosine) / (LENGTH_M * shared)
    return np.stack((speed, cart, turn, pole), axis=1)


def next_states(state: Floats, action: NDArray[np.generic]) -> Floats:
    """Integrate states `[n, 4]` by one step of `STEP_S` (fourth-order Runge-Kutta); actions `[n, 1]` are clipped."""
    force = PUSH_N * np.clip(action.astype(np.float64).reshape(len(state)), -1.0, 1.0)
    first = state_derivative(state, force)
    second = state_derivative(state + 0.5 * STEP_S * first, force)
    third = state_derivative(state + 0.5 * STEP_S * second, force)
    fourth = state_derivative(state + STEP_S * third, force)
    after = state + STEP_S / 6.0 * (first + 2.0 * second + 2.0 * third + fourth)
    stopped = np.abs(after[:, 0]) >= RAIL_M
    after[stopped, 0], after[stopped, 1] = np.sign(after[stopped, 0]) * RAIL_M, 0.0
    return after


def observations_of(state: Floats) -> Seen:
    """Observations of states `[n, 4]` -> `[n, 5]`."""
    upright = (-np.cos(state[:, 2]), -np.sin(state[:, 2]))
    return np.stack((state[:, 0], state[:, 1], *upright, state[:, 3]), axis=1).astype(np.float32)


def rewards_of(state: Floats) -> Floats:
    """Rewards `[n]` of states `[n, 4]`."""
    sideways = state[:, 0] + LENGTH_M * np.sin(state[:, 2])
    below = LENGTH_M * (1.0 + np.cos(state[:, 2]))
    return np.exp(-(sideways * sideways + below * below) / LENGTH_M**2)


def _initial_states(draws: np.random.Generator, count: int) -> Floats:
    """Sample initial states `[n, 4]`."""
    return _INITIAL_STD * draws.standard_normal((count, 4))


class CartPoleSwingUpEnv(gymnasium.Env[Seen, Seen]):
    """Single environment; Gymnasium's wrapper adds the time limit."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self) -> None:
        self.observation_space = OBSERVATION
        self.action_space = _ACTION
        self.state = np.zeros((1, 4))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Seen, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.state = _initial_states(self.np_random, 1)
        return observations_of(self.state)[0], {}

    def step(self, action: Seen) -> tuple[Seen, float, bool, bool, dict[str, Any]]:
        self.state = next_states(self.state, np.asarray(action)[None])
        return observations_of(self.state)[0], float(rewards_of(self.state)[0]), False, False, {}


class CartPoleSwingUpVectorEnv(VectorEnv[Seen, Seen, NDArray[np.generic]]):
    """Vectorised environment; the caller resets ended episodes by `reset_mask`."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.DISABLED, "render_modes": []}  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, num_envs: int, max_episode_steps: int = STEPS) -> None:
        self.num_envs, self.limit = num_envs, max_episode_steps
        self.single_observation_space, self.single_action_space = OBSERVATION, _ACTION
        self.observation_space, self.action_space = batch_space(OBSERVATION, num_envs), batch_space(_ACTION, num_envs)
        self.state = np.zeros((num_envs, 4))
        self.age = np.zeros(num_envs, dtype=np.int64)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Seen, dict[str, Any]]:
        super().reset(seed=seed if isinstance(seed, int) else None)
        begins = np.ones(self.num_envs, np.bool_) if options is None else np.asarray(options["reset_mask"], np.bool_)
        self.state[begins] = _initial_states(self.np_random, self.num_envs)[begins]
        self.age[begins] = 0
        return observations_of(self.state), {}

    def step(
        self, actions: Seen
    ) -> tuple[Seen, NDArray[np.generic], NDArray[np.generic], NDArray[np.generic], dict[str, Any]]:
        self.state = next_states(self.state, np.asarray(actions))
        self.age += 1
        return (
            observations_of(self.state),
            rewards_of(self.state),
            np.zeros(self.num_envs, np.bool_),
            self.age >= self.limit,
            {},
        )
