"""Answers on a terminal while they are being written.

Belongs here: one answer after another, in the order asked, although they are written at the same time. Implements
`hone.evaluate.text.streaming.Hearer`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.text import Text

from hone.cli.terminal.screen import printable


@dataclass(slots=True, kw_only=True)
class AnswerStream:
    """Shows the first unfinished answer as it grows; what others have so far waits for their turn."""

    console: Console
    _prompts: Sequence[str] = ()
    _waiting: list[str] = field(default_factory=list[str])
    _ended: list[bool] = field(default_factory=list[bool])
    _now: int = -1

    def asked(self, prompts: Sequence[str]) -> None:
        """Begin with the first of `prompts`."""
        self._prompts = prompts
        self._waiting, self._ended = [""] * len(prompts), [False] * len(prompts)
        self._begin(0)

    def heard(self, answer: int, text: str) -> None:
        """More of an answer."""
        if answer == self._now:
            self._write(text)
        else:
            self._waiting[answer] += text

    def ended(self, answer: int, text: str) -> None:
        """The end of an answer; when it is the one that is shown, the next ones follow."""
        self.heard(answer, text)
        self._ended[answer] = True
        while 0 <= self._now < len(self._prompts) and self._ended[self._now]:
            self._write("\n\n")
            self._begin(self._now + 1)

    def close(self) -> None:
        """Whatever is written next begins on a line of its own."""
        if 0 <= self._now < len(self._prompts):
            self._write("\n")
        self._now = -1

    def _begin(self, answer: int) -> None:
        self._now = answer
        if answer < len(self._prompts):
            self._write(f"{answer + 1}/{len(self._prompts)}  {self._prompts[answer].strip()}\n", style="bold")
            self._write(self._waiting[answer])

    def _write(self, text: str, style: str = "") -> None:
        self.console.print(Text(printable(text), style=style), end="", soft_wrap=True)
