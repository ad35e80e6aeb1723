"""TRPO: the longest natural-gradient step within a bound on the KL (Schulman et al., 2015).

Advantages by GAE, standardised over the batch; loss = -r A. The step solves F x = -g by conjugate gradients, F v from
differences of the gradient of the KL estimated on the batch, and a line search shortens it until the loss improves and
the KL stays within the bound; where no length does, the weights are restored bit for bit (`natural/accepted` is 0). The
critic is then updated by Adam.
"""

from functools import partial

from pydantic import Field
from torch import Tensor

from hone.control import on_policy
from hone.control.acting import predict_values
from hone.control.environments.world import GymWorld
from hone.control.networks.actor_critic import ActorCritic
from hone.control.phases import optimizer_phase
from hone.control.rows import StepRows, step_rows
from hone.control.spaces import gaussian_spaces, world_spaces
from hone.core.config import Config, new_default
from hone.learner.config import LearnerConfig
from hone.learner.flat_parameters import FlatParameters
from hone.learner.natural_gradient import TrustRegionConfig, TrustRegionLearner, k3_distance
from hone.objectives.natural import trust_region_step
from hone.objectives.policy import importance_weighted
from hone.objectives.terms import LossTerms
from hone.objectives.value import squared_error
from hone.run.job import OpenedRun, RecipeSpec, TrainingJob


class TrpoAlgorithm(Config):
    """The numbers of the paper, and of generalised advantages."""

    discount: float = Field(default=0.99, ge=0, le=1)
    """Discount factor (gamma)."""
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    """GAE's lambda: 0 trusts the critic, 1 the returns."""
    region: TrustRegionConfig = TrustRegionConfig()
    """Trust region: its radius and the line search."""


class TrpoConfig(on_policy.OnPolicyRunConfig):
    """A policy and a critic on Gymnasium environments."""

    has_encoders = False

    rollout_steps = new_default(128)
    learner = new_default(
        LearnerConfig(lr=1e-3, epochs=10, minibatches=8), "The critic's optimizer; the policy has no learning rate."
    )
    algorithm: TrpoAlgorithm = TrpoAlgorithm()
    """Credit and trust region."""

    def open(self) -> OpenedRun:
        return self.open_envs(_build, on_policy.require_clipped_actions)

    def derive(self) -> dict[str, str]:
        """Figures that follow from the config, shown by `hone plan`."""
        region = self.algorithm.region
        return {
            **super().derive(),
            "gradients per step": f"1 + 2 x {region.iterations}, and up to {region.backtracks} looks at the loss",
        }


def surrogate(policy: ActorCritic, rows: StepRows) -> tuple[LossTerms, Tensor]:
    """-r A, and the distance from the policy that acted."""
    now = policy.evaluate_actions(rows.seen, rows.chosen, rows.mask).logp
    return importance_weighted(now, rows.logp, rows.advantage), k3_distance(now, rows.logp)


def _critic_loss(policy: ActorCritic, rows: StepRows) -> LossTerms:
    """Squared error of the critic's values against the returns."""
    return squared_error(policy.value(rows.seen), rows.target)


def _make_learner(config: TrpoConfig, policy: ActorCritic) -> TrustRegionLearner[ActorCritic, StepRows]:
    """Learner that takes one trust-region step of the policy, then steps the critic by Adam."""
    assert policy.critic is not None
    own = {id(parameter) for parameter in policy.critic.parameters()}
    critic = optimizer_phase("critic", _critic_loss, policy.critic.parameters(), config.learner)
    return TrustRegionLearner(
        policy=policy,
        layout=partial(step_rows, device=config.run.device),
        surrogate=surrogate,
        parameters=FlatParameters(parameter for parameter in policy.parameters() if id(parameter) not in own),
        region=config.algorithm.region.region(),
        critic=on_policy.rollout_learner(config, config.learner, policy, [critic]),
        predict_values=predict_values,
    )


def _build(config: TrpoConfig, world: GymWorld) -> TrainingJob[ActorCritic]:
    """Training job that acts in `world`."""
    policy = ActorCritic(gaussian_spaces(world_spaces(world), config.network), config.network, seed=config.seed).to(
        config.run.device
    )
    credit = partial(
        on_policy.standardised_gae, discount=config.algorithm.discount, gae_lambda=config.algorithm.gae_lambda
    )
    return on_policy.rollout_job(config, world, credit, _make_learner(config, policy))


ENTRY = RecipeSpec(
    summary="on-policy control: the longest natural-gradient step within a bound on the KL",
    paper="Schulman et al., Trust Region Policy Optimization, 2015",
    config=TrpoConfig,
    parts=on_policy.control_parts(_build, trust_region_step),
    limitation="one step per batch, with some twenty gradients; the KL is estimated on the batch, not integrated.",
)
