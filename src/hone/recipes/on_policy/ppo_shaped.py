"""PPO with potential-based reward shaping (Ng, Harada & Russell, 1999).

The potential says which states are promising; it changes how fast a policy is found, and not which policy is optimal.
`hints.naive = true` rewards the potential itself instead, as a warning: circling can become the optimal policy.
"""

from dataclasses import replace
from functools import partial

from hone.control.on_policy import OnPolicyMethod, OnPolicyRunConfig
from hone.core.config import Config
from hone.credit.potential import (
    PotentialConfig,
    build_potential,
    potential_shaped,
    state_bonus_shaped,
    with_shaped_rewards,
)
from hone.credit.returns import gae, standardised
from hone.objectives.policy import clipped_surrogate
from hone.objectives.value import squared_error
from hone.objectives.weights import token_mean
from hone.recipes.on_policy.ppo import PpoAlgorithm, ppo_method
from hone.run.job import RecipeParts, RecipeSpec


class HintsConfig(Config):
    """Potential-based shaping of the rewards."""

    potential: PotentialConfig
    """A potential for every state."""
    naive: bool = False
    """Add the potential of the next state instead of the difference of potentials; this can change the optimal
    policy."""


class PpoShapedConfig(OnPolicyRunConfig):
    """PPO, with hints; evaluations are by the environment's own reward."""

    algorithm: PpoAlgorithm = PpoAlgorithm(discount=0.99, gae_lambda=0.95, entropy_weight=0.01)
    """Credit and loss; its discount is the potential's."""
    hints: HintsConfig
    """Potential function of the state."""

    def method(self) -> OnPolicyMethod:
        """PPO's credit and loss, on shaped rewards."""
        plain, potential = ppo_method(self, self.algorithm), build_potential(self.hints.potential)
        if self.hints.naive:
            shaping = partial(state_bonus_shaped, potential=potential)
        else:
            shaping = partial(potential_shaped, potential=potential, discount=self.algorithm.discount)
        return replace(plain, credit=partial(with_shaped_rewards, credit=plain.credit, shaping=shaping))


ENTRY = RecipeSpec(
    summary="on-policy control with potential-based reward shaping",
    paper="Ng, Harada and Russell, Policy Invariance under Reward Transformations, 1999",
    config=PpoShapedConfig,
    parts=RecipeParts(
        source="Live(Gymnasium)",
        credit=(with_shaped_rewards, potential_shaped, standardised, gae),
        loss=(clipped_surrogate, squared_error),
        weights=(token_mean,),
    ),
    limitation="needs a user-defined potential; a wrong one slows learning, the optimal policy is unchanged.",
)
