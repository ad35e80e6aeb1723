"""On-policy distillation: the student writes, the teacher grades every token (Agarwal et al., 2023; Lu, 2025).

By default A_t = -weight (log pi - log pi_teacher) of each of the student's own tokens; loss = -r A, every token alike:
the policy gradient of the reverse KL, token by token. Or the loss is weight times a divergence of both distributions at
each token that the student wrote: forward KL, reverse KL, or generalised JSD (GKD). Scores play no part; they are told.
"""

from functools import partial

from hone.credit.kl_reward import distillation_credit
from hone.text import divergences, recipe


class DistillationAlgorithm(recipe.AggregationConfig):
    """The teacher, the divergence from it, and the aggregation of the loss."""

    teacher: str = recipe.Field(min_length=1)
    """A Hugging Face folder, a run of hone, or one of its checkpoints, with the student's vocabulary."""
    weight: float = recipe.Field(default=1.0, gt=0)
    """Factor of the log-probability difference, or of the divergence."""
    divergence: divergences.DistillationDivergence = divergences.SampledTokens()
    """Distance from the teacher: `sampled` estimates the reverse KL on the sampled tokens; `forward_kl`, `reverse_kl`
    and `jsd` compare the distributions, on the likeliest `top_k` tokens and the rest together."""


class OnPolicyDistillationConfig(recipe.TextGradientRunConfig):
    """A student on its own answers, token by token."""

    requires = (recipe.require_full_distribution,)
    algorithm: DistillationAlgorithm
    """The teacher."""

    def other_policies(self) -> tuple[str]:
        return (self.algorithm.teacher,)

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        teacher = policies.teacher(self.algorithm.teacher, key="algorithm.teacher")
        column, chosen = policies.logp(teacher), self.algorithm.divergence
        credit = partial(distillation_credit, teacher=column, weight=self.algorithm.weight)
        scheme = recipe.aggregation_scheme(self.algorithm, self.rollout.max_tokens)
        loss = recipe.TokenLossSpec(
            objective=recipe.importance_objective, scheme=scheme, proportional_to_advantage=True
        )
        if not isinstance(chosen, divergences.SampledTokens):
            loss = divergences.divergence_loss(chosen, policies.policy, teacher, scheme, weight=self.algorithm.weight)
        return recipe.TextMethod(credit=credit, learner=recipe.gradient_learner(self, policies, loss))


ENTRY = recipe.RecipeSpec(
    summary="a teacher grades every token of the student's own answers",
    paper="Agarwal et al., On-Policy Distillation of Language Models, 2023; Lu, On-Policy Distillation, 2025",
    config=OnPolicyDistillationConfig,
    limitation="the student must have the teacher's vocabulary, and never becomes better than the teacher.",
)
