"""Twin delayed deterministic policy gradient (Fujimoto et al., 2018): DDPG with three fixes for overestimation bias.

The target takes the lesser of two critics; noise smooths the target policy's action; policy and target networks are
updated on every second update of the critics only. The defaults are those that solve Pendulum-v1 within 20,000 steps.
"""

from functools import partial

from pydantic import Field
from torch import Tensor

from hone.control.critic_backward import twin_critics_with_backward
from hone.control.deterministic import DeterministicRunConfig, chosen_action_values, deterministic_method
from hone.control.networks.actor_critic import DeterministicActorCritic
from hone.control.networks.mlp import PolicySpaces
from hone.control.off_policy import OffPolicyMethod
from hone.control.phases import TdAlgorithm
from hone.control.rows import TransitionRows
from hone.core.config import new_default
from hone.objectives.td import smoothed_action, twin_critic_loss, twin_target
from hone.objectives.terms import LossTerms
from hone.run.job import RecipeSpec


class Td3Algorithm(TdAlgorithm):
    """The numbers of the paper, with the discount that suits short tasks."""

    discount = new_default(0.98)
    policy_every: int = Field(default=2, ge=1)
    """Updates of the critics per update of the policy and of the target networks."""
    smoothing: float = Field(default=0.2, ge=0)
    """Standard deviation of the noise on a target's action, for actions scaled to [-1, 1]."""
    smoothing_limit: float = Field(default=0.5, ge=0)
    """Bound at which that noise is clipped."""


class Td3Config(DeterministicRunConfig):
    """A deterministic policy with two critics on Gymnasium environments with a box of actions."""

    algorithm: Td3Algorithm = Td3Algorithm()
    """Targets and delay."""

    def method(self, spaces: PolicySpaces) -> OffPolicyMethod[DeterministicActorCritic]:
        """Two critics, and a policy that is updated less often."""
        algorithm = self.algorithm
        critic = partial(critic_objective, algorithm=algorithm)
        written = partial(twin_critics_with_backward, value_target=partial(_value_target, algorithm=algorithm))
        return deterministic_method(
            self,
            spaces,
            algorithm,
            critics=2,
            critic_objective=critic,
            critic_with_backward=written,
            policy_every=algorithm.policy_every,
        )


def _value_target(policy: DeterministicActorCritic, rows: TransitionRows, *, algorithm: Td3Algorithm) -> Tensor:
    """`[n]` by the lesser slow value of a smoothed action."""
    scale, limit = algorithm.smoothing, algorithm.smoothing_limit
    action = smoothed_action(policy.target_actions(rows.next_seen), rows.noise, scale=scale, limit=limit)
    low, other = policy.target_q_values(rows.next_seen, action)
    return twin_target(rows.reward, rows.discount, low, other)


def critic_objective(policy: DeterministicActorCritic, rows: TransitionRows, *, algorithm: Td3Algorithm) -> LossTerms:
    """Squared error of both critics against that target."""
    first, second = chosen_action_values(policy, rows)
    return twin_critic_loss(first, second, _value_target(policy, rows, algorithm=algorithm))


ENTRY = RecipeSpec(
    summary="off-policy control of continuous actions: deterministic policy, twin critics, delayed and smoothed",
    paper="Fujimoto et al., Addressing Function Approximation Error in Actor-Critic Methods, 2018",
    config=Td3Config,
    limitation="boxes of actions only; it explores no further than the noise that is added to its actions.",
)
