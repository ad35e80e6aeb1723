"""Streams of sampled tokens to listeners, during generation.

Maps the results of a pass to requests; the scheduler is not involved.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hone.engine.passes import PassPlan
from hone.engine.samples import LikeliestRow, SampleState
from hone.engine.table import RunningBatch, likeliest_row
from hone.engine.work import SamplerOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnToken:
    """One token of an unfinished answer."""

    request_id: str
    sample_index: int
    position: int
    """Index of the token in its answer, from 0. A preempted answer may sample its last token again: the latest
    counts."""
    token: int
    logp: float
    """Nats, of the whole policy."""
    likeliest: LikeliestRow | None = None
    """Ids and log-probabilities of the likeliest tokens there, where the request asks for them."""


TokenObserver: TypeAlias = Callable[[Sequence[DrawnToken]], None]
"""Called in every pass with its tokens, before completions that end with them are returned. It must not call the
engine."""


def drawn_tokens(plan: PassPlan, table: RunningBatch, drawn: SamplerOutput) -> list[DrawnToken]:
    """Tokens sampled in the pass of `plan`, before `table` records them, without scored tokens."""
    owners: list[tuple[SampleState, int, int]] = [
        *zip(table.samples[: plan.rows], table.drawn_tokens[: plan.rows].tolist(), range(plan.rows), strict=True),
    ]
    draw = plan.rows
    for chunk in plan.chunks:
        owners += [(sample, len(sample.tokens), draw + at) for at, sample in enumerate(chunk.drawing_samples)]
        draw += chunk.draws
    tokens, logp = drawn.token.tolist(), drawn.logp.tolist()
    return [
        DrawnToken(
            request_id=sample.request.id,
            sample_index=sample.number,
            position=place,
            token=tokens[draw],
            logp=logp[draw],
            likeliest=likeliest_row(drawn, draw, top) if (top := sample.request.sampling.top_logprobs) else None,
        )
        for sample, place, draw in owners
    ]
