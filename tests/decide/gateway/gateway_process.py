"""A server process of a service file, and a client that sends again until it is answered."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass
class GatewayProcess:
    """`hone serve FILE` as a process."""

    process: subprocess.Popen[str]
    port: int

    def kill(self) -> None:
        """kill -9."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def post(self, path: str, value: object, headers: dict[str, str] | None = None) -> tuple[int, dict]:
        """One request on a connection of its own. Raises OSError and HTTPException where the server dies."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        with contextlib.closing(connection):
            connection.request("POST", path, json.dumps(value), headers or {})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())


@contextlib.contextmanager
def serving(path: Path, options: Sequence[str] = ()) -> Iterator[GatewayProcess]:
    """A server of a file, on a free port; killed at the end if it still runs."""
    command = [sys.executable, "-m", "hone", "serve", str(path), "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ)
    try:
        assert process.stdout is not None
        lines: list[str] = []
        while not (lines and "serving decisions" in lines[-1]):
            lines.append(process.stdout.readline())
            assert lines[-1], "".join(lines)
        yield GatewayProcess(process, int(lines[-1].rsplit(":", 1)[1].split("/")[0]))
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def send_until_killed(server: GatewayProcess, first: int, acked: dict[str, tuple[str, float]]) -> int:
    """Decide and reward, each with a key of its own, until the server is gone; -> the next number.

    `acked` gets what was answered: action and log-probability by id.
    """
    number = first
    with contextlib.suppress(OSError, http.client.HTTPException):
        while True:
            name = f"d{number}"
            body = {"unit": f"u{number}", "context": {"age": 0.25, "country": "de"}, "id": name}
            status, decided = server.post("/v1/decide", body)
            assert status == 200
            before = acked.setdefault(name, (decided["action"], decided["logp"]))
            assert before == (decided["action"], decided["logp"])
            reward = {"id": name, "value": 1.0, "source": "client", "seq": number, "at_s": 1.0 + number}
            status, told = server.post("/v1/reward", reward)
            assert status == 200, told
            acked[f"reward {name}"] = ("", 1.0)
            number += 1
    return number
