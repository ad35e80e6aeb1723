"""The environments that come with hone, under Gymnasium's kind of name: `hone/BitFlip-v0`.

Belongs here: their registration, by the names of their classes, so that nothing is imported before it is asked for.
Whoever imports this module can also `gymnasium.make` them.
"""

from dataclasses import dataclass

import gymnasium

WRAPS_ANOTHER = "hone/Remembering-v0"
"""Runs an environment that it is given, and is to be trusted no more than that one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """One of ours."""

    made: str
    """`module:Class`."""
    max_episode_steps: int | None = None
    """Where episodes are truncated; None: the environment does so itself."""
    many: str | None = None
    """`module:Class` of its own vector form, which truncates by itself."""


OWN = {
    "hone/BitFlip-v0": Own(made="hone.envs.suite.goal_tasks:BitFlip"),
    "hone/Reach-v0": Own(made="hone.envs.suite.goal_tasks:Reach"),
    "hone/Maze-v0": Own(made="hone.envs.suite.grid_worlds:Maze", max_episode_steps=200),
    "hone/Stitching-v0": Own(made="hone.envs.finite.stitching:Stitching", max_episode_steps=100),
    "hone/FourRooms-v0": Own(made="hone.envs.suite.grid_worlds:FourRooms", max_episode_steps=300),
    "hone/CartPoleSwingUp-v0": Own(
        made="hone.envs.suite.cartpole_swing_up:CartPoleSwingUp",
        max_episode_steps=200,
        many="hone.envs.suite.cartpole_swing_up:CartPoleSwingUpVector",
    ),
    "hone/BanditTrials-v0": Own(
        made="hone.envs.suite.meta_tasks:bandit", many="hone.envs.suite.meta_tasks:BanditTrials"
    ),
    "hone/ChainTrials-v0": Own(made="hone.envs.suite.meta_tasks:chain", many="hone.envs.suite.meta_tasks:ChainTrials"),
    "hone/SineTrials-v0": Own(made="hone.envs.suite.meta_tasks:sine", many="hone.envs.suite.meta_tasks:SineTrials"),
    WRAPS_ANOTHER: Own(made="hone.envs.gym.option_wrapper:remembering"),
}


def register_own() -> None:
    """Make them known to Gymnasium, once."""
    for name, own in OWN.items():
        if name not in gymnasium.registry:
            gymnasium.register(
                name,
                entry_point=own.made,
                vector_entry_point=own.many,
                max_episode_steps=own.max_episode_steps,
            )


register_own()
