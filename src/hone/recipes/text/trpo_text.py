"""TRPO for language models: the longest natural-gradient step that a bound on the KL allows (Schulman et al., 2015).

A as in GRPO; loss = -r A, every token alike. The step solves F x = -g by conjugate gradients, F v from differences of
the gradient of the KL estimated on the step's tokens, and is halved back until loss and KL keep what they promised.
Where no length does, the weights are put back bit for bit (`natural/accepted` is 0).
"""

from torch import Tensor

from hone.learner.flat_parameters import FlatParameters
from hone.learner.natural_gradient import TrustRegionConfig, TrustRegionLearner, k3_distance
from hone.learner.share import sharded_store, trained_policy
from hone.models.language.token_policy import TokenPolicy
from hone.objectives.natural import trust_region_step
from hone.text import recipe
from hone.text.loss import TokenLoss
from hone.text.rows import TokenBatch, TokenLayout


class TrpoTextAlgorithm(recipe.AggregationConfig):
    """The trust region."""

    region: TrustRegionConfig = TrustRegionConfig()
    """Trust region: its radius and the line search."""
    advantage: recipe.AdvantageConfig = recipe.AdvantageConfig()
    """Baseline, divisor and whitening of the advantages."""
    micro_batch_tokens: int = recipe.Field(default=16384, ge=1)
    """Tokens per forward pass: changes the use of memory, never the result."""


def _require_exact_arithmetic(config: recipe.TextRunConfig) -> None:
    """Curvature is a difference of gradients a thousandth of a step apart."""
    if config.model.compute != "float32":
        raise ValueError(
            f'model.compute = "{config.model.compute}": trpo_text takes curvature from differences of gradients, which '
            'bfloat16 rounds away; set model.compute = "float32"'
        )


def _require_fresh_answers(config: recipe.TextRunConfig) -> None:
    """The trust region is around the policy that answered."""
    if steps := config.rollout.asynchrony.steps:
        raise ValueError(
            f"rollout.max_staleness = {steps}: trpo_text bounds the distance from the policy that answered, "
            "which must be the newest one; leave it out"
        )


def _require_all_weights(config: recipe.TextRunConfig) -> None:
    """The step is in the space of the weights themselves."""
    if config.model.lora is not None:
        raise ValueError("model.lora: trpo_text takes its natural gradient in all weights; leave it out, or take grpo")


class TrpoTextConfig(recipe.TextRunConfig):
    """Trust region policy optimisation of a language model."""

    requires = (recipe.require_groups, _require_exact_arithmetic, _require_fresh_answers, _require_all_weights)
    algorithm: TrpoTextAlgorithm = TrpoTextAlgorithm()
    """The trust region."""

    def micro_batch_tokens(self) -> int:
        return self.algorithm.micro_batch_tokens

    def derive_updates(self) -> dict[str, str]:
        region = self.algorithm.region
        return {"gradients per step": f"1 + 2 x {region.iterations}, and up to {region.backtracks} looks at the loss"}

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        policy = trained_policy(policies.policy)
        scheme = recipe.aggregation_scheme(self.algorithm, self.rollout.max_tokens)
        loss = recipe.TokenLossSpec(objective=recipe.importance_objective, scheme=scheme)
        token_loss = TokenLoss(
            loss=loss,
            denominator="recomputed",
            micro_batch_tokens=self.micro_batch_tokens(),
            learnable=self.rollout.learnable,
        )

        def surrogate(policy: TokenPolicy, batch: TokenBatch) -> tuple[recipe.LossTerms, Tensor]:
            view = token_loss.token_view(policy, batch)
            return recipe.importance_objective(view), k3_distance(view.logp, view.denominator_logp)

        learner = TrustRegionLearner(
            policy=policy,
            layout=token_loss.layout(
                TokenLayout(
                    scheme=scheme,
                    pass_tokens=self.micro_batch_tokens(),
                    shares=self.run.shares,
                    device=self.run.device,
                ),
                policy,
            ),
            surrogate=surrogate,
            parameters=sharded_store(policy) or FlatParameters(policy.parameters()),
            region=self.algorithm.region.region(),
            micro_batch_tokens=self.micro_batch_tokens(),
        )
        return recipe.TextMethod(credit=recipe.group_advantage(self.algorithm.advantage), learner=learner)


ENTRY = recipe.RecipeSpec(
    summary="the longest natural-gradient step that a bound on the KL allows, for language models",
    paper="Schulman et al., Trust Region Policy Optimization, 2015",
    config=TrpoTextConfig,
    parts=recipe.text_parts(TrpoTextConfig, trust_region_step),
    limitation="some thirty times the gradients of one AdamW step, in float32; neither TRL nor verl has it.",
)
