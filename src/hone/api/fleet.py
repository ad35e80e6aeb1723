"""Fleets of robots: the library of a robot, and the policies that a fleet runs.

On a robot, with Python's standard library alone:

    from hone.api import fleet

    with fleet.Uploader(spool="robot.db", to="http://fleet:8000", robot="cart-07", secret=secret) as up:
        policy = up.begin()                                   # files and version for this episode
        up.step(observation, action, logp, reward, terminated, truncated, next_observation=after)

`step` returns once the step is in the spool; a thread sends what waits, and asks for policies. An episode that no
`begin` opened begins with its first step, and ends with one that is terminated or truncated.

- `up.status()` has what waits, what a full spool dropped, what the service refused, and the last fault.
- Records carry a source, the robot and its spool, and a number: sent twice, they are stored once.
- A robot with threads of its own takes `background=False`, and calls `up.sync()`.

`robot_secret` and `publish` are for the machine that serves the fleet's file.
"""

from pathlib import Path

from hone.core.clock import Clock, SystemClock
from hone.decide.fleet.device import DeviceStatus, EpisodePolicy, HttpCall, HttpTransport, Transport, Uploader

__all__ = [
    "DeviceStatus",
    "EpisodePolicy",
    "HttpCall",
    "HttpTransport",
    "Transport",
    "Uploader",
    "publish",
    "robot_secret",
]


def publish(policy: str | Path, *, to: str | Path, number: int | None = None, clock: Clock | None = None) -> str:
    """Make a policy live for the whole fleet of a file at once -> its version. `hone ship POLICY --to FILE` tries it on
    a part of the fleet first.

    `policy`: a run, a checkpoint, or any folder that robots can read. `number`: updates that the learner had made, by
    which the staleness of steps is counted; None: that of the newest version. Raises ConfigError where the file asks
    for evidence that the version has not.
    """
    from hone.decide.fleet.service import publish_policy  # noqa: PLC0415 - a robot needs none of it

    return publish_policy(Path(to), Path(policy), number=number, clock=clock or SystemClock())


def robot_secret(file: str | Path, robot: str) -> str:
    """The secret to put on a robot of the fleet of a file -> 64 hexadecimal digits. It makes the robot's token, and
    checks the signatures of what the robot is sent. Raises ConfigError."""
    from hone.decide.fleet.manifest import robot_secret as derived  # noqa: PLC0415 - a robot needs none of it
    from hone.decide.fleet.service import service_secret  # noqa: PLC0415 - as above
    from hone.decide.gateway.opening import read_service_file, service_folder  # noqa: PLC0415 - as above

    folder = service_folder(Path(file), read_service_file(Path(file)).config)
    folder.mkdir(parents=True, exist_ok=True)
    return derived(service_secret(folder), robot)
