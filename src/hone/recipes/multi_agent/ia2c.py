"""A2C for every seat of a game: independent learning with shared or separate networks, and self-play.

As `ippo`, with one gradient step on the latest decisions in place of PPO's clipped epochs.
"""

from hone.control.seats.training import SeatsRunConfig, evaluate_seats
from hone.core.config import new_default
from hone.decide.estimators.sequential import mixture_paths
from hone.recipes.on_policy.a2c import A2cConfig
from hone.run.job import RecipeSpec


class Ia2cConfig(SeatsRunConfig, A2cConfig):  # pyright: ignore[reportIncompatibleVariableOverride] - the seats' env
    """Advantage actor-critic over the seats of a game."""

    rollout_steps = new_default(16, "Decisions of the learner per match and iteration.")

    e_values = staticmethod(mixture_paths)


ENTRY = RecipeSpec(
    summary="A2C over the seats of a game: parameter sharing, independent learners, self-play",
    paper="Papoudakis et al., Benchmarking Multi-Agent Deep RL Algorithms in Cooperative Tasks, 2021",
    config=Ia2cConfig,
    evaluate=evaluate_seats,
    limitation="each decision is used once; ippo usually needs fewer of them.",
)
