"""A token policy judged on held-out prompts: scores with a 95% interval, and two policies compared pair by pair."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hone.core.config import Config
from hone.core.errors import DataError
from hone.core.generation import Generator, Sampling
from hone.envs.text import Judge, Prompt, TextWorld
from hone.estimators.means import Estimate, mean_interval


class EvaluationConfig(Config):
    """How a policy is judged."""

    prompts: int = Field(default=512, ge=1)
    """Held-out prompts to ask; their number sets the width of the interval."""
    seed: int = Field(default=1_000_003, ge=0)
    """Which held-out prompts a reasoning-gym task makes; far from training seeds."""
    every: int = Field(default=0, ge=0)
    """Steps between judgements during training; 0 judges at the end only."""
    greedy: bool = True
    """Take the likeliest tokens; otherwise sample at the rollout's temperature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Every answer of an evaluation, in the order of the prompts."""

    ids: Sequence[str]
    prompts: Sequence[str]
    answers: Sequence[str]
    references: Sequence[str]
    scores: NDArray[np.float64]
    """`[n]`; NaN where the answer could not be scored."""
    lengths: NDArray[np.int64]
    """`[n]` tokens."""

    @property
    def estimate(self) -> Estimate:
        """Mean score over the answers that were scored. Raises DataError when none was."""
        scored = self.scores[~np.isnan(self.scores)]
        if not len(scored):
            raise DataError(f"none of {len(self.scores)} answers could be scored: nothing to estimate")
        return mean_interval(scored)


def judge_text(
    generator: Generator,
    prompts: Sequence[Prompt],
    judge: Judge,
    decode: Callable[[NDArray[np.int32]], str],
    *,
    sampling: Sampling,
    seed: int,
) -> Judged:
    """Ask every prompt once and score the answers."""
    world = TextWorld(
        prompts=prompts,
        judge=judge,
        decode=decode,
        sampling=sampling,
        prompts_per_step=len(prompts),
        samples=1,
        seed=seed,
        shuffle=False,
    )
    episodes = world.rollout(generator)
    said = np.split(episodes.chosen.astype(np.int32), episodes.offsets[1:-1])
    return Judged(
        ids=[prompt.id for prompt in prompts],
        prompts=[prompt.turns if isinstance(prompt.turns, str) else str(prompt.turns) for prompt in prompts],
        answers=[decode(tokens) for tokens in said],
        references=[str(prompt.columns.get("answer", prompt.columns.get("ground_truth", ""))) for prompt in prompts],
        scores=episodes.score,
        lengths=episodes.lengths,
    )
