"""Counts of dialogues that ended: reasons of their ends, turns, calls, waits, and the facts of their worlds."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import Final

import numpy as np

from hone.core.conversation import Message
from hone.core.dialogue import STOP_REASONS
from hone.core.episodes import ScoreStatus
from hone.text.tasks.conversation import Conversation

REPEATED: Final = 10
"""Equal calls in one dialogue that are one repetition too many."""
UNCALLED_SHARE: Final = 0.05
"""Share of dialogues with a call below which the log says so."""
_WINDOW: Final = 200


@dataclass(slots=True)
class DialogueRecord:
    """One dialogue while it goes on."""

    number: int
    """Its name at the host."""
    content: str | Sequence[Message]
    """Prompt: text, or messages."""
    paid: dict[int, float | None] = field(default_factory=dict[int, "float | None"])
    """Reward of each turn that the world answered."""
    facts: dict[str, float] = field(default_factory=dict[str, float])
    calls: Counter[str] = field(default_factory=Counter[str])
    """Number of each call, by name and arguments."""
    invalid: int = 0
    """Turns with a call that could not be read."""
    invalid_in_a_row: int = 0
    status: ScoreStatus = ScoreStatus.SCORED
    reason: str = ""
    waits_s: list[float] = field(default_factory=list[float])


@dataclass(slots=True)
class DialogueTally:
    """Counts since the last `pop`."""

    stops: Counter[str] = field(default_factory=Counter[str])
    turns: list[int] = field(default_factory=list[int])
    forked: int = 0
    called: int = 0
    invalid: int = 0
    repeats: int = 0
    waits_s: list[float] = field(default_factory=list[float])
    facts: dict[str, list[float]] = field(default_factory=dict[str, "list[float]"])
    seen: int = 0
    """Dialogues since the last word on calls."""
    seen_called: int = 0

    def add(self, conversation: Conversation, record: DialogueRecord) -> None:
        """Count a dialogue that ended."""
        self.stops[str(conversation.stop)] += 1
        self.turns.append(conversation.turns)
        self.forked += len(conversation.rows) > 1
        called = bool(record.calls)
        self.called += called
        self.invalid += record.invalid > 0
        self.repeats += any(count >= REPEATED for count in record.calls.values())
        self.waits_s += record.waits_s
        for name, value in record.facts.items():
            self.facts.setdefault(name, []).append(value)
        self.seen, self.seen_called = self.seen + 1, self.seen_called + called

    def pop(self, *, late: int, tools: bool) -> dict[str, float]:
        """Metrics as shares and means over the dialogues; then forget them. `late`: answers after an end; `tools`:
        calls are looked for."""
        ended = len(self.turns)
        if not ended:
            return {}
        metrics = {f"stops/{reason}": self.stops[reason] / ended for reason in STOP_REASONS}
        metrics |= {"turns/mean": sum(self.turns) / ended, "turns/forked": self.forked / ended}
        if tools:
            metrics |= {
                "tools/called": self.called / ended,
                "tools/invalid": self.invalid / ended,
                "tools/repeats": self.repeats / ended,
            }
        metrics |= {f"world/{name}": fsum(values) / len(values) for name, values in sorted(self.facts.items())}
        if self.waits_s:
            metrics |= {
                "world/wait_s": fsum(self.waits_s) / len(self.waits_s),
                "world/p95_s": float(np.quantile(self.waits_s, 0.95)),
            }
        metrics["world/late"] = float(late)
        self.stops, self.turns, self.waits_s, self.facts = Counter(), [], [], {}
        self.forked = self.called = self.invalid = self.repeats = 0
        return metrics

    def uncalled_note(self) -> str:
        """A word on tools that are hardly ever called, over each window of dialogues; else empty."""
        if self.seen < _WINDOW:
            return ""
        share, self.seen, self.seen_called = self.seen_called / self.seen, 0, 0
        if share >= UNCALLED_SHARE:
            return ""
        return (
            f"tools were called in {share:.1%} of the last dialogues: does the prompt say how, and does "
            "task.tools.format fit the chat template?"
        )
