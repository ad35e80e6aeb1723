"""Load on a server of decisions: raw sockets, which cost little beside the server, and a flood."""

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from gateway_client import CLIENT, read_answer, request

from hone.decide.gateway.access import token_digest

SHOP = """
[service]
features = ["x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7"]
actions = ["a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9"]

[policy]
kind = "linucb"

[join]
rule = "first"
"""
FLOOD_CONNECTIONS = 64
FLOOD_SERVICE = f"""
[service]
features = ["x0"]
actions = ["a", "b"]
tenants = ["loud", "calm"]
limit = {{ per_s = 50, burst = 10 }}

[[service.clients]]
name = "loud"
tenant = "loud"
token_sha256 = "{token_digest("loud")}"

[[service.clients]]
name = "calm"
tenant = "calm"
token_sha256 = "{token_digest("calm")}"
"""


class ServedProcess:
    """`hone serve FILE` as a process, for a `with` block."""

    def __init__(self, path: Path) -> None:
        self._command = [sys.executable, "-m", "hone", "serve", str(path), "--port", "0"]
        self.port = 0

    def __enter__(self) -> "ServedProcess":
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self.port = int(line.rsplit(":", 1)[1].split("/")[0])
        # Log lines must not fill the pipe.
        self._reader = threading.Thread(target=self._process.stdout.read, daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(30)
        self._reader.join(30)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def cpu_s(self) -> float:
        """Processor seconds of the server so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def connect(self) -> socket.socket:
        """A connection."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


@dataclass(frozen=True, kw_only=True)
class LoadResult:
    """Load of one kind."""

    cpu_s: float
    """Processor seconds of the server, a decision."""
    waits_s: list[float]
    """Seconds from the request's first byte to the answer's last."""


@dataclass(frozen=True, kw_only=True)
class FloodResult:
    """One tenant's waits, alone and beside a flood, and the server's work under the flood."""

    quiet_p99_s: float
    flooded_p99_s: float
    decided_per_s: float
    """Decisions that the flooding tenant got, a second; the others of its requests were refused."""


def load(server: ServedProcess, count: int, *, connections: int) -> LoadResult:
    """`count` decisions over some connections, each of which waits for its answer."""
    sockets = [server.connect() for _ in range(connections)]
    waits: list[float] = []
    cpu_s = server.cpu_s()
    for number in range(count // connections):
        sent = [request(f"u{number * connections + place}", [0.1 * place] * 8) for place in range(connections)]
        began = time.perf_counter()
        for connection, one in zip(sockets, sent, strict=True):
            connection.sendall(one)
        for connection in sockets:
            assert b" 200 " in read_answer(connection).splitlines()[0]
        waits.append(time.perf_counter() - began)
    spent = server.cpu_s() - cpu_s
    for connection in sockets:
        connection.close()
    return LoadResult(cpu_s=spent / (count // connections * connections), waits_s=waits)


class _CalmTenant:
    """A tenant that asks 25 times a second, in a process of its own: no other client's work delays it."""

    def __init__(self, server: ServedProcess, seconds: float) -> None:
        command = [sys.executable, str(CLIENT), str(server.port), str(seconds)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._process.stdout.readline()  # it is about to ask

    def p99_s(self) -> float:
        """The 99th percentile of its waits, once it has ended."""
        told, _ = self._process.communicate(timeout=120)
        waits = sorted(json.loads(told))
        return waits[int(0.99 * (len(waits) - 1))]


def flood(server: ServedProcess, seconds: float) -> FloodResult:
    """A calm tenant alone, then beside one that sends over 64 connections as fast as it is answered."""
    quiet_s = _CalmTenant(server, seconds).p99_s()
    beside = _CalmTenant(server, seconds)
    began = time.monotonic()
    decided = _send_as_fast_as_answered(server, seconds)
    spent_s = time.monotonic() - began
    return FloodResult(quiet_p99_s=quiet_s, flooded_p99_s=beside.p99_s(), decided_per_s=decided / spent_s)


def _send_as_fast_as_answered(server: ServedProcess, seconds: float) -> int:
    """Requests that were decided."""
    sent, decided = request("u", [0.5], "loud"), 0
    with selectors.DefaultSelector() as selector:
        for _ in range(FLOOD_CONNECTIONS):
            connection = server.connect()
            connection.sendall(sent)
            selector.register(connection, selectors.EVENT_READ)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for ready, _ in selector.select(0.05):
                connection = ready.fileobj
                assert isinstance(connection, socket.socket)
                decided += b" 200 " in read_answer(connection).splitlines()[0]
                connection.sendall(sent)
        for ready in list(selector.get_map().values()):
            assert isinstance(ready.fileobj, socket.socket)
            ready.fileobj.close()
    return decided
