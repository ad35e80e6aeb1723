"""Simulated robots in one process: they balance poles, lose their network, and send some uploads twice or late.

    python robots.py http://127.0.0.1:8000 SPOOLS --first 0 --count 13 --episodes 20 [--env InvertedPendulum-v5]

Prints one JSON line: what each robot did, to be compared with what is stored.
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

from hone.decide.fleet.device import EpisodePolicy, HttpCall, HttpTransport, Uploader

OFFLINE = 0.3
"""Share of the time without a network."""
DOUBLED, LATE = 0.3, 0.2
"""Shares of uploads that are sent twice, and once more when others have passed them."""
NAMES = ("place", "speed", "angle", "turn")


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


class Pusher:
    """A linear controller that pushes the wrong way with probability `slip`: the policies of this example."""

    def __init__(self, policy: EpisodePolicy) -> None:
        self.gains, self.slip = np.array([0.1, 0.3, 1.0, 0.8]), 0.35
        if policy.folder is not None and (policy.folder / "gains.json").is_file():
            told = json.loads((policy.folder / "gains.json").read_text())
            self.gains, self.slip = np.array(told["gains"]), float(told["slip"])

    def right(self, seen: np.ndarray, chance: random.Random) -> tuple[bool, float]:
        """True for a push to the right, and the log-probability of the push, in nats."""
        slips = chance.random() < self.slip
        logp = float(np.log(self.slip if slips else 1.0 - self.slip))
        return bool(seen @ self.gains > 0) != slips, logp


class Learnt:
    """A policy of the learner, run by hone."""

    def __init__(self, policy: EpisodePolicy) -> None:
        from hone.control.predict import open_saved_policy  # noqa: PLC0415 - torch takes seconds

        assert policy.folder is not None
        self.saved = open_saved_policy(policy.folder)

    def right(self, seen: np.ndarray, chance: random.Random) -> tuple[bool, float]:
        """The policy's mode, with a push in twenty at random."""
        best = int(self.saved.predict(seen)[0])
        drawn = chance.randrange(2) if chance.random() < 0.05 else best
        return bool(drawn), float(np.log(0.975 if drawn == best else 0.025))


@dataclass
class Robot:
    """A robot, its world, and its memory of what it did."""

    name: str
    number: int
    uploader: Uploader
    network: BadNetwork
    world: gymnasium.Env
    chance: random.Random
    steps: int = 0
    total: float = 0.0
    versions: dict[str, list[float]] = field(default_factory=dict)
    held: tuple[str, Any] = ("", None)

    def live(self, episode: int) -> None:
        """One episode, and a look at the network."""
        policy = self.uploader.begin()
        if self.held[1] is None or self.held[0] != policy.version:
            learnt = policy.folder is not None and (policy.folder / "policy.json").is_file()
            self.held = policy.version, (Learnt if learnt else Pusher)(policy)
        seen, _ = self.world.reset(seed=1000 * self.number + episode)
        ended, score = False, 0.0
        while not ended:
            right, logp = self.held[1].right(seen, self.chance)
            is_box = isinstance(self.world.action_space, gymnasium.spaces.Box)
            action = np.array([1.0 if right else -1.0], np.float32) if is_box else int(right)
            after, reward, terminated, truncated, _ = self.world.step(action)
            self.uploader.step(seen, action, logp, float(reward), terminated, truncated, next_observation=after)
            seen, ended, score = after, terminated or truncated, score + float(reward)
            self.steps, self.total = self.steps + 1, self.total + float(reward)
        self.versions.setdefault(policy.version, []).append(score)
        self.network.away = self.chance.random() < OFFLINE
        self.uploader.sync()


def make_robot(url: str, folder: Path, number: int, env: str, limit: int) -> Robot:
    """A robot with a spool in `folder`."""
    chance, name = random.Random(number), f"cart-{number:02d}"
    network = BadNetwork(HttpTransport(url), chance)
    world = gymnasium.make(env, max_episode_steps=limit)
    choices = 0 if isinstance(world.action_space, gymnasium.spaces.Box) else 2
    names = NAMES if choices else ("place", "angle", "speed", "turn")
    uploader = Uploader(
        folder / f"{name}.db", to=url, robot=name, observation=names, action=("push",), choices=choices,
        background=False, transport=network, batch=200,
    )  # fmt: skip
    uploader.open()
    return Robot(name, number, uploader, network, world, chance)


def main() -> None:
    """Live, then send what waits until the service has it all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=13)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--limit", type=int, default=60)
    parser.add_argument("--pause-s", type=float, default=0.0)
    asked = parser.parse_args()
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
