"""Self-imitation: the policy gradient on new answers, and imitation of earlier ones that went better than expected.

A = R - mean of the group for new answers, weight * max(R - mean score of the question's latest answers, 0) for
replayed ones; loss = -A log pi, every token alike (SIL, Oh et al., 2018, with a group's mean in the critic's place).
"""

from functools import partial

from hone.credit.shaping import self_imitation
from hone.sources.logged import SuccessReplay
from hone.text import recipe


class SuccessReplayConfig(recipe.Config):
    """Replay of successes."""

    capacity: int = recipe.Field(default=1000, ge=1)
    """Successes that are kept, the newest."""
    per_step: int = recipe.Field(default=32, ge=1)
    """Successes in a batch."""
    weight: float = recipe.Field(default=1.0, ge=0)
    """Factor of their advantages."""


class SelfImitationAlgorithm(recipe.AggregationConfig):
    """Replay and aggregation."""

    replay: SuccessReplayConfig = SuccessReplayConfig()
    """Replay of successes."""
    advantage: recipe.AdvantageConfig = recipe.AdvantageConfig(scale="none")
    """Baseline, divisor and whitening of the advantages of new answers."""
    aggregation: recipe.Aggregation = "token_mean"
    """Weight of a token in the loss, by the names that all recipes on text share."""


class SelfImitationConfig(recipe.TextGradientRunConfig):
    """The policy gradient with replay of successes."""

    requires = (recipe.require_groups, recipe.require_on_policy)
    algorithm: SelfImitationAlgorithm = SelfImitationAlgorithm()
    """Replay and loss."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen, replay = self.algorithm, self.algorithm.replay
        credit = partial(self_imitation, credit=recipe.group_advantage(chosen.advantage), weight=replay.weight)
        loss = recipe.policy_gradient_loss(recipe.aggregation_scheme(chosen, self.rollout.max_tokens))
        wrap = partial(SuccessReplay, capacity=replay.capacity, sample_size=replay.per_step, seed=self.seed)
        return recipe.TextMethod(credit=credit, learner=recipe.gradient_learner(self, policies, loss), wrap_source=wrap)


ENTRY = recipe.RecipeSpec(
    summary="the policy gradient, and replay of its own rare successes",
    paper="Oh et al., Self-Imitation Learning, 2018",
    config=SelfImitationConfig,
    limitation="a success by luck is imitated as well, until its question's mean has caught up with it; one update per "
    "rollout.",
)
