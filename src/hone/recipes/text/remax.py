"""ReMax: each answer is compared with the policy's own greedy answer to the same question (Li et al., 2023).

A = R - score of the greedy answer; loss = -A log pi, summed over an answer's tokens, averaged over answers. Every
prompt is answered once more, greedily; that answer is scored, and not learned from.
"""

from dataclasses import replace

from hone.credit.reinforce import remax
from hone.text import recipe


class RemaxAlgorithm(recipe.AggregationConfig):
    """Coefficient of the KL penalty in the reward."""

    kl_in_reward: recipe.KlCoef = recipe.FixedKlCoef()
    """Coefficient of the KL penalty to the initial policy, in the reward; off by default."""
    aggregation: recipe.Aggregation = "sequence_sum"
    """Weight of a token in the loss, by the names that all recipes on text share."""


class RemaxConfig(recipe.TextGradientRunConfig):
    """REINFORCE with a greedy baseline."""

    requires = (recipe.require_on_policy,)
    algorithm: RemaxAlgorithm = RemaxAlgorithm()
    """KL."""

    @classmethod
    def planned(cls) -> recipe.PlannedRecipe:
        return replace(super().planned(), greedy=True)

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen = self.algorithm
        credit, memory = recipe.with_kl_reward(remax, chosen.kl_in_reward, policies)
        loss = recipe.policy_gradient_loss(recipe.aggregation_scheme(chosen, self.rollout.max_tokens))
        learner = recipe.gradient_learner(self, policies, loss)
        return recipe.TextMethod(credit=credit, learner=learner, greedy_baseline=True, credit_state=memory)


ENTRY = recipe.RecipeSpec(
    summary="REINFORCE with the score of a greedy answer as the baseline",
    paper="Li et al., ReMax, 2023",
    config=RemaxConfig,
    parts=recipe.text_parts(RemaxConfig, source=f"{recipe.LIVE_SOURCE}, with a greedy answer to each question"),
    limitation="one more answer per question; the baseline is not the one of least variance, least of all for long "
    "answers; one update per rollout.",
)
