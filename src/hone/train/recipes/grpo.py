"""GRPO: answers to one question judge each other (Shao et al., "DeepSeekMath", 2024).

A = (R - mean of the group) / (std of the group + eps), the same for every token of an answer;
loss = sum over tokens of weight * [-min(r A, clip(r, 1 - low, 1 + high) A) + kl * KL(policy || reference)],
with r = exp(logp - logp of whoever acted). No critic. `clip_high` above `clip_low` is DAPO's "clip higher" (2025).
"""

from functools import partial
from typing import Literal

from pydantic import Field, model_validator

from hone.core.config import Config
from hone.credit.group import Scale, group_relative
from hone.models.policy import TokenPolicy
from hone.objectives.kl import k1, k2, k3, weighted_k3
from hone.objectives.policy import clipped
from hone.objectives.terms import Terms
from hone.train.job import Entry, Job
from hone.train.text_rl import Aggregation, TextRl, check_rl, derived, scheme_of, text_job
from hone.train.token_loss import Loss, TokenView


class GrpoAlgorithm(Config):
    """The numbers of the paper, and where later ones changed them."""

    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """A token's ratio is clipped below 1 - clip_low where its advantage is negative."""
    clip_high: float = Field(default=0.2, gt=0)
    """A token's ratio is clipped above 1 + clip_high where its advantage is positive."""
    scale: Scale = "group"
    """What centred scores are divided by: the group's standard deviation, the batch's, or nothing."""
    aggregation: Aggregation = "token_mean"
    """Weight of a token in the loss."""
    kl: float = Field(default=0.0, ge=0)
    """Weight of the distance to the policy that the run started from; 0 keeps no reference."""
    kl_estimator: Literal["k2", "k3", "weighted_k3"] = "weighted_k3"
    """What is differentiated; k1 is refused, because its gradient is 0 in expectation."""


class Grpo(TextRl):
    """Group-relative policy optimisation."""

    algorithm: GrpoAlgorithm = GrpoAlgorithm()
    """Clip widths, scaling, KL."""

    @model_validator(mode="after")
    def _group_has_something_to_compare(self) -> "Grpo":
        if self.rollout.samples_per_prompt < 2:
            raise ValueError("rollout.samples_per_prompt must be at least 2: answers are judged by each other")
        return self


def objective(view: TokenView, *, algorithm: GrpoAlgorithm) -> Terms:
    """The clipped surrogate of each token, plus the weighted distance to the reference."""
    terms = clipped(view.now, view.then, view.advantage, low=algorithm.clip_low, high=algorithm.clip_high)
    anchor = view.anchor
    if anchor is None:
        return terms
    estimators = {"k2": k2, "k3": k3, "weighted_k3": partial(weighted_k3, logp_old=view.then)}
    distance = estimators[algorithm.kl_estimator](view.now, anchor)
    return Terms(
        loss=terms.loss + algorithm.kl * distance,
        told=lambda: {**terms.metrics, "policy/kl_reference": k1(view.now, anchor)},
    )


def build(config: Grpo) -> Job[TokenPolicy]:
    algorithm = config.algorithm
    return text_job(
        config,
        credit=partial(group_relative, scale=algorithm.scale),
        loss=Loss(
            objective=partial(objective, algorithm=algorithm),
            scheme=scheme_of(algorithm.aggregation, config.rollout.max_tokens),
            proportional=algorithm.kl == 0,
            reference=algorithm.kl > 0,
        ),
    )


ENTRY = Entry(
    summary="group-relative policy optimisation: answers to one question judge each other",
    source="Shao et al., DeepSeekMath, 2024",
    config=Grpo,
    build=build,
    check=check_rl,
    derive=derived,
)
