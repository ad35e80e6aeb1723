"""Dr.GRPO: GRPO without its two biases, of length and of difficulty (Liu et al., 2025).

A = R - mean of the group; loss = (1 / answers) sum over answers of (1 / C) sum over tokens of
-min(r A, clip(r, 1 - low, 1 + high) A), C = `rollout.max_tokens` whatever an answer's length.
"""

from hone.text import recipe


class DrGrpoAlgorithm(recipe.ClipConfig):
    """Clip widths and penalties, without the two biases by default."""

    aggregation: recipe.Aggregation = "constant_length"
    """Weight of a token in the loss, by the names that all recipes on text share."""
    advantage: recipe.AdvantageConfig = recipe.AdvantageConfig(scale="none")
    """Baseline, divisor and whitening of the advantages."""


class DrGrpoConfig(recipe.TextGradientRunConfig):
    """GRPO done right."""

    algorithm: DrGrpoAlgorithm = DrGrpoAlgorithm()
    """Clip widths and penalties."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen = self.algorithm
        loss = recipe.clip_loss(chosen, recipe.aggregation_scheme(chosen, self.rollout.max_tokens))
        learner = recipe.gradient_learner(self, policies, loss)
        return recipe.TextMethod(credit=recipe.group_advantage(chosen.advantage), learner=learner)


ENTRY = recipe.RecipeSpec(
    summary="GRPO without division by the deviation or by an answer's length",
    paper="Liu et al., Understanding R1-Zero-Like Training, 2025",
    config=DrGrpoConfig,
    limitation="short answers make small gradients: the constant is the longest that there may be.",
    presets=("dr_grpo",),
)
