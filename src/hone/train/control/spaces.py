"""Gymnasium's spaces as the networks take them."""

from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces

from hone.core.errors import ConfigError
from hone.envs.logs.parquet import Log
from hone.models.control.mlp import Bounds, Choices, Inputs, Spaces


def spaces_of(observation: spaces.Space[Any], action: spaces.Space[Any]) -> Spaces:
    """Gymnasium's spaces as networks take them. Raises ConfigError for kinds that are not served."""
    return Spaces(inputs=_inputs(observation), actions=_actions(action))


def log_spaces(log: Log) -> Spaces:
    """Of a log, with observations standardised by it."""
    space = spaces_of(log.observation_space, log.action_space)
    return replace(space, inputs=space.inputs.standardised(log.episodes.observations))


def _inputs(space: spaces.Space[Any]) -> Inputs:
    if isinstance(space, spaces.Discrete):
        return Inputs(size=int(space.n), one_hot=True, start=int(space.start))
    if isinstance(space, spaces.Box):
        return Inputs(size=int(np.prod(space.shape)))
    raise ConfigError(f"observation space {space} is not served: only Box and Discrete are")


def _actions(space: spaces.Space[Any]) -> Choices | Bounds:
    if isinstance(space, spaces.Discrete):
        return Choices(count=int(space.n), start=int(space.start))
    if isinstance(space, spaces.Box):
        low, high = space.low.ravel().tolist(), space.high.ravel().tolist()
        return Bounds(low=tuple(low), high=tuple(high), shape=tuple(space.shape))
    raise ConfigError(f"action space {space} is not served: only Box and Discrete are")
