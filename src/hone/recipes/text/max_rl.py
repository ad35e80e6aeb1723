"""MaxRL: maximum likelihood of being right, as far as N answers can tell (2026).

A = (R - mean of the group) / mean of the group, whose expected gradient is that of the first N - 1 terms of log p
(order "n": N terms, and groups without a right answer get -1), or an estimate of any number of terms (`estimator`);
loss = GRPO's clipped surrogate, summed over an answer's tokens, averaged over answers, over `max_tokens`.
"""

from functools import partial
from typing import Annotated, Literal

from hone.credit.passk import maclaurin, max_rl, subset_maclaurin
from hone.text import recipe


class GroupMean(recipe.Config):
    """(score - mean of the group) / mean of the group, and side types of it."""

    kind: Literal["group_mean"] = "group_mean"
    """Names this alternative."""
    order: Literal["n_minus_one", "n"] = "n_minus_one"
    """Terms of log p for N answers; the authors' main code runs N - 1."""
    centered: bool = True
    """Take the mean of the group off the scores; without it, A is R over the mean."""
    standardised: bool = False
    """Divide by the group's standard deviation (of a population) as well."""
    power: float = recipe.Field(default=1.0, ge=0)
    """Power of the mean that divides: 1 for the likelihood, 0.5 for its root."""
    mean_floor: float = recipe.Field(default=0.0, ge=0)
    """Least mean that divides: a bound on the advantage of a rare right answer."""
    epsilon: float = recipe.Field(default=1e-6, ge=0)
    """Added to what divides."""

    @recipe.model_validator(mode="after")
    def _order_of_the_plain_form(self) -> "GroupMean":
        if self.order == "n" and not (self.centered and not self.standardised and self.power == 1.0):
            raise ValueError('order = "n" holds for the plain form: leave out centered, standardised and power')
        return self


class MaclaurinSeries(recipe.Config):
    """The first terms of log p, from the subsets of wrong answers; scores of 0 and 1."""

    kind: Literal["maclaurin"]
    """Names this alternative."""
    terms: int = recipe.Field(ge=1)
    """Terms of the series; those beyond the size of a group are left out."""
    baseline: Literal["none", "leave_one_out", "cross_fitted"] = "none"
    """Baseline of each subset: none, the other subsets (biased), or the disjoint ones."""


class SubsetSeries(recipe.Config):
    """The first terms of log p, from all subsets of that many answers; scores of 0 and 1."""

    kind: Literal["subset"]
    """Names this alternative."""
    terms: int = recipe.Field(ge=1)
    """Terms of the series, and size of the subsets; at most the size of a group."""
    baseline_weight: float = recipe.Field(default=1.0, ge=0)
    """Constant that is taken off every advantage; any value leaves the estimate unbiased."""


class MaxRlAlgorithm(recipe.ClipConfig):
    """Order of the maximum-likelihood expansion, clip widths and penalties."""

    estimator: Annotated[GroupMean | MaclaurinSeries | SubsetSeries, recipe.Field(discriminator="kind")] = GroupMean()
    """Estimator of the gradient of log p: scores over the group's mean, or terms of the Maclaurin series."""
    aggregation: recipe.Aggregation = "constant_length"
    """Weight of a token in the loss, by the names that all recipes on text share."""


def _require_enough_answers(config: "MaxRlConfig") -> None:
    """Raises ValueError for more terms than a group of answers can estimate."""
    estimator, samples = config.algorithm.estimator, config.rollout.samples_per_prompt
    if not isinstance(estimator, GroupMean) and estimator.terms > samples:
        raise ValueError(
            f"algorithm.estimator.terms = {estimator.terms} is above rollout.samples_per_prompt = {samples}: N answers "
            "tell N terms of log p; raise the second or lower the first"
        )


class MaxRlConfig(recipe.TextGradientRunConfig):
    """Maximum likelihood reinforcement learning."""

    requires = (recipe.require_groups, _require_enough_answers)
    algorithm: MaxRlAlgorithm = MaxRlAlgorithm()
    """Order, clip widths, penalties."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen = self.algorithm
        loss = recipe.clip_loss(chosen, recipe.aggregation_scheme(chosen, self.rollout.max_tokens))
        learner = recipe.gradient_learner(self, policies, loss)
        parameters = chosen.estimator.model_dump(exclude={"kind"})
        credit = partial(ESTIMATORS[chosen.estimator.kind], **parameters)
        return recipe.TextMethod(credit=credit, learner=learner)


ESTIMATORS = {"group_mean": max_rl, "maclaurin": maclaurin, "subset": subset_maclaurin}


ENTRY = recipe.RecipeSpec(
    summary="advantages divided by the group's mean: the likelihood of being right",
    paper="MaxRL, 2602.02710, 2026",
    config=MaxRlConfig,
    limitation="scores must be 0 or above; one right answer of many gets an advantage of almost N.",
)
