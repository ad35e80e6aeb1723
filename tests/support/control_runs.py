"""Short runs of control recipes: a log of a fresh policy, and a recorder of everything that a step produced."""

from pathlib import Path
from typing import Any

from hone.control.acting import NetworkActor
from hone.control.environments.world import GymConfig, open_world
from hone.control.logs.parquet import BehaviourLog, write_log
from hone.control.networks.mlp import MlpConfig
from hone.core.credit import Credits, Metrics
from hone.core.episodes import Episodes, concatenate
from hone.recipes.off_policy import sac
from hone.recipes.on_policy import ppo

SMALL = MlpConfig(hidden=[16])


def write_short_log(folder: Path, name: str) -> str:
    """A short log of a fresh policy."""
    config = GymConfig(id=name, num_envs=2, clip_actions=False)
    path = folder / f"{name}.parquet"
    if name == "CartPole-v1":
        job = ppo.ENTRY.build(
            ppo.PpoConfig(recipe="ppo", name="x", steps=1, env=config, network=SMALL, rollout_steps=40)
        )
    else:
        job = sac.ENTRY.build(sac.SacConfig(recipe="sac", name="x", steps=1, env=config, network=SMALL))
    world = open_world(config, steps=150, seed=5)
    actor = NetworkActor(job.recipe.learner.policy.numpy_policy())
    episodes = concatenate([world.rollout(actor) for _ in range(2)])
    space = world.envs
    write_log(
        path,
        BehaviourLog(
            episodes=episodes,
            observation_space=space.single_observation_space,
            action_space=space.single_action_space,
        ),
    )
    return str(path)


class StepRecorder:
    """Everything that a step produced."""

    def __init__(self) -> None:
        self.lines: list[tuple[Any, ...]] = []

    def __call__(self, step: int, episodes: Episodes, credits: Credits, metrics: Metrics) -> None:
        columns = (episodes.observations, episodes.chosen, episodes.version, episodes.reward, episodes.score)
        self.lines.append((step, *(column.tobytes() for column in columns), credits.advantage.tobytes(), metrics))
