"""PPO with an adaptive KL penalty (Schulman et al., 2017, section 4) in place of the clip.

loss = -r A + coefficient * KL(before || now) + value error. After each iteration the coefficient is doubled where the
KL exceeded 1.5 times the target, and halved where it was below the target / 1.5. The coefficient is saved with the
learner, so a resumed run continues with it.
"""

from dataclasses import dataclass
from functools import partial

import torch
from pydantic import Field

from hone.core.config import Config
from hone.core.credit import Credits, Metrics, Values
from hone.core.episodes import Episodes
from hone.core.state import State, number
from hone.credit.returns import gae, standardised
from hone.models.control.actor_critic import ActorCritic
from hone.objectives.kl import k3
from hone.objectives.policy import importance_weighted
from hone.objectives.terms import LossTerms
from hone.objectives.value import squared_error
from hone.objectives.weights import token_mean
from hone.train.control.on_policy import (
    OnPolicyMethod,
    OnPolicyRunConfig,
    check_on_policy,
    derive_on_policy,
    merged_metrics,
    on_policy_job,
)
from hone.train.control.rows import StepRows
from hone.train.job import RecipeParts, RecipeSpec, TrainingJob, checked_run
from hone.train.learner.config import LearnerConfig
from hone.train.sources.normalise import NormaliseConfig

TOLERANCE, FACTOR = 1.5, 2.0
"""The paper's: within this ratio of the target the coefficient stays; outside it changes by this factor."""


class PpoKlAlgorithm(Config):
    """The numbers of the paper."""

    discount: float = Field(default=0.98, ge=0, le=1)
    """Discount factor (gamma)."""
    gae_lambda: float = Field(default=0.8, ge=0, le=1)
    """GAE's lambda: 0 trusts the critic, 1 the returns."""
    target_nats: float = Field(default=0.01, gt=0)
    """Target of the KL penalty: mean KL(before || after) per action and iteration, in nats."""
    coefficient: float = Field(default=1.0, gt=0)
    """Initial coefficient of the KL penalty."""
    value_weight: float = Field(default=0.5, ge=0)
    """Weight of the critic's squared error."""
    entropy_weight: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus."""
    normalise: NormaliseConfig = NormaliseConfig()
    """Running normalisation of observations and rewards."""


class PpoKlConfig(OnPolicyRunConfig):
    """A policy and a critic on Gymnasium environments."""

    learner: LearnerConfig = LearnerConfig(lr=1e-3, lr_decay="linear", epochs=20, max_grad_norm=0.5)
    """The optimizer; `minibatches` per epoch."""
    algorithm: PpoKlAlgorithm = PpoKlAlgorithm()
    """Credit and loss."""


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


def objective(
    policy: ActorCritic, rows: StepRows, *, algorithm: PpoKlAlgorithm, kl_coef: KlCoefController
) -> LossTerms:
    """-r A + coefficient * KL(before || now) + value_weight * value error - entropy_weight * entropy.

    The KL is estimated on the actions of the behaviour policy, with the gradient of KL(before || now).
    """
    now = policy.evaluate_actions(rows.seen, rows.chosen)
    assert now.value is not None
    actor, critic = importance_weighted(now.logp, rows.logp, rows.advantage), squared_error(now.value, rows.target)
    loss = torch.add(actor.loss, k3(rows.logp, now.logp), alpha=kl_coef.value)
    loss = torch.add(loss, critic.loss, alpha=algorithm.value_weight)
    if algorithm.entropy_weight:
        loss = torch.sub(loss, now.entropy(), alpha=algorithm.entropy_weight)
    return LossTerms(loss=loss, compute_metrics=lambda: merged_metrics(now.entropy(), actor, critic))


def build(config: PpoKlConfig) -> TrainingJob[ActorCritic]:
    """Build the training job. Raises ConfigError and UserCodeError for an invalid environment."""
    algorithm = config.algorithm
    price = KlCoefController(algorithm.coefficient, algorithm.target_nats)

    def credit(episodes: Episodes, values: Values) -> Credits:
        return standardised(gae(episodes, values, discount=algorithm.discount, gae_lambda=algorithm.gae_lambda))

    method = OnPolicyMethod(
        credit=credit,
        objective=partial(objective, algorithm=algorithm, kl_coef=price),
        normalise=algorithm.normalise,
        discount=algorithm.discount,
        on_metrics=price.adapt,
        extra_state={"kl_coefficient": price},
    )
    return on_policy_job(config, method)


def check(config: PpoKlConfig) -> list[str]:
    """Warnings about the config; raises ConfigError for a run that cannot work."""
    return check_on_policy(config, config.algorithm.normalise)


ENTRY = RecipeSpec(
    summary="on-policy control: policy gradient with an adaptive KL penalty",
    paper="Schulman et al., Proximal Policy Optimization Algorithms, 2017, section 4",
    config=PpoKlConfig,
    open=checked_run(check, build),
    derive=derive_on_policy,
    parts=RecipeParts(
        source="Live(Gymnasium)",
        credit=(standardised, gae),
        loss=(importance_weighted, k3, squared_error),
        weights=(token_mean,),
    ),
    limitation="the coefficient reacts one iteration late; the clip usually does better (the paper's own comparison).",
)
