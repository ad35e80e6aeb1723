"""Client of OpenAI's protocol: text in, text out. For teachers, scorers and evaluation.

Such a server returns neither its tokens nor their log-probabilities: tokenised again, the text may be other tokens. So
no policy is trained on its answers; see `refuse_training`.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any, NoReturn

from hone.core.errors import ConfigError, DataError, ErrorCollector
from hone.core.generation import SamplingParams
from hone.core.random import key
from hone.engine.clients.http import HttpClient, Json, ServerError
from hone.engine.clients.wire import MOST_SEED, json_object, list_field

TextOrMessages = str | Sequence[Mapping[str, Any]]
"""A text to continue, or a conversation to answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAiRequest:
    """A prompt and the number of answers to sample."""

    id: str
    prompt: TextOrMessages
    sampling: SamplingParams
    samples: int = 1
    variables: Mapping[str, object] = field(default_factory=dict[str, object])
    """Variables of the server's chat template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAiCompletion:
    """One answer, as text."""

    request_id: str
    sample_index: int
    text: str
    finish_reason: str
    """Reason as the server gives it: `stop`, `length`, `content_filter` ..."""
    completion_tokens: int
    """Token count by the server; 0 if it gives none."""


class OpenAiClient:
    """Client that sends many questions concurrently. Sends nothing before the first."""

    def __init__(self, link: HttpClient, *, model: str, slots: int = 16, seed: int = 0) -> None:
        """`slots`: largest number of concurrent requests."""
        self.link, self.model, self.seed = link, model, seed
        self._slots = slots

    def models(self) -> list[str]:
        """Return the names of the served models."""
        place = f"{self.link.url}/v1/models"
        return [
            str(json_object(row, "a model", place).get("id"))
            for row in list_field(self.link.get("/v1/models"), "data", place)
        ]

    def generate(self, questions: Sequence[OpenAiRequest]) -> Iterator[OpenAiCompletion]:
        """Iterate over answers as they finish; closing the iterator cancels the rest.

        Raises DataError and ConfigError, with every fault, before anything is sent; ServerError for a rejection or an
        answer that cannot be understood.
        """
        _check(questions)
        return self._ask(questions)

    def raise_untrainable(self) -> NoReturn:
        """Raise ConfigError: the replies of such a server are not enough for training."""
        raise ConfigError(
            f"{self.link.url} uses OpenAI's protocol, which returns text and no token ids: no policy can be "
            'trained on its answers. Take a server of kind "vllm" or "sglang", which gives both, or the embedded '
            "engine; teachers, judges and evaluations may use this one"
        )

    def close(self) -> None:
        """Close the connections."""
        self.link.close()

    def _ask(self, questions: Sequence[OpenAiRequest]) -> Iterator[OpenAiCompletion]:
        pool = ThreadPoolExecutor(self._slots, thread_name_prefix="hone-openai")
        waiting: list[Future[OpenAiCompletion]] = [
            pool.submit(self._one, question, number) for question in questions for number in range(question.samples)
        ]
        try:
            for future in as_completed(waiting):
                yield future.result()
        finally:
            for future in waiting:
                future.cancel()
            self.link.cancel_all()
            pool.shutdown()

    def _one(self, question: OpenAiRequest, number: int) -> OpenAiCompletion:
        sampling, chat = question.sampling, not isinstance(question.prompt, str)
        path = "/v1/chat/completions" if chat else "/v1/completions"
        body: dict[str, object] = {
            "model": self.model,
            "messages" if chat else "prompt": question.prompt
            if isinstance(question.prompt, str)
            else list(question.prompt),
            "max_tokens": sampling.max_tokens,
            "temperature": 0.0 if sampling.greedy else sampling.temperature,
            "top_p": sampling.top_p,
            "seed": key(self.seed, "openai", question.id, number) % MOST_SEED,
        }
        if chat and question.variables:
            body["chat_template_kwargs"] = dict(question.variables)
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        reply = self.link.post(path, body, retry="refused")
        return self._said(question, number, reply, f"{self.link.url}{path}: question {question.id!r}", chat=chat)

    def _said(self, question: OpenAiRequest, number: int, reply: Json, place: str, *, chat: bool) -> OpenAiCompletion:
        choices = list_field(reply, "choices", place)
        if len(choices) != 1:
            raise ServerError(f"{place}: {len(choices)} answers came, expected one")
        choice = json_object(choices[0], "the answer", place)
        text = json_object(choice.get("message"), "message", place).get("content") if chat else choice.get("text")
        if not isinstance(text, str):
            raise ServerError(f"{place}: the answer is {text!r}, expected text")
        usage = reply.get("usage")
        count = usage.get("completion_tokens") if isinstance(usage, dict) else 0
        return OpenAiCompletion(
            request_id=question.id,
            sample_index=number,
            text=text,
            finish_reason=str(choice.get("finish_reason")),
            completion_tokens=count if isinstance(count, int) else 0,
        )


def _check(questions: Sequence[OpenAiRequest]) -> None:
    settings = ErrorCollector(ConfigError)
    for sampling in dict.fromkeys(question.sampling for question in questions):
        if sampling.top_k or sampling.min_p:
            settings.add(
                f"OpenAI's protocol has neither top_k (= {sampling.top_k}) nor min_p (= {sampling.min_p}); leave "
                "them out"
            )
    settings.raise_if_any()
    faults = ErrorCollector(DataError)
    seen: set[str] = set()
    for question in questions:
        if question.id in seen:
            faults.add(f"question {question.id!r}: the id is given twice in one call")
        seen.add(question.id)
        if not question.prompt or question.samples < 1:
            faults.add(f"question {question.id!r}: it is empty, or asked {question.samples} times")
    faults.raise_if_any()
