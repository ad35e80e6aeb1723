"""What the recipes for control share: how steps are laid out for a network, who acts, how a policy is judged.

Belongs here: wiring between worlds, small networks and the loop. Does not: anything of one algorithm.
"""

from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hone.core.config import Config
from hone.core.episodes import Episodes
from hone.envs.gym.world import GymConfig, GymWorld
from hone.evaluate.control.returns import judged, score_metrics
from hone.models.control.actor_critic import Policy
from hone.models.control.checkpoint import load_weights, save_policy
from hone.train.job import Job, Verdict, nothing
from hone.train.loop import Recipe

P = TypeVar("P", bound=Policy)


class JudgeConfig(Config):
    """How often the policy is tried without exploration."""

    episodes: int = Field(default=20, ge=1)
    """Episodes of a judgement, each in an environment of its own."""
    every: int = Field(default=0, ge=0)
    """Steps between judgements; 0: at the end only."""


def fingerprint(episodes: Episodes) -> str:
    """Of a log's decisions; a resume with another log is refused."""
    digest = blake2b(digest_size=16)
    for column in (episodes.offsets, episodes.observations, episodes.chosen, episodes.reward):
        digest.update(np.ascontiguousarray(column).tobytes())
    return digest.hexdigest()


def verdict(scores: NDArray[np.float64]) -> Verdict:
    """Scores `[n]` of episodes or questions, with the interval of their mean."""
    estimate, metrics = score_metrics(scores)
    return Verdict(estimate=estimate, metrics=metrics)


def control_job(
    recipe: Recipe[P],
    *,
    env: GymConfig | None,
    judge: JudgeConfig,
    seed: int,
    fingerprint: str | None = None,
    world: GymWorld | None = None,
) -> Job[P]:
    """A recipe around a small network, ready to be run; without `env` there is nothing to judge it in. `world` is the
    one that it acts in, if any."""
    policy = recipe.learner.policy
    heard: list[str] = []

    def score() -> Verdict:
        assert env is not None
        return verdict(judged(policy, env, episodes=judge.episodes, seed=seed, tell=heard.append))

    def load(folder: Path) -> None:
        load_weights(policy, folder)

    def notes() -> list[str]:
        told = [*heard, *(world.lately() if world is not None else [])]
        heard.clear()
        return told

    return Job(
        recipe=recipe,
        save_policy=lambda folder: save_policy(policy, folder),
        load_policy=load,
        judge=None if env is None else score,
        judge_every=judge.every,
        fingerprint=fingerprint,
        warnings=world.notes if world is not None else (),
        notes=notes,
        close=world.close if world is not None else nothing,
    )
