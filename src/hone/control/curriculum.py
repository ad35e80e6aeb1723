"""A curriculum: the same environment made harder, stage by stage, once the policy succeeds often enough.

Belongs here: the source that changes its world. The policy, its critic and whatever it normalises by go on through all
stages; only the window over which success is counted begins anew.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from pydantic import Field, JsonValue

from hone.control.acting import DropFailedEpisodes
from hone.control.environments.world import GymConfig, GymWorld
from hone.core.config import Config
from hone.core.credit import Metrics
from hone.core.episodes import Episodes
from hone.core.state import State, integer, substate
from hone.core.windows import SlidingWindow
from hone.sources.live import LiveSource

P = TypeVar("P")


class CurriculumConfig(Config):
    """Stages before the full environment, and the success rate that passes one."""

    stages: list[dict[str, JsonValue]] = Field(min_length=1)
    """Changes of `env.kwargs` per stage, the easiest first; the last stage is the environment itself."""
    success: float = 1.0
    """Score of an episode from which on it succeeded."""
    threshold: float = Field(default=0.8, gt=0, le=1)
    """Success rate that passes a stage."""
    window: int = Field(default=50, ge=2)
    """Most recent episodes of a stage over which the success rate is computed."""


def stage_env(env: GymConfig, curriculum: CurriculumConfig, stage: int) -> GymConfig:
    """The environments of a stage, 0 the easiest."""
    if stage == len(curriculum.stages):
        return env
    return env.model_copy(update={"kwargs": {**env.kwargs, **curriculum.stages[stage]}})


@dataclass
class CurriculumSource(Generic[P]):
    """Acts in the world of the stage; `live` is made for stage 0."""

    live: LiveSource[P]
    filtered: DropFailedEpisodes[Any] = field(init=False)  # a policy of any kind: `live` knows which
    open_stage: Callable[[int], GymWorld]
    curriculum: CurriculumConfig
    stage: int = 0
    recent_successes: SlidingWindow = field(init=False)

    def __post_init__(self) -> None:
        self.recent_successes = SlidingWindow(self.curriculum.window)
        self.filtered = DropFailedEpisodes(self.live, self.world)

    @property
    def world(self) -> GymWorld:
        """Environment of the stage."""
        world = self.live.world
        assert isinstance(world, GymWorld)
        return world

    def collect(self) -> Episodes:
        """A rollout in the stage; the next one may be in the stage after it."""
        if self.stage_passed:
            self._switch_stage(self.stage + 1)
        episodes = self.filtered.collect()
        ended = (episodes.terminated | episodes.truncated) & episodes.scored
        self.recent_successes.add((episodes.score[ended] >= self.curriculum.success).astype(np.float64).tolist())
        return episodes

    @property
    def stage_passed(self) -> bool:
        """True if there is a harder stage and this one was passed often enough."""
        harder = self.stage < len(self.curriculum.stages)
        return harder and self.recent_successes.full and self.recent_successes.mean() >= self.curriculum.threshold

    def publish(self, policy: P) -> None:
        self.live.publish(policy)

    def metrics(self) -> Metrics:
        """Beside the world's: the stage, the share of successes in the window, and its rise within it."""
        metrics = {**self.live.metrics(), **self.world.metrics(), "curriculum/stage": float(self.stage)}
        half = len(self.recent_successes) // 2
        if half:
            metrics["curriculum/success"] = self.recent_successes.mean()
            metrics["curriculum/progress"] = self.recent_successes.mean(half) - self.recent_successes.mean(
                half, skip=half
            )
        return metrics

    def state(self) -> State:
        return {"stage": self.stage, "outcomes": self.recent_successes.state(), "live": self.live.state()}

    def restore(self, state: State) -> None:
        stage = integer(state, "stage")
        if stage != self.stage:
            self._switch_stage(stage)
        self.recent_successes.restore(substate(state, "outcomes"))
        self.live.restore(substate(state, "live"))

    def notes(self) -> list[str]:
        return self.world.pop_notices()

    def close(self) -> None:
        self.world.close()

    def _switch_stage(self, stage: int) -> None:
        """Leave the world for that of another stage; its rollouts are numbered on, so that no draw comes twice."""
        before = self.world
        before.close()
        world = self.open_stage(stage)
        world.rollouts = before.rollouts
        self.live.world = self.filtered.world = world
        self.stage, self.recent_successes = stage, SlidingWindow(self.curriculum.window)
