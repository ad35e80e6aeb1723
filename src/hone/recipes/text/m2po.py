"""M2PO: for stale answers; what has moved farthest is left out until the rest is near (Zheng et al., 2025).

A as in GRPO; loss = -r A at the kept tokens, every token alike. As few tokens as possible are dropped, those of the
largest (log r)^2, until its mean over the rest is below the bound. No ratio is clipped.
"""

from hone.objectives.selection import second_moment_mask
from hone.objectives.trust import m2po
from hone.text import recipe


class M2poAlgorithm(recipe.PenaltyConfig):
    """The bound."""

    max_second_moment: float = recipe.Field(default=0.04, gt=0)
    """Bound on the mean of (log r)^2 over the kept tokens, nats^2."""
    advantage: recipe.AdvantageConfig = recipe.AdvantageConfig()
    """Baseline, divisor and whitening of the advantages."""


class M2poConfig(recipe.TextGradientRunConfig):
    """Second-moment trust policy optimisation."""

    algorithm: M2poAlgorithm = M2poAlgorithm()
    """The bound and penalties."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen = self.algorithm

        def select(columns: recipe.StepColumns) -> recipe.TokenFactors:
            bound = chosen.max_second_moment
            return second_moment_mask(columns.logp, columns.denominator_logp, max_second_moment=bound)

        objective = recipe.from_selected_columns(m2po)
        scheme = recipe.aggregation_scheme(chosen, self.rollout.max_tokens)
        loss = recipe.penalised_loss(objective, scheme, chosen, select_tokens=select)
        return recipe.TextMethod(
            credit=recipe.group_advantage(chosen.advantage), learner=recipe.gradient_learner(self, policies, loss)
        )


ENTRY = recipe.RecipeSpec(
    summary="a bound on the second moment of log-ratios instead of a clip, for stale answers",
    paper="Zheng et al., Prosperity before Collapse, 2025",
    config=M2poConfig,
    limitation="the paper's bound could not be checked; with fresh answers and one update nothing is ever dropped.",
)
