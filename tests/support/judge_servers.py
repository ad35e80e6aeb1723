"""An OpenAI-compatible server in threads of the test, which grades by a function of the test and fails when told to."""

import json
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from hone.rewards.judges.questions import unescape

Body = Mapping[str, Any]


WRONG = {
    "html": b"<html>a proxy</html>",
    "no choices": b'{"choices": []}',
    "no text": b'{"choices": [{"message": {"content": null}}]}',
}
"""Replies that are none."""


@dataclass
class JudgeServer:
    """Address of a server, its requests, and the faults of its next replies."""

    reply: Callable[[Body], str]
    """Body of a request -> text of the reply."""
    url: str = ""
    models: tuple[str, ...] = ("wise",)
    requests: list[Body] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    faults: deque[str] = field(default_factory=deque)
    """`status 500`, `status 429 after 1`, `hang`, `drop`, `cut`, `drip`, `html`, `no choices`, `no text`; "": none."""
    knows_response_format: bool = True
    usage: bool = True
    running: int = 0
    most_running: int = 0
    delay_s: float = 0.0
    release: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)


def material(body: Body) -> dict[str, str]:
    """The fenced parts of a question, as the judge should read them."""
    question = body["messages"][-1]["content"]
    found = re.findall(r"<<<([\w ]+) ([0-9a-f]{16})\n(.*?)\n\1 \2>>>", question, re.DOTALL)
    return {name: unescape(text) for name, _, text in found}


def completion(text: str, *, usage: bool = True, finish_reason: str = "stop") -> dict[str, Any]:
    """A reply of OpenAI's protocol."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish_reason}
    counts = {"usage": {"prompt_tokens": 100, "completion_tokens": 10}} if usage else {}
    return {"choices": [choice], **counts}


class JudgeHandler(BaseHTTPRequestHandler):
    """Requests to the server `judge`, an attribute of a subclass."""

    judge: ClassVar[JudgeServer]

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        known = self.path == "/v1/models" and self.judge.models
        self.send(200 if known else 404, {"data": [{"id": name} for name in self.judge.models]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.judge.lock:
            self.judge.requests.append({**body, "path": self.path, "key": self.headers.get("Authorization")})
            self.judge.times.append(time.monotonic())
            self.judge.running += 1
            self.judge.most_running = max(self.judge.most_running, self.judge.running)
            fault = self.judge.faults.popleft() if self.judge.faults else ""
        time.sleep(self.judge.delay_s)
        with self.judge.lock:  # before the answer, which lets a client ask the next
            self.judge.running -= 1
        with suppress(BrokenPipeError, ConnectionResetError):
            self.answer(body, fault)

    def answer(self, body: Body, fault: str) -> None:
        if "response_format" in body and not self.judge.knows_response_format:
            self.send(400, {"error": "response_format is not supported"})
        elif fault.startswith("status"):
            _, status, *wait = fault.split()
            self.send(int(status), {"error": "try later"}, retry_after=wait[-1] if wait else "")
        elif fault == "hang":
            self.judge.release.wait(600)
        elif fault in WRONG:
            self.send_bytes(WRONG[fault])
        elif fault != "drop":
            reply = completion(self.judge.reply(body), usage=self.judge.usage)
            self.send_bytes(json.dumps(reply).encode(), fault)

    def send(self, status: int, reply: object, *, retry_after: str = "") -> None:
        self.send_bytes(json.dumps(reply).encode(), status=status, retry_after=retry_after)

    def send_bytes(self, content: bytes, how: str = "", *, status: int = 200, retry_after: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        if retry_after:
            self.send_header("Retry-After", retry_after)
        self.end_headers()
        if how == "drip":
            for byte in content:
                self.wfile.write(bytes([byte]))
                self.wfile.flush()
                if self.judge.release.wait(0.02):
                    return
        self.wfile.write(content[: len(content) // 2] if how == "cut" else content)


@contextmanager
def judge_server(reply: Callable[[Body], str], **settings: Any) -> Iterator[JudgeServer]:
    """A server whose replies are `reply(body)`."""
    server = JudgeServer(reply, **settings)
    http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (JudgeHandler,), {"judge": server}))
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    server.url = f"http://127.0.0.1:{http.server_address[1]}"
    try:
        yield server
    finally:
        server.release.set()
        http.shutdown()
        thread.join()
        http.server_close()
