"""Questions to a judge: answered from the cache, asked once where several answers need the same, and paid for; a server
that speaks OpenAI's protocol or a local model replies.
"""

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from hone.core.clock import SystemClock
from hone.core.episodes import ScoreStatus
from hone.core.errors import ConfigError, DataError, LostResourceError, ResourceError, did_you_mean
from hone.core.generation import Completion, Request, SamplingParams, generate
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
from hone.engine.engine import EmbeddedEngine
from hone.models.language.token_policy import TokenPolicy
from hone.rewards.judges.config import JudgeBudget, JudgeModel, JudgeServer, JudgeSource
from hone.rewards.judges.questions import JudgeReply, JudgeRequest, json_schema
from hone.rewards.judges.spending import JudgeLedger, JudgeSpending, ReplyCache, parse_retry_after, wait_before_retry_s
from hone.run.saved_config import policy_folder
from hone.text.evaluate.engine_actor import make_engine
from hone.text.evaluate.open_policy import ModelSource, open_policy, open_tokenizer

_SHOWN = 3


class JudgeFault(Exception):  # noqa: N818 - a missing verdict, which no user sees as an error
    """A question without a reply, and why."""

    def __init__(self, status: ScoreStatus, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class _JudgeBackend(Protocol):
    """A model that replies to questions."""

    @property
    def model(self) -> str:
        """Identity of the model in the keys of the cache."""
        ...

    def check(self) -> Sequence[str]:
        """Return warnings; raise HoneError where it cannot be asked."""
        ...

    def submit(self, request: JudgeRequest, key: str) -> "Future[JudgeReply]":
        """Begin to answer; the future raises JudgeFault, or HoneError where the run must stop."""
        ...

    def run(self) -> None:
        """Work through the submitted questions, where no thread does."""

    def close(self) -> None:
        """End its requests and threads."""


class JudgeClient:
    """Questions to one judge."""

    def __init__(self, name: str, backend: _JudgeBackend, ledger: JudgeLedger) -> None:
        self.name, self.backend, self.ledger = name, backend, ledger
        self._asked: dict[str, Future[JudgeReply]] = {}
        self._damaged_told = 0

    def ask(self, request: JudgeRequest) -> "Future[JudgeReply]":
        """Begin to answer a question; equal questions of one batch share their reply."""
        key = request.key(self.backend.model)
        if key not in self._asked:
            self._asked[key] = self._begin(request, key)
        return self._asked[key]

    def finish(self) -> None:
        """Work through all questions; those asked from now on are a new batch."""
        self.backend.run()
        self._asked.clear()

    def notices(self) -> list[str]:
        """Notices since the last call: damaged entries of the cache."""
        damaged = [] if self.ledger.cache is None else self.ledger.cache.damaged
        fresh, self._damaged_told = damaged[self._damaged_told :], len(damaged)
        if not fresh:
            return []
        shown = ", ".join(map(str, fresh[:_SHOWN]))
        return [f"judge {self.name!r}: {len(fresh)} damaged entries of its cache were asked again: {shown}"]

    def close(self) -> None:
        self.backend.close()
        self.ledger.write_totals()

    def _begin(self, request: JudgeRequest, key: str) -> "Future[JudgeReply]":
        reply = self.ledger.load(key)
        if reply is None:
            try:
                return self.backend.submit(request, key)
            except DataError as error:  # text that a local model's tokenizer cannot write
                return _failed(JudgeFault(ScoreStatus.UNSCORABLE, str(error)))
        future: Future[JudgeReply] = Future()
        future.set_result(reply)
        return future


def _failed(fault: JudgeFault) -> "Future[JudgeReply]":
    future: Future[JudgeReply] = Future()
    future.set_exception(fault)
    return future


# ------------------------------------------------------------------------------------------------------- server backend

_AGAIN: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""Statuses after which the same request may succeed."""
_NO_FORMAT: Final = frozenset({400, 422})
"""Statuses of servers that do not know `response_format`."""
_PATH: Final = "/v1/chat/completions"
_CHECK_S: Final = 10.0


class _JudgeServerBackend:
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
                reply = _parse_reply(self._client.post(_PATH, body, retry="never"), f"{self._client.url}{_PATH}")
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


# -------------------------------------------------------------------------------------------------------- model backend
class _JudgeModelBackend:
    """Replies of a local model; nothing is loaded before the first question."""

    def __init__(self, name: str, config: JudgeModel, ledger: JudgeLedger, *, device: str) -> None:
        self._name, self._config, self._ledger, self._device = name, config, ledger, device
        self._policy: TokenPolicy | None = None
        self._engine: EmbeddedEngine | None = None
        self._room = 0
        """Longest prompt that the engine takes."""
        self._model = ""
        self._waiting: list[tuple[JudgeRequest, str, NDArray[np.int32], Future[JudgeReply]]] = []

    @property
    def model(self) -> str:
        if not self._model:
            self._model = self._opened().fingerprint()
        return self._model

    def check(self) -> list[str]:
        """Raises DataError for a folder that holds no model with a tokenizer."""
        tokenizer, context = open_tokenizer(ModelSource(path=self._config.path))
        if tokenizer.chat_template is None:
            return [
                f"judge {self._name!r}: {self._config.path} has no chat template; it continues the question as plain "
                f"text (its context holds {context} tokens)"
            ]
        return []

    def submit(self, request: JudgeRequest, key: str) -> "Future[JudgeReply]":
        """Queue a question. Raises DataError for text that the tokenizer cannot write."""
        policy = self._opened()
        tokenizer, context = policy.tokenizer, policy.decoder.config.max_positions
        tokens = (
            tokenizer.encode(f"{request.instructions}\n\n{request.question}\n")
            if tokenizer.chat_template is None
            else tokenizer.apply_chat(request.messages)
        )
        future: Future[JudgeReply] = Future()
        if len(tokens) + request.max_tokens > context:
            reason = (
                f"the question has {len(tokens)} tokens, and with max_tokens = {request.max_tokens} does not fit the "
                f"judge's context of {context}"
            )
            future.set_exception(JudgeFault(ScoreStatus.UNSCORABLE, reason))
        else:
            self._waiting.append((request, key, tokens, future))
        return future

    def run(self) -> None:
        """Reply to all questions. Raises LostResourceError where the budget is spent, after it was used up."""
        waiting, self._waiting = self._waiting, []
        sendable: dict[str, Future[JudgeReply]] = {}
        requests: list[Request] = []
        spent: LostResourceError | None = None
        for request, key, tokens, future in waiting:
            try:
                self._ledger.try_send()
            except LostResourceError as error:
                spent = error
                break
            sendable[key] = future
            sampling = SamplingParams(
                max_tokens=request.max_tokens, temperature=request.temperature or 1.0, greedy=request.temperature == 0
            )
            requests.append(Request(id=key, prompt=tokens, samples=1, sampling=sampling))
        self._generate(requests, sendable)
        if spent is not None:
            raise spent

    def _generate(self, requests: list[Request], sendable: "dict[str, Future[JudgeReply]]") -> None:
        if not requests:
            return
        read = {request.id: len(request.prompt) for request in requests}
        for answer in generate(self._engine_for(requests), requests):
            reply = self._reply(answer, read[answer.request_id])
            self._ledger.keep(answer.request_id, reply)
            sendable[answer.request_id].set_result(reply)

    def close(self) -> None:
        self._policy = self._engine = None

    def _reply(self, answer: Completion, read_tokens: int) -> JudgeReply:
        return JudgeReply(
            text=answer.text(self._opened().tokenizer.decode),
            finish_reason=answer.finish_reason,
            read_tokens=read_tokens,
            written_tokens=len(answer.tokens),
        )

    def _opened(self) -> TokenPolicy:
        if self._policy is None:
            folder = policy_folder(Path(self._config.path))
            source = ModelSource(path=str(folder), weights=self._config.weights)
            self._policy = open_policy(source, seed=0, device=self._device, temperature=1.0)
        return self._policy

    def _engine_for(self, requests: list[Request]) -> EmbeddedEngine:
        """The engine, made anew where a question is longer than those before."""
        longest = max(len(request.prompt) + request.sampling.max_tokens for request in requests)
        if self._engine is None or longest > self._room:
            self._room = max(longest, 2 * self._room)
            self._engine = make_engine(
                self._opened(), slots=self._config.max_concurrent, longest_prompt=self._room, max_tokens=0, seed=0
            )
        return self._engine


# ---------------------------------------------------------------------------------------------------------- open client
def open_client(name: str, by: JudgeSource, budget: JudgeBudget, *, cache: str | None, device: str) -> JudgeClient:
    """The client of a model; it asks and loads nothing yet. Raises ConfigError for an address that cannot be one, or a
    key that the environment lacks."""
    ledger = JudgeLedger(JudgeSpending(name, budget), None if cache is None else ReplyCache(Path(cache)), SystemClock())
    backend: _JudgeBackend = (
        _JudgeModelBackend(name, by, ledger, device=device)
        if isinstance(by, JudgeModel)
        else _JudgeServerBackend(name, by, ledger)
    )
    return JudgeClient(name, backend, ledger)
