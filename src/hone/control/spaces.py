"""Gymnasium's spaces as the networks take them."""

from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces

from hone.control.environments.layout import ActionRowSpace, RowSpace
from hone.control.environments.world import GymWorld
from hone.control.logs.parquet import BehaviourLog
from hone.control.networks.encoding import image_layout
from hone.control.networks.mlp import (
    BoxActions,
    DiscreteActions,
    FactoredActions,
    GaussianMlpConfig,
    ObservationInputs,
    PolicySpaces,
    leaf_factors,
)
from hone.core.errors import ConfigError


def network_spaces(observation: spaces.Space[Any], action: spaces.Space[Any], *, masked: bool = False) -> PolicySpaces:
    """Gymnasium's spaces as networks take them; `masked`: only legal actions are taken. Raises ConfigError for kinds
    that are not supported."""
    match observation:
        case RowSpace():
            leaves = observation.layout.leaves
            inputs = ObservationInputs(size=sum(leaf.features for leaf in leaves), leaves=leaves)
        case spaces.Discrete():
            inputs = ObservationInputs(size=int(observation.n), one_hot=True, start=int(observation.start))
        case spaces.Box():
            high = float(np.max(observation.high)) if observation.dtype == np.uint8 and observation.shape else 1.0
            image = image_layout(tuple(observation.shape), np.dtype(observation.dtype), high)
            inputs = ObservationInputs(size=int(np.prod(observation.shape)), image=image)
        case _:
            raise ConfigError(f"observation space {observation} is not supported: only Box and Discrete are")
    match action:
        case spaces.Discrete():
            actions = DiscreteActions(count=int(action.n), start=int(action.start), masked=masked)
            return PolicySpaces(inputs=inputs, actions=actions)
        case ActionRowSpace():
            parts = tuple(part for leaf in action.leaves for part in leaf_factors(leaf))
            return PolicySpaces(inputs=inputs, actions=FactoredActions(parts=parts, masked=masked))
        case spaces.Box():
            low, high = tuple(action.low.ravel().tolist()), tuple(action.high.ravel().tolist())
            return PolicySpaces(inputs=inputs, actions=BoxActions(low=low, high=high, shape=tuple(action.shape)))
        case _:
            raise ConfigError(f"action space {action} is not supported: only Box and Discrete are")


def world_spaces(world: GymWorld) -> PolicySpaces:
    """`network_spaces` of open environments."""
    masked = world.masks.now is not None
    return network_spaces(world.envs.single_observation_space, world.envs.single_action_space, masked=masked)


def image_warnings(spaces: PolicySpaces) -> list[str]:
    """Warning about images that no encoder reads: their numbers lose their places."""
    inputs = spaces.inputs
    if inputs.image is None or inputs.encoder is not None:
        return []
    return [
        f"observations are images of shape {list(inputs.image.shape)}, which this recipe's network reads as "
        f"{inputs.size} numbers without their places: it has no encoder. Recipes with network.encoder (ppo, a2c, dqn "
        "and their relatives, sac, discrete_sac) read images; or make them smaller "
        "(gymnasium.wrappers.ResizeObservation), or return features instead"
    ]


def gaussian_spaces(spaces: PolicySpaces, network: GaussianMlpConfig) -> PolicySpaces:
    """`spaces` with the form of the Gaussian policy over a box. Raises ConfigError where tanh lacks finite bounds."""
    actions = spaces.actions
    if isinstance(actions, DiscreteActions):
        return spaces
    if isinstance(actions, FactoredActions):
        parts = tuple(_as_gaussian(part, network) if isinstance(part, BoxActions) else part for part in actions.parts)
        return replace(spaces, actions=replace(actions, parts=parts))
    return replace(spaces, actions=_as_gaussian(actions, network))


def _as_gaussian(actions: BoxActions, network: GaussianMlpConfig) -> BoxActions:
    if network.gaussian == "squashed" and not actions.is_finite:
        raise ConfigError(
            f'network.gaussian = "squashed": {actions} has no finite bounds to squash actions between; take "clipped", '
            "or give the space bounds"
        )
    return replace(actions, gaussian=network.gaussian)


def log_spaces(log: BehaviourLog) -> PolicySpaces:
    """Spaces of a log, with observations standardised by it."""
    masked = log.episodes.mask is not None
    space = network_spaces(log.observation_space, log.action_space, masked=masked)
    return replace(space, inputs=space.inputs.standardised_by(log.episodes.observations))
