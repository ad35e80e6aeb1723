"""Adapter that lets the weight canary score a text on a server."""

import numpy as np
from numpy.typing import NDArray

from hone.core.generation import SamplingParams, ScoreRequest
from hone.engine.clients.wire import ServerProtocol
from hone.engine.work import ForwardBatch, SamplerOutput

_TOKENS = 64


class ScoringRunner:
    """Implements `work.Runner` as far as `WeightCanary.check` uses it."""

    exact = False
    page_tokens = _TOKENS

    def __init__(self, wire: ServerProtocol, name: str) -> None:
        self.name = name
        self._wire = wire

    def reserve(self, pages: int) -> None:
        """Do nothing: a server has its own weights."""

    def publish(self) -> None:
        """Do nothing: `handover` publishes the weights."""

    def release(self) -> None:
        """Do nothing, as above."""

    def copy(self, source: NDArray[np.int32], target: NDArray[np.int32]) -> None:
        """Do nothing: a server has its own pages."""

    def run(self, work: ForwardBatch) -> SamplerOutput:
        """Score the given tokens of one text, at temperature 1."""
        given = ScoreRequest(
            prompt=work.tokens[:1], tokens=work.draws.forced_token, sampling=SamplingParams(max_tokens=1)
        )
        logp = self._wire.score(given)
        return SamplerOutput(token=work.draws.forced_token, logp=logp, sampled_logp=logp, sampling_mask_bits=None)
