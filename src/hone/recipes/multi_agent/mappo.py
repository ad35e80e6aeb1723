"""MAPPO: PPO for every seat of a game, with a critic that sees the whole match (Yu et al., 2022).

The critic reads the state that the game tells, or the observations of all seats joined, and the seat; the actor reads
its own observation alone, in training and afterwards.
"""

from hone.control.seats.training import SeatsRunConfig, evaluate_seats
from hone.core.config import new_default
from hone.decide.estimators.sequential import mixture_paths
from hone.learner.config import LearnerConfig
from hone.recipes.on_policy.ppo import PpoConfig
from hone.run.job import RecipeSpec


class MappoConfig(SeatsRunConfig, PpoConfig):  # pyright: ignore[reportIncompatibleVariableOverride] - the seats' env
    """PPO over the seats of a game, with a central critic."""

    rollout_steps = new_default(64, "Decisions of the learner per match and iteration.")
    learner = new_default(LearnerConfig(lr=1e-3, lr_decay="linear", epochs=4, minibatches=4, max_grad_norm=0.5))

    central_critic = True
    e_values = staticmethod(mixture_paths)


ENTRY = RecipeSpec(
    summary="PPO over the seats of a game, with a critic that sees the whole match",
    paper="Yu et al., The Surprising Effectiveness of PPO in Cooperative Multi-Agent Games, 2022",
    config=MappoConfig,
    evaluate=evaluate_seats,
    limitation="the critic's input grows with the number of seats, unless the game tells a state of its own.",
)
