"""GSPO-token: the ratio of the answer, the gradient of each token (Zheng et al., 2025).

A as in GRPO; s_t = sg[s] pi_t / sg[pi_t], s the geometric mean of the answer's ratios; loss =
-min(s_t A, clip(s_t, 1 - 3e-4, 1 + 4e-4) A), every answer alike. Its gradient is GSPO's where
all tokens of an answer have one advantage; they may have their own.
"""

from functools import partial

from hone.objectives.sequence import gspo_token
from hone.recipes.text.gspo import GspoAlgorithm
from hone.text import recipe


class GspoTokenConfig(recipe.TextGradientRunConfig):
    """Group sequence policy optimisation, token by token."""

    algorithm: GspoAlgorithm = GspoAlgorithm()
    """Clip widths and penalties."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen = self.algorithm
        objective = recipe.from_sequence_columns(partial(gspo_token, **recipe.clip_range(chosen)))
        loss = recipe.penalised_loss(objective, recipe.aggregation_scheme(chosen, self.rollout.max_tokens), chosen)
        return recipe.TextMethod(
            credit=recipe.group_advantage(chosen.advantage), learner=recipe.gradient_learner(self, policies, loss)
        )


ENTRY = recipe.RecipeSpec(
    summary="GSPO with a gradient, and if wanted an advantage, of each token",
    paper="Zheng et al., Group Sequence Policy Optimization, 2025",
    config=GspoTokenConfig,
    limitation="as GSPO: widths of token ratios switch its clip off; under a token mean it is another objective.",
    presets=("gspo",),
)
