"""How much a scheduler may have running, who tells it when an answer ends, and what it tells back."""

from dataclasses import dataclass
from typing import Final, Protocol

from hone.core.generation import FinishReason
from hone.engine.samples import PrefillGroup, SampleState
from hone.engine.table import RunningBatch


class FinishRules(Protocol):
    """Who says when a sample ends."""

    def finished_rows(self, table: RunningBatch) -> list[tuple[int, FinishReason]]:
        """Rows, ascending, whose last token ended them."""
        ...

    def finish_of(self, sample: SampleState) -> FinishReason | None:
        """The same for a sample without a row."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    slots: int
    """Rows."""
    pages: int
    page_tokens: int
    sequence_tokens: int
    """Most tokens of a prompt and its answer."""
    pass_tokens: int = 512
    """Tokens of a pass, as far as prompts are concerned; rows are never held back."""
    pass_draws: int = 4096
    """Draws of a pass that prompts and scored texts may ask for."""
    longest_first: bool = False
    """Begin with the requests whose answers are expected to be longest; otherwise in the order asked."""

    @property
    def most_pages(self) -> int:
        """Pages of one sequence."""
        return -(-self.sequence_tokens // self.page_tokens)

    @property
    def least_pages(self) -> int:
        """With fewer pages the longest sequence could not end: its own, and a copy of its prompt's last."""
        return self.most_pages + 1


_LOGITS: Final = 1 << 25
"""Numbers that the logits of one pass's prompts may take."""


def default_limits(*, slots: int, page_tokens: int, sequence_tokens: int, vocab: int) -> SchedulerLimits:
    """Room for the longest sequence in every slot, and for the prompts that are read ahead of them."""
    most = -(-sequence_tokens // page_tokens)
    return SchedulerLimits(
        slots=slots,
        pages=most * (slots + max(1, slots // 8)) + 1,
        page_tokens=page_tokens,
        sequence_tokens=sequence_tokens,
        pass_draws=max(64, _LOGITS // vocab),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PassOutcome:
    """What a pass brought to its end."""

    finished: list[tuple[SampleState, FinishReason]]
    scored_groups: list[PrefillGroup]


@dataclass(slots=True)
class SchedulerCounts:
    """What happened since the counts were taken last."""

    cached_tokens: int = 0
    prefill_tokens: int = 0
    drawn_tokens: int = 0
    scored_tokens: int = 0
    preempted: int = 0
    stale_tokens: int = 0

    def reset(self) -> None:
        self.cached_tokens = self.prefill_tokens = self.drawn_tokens = self.scored_tokens = self.preempted = (
            self.stale_tokens
        ) = 0
