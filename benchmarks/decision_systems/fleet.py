"""Fleet of robots: nothing that was acknowledged is lost or stored twice, and the learner is a function of the log.

50 robots, 30% of them without a network at any time, uploads doubled and delayed. In the fast form they live in this
process on synthetic steps, and the service is broken off before and after commits; in full they are four processes that
balance poles (MuJoCo's where it is installed), and service and learner are killed by SIGKILL. A bad version earns 30%
less. Settings were chosen on seeds below 100; every figure is of seeds from 100.
"""

import json
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from decision_systems import AcceptanceLine, cpu_seconds, slack
from hone.api import train
from hone.control.replay.priority import PriorityParams
from hone.control.replay.sharded import ShardedSampler, ShardingParams
from hone.core.clock import SystemClock
from hone.core.episodes import Episodes
from hone.core.errors import LostResourceError, ResourceError
from hone.core.random import generator
from hone.decide.fleet.device import HttpCall, Uploader
from hone.decide.fleet.service import FleetService, open_fleet, publish_policy
from hone.decide.fleet.store import open_fleet_store, read_batch
from hone.decide.gateway.shipping import open_rollouts
from hone.run.callbacks import CheckpointEvent
from hone.run.store.metrics import read_metrics

TITLE = "Fleet of robots"
SEED = 100
ROBOTS, OFFLINE, DOUBLED, LATE = 50, 0.3, 0.3, 0.2
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "decisions" / "fleet"
FILE = """
[fleet]
observation = ["a", "b", "c"]
action = ["u"]
trial_episodes = 4

[join]
window_s = 1.0

[rollout]
stages = [0.05, 0.25, 0.5]
requests = 4000
watch = true
look_every_s = 1.0
"""
LEARNER = {
    "recipe": "sac", "env": {"id": "Pendulum-v1", "num_envs": 1}, "network": {"hidden": [16, 16]},
    "evaluation": {"episodes": 1}, "learner": {"updates_per_iteration": 2},
}  # fmt: skip


def acceptance(*, fast: bool) -> Iterator[AcceptanceLine]:
    """Figures of the system."""
    with tempfile.TemporaryDirectory(prefix="hone-fleet-") as name:
        folder = Path(name)
        yield from upload_lines(folder / "uploads", episodes=4 if fast else 20, breaks=5)
        yield from ingest_lines(folder, steps=10_000 if fast else 200_000, fast=fast)
        yield from staleness_lines(iterations=150 if fast else 1000)
        yield from rollback_lines(folder / "rollbacks", runs=1 if fast else 10)
        yield learner_line(folder / "learner", steps=12 if fast else 200, stops=2 if fast else 5)
        if not fast:
            yield from process_lines(folder / "processes", POLES, episodes=40)
            yield from latency_lines(folder / "processes")
            if find_spec("Box2D"):
                yield from process_lines(folder / "landers", "LunarLander-v3", episodes=20)
            yield from live_lines(folder / "live")


# ----------------------------------------------------------------------------------------------------------- in process


@dataclass
class Clock:
    """A clock that is moved by hand."""

    time_s: float = 1e9

    def now_s(self) -> float:
        return self.time_s

    def monotonic_s(self) -> float:
        return self.time_s


@dataclass
class Network:
    """A service that is reached without a socket, away for some robots, and broken off now and then."""

    file: Path
    clock: Clock
    chance: random.Random
    service: FleetService | None = None
    bodies: list[bytes] = field(default_factory=list)
    late: list[HttpCall] = field(default_factory=list)
    away: bool = False
    breaks: int = 0
    """Times that the service was broken off."""

    def opened(self) -> FleetService:
        if self.service is None:
            self.service = open_fleet(self.file, clock=self.clock, tell=lambda _: None)
        return self.service

    def close(self) -> None:
        os.environ.pop("HONE_FAILPOINT", None)
        if self.service is not None:
            self.service.close()
            self.service = None

    def break_off(self, at: str) -> None:
        """Let the next upload fail before or after its commit, and begin with a new service from the files."""
        os.environ["HONE_FAILPOINT"] = f"fleet.{at}_commit:raise"
        self.breaks += 1

    def answer(self, call: HttpCall) -> tuple[int, bytes]:
        """Answer as the routes do."""
        service, robot = self.opened(), call.headers["X-Robot"]
        if call.method == "POST":
            self.bodies.append(call.body)
            try:
                return 200, json.dumps(service.ingest(robot, read_batch(call.body))).encode()
            except (OSError, ResourceError) as error:
                self.close()
                raise OSError("the service broke off") from error
        if call.path == "/v1/fleet/manifest":
            text, signature = service.manifest(robot)
            return 200, json.dumps({"manifest": text, "signature": signature}).encode()
        _, _, rest = call.path.partition("/versions/")
        return 200, service.policy_file(*rest.split("/", 1))

    def send(self, call: HttpCall) -> tuple[int, bytes]:
        """A bad network: away, or an upload twice, or once more when others have passed it."""
        if self.away:
            raise OSError("no network here")
        if call.method != "POST":
            return self.answer(call)
        if self.late and self.chance.random() < 0.5:
            self.answer(self.late.pop(self.chance.randrange(len(self.late))))
        answer = self.answer(call)
        if self.chance.random() < DOUBLED:
            answer = self.answer(call)
        if self.chance.random() < LATE:
            self.late.append(call)
        return answer

    def robot(self, number: int) -> Uploader:
        return Uploader(
            self.file.parent / "spools" / f"r{number}.db", to="", robot=f"r{number}", background=False,
            observation=("a", "b", "c"), action=("u",), clock=self.clock, transport=self.send, batch=100,
        )  # fmt: skip


def new_network(folder: Path, seed: int) -> Network:
    """A fleet's file and its network."""
    (folder / "spools").mkdir(parents=True)
    (folder / "arms.toml").write_text(FILE)
    return Network(folder / "arms.toml", Clock(), random.Random(seed))


def upload_lines(folder: Path, *, episodes: int, breaks: int) -> Iterator[AcceptanceLine]:
    """Records lost, missing or stored twice, and what a store without (source, seq) makes of the same uploads."""
    network, random_steps = new_network(folder, SEED), generator(SEED, "fleet", "steps")
    with cpu_seconds() as spent:
        robots = [network.robot(number) for number in range(ROBOTS)]
        for robot in robots:
            robot.open()
        breaks_at = {at * ROBOTS * episodes // (breaks + 1): ("before", "after")[at % 2] for at in range(1, breaks + 1)}
        written = 6 * ROBOTS * episodes
        for done in range(ROBOTS * episodes):
            robot, numbers = robots[done % ROBOTS], random_steps.standard_normal((6, 3))
            for step in range(5):
                seen, after = numbers[step], numbers[step + 1]
                robot.step(seen, 0.1, -1.0, float(seen[0]), step == 4, next_observation=after)
            if done in breaks_at:
                network.break_off(breaks_at[done])
            network.away = network.chance.random() < OFFLINE
            robot.sync()
        network.away = False
        for robot in robots:
            while robot.status().waiting:
                robot.sync()
        for call in network.late:
            network.answer(call)
        service = network.opened()
        rows = service.store.robots()
        stored = sum(service.store.counts())
        counts = service.log.counts()
        watermarks = sum(robot.status().watermark + 1 for robot in robots)
        wrong = abs(stored - written) + sum(one.missing + one.lost + one.refused for one in rows)
        wrong += abs(written - watermarks) + abs(counts.decisions - ROBOTS * episodes)
        sent = [row.tobytes() for body in network.bodies for row in read_batch(body).rows]
        for robot in robots:
            robot.close()
        network.close()
    yield AcceptanceLine(
        figure="records acknowledged and not stored, missing, or stored twice", value=wrong, at_most=0,
        cpu_s=spent.spent,
        words=f"{ROBOTS} robots, {OFFLINE:.0%} offline, {written} records, {network.breaks} breaks of the service "
        f"around a commit, {sum(one.repeated for one in rows)} records sent again",
    )  # fmt: skip
    names = {(len(one), one[:8], sha256(one).digest()) for one in sent}
    yield AcceptanceLine(
        figure="steps stored twice without (source, seq)", value=len(sent) - len(names), at_least=1, negative=True,
        words="the same uploads, appended as they came",
    )  # fmt: skip


def ingest_lines(folder: Path, *, steps: int, fast: bool) -> Iterator[AcceptanceLine]:
    """Steps a processor second from a request's body to its commit."""
    network = new_network(folder / "ingest", SEED)
    network.chance = random.Random(0)
    with network.robot(0) as robot:
        for step in range(steps):
            robot.step((0.1, 0.2, 0.3), 0.1, -1.0, 1.0, False, next_observation=(0.2, 0.3, step % 7))
            if step % 100 == 99:
                batch = robot._held.batch("r0", 100)
                assert batch is not None
                network.bodies.append(batch.body)
                robot._held.settle(batch.seqs, ())
    store, took = open_fleet_store(folder / "ingest.db"), list[float]()
    with cpu_seconds() as spent:
        for body in network.bodies:
            began_s = time.perf_counter()
            store.append(read_batch(body), now_s=1e9)
            took.append(time.perf_counter() - began_s)
    held = store.counts()[0]
    store.close()
    yield AcceptanceLine(
        figure="steps stored a processor second", value=round(held / spent.spent), at_least=50_000 / slack(fast=fast),
        cpu_s=spent.spent, words=f"{held} steps of 3 numbers in batches of 100, p50 of a batch "
        f"{1e3 * float(np.median(took)):.2f} ms by the clock",
    )  # fmt: skip


def staleness_lines(*, iterations: int) -> Iterator[AcceptanceLine]:
    """Share of drawn steps within the bound, with robots that come back with old steps, with and without the bound."""
    for bound, negative in ((40, False), (0, True)):
        with cpu_seconds() as spent:
            above = stale_share(iterations, bound)
        yield AcceptanceLine(
            figure=f"share of drawn steps at most 40 iterations old{'' if bound else ', without the bound'}",
            value=1.0 - above, at_least=None if negative else 0.999, at_most=0.999 if negative else None,
            negative=negative, cpu_s=spent.spent, words=f"{iterations} iterations, a new version every 10, robots "
            "offline for up to 100",
        )  # fmt: skip


def stale_share(iterations: int, bound: int) -> float:
    """Share of the drawn steps that are more than 40 iterations old."""
    draws = generator(SEED, "fleet", "stale", bound)
    params = ShardingParams(shards=10, priorities=PriorityParams(), max_staleness=bound)
    buffer, back, held = ShardedSampler(5000, params), np.zeros(ROBOTS, np.int64), np.zeros(ROBOTS, np.int64)
    old = total = 0
    for iteration in range(iterations):
        online = back <= iteration
        held[online] = iteration // 10 * 10
        leaves = online & (draws.random(ROBOTS) < OFFLINE / 20)
        back[leaves] = iteration + draws.integers(5, 100, leaves.sum())
        senders = np.flatnonzero(online)
        buffer.add(_transitions(senders, held[senders] - 10 * (draws.random(len(senders)) < 0.3)))
        if not len(buffer):
            continue
        sample = buffer.sample(64, draws)
        buffer.update_priorities(draws.random(64))
        ages = iteration - sample.version
        old, total = old + int((ages > 40).sum()), total + len(ages)
        buffer.draws = iteration + 1
    return old / total


def _transitions(robots: np.ndarray, versions: np.ndarray) -> Episodes:
    count = len(robots)
    zeros, flags = np.zeros(count, np.float32), np.zeros(count, np.bool_)
    return Episodes(
        offsets=np.arange(count + 1), seen=zeros[:, None], chosen=zeros, logp=zeros,
        version=np.maximum(versions, 0).astype(np.int32), reward=zeros, group=robots.astype(np.int64), terminated=flags,
        truncated=flags, final=zeros[:, None], score=zeros.astype(np.float64),
    )  # fmt: skip


def rollback_lines(folder: Path, *, runs: int) -> Iterator[AcceptanceLine]:
    """Episodes that a version of 30% less return runs before it goes back, and without looks at the evidence."""
    harmed: list[int] = []
    with cpu_seconds() as spent:
        for run in range(runs):
            harmed.append(harmed_episodes(folder / f"run{run}", SEED + run, looks=True, rounds=60))
    exposed = ", ".join(map(str, harmed))
    yield AcceptanceLine(
        figure="episodes harmed by a version 30% worse, at most", value=max(harmed), at_most=200, seeds=runs,
        cpu_s=spent.spent, words=f"10% of {ROBOTS} robots, {OFFLINE:.0%} offline; of each run: {exposed}",
    )  # fmt: skip
    with cpu_seconds() as spent:
        without = harmed_episodes(folder / "without", SEED, looks=False, rounds=120)
    yield AcceptanceLine(
        figure="episodes harmed where nobody looks at the evidence", value=without, at_least=201, negative=True,
        cpu_s=spent.spent, words="the same trial, 120 episodes a robot",
    )  # fmt: skip


def harmed_episodes(folder: Path, seed: int, *, looks: bool, rounds: int) -> int:
    """Episodes that the bad version ran until it went back; returns of .7 against .49, with a spread of .15."""
    network = new_network(folder, seed)
    text = FILE if looks else FILE.replace("watch = true", "watch = false")
    (folder / "arms.toml").write_text(text)
    for name in ("good", "bad"):
        (folder / name).mkdir()
        (folder / name / "gains.json").write_text(json.dumps(name))
    good = publish_policy(network.file, folder / "good", clock=network.clock)
    with open_rollouts(network.file, network.clock) as rollouts:
        bad = rollouts.add(folder / "bad", good).id
        rollouts.start(rollouts.plan(bad)).step()
    router = network.opened().routers.router()
    names = [number for number in range(4 * ROBOTS) if router.route("default", f"r{number}").arm != "live"]
    robots = [
        network.robot(number) for number in names[: ROBOTS // 10]
    ]  # 10% of the robots: the others run the good one
    draws, harmed = generator(seed, "fleet", "returns"), 0
    for robot in robots:
        robot.open()
        robot.sync()
    for _ in range(rounds):
        for robot in robots:
            is_bad = robot.begin().version == bad
            harmed += is_bad
            value = float(np.clip(draws.normal(0.49 if is_bad else 0.7, 0.15), 0.0, 1.0))
            robot.step((0.0, 0.0, 0.0), 0.0, -1.0, value, True, next_observation=(0.0, 0.0, 0.0))
            network.away = network.chance.random() < OFFLINE
            robot.sync()
        network.clock.time_s += 3.0
        service = network.opened()
        if looks:
            service.tick()
            service.listener.settle()
        if service.registry.stage("arms", bad) == "retired" and looks:
            break
    else:
        harmed = harmed if not looks else 10**6  # it never went back
    for robot in robots:
        robot.close()
    network.close()
    return harmed


def learner_line(folder: Path, *, steps: int, stops: int) -> AcceptanceLine:
    """Whether a learner that ran out of steps some times ends bit for bit as one that had them all at once."""
    with cpu_seconds() as spent:
        whole, _ = learnt_weights(folder / "whole", steps, parts=1)
        cut, stopped = learnt_weights(folder / "cut", steps, parts=stops + 1)
    return AcceptanceLine(
        figure="learners that end bit for bit as an undisturbed one", value=float(whole == cut), at_least=1.0,
        cpu_s=spent.spent, words=f"soft actor-critic, {steps} iterations, stopped {stopped} times",
    )  # fmt: skip


def learnt_weights(folder: Path, steps: int, *, parts: int) -> tuple[bytes, int]:
    """Weights of a learner whose robots send in so many parts, and how often it ran out of steps."""
    network, draws = new_network(folder, SEED), generator(SEED, "fleet", "learner")
    robots = [network.robot(number) for number in range(5)]
    for robot in robots:
        robot.open()
    config = {
        **LEARNER, "steps": steps, "replay": {"batch": 8, "warmup": 32},
        "fleet": {
            "log": str(folder / "arms" / "fleet.db"), "samples_per_insert": 2.0, "shards": 4, "patience_s": 0.05
        },
    }  # fmt: skip
    total, stopped = 40 + 8 * steps, 0
    goals = [48 + (total - 48) * (part + 1) // parts for part in range(parts - 1)] + [total]
    for part, goal in enumerate(goals):
        for number in range(goals[part - 1] if part else 0, goal):
            numbers = draws.standard_normal((2, 3))
            action, reward = float(numbers[1, 0]), float(numbers[0, 0])
            robots[number % 5].step(numbers[0], action, -1.0, reward, False, next_observation=numbers[1])
            robots[number % 5].sync()
        try:
            train(config, runs=folder / "runs", resume=part > 0)
        except LostResourceError:
            stopped += 1
    for robot in robots:
        robot.close()
    network.close()
    return (folder / f"runs/sac/checkpoints/step_{steps:08d}/policy/model.safetensors").read_bytes(), stopped


# --------------------------------------------------------------------------------------------------------- in processes


@dataclass
class ServerProcess:
    """`hone serve`, killed and started again at one port."""

    file: Path
    port: int
    process: subprocess.Popen[bytes] | None = None
    kills: int = 0

    def start(self) -> None:
        command = [sys.executable, "-m", "hone", "serve", str(self.file), "--port", str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        """SIGKILL, and a new start."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.kills += 1
        self.start()

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        self.process.wait()


def started_server(file: Path) -> ServerProcess:
    """A service at a port that was free."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        server = ServerProcess(file, free.getsockname()[1])
    server.start()
    return server


POLES = "InvertedPendulum-v5" if find_spec("mujoco") else "CartPole-v1"
LANDERS = "LunarLander-v3" if find_spec("Box2D") else "CartPole-v1"


def process_lines(folder: Path, env: str, *, episodes: int) -> Iterator[AcceptanceLine]:
    """Four processes of robots, a service killed five times, and a learner killed five times on their log."""
    server, reports = _life(folder, env, episodes)
    database = folder / "fleet" / "fleet.db"
    stored = _stored(database)
    wrong = sum(abs(stored.get(one["robot"], 0) - one["records"]) for one in reports)
    wrong += sum(abs(one["records"] - one["steps"] - episodes) for one in reports)
    with sqlite3.connect(database) as connection:
        twice = connection.execute(
            "select count(*) from (select 1 from records group by source, seq having count(*) > 1)"
        ).fetchone()[0]
    yield AcceptanceLine(
        figure=f"processes, {env}: records acknowledged and not stored, or stored twice", value=wrong + twice,
        at_most=0, words=f"{ROBOTS} robots in 4 processes, {OFFLINE:.0%} offline, {sum(stored.values())} records, "
        f"service killed {server.kills} times",
    )  # fmt: skip
    yield from _learners(folder, database, env)


def write_fleet_file(folder: Path, env: str) -> None:
    """The example's service, with the numbers of an environment."""
    folder.mkdir()
    command = [sys.executable, str(EXAMPLE / "robots.py"), "--fleet", "--env", env]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = (EXAMPLE / "fleet.toml").read_text().splitlines()
    kept = [line for line in lines if not line.startswith(("observation", "action", "choices"))]
    kept.insert(kept.index("[fleet]") + 1, table)
    (folder / "fleet.toml").write_text("\n".join(kept) + "\n")


def start_robots(url: str, folder: Path, env: str, episodes: int, *options: str) -> list[subprocess.Popen[bytes]]:
    """Robots in four processes."""
    share = -(-ROBOTS // 4)
    return [
        subprocess.Popen(
            [
                sys.executable, str(EXAMPLE / "robots.py"), url, str(folder / "spools"), "--first", str(first),
                "--count", str(min(share, ROBOTS - first)), "--episodes", str(episodes), "--env", env, *options,
            ],
            stdout=subprocess.PIPE,
        )
        for first in range(0, ROBOTS, share)
    ]  # fmt: skip


def _life(folder: Path, env: str, episodes: int) -> tuple[ServerProcess, list[dict[str, Any]]]:
    """Let the robots live while the service is killed -> what they did."""
    write_fleet_file(folder, env)
    server = started_server(folder / "fleet.toml")
    try:
        return server, _killed_while_they_live(folder, env, episodes, server)
    finally:
        server.stop()


def _killed_while_they_live(folder: Path, env: str, episodes: int, server: ServerProcess) -> list[dict[str, Any]]:
    """Robots in four processes, while the service is killed five times -> what they did."""
    robots = start_robots(f"http://127.0.0.1:{server.port}", folder, env, episodes, "--pause-s", "0.2")
    database, chance = folder / "fleet" / "fleet.db", random.Random(SEED)
    marks = [ROBOTS * episodes * number // 7 for number in range(1, 6)]
    while any(one.poll() is None for one in robots):
        time.sleep(0.05 + 0.1 * chance.random())
        if marks and sum(_stored(database, kind=1).values()) >= marks[0]:
            marks.pop(0)
            server.kill()
    return [robot for one in robots for robot in json.loads(one.communicate()[0])]


def _stored(database: Path, *, kind: int | None = None) -> dict[str, int]:
    """Records by robot; of one kind (1: ends of episodes)."""
    if not database.is_file():
        return {}
    where = "" if kind is None else f"where r.kind = {kind} "
    statement = f"select s.robot, count(*) from records r join sources s on s.id = r.source {where}group by s.robot"
    try:
        with sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True) as connection:
            return dict(connection.execute(statement))
    except sqlite3.OperationalError:
        return {}  # it is being made


def _learners(folder: Path, database: Path, env: str) -> Iterator[AcceptanceLine]:
    """The learner, undisturbed and killed five times."""
    recipe = "double_dqn" if env in ("CartPole-v1", "LunarLander-v3") else "sac"
    tables = f'''
recipe = "{recipe}"
steps = 60
env = {{ id = "{env}", num_envs = 1 }}
replay = {{ batch = 64, warmup = 500 }}
learner = {{ updates_per_iteration = 2 }}
network.hidden = [32, 32]
evaluation.episodes = 1
run = {{ checkpoint_every = 7 }}

[fleet]
log = "{database}"
samples_per_insert = 8.0
shards = 10
patience_s = 5
'''
    weights: list[bytes] = []
    for name, kills in (("whole", 0), ("killed", 5)):
        (folder / f"{name}.toml").write_text(tables)
        base = [sys.executable, "-m", "hone", "train", str(folder / f"{name}.toml")]
        for attempt in range(kills + 1):
            command = base + (["--resume"] if attempt else [])
            environment = dict(os.environ)
            if attempt < kills:
                environment["HONE_CHAOS"] = f"{folder / 'events'};kill@{9 * attempt + 8}.1"
            ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
            if ended.returncode != (0 if attempt == kills else -signal.SIGKILL):
                print(ended.stderr[-2000:])
        weights.append((folder / f"runs/{name}/checkpoints/step_00000060/policy/model.safetensors").read_bytes())
    yield AcceptanceLine(
        figure=f"processes, {env}: learners that end bit for bit as an undisturbed one",
        value=float(weights[0] == weights[1]), at_least=1.0,
        words=f"{recipe} on the log of the robots, 60 iterations, killed 5 times",
    )  # fmt: skip


def latency_lines(folder: Path) -> Iterator[AcceptanceLine]:
    """Time of an acknowledgement of 100 steps over HTTP, and until all robots that are online have a new policy."""
    server = started_server(folder / "fleet.toml")
    names = json.loads((folder / "fleet.toml").read_text().split("observation = ")[1].split("\n")[0])
    is_box = "choices = 0" in (folder / "fleet.toml").read_text()
    new = partial(Uploader, to=f"http://127.0.0.1:{server.port}", observation=tuple(names), action=("push",),
                  choices=0 if is_box else 2)  # fmt: skip
    took: list[float] = []
    with new(folder / "ack.db", robot="ack", background=False, batch=100) as robot:
        while not robot.sync():
            time.sleep(0.1)
        for _ in range(300):
            for _ in range(100):
                robot.step((0.0,) * 4, 1.0, -1.0, 1.0, False, next_observation=(0.0,) * 4)
            batch = robot._held.batch("ack", 100)
            assert batch is not None
            began_s = time.perf_counter()
            robot._send(HttpCall(method="POST", path="/v1/fleet/steps", body=batch.body, headers={"X-Robot": "ack"}))
            took.append(time.perf_counter() - began_s)
            robot._held.settle(batch.seqs, ())
    yield AcceptanceLine(
        figure="acknowledgement of 100 steps over HTTP by the clock, p50 in ms", value=1e3 * float(np.median(took)),
        at_most=5.0, words=f"{len(took)} requests on one connection, p99 {1e3 * float(np.quantile(took, 0.99)):.1f} ms",
    )  # fmt: skip
    robots = [new(folder / f"online{number}.db", robot=f"online{number}", every_s=1.0) for number in range(10)]
    for robot in robots:
        robot.open()
    (folder / "next").mkdir()
    (folder / "next" / "gains.json").write_text("{}")
    version = publish_policy(folder / "fleet.toml", folder / "next", clock=SystemClock())
    began_s = time.perf_counter()
    while any(robot.status().live != version for robot in robots) and time.perf_counter() - began_s < 60:
        time.sleep(0.05)
    waited_s = time.perf_counter() - began_s
    for robot in robots:
        robot.close()
    server.stop()
    yield AcceptanceLine(
        figure="a new policy on all online robots, in time by the clock, s", value=waited_s, at_most=5.0,
        words="10 robots that ask once a second",
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------------- while they live


LIVE_BOUND, LIVE_RATIO = 40, 2.0


def live_lines(folder: Path) -> Iterator[AcceptanceLine]:
    """A learner that publishes every 8 iterations while robots send, some of them late: the age of the steps that it
    draws, how often it draws them, and by how many of its versions they were made."""
    write_fleet_file(folder, LANDERS)
    file, database = folder / "fleet.toml", folder / "fleet" / "fleet.db"
    (folder / "wild").mkdir()
    (folder / "wild" / "note.json").write_text("{}")  # no weights: robots act at random
    publish_policy(file, folder / "wild", number=0, clock=SystemClock())
    server = started_server(file)
    published: list[int] = []

    def publish(event: CheckpointEvent) -> None:
        publish_policy(file, event.checkpoint / "policy", number=event.step, clock=SystemClock())
        published.append(event.step)

    options = ("--limit", "20", "--pause-s", "0.5")
    robots = start_robots(f"http://127.0.0.1:{server.port}", folder, LANDERS, 60, *options)
    try:
        while sum(_stored(database, kind=1).values()) < ROBOTS:
            time.sleep(0.1)
        with cpu_seconds() as spent:
            live = train(live_learner(database, "live", LIVE_BOUND), runs=folder / "runs", on_checkpoint=publish)
    finally:
        for one in robots:
            one.communicate()
        server.stop()
    figures = live_figures(live.folder)
    with sqlite3.connect(database) as connection:
        numbers = connection.execute("select count(distinct version) from episodes").fetchone()[0]
    words = f"{LANDERS}, {ROBOTS} robots in 4 processes, {len(figures)} iterations, {len(published)} versions published"
    yield AcceptanceLine(
        figure=f"live: share of iterations whose oldest drawn step was at most {LIVE_BOUND} iterations old",
        value=float(np.mean(figures[:, 0] <= LIVE_BOUND)), at_least=0.999, cpu_s=spent.spent,
        words=f"{words}; {int(figures[-1, 2]):,} steps grew too old; mean age {figures[:, 3].mean():.1f}",
    )  # fmt: skip
    yield AcceptanceLine(
        figure="live: times that a step was drawn, on average, at most", value=float(figures[:, 1].max()),
        at_most=LIVE_RATIO,
    )  # fmt: skip
    yield AcceptanceLine(figure="live: versions that ran episodes of the log", value=numbers, at_least=10)
    free = live_figures(train(live_learner(database, "free", 0), runs=folder / "runs").folder)
    yield AcceptanceLine(
        figure=f"live, without the bound: share of iterations whose oldest drawn step was at most {LIVE_BOUND} "
        "iterations old", value=float(np.mean(free[:, 0] <= LIVE_BOUND)), at_most=0.999, negative=True,
        words=f"another learner on the same log, oldest step {int(free[:, 0].max())} iterations",
    )  # fmt: skip


def live_learner(database: Path, name: str, bound: int) -> dict[str, object]:
    """Double DQN with 128 draws and 64 new steps an iteration."""
    return {
        "recipe": "double_dqn", "name": name, "steps": 240, "env": {"id": LANDERS, "num_envs": 1},
        "network": {"hidden": [32, 32]}, "evaluation": {"episodes": 1}, "run": {"log_every": 1, "checkpoint_every": 8},
        "learner": {"updates_per_iteration": 2}, "replay": {"batch": 64, "warmup": 64, "capacity": 20000},
        "fleet": {"log": str(database), "samples_per_insert": LIVE_RATIO, "max_staleness": bound, "patience_s": 60},
    }  # fmt: skip


def live_figures(run: Path) -> np.ndarray:
    """By iteration `[n, 4]`: age of the oldest drawn step, draws of a step so far, steps grown too old, mean age."""
    columns = read_metrics(run / "metrics.jsonl").values
    names = ("staleness_max", "samples_per_insert", "too_stale", "staleness_mean")
    figures = np.stack([np.array(columns[f"robots/{name}"], np.float64) for name in names], axis=1)
    return figures[np.isfinite(figures[:, 0])]
