"""Noisy DQN: learned noise in the weights explores (Fortunato et al., 2018).

Every weight is mean + sigma * noise, factorised by layer. All actions of an iteration share one draw of the noise, and
so does each update; the target network has one draw per iteration. The policy's mode acts by the means. Only the
warm-up takes random actions.
"""

from pydantic import Field

from hone.control.networks.q_networks import QArchitecture
from hone.control.off_policy import IterationReplayConfig
from hone.control.value_based import ValueAlgorithm, ValueMethod, ValueRunConfig
from hone.core.config import new_default
from hone.learner.config import ReplayLearnerConfig
from hone.recipes.off_policy.dqn import objective
from hone.run.job import RecipeSpec, RunSettings


class NoisyAlgorithm(ValueAlgorithm):
    """DQN's numbers and the noise."""

    sigma: float = Field(default=0.5, gt=0)
    """Initial scale of the noise, over the square root of a layer's inputs."""


class NoisyDqnConfig(ValueRunConfig):
    """Deep Q-learning that explores by its weights."""

    run = new_default(RunSettings(threads=1, log_every=25, checkpoint_every=250))
    learner = new_default(ReplayLearnerConfig(lr=3e-4, max_grad_norm=10.0, updates_per_iteration=32))
    replay = new_default(
        IterationReplayConfig(collect=64),
        "The replay buffer. An iteration acts by one draw of the weights, so a short one explores little.",
    )
    algorithm: NoisyAlgorithm = NoisyAlgorithm()
    """Discount, target network and noise."""

    def value_method(self) -> ValueMethod:
        """Objective, replay and network options of the recipe, as the value-based family takes them."""
        return ValueMethod(
            algorithm=self.algorithm, objective=objective, network_shape=QArchitecture(sigma=self.algorithm.sigma)
        )


ENTRY = RecipeSpec(
    summary="deep Q-learning that explores by learned noise in its weights",
    paper="Fortunato et al., Noisy Networks for Exploration, 2018",
    config=NoisyDqnConfig,
    limitation="an update costs more than twice; its logs have no propensities, so they cannot be reweighed.",
)
