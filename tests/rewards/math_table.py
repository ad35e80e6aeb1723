"""The table of mathematical answers, `math_answers.txt`: references with right and wrong answers, by family.

    = name of a family
    reference
     + right answer
     - wrong answer
     +? right answer that math_answer is known not to recognise (a false negative, counted in the docs)
     -? wrong answer that math_answer is known to accept (a false positive, counted in the docs)
     -0 wrong answer without a score, because its reference cannot be read

A line break inside a text is written as a pilcrow. The family `whole completions` holds completions; the other
families hold answers, which a test puts into a completion.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

RAW_FAMILY = "whole completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCase:
    """One line of the table."""

    family: str
    reference: str
    answer: str
    right: bool
    score: float | None
    """Expected score: 1.0 for a right answer and 0.0 for a wrong one, except where the table says otherwise."""

    @property
    def completions(self) -> list[str]:
        """The texts that a policy may write around the answer."""
        if self.family == RAW_FAMILY:
            return [self.answer]
        return [f"We find \\boxed{{{self.answer}}}", f"Some thought.\nThe answer is {self.answer}"]


def read_table(name: str) -> list[AnswerCase]:
    """All cases of a file in this folder."""
    return list(_cases(Path(__file__).with_name(name).read_text(encoding="utf-8")))


def _cases(text: str) -> Iterator[AnswerCase]:
    family = reference = ""
    for line in text.splitlines():
        marker, _, answer = line[1:].partition(" ")
        if line.startswith("= "):
            family = line[2:]
        elif line.startswith(" ") and marker in ("+", "-", "+?", "-?", "-0"):
            yield AnswerCase(
                family=family,
                reference=reference.replace("¶", "\n"),
                answer=answer.replace("¶", "\n"),
                right=marker[0] == "+",
                score=None if marker == "-0" else float((marker[0] == "+") != marker.endswith("?")),
            )
        else:
            reference = line
