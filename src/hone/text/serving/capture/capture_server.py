"""The server of captured sessions: its own thread in the process that trains."""

import socket
import threading
from dataclasses import dataclass, field

import uvicorn
from starlette.applications import Starlette

from hone.core.errors import ResourceError

_STARTING_S = 20.0


@dataclass(eq=False)
class CaptureServer:
    """Serves an application on a loopback address from `start` to `close`."""

    host: str
    port: int
    """0: any free one."""
    _thread: threading.Thread | None = None
    _server: uvicorn.Server | None = None
    _socket: socket.socket | None = field(default=None, repr=False)

    def bind(self) -> str:
        """Take the address, and return it as a URL. Raises ResourceError if something else has it."""
        bound = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((self.host, self.port))
        except OSError as error:
            bound.close()
            raise ResourceError(
                f"cannot listen at {self.host}:{self.port}: {error.strerror}; end what listens there, or give another "
                "port (0: any free one)"
            ) from None
        self._socket = bound
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{name}:{bound.getsockname()[1]}"

    def start(self, app: Starlette) -> None:
        """Serve `app` at the address. Raises ResourceError if the server does not come up."""
        assert self._socket is not None, "bind the address first"
        config = uvicorn.Config(app, log_level="error", access_log=False, lifespan="off", timeout_graceful_shutdown=2)
        server = uvicorn.Server(config)
        self._server = server
        self._thread = threading.Thread(target=server.run, args=([self._socket],), daemon=True, name="hone-capture")
        self._thread.start()
        pause = threading.Event()
        for _ in range(int(_STARTING_S / 0.01)):
            if server.started or not self._thread.is_alive():
                break
            pause.wait(0.01)
        if not server.started:
            raise ResourceError(f"the server at {self.host}:{self.port} did not start in {_STARTING_S:g} s")

    def close(self) -> None:
        """End the server and its thread, and give the address back."""
        if self._server is not None:
            self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(_STARTING_S)
        if self._socket is not None:
            self._socket.close()
        self._server = self._thread = self._socket = None
