"""Greedy answers of an engine, held against those of a model of transformers."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from hone.core.generation import Completion, Request, SamplingParams, generate
from hone.engine.session import EngineSession
from hone.models.language.decoder import Decoder

TOKENS = 8


def answers_as_of(
    theirs: Any, engine: EngineSession, prompts: Sequence[np.ndarray]
) -> Iterator[tuple[np.ndarray, Completion]]:
    """Each prompt `[n]` with its answer of `TOKENS` tokens, after a check that each of these is the one that `theirs`
    finds most probable after those before it."""
    sampling = SamplingParams(max_tokens=TOKENS, greedy=True)
    requests = [Request(id=str(n), prompt=one, samples=1, sampling=sampling) for n, one in enumerate(prompts)]
    for answer in generate(engine, requests, round=0):
        prompt = prompts[int(answer.request_id)]
        ids = torch.from_numpy(prompt[None].astype(np.int64))
        for _ in range(TOKENS):
            with torch.no_grad():
                ids = torch.cat((ids, theirs(ids).logits[:, -1:].argmax(-1)), 1)
        assert answer.tokens.tolist() == ids[0, len(prompt) :].tolist()
        yield prompt, answer


def check_logp(decoder: Decoder, hidden: torch.Tensor, answer: Completion, *, bitwise: bool) -> None:
    """Compare the log-probabilities of an answer with the decoder's own, from its `hidden` `[n, D]` of the prompt and
    of the answer but for its last token."""
    tokens = torch.from_numpy(answer.tokens.astype(np.int64))
    with torch.no_grad():
        logp = decoder.token_logprobs(hidden[-len(tokens) :], tokens).logp.numpy()
    if bitwise:
        assert np.array_equal(logp, answer.logp)
    np.testing.assert_allclose(logp, answer.logp, atol=2e-5)
