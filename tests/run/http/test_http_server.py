"""Connections whose requests do not arrive, signals, and what the system does for peers that are gone."""

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hone.run.http import server as server_module
from hone.run.http.listening import listening, signals_end_quietly
from hone.run.http.server import MOST_HEAD_BYTES, RunningServer, ServerEvents, TimedConnection


class HurriedConnection(TimedConnection):
    head_s = 0.1


async def answer(call: Request) -> PlainTextResponse:
    return PlainTextResponse(f"{len(await call.body())} bytes")


async def refuse(call: Request) -> PlainTextResponse:
    return PlainTextResponse("no", 413)


APP = Starlette(routes=[Route("/", answer, methods=["GET", "POST"]), Route("/no", refuse, methods=["POST"])])


@pytest.fixture(params=[H11Protocol, HttpToolsProtocol])
def port(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A server that gives a head a tenth of a second, over each of uvicorn's protocols."""
    monkeypatch.setattr(server_module, "AutoHTTPProtocol", request.param)
    config = uvicorn.Config(APP, http=HurriedConnection, ws="none", lifespan="off", log_level="critical")
    running = uvicorn.Server(config)
    with listening("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
        thread.start()
        yield listener.getsockname()[1]
        running.should_exit = True
        thread.join()


def until_closed(link: socket.socket) -> bytes:
    received = b""
    while piece := link.recv(4096):
        received += piece
    return received


def until(link: socket.socket, end: bytes) -> bytes:
    received = b""
    while not received.endswith(end):
        received += link.recv(4096)
    return received


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", b""),
        (b"GET / HT", b"HTTP/1.1 408"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n", b"HTTP/1.1 408"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * MOST_HEAD_BYTES, b"HTTP/1.1 4"),
    ],
)
def test_a_head_that_does_not_arrive_ends_its_connection(port: int, sent: bytes, status: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.sendall(sent)
        assert until_closed(link).startswith(status)


def test_one_byte_at_a_time_is_no_way_to_hold_a_connection(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.settimeout(0.02)
        received = b""
        for byte in b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-Header: more\r\n" * 1000:
            try:
                link.sendall(bytes([byte]))
                received += link.recv(100)
                break
            except TimeoutError:
                continue
        assert received.startswith(b"HTTP/1.1 408")


def test_a_request_may_take_its_time_once_its_head_is_there_and_the_next_one_is_watched(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nab")
        time.sleep(0.25)  # longer than a head may take
        link.sendall(b"cd")
        assert until(link, b"4 bytes").startswith(b"HTTP/1.1 200")
        link.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert until(link, b"0 bytes").startswith(b"HTTP/1.1 200")
        link.sendall(b"GET / HTTP")
        assert until_closed(link).startswith(b"HTTP/1.1 408")


def test_the_body_of_a_refused_request_is_read_away_for_a_while_only(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.sendall(b"POST /no HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n" + b"a" * 100)
        assert until(link, b"no").startswith(b"HTTP/1.1 413")
        link.sendall(b"a" * (2 * MOST_HEAD_BYTES))
        until_closed(link)


def test_sighup_reloads_and_a_tick_comes_and_sigterm_ends() -> None:
    reloaded, stopped, ticked = [], [], threading.Event()

    def reload() -> None:
        reloaded.append(threading.current_thread() is not threading.main_thread())
        if len(reloaded) == 2:
            ticked.wait(300)
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            os.kill(os.getpid(), signal.SIGHUP)

    before = signal.getsignal(signal.SIGHUP)
    config = uvicorn.Config(APP, http=TimedConnection, ws="none", lifespan="off", log_level="critical")
    events = ServerEvents(stop=lambda: stopped.append(True), reload=reload, tick=ticked.set)
    with listening("127.0.0.1", 0) as listener, signals_end_quietly() as signals:
        signal.raise_signal(signal.SIGHUP)  # before the server runs
        assert signals.reload and not signals.seen
        RunningServer(config, events, signals).run(sockets=[listener])
    assert reloaded == [True, True] and stopped == [True]
    assert signal.getsignal(signal.SIGHUP) is before


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux names these")
def test_accepted_connections_notice_a_peer_that_is_gone() -> None:
    with listening("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
