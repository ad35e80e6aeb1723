"""A fleet in one process: the service behind its routes, robots that reach it without a socket, and policies."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from manual_clock import ManualClock
from starlette.testclient import TestClient

from hone.api.fleet import robot_secret
from hone.decide.fleet.device import HttpCall, Uploader
from hone.decide.fleet.http_app import FleetRoutes
from hone.decide.fleet.service import FleetService, open_fleet
from hone.decide.gateway.opening import open_access, read_service_file
from hone.run.http.requests import BodyReader

ARMS = """
[fleet]
observation = ["angle", "speed"]
action = ["torque"]

[join]
window_s = 1.0

[rollout]
stages = [0.25, 0.5]
requests = 200
guardrails = [{ low = 0.0, high = 10.0 }]
"""
Interference = Callable[[HttpCall], tuple[int, bytes] | None]


@dataclass
class FleetInProcess:
    """A fleet's service and its robots."""

    file: Path
    clock: ManualClock
    service: FleetService
    client: TestClient
    calls: list[HttpCall] = field(default_factory=list)
    interfere: Interference | None = None
    """Called before each request; what it returns is the answer, and the service hears nothing."""

    def send(self, call: HttpCall) -> tuple[int, bytes]:
        self.calls.append(call)
        if self.interfere is not None and (answer := self.interfere(call)) is not None:
            return answer
        reply = self.client.request(call.method, call.path, content=call.body, headers=dict(call.headers))
        return reply.status_code, reply.content

    def robot(self, name: str = "r1", spool: str = "", **changed: object) -> Uploader:
        options: dict[str, object] = {
            "to": "http://fleet", "robot": name, "observation": ("angle", "speed"), "action": ("torque",),
            "background": False, "clock": self.clock, "transport": self.send,
            "secret": robot_secret(self.file, name),
        } | changed  # fmt: skip
        return Uploader(self.file.parent / (spool or f"{name}.db"), **options)  # type: ignore[arg-type]

    def settle(self) -> None:
        """Let the registry's second pass, and look at the rollouts."""
        self.clock.advance(2.0)
        self.service.tick()
        self.service.listener.settle()


@contextmanager
def fleet_in_process(folder: Path, text: str = ARMS) -> Iterator[FleetInProcess]:
    file, clock = folder / "arms.toml", ManualClock(1e9)
    file.write_text(text)
    service = open_fleet(file, clock=clock, tell=print)
    routes = FleetRoutes(
        service=service, access=open_access(read_service_file(file), folder), tell=print,
        reader=BodyReader(most_bytes=1 << 20, within_s=10.0),
    )  # fmt: skip
    try:
        yield FleetInProcess(file, clock, service, TestClient(routes.app()))
    finally:
        service.close()


def play(robot: Uploader, episodes: int, *, steps: int = 3, reward: float = 1.0) -> None:
    """Episodes whose steps all have one reward."""
    for _ in range(episodes):
        for step in range(steps):
            seen = [float(step), 0.5]
            robot.step(seen, [0.1], -0.5, reward, step == steps - 1, next_observation=[step + 1.0, 0.5])


def policy_folder(folder: Path, name: str) -> Path:
    """A policy's folder with two files."""
    policy = folder / name
    (policy / "weights").mkdir(parents=True)
    (policy / "policy.json").write_text(json.dumps({"name": name}))
    (policy / "weights" / "w.bin").write_bytes(name.encode() * 100)
    return policy
