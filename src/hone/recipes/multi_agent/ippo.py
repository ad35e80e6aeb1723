"""PPO for every seat of a game: independent learning with shared or separate networks, and self-play.

Each seat of a match is an episode of its own, and PPO learns from all of them as it is (de Witt et al., 2020).
`env.sharing` says which seats share a network; `opponents` has matches against earlier policies, or against players
that do not learn.
"""

from hone.control.seats.training import SeatsRunConfig, evaluate_seats
from hone.core.config import new_default
from hone.decide.estimators.sequential import mixture_paths
from hone.learner.config import LearnerConfig
from hone.recipes.on_policy.ppo import PpoConfig
from hone.run.job import RecipeSpec


class IppoConfig(SeatsRunConfig, PpoConfig):  # pyright: ignore[reportIncompatibleVariableOverride] - the seats' env
    """PPO over the seats of a game."""

    rollout_steps = new_default(64, "Decisions of the learner per match and iteration.")
    learner = new_default(LearnerConfig(lr=1e-3, lr_decay="linear", epochs=4, minibatches=4, max_grad_norm=0.5))

    e_values = staticmethod(mixture_paths)


ENTRY = RecipeSpec(
    summary="PPO over the seats of a game: parameter sharing, independent learners, self-play",
    paper="de Witt et al., Is Independent Learning All You Need in the StarCraft Multi-Agent Challenge?, 2020",
    config=IppoConfig,
    evaluate=evaluate_seats,
    limitation="each seat takes the others for part of the environment; last iterates of self-play may cycle.",
)
