"""Several gateways on one log: they learn like one, while gateways are killed, replaced and started again.

In process: gateways over one SQLite file with a simulated clock, beside one gateway of the same requests, and beside
four that share nothing. Learners are abandoned in the middle of their work, as a killed host leaves them. In full also
two processes on each kind of server, under load, with `kill -9` at random moments and a client that sends again.
"""

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from log_servers import LogServer, MissingServerError, postgres_server, redis_server

from decision_systems import AcceptanceLine, cpu_seconds
from hone.core.clock import SystemClock
from hone.core.decisions import Decision, Outcome
from hone.core.state import substate
from hone.decide.gateway.opening import OpenedService, open_service, pages
from hone.decide.log.opening import open_decision_log
from hone.decide.simulators.recommendation import SimulatedClock

TITLE = "Several gateways"
SEED, ACTIONS, FEATURES, BATCH = 100, 6, 4, 20
SERVICE = """
[service]
features = [{features}]
actions = [{actions}]
seed = {seed}

[policy]
kind = "linucb"
floor = 0.02
publish_every = 50

[join]
rule = "first"
low = 0.0
high = 1.0

[log]
address = "{address}"
"""


def acceptance(*, fast: bool) -> Iterator[AcceptanceLine]:
    """Figures of the system."""
    with tempfile.TemporaryDirectory() as folder:
        yield from in_process(Path(folder), 1500 if fast else 20_000)
    if not fast:
        for name, make in (("PostgreSQL", postgres_server), ("Redis", redis_server)):
            try:
                server = make()
            except MissingServerError as missing:
                print(missing, file=sys.stderr)
                continue
            server.start()
            try:
                yield from in_processes(name, server, 20_000)
            finally:
                server.remove()


@dataclass(frozen=True)
class VisitorWorld:
    """Visitors with features; P(reward | x, action) = sigmoid of a linear function. A draw is a function of its
    number."""

    seed: int

    @property
    def _coefficients(self) -> np.ndarray:
        return np.random.default_rng([self.seed, 0]).normal(size=(ACTIONS, FEATURES)) * 2.0

    def context(self, number: int) -> list[float]:
        """Features of a visitor."""
        return np.random.default_rng([self.seed, 1, number]).normal(size=FEATURES).tolist()

    def chances(self, number: int) -> np.ndarray:
        """P(reward) of each action."""
        return 1.0 / (1.0 + np.exp(-self._coefficients @ np.array(self.context(number))))

    def reward(self, number: int, action: int) -> float:
        """The reward of an action: 0 or 1."""
        draw = np.random.default_rng([self.seed, 2, number]).random()
        return float(draw < self.chances(number)[action])


def service_file(folder: Path, address: str) -> Path:
    """A gateway's folder with its service file."""
    folder.mkdir(parents=True)
    features = ", ".join(f'"x{place}"' for place in range(FEATURES))
    actions = ", ".join(f'"a{place}"' for place in range(ACTIONS))
    path = folder / "shop.toml"
    path.write_text(
        SERVICE.format(features=features, actions=actions, seed=SEED, address=address), encoding="utf-8"
    )  # fmt: skip
    return path


def learnt_bits(service: OpenedService) -> list[object]:
    """Everything that a service's learner and joins hold."""
    learning = service.policies.tenants["default"].learning
    assert learning is not None
    model = substate(learning.learner.state(), "model")
    arrays = {name: np.asarray(value).tobytes() for name, value in model.items()}
    return [learning.learner.observed, arrays, list(learning.joiner.open_values()), learning.joiner.counts]


def whole_log_bits(path: Path, address: str) -> list[object]:
    """What a gateway learns that reads the log without any checkpoint: in a log of a file of its own."""
    copy = open_decision_log(path / "copy.db")
    source = open_decision_log(address)
    copy.append([logged.record for logged in pages(source)])
    source.close()
    copy.close()
    whole = open_service(service_file(path / "whole", str(path / "copy.db")), clock=SystemClock(), tell=_ignored)
    try:
        return learnt_bits(whole)
    finally:
        whole.close()


def _ignored(line: str) -> None:
    del line


# ---------------------------------------------------------------------------------------------------------- in process


@dataclass(kw_only=True)
class GatewayGroup:
    """Gateways over one file, of which some are abandoned and replaced by new ones."""

    folder: Path
    clock: SimulatedClock
    address: str
    alive: list[OpenedService] = field(default_factory=list)
    dead: list[OpenedService] = field(default_factory=list)

    def open(self) -> None:
        """One more gateway."""
        path = service_file(self.folder / f"gateway-{len(self.alive) + len(self.dead)}", self.address)
        self.alive.append(open_service(path, clock=self.clock, tell=_ignored))

    def kill(self, place: int) -> None:
        """Leave a gateway as a killed host does, without a word; a new one comes."""
        self.dead.append(self.alive.pop(place))
        self.open()

    def serve(self, world: VisitorWorld, visitors: range, kills: Sequence[int] = ()) -> np.ndarray:
        """Decide for visitors by turns, and tell each reward to another gateway; -> regret of each decision."""
        regret = np.zeros(len(visitors))
        for place, number in enumerate(visitors):
            self.clock.time_s += 0.25
            if number in kills:
                self.kill(number % len(self.alive))
            decided = self.alive[number % len(self.alive)].decide(f"u{number}", world.context(number), id=f"d{number}")
            chances = world.chances(number)
            regret[place] = chances.max() - chances[decided.index]
            other = self.alive[(number + 1) % len(self.alive)]
            other.reward(decided.id, world.reward(number, decided.index), key=f"r{number}")
        return regret

    def close(self) -> None:
        """Close all."""
        for service in (*self.dead, *self.alive):
            service.close()


def in_process(folder: Path, count: int) -> Iterator[AcceptanceLine]:
    """Regret of two gateways with kills beside that of one without, and of two that share nothing."""
    world, kills = VisitorWorld(SEED), np.random.default_rng(SEED).permutation(count)[: count // 250].tolist()
    with cpu_seconds() as cpu:
        pair = _group(folder / "pair", 2)
        shared = pair.serve(world, range(count), kills)
        for _ in range(5):
            pair.clock.time_s += 4.0
            for service in pair.alive:
                service.service.tick()
        leaders = [one for one in pair.alive if _learner(one).lease is not None]
        differs = len(leaders) != 1 or learnt_bits(leaders[0]) != whole_log_bits(folder, pair.address)
        pair.close()
        single = _group(folder / "single", 1)
        alone = single.serve(world, range(count))
        single.close()
        apart = [_group(folder / f"apart-{place}", 1) for place in range(4)]
        size = count // 4
        quarter = np.concatenate(
            [group.serve(world, range(place * size, (place + 1) * size)) for place, group in enumerate(apart)]
        )
        for group in apart:
            group.close()
    words = f"{count} decisions over SQLite, {len(kills)} gateways killed and replaced, learners among them"
    yield AcceptanceLine(
        figure="the learner's state differs from the one of the whole log", value=float(differs), at_most=0.0,
        cpu_s=cpu.spent, words=words,
    )  # fmt: skip
    ratio = shared.mean() / alone.mean()
    yield AcceptanceLine(
        figure="regret of two gateways, times that of one", value=float(ratio), at_most=1.15, words=words
    )
    yield AcceptanceLine(
        figure="regret of gateways that learn from a quarter of the records each, times that of one",
        value=float(quarter.mean() / alone.mean()), at_least=1.15, negative=True, words="four of them, without a kill",
    )  # fmt: skip


def _group(folder: Path, count: int) -> GatewayGroup:
    group = GatewayGroup(folder=folder, clock=SimulatedClock(), address=str(folder / "shared.db"))
    for _ in range(count):
        group.open()
    return group


def _learner(service: OpenedService):  # noqa: ANN202 - `LogLearner`
    learner = service.service.parts.learner
    assert learner is not None
    return learner


# -------------------------------------------------------------------------------------------------------- in processes


@dataclass(kw_only=True)
class ServedGateway:
    """`hone serve FILE` as a process that may be killed and started again; a client of it sends batches."""

    path: Path
    port: int = 0
    process: subprocess.Popen[str] | None = None
    connection: http.client.HTTPConnection | None = None

    def start(self) -> None:
        """Start the process and wait until it serves."""
        command = [sys.executable, "-m", "hone", "serve", str(self.path), "--port", "0"]
        log = (self.path.parent / "stderr").open("a")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=os.environ)
        log.close()
        assert self.process.stdout is not None
        while "serving decisions" not in (line := self.process.stdout.readline()):
            assert line, (self.path.parent / "stderr").read_text()[-2000:]
        self.port = int(line.rsplit(":", 1)[1].split("/")[0])

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End the process by a signal."""
        assert self.process is not None
        self.process.send_signal(number)
        self.process.communicate()
        self.process, self.connection = None, None

    def post(self, path: str, entries: Mapping[str, object]) -> list[dict]:
        """Answers of a batch. Raises OSError and HTTPException if the server dies."""
        if self.process is None:
            raise ConnectionError("killed")
        self.connection = self.connection or http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            self.connection.request("POST", path, json.dumps(entries))
            answer = self.connection.getresponse()
            body = json.loads(answer.read())
        except (OSError, http.client.HTTPException):
            self.connection = None
            raise
        if answer.status != 200:
            raise ConnectionError(f"{answer.status}: {body}")
        return body["answers"]

    def leads(self) -> bool:
        """True if this gateway learns."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request("GET", "/metrics")
            return "\nhone_learner 1\n" in connection.getresponse().read().decode()


@dataclass(kw_only=True)
class LoadResult:
    """What a load on two gateways found."""

    acked: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Action and log-probability by id."""
    rewarded: set[str] = field(default_factory=set)
    regret: list[float] = field(default_factory=list)
    kills: int = 0
    learners_killed: int = 0
    resent: int = 0


def sent(gateways: Sequence[ServedGateway], turn: int, path: str, entries: Mapping[str, object], result: LoadResult):  # noqa: ANN201
    """Send a batch to a gateway and, until one answers, to the others -> its answers."""
    for attempt in range(200):
        try:
            answers = gateways[(turn + attempt) % len(gateways)].post(path, entries)
            faults = [one for one in answers if "error" in one]
            assert not [one for one in faults if one["error"]["code"] != "log_unavailable"], faults
            if not faults:
                return answers
        except (OSError, http.client.HTTPException):
            pass
        result.resent += 1
        time.sleep(0.05)
    raise AssertionError("no gateway answers")


def load(gateways: Sequence[ServedGateway], world: VisitorWorld, count: int, kills: int) -> LoadResult:
    """Decide and reward by turns, while gateways are killed at random moments and started again."""
    result, chance = LoadResult(), np.random.default_rng([SEED, 3])
    moments = set((chance.permutation(count // BATCH - 2)[:kills] + 1).tolist())
    down: tuple[ServedGateway, int] | None = None
    for turn in range(count // BATCH):
        numbers = range(turn * BATCH, (turn + 1) * BATCH)
        if down is not None and turn >= down[1]:
            down[0].start()
            down = None
        if turn in moments and down is None:
            victim = gateways[int(chance.integers(len(gateways)))]
            result.learners_killed += victim.leads()
            victim.kill()
            result.kills += 1
            down = victim, turn + int(chance.integers(5, 60))
        decisions = [{"unit": f"u{n}", "context": world.context(n), "id": f"d{n}"} for n in numbers]
        decided = sent(gateways, turn, "/v1/decide/batch", {"decisions": decisions}, result)
        rewards: list[dict[str, object]] = []
        for number, one in zip(numbers, decided, strict=True):
            result.acked[one["id"]] = one["index"], one["logp"]
            chances = world.chances(number)
            result.regret.append(float(chances.max() - chances[one["index"]]))
            value = world.reward(number, one["index"])
            rewards.append({"id": one["id"], "value": value, "key": f"r{number}"})
        told = sent(gateways, turn + 1, "/v1/reward/batch", {"rewards": rewards}, result)
        result.rewarded |= {one["id"] for one in told}
    if down is not None:
        down[0].start()
    return result


def in_processes(name: str, server: LogServer, count: int) -> Iterator[AcceptanceLine]:
    """Two processes on a server under load, killed at random moments."""
    folder, world = Path(tempfile.mkdtemp(prefix="hone-gateways-")), VisitorWorld(SEED)
    gateways = [ServedGateway(path=service_file(folder / f"g{place}", server.address)) for place in range(2)]
    try:
        for gateway in gateways:
            gateway.start()
        result = load(gateways, world, count, kills=8)
        for gateway in gateways:
            gateway.kill(signal.SIGTERM)
        log = open_decision_log(server.address)
        decisions: dict[str, list[tuple[int, float]]] = {}
        outcomes: dict[str, int] = {}
        for record in (logged.record for logged in pages(log)):
            if isinstance(record, Decision):
                decisions.setdefault(record.id, []).append((record.executed, record.executed_logp))
            elif isinstance(record, Outcome):
                outcomes[record.decision_id] = outcomes.get(record.decision_id, 0) + 1
        log.close()
        last = open_service(gateways[0].path, clock=SystemClock(), tell=_ignored)
        differs = learnt_bits(last) != whole_log_bits(folder, server.address)
        read = _learner(last).records
        last.close()
        single = _group(folder / "single", 1)
        alone = single.serve(world, range(count))
        single.close()
    finally:
        for gateway in gateways:
            if gateway.process is not None:
                gateway.kill()
        shutil.rmtree(folder, ignore_errors=True)
    wrong = sum(decisions.get(one) != [answer] for one, answer in result.acked.items()) + len(decisions) - count
    doubled = sum(outcomes.get(one) != 1 for one in result.rewarded) + len(outcomes) - count
    words = (
        f"{count} decisions and rewards in batches of {BATCH}, {result.kills} kills, {result.learners_killed} of the "
        f"learner, {result.resent} batches sent again"
    )
    lost = f"{name}: answers that the log has not, or otherwise, or twice"
    yield AcceptanceLine(figure=lost, value=wrong, at_most=0.0, words=words)
    yield AcceptanceLine(figure=f"{name}: keyed rewards lost or doubled", value=doubled, at_most=0.0, words=words)
    yield AcceptanceLine(
        figure=f"{name}: the learner's state differs from the one of the whole log", value=float(differs), at_most=0.0,
        words=f"after all restarts; the last start read {read} of {2 * count} records",
    )  # fmt: skip
    yield AcceptanceLine(
        figure=f"{name}: regret of two gateways, times that of one in process", at_most=1.5,
        value=float(np.mean(result.regret) / alone.mean()), words=words,
    )  # fmt: skip
