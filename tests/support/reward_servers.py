"""A reward server in a thread of the test."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

Reply = tuple[int, object]
"""Status and JSON body."""


@dataclass
class ServedRewards:
    """Address of a server, and the requests that it got."""

    url: str = ""
    requests: list[Mapping[str, Any]] = field(default_factory=list)


@contextmanager
def served_rewards(answer: Callable[[Mapping[str, Any]], Reply]) -> Iterator[ServedRewards]:
    """Replies to each POST with `answer` of its JSON."""
    served = ServedRewards()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            served.requests.append({**body, "path": self.path})
            status, reply = answer(body)
            content = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_address[1]}/score"
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
