"""KTO: answers marked good or bad, without pairs (Ethayarajh et al., 2024).

s = log pi(y) / pi_ref(y), z0 = max(0, mean of s over answers to *other* prompts); loss = 1 - sigmoid(beta (s - z0)) of
a desirable answer, 1 - sigmoid(beta (z0 - s)) of an undesirable one, the mean over answers. Each answer brings another
prompt's answer along, from which z0 is estimated over the whole step.
"""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from hone.core.config import Config
from hone.core.episodes import Episodes
from hone.credit.grouping import LabelCredit, desirability
from hone.objectives.batchwide import kto_baseline
from hone.objectives.implicit import reference_log_ratio
from hone.objectives.preference import apo_zero_unpaired, bco, kto
from hone.objectives.terms import LossTerms
from hone.run.job import RecipeSpec
from hone.text.answer_data import AnswerKind
from hone.text.preference.answer_loss import AnswerLossSpec, AnswerView, RunningShiftStatistic, with_mismatched_answers
from hone.text.preference.preference_job import PreferenceRunConfig, preference_parts


def log_ratio(view: AnswerView) -> Tensor:
    """s of each answer `[A]`, in nats."""
    assert view.ref_logp is not None
    return reference_log_ratio(view.logp, view.ref_logp)


class KtoLoss(Config):
    """KTO's loss around the baseline z0."""

    kind: Literal["kto"] = "kto"
    """Names this alternative."""
    beta: float = Field(default=0.1, gt=0)
    """KL coefficient of the reference."""
    desirable_weight: float = Field(default=1.0, gt=0)
    """Weight of desirable answers. (this x their number) : (the other x theirs) is best between 1:1 and 4:3."""
    undesirable_weight: float = Field(default=1.0, gt=0)
    """Weight of undesirable answers."""

    def spec(self) -> AnswerLossSpec:
        """The loss on answers."""

        def objective(view: AnswerView) -> LossTerms:
            labelled = view.where(view.label != 0)
            assert labelled.statistic is not None
            return kto(
                log_ratio(labelled),
                labelled.label > 0,
                labelled.statistic,
                beta=self.beta,
                desirable_weight=self.desirable_weight,
                undesirable_weight=self.undesirable_weight,
            )

        return AnswerLossSpec(objective=objective, unit="answer", statistic=baseline, needs_unlabelled=True)


class UnpairedBcoLoss(Config):
    """BCO (Jung et al., 2024): a classifier of answers, shifted by the mean implicit reward so far."""

    kind: Literal["bco"]
    """Names this alternative."""
    beta: float = Field(default=0.1, gt=0)
    """KL coefficient of the reference."""

    def spec(self) -> AnswerLossSpec:
        """The loss on answers."""

        def objective(view: AnswerView) -> LossTerms:
            assert view.statistic is not None
            return bco(log_ratio(view), view.label > 0, view.statistic, beta=self.beta)

        shift = RunningShiftStatistic(log_ratio)
        return AnswerLossSpec(objective=objective, unit="answer", statistic=shift, running=shift)


class UnpairedApoZeroLoss(Config):
    """APO-zero on single answers (D'Oosterlinck et al., 2024): KTO with z0 = 0, which needs no other answers."""

    kind: Literal["apo_zero"]
    """Names this alternative."""
    beta: float = Field(default=0.1, gt=0)
    """KL coefficient of the reference."""

    def spec(self) -> AnswerLossSpec:
        """The loss on answers."""

        def objective(view: AnswerView) -> LossTerms:
            return apo_zero_unpaired(log_ratio(view), view.label > 0, beta=self.beta)

        return AnswerLossSpec(objective=objective, unit="answer")


def baseline(view: AnswerView) -> Tensor:
    """z0 `[A]`, from the answers without a label: those of other prompts."""
    mismatched = torch.where(view.label == 0, log_ratio(view), torch.nan)
    return torch.from_numpy(kto_baseline(mismatched.numpy()))


class KtoAlgorithm(Config):
    """Loss on labelled answers."""

    loss: Annotated[KtoLoss | UnpairedBcoLoss | UnpairedApoZeroLoss, Field(discriminator="kind")] = KtoLoss()
    """The loss, by its `kind`."""
    reference: str | None = None
    """Folder of the reference policy; unset: the policy as the run starts, which costs no second model."""


class KtoConfig(PreferenceRunConfig):
    """Kahneman-Tversky optimisation."""

    answers: ClassVar[AnswerKind] = "unpaired"
    labels: ClassVar[LabelCredit] = staticmethod(desirability)

    algorithm: KtoAlgorithm = KtoAlgorithm()
    """The loss."""

    def loss(self) -> AnswerLossSpec:
        return self.algorithm.loss.spec()

    def reference(self) -> str | None:
        return self.algorithm.reference

    def with_unlabelled(self, log: Episodes, context: int) -> Episodes:
        return with_mismatched_answers(log, context) if self.loss().needs_unlabelled else log


ENTRY = RecipeSpec(
    summary="answers marked good or bad, without pairs: raise or lower each against a baseline of the step",
    paper="Ethayarajh et al., KTO: Model Alignment as Prospect Theoretic Optimization, 2024",
    config=KtoConfig,
    parts=preference_parts(KtoConfig, kto),
    limitation="a mark says less than a comparison; its baseline is a biased estimate of the KL, as the paper says.",
)
