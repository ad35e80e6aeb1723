"""Evaluation of a text server on the same held-out prompts as a policy, such as a teacher model.

Its answers are text only, so their tokens are bytes; their log-probabilities are NaN and must not enter a loss.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hone.core.generation import Completion, Request
from hone.engine.clients.openai import OpenAiClient, OpenAiCompletion, OpenAiRequest
from hone.text.evaluate.text_eval import ScoredAnswers, TextEvaluation
from hone.text.tasks.world import Prompt

_END: Final = 256
"""End token after the bytes of an answer, so that an empty answer has one decision."""


def evaluate_text_server(exam: TextEvaluation, client: OpenAiClient) -> ScoredAnswers:
    """Send every prompt once, as text or as a conversation, and score the answers.

    `lengths` are tokens as the server counts them. Raises ServerError as the client does.
    """
    server = _ServerGenerator(client, exam.prompts)
    judged = exam.evaluate(server, decode_bytes)
    counted = [server.token_counts[f"{prompt.id}#{place}"] for place, prompt in enumerate(exam.prompts)]
    return replace(judged, lengths=np.array(counted, np.int64))


@dataclass
class _ServerGenerator:
    """Generator (`core.generation.GenerationSession`) for evaluation only."""

    client: OpenAiClient
    prompts: Sequence[Prompt]
    token_counts: dict[str, int] = field(default_factory=dict[str, int])
    """Tokens of each request's latest answer, as the server counts them."""
    _answers: list[tuple[frozenset[str], Iterator[OpenAiCompletion]]] = field(
        default_factory=list[tuple[frozenset[str], Iterator[OpenAiCompletion]]]
    )

    def submit(self, requests: Sequence[Request], *, round: int = 0) -> None:
        """Ask the questions of `requests`; the server keeps no rounds."""
        del round
        turns = {prompt.id: prompt.content for prompt in self.prompts}
        questions = [
            OpenAiRequest(
                id=request.id,
                prompt=turns[request.id.rpartition("#")[0]],
                sampling=request.sampling,
                samples=request.samples,
            )
            for request in requests
        ]
        self._answers.append((frozenset(one.id for one in requests), self.client.generate(questions)))

    def next_completion(
        self, request_ids: Collection[str] | None = None, *, wake: Callable[[], bool] | None = None
    ) -> Completion | None:
        """The next answer of the earliest questions that are left. A server is waited for whatever `wake` says."""
        del wake
        for entry in [one for one in self._answers if request_ids is None or any(id_ in request_ids for id_ in one[0])]:
            for completion in entry[1]:
                self.token_counts[completion.request_id] = completion.completion_tokens
                return _completion(completion)
            self._answers.remove(entry)
        return None

    def cancel(self, request_ids: Collection[str] | None = None) -> None:
        """Drop the questions that were asked together with these."""
        self._answers = [
            one for one in self._answers if request_ids is not None and not any(id_ in request_ids for id_ in one[0])
        ]

    def reset_stats(self) -> None:
        """Nothing is counted but tokens."""


def decode_bytes(tokens: NDArray[np.int32]) -> str:
    """Decode the text of an answer."""
    return bytes(tokens[tokens != _END].astype(np.uint8)).decode("utf-8", errors="replace")


def _completion(completion: OpenAiCompletion) -> Completion:
    tokens = np.array([*completion.text.encode(), _END], np.int32)
    nothing = np.full(len(tokens), np.nan, np.float32)
    return Completion(
        request_id=completion.request_id,
        sample_index=completion.sample_index,
        tokens=tokens,
        logp=nothing,
        sampled_logp=nothing,
        version=np.zeros(len(tokens), np.int32),
        finish_reason="length" if completion.finish_reason == "length" else "stop",
    )
