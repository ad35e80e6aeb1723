"""Distillation of the best of n: the policy imitates the best of its own answers (Dong et al., RAFT, 2023).

Of every group of `rollout.samples_per_prompt` answers the one with the highest score is imitated: loss = -log pi, every
token alike. One answer of the result then costs what one of n did (Amini et al., 2024; Sessa et al., BOND, 2024).
"""

from pydantic import Field, model_validator

from hone.core.episodes import Episodes
from hone.learner.round_source import Selection
from hone.run.job import RecipeSpec
from hone.text.collecting.round_job import RoundAlgorithm, RoundRunConfig, round_parts
from hone.text.collecting.selections import best_answers


class BestOfNAlgorithm(RoundAlgorithm):
    """Rounds; each goes on from the one before."""

    collect_steps: int = Field(default=1, ge=1)
    """Steps at the beginning of a round that gather answers; nothing is learnt in them."""
    learn_steps: int = Field(default=1, ge=1)
    """Steps after them that imitate the best answers."""
    restart: bool = False
    """Start every round from the first policy, with a new optimizer; otherwise rounds go on from each other."""


class BestOfNDistillationConfig(RoundRunConfig):
    """Imitation of the best of n answers, round by round."""

    algorithm: BestOfNAlgorithm = BestOfNAlgorithm()  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    """Rounds."""

    @model_validator(mode="after")
    def _has_groups(self) -> "BestOfNDistillationConfig":
        if self.rollout.samples_per_prompt < 2:
            raise ValueError("rollout.samples_per_prompt must be at least 2: the best of one answer is that answer")
        return self

    def select(self, episodes: Episodes) -> Selection:
        return best_answers(episodes)


ENTRY = RecipeSpec(
    summary="imitates the best of n of its own answers to each prompt",
    paper="Dong et al., RAFT, 2023; Amini et al., Variational Best-of-N Alignment, 2024; Sessa et al., BOND, 2024",
    config=BestOfNDistillationConfig,
    parts=round_parts(best_answers),
    limitation="costs n times the answers; the maximum of a learnt reward finds its errors, the more so the larger n.",
)
