"""Advantage actor-critic (Mnih et al., 2016): one gradient step on the last few steps of many environments.

The synchronous form of A3C. With `algorithm.max_staleness` a thread collects while the policy learns, on a fixed
schedule, so that a run stays reproducible; steps of older policies are weighted by the importance ratio to the
behaviour policy, truncated at `ratio_cap`. The defaults are those that solve CartPole-v1 within 500,000 steps.
"""

from functools import partial

from pydantic import Field

from hone.control import on_policy
from hone.control.networks.actor_critic import ActorCritic
from hone.control.normalise import NormaliseConfig
from hone.control.rows import StepRows
from hone.core.config import new_default
from hone.credit.returns import gae
from hone.learner.config import LearnerConfig
from hone.objectives.policy import cispo, reinforce_loss
from hone.objectives.terms import LossTerms
from hone.objectives.value import squared_error
from hone.objectives.weights import token_mean
from hone.run.job import RecipeParts, RecipeSpec


class A2cAlgorithm(on_policy.ActorCriticAlgorithm):
    """The numbers of the paper, with the returns of short rollouts."""

    gae_lambda = new_default(1.0, "GAE's lambda: 1 are n-step returns to the end of the rollout, as in the paper.")
    value_weight = new_default(1.0, "Weight of the critic's squared error, halved.")
    ratio_cap: float = Field(default=1.0, gt=0)
    """Cap of the importance weight of steps from an older policy; for `max_staleness`."""
    max_staleness: int = Field(default=0, ge=0, le=16)
    """Largest age of the collected steps, in iterations of the policy that learns from them; above 0 a thread
    collects while the policy learns (asynchronous actors)."""
    normalise: NormaliseConfig = NormaliseConfig(rewards=True)
    """Running normalisation of observations and rewards. Values of tens and hundreds saturate a tanh critic: it then
    gives all states one value, and at a time limit nothing but noise moves the policy."""


class A2cConfig(on_policy.OnPolicyRunConfig):
    """A policy and a critic on Gymnasium environments."""

    rollout_steps = new_default(5)
    learner = new_default(
        LearnerConfig(lr=1e-3, lr_decay="linear", max_grad_norm=0.5), "The optimizer; one step per iteration."
    )
    algorithm: A2cAlgorithm = A2cAlgorithm()
    """Credit and loss."""

    def method(self) -> on_policy.OnPolicyMethod:
        """Credit and loss of the recipe, as the on-policy family takes them."""
        algorithm = self.algorithm
        return on_policy.OnPolicyMethod(
            credit=partial(gae, discount=algorithm.discount, gae_lambda=algorithm.gae_lambda),
            objective=partial(_objective, algorithm=algorithm),
            normalise=algorithm.normalise,
            max_staleness=algorithm.max_staleness,
            discount=algorithm.discount,
        )


def _objective(policy: ActorCritic, rows: StepRows, *, algorithm: A2cAlgorithm) -> LossTerms:
    """-A log p (weighted by the cut ratio where steps are older than the policy) + value error - entropy."""
    now = policy.evaluate_rows(rows)
    if algorithm.max_staleness:
        actor = cispo(now.logp, rows.logp, rows.advantage, ratio_cap=algorithm.ratio_cap)
    else:
        actor = reinforce_loss(now.logp, rows.advantage)
    return on_policy.actor_critic_loss(actor, now, rows.target, algorithm.value_weight, algorithm.entropy_weight)


ENTRY = RecipeSpec(
    summary="on-policy control: one policy-gradient step on a few steps of many environments, with a critic",
    paper="Mnih et al., Asynchronous Methods for Deep Reinforcement Learning, 2016",
    config=A2cConfig,
    parts=RecipeParts(
        source="Live(Gymnasium)", credit=(gae,), loss=(reinforce_loss, squared_error), weights=(token_mean,)
    ),
    limitation="each step is used once, so it needs many; nothing bounds the change of the policy.",
)
