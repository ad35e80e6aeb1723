"""Gymnasium's spaces as the networks take them."""

from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces

from hone.control.environments.world import GymWorld
from hone.control.logs.parquet import DecisionLog
from hone.control.networks.mlp import BoxActions, DiscreteActions, GaussianMlpConfig, ObservationInputs, PolicySpaces
from hone.core.errors import ConfigError


def network_spaces(observation: spaces.Space[Any], action: spaces.Space[Any]) -> PolicySpaces:
    """Gymnasium's spaces as networks take them. Raises ConfigError for kinds that are not served."""
    return PolicySpaces(inputs=_network_inputs(observation), actions=_network_actions(action))


def world_spaces(world: GymWorld) -> PolicySpaces:
    """Spaces of open environments as networks take them. Raises ConfigError for kinds that are not served."""
    return network_spaces(world.envs.single_observation_space, world.envs.single_action_space)


def gaussian_spaces(spaces: PolicySpaces, network: GaussianMlpConfig) -> PolicySpaces:
    """`spaces` with the form of the Gaussian policy over a box. Raises ConfigError where tanh lacks finite bounds."""
    actions = spaces.actions
    if isinstance(actions, DiscreteActions):
        return spaces
    if network.gaussian == "squashed" and not actions.is_finite:
        raise ConfigError(
            f'network.gaussian = "squashed": {actions} has no finite bounds to squash actions between; take "clipped", '
            "or give the space bounds"
        )
    return replace(spaces, actions=replace(actions, gaussian=network.gaussian))


def log_spaces(log: DecisionLog) -> PolicySpaces:
    """Spaces of a log, with observations standardised by it."""
    space = network_spaces(log.observation_space, log.action_space)
    return replace(space, inputs=space.inputs.standardised_by(log.episodes.observations))


def _network_inputs(space: spaces.Space[Any]) -> ObservationInputs:
    if isinstance(space, spaces.Discrete):
        return ObservationInputs(size=int(space.n), one_hot=True, start=int(space.start))
    if isinstance(space, spaces.Box):
        return ObservationInputs(size=int(np.prod(space.shape)))
    raise ConfigError(f"observation space {space} is not supported: only Box and Discrete are")


def _network_actions(space: spaces.Space[Any]) -> DiscreteActions | BoxActions:
    if isinstance(space, spaces.Discrete):
        return DiscreteActions(count=int(space.n), start=int(space.start))
    if isinstance(space, spaces.Box):
        low, high = space.low.ravel().tolist(), space.high.ravel().tolist()
        return BoxActions(low=tuple(low), high=tuple(high), shape=tuple(space.shape))
    raise ConfigError(f"action space {space} is not supported: only Box and Discrete are")
