"""TRPO for language models: the longest natural-gradient step that a bound on the KL allows (Schulman et al., 2015).

A as in GRPO; loss = -r A, every token alike. The step solves F x = -g by conjugate gradients, F v from differences of
the gradient of the KL estimated on the step's tokens, and is halved back until loss and KL keep what they promised.
Where no length does, the weights are put back bit for bit (`natural/accepted` is 0).
"""

from functools import partial

from pydantic import Field
from torch import Tensor

from hone.core.config import Config
from hone.credit.group import Scale, group_relative
from hone.models.language.token_policy import TokenPolicy
from hone.objectives.natural import natural_step
from hone.objectives.policy import importance
from hone.objectives.terms import Terms
from hone.objectives.weights import token_mean
from hone.train.job import Parts
from hone.train.learner.flat_parameters import FlatParameters
from hone.train.learner.natural_gradient import NaturalLearner, TrustRegionConfig, distance
from hone.train.text.loss import Loss, TokenLoss
from hone.train.text.loss_adapters import weighed
from hone.train.text.reference_policies import Policies
from hone.train.text.rl_job import Method, TextRun, groups, text_entry
from hone.train.text.rows import TokenBatch, TokenLayout


class TrpoTextAlgorithm(Config):
    """The trust region."""

    region: TrustRegionConfig = TrustRegionConfig()
    """How far a step may go, and how it is looked for."""
    scale: Scale = "group"
    """What centred scores are divided by: the group's standard deviation, the batch's, or nothing."""
    micro_batch_tokens: int = Field(default=16384, ge=1)
    """Tokens that go through the network at a time: memory, never the result."""


def exact_arithmetic(config: TextRun) -> None:
    """Curvature is a difference of gradients a thousandth of a step apart."""
    if config.model.compute != "float32":
        raise ValueError(
            f'model.compute = "{config.model.compute}": trpo_text takes curvature from differences of gradients, which '
            'bfloat16 rounds away; set model.compute = "float32"'
        )


def newest_answers(config: TextRun) -> None:
    """The trust region is around the policy that answered."""
    if steps := config.rollout.collecting.steps:
        raise ValueError(
            f"rollout.ahead = {steps}: trpo_text bounds the distance from the policy that answered, "
            "which must be the newest one; leave it out"
        )


class TrpoText(TextRun):
    """Trust region policy optimisation of a language model."""

    requires = (groups, exact_arithmetic, newest_answers)
    algorithm: TrpoTextAlgorithm = TrpoTextAlgorithm()
    """The trust region."""

    def micro_batch_tokens(self) -> int:
        return self.algorithm.micro_batch_tokens

    def updates(self) -> dict[str, str]:
        region = self.algorithm.region
        return {"gradients per step": f"1 + 2 x {region.iterations}, and up to {region.backtracks} looks at the loss"}


def method(config: TrpoText, policies: Policies) -> Method:
    policy = policies.policy
    loss = Loss(objective=weighed, scheme=token_mean, proportional=False)
    token_loss = TokenLoss(loss=loss, denominator="recomputed", micro_batch_tokens=config.micro_batch_tokens())

    def surrogate(policy: TokenPolicy, batch: TokenBatch) -> tuple[Terms, Tensor]:
        view = token_loss.view(policy, batch)
        return weighed(view), distance(view.now, view.then)

    learner = NaturalLearner(
        policy=policy,
        layout=token_loss.layout(TokenLayout(scheme=token_mean, device=config.run.device), policy),
        surrogate=surrogate,
        parameters=FlatParameters(policy.parameters()),
        region=config.algorithm.region.region(),
        micro_batch_tokens=config.micro_batch_tokens(),
    )
    return Method(credit=partial(group_relative, scale=config.algorithm.scale), learner=learner)


ENTRY = text_entry(
    summary="the longest natural-gradient step that a bound on the KL allows, for language models",
    source="Schulman et al., Trust Region Policy Optimization, 2015",
    config=TrpoText,
    method=method,
    parts=Parts(credit=(group_relative,), loss=(importance, natural_step), weights=(token_mean,)),
    limitation="some thirty times the gradients of one AdamW step, in float32; neither TRL nor verl has it.",
)
