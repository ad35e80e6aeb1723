"""Config of runs that train a scorer on labelled answers."""

import re
from abc import abstractmethod
from typing import ClassVar, Final

from pydantic import Field, field_validator, model_validator

from hone.core.config import Config
from hone.learner.config import LearnerConfig, require_master_weights, require_whole_minibatches
from hone.models.language.scalar_head import ScoredTokens
from hone.planner.run_settings import PlannedRecipe
from hone.text.answer_data import AnswerKind, AnswerTaskConfig
from hone.text.evaluate.open_policy import ModelSource
from hone.text.open_text import NetworkRunConfig
from hone.text.scorers.scorer_loss import ScorerLoss

LAST_NUMBER: Final = r"-?\d+(?:\.\d+)?"
"""Pattern of a number: an answer's last one is its final answer."""


class ScorerEvaluationConfig(Config):
    """Held-out answers, on which a scorer is judged."""

    task: AnswerTaskConfig
    """Labelled answers that it is not trained on."""
    every: int = Field(default=0, ge=0)
    """Iterations between evaluations during training; 0 evaluates at the end only."""
    answer: str = LAST_NUMBER
    """Regular expression of the final answer that votes count, where several answers to a question are selected among:
    its last match, or the first group of it. Empty: the last line that is not blank."""

    @field_validator("answer")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
        return pattern


class ScorerRunConfig(NetworkRunConfig):
    """A scorer to train on labelled answers."""

    model: ModelSource
    """The network to start from: a policy, which gets a new head, or a scorer."""
    task: AnswerTaskConfig  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    """The labelled answers."""
    evaluation: ScorerEvaluationConfig | None = None
    """Held-out answers, on which it is judged during training and at the end."""
    batch: int = Field(default=64, ge=1)
    """Examples per step: questions with their compared answers, or single answers."""
    learner: LearnerConfig
    """The optimizer."""

    data_kind: ClassVar[AnswerKind]
    """Kind of the data."""
    reads: ClassVar[ScoredTokens]
    """Tokens whose numbers are meant."""

    @classmethod
    def planned(cls) -> PlannedRecipe:
        return PlannedRecipe(rows=("batch",), factor=2 if cls.data_kind == "preference" else 1, predicts_tokens=False)

    @model_validator(mode="after")
    def _parts_fit(self) -> "ScorerRunConfig":
        require_master_weights(self.learner, self.model.weights)
        require_whole_minibatches(self.learner, self.batch, "batch")
        if self.model.exactness == "bitwise":
            raise ValueError('model.exactness = "bitwise" is for policies whose answers are sampled; remove it')
        return self

    @abstractmethod
    def scorer_loss(self) -> ScorerLoss:
        """The loss of the recipe."""
