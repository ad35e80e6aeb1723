"""A server in this process that speaks the part of Redis' protocol that the feature store uses; it can be slow."""

import json
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from hone.decide.gateway.redis_features import PUT

GREETINGS = frozenset({"HELLO", "CLIENT", "SELECT"})


@dataclass
class RespServer:
    """Hashes over TCP; `wait_s` is the time before each answer."""

    port: int = 0
    wait_s: float = 0.0
    hashes: dict[str, dict[str, str]] = field(default_factory=dict)
    trips: list[list[str]] = field(default_factory=list)
    """Names of the commands that arrived together, but for greetings."""

    @property
    def address(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def answer(self, words: list[str]) -> str:
        match words[0].upper():
            case "HELLO":
                return "%2\r\n+server\r\n+redis\r\n+proto\r\n:3\r\n"
            case "CLIENT" | "SELECT":
                return "+OK\r\n"
            case "HMGET":
                held = self.hashes.get(words[1], {})
                values = [held.get(one) for one in words[2:]]
                return f"*{len(values)}\r\n" + "".join(map(bulk, values))
            case "HSET":
                self.hashes.setdefault(words[1], {}).update(zip(words[2::2], words[3::2], strict=True))
                return ":1\r\n"
            case "HLEN":
                return f":{len(self.hashes.get(words[1], {}))}\r\n"
            case "DEL":
                return f":{int(self.hashes.pop(words[1], None) is not None)}\r\n"
            case "EVAL" if words[1] == PUT:
                self.put(words[3], float(words[4]), words[5:])
                return "_\r\n"
            case name:
                return f"-ERR no {name} here\r\n"

    def put(self, key: str, at_s: float, fields: list[str]) -> None:
        held = self.hashes.setdefault(key, {})
        for name, value in zip(fields[::2], fields[1::2], strict=True):
            try:
                replaced = not json.loads(held[name])[1] > at_s
            except (KeyError, ValueError, TypeError, IndexError):
                replaced = True
            if replaced and value:
                held[name] = value
            elif replaced:
                held.pop(name, None)

    def talk(self, connection: socket.socket) -> None:
        """Answer until the client goes away: commands that arrived together, together."""
        data = b""
        while piece := connection.recv(1 << 16):
            commands, data = read_commands(data + piece)
            answers = "".join(map(self.answer, commands)).encode()
            names = [words[0].upper() for words in commands]
            if names and not GREETINGS.intersection(names):
                self.trips.append(names)
                time.sleep(self.wait_s)
            connection.sendall(answers)


def read_commands(data: bytes) -> tuple[list[list[str]], bytes]:
    """The whole commands at the beginning of `data`, and the rest."""
    commands: list[list[str]] = []
    while True:
        head, end, rest = data.partition(b"\r\n")
        words: list[str] = []
        for _ in range(int(head[1:]) if end else 0):
            size, end, rest = rest.partition(b"\r\n")
            if not end or len(rest) < int(size[1:]) + 2:
                return commands, data
            words.append(rest[: int(size[1:])].decode())
            rest = rest[int(size[1:]) + 2 :]
        if not words:
            return commands, data
        commands.append(words)
        data = rest


def bulk(value: str | None) -> str:
    return "_\r\n" if value is None else f"${len(value.encode())}\r\n{value}\r\n"


@contextmanager
def resp_server(state: RespServer | None = None) -> Iterator[RespServer]:
    """A server that runs within the block; with the state of an earlier one, that server started again."""
    held, connections = state or RespServer(), set[socket.socket]()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            connections.add(self.request)
            with suppress(OSError):
                held.talk(self.request)

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

    with Server(("127.0.0.1", held.port), Handler) as server:
        held.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield held
        finally:
            server.shutdown()
            thread.join()
            hang_up(connections)


def hang_up(connections: set[socket.socket]) -> None:
    for connection in connections:
        with suppress(OSError):  # it may be closed already
            connection.shutdown(socket.SHUT_RDWR)
