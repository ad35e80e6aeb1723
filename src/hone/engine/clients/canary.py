"""A server in the place of a runner, for the canary alone: it scores one text and runs nothing."""

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
        """A server has its own."""

    def publish(self) -> None:
        """Weights are handed over elsewhere."""

    def copy(self, source: NDArray[np.int32], target: NDArray[np.int32]) -> None:
        """A server has its own pages."""

    def run(self, work: ForwardBatch) -> SamplerOutput:
        """The given tokens of one text, at temperature 1."""
        given = ScoreRequest(
            prompt=work.tokens[:1], tokens=work.draws.forced_token, sampling=SamplingParams(max_tokens=1)
        )
        logp = self._wire.score(given)
        return SamplerOutput(token=work.draws.forced_token, logp=logp, sampled_logp=logp, sampling_mask_bits=None)
