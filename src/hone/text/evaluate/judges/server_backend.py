"""A judge behind a server that speaks OpenAI's protocol: concurrency, deadlines, and attempts with waits."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from hone.core.episodes import ScoreStatus
from hone.core.errors import ConfigError, ResourceError, did_you_mean
from hone.engine.clients.http import (
    DeadlineError,
    HttpClient,
    Json,
    RequestCancelledError,
    ServerAddress,
    ServerError,
    UnreachableError,
)
from hone.engine.clients.openai import OpenAiClient
from hone.engine.clients.wire import json_object, list_field
from hone.rewards.judges.config import JudgeServer
from hone.rewards.judges.requests import JudgeReply, JudgeRequest
from hone.rewards.judges.retries import parse_retry_after, wait_before_retry_s
from hone.rewards.judges.verdicts import json_schema
from hone.text.evaluate.judges.client import JudgeFault, JudgeLedger

_AGAIN: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""Statuses after which the same request may succeed."""
_NO_FORMAT: Final = frozenset({400, 422})
"""Statuses of servers that do not know `response_format`."""
_PATH: Final = "/v1/chat/completions"
_CHECK_S: Final = 10.0


class JudgeServerBackend:
    """Replies of a server, in threads. Opens nothing before the first request."""

    def __init__(self, name: str, config: JudgeServer, ledger: JudgeLedger) -> None:
        """Raises ConfigError as `HttpClient`."""
        self._name, self._config, self._ledger = name, config, ledger
        self._client = self._connect(config.deadline_s)
        self._threads = ThreadPoolExecutor(config.max_concurrent, thread_name_prefix=f"judge-{name}")
        self._closed = threading.Event()
        self._formats = config.response_format == "auto"
        self._hold_until_s = 0.0
        """Time before which the server wants no request, from `Retry-After`."""

    @property
    def model(self) -> str:
        return self._config.model

    def check(self) -> list[str]:
        """Ask for the served models. Raises ResourceError for a server that is not there, ConfigError for a model that
        it does not serve."""
        client = self._connect(min(_CHECK_S, self._config.deadline_s))
        place = f"judge {self._name!r} ({client.url})"
        try:
            names = OpenAiClient(client, model=self.model).models()
        except UnreachableError as error:
            raise ResourceError(f"{place} cannot be reached: {error}; start the server, or correct `by.url`") from None
        except ServerError as error:
            if error.status not in (404, 405, 501):
                raise ResourceError(f"{place}: {error}") from None
            return [f"{place} lists no models, so that the name {self.model!r} is not checked"]
        finally:
            client.close()
        if self.model not in names:
            raise ConfigError(f"{place} does not serve by.model = {self.model!r}{did_you_mean(self.model, names)}")
        return []

    def submit(self, request: JudgeRequest, key: str) -> "Future[JudgeReply]":
        return self._threads.submit(self._reply, request, key)

    def run(self) -> None:
        """Threads are at work already."""

    def close(self) -> None:
        self._closed.set()
        self._client.close()
        self._threads.shutdown(cancel_futures=True)

    def _connect(self, deadline_s: float) -> HttpClient:
        config = self._config
        return HttpClient(
            ServerAddress(
                url=config.url.rstrip("/").removesuffix("/v1"),
                api_key_env=config.api_key_env,
                connect_s=min(_CHECK_S, deadline_s),
                timeout_s=deadline_s,
                deadline_s=deadline_s,
                attempts=1,
            )
        )

    def _reply(self, request: JudgeRequest, key: str) -> JudgeReply:
        """The reply, after as many attempts as it takes and the config allows."""
        attempt = 1
        while True:
            self._take_turn()
            formatted = self._formats and bool(request.fields) and request.form == "json"
            try:
                reply = self._once(request, formatted=formatted)
            except ServerError as error:
                if formatted and error.status in _NO_FORMAT:
                    self._formats = False
                    continue
                self._wait(self._wait_after(error, attempt, key))
                attempt += 1
            else:
                self._ledger.keep(key, reply)
                return reply

    def _take_turn(self) -> None:
        """Wait until the rate allows a request, and count it."""
        while True:
            hold_s = self._hold_until_s - self._ledger.clock.monotonic_s()
            wait_s = hold_s if hold_s > 0 else self._ledger.try_send()
            if wait_s <= 0:
                return
            self._wait(wait_s)

    def _wait(self, seconds: float) -> None:
        if self._closed.wait(seconds):
            raise JudgeFault(ScoreStatus.ERROR, "the run ended before the judge replied")

    def _wait_after(self, error: ServerError, attempt: int, key: str) -> float:
        """Seconds before the next attempt. Raises JudgeFault where there is none."""
        status = ScoreStatus.TIMEOUT if isinstance(error, DeadlineError) else ScoreStatus.ERROR
        again = error.status is None or error.status in _AGAIN or error.status < 400
        if isinstance(error, RequestCancelledError) or not again:
            raise JudgeFault(status, str(error)) from None
        if attempt >= self._config.attempts:
            raise JudgeFault(status, f"{error} (attempt {attempt} of {self._config.attempts})") from None
        clock, most_s = self._ledger.clock, self._config.max_wait_s
        asked_s = parse_retry_after(error.retry_after, now_s=clock.now_s())
        wait_s = wait_before_retry_s(attempt, key=key, most_s=most_s, retry_after_s=asked_s)
        if wait_s is None:
            raise JudgeFault(status, f"{error}; it asks to wait {asked_s:g} s, more than by.max_wait_s = {most_s:g}")
        if asked_s is not None:
            self._hold_until_s = max(self._hold_until_s, clock.monotonic_s() + asked_s)
        return wait_s

    def _once(self, request: JudgeRequest, *, formatted: bool) -> JudgeReply:
        body: dict[str, object] = {
            "model": self.model,
            "messages": list(map(dict, request.messages)),
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "seed": request.seed(self.model),
        }
        if formatted:
            schema = {"name": "verdict", "schema": json_schema(request.fields), "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return _parse_reply(self._client.post(_PATH, body, retry="never"), f"{self._client.url}{_PATH}")


def _parse_reply(reply: Json, place: str) -> JudgeReply:
    """The reply's text and token counts. Raises ServerError."""
    choices = list_field(reply, "choices", place)
    if len(choices) != 1:
        raise ServerError(f"{place}: {len(choices)} choices came, expected one")
    choice = json_object(choices[0], "the choice", place)
    text = json_object(choice.get("message"), "message", place).get("content")
    if not isinstance(text, str):
        raise ServerError(f"{place}: the content is {text!r}, expected text")
    usage = reply.get("usage")
    counts = usage if isinstance(usage, dict) else {}
    return JudgeReply(
        text=text,
        finish_reason=str(choice.get("finish_reason")),
        read_tokens=_count(counts.get("prompt_tokens")),
        written_tokens=_count(counts.get("completion_tokens")),
    )


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
