"""Streams of sampled tokens to listeners, during generation.

Maps the results of a pass to requests; the scheduler is not involved.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hone.engine.passes import PassPlan
from hone.engine.table import RunningBatch
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


TokenObserver: TypeAlias = Callable[[Sequence[DrawnToken]], None]
"""Called in every pass with its tokens, before completions that end with them are returned."""


def drawn_tokens(plan: PassPlan, table: RunningBatch, drawn: SamplerOutput) -> list[DrawnToken]:
    """Tokens sampled in the pass of `plan`, before `table` records them, without scored tokens."""
    rows = plan.rows
    places = [
        *zip(table.samples[:rows], table.drawn_tokens[:rows].tolist(), drawn.token[:rows].tolist(), strict=True),
    ]
    for chunk in plan.chunks:
        tokens = drawn.token[rows : rows + len(chunk.drawing_samples)].tolist()
        places += [
            (sample, len(sample.tokens), token) for sample, token in zip(chunk.drawing_samples, tokens, strict=True)
        ]
        rows += chunk.draws
    return [
        DrawnToken(request_id=sample.request.id, sample_index=sample.number, position=place, token=token)
        for sample, place, token in places
    ]
