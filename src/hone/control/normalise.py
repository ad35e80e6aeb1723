"""Observations and rewards on a common scale, learned while acting: two decorations of a source.

Statistics of observations are part of the policy: they are taken up when it is published, saved with it, and fixed
wherever it acts without this source (a judgement, `hone eval`, a server). The batch that an update learns from is read
by the statistics that it was acted by, so the first ratio is 1; it changes those of the next batch.
"""

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from pydantic import Field

from hone.control.networks.actor_critic import ControlPolicy
from hone.control.networks.mlp import ObservationInputs
from hone.core.config import Config
from hone.core.credit import Metrics
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError
from hone.core.state import State, array, substate
from hone.credit.moments import Floats, ReturnScale, RunningMeanStd
from hone.run.loop import Source, SourceWrapper

P = TypeVar("P", bound=ControlPolicy)


class NormaliseConfig(Config):
    """Normalisation of observations and rewards by running statistics; MountainCar and MuJoCo need it."""

    observations: bool = False
    """Standardise each dimension of the observation; the statistics are part of the policy."""
    rewards: bool = False
    """Divide rewards by the standard deviation of discounted returns. Reported scores are not normalised."""
    limit: float = Field(default=10.0, gt=0)
    """Normalised observations and rewards are cut off here."""


@dataclass
class NormalisedObservations(SourceWrapper[P]):
    """Another source, whose observations the policy sees normalised by what was seen before its publication."""

    moments: RunningMeanStd
    limit: float
    published_statistics: tuple[Floats, Floats] | None = None
    """Mean and scale that the policy has taken up; more may have been seen since, by a source that runs ahead."""
    just_restored: bool = False
    """Whether the next publication is that of a restored policy."""
    inputs: ObservationInputs | None = None
    """Inputs of the policy that was published last."""

    def collect(self) -> Episodes:
        episodes = self.source.collect()
        seen = episodes.observations if self.inputs is None else self.inputs.numbers(episodes.observations)
        self.moments.update(seen.reshape(episodes.decisions, -1))
        return episodes

    def publish(self, policy: P) -> None:
        """Raises ConfigError for a policy of numbered states, which have no scale, and of images."""
        inputs = policy.spaces.inputs
        if not inputs.has_scale:
            raise ConfigError(
                "normalise.observations = true: these observations are numbers of states, or read by an encoder, which "
                "scales them itself; set it to false"
            )
        if self.published_statistics is None or not self.just_restored:
            self.published_statistics = self.moments.mean, self.moments.std
        self.just_restored = False
        self.inputs = inputs.with_moments(*self.published_statistics, self.limit)
        policy.spaces = replace(policy.spaces, inputs=self.inputs)
        self.source.publish(policy)

    def state(self) -> State:
        source = self.source.state()
        mean, scale = self.published_statistics or (self.moments.mean, self.moments.std)
        return {"source": source, "seen": self.moments.state(), "mean": mean.copy(), "scale": scale.copy()}

    def restore(self, state: State) -> None:
        self.source.restore(substate(state, "source"))
        self.moments.restore(substate(state, "seen"))
        self.published_statistics = array(state, "mean").astype(np.float64), array(state, "scale").astype(np.float64)
        self.just_restored = True


@dataclass
class RescaledRewards(SourceWrapper[P]):
    """Another source, with rewards in units of the spread of returns so far. Scores stay as they were paid."""

    return_scale: ReturnScale
    limit: float

    def collect(self) -> Episodes:
        episodes = self.source.collect()
        self.return_scale.update(episodes)
        reward = (episodes.reward / self.return_scale.scale).clip(-self.limit, self.limit)
        return replace(episodes, reward=reward.astype(np.float32))

    def metrics(self) -> Metrics:
        return {**self.source.metrics(), "reward/scale": self.return_scale.scale}

    def state(self) -> State:
        return {"source": self.source.state(), "paid": self.return_scale.state()}

    def restore(self, state: State) -> None:
        self.source.restore(substate(state, "source"))
        self.return_scale.restore(substate(state, "paid"))


def with_normalisation(source: Source[P], config: NormaliseConfig, *, size: int, discount: float) -> Source[P]:
    """`source` with what `config` asks for; `size` numbers make an observation."""
    if config.rewards:
        source = RescaledRewards(source, ReturnScale(discount), config.limit)
    if config.observations:
        source = NormalisedObservations(source, RunningMeanStd(size), config.limit)
    return source
