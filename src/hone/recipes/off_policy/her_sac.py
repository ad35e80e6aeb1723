"""Hindsight experience replay with soft actor-critic (Andrychowicz et al., 2017; Haarnoja et al., 2018).

Off-policy control of environments with goals and a box of actions. The networks and losses are those of `sac`; the
replay buffer differs: it relabels transitions with goals that the episode reached. The defaults are those that solve
`hone/Reach-v0`, where the same learner without hindsight (`hindsight.share = 0`) stays near 0.
"""

import math

import torch
from pydantic import Field

from hone.control.hindsight import GOAL_SOURCE, HindsightRunConfig
from hone.control.networks.actor_critic import SoftActorCritic
from hone.control.networks.mlp import MlpConfig, PolicySpaces
from hone.control.off_policy import OffPolicyMethod, off_policy_parts
from hone.control.replay.hindsight import HindsightBuffer
from hone.core.config import new_default
from hone.recipes.off_policy.sac import SacAlgorithm, soft_actor_critic
from hone.run.job import RecipeSpec


class HerSacAlgorithm(SacAlgorithm):
    """The numbers of both papers, for a reward that is paid once."""

    discount = new_default(0.95)
    tau = new_default(0.02)
    first_temperature: float = Field(default=0.01, gt=0)
    """Initial temperature (reward per nat of entropy). Reaching a goal that pays 1 also ends the entropy bonus: at a
    temperature of 1 the policy would avoid the goal."""


class HerSacConfig(HindsightRunConfig):
    """A squashed Gaussian policy on Gymnasium environments with goals and a box of actions."""

    network: MlpConfig = MlpConfig(hidden=[128, 128], activation="relu")
    """Network of the policy, and of each critic."""
    algorithm: HerSacAlgorithm = HerSacAlgorithm()
    """Targets and temperature."""

    def method(self, spaces: PolicySpaces) -> OffPolicyMethod[SoftActorCritic]:
        """SAC's method with a lower first temperature, on a replay buffer that relabels goals."""
        policy = SoftActorCritic(spaces, self.network, seed=self.seed).to(self.run.device)
        with torch.no_grad():
            policy.log_temperature.fill_(math.log(self.algorithm.first_temperature))
        return soft_actor_critic(self, policy, self.algorithm)


ENTRY = RecipeSpec(
    summary="off-policy control with goals, continuous actions: hindsight experience replay",
    paper="Andrychowicz et al., Hindsight Experience Replay, 2017",
    config=HerSacConfig,
    limitation="needs goals that are functions of the observation, and a reward that can be computed for any goal.",
    parts=off_policy_parts(HerSacConfig.method, HindsightBuffer, source=GOAL_SOURCE),
)
