"""Limits of a scheduler, stopping conditions, results of passes, and statistics."""

from dataclasses import dataclass
from typing import Final, Protocol

from hone.core.generation import FinishReason
from hone.engine.samples import PrefillGroup, SampleState
from hone.engine.table import RunningBatch


class FinishRules(Protocol):
    """Rule that decides when a sample ends."""

    def finished_rows(self, table: RunningBatch) -> list[tuple[int, FinishReason]]:
        """Return the rows, ascending, that end with their last token."""
        ...

    def finish_of(self, sample: SampleState) -> FinishReason | None:
        """Return the end of a sample without a row, if any."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """Limits of a scheduler."""

    slots: int
    """Number of rows."""
    pages: int
    page_tokens: int
    sequence_tokens: int
    """Largest number of tokens of a prompt and its answer."""
    pass_tokens: int = 512
    """Largest number of prompt tokens of a pass; running rows are always included."""
    pass_draws: int = 4096
    """Largest number of logits per pass for prompts and scored texts."""
    longest_first: bool = False
    """Start with the requests with the longest expected answers; otherwise in the order of submission."""

    @property
    def most_pages(self) -> int:
        """Pages of one sequence."""
        return -(-self.sequence_tokens // self.page_tokens)

    @property
    def least_pages(self) -> int:
        """Least number of pages: those of the longest sequence, and a copy of its prompt's last page."""
        return self.most_pages + 1


_LOGITS: Final = 1 << 25
"""Largest number of elements of the prompts' logits in one pass."""


PASS_TOKENS: Final = 512
"""Prompt tokens of a pass on a CPU: answers in progress wait for it."""
CUDA_PASS_TOKENS: Final = 8192
"""Prompt tokens of a pass on a GPU, which takes about as long for a few hundred."""


def default_limits(
    *, slots: int, page_tokens: int, sequence_tokens: int, vocab: int, pass_tokens: int = PASS_TOKENS
) -> SchedulerLimits:
    """Pages for the longest sequence in every slot, and for prompts that are prefilled early."""
    most = -(-sequence_tokens // page_tokens)
    return SchedulerLimits(
        slots=slots,
        pages=most * (slots + max(1, slots // 8)) + 1,
        page_tokens=page_tokens,
        sequence_tokens=sequence_tokens,
        pass_tokens=pass_tokens,
        pass_draws=max(64, _LOGITS // vocab),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PassOutcome:
    """Completions and scores that a pass finished."""

    finished: list[tuple[SampleState, FinishReason]]
    scored_groups: list[PrefillGroup]


@dataclass(slots=True)
class SchedulerCounts:
    """Counts since the last reset."""

    cached_tokens: int = 0
    prefill_tokens: int = 0
    drawn_tokens: int = 0
    scored_tokens: int = 0
    preempted: int = 0
    stale_tokens: int = 0

    def reset(self) -> None:
        """Set all counts to 0."""
        self.cached_tokens = self.prefill_tokens = self.drawn_tokens = self.scored_tokens = self.preempted = (
            self.stale_tokens
        ) = 0
