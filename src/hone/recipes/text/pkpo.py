"""PKPO: the gradient of the expected maximum of k scores, without bias (Walder & Karkhanis, 2025).

A = N times the answer's share in the maximum over all subsets of k that hold it, less a baseline that does not depend
on the answer; loss = GRPO's clipped surrogate, summed over an answer's tokens, averaged over answers, over
`max_tokens`.
"""

from functools import partial
from typing import Literal

from hone.credit.passk import pkpo
from hone.text import recipe


class PkpoAlgorithm(recipe.ClipConfig):
    """Number k of attempts, clip widths and penalties."""

    k: int = recipe.Field(ge=1)
    """k: the best of k answers counts; `minus_one` needs at least 2."""
    baseline: Literal["minus_one", "leave_one_out"] = "minus_one"
    """Baseline: the maximum of a subset without the answer, or the mean maximum of the others."""
    aggregation: recipe.Aggregation = "constant_length"
    """Weight of a token in the loss, by the names that all recipes on text share."""


def require_k_answers(config: "PkpoConfig") -> None:
    """Raises ConfigError where a group has fewer than k answers."""
    chosen, samples = config.algorithm, config.rollout.samples_per_prompt
    if chosen.baseline == "minus_one" and chosen.k < 2:
        raise ValueError('algorithm.k = 1 with algorithm.baseline = "minus_one": nothing is left without the answer')
    least = chosen.k if chosen.baseline == "minus_one" else chosen.k + 1
    if samples < least:
        raise ValueError(
            f"rollout.samples_per_prompt = {samples}: algorithm.k = {chosen.k} with algorithm.baseline = "
            f'"{chosen.baseline}" needs at least {least}'
        )


class PkpoConfig(recipe.TextGradientRunConfig):
    """Pass@k policy optimisation."""

    requires = (recipe.require_groups, require_k_answers)
    algorithm: PkpoAlgorithm
    """Attempts, baseline, clip widths, penalties."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen = self.algorithm
        loss = recipe.clip_loss(chosen, recipe.aggregation_scheme(chosen, self.rollout.max_tokens))
        learner = recipe.gradient_learner(self, policies, loss)
        return recipe.TextMethod(credit=partial(pkpo, k=chosen.k, baseline=chosen.baseline), learner=learner)


ENTRY = recipe.RecipeSpec(
    summary="unbiased gradient of the expected maximum of k scores of any kind",
    paper="Walder & Karkhanis, Pass@K Policy Optimization, 2025",
    config=PkpoConfig,
    limitation="the variance grows with k: take a small one, or one that falls along the run.",
)
