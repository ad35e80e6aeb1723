"""Simulated robots in one process: they act in a Gymnasium environment, lose their network, and send some uploads twice
or late.

    python robots.py http://127.0.0.1:8000 SPOOLS --first 0 --count 13 --episodes 20 [--env LunarLander-v3]
    python robots.py --fleet --env LunarLander-v3      prints the environment's table [fleet] for the service's file

Any environment will do whose observation is a box and whose action is a box or a number of choices. Prints one JSON
line: what each robot did, to be compared with what is stored.
"""

import argparse
import contextlib
import json
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from hone.core.robot_steps import RobotSchema
from hone.decide.fleet.device import EpisodePolicy, HttpCall, HttpTransport, Uploader

OFFLINE = 0.3
"""Share of the time without a network."""
DOUBLED, LATE = 0.3, 0.2
"""Shares of uploads that are sent twice, and once more when others have passed them."""
NAMES = {
    "CartPole-v1": ("place", "speed", "angle", "turn"), "InvertedPendulum-v5": ("place", "angle", "speed", "turn"),
    "LunarLander-v3": ("x", "y", "x speed", "y speed", "angle", "turn", "left leg", "right leg"),
}  # fmt: skip
"""Names of the numbers of an observation; those of other environments are numbered."""


def schema_of(name: str, world: gymnasium.Env) -> RobotSchema:
    """What robots of an environment send, read from its spaces. Ends the program for spaces that they cannot send."""
    seen, acted = world.observation_space, world.action_space
    is_number = isinstance(acted, gymnasium.spaces.Discrete)
    if not isinstance(seen, gymnasium.spaces.Box) or not (is_number or isinstance(acted, gymnasium.spaces.Box)):
        raise SystemExit(
            f"{name}: robots send a box of numbers seen, and a box or a number done; it has {seen}, {acted}"
        )
    count, numbers = int(np.prod(seen.shape)), 1 if is_number else int(np.prod(acted.shape))
    return RobotSchema(
        observation=NAMES.get(name, tuple(f"seen{number}" for number in range(count))),
        action=tuple(f"done{number}" for number in range(numbers)) if numbers > 1 else ("push",),
        choices=int(acted.n) if is_number else 0,
    )


def fleet_table(schema: RobotSchema) -> str:
    """The lines of a service's [fleet] for a schema."""
    names = {"observation": list(schema.observation), "action": list(schema.action), "choices": schema.choices}
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in names.items())


ActionSpace = gymnasium.spaces.Box | gymnasium.spaces.Discrete


@dataclass
class BadNetwork:
    """A network that is away, and that repeats and delays what it carries."""

    inner: Any
    chance: random.Random
    away: bool = False
    late: list[HttpCall] = field(default_factory=list)

    def __call__(self, call: HttpCall) -> tuple[int, bytes]:
        if self.away:
            raise OSError("no network here")
        if call.method != "POST":
            return self.inner(call)
        if self.late and self.chance.random() < 0.5:
            self.inner(self.late.pop())
        answer = self.inner(call)
        if self.chance.random() < DOUBLED:
            answer = self.inner(call)
        if self.chance.random() < LATE:
            self.late.append(call)
        return answer


class Linear:
    """A linear policy, and anything at random with probability `slip`: the policies of this example. Without a file all
    is random. Weights have a row for each choice, of which the best one is taken, or for each number of the action."""

    def __init__(self, policy: EpisodePolicy, space: ActionSpace) -> None:
        self.space, self.weights, self.slip = space, None, 1.0
        if policy.folder is not None and (policy.folder / "linear.json").is_file():
            content = json.loads((policy.folder / "linear.json").read_text())
            self.weights, self.slip = np.array(content["weights"]), float(content["slip"])

    def best(self, seen: np.ndarray) -> int | np.ndarray:
        """The action without chance."""
        scores = self.weights @ np.ravel(seen)
        if isinstance(self.space, gymnasium.spaces.Discrete):
            return int(np.argmax(scores))
        return np.clip(scores.reshape(self.space.shape), self.space.low, self.space.high).astype(self.space.dtype)

    def act(self, seen: np.ndarray, chance: random.Random) -> tuple[int | np.ndarray, float]:
        """An action, counted from 0 where it is a number, and its log-probability in nats: NaN in a box."""
        slips = self.weights is None or chance.random() < self.slip
        space = self.space
        if isinstance(space, gymnasium.spaces.Box):
            if not slips:
                return self.best(seen), float("nan")
            drawn = np.array([chance.random() for _ in range(space.low.size)]).reshape(space.low.shape)
            low, high = np.maximum(space.low, -10.0), np.minimum(space.high, 10.0)
            return (low + drawn * (high - low)).astype(space.dtype), float("nan")
        count = int(space.n)
        best = -1 if self.weights is None else int(self.best(seen))
        action = chance.randrange(count) if slips else best
        return action, float(np.log((1.0 - self.slip) * (action == best) + self.slip / count))


class Learnt(Linear):
    """A policy of the learner, run by hone: its mode, and anything at random in one step of twenty."""

    def __init__(self, policy: EpisodePolicy, space: ActionSpace) -> None:
        from hone.control.predict import open_saved_policy  # noqa: PLC0415 - torch takes seconds

        super().__init__(policy, space)
        assert policy.folder is not None
        self.saved, self.weights, self.slip = open_saved_policy(policy.folder), np.zeros(0), 0.05

    def best(self, seen: np.ndarray) -> int | np.ndarray:
        action = self.saved.predict(seen)[0]
        return int(action) - int(self.space.start) if isinstance(self.space, gymnasium.spaces.Discrete) else action


@dataclass
class Robot:
    """A robot, its world, and its memory of what it did."""

    name: str
    number: int
    uploader: Uploader
    network: BadNetwork
    world: gymnasium.Env[Any, Any]
    chance: random.Random
    steps: int = 0
    total: float = 0.0
    versions: dict[str, list[float]] = field(default_factory=dict)
    held: tuple[str, Any] = ("", None)

    def live(self, episode: int) -> None:
        """One episode, and a look at the network."""
        policy, space = self.uploader.begin(), self.world.action_space
        assert isinstance(space, ActionSpace)
        if self.held[1] is None or self.held[0] != policy.version:
            learnt = policy.folder is not None and (policy.folder / "policy.json").is_file()
            self.held = policy.version, (Learnt if learnt else Linear)(policy, space)
        seen, _ = self.world.reset(seed=1000 * self.number + episode)
        first = int(space.start) if isinstance(space, gymnasium.spaces.Discrete) else 0
        ended, score = False, 0.0
        while not ended:
            action, logp = self.held[1].act(seen, self.chance)
            done = action + first if isinstance(action, int) else action
            after, reward, terminated, truncated, _ = self.world.step(done)
            self.uploader.step(seen, action, logp, float(reward), terminated, truncated, next_observation=after)
            seen, ended, score = after, terminated or truncated, score + float(reward)
            self.steps, self.total = self.steps + 1, self.total + float(reward)
        self.versions.setdefault(policy.version, []).append(score)
        self.network.away = self.chance.random() < OFFLINE
        self.uploader.sync()


def make_robot(url: str, folder: Path, number: int, env: str, limit: int) -> Robot:
    """A robot with a spool in `folder`."""
    chance, name = random.Random(number), f"robot-{number:02d}"
    network = BadNetwork(HttpTransport(url), chance)
    world = gymnasium.make(env, max_episode_steps=limit)
    schema = schema_of(env, world)
    uploader = Uploader(
        folder / f"{name}.db", to=url, robot=name, observation=schema.observation, action=schema.action,
        choices=schema.choices, background=False, transport=network, batch=200,
    )  # fmt: skip
    uploader.open()
    return Robot(name, number, uploader, network, world, chance)


def main() -> None:
    """Live, then send what waits until the service has it all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url", nargs="?", default="")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("spools"))
    parser.add_argument("--fleet", action="store_true")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=13)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--limit", type=int, default=60)
    parser.add_argument("--pause-s", type=float, default=0.0)
    asked = parser.parse_args()
    if asked.fleet or not asked.url:
        print(fleet_table(schema_of(asked.env, gymnasium.make(asked.env))), end="")
        return
    numbers = range(asked.first, asked.first + asked.count)
    robots = [make_robot(asked.url, asked.folder, number, asked.env, asked.limit) for number in numbers]
    for episode in range(asked.episodes):
        for robot in robots:
            robot.live(episode)
        time.sleep(asked.pause_s)
    report = []
    for robot in robots:
        robot.network.away = False
        while robot.uploader.status().waiting:  # the service may be starting again
            robot.uploader.sync()
            time.sleep(0.05)
        for call in robot.network.late:
            with contextlib.suppress(OSError):  # what it holds was acknowledged before
                robot.network.inner(call)
        report.append(
            {"robot": robot.name, "steps": robot.steps, "total": robot.total, "source": robot.uploader.source,
             "records": robot.uploader.status().watermark + 1, "versions": robot.versions}
        )  # fmt: skip
        robot.uploader.close()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
