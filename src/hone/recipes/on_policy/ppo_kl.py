"""PPO with an adaptive KL penalty (Schulman et al., 2017, section 4) in place of the clip.

loss = -r A + coefficient * KL(before || now) + value error. After each iteration the coefficient is doubled where the
KL exceeded 1.5 times the target, and halved where it was below the target / 1.5. The coefficient is saved with the
learner, so a resumed run continues with it.
"""

from dataclasses import dataclass
from functools import partial

import torch
from pydantic import Field

from hone.control import on_policy
from hone.control.networks.actor_critic import ActorCritic
from hone.control.normalise import NormaliseConfig
from hone.control.rows import StepRows
from hone.core.config import new_default
from hone.core.credit import Metrics
from hone.core.state import State, number
from hone.learner.config import LearnerConfig
from hone.objectives.kl import k3
from hone.objectives.policy import importance_weighted
from hone.objectives.terms import LossTerms
from hone.run.job import RecipeSpec

TOLERANCE, FACTOR = 1.5, 2.0
"""The paper's: within this ratio of the target the coefficient stays; outside it changes by this factor."""


class PpoKlAlgorithm(on_policy.ActorCriticAlgorithm):
    """The numbers of the paper."""

    discount = new_default(0.98)
    gae_lambda = new_default(0.8)
    target_nats: float = Field(default=0.01, gt=0)
    """Target of the KL penalty: mean KL(before || after) per action and iteration, in nats."""
    coefficient: float = Field(default=1.0, gt=0)
    """Initial coefficient of the KL penalty."""
    normalise: NormaliseConfig = NormaliseConfig()
    """Running normalisation of observations and rewards."""


class PpoKlConfig(on_policy.OnPolicyRunConfig):
    """A policy and a critic on Gymnasium environments."""

    rollout_steps = new_default(32)
    learner = new_default(LearnerConfig(lr=1e-3, lr_decay="linear", epochs=20, max_grad_norm=0.5))
    algorithm: PpoKlAlgorithm = PpoKlAlgorithm()
    """Credit and loss."""

    def method(self) -> on_policy.OnPolicyMethod:
        """Credit and loss of the recipe, as the on-policy family takes them."""
        algorithm = self.algorithm
        kl_coef = KlCoefController(algorithm.coefficient, algorithm.target_nats)
        return on_policy.OnPolicyMethod(
            credit=partial(on_policy.standardised_gae, discount=algorithm.discount, gae_lambda=algorithm.gae_lambda),
            objective=partial(_objective, algorithm=algorithm, kl_coef=kl_coef),
            normalise=algorithm.normalise,
            discount=algorithm.discount,
            on_metrics=kl_coef.adapt,
            extra_state={"kl_coefficient": kl_coef},
        )


@dataclass
class KlCoefController:
    """The price of a nat, which follows how far the policy moved."""

    value: float
    target_nats: float

    def adapt(self, metrics: Metrics) -> None:
        """Looks at `policy/kl_nats`, of the last epoch; tells the price that was paid as `policy/kl_coefficient`."""
        metrics["policy/kl_coefficient"] = self.value
        moved = metrics["policy/kl_nats"]
        if moved > TOLERANCE * self.target_nats:
            self.value *= FACTOR
        elif moved < self.target_nats / TOLERANCE:
            self.value /= FACTOR

    def state(self) -> State:
        return {"value": self.value}

    def restore(self, state: State) -> None:
        self.value = number(state, "value")


def _objective(
    policy: ActorCritic, rows: StepRows, *, algorithm: PpoKlAlgorithm, kl_coef: KlCoefController
) -> LossTerms:
    """-r A + coefficient * KL(before || now) + value_weight * value error - entropy_weight * entropy.

    The KL is estimated on the actions of the behaviour policy, with the gradient of KL(before || now).
    """
    now = policy.evaluate_rows(rows)
    actor = importance_weighted(now.logp, rows.logp, rows.advantage)
    loss = torch.add(actor.loss, k3(rows.logp, now.logp), alpha=kl_coef.value)
    penalised = LossTerms(loss=loss, compute_metrics=lambda: actor.metrics)
    return on_policy.actor_critic_loss(penalised, now, rows.target, algorithm.value_weight, algorithm.entropy_weight)


ENTRY = RecipeSpec(
    summary="on-policy control: policy gradient with an adaptive KL penalty",
    paper="Schulman et al., Proximal Policy Optimization Algorithms, 2017, section 4",
    config=PpoKlConfig,
    limitation="the coefficient reacts one iteration late; the clip usually does better (the paper's own comparison).",
)
