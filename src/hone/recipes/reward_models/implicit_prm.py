"""Implicit process reward model: a verifier of outcomes that is a language model, and so rewards every token (PRIME).

s = sum over an answer's tokens of log pi / pi_ref, pi_ref: the network as the run starts; loss = cross-entropy of
sigmoid(beta s) against the answer's outcome, the mean over answers. beta log pi / pi_ref of a token is then its reward,
as `credit.process.prime` takes it.
"""

from typing import ClassVar

from pydantic import Field, model_validator

from hone.core.config import Config
from hone.credit.grouping import LabelCredit, desirability
from hone.objectives.implicit import reference_log_ratio
from hone.objectives.reward_model import implicit_process_reward
from hone.objectives.terms import LossTerms
from hone.run.job import RecipeSpec
from hone.text.answer_data import AnswerKind
from hone.text.preference.answer_loss import AnswerLossSpec, AnswerView
from hone.text.preference.preference_job import preference_parts
from hone.text.scorers.implicit_reward_job import HeldOutRunConfig, evaluate_saved_ratios


class ImplicitPrmAlgorithm(Config):
    """Scale of the implicit reward."""

    beta: float = Field(default=0.05, gt=0)
    """Factor of the log-ratio, in rewards per nat."""


class ImplicitPrmConfig(HeldOutRunConfig):
    """Implicit process reward model."""

    answers: ClassVar[AnswerKind] = "unpaired"
    labels: ClassVar[LabelCredit] = staticmethod(desirability)

    algorithm: ImplicitPrmAlgorithm = ImplicitPrmAlgorithm()
    """Scale of the implicit reward."""

    @model_validator(mode="after")
    def _one_evaluation(self) -> "ImplicitPrmConfig":
        if self.evaluation is not None:
            raise ValueError("evaluation lets a policy answer; a reward model is judged on answers: use [held_out]")
        return self

    def scale(self) -> float:
        return self.algorithm.beta

    def loss(self) -> AnswerLossSpec:
        def objective(view: AnswerView) -> LossTerms:
            assert view.ref_logp is not None
            score = reference_log_ratio(view.logp, view.ref_logp)
            return implicit_process_reward(score, view.label > 0, beta=self.algorithm.beta)

        return AnswerLossSpec(objective=objective, unit="answer")


ENTRY = RecipeSpec(
    summary="verifier of outcomes whose log-ratio to its start rewards every token (PRIME)",
    paper="Cui et al., Process Reinforcement through Implicit Rewards, 2025",
    config=ImplicitPrmConfig,
    parts=preference_parts(ImplicitPrmConfig, implicit_process_reward),
    evaluate=evaluate_saved_ratios,
    limitation="its rewards of tokens are right only as far as outcomes tell; it needs its start beside it to score.",
)
