"""Training under a shield: an environment in which an unsafe action becomes a safe one before it is executed.

Any recipe for environments takes it: `env.id = "hone.recipes.shielded:make_shielded_env"`, with the inner
environment's id and the shield's certificate as `env.kwargs`.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import JsonValue

from hone.control.environments.make import GymConfig, env_factory
from hone.control.environments.option_wrapper import ActionReplacementWrapper
from hone.core.clock import SystemClock
from hone.core.decisions import ActionSet
from hone.core.errors import ConfigError
from hone.decide.shield.certificate import checked_model, read_certificate
from hone.decide.shield.guard import project_action
from hone.decide.shield.service import ShieldConfig

Floats = NDArray[np.float64]


def make_shielded_env(
    env: str,
    shield: str,
    *,
    features: Sequence[str] | None = None,
    actions: Sequence[str] | None = None,
    env_kwargs: dict[str, JsonValue] | None = None,
    max_episode_steps: int | None = None,
) -> ActionReplacementWrapper:
    """The environment `env` under the shield of the certificate `shield`, whose claims are proved again.

    `features` name the columns of the observation, or of `info["context"]` (default: the shield's sensors in their
    order); `actions` name the numbered actions (default: the shield's). An unsafe action becomes the safe one whose
    columns in the shield's model are nearest; a verdict has no deadline here. Raises as `ShieldConfig.open`, and
    ConfigError for a wrong number of actions.
    """
    path = Path(shield)
    model = checked_model(read_certificate(path).spec)  # its claims are proved below, where the shield is opened
    names = tuple(actions or model.actions)
    inner = env_factory(GymConfig(id=env, kwargs=env_kwargs or {}, max_episode_steps=max_episode_steps)).make_one()
    space = inner.action_space
    if not isinstance(space, spaces.Discrete) or int(space.n) != len(names):
        raise ConfigError(f"{env} has the actions {space}, the shield {path} knows {len(names)}: {', '.join(names)}")
    opened = ShieldConfig(certificate=path.name).open(
        path.parent, list(features or model.variables), SystemClock(),
        actions=ActionSet(names=names),
    )  # fmt: skip
    known = model.action_features()
    places = [model.actions.index(name) if name in model.actions else 0 for name in names]
    # A simulated world waits for the verdict: with a deadline a busy machine would make another run of the same seed.
    opened = replace(opened, deadline_s=math.inf)
    offered = ActionSet(names=names, features=None if known is None else known[places])

    def safe_action(context: Floats, action: int) -> int:
        return project_action(opened, context, offered, action)

    return ActionReplacementWrapper(inner, safe_action)
