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
from hone.engine.clients.openai import OpenAiClient, Question, Said
from hone.envs.text.world import Prompt
from hone.evaluate.text.text_eval import Judged, TextExam

_END: Final = 256
"""Behind the bytes of an answer, so that an empty one is a decision as well."""


def ask_server(exam: TextExam, client: OpenAiClient) -> Judged:
    """Ask a server every prompt once, as text or as a conversation, and score its answers.

    `lengths` are tokens as the server counts them. Raises ServerError as the client does.
    """
    server = TextServer(client, exam.prompts)
    judged = exam.ask(server, read)
    counted = [server.tokens[f"{prompt.id}#{place}"] for place, prompt in enumerate(exam.prompts)]
    return replace(judged, lengths=np.array(counted, np.int64))


@dataclass
class TextServer:
    """Implements `core.generation.Generator`, for evaluation alone."""

    client: OpenAiClient
    prompts: Sequence[Prompt]
    tokens: dict[str, int] = field(default_factory=dict[str, int])
    """Of each request's latest answer, as the server counts them."""

    def generate(self, requests: Sequence[Request]) -> Iterator[Completion]:
        turns = {prompt.id: prompt.turns for prompt in self.prompts}
        questions = [
            Question(
                id=request.id,
                turns=turns[request.id.rpartition("#")[0]],
                sampling=request.sampling,
                samples=request.samples,
            )
            for request in requests
        ]
        for said in self.client.ask(questions):
            self.tokens[said.question] = said.tokens
            yield _completion(said)


def read(tokens: NDArray[np.int32]) -> str:
    """The text of an answer."""
    return bytes(tokens[tokens != _END].astype(np.uint8)).decode("utf-8", errors="replace")


def _completion(said: Said) -> Completion:
    tokens = np.array([*said.text.encode(), _END], np.int32)
    nothing = np.full(len(tokens), np.nan, np.float32)
    return Completion(
        request=said.question,
        sample=said.sample,
        tokens=tokens,
        logp=nothing,
        sampled_logp=nothing,
        version=np.zeros(len(tokens), np.int32),
        finish="length" if said.finish == "length" else "stop",
    )
