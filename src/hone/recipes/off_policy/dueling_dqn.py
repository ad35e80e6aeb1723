"""Dueling DQN: state values and action advantages are learned separately (Wang et al., 2016).

Q(s, a) = V(s) + A(s, a) - mean over a of A(s, .), two streams of one last layer over shared hidden layers; the paper
gives each stream a hidden layer of its own. The target is that of double DQN, as in the paper.
"""

from hone.control.networks.q_networks import QArchitecture
from hone.control.off_policy import off_policy_parts
from hone.control.value_based import ValueMethod
from hone.objectives.td import dueling
from hone.recipes.off_policy.double_dqn import DoubleDqnConfig, objective
from hone.run.job import RecipeSpec


class DuelingDqnConfig(DoubleDqnConfig):
    """Double DQN with two streams."""

    def value_method(self) -> ValueMethod:
        """Objective, replay and network options of the recipe, as the value-based family takes them."""
        return ValueMethod(algorithm=self.algorithm, objective=objective, network_shape=QArchitecture(dueling=True))


ENTRY = RecipeSpec(
    summary="double DQN with separate streams for the state value and the advantages",
    paper="Wang et al., Dueling Network Architectures for Deep Reinforcement Learning, 2016",
    config=DuelingDqnConfig,
    limitation="helps where many actions are much alike; with two actions there is little to gain.",
    parts=off_policy_parts(DuelingDqnConfig.value_method, dueling),
)
