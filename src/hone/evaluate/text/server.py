"""A server of text, judged on the same held-out prompts as a policy: a teacher, or a model that is only served.

Its answers are text and nothing else, so they stand here as bytes; their log-probabilities are NaN, and no loss should
ever see them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hone.core.generation import Completion, Request
from hone.engine.clients.openai import OpenAiClient, OpenAiCompletion, OpenAiRequest
from hone.envs.text.world import Prompt
from hone.evaluate.text.text_eval import ScoredAnswers, TextEvaluation

_END: Final = 256
"""Behind the bytes of an answer, so that an empty one is a decision as well."""


def evaluate_text_server(exam: TextEvaluation, client: OpenAiClient) -> ScoredAnswers:
    """Ask a server every prompt once, as text or as a conversation, and score its answers.

    `lengths` are tokens as the server counts them. Raises ServerError as the client does.
    """
    server = ServerGenerator(client, exam.prompts)
    judged = exam.evaluate(server, decode_bytes)
    counted = [server.token_counts[f"{prompt.id}#{place}"] for place, prompt in enumerate(exam.prompts)]
    return replace(judged, lengths=np.array(counted, np.int64))


@dataclass
class ServerGenerator:
    """Implements `core.generation.Generator`, for evaluation alone."""

    client: OpenAiClient
    prompts: Sequence[Prompt]
    token_counts: dict[str, int] = field(default_factory=dict[str, int])
    """Of each request's latest answer, as the server counts them."""

    def generate(self, requests: Sequence[Request]) -> Iterator[Completion]:
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
        for said in self.client.generate(questions):
            self.token_counts[said.request_id] = said.completion_tokens
            yield _completion(said)


def decode_bytes(tokens: NDArray[np.int32]) -> str:
    """The text of an answer."""
    return bytes(tokens[tokens != _END].astype(np.uint8)).decode("utf-8", errors="replace")


def _completion(said: OpenAiCompletion) -> Completion:
    tokens = np.array([*said.text.encode(), _END], np.int32)
    nothing = np.full(len(tokens), np.nan, np.float32)
    return Completion(
        request_id=said.request_id,
        sample_index=said.sample_index,
        tokens=tokens,
        logp=nothing,
        sampled_logp=nothing,
        version=np.zeros(len(tokens), np.int32),
        finish_reason="length" if said.finish_reason == "length" else "stop",
    )
