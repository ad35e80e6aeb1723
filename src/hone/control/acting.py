"""Acting with a small network, and the critic's values of the episodes that it acted in."""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from hone.control.environments.world import GymWorld
from hone.control.networks.actor_critic import ActorCritic, ControlPolicy
from hone.control.networks.numpy_memory import NumpyMemoryPolicy
from hone.control.networks.numpy_policies import HasNumpyPolicy, NumpyPolicy
from hone.control.rows import as_tensor
from hone.core.credit import Metrics, Values
from hone.core.episodes import Episodes
from hone.run.loop import SourceWrapper

P = TypeVar("P", bound=ControlPolicy)


@torch.no_grad()
def predict_values(policy: ActorCritic, episodes: Episodes) -> Values:
    """The critic's values of everything seen, and of what was seen last."""
    assert episodes.final is not None
    device = str(next(policy.parameters()).device)
    both = torch.cat((as_tensor(episodes.observations, device), as_tensor(episodes.final, device)))
    values = policy.value(both).cpu().numpy()
    return Values(value=values[: episodes.decisions], final=values[episodes.decisions :])


@dataclass
class NetworkActor:
    """Decides by the numpy mirror of a small network."""

    numpy_policy: NumpyPolicy
    version: int = 0

    def publish(self, policy: HasNumpyPolicy, version: int) -> None:
        self.numpy_policy, self.version = policy.numpy_policy(), version

    def episode_memory(self) -> NumpyMemoryPolicy | None:
        """The policy itself, where it has a memory."""
        return self.numpy_policy if isinstance(self.numpy_policy, NumpyMemoryPolicy) else None

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
        return self.numpy_policy.noise(draws, shape)

    def decide(
        self, seen: NDArray[np.generic], noise: NDArray[np.float32], mask: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.generic], NDArray[np.float32]]:
        return self.numpy_policy.decide(seen, noise, mask)


@dataclass
class DropFailedEpisodes(SourceWrapper[P]):
    """Hands on the episodes of another source that have a score: what ended with a lost environment is not learned
    from. Its losses become `env/faults`."""

    world: GymWorld

    def collect(self) -> Episodes:
        while True:
            episodes = self.source.collect()
            if episodes.scored.all():
                return episodes
            kept = episodes.take(np.flatnonzero(episodes.scored))
            if kept.decisions:
                return kept

    def metrics(self) -> Metrics:
        return self.source.metrics() | self.world.metrics()
