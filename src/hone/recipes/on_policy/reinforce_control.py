"""REINFORCE on environments (Williams, 1992): returns weight the log-probabilities of the actions before them.

Learns from whole episodes only, by Monte Carlo returns. `baseline` is subtracted from a return: a learned state value,
the batch's mean, or nothing. No baseline biases the gradient; the better it predicts the return, the lower the
gradient's variance.
"""

from dataclasses import replace
from functools import partial
from typing import Literal

from pydantic import Field

from hone.control.networks.actor_critic import ActorCritic
from hone.control.normalise import NormaliseConfig
from hone.control.on_policy import OnPolicyMethod, OnPolicyRunConfig, actor_critic_loss
from hone.control.rows import StepRows
from hone.core.config import Config, new_default
from hone.core.credit import NO_VALUES, Credits, Values
from hone.core.episodes import Episodes
from hone.credit.returns import discounted_returns, gae, standardised
from hone.learner.config import LearnerConfig
from hone.objectives.policy import reinforce_loss
from hone.objectives.terms import LossTerms
from hone.objectives.value import squared_error
from hone.objectives.weights import token_mean
from hone.run.job import RecipeParts, RecipeSpec
from hone.sources.live import WholeEpisodes


class ReinforceControlAlgorithm(Config):
    """Returns and baseline."""

    discount: float = Field(default=0.99, ge=0, le=1)
    """Discount factor (gamma)."""
    baseline: Literal["value", "mean", "none"] = "value"
    """`value`: a critic's; `mean`: of the batch's returns; `none`: returns as they are."""
    episodes: int = Field(default=4, ge=1)
    """Episodes that must have ended before an update."""
    value_weight: float = Field(default=1.0, ge=0)
    """Weight of the critic's squared error, halved."""
    entropy_weight: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus."""
    normalise: NormaliseConfig = NormaliseConfig()
    """Running normalisation of observations and rewards."""


class ReinforceControlConfig(OnPolicyRunConfig):
    """A policy, and a critic as its baseline, on Gymnasium environments."""

    rollout_steps = new_default(64, "Steps of each environment between looks at which episodes have ended.")
    learner = new_default(LearnerConfig(lr=3e-3, max_grad_norm=0.5), "The optimizer; one step per iteration.")
    algorithm: ReinforceControlAlgorithm = ReinforceControlAlgorithm()
    """Credit and loss."""

    def method(self) -> OnPolicyMethod:
        """Credit and loss of the recipe, as the on-policy family takes them."""
        algorithm = self.algorithm
        return OnPolicyMethod(
            credit=partial(_return_credit, algorithm=algorithm),
            objective=partial(_objective, algorithm=algorithm),
            normalise=algorithm.normalise,
            discount=algorithm.discount,
            use_critic=algorithm.baseline == "value",
            wrap_source=partial(WholeEpisodes, min_episodes=algorithm.episodes),
        )


def _return_credit(episodes: Episodes, values: Values, *, algorithm: ReinforceControlAlgorithm) -> Credits:
    """Returns to the end of the episode, above the baseline; a time limit is no end where a critic can look beyond."""
    if algorithm.baseline == "value":
        return standardised(gae(episodes, values, discount=algorithm.discount, gae_lambda=1.0))
    paid = discounted_returns(episodes, NO_VALUES, discount=algorithm.discount)
    if algorithm.baseline == "none":
        return paid
    return replace(paid, advantage=paid.advantage - paid.advantage.mean())


def _objective(policy: ActorCritic, rows: StepRows, *, algorithm: ReinforceControlAlgorithm) -> LossTerms:
    """-A log p + value_weight * value error - entropy_weight * entropy."""
    now = policy.evaluate_rows(rows)
    actor = reinforce_loss(now.logp, rows.advantage)
    return actor_critic_loss(actor, now, rows.target, algorithm.value_weight, algorithm.entropy_weight)


ENTRY = RecipeSpec(
    summary="on-policy control: Monte-Carlo policy gradient on whole episodes, with or without a baseline",
    paper="Williams, Simple Statistical Gradient-Following Algorithms, 1992",
    config=ReinforceControlConfig,
    parts=RecipeParts(
        source="WholeEpisodes(Live(Gymnasium))",
        credit=(standardised, gae),
        loss=(reinforce_loss, squared_error),
        weights=(token_mean,),
    ),
    limitation="waits for the ends of episodes; the variance of returns grows with their length.",
)
