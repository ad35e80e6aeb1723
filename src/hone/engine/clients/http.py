"""JSON over HTTP: one connection per request, deadlines, and errors that name the address, the status and the reply.

Transport and retries, for all protocols. Only JSON is read; no reply can run code.
"""

import http.client
import json
import os
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from hone.core.config import Config
from hone.core.errors import ConfigError, ResourceError, hide_passwords, variable_name
from hone.core.generation import OnPublish
from hone.core.strict_json import strict_json

Json = Mapping[str, object]
RetryRule = Literal["never", "refused", "always"]
"""Condition for a retry. `refused`: after a transient status (429, 5xx); `always`: also without a reply,
for idempotent requests."""

_AGAIN: Final = frozenset({429, 500, 502, 503, 504})
"""Transient statuses: the same request may succeed later."""
_SHOWN_CHARACTERS: Final = 400
_LONGEST_WAIT_S: Final = 10.0


class ServerError(ResourceError):
    """The server rejected the request, or its reply is invalid."""

    def __init__(self, *messages: str, status: int | None = None, retry_after: str | None = None) -> None:
        super().__init__(*messages)
        self.status = status
        self.retry_after = retry_after
        """The header `Retry-After` of the reply, if it had one."""


class UnreachableError(ServerError):
    """No complete reply: no server, a broken connection, or the deadline."""


class DeadlineError(UnreachableError):
    """No complete reply before the deadline."""


class RequestCancelledError(UnreachableError):
    """The client cancelled the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """Address of a server, with the key's variable and deadlines."""

    url: str
    """`http://host:port`, with a path before the endpoints' own if there is one."""
    api_key_env: str | None = None
    """Environment variable with the key, sent as a bearer token; configs never hold the key."""
    connect_s: float = 10.0
    timeout_s: float = 600.0
    """Longest wait for data of a reply; a server that does not stream sends none until the answer is complete."""
    deadline_s: float | None = None
    """Longest time of one attempt, however slowly its reply arrives; None for no limit."""
    attempts: int = 4
    """Number of attempts of a request that may be repeated."""
    backoff_s: float = 0.25
    """Wait before the second attempt; it doubles each time."""


class HttpClient:
    """Connection to one server, for any number of threads. Opens nothing before the first request."""

    def __init__(self, address: ServerAddress) -> None:
        """Raises ConfigError for an invalid URL, or a missing environment variable."""
        parts = urlsplit(address.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"{hide_passwords(address.url)!r} is not an address of a server; expected http://host:port"
            )
        self.address = address
        self.url = address.url.rstrip("/")
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, parts.port
        self._base = parts.path.rstrip("/")
        self._headers = {"Content-Type": "application/json", "Connection": "close", **_bearer(address)}
        self._open: set[http.client.HTTPConnection] = set()
        self._broken: set[http.client.HTTPConnection] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def get(self, path: str) -> Json:
        """Send a GET and return the reply."""
        return self._call("GET", path, None, "always")

    def post(self, path: str, body: Json | None = None, *, retry: RetryRule) -> Json:
        """Send a request and return the reply's JSON object, `{}` without a body.

        Raises UnreachableError if no complete reply came, ServerError otherwise, after the last attempt.
        """
        return self._call("POST", path, body or {}, retry)

    def status(self, path: str) -> int:
        """Return the status of a GET; 405 means that the path has another method."""
        return self._exchange("GET", path, None)[0]

    def cancel_all(self) -> None:
        """Cancel every running request; their callers get RequestCancelledError. Servers stop working on
        them."""
        with self._lock:
            for connection in self._open:
                self._broken.add(connection)
                _shut(connection.sock)

    def close(self) -> None:
        """Abort running requests, and refuse further ones."""
        self._closed.set()
        self.cancel_all()

    def _call(self, method: Literal["GET", "POST"], path: str, body: Json | None, repeat: RetryRule) -> Json:
        wait, attempt = self.address.backoff_s, 1
        while True:
            try:
                return self._once(method, path, body)
            except ServerError as error:
                if isinstance(error, UnreachableError):
                    worth_it = repeat == "always" and not isinstance(error, RequestCancelledError)
                else:
                    worth_it = repeat != "never" and error.status in _AGAIN
                if attempt >= self.address.attempts or not worth_it or self._closed.is_set():
                    raise
            self._closed.wait(wait)
            wait, attempt = min(2 * wait, _LONGEST_WAIT_S), attempt + 1

    def _once(self, method: Literal["GET", "POST"], path: str, body: Json | None) -> Json:
        status, content, retry_after = self._exchange(method, path, body)
        place = f"{method} {self.url}{path}"
        if status >= 400:
            raise ServerError(f"{place}: status {status}: {_shown(content)}", status=status, retry_after=retry_after)
        if not content.strip():
            return {}
        try:
            reply = strict_json(content)
        except ValueError as error:
            raise ServerError(f"{place}: the reply is not JSON ({error}): {_shown(content)}", status=status) from None
        if not isinstance(reply, dict):
            raise ServerError(f"{place}: the reply is not a JSON object: {_shown(content)}", status=status)
        return reply

    def _exchange(self, method: Literal["GET", "POST"], path: str, body: Json | None) -> tuple[int, bytes, str | None]:
        """Status, body and `Retry-After` of one attempt."""
        place = f"{method} {self.url}{path}"
        if self._closed.is_set():
            raise UnreachableError(f"{place}: this client is closed")
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self.address.connect_s)
        content = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        with self._lock:
            self._open.add(connection)
        deadline = _Deadline(self.address.deadline_s)
        try:
            connection.connect()
            connection.sock.settimeout(self.address.timeout_s)
            deadline.watch(connection.sock)
            connection.request(method, self._base + path, content, self._headers)
            with connection.getresponse() as response:  # it holds the socket; an incomplete reply leaves it open
                reply = response.status, response.read(), response.getheader("Retry-After")
            deadline.check(place)  # a reply without a length ends where the deadline cut it
            return reply
        except (OSError, http.client.HTTPException) as error:
            deadline.check(place)
            raise self._failure(place, connection, error) from None
        finally:
            deadline.end()
            with self._lock:
                self._open.discard(connection)
                self._broken.discard(connection)
            connection.close()

    def _failure(self, place: str, connection: http.client.HTTPConnection, error: Exception) -> UnreachableError:
        if connection in self._broken:
            return RequestCancelledError(f"{place}: cancelled by the client")
        if isinstance(error, TimeoutError):
            connected = connection.sock is not None
            spent_s = self.address.timeout_s if connected else self.address.connect_s
            return DeadlineError(f"{place}: no {'answer' if connected else 'connection'} within {spent_s:g} s")
        if isinstance(error, http.client.IncompleteRead):
            return UnreachableError(f"{place}: the reply was cut off after {len(error.partial)} bytes")
        return UnreachableError(f"{place}: {type(error).__name__}: {error}")


class _Deadline:
    """A time after which a socket is shut down, which wakes the thread that reads from it."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds, self._passed = seconds, threading.Event()
        self._timer: threading.Timer | None = None

    def watch(self, sock: socket.socket) -> None:
        if self._seconds is not None:
            self._timer = threading.Timer(self._seconds, self._expire, (sock,))
            self._timer.daemon = True
            self._timer.start()

    def check(self, place: str) -> None:
        """Raise DeadlineError if the time is over."""
        if self._passed.is_set():
            raise DeadlineError(f"{place}: no complete answer within {self._seconds:g} s") from None

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _expire(self, sock: socket.socket) -> None:
        self._passed.set()
        _shut(sock)


def _bearer(address: ServerAddress) -> dict[str, str]:
    if address.api_key_env is None:
        return {}
    key = os.environ.get(address.api_key_env, "")
    if not key:
        name = variable_name(address.api_key_env)
        raise ConfigError(f"api_key_env = {name}: no such environment variable; set it, or leave api_key_env out")
    return {"Authorization": f"Bearer {key}"}


def _shut(sock: socket.socket | None) -> None:
    """Shut a socket down, which wakes threads that read from it; closing alone would not."""
    try:
        if sock is not None:
            sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it was closed already


def _shown(content: bytes) -> str:
    """Shorten a reply to one line."""
    text = " ".join(content[: 4 * _SHOWN_CHARACTERS].decode("utf-8", errors="replace").split())
    return (text[:_SHOWN_CHARACTERS] + " ...") if len(text) > _SHOWN_CHARACTERS else (text or "(empty)")


# --------------------------------------------------------------------------------------------------------------- config


class ServerEngine(Config):
    """A server in place of the embedded engine; it loads the policy's weights from a folder after every step."""

    kind: Literal["vllm", "sglang"]
    """The server's protocol; `docs/howto/servers.md` describes how to start each."""
    url: str | Annotated[list[str], Field(min_length=1)]
    """`http://host:port`; or a list of addresses, of servers of one kind that share the answers out."""
    api_key_env: str | None = None
    """Environment variable that holds the server's key."""
    weights_folder: str | None = None
    """Folder for the weights. The trainer writes it and the server reads it under the same path (default: a
    temporary folder, for a server on this machine).
    """
    on_publish: OnPublish = "finish"
    """Treatment of unfinished answers when new weights are published."""
    canary_nats: float | None = Field(default=None, gt=0)
    """Mean difference of log-probabilities, relative to 1 + their mean, above which the server's weights count as
    different from the trainer's. By default that of the trainer's dtype; a server in bfloat16 with a float32 trainer
    needs about 0.1.
    """
    timeout_s: float = Field(default=600.0, gt=0)
    """Longest wait for one answer."""
    reconnect_timeout_s: float = Field(default=300.0, ge=0)
    """Seconds to wait for an unreachable server; unfinished answers are then requested again. With several servers the
    others are asked at once, and this is the longest time in which none of them answers."""

    @model_validator(mode="after")
    def _are_different(self) -> "ServerEngine":
        if twice := sorted({url for url in self.urls if self.urls.count(url) > 1}):
            raise ValueError(f"url names {', '.join(twice)} more than once; each server is one address")
        return self

    @property
    def urls(self) -> list[str]:
        """All addresses, without a slash at the end."""
        return [url.rstrip("/") for url in ([self.url] if isinstance(self.url, str) else self.url)]

    def address(self, url: str) -> ServerAddress:
        """One address with the key's variable and deadlines."""
        return ServerAddress(url=url, api_key_env=self.api_key_env, timeout_s=self.timeout_s)

    def derive(self) -> dict[str, str]:
        """Places where answers are generated, for `hone plan`."""
        urls = self.urls
        shown = urls if len(urls) < 5 else [*urls[:3], "...", urls[-1]]
        return {
            "servers" if len(urls) > 1 else "server": f"{self.kind} at {', '.join(shown)}",
            "weights": f"to {'each server' if len(urls) > 1 else 'the server'} through "
            + (self.weights_folder or "a temporary folder of this machine"),
        }
