"""Fifty carts in four processes, 30% of them without a network at any time, and a service that keeps every step once.

    python examples/decisions/fleet/fleet.py [FOLDER]

A bad policy is tried on 10% of the robots and goes back by evidence; then a learner learns from the log, and what it
learnt goes to the whole fleet. `FOLDER/fleet.html` is the page.
"""

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from hone.api import train
from hone.core.clock import SystemClock
from hone.decide.fleet.service import publish_policy
from hone.decide.gateway.shipping import open_rollouts

HERE = Path(__file__).resolve().parent
WEIGHTS = [[-0.1, -0.3, -1.0, -0.8], [0.1, 0.3, 1.0, 0.8]]
"""To the right where the pole leans to the right."""
GOOD, BAD = {"weights": WEIGHTS, "slip": 0.1}, {"weights": WEIGHTS, "slip": 0.7}
ROBOTS, PROCESSES = 50, 4


def policy(folder: Path, linear: dict[str, object]) -> Path:
    """A policy's folder."""
    folder.mkdir(parents=True)
    (folder / "linear.json").write_text(json.dumps(linear))
    return folder


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def is_ready(url: str) -> bool:
    """True once the service answers."""
    try:
        with urlopen(f"{url}/ready") as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@contextmanager
def served(file: Path, port: int) -> Iterator[str]:
    """The service in a process of its own, for the block."""
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen([sys.executable, "-m", "hone", "serve", str(file), "--port", str(port)])
    try:
        while not is_ready(url):
            assert server.poll() is None, "the service ended"
            time.sleep(0.1)
        yield url
    finally:
        server.terminate()
        server.wait()


def live(url: str, folder: Path, episodes: int) -> list[dict[str, object]]:
    """Episodes of all robots, in processes of their own -> what each of them did."""
    share = -(-ROBOTS // PROCESSES)
    firsts = range(0, ROBOTS, share)
    started = [
        subprocess.Popen(
            [sys.executable, str(HERE / "robots.py"), url, str(folder), "--first", str(first),
             "--count", str(min(share, ROBOTS - first)), "--episodes", str(episodes)],
            stdout=subprocess.PIPE, text=True,
        )
        for first in firsts
    ]  # fmt: skip
    return [robot for one in started for robot in json.loads(one.communicate()[0])]


def tried(url: str, file: Path, bad: Path, parent: str) -> None:
    """Try a policy on 10% of the robots until it goes back."""
    with open_rollouts(file, SystemClock()) as rollouts:
        version = rollouts.add(bad, parent).id
        rollouts.start(rollouts.plan(version))
        time.sleep(2.0)  # the service looks at its rollouts twice a second
        while rollouts.registry.stage("fleet", version) != "retired":
            live(url, file.parent / "spools", episodes=15)


def main(folder: Path) -> None:
    """The whole life of the fleet."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("fleet.toml", "learner.toml"):
        shutil.copy(HERE / name, folder / name)
    file, spools = folder / "fleet.toml", folder / "spools"
    good = publish_policy(file, policy(folder / "good", GOOD), number=0, clock=SystemClock())
    with served(file, free_port()) as url:
        did = live(url, spools, episodes=4)
        print(f"{sum(int(str(one['steps'])) for one in did):,} steps of {len(did)} robots, live version {good}")
        tried(url, file, policy(folder / "bad", BAD), good)
        log = f'fleet.log="{folder / "fleet" / "fleet.db"}"'
        result = train(folder / "learner.toml", [log], runs=folder / "runs")
        learnt = publish_policy(file, result.folder, number=result.step, clock=SystemClock())
        time.sleep(1.5)
        for _ in range(2):
            live(url, spools, episodes=2)
        with urlopen(f"{url}/v1/fleet/status") as answer:
            status = json.loads(answer.read())
        with urlopen(url) as answer:
            (folder / "fleet.html").write_bytes(answer.read())
    print(
        f"{status['steps']:,} steps stored; {status['harmed']} episodes were run by the bad version; {learnt} is live"
    )
    print(status["rollouts"][0])
    print(f"the page is {folder / 'fleet.html'}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("fleet"))
