"""Folders of skill policies for tests: networks with random weights, which are bad versions."""

from pathlib import Path

from hone.control.networks.actor_critic import ActorCritic
from hone.control.networks.checkpoint import save_policy
from hone.control.networks.mlp import DiscreteActions, MlpConfig, ObservationInputs, PolicySpaces


def skill_network(folder: Path, *, size: int = 12, seed: int = 2) -> Path:
    """Folder of a network that sees `size` numbers and chooses among five moves."""
    spaces = PolicySpaces(inputs=ObservationInputs(size=size), actions=DiscreteActions(count=5))
    save_policy(ActorCritic(spaces, MlpConfig(hidden=[4]), seed=seed, critic=False), folder)
    return folder
