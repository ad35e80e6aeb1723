"""n-step DQN: the target sums n rewards before it bootstraps (Sutton, 1988; Rainbow, Hessel et al., 2018).

y = r_0 + discount r_1 + ... + discount^n max Q_target(s_n, .), within the episode: fewer steps where the episode ends,
and at the newest step of the buffer. The rewards come from older policies, which is not corrected for, as in Rainbow.
"""

from pydantic import Field

from hone.control.off_policy import off_policy_parts
from hone.control.value_based import ScheduledValueRunConfig, ValueAlgorithm, ValueMethod
from hone.recipes.off_policy.double_dqn import objective
from hone.run.job import RecipeSpec


class NStepAlgorithm(ValueAlgorithm):
    """DQN's numbers and n."""

    length: int = Field(default=3, ge=1)
    """Steps that a target looks ahead."""


class NStepDqnConfig(ScheduledValueRunConfig):
    """Deep Q-learning that looks several steps ahead."""

    algorithm: NStepAlgorithm = NStepAlgorithm()
    """Discount, target network and length."""

    def value_method(self) -> ValueMethod:
        """Objective, replay and network options of the recipe, as the value-based family takes them."""
        return ValueMethod(algorithm=self.algorithm, objective=objective, n_steps=self.algorithm.length)


ENTRY = RecipeSpec(
    summary="double DQN with targets over several steps",
    paper="Sutton, Learning to Predict by the Methods of Temporal Differences, 1988; Hessel et al., 2018",
    config=NStepDqnConfig,
    limitation="the longer the target, the more it is that of the policies that acted, not of the greedy one.",
    parts=off_policy_parts(NStepDqnConfig.value_method, source="Replay(Live(Gymnasium)), n steps"),
)
