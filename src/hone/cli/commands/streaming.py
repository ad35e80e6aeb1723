"""Streaming of answers to a terminal.

Belongs here: printing one answer after another in the order of the requests, although they are generated together.
Implements `hone.text.evaluate.streaming.StreamListener`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.text import Text

from hone.cli.terminal.screen import printable


@dataclass(slots=True, kw_only=True)
class AnswerStream:
    """Prints the first unfinished answer as it grows, and holds back the text of later ones."""

    console: Console
    _prompts: Sequence[str] = ()
    _pending_text: list[str] = field(default_factory=list[str])
    _ended: list[bool] = field(default_factory=list[bool])
    _current: int = -1

    def on_prompts(self, prompts: Sequence[str]) -> None:
        """Start with the first of `prompts`."""
        self._prompts = prompts
        self._pending_text, self._ended = [""] * len(prompts), [False] * len(prompts)
        self._begin(0)

    def on_text(self, answer: int, text: str) -> None:
        """Add text to an answer."""
        if answer == self._current:
            self._write(text)
        else:
            self._pending_text[answer] += text

    def on_end(self, answer: int, text: str) -> None:
        """End an answer; if it is the one on screen, print the next ones."""
        self.on_text(answer, text)
        self._ended[answer] = True
        while 0 <= self._current < len(self._prompts) and self._ended[self._current]:
            self._write("\n\n")
            self._begin(self._current + 1)

    def close(self) -> None:
        """End the current line."""
        if 0 <= self._current < len(self._prompts):
            self._write("\n")
        self._current = -1

    def _begin(self, answer: int) -> None:
        self._current = answer
        if answer < len(self._prompts):
            self._write(f"{answer + 1}/{len(self._prompts)}  {self._prompts[answer].strip()}\n", style="bold")
            self._write(self._pending_text[answer])

    def _write(self, text: str, style: str = "") -> None:
        self.console.print(Text(printable(text), style=style), end="", soft_wrap=True)
