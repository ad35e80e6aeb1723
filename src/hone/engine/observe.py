"""Tokens as they are drawn, for whoever watches answers being written.

Belongs here: which of a pass's results goes to which answer. The scheduler does not know that anybody watches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hone.engine.passes import PassPlan
from hone.engine.table import RunningBatch
from hone.engine.work import SamplerOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnToken:
    """One token of an answer that is being written."""

    request_id: str
    sample_index: int
    position: int
    """Which token of its answer, from 0. A preempted answer may draw its last one again: the latest counts."""
    token: int


TokenObserver: TypeAlias = Callable[[Sequence[DrawnToken]], None]
"""Called in every pass with what it drew, before any answer that ends with it is handed out."""


def drawn_tokens(plan: PassPlan, table: RunningBatch, drawn: SamplerOutput) -> list[DrawnToken]:
    """What the pass of `plan` drew, before `table` records it; scored tokens are not among them."""
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
