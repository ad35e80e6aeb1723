"""Requests of a server: errors with the shape of OpenAI's, keys, the share of each client, and bodies, which are read
and prepared beside the event loop."""

import asyncio
import hmac
import math
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from starlette.requests import ClientDisconnect, Request

from hone.core.errors import ConfigError, DataError, DivergedError, HoneError

# ----------------------------------------------------------------------------------------------------------- api errors

_MESSAGE_CHARACTERS = 2000
_KINDS = {401: "authentication_error", 404: "not_found_error", 408: "timeout_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """A request that is not answered: status, message, the field at fault, and a code for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        if len(message) > _MESSAGE_CHARACTERS:  # a client may send back to itself what it likes, but not for long
            message = f"{message[:_MESSAGE_CHARACTERS]} ... ({len(message)} characters)"
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    @property
    def kind(self) -> str:
        """The `type` of OpenAI's errors."""
        return _KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")

    def body(self) -> dict[str, Any]:
        """`{"error": {"message", "type", "param", "code"}}`."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    @classmethod
    def unsupported(cls, param: str, message: str) -> "ApiError":
        """An error for a field that this server knows and does not have."""
        return cls(400, message, param=param, code="unsupported")

    @classmethod
    def of(cls, error: Exception) -> "ApiError":
        """The error of HTTP for a failure: faults of the request are 400, the model's and the server's 500."""
        if isinstance(error, cls):
            return error
        if isinstance(error, DivergedError):
            return cls(500, str(error), code="model_diverged")
        if isinstance(error, ConfigError | DataError):
            return cls(400, str(error), code="invalid_value")
        if isinstance(error, HoneError):
            return cls(503, str(error), code="unavailable")
        return cls(500, f"the server failed: {type(error).__name__}: {error}", code="internal_error")


# ------------------------------------------------------------------------------------------------------------- keys

_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


def require_key(host: str, key: str) -> None:
    """Raise ConfigError for an address that other machines reach, without a key."""
    if host not in _LOOPBACK and not key:
        raise ConfigError(
            f"--host {host} is reached from other machines: give --api-key-file, or the environment variable "
            "HONE_API_KEY"
        )


def read_key(file: Path) -> str:
    """The key in a file, without space at its ends. Raises ConfigError, which does not show it."""
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--api-key-file {file}: cannot be read: {type(error).__name__}") from None
    if not key:
        raise ConfigError(f"--api-key-file {file} is empty: write the key into it")
    return key


def check_key(call: Request, wanted: str) -> None:
    """Raise ApiError (401) for a request without the bearer token that is wanted; empty: none is."""
    kind, _, key = call.headers.get("authorization", "").partition(" ")
    if wanted and not (kind.lower() == "bearer" and hmac.compare_digest(key.encode(), wanted.encode())):
        raise ApiError(401, "this server wants its key as a bearer token", code="invalid_api_key")


# ----------------------------------------------------------------------------------------------------------- limits

CLOSED: Final = 499
"""Status that is counted for a client that went away."""
MOST_BODY_BYTES: Final = 4 << 20
BODY_S: Final = 30.0
BODIES: Final = 16
"""Bodies of the largest size that are held at the same time."""
LONG_BODY: Final = 64 << 10
"""Bytes from which on a body is prepared behind others of its kind."""
ResultT = TypeVar("ResultT")


@dataclass(slots=True, eq=False)
class ClientShares:
    """An amount that clients share: at most `most` in all and `share` for each, so that one client never takes it all.

    Where nothing is taken anything is granted: what is larger than a limit is served alone. Pure.
    """

    most: int
    share: int
    used: Counter[str] = field(default_factory=Counter[str])

    def take(self, client: str, amount: int) -> str:
        """Take an amount; empty if it was granted, else why nothing was taken."""
        total, own = self.used.total(), self.used[client]
        if total and total + amount > self.most:
            return f"{total} of {self.most} are in use"
        if own and own + amount > self.share:
            return f"this client has {own} in use, of {self.share} at most for one client"
        self.used[client] += amount
        return ""

    def give_back(self, client: str, amount: int) -> None:
        """Return an amount that was taken."""
        self.used[client] -= amount
        if self.used[client] <= 0:
            del self.used[client]


def client_of(call: Request) -> str:
    """Address of a client, which its limits go by."""
    return "" if call.client is None else call.client.host


@dataclass(slots=True, eq=False, kw_only=True)
class BodyReader:
    """Reads bodies, and prepares them on threads of its own, so that the event loop answers everybody meanwhile.

    There is a thread for short bodies and one for long ones: a short request never waits for a long one. Bytes of
    bodies are held from their arrival until they are prepared, and bounded in all and for each client.
    """

    most_bytes: int
    """Longest body."""
    within_s: float
    """Seconds for a body to arrive."""
    held: ClientShares = field(init=False)
    _short: ThreadPoolExecutor = field(init=False)
    _long: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        self.held = ClientShares(most=BODIES * self.most_bytes, share=BODIES * self.most_bytes // 2)
        self._short = ThreadPoolExecutor(1, "hone-serve-short")
        self._long = ThreadPoolExecutor(1, "hone-serve-long")

    async def prepared(self, call: Request, prepare: Callable[[bytes], ResultT]) -> ResultT:
        """What `prepare` makes of the body. Raises ApiError (408, 413, 429, 499), and what `prepare` raises."""
        client, body = client_of(call), bytearray()
        length = call.headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > self.most_bytes:
            raise ApiError(413, f"the body has {length[:20]} bytes, at most {self.most_bytes}", code="too_large")
        try:
            async with asyncio.timeout(self.within_s):
                async for piece in call.stream():
                    self._take(client, body, piece)
            return await self.beside(len(body), lambda: prepare(bytes(body)))
        except TimeoutError:
            message = f"the body did not arrive within {self.within_s:g} s; {len(body)} bytes came"
            raise ApiError(408, message, code="slow_body", headers={"Connection": "close"}) from None
        except ClientDisconnect:
            raise ApiError(CLOSED, "the client closed its connection") from None
        finally:
            self.held.give_back(client, len(body))

    def _take(self, client: str, body: bytearray, piece: bytes) -> None:
        """Add a piece to a body. Raises ApiError where that is more than is held."""
        if len(body) + len(piece) > self.most_bytes:
            raise ApiError(413, f"the body has more than {self.most_bytes} bytes", code="too_large")
        if refused := self.held.take(client, len(piece)):
            message = f"too many bytes of bodies wait: {refused}; retry in 1 s"
            raise ApiError(429, message, code="overloaded", headers={"Retry-After": "1"})
        body += piece

    async def beside(self, size: int, work: Callable[[], ResultT]) -> ResultT:
        """The result of a piece of work, on the thread for its size."""
        threads = self._long if size >= LONG_BODY else self._short
        return await asyncio.get_running_loop().run_in_executor(threads, work)


# ------------------------------------------------------------------------------------------------------------ refusals


@dataclass(slots=True)
class RefusalDelays:
    """Seconds for which a client's next refusal is held back: none for the first `free` in about `fade_s`, then more
    with each, so that a client that sends what nobody can answer has little of the server's time. No clock, no I/O."""

    free: int = 50
    fade_s: float = 10.0
    step_s: float = 0.02
    most_s: float = 2.0
    most_clients: int = 10_000
    _recent: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    """By client: refusals, each worth e^(-age / fade_s), and when the last one was."""

    def delay_s(self, client: str, now_s: float) -> float:
        """Count a refusal."""
        count, last_s = self._recent.pop(client, (0.0, now_s))
        count = count * math.exp(-max(0.0, now_s - last_s) / self.fade_s) + 1.0
        self._recent[client] = count, now_s
        if len(self._recent) > self.most_clients:  # the one that was refused longest ago
            del self._recent[next(iter(self._recent))]
        return min(self.most_s, self.step_s * max(0.0, count - self.free))
