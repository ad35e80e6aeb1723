"""Deep deterministic policy gradient (Lillicrap et al., 2016): a policy that ascends the critic's value of its action.

One critic, replay, and target networks of critic and policy. The policy exploits the critic's errors, so values are
overestimated; TD3 adds the fixes.
"""

from torch import Tensor

from hone.control.deterministic import DeterministicRunConfig, chosen_action_values, deterministic_method
from hone.control.networks.actor_critic import DeterministicActorCritic
from hone.control.networks.mlp import PolicySpaces
from hone.control.off_policy import OffPolicyMethod
from hone.control.phases import TdAlgorithm
from hone.control.rows import TransitionRows
from hone.core.config import new_default
from hone.objectives.td import td_target
from hone.objectives.terms import LossTerms
from hone.objectives.value import squared_error
from hone.run.job import RecipeSpec


class DdpgAlgorithm(TdAlgorithm):
    """The numbers of the paper, with the rates that suit short tasks."""

    discount = new_default(0.98)


class DdpgConfig(DeterministicRunConfig):
    """A deterministic policy with one critic on Gymnasium environments with a box of actions."""

    algorithm: DdpgAlgorithm = DdpgAlgorithm()
    """Targets."""

    def method(self, spaces: PolicySpaces) -> OffPolicyMethod[DeterministicActorCritic]:
        """One critic, and a policy that is updated with it."""
        return deterministic_method(self, spaces, self.algorithm, critics=1, critic_objective=critic_objective)


def _value_target(policy: DeterministicActorCritic, rows: TransitionRows) -> Tensor:
    """`[n]` by the slow critic's value of the slow policy's action."""
    (worth,) = policy.target_q_values(rows.next_seen, policy.target_actions(rows.next_seen))
    return td_target(rows.reward, rows.discount, worth)


def critic_objective(policy: DeterministicActorCritic, rows: TransitionRows) -> LossTerms:
    """Squared error against that target."""
    (value,) = chosen_action_values(policy, rows)
    return squared_error(value, _value_target(policy, rows))


ENTRY = RecipeSpec(
    summary="off-policy control of continuous actions: deterministic policy, one critic, replay",
    paper="Lillicrap et al., Continuous Control with Deep Reinforcement Learning, 2016",
    config=DdpgConfig,
    limitation="boxes of actions only; the policy exploits the critic's overestimation, which TD3 reduces.",
)
