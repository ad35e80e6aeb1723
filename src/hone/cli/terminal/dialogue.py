"""Dialogues on a terminal: a line for each turn, drawn tokens in one colour and the world's in another.

Belongs here: layout and colours. Without colours the speaker's name stands before each turn all the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from hone.cli.terminal.progress import compact_number
from hone.cli.terminal.screen import TerminalScreen, printable
from hone.run.store.answers import AnswerRow

STYLES = {"policy": "bold cyan", "environment": "yellow"}
NAMES = {"policy": "policy", "environment": "world"}
_WIDTH = max(map(len, NAMES.values())) + 2


@dataclass(frozen=True, slots=True)
class TerminalPlayer:
    """Implements `hone.text.evaluate.play.DialoguePlayer` by a person's terminal."""

    screen: TerminalScreen

    def show(self, speaker: str, text: str) -> None:
        """Print a turn."""
        _show_turn(self.screen, NAMES.get(speaker, speaker), text, style=STYLES.get(speaker, "dim"))

    def reply(self, suggestion: str | None) -> str | None:
        """Read a line from the person; None at the end of input."""
        if suggestion is not None:
            _show_turn(self.screen, "", f"(the world itself: {suggestion.strip() or 'it ends'})", style="dim italic")
        self.screen.console.print(Text(f"{'you':<{_WIDTH}}", style="bold"), end="")
        try:
            return input()
        except EOFError:
            self.screen.line()
            return None


def show_dialogues(screen: TerminalScreen, dialogues: Sequence[AnswerRow]) -> None:
    """Print dialogues one below the other, each with a line on its end."""
    for place, one in enumerate(dialogues, start=1):
        screen.title(f"{place}/{len(dialogues)}")
        _show_turn(screen, "prompt", one.prompt, style="dim")
        for speaker, text in one.turns:
            _show_turn(screen, NAMES[speaker], text, style=STYLES[speaker])
        screen.console.print(ending(one), soft_wrap=True)
        screen.line()


def _show_turn(screen: TerminalScreen, name: str, text: str, *, style: str) -> None:
    """Print one turn under its speaker's name; further lines are indented."""
    for place, line in enumerate(printable(text).strip("\n").split("\n")):
        head = f"{name if place == 0 else '':<{_WIDTH}}"
        screen.console.print(Text.assemble((head, "dim"), (line, style)), soft_wrap=True)


def ending(dialogue: AnswerRow) -> Text:
    """The line on a dialogue's end: stop reason, score and fault."""
    score = "no score" if dialogue.score is None else f"score {compact_number(dialogue.score)}"
    said = sum(speaker == "policy" for speaker, _ in dialogue.turns)
    words = [f"stop: {dialogue.stop}"] if dialogue.stop else []
    words += [score, f"{said} turn{'s' if said != 1 else ''}"]
    parts = [f"{'':<{_WIDTH}}", (", ".join(words), "dim")]
    parts += [(f", fault: {printable(dialogue.fault)}", "red")] if dialogue.fault else []
    return Text.assemble(*parts)
