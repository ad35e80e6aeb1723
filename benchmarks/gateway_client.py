"""A client of a server of decisions, of the standard library alone: its process starts at once.

python benchmarks/gateway_client.py PORT SECONDS    asks 25 times a second; prints the waits as JSON
"""

import json
import socket
import sys
import time
from pathlib import Path

CLIENT = Path(__file__)


def request(unit: str, context: list[float], token: str = "") -> bytes:
    """A decision request, as bytes."""
    body = json.dumps({"unit": unit, "context": context}).encode()
    authorization = f"Authorization: Bearer {token}\r\n" if token else ""
    head = f"POST /v1/decide HTTP/1.1\r\nHost: x\r\n{authorization}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def read_answer(connection: socket.socket) -> bytes:
    """One answer."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, rest = data.partition(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
    )
    while len(rest) < length:
        rest += connection.recv(65536)
    return head


def calm_waits(port: int, seconds: float) -> list[float]:
    """Seconds until the answer, of a tenant that asks 25 times a second."""
    waits: list[float] = []
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.perf_counter()
            connection.sendall(request("u", [0.5], "calm"))
            assert b" 200 " in read_answer(connection).splitlines()[0]
            waits.append(time.perf_counter() - began)
            time.sleep(0.04)
    return waits


if __name__ == "__main__":
    print("ready", flush=True)
    print(json.dumps(calm_waits(int(sys.argv[1]), float(sys.argv[2]))))
