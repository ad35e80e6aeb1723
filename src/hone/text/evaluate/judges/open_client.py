"""The client of a judge's model, wired: backend, cache and budget."""

from concurrent.futures import Future
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hone.core.clock import SystemClock
from hone.core.episodes import ScoreStatus
from hone.core.errors import LostResourceError
from hone.core.generation import Completion, Request, SamplingParams, generate
from hone.engine.engine import EmbeddedEngine
from hone.models.language.token_policy import TokenPolicy
from hone.rewards.judges.cache import ReplyCache
from hone.rewards.judges.config import JudgeBudget, JudgeModel, JudgeSource
from hone.rewards.judges.requests import JudgeReply, JudgeRequest
from hone.rewards.judges.spending import JudgeSpending
from hone.run.saved_config import policy_folder
from hone.text.evaluate.engine_actor import make_engine
from hone.text.evaluate.judges.client import JudgeBackend, JudgeClient, JudgeFault, JudgeLedger
from hone.text.evaluate.judges.server_backend import JudgeServerBackend
from hone.text.evaluate.open_policy import ModelSource, open_policy, open_tokenizer

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
        """Hash of the weights."""
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
    backend: JudgeBackend = (
        _JudgeModelBackend(name, by, ledger, device=device)
        if isinstance(by, JudgeModel)
        else JudgeServerBackend(name, by, ledger)
    )
    return JudgeClient(name, backend, ledger)
