"""GRPO with curiosity: what surprises a world model is paid beside the score.

R' = R + weight * min(surprise, max_nats); the surprise of a dialogue is the mean of -log p of what the environment
said, under a copy of the policy that learns these tokens from every batch; then GRPO's advantages and loss.
"""

from dataclasses import replace
from functools import partial

from hone.credit.shaping import with_curiosity
from hone.text import recipe
from hone.text.world_model import CuriosityConfig, CuriousLearner


class CuriousGrpoAlgorithm(recipe.ClipConfig):
    """The bonus, and the numbers of GRPO."""

    bonus: CuriosityConfig = CuriosityConfig()
    """The bonus and the world model."""
    advantage: recipe.AdvantageConfig = recipe.AdvantageConfig()
    """Baseline, divisor and whitening of the advantages."""


class CuriousGrpoConfig(recipe.TextGradientRunConfig):
    """Group-relative policy optimisation with a bonus for surprises."""

    keeps_last_words = True
    algorithm: CuriousGrpoAlgorithm = CuriousGrpoAlgorithm()
    """Bonus and loss."""

    @classmethod
    def planned(cls) -> recipe.PlannedRecipe:
        return replace(super().planned(), networks={"world model": 4})

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen, bonus = self.algorithm, self.algorithm.bonus
        model = bonus.open(self, policies)
        credit = partial(
            with_curiosity,
            credit=recipe.group_advantage(chosen.advantage),
            surprise=model.surprise,
            weight=bonus.weight,
            max_nats=bonus.max_nats,
        )
        loss = recipe.clip_loss(chosen, recipe.aggregation_scheme(chosen, self.rollout.max_tokens))
        learner = CuriousLearner(recipe.gradient_learner(self, policies, loss), model)
        return recipe.TextMethod(credit=credit, learner=learner, pop_notes=model.pop_notes)


ENTRY = recipe.RecipeSpec(
    summary="GRPO with a bonus for dialogues that surprise a world model",
    paper="Pathak et al., Curiosity-driven Exploration by Self-supervised Prediction, 2017",
    config=CuriousGrpoConfig,
    limitation="a second network of the policy's size; what is random stays surprising, and only a dialogue's first "
    "visits to what can be known are worth a bonus.",
)
