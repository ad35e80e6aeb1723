"""DPPO: a token's gradient ends where its probability, not its ratio, has moved too far (2026).

A = R - mean of the group; loss = -sg[r] A log pi, 0 where A pushes a token further from the behaviour policy whose
divergence from it is above a threshold: |p - q| or the KL of "this token or another", or either over the likeliest
tokens. Mask and ratio are both against the behaviour policy. The thresholds, 0.15 and 0.05 nats, are those of verl's
example; the cap on the ratio is off.
"""

from typing import Annotated, Literal

from torch import Tensor

from hone.objectives.trust import binary_kl, binary_tv, dppo, top_k_kl, top_k_tv, trust_region_mask
from hone.text import recipe


class BinaryTv(recipe.Config):
    """|p - q| of the chosen token."""

    kind: Literal["tv"] = "tv"
    """Names this alternative."""
    max_increase: float = recipe.Field(default=0.15, gt=0, lt=1)
    """Largest increase of the probability of a token with positive advantage."""
    max_decrease: float = recipe.Field(default=0.15, gt=0, lt=1)
    """Largest decrease of the probability of a token with negative advantage."""
    top: int = recipe.Field(default=0, ge=0)
    """Number of most likely tokens whose probabilities enter the divergence one by one; 0: the chosen token against
    all others."""

    def measure(self, view: recipe.TokenView) -> tuple[Tensor, float, float]:
        """Divergence `[n]`, and its thresholds upwards and downwards."""
        divergence = top_k_tv(*_top_k_distributions(view)) if self.top else binary_tv(view.logp, view.behaviour_logp)
        return divergence, self.max_increase, self.max_decrease


class BinaryKl(recipe.Config):
    """KL of the chosen token against all others."""

    kind: Literal["kl"]
    """Names this alternative."""
    max_increase_nats: float = recipe.Field(default=0.05, gt=0)
    """Largest divergence of a token with positive advantage that became more likely."""
    max_decrease_nats: float = recipe.Field(default=0.05, gt=0)
    """Largest divergence of a token with negative advantage that became less likely."""
    top: int = recipe.Field(default=0, ge=0)
    """Number of most likely tokens whose probabilities enter the divergence one by one; 0: the chosen token against
    all others."""

    def measure(self, view: recipe.TokenView) -> tuple[Tensor, float, float]:
        """Divergence `[n]`, and its thresholds upwards and downwards."""
        divergence = top_k_kl(*_top_k_distributions(view)) if self.top else binary_kl(view.logp, view.behaviour_logp)
        return divergence, self.max_increase_nats, self.max_decrease_nats


class DppoAlgorithm(recipe.PenaltyConfig):
    """Divergence and thresholds of the token trust region, and penalties."""

    trust: Annotated[BinaryTv | BinaryKl, recipe.Field(discriminator="kind")] = BinaryTv()
    """The divergence and its thresholds."""
    ratio_cap: float | None = recipe.Field(default=None, gt=0)
    """Largest weight of a token; unset: none, because truncation is biased."""
    aggregation: recipe.Aggregation = "constant_length"
    """Weight of a token in the loss, by the names that all recipes on text share."""
    advantage: recipe.AdvantageConfig = recipe.AdvantageConfig(scale="none")
    """Baseline, divisor and whitening of the advantages."""


def _require_all_tokens(config: recipe.TextRunConfig) -> None:
    """Raise ConfigError if the divergence needs tokens that truncated sampling removes."""
    assert isinstance(config, DppoConfig)
    if config.algorithm.trust.top:
        recipe.require_full_distribution(config)


class DppoConfig(recipe.TextGradientRunConfig):
    """Divergence proximal policy optimisation."""

    requires = (recipe.require_groups, _require_all_tokens)
    auto_denominator = "recorded"  # the anchor of mask and ratio is the behaviour policy, as in the paper
    algorithm: DppoAlgorithm = DppoAlgorithm()
    """Trust region and penalties."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen = self.algorithm

        def objective(view: recipe.TokenView) -> recipe.LossTerms:
            divergence, rise, fall = chosen.trust.measure(view)
            keep = trust_region_mask(
                view.logp, view.denominator_logp, view.advantage, divergence, max_increase=rise, max_decrease=fall
            )
            return dppo(view.logp, view.denominator_logp, view.advantage, keep, ratio_cap=chosen.ratio_cap)

        loss = recipe.TokenLossSpec(
            objective=objective,
            scheme=recipe.aggregation_scheme(chosen, self.rollout.max_tokens),
            proportional_to_advantage=True,
            top_k=chosen.trust.top,
            needs_old_logp=chosen.trust.top > 0,
        )
        learner = recipe.gradient_learner(self, policies, recipe.with_penalties(loss, chosen))
        return recipe.TextMethod(credit=recipe.group_advantage(chosen.advantage), learner=learner)


def _top_k_distributions(view: recipe.TokenView) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Probabilities of the most likely tokens under both policies; the trainer computes both."""
    assert view.top_k_logp is not None
    assert view.old_top_k is not None
    chosen_too = (view.old_top_k.ids == view.chosen[:, None]).any(dim=1)
    return view.logp, view.old_logp, view.top_k_logp, view.old_top_k.logp, chosen_too


ENTRY = recipe.RecipeSpec(
    summary="a trust region in probability instead of a clip of the ratio",
    paper="Rethinking the Trust Region in LLM Reinforcement Learning, 2602.04879, 2026",
    config=DppoConfig,
    parts=recipe.text_parts(DppoConfig, binary_tv),
    limitation="tokens outside are dropped, not corrected; the most likely tokens are the trainer's, not the engine's.",
    presets=("dppo_tv", "dppo_kl"),
)
