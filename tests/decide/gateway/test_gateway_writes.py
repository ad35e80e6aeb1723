"""The connection of a server: one write an answer; a signal before the server handles signals."""

import asyncio
import signal

import uvicorn
from gateway_parts import make_box

from hone.decide.gateway.http_app import GatewayRoutes, RequestBatcher
from hone.decide.gateway.run_service import JoinedWrites
from hone.run.http.listening import listening, signals_end_quietly
from hone.run.http.server import RunningServer, ServerEvents

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"


class RecordedTransport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


def test_the_head_of_an_answer_waits_for_its_body_or_the_end() -> None:
    inner = RecordedTransport()
    joined = JoinedWrites(inner)
    joined.write(HEAD)
    assert inner.written == []
    joined.write(b"{}\r\n")
    joined.write(b"HTTP/1.1 100 Continue\r\n\r\n")  # another head comes after it
    joined.write(HEAD)
    joined.write(b"")
    joined.write(b"0\r\n\r\n")  # end of a body in pieces
    assert inner.written == [HEAD + b"{}\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", HEAD, b"0\r\n\r\n"]
    joined.write(HEAD)
    joined.close()
    assert inner.written[-1] == HEAD and inner.closed
    joined.close()
    assert inner.written.count(HEAD) == 2


def test_a_signal_before_the_server_handles_signals_ends_it() -> None:
    box = make_box()
    routes = GatewayRoutes(service=box.service, batcher=RequestBatcher(box.service, apart=False))
    config = uvicorn.Config(routes.app(), lifespan="off", log_level="warning", access_log=False)
    with listening("127.0.0.1", 0) as listener, signals_end_quietly() as signals:
        signal.raise_signal(signal.SIGTERM)
        events = ServerEvents(stop=routes.drain, reload=lambda: None, tick=box.service.tick)
        RunningServer(config, events, signals).run(sockets=[listener])
