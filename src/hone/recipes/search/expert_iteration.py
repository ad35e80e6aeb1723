"""Expert iteration: the policy imitates its own right answers (Zelikman et al., 2022; Singh et al., 2024).

A round samples answers, keeps the right ones, each once and at most `max_per_problem` of a problem, and imitates them
from the first policy on: loss = -log pi, every token alike. The next round samples from the result.
"""

from pydantic import Field

from hone.core.episodes import Episodes
from hone.learner.round_source import Selection
from hone.run.job import RecipeSpec
from hone.text.collecting.round_job import RoundAlgorithm, RoundRunConfig, round_parts
from hone.text.collecting.selections import right_answers


class ExpertIterationAlgorithm(RoundAlgorithm):
    """Rounds, and the choice of answers."""

    min_score: float = 0.5
    """Score from which an answer is right."""
    max_per_problem: int | None = Field(default=4, ge=1)
    """Most answers to one problem that are imitated, so that easy problems do not outweigh hard ones; unset: all."""


class ExpertIterationConfig(RoundRunConfig):
    """Imitation of right answers, round by round."""

    algorithm: ExpertIterationAlgorithm  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    """Rounds, and the choice of answers."""

    def select(self, episodes: Episodes) -> Selection:
        chosen = self.algorithm
        return right_answers(episodes, min_score=chosen.min_score, max_per_problem=chosen.max_per_problem)


ENTRY = RecipeSpec(
    summary="imitates its own right answers, round by round, each from the first policy on",
    paper="Zelikman et al., STaR, 2022; Singh et al., Beyond Human Data (ReST-EM), 2024",
    config=ExpertIterationConfig,
    parts=round_parts(right_answers),
    limitation="problems without a right sample teach nothing; a reward that luck satisfies teaches wrong reasoning.",
)
