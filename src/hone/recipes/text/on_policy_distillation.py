"""On-policy distillation: the student writes, the teacher grades every token (Agarwal et al., 2023; Lu, 2025).

A_t = -weight (log pi - log pi_teacher) of each of the student's own tokens; loss = -r A, every token alike: the policy
gradient of the reverse KL, token by token. Scores play no part; they are told, so that one sees what it is good for.
"""

from dataclasses import replace
from functools import partial

from pydantic import Field

from hone.core.config import Config
from hone.core.errors import all_at_once
from hone.credit.kl_reward import distilled
from hone.evaluate.text.open_policy import ModelSource, open_tokenizer
from hone.objectives.policy import importance
from hone.objectives.weights import token_mean
from hone.train.job import Parts
from hone.train.text.loss import Loss
from hone.train.text.loss_adapters import weighed
from hone.train.text.reference_policies import Policies
from hone.train.text.rl_job import Method, TextRl, by_gradient, check_rl, text_entry, untruncated


class DistillationAlgorithm(Config):
    """The teacher."""

    teacher: str = Field(min_length=1)
    """A Hugging Face folder, a run of hone, or one of its checkpoints, with the student's vocabulary."""
    weight: float = Field(default=1.0, gt=0)
    """What the difference in nats is multiplied by."""


class OnPolicyDistillation(TextRl):
    """A student on its own answers, token by token."""

    requires = (untruncated,)
    algorithm: DistillationAlgorithm
    """The teacher."""


def method(config: OnPolicyDistillation, policies: Policies) -> Method:
    teacher = policies.logp(policies.teacher(config.algorithm.teacher, key="algorithm.teacher"))
    credit = partial(distilled, teacher=teacher, weight=config.algorithm.weight)
    loss = Loss(objective=weighed, scheme=token_mean, proportional=True)
    return Method(credit=credit, learner=by_gradient(config, policies, loss))


def check(config: OnPolicyDistillation) -> list[str]:
    """Faults of data and rewards, and of both policies' folders."""

    def teacher_can_be_read() -> list[str]:
        open_tokenizer(ModelSource(path=config.algorithm.teacher))
        return []

    found = all_at_once({"run": partial(check_rl, config), "teacher": teacher_can_be_read})
    return found["run"]


ENTRY = replace(
    text_entry(
        summary="a teacher grades every token of the student's own answers",
        source="Agarwal et al., On-Policy Distillation of Language Models, 2023; Lu, On-Policy Distillation, 2025",
        config=OnPolicyDistillation,
        method=method,
        parts=Parts(credit=(distilled,), loss=(importance,), weights=(token_mean,)),
        limitation="the student must have the teacher's vocabulary, and never becomes better than the teacher.",
    ),
    check=check,
)
