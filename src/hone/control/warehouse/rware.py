"""The dispatcher on RWARE's own environments (package `rware`): its state is read, its robots are told their moves.

Belongs here: reading a `Warehouse` of that package into a `Floor` after each step. What the dispatcher decides and how
robots move is the same as on a built-in floor; the rules and the chance are the package's.
"""

from typing import Any

import numpy as np

from hone.control.warehouse.floor import Floor, floor_spec
from hone.core.errors import ConfigError


class RwareFloor:
    """A `Floor` that mirrors an environment of the package."""

    def __init__(self, env: Any, *, sensor: int = 0) -> None:  # noqa: ANN401 - a Warehouse of the package, unwrapped
        self.env = env
        robots, requests = len(env.agents), len(env.request_queue)
        if not robots:
            raise ConfigError("reset the environment of rware first: it has no robots before")
        rows = [["." if way else "X" for way in row] for row in np.asarray(env.highways)]
        for column, row in env.goals:
            rows[row][column] = "G"
        spec = floor_spec(
            ["".join(row) for row in rows], robots=robots, requests=requests, limit=env.max_steps, sensor=sensor
        )
        self.floor = Floor(spec)
        self.collisions = 0
        """Moves that the package cancelled."""

    def begin(self, seed: int) -> None:
        """Begin an episode of the package with its seed."""
        self.env.reset(seed=seed)
        floor, state = self.floor, self.floor.state
        floor.begin(0)
        state["queue"][: floor.spec.requests] = -1
        state["belief"] = 0.0
        self._read()
        self.collisions = 0
        for name in ("deliveries", "collisions", "interventions", "failures", "longest_still", "idle", "time"):
            state[name] = 0
        robots = floor.robots
        robots["skill"], robots["dead"], robots["still"] = 0, 0, 0
        robots["target"], robots["asked"], robots["shelf"] = robots["cell"], -1, -1
        floor.settle()

    def step(self) -> int:
        """One step of the package by the plans; -> deliveries."""
        floor = self.floor
        robots = floor.robots
        poses = (robots["cell"] * 4 + robots["heading"]).astype(np.int16)
        wanted, held = floor.planned_actions()
        rewards = np.asarray(self.env.step(wanted.tolist())[1])
        floor.state["time"] += 1
        delivered = rewards > 0
        floor.state["deliveries"] += int(delivered.sum())
        self._read()
        floor.follow(poses, wanted, held, int((delivered << np.arange(len(delivered))).sum()))
        self.collisions = int(floor.state["collisions"])
        return int(delivered.sum())

    def _read(self) -> None:
        """Places of robots and shelves, and the requests."""
        floor, state, width = self.floor, self.floor.state, self.floor.spec.width
        for number, agent in enumerate(self.env.agents):
            robot = floor.robots[number]
            robot["cell"], robot["heading"] = agent.y * width + agent.x, agent.dir.value
            robot["carrying"] = -1 if agent.carrying_shelf is None else agent.carrying_shelf.id - 1
        for shelf in self.env.shelfs:
            state["shelf_cell"][shelf.id - 1] = shelf.y * width + shelf.x
        free = int(state["shelves"]) - floor.spec.requests + 1
        for place, shelf in enumerate(self.env.request_queue):
            if state["queue"][place] == shelf.id - 1:
                continue
            before = int(state["queue"][place])
            state["queue"][place], state["queued"][place], state["seen"][place] = shelf.id - 1, state["time"], 0
            known = state["belief"][: int(state["shelves"])]
            known += (1.0 - known) / free
            if before >= 0:
                known[before] = 0.0
