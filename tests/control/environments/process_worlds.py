"""Worlds whose environments are in processes, for the tests beside this file; `end_worlds` ends what they opened."""

from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
from gymnasium import spaces

from hone.control.environments.make import env_seeds
from hone.control.environments.subprocess_env import ProcessVectorEnv
from hone.control.environments.world import GymConfig, GymWorld, open_world
from hone.core.episodes import Episodes
from hone.core.random import key

HOSTILE = Path(__file__).with_name("hostile_envs.py")
WALK = f"{HOSTILE}:Walk"
SEED = 3
worlds: list[GymWorld] = []


class Chance:
    """Any action of a space, drawn from the given noise."""

    version = 0

    def __init__(self, space: spaces.Space) -> None:
        self.space = space

    def noise(self, draws, shape):
        size = self.space.shape if isinstance(self.space, spaces.Box) else ()
        return draws.random((*shape, *size), dtype=np.float32)

    def decide(self, seen, noise):
        logp = np.zeros(len(seen), np.float32)
        if isinstance(self.space, spaces.Discrete):
            return (noise * self.space.n).astype(np.int64), logp
        return self.space.low + noise * (self.space.high - self.space.low), logp


def opened(name: str = WALK, *, steps: int = 25, **settings: object) -> GymWorld:
    given = {"id": name, "num_envs": 5, "workers": 2, "check": False, "isolation": "process", "step_timeout_s": 0.5}
    world = open_world(GymConfig.model_validate({**given, **settings}), steps=steps, seed=SEED)
    worlds.append(world)
    return world


def lived(world: GymWorld, rollouts: int) -> list[Episodes]:
    actor = Chance(world.envs.single_action_space)
    return [world.rollout(actor) for _ in range(rollouts)]


def same(one: Episodes, other: Episodes) -> bool:
    """Bit for bit, column by column."""
    columns = [(asdict(one)[field.name], asdict(other)[field.name]) for field in fields(one)]
    return all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        for a, b in columns
        if a is not None or b is not None
    )


def seed_of(env: int, count: int = 5) -> int:
    """What the world of the run's seed resets this environment with."""
    return env_seeds(key(SEED, "world") & 0xFFFFFFFF, count)[env]


def processes(token: str = "hone.control.environments.worker") -> list[int]:
    """Living processes that were started from here and say `token` in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if entry.name.isdigit() and token in words:
            found.append(int(entry.name))
    return found


def pids_of(world: GymWorld) -> list[int]:
    assert isinstance(world.envs, ProcessVectorEnv)
    return [block.process.pid for block in world.envs._blocks]


def end_worlds() -> None:
    while worlds:
        worlds.pop().close()
