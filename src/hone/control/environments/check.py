"""Checks of an environment before a run: breaches of the contract, reported with the value and the remedy.

Belongs here: checks that are too slow for the training loop, which only looks for numbers that are not finite. All
faults are reported together.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
from gymnasium import spaces

from hone.control.environments.layout import ActionRowSpace
from hone.control.environments.make import EnvFactory, GymEnv, describe_exception, env_seeds
from hone.control.environments.masks import MASK, as_mask, is_legal, mask_size, sample_legal
from hone.control.environments.space_advice import action_fault, observation_fault
from hone.core.errors import ConfigError, HoneError, UserCodeError

_TRIAL_STEPS = 200
BOUND_LIMIT = 1e30
"""Bounds of this size and more stand for none, as the largest 32-bit float does."""
HISTORY_ACTIONS = 8


def check_env(making: EnvFactory, *, seed: int) -> list[str]:
    """Play one environment with random actions. Returns warnings.

    Raises UserCodeError for an environment that fails or breaks Gymnasium's contract.
    """
    env = making.make_one()
    try:
        env.action_space.seed(seed)
        trial = _EnvTrial(env, making.name, env_seeds(seed, 1)[0], making.masks)
        faults = trial.faults()
    finally:
        env.close()
    if faults:
        raise UserCodeError(*(f"{making.name}: {fault}" for fault in faults))
    if not trial.ended and not making.has_time_limit:
        return [
            f"{making.name}: no end within {_TRIAL_STEPS} random steps and no time limit; if episodes never end, set "
            "env.max_episode_steps"
        ]
    return []


def check_spaces(
    name: str, observation: spaces.Space[Any], action: spaces.Space[Any], *, squashed: bool = False
) -> None:
    """Raises ConfigError for spaces that are empty, of an unsupported kind, or lack bounds that are needed."""
    faults = [fault for fault in (observation_fault(observation), action_fault(action)) if fault is not None]
    for kind, space in (("observation", observation), ("action", action)):
        if isinstance(space, spaces.Box) and int(np.prod(space.shape)) == 0:
            faults.append(f"{kind} space {space} has no elements")
    unbounded = isinstance(action, spaces.Box) and not (np.abs([action.low, action.high]) < BOUND_LIMIT).all()
    if squashed and isinstance(action, ActionRowSpace):
        faults.append(
            f"the action space has {len(action.leaves)} parts, and this policy needs one box of actions; take ppo or "
            "a2c, or wrap the environment in gymnasium.wrappers.TransformAction"
        )
    if squashed and isinstance(action, spaces.Discrete):
        faults.append(
            f"action space {action} is numbered, and this policy needs a box of actions; for numbered actions take "
            "dqn, discrete_sac or ppo"
        )
    if squashed and unbounded:
        faults.append(
            f"action space {action} has no finite bounds, and this policy squashes its actions between them; "
            "give the space bounds, for instance with gymnasium.wrappers.TransformAction"
        )
    if faults:
        raise ConfigError(*(f"{name}: {fault}" for fault in faults))


@dataclass
class _EnvTrial:
    """One environment played with random actions, with the current call for error messages."""

    env: GymEnv
    name: str
    """Name of the environment in the config."""
    seed: int
    masks: bool
    """Whether masks of legal actions are read."""
    place: str = ""
    ended: bool = False
    """True if an episode came to its end."""
    history: list[Any] = field(default_factory=list[Any])

    def faults(self) -> list[str]:
        """The faults of the first call that breaks the contract, with their place."""
        try:
            for faults in self._calls():
                if faults:
                    return [f"{self.place} {fault}" for fault in faults]
        except UserCodeError as fault:
            inside = fault.messages[0].startswith(self.name)
            raise fault if inside else UserCodeError(f"{self.name}: {self.place}: {fault.messages[0]}") from fault
        except HoneError:
            raise
        except Exception as fault:
            raise UserCodeError(f"{self.name}: {self.place} failed: {describe_exception(fault)}") from fault
        return []

    def _calls(self) -> Iterator[list[str]]:
        space, draws = self.env.observation_space, np.random.default_rng(self.seed)
        self.place = f"reset(seed={self.seed})"
        answer: Any = self.env.reset(seed=self.seed)
        yield _reset_faults(answer, space)
        for step in range(_TRIAL_STEPS):
            action = self._legal_action(answer[-1], draws)
            self.history = [*self.history[1 - HISTORY_ACTIONS :], np.asarray(action).tolist()]
            self.place = f"step {step} (environment 0, seed {self.seed}, last actions {self.history}):"
            answer = self.env.step(action)
            yield _step_faults(answer, space)
            if answer[2] or answer[3]:
                self.ended = True
                self.place = "reset() after an episode"
                answer = self.env.reset()
                yield _reset_faults(answer, space)

    def _legal_action(self, info: dict[str, Any], draws: np.random.Generator) -> Any:  # noqa: ANN401 - the space's
        """A random action; a legal one where `info` tells a mask that is read."""
        action = self.env.action_space
        if not self.masks or MASK not in info or not mask_size(action):
            return action.sample()
        mask = as_mask(info[MASK], action, where=f"{self.name}: {self.place}")
        if not is_legal(mask[None], action)[0]:
            raise UserCodeError(
                f"{self.name}: {self.place} left no legal action: the action mask leaves no choice; end the episode "
                "where nothing can be done"
            )
        return sample_legal(action, mask, draws)


def _reset_faults(answer: Any, space: spaces.Space[Any]) -> list[str]:  # noqa: ANN401 - the user's
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)):
        return [f"returned {_brief(answer)}; it must return the tuple (observation, info) with info a dict"]
    return [f"returned {fault}" for fault in _observation_faults(answer[0], space)]


def _step_faults(answer: Any, space: spaces.Space[Any]) -> list[str]:  # noqa: ANN401 - the user's
    if not isinstance(answer, tuple) or len(answer) != 5:
        if isinstance(answer, tuple) and len(answer) == 4:
            return [
                "step() returned 4 values, which is the API before Gym 0.26; return "
                "(observation, reward, terminated, truncated, info): split `done` into the end of the task and the "
                "truncation by a limit"
            ]
        return [f"step() returned {_brief(answer)}; it must return (observation, reward, terminated, truncated, info)"]
    seen, reward, terminated, truncated, info = answer
    faults = _observation_faults(seen, space)
    number = np.asarray(float(reward) if isinstance(reward, Real | Decimal) else reward)
    if number.shape != () or number.dtype.kind not in "biuf":
        faults.append(f"reward is {_brief(reward)}; it must be a number")
    elif not np.isfinite(number):
        faults.append(f"reward is {reward}; it must be finite")
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, bool | np.bool_):
            faults.append(f"{name} is {_brief(flag)}; it must be a bool")
    if not isinstance(info, dict):
        faults.append(f"info is {_brief(info)}; it must be a dict")
    return faults


def _observation_faults(seen: Any, space: spaces.Space[Any]) -> list[str]:  # noqa: ANN401 - the user's
    if isinstance(space, spaces.Discrete):
        return [] if space.contains(seen) else [f"observation {_brief(seen)} outside {space}"]
    assert isinstance(space, spaces.Box)
    if space.shape == () and isinstance(seen, np.generic | int | float):
        seen = np.asarray(seen, space.dtype if isinstance(seen, int | float) else None)
    if not isinstance(seen, np.ndarray):
        return [f"observation {_brief(seen)}; the space has arrays {space.dtype}{list(space.shape)}"]
    if seen.shape != space.shape:
        return [f"observation of shape {list(seen.shape)}; the space has {list(space.shape)}"]
    if not np.can_cast(seen.dtype, space.dtype):
        return [f"observation of type {seen.dtype}; the space has {space.dtype}: convert it with astype"]
    if seen.dtype.kind == "f" and not np.isfinite(seen).all():
        return [f"observation that is not finite: {seen.ravel()[:8].tolist()}{' ...' if seen.size > 8 else ''}"]
    outside = (seen < space.low) | (seen > space.high)
    if outside.any():
        where = tuple(int(position) for position in np.argwhere(outside)[0])
        return [f"observation {list(where)} = {seen[where]} outside {space.low[where]} .. {space.high[where]}"]
    return []


def _brief(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"
