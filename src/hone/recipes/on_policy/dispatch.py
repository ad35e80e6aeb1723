"""A dispatcher of robots: PPO over options, where an option is a pair of a free robot and a task (Sutton et al., 1999).

One network scores every pair, and a softmax over the scores chooses. `algorithm.credit` says what a decision is praised
for: `difference` is the difference reward of the assignment against the nearest pair (Wolpert & Tumer, 2002), which the
floor simulates, and needs no critic; `team` is the team's deliveries, with one critic for all robots. Evaluations count
deliveries in either case.
"""

from dataclasses import replace
from typing import Literal

from pydantic import Field

from hone.control.environments.make import GymConfig
from hone.control.networks.actor_critic import ChoiceScorer
from hone.control.networks.mlp import PolicyNetworkConfig
from hone.control.on_policy import OnPolicyMethod
from hone.core.config import new_default
from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.credit.returns import reward_as_advantage, standardised
from hone.learner.config import LearnerConfig
from hone.objectives.policy import clipped_surrogate
from hone.objectives.value import squared_error
from hone.objectives.weights import token_mean
from hone.recipes.on_policy.ppo import PpoAlgorithm, PpoConfig, ppo_method
from hone.run.job import RecipeParts, RecipeSpec


class DispatchAlgorithm(PpoAlgorithm):
    """PPO's numbers, and the credit of a decision."""

    discount = new_default(0.99)
    gae_lambda = new_default(0.95)
    entropy_weight = new_default(0.003)
    credit: Literal["difference", "team"] = "difference"
    """`difference`: deliveries above those of the nearest pair, simulated. `team`: all deliveries, with a critic."""
    horizon: int = Field(default=40, ge=1)
    """Steps of the floor over which a difference is simulated."""


class DispatchConfig(PpoConfig):
    """A policy over pairs of a robot and a task."""

    env: GymConfig = GymConfig(id="hone/Warehouse-v0", num_envs=16)
    """The floors; `kwargs` are the options of a floor."""
    network: PolicyNetworkConfig = PolicyNetworkConfig(hidden=[32], activation="tanh")
    """The network that scores a pair."""
    learner = new_default(LearnerConfig(lr=3e-3, lr_decay="linear", epochs=4, minibatches=4, max_grad_norm=0.5))
    algorithm: DispatchAlgorithm = DispatchAlgorithm()  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    """Credit and loss."""

    @property
    def training_env(self) -> GymConfig:
        """The floors to learn on, whose rewards are what decisions are praised for."""
        steps = self.algorithm.horizon if self.algorithm.credit == "difference" else 0
        return self.env.model_copy(update={"kwargs": {**self.env.kwargs, "difference": steps}})

    def method(self) -> OnPolicyMethod:
        """Credit and loss of the recipe, as the on-policy family takes them."""
        method = replace(ppo_method(self, self.algorithm), make_policy=ChoiceScorer)
        if self.algorithm.credit == "team":
            return method

        def credit(episodes: Episodes, values: Values) -> Credits:
            """Each decision's own difference reward, over the batch's spread."""
            return standardised(reward_as_advantage(episodes, values))

        return replace(method, credit=credit, use_critic=False)


ENTRY = RecipeSpec(
    summary="on-policy control: a dispatcher that assigns tasks to robots, with difference rewards or a shared critic",
    paper="Wolpert & Tumer, Optimal Payoff Functions for Members of Collectives, 2002",
    config=DispatchConfig,
    parts=RecipeParts(
        source="Live(Gymnasium)",
        credit=(standardised, reward_as_advantage),
        loss=(clipped_surrogate, squared_error),
        weights=(token_mean,),
    ),
    limitation="needs an environment whose observation is a row of numbers for each choice, and for difference rewards "
    "one that simulates them.",
)
