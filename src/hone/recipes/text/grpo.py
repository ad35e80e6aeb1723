"""GRPO: advantages relative to the other answers to the same question (Shao et al., "DeepSeekMath", 2024).

A = (R - mean of the group) / (std of the group + eps), the same for every token of an answer;
loss = sum over tokens of weight * [-min(r A, clip(r, 1 - low, 1 + high) A) + kl * KL(policy || reference)],
with r = pi / pi of the behaviour policy. No critic. `clip_high` above `clip_low` is DAPO's "clip higher" (2025).
"""

from hone.text import recipe


class GrpoAlgorithm(recipe.ClipConfig):
    """The numbers of the paper, and where later ones changed them."""

    advantage: recipe.AdvantageConfig = recipe.AdvantageConfig()
    """Baseline, divisor and whitening of the advantages."""


class GrpoConfig(recipe.TextGradientRunConfig):
    """Group-relative policy optimisation."""

    algorithm: GrpoAlgorithm = GrpoAlgorithm()
    """Clip widths, scaling, KL."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen = self.algorithm
        loss = recipe.clip_loss(chosen, recipe.aggregation_scheme(chosen, self.rollout.max_tokens))
        learner = recipe.gradient_learner(self, policies, loss)
        return recipe.TextMethod(credit=recipe.group_advantage(chosen.advantage), learner=learner)


ENTRY = recipe.RecipeSpec(
    summary="group-relative policy optimisation: answers are compared within their group",
    paper="Shao et al., DeepSeekMath, 2024",
    config=GrpoConfig,
    limitation="dividing by the group's deviation weighs very easy and very hard questions up; groups of equal scores "
    "teach nothing; entropy falls where clip_high is not above clip_low.",
    presets=("grpo", "kl"),
)
