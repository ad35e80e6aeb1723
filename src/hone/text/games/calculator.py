"""Sums with a calculator: `34+58=` may be answered at once, or after a call `[34+58]`, which the world answers by `92`.

A policy that cannot add in its head learns to call: only a right final answer pays, and a call costs nothing but
tokens. A dialogue reads `34+58=[34+58]9292`, with a line end after the answer.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from hone.core.dialogue import PolicyTurn, WorldTurn
from hone.core.random import generator

ALPHABET: Final = "0123456789+-=[]?\n"
"""Characters of the game."""
STOPS: Final = ("]", "\n")
"""Ends of a turn: of a call, and of the answer."""
CALLING, WRONG_OPERAND = 0.3, 0.5
"""Share of the demonstrations that call, and share of these with a wrong operand."""
_CALL: Final = re.compile(r"\[([0-9]{1,9})([+-])([0-9]{1,9})\]$")


def sum_rows(count: int, *, seed: int, digits: int = 2) -> list[dict[str, object]]:
    """Sums of two numbers of `digits` digits, all different: prompt and answer. Raises ValueError if there are too few.

    Rows of another seed may repeat a sum: make all rows with one seed, and split them.
    """
    least, most = 10 ** (digits - 1), 10**digits
    span = most - least
    if count > span * span:
        raise ValueError(f"{count} different sums of {digits}-digit numbers: there are {span * span}")
    drawn = generator(seed, "calculator").permutation(span * span)[:count].tolist()
    pairs = [(least + place // span, least + place % span) for place in drawn]
    return [{"id": f"{a}+{b}", "prompt": f"{a}+{b}=", "answer": str(a + b)} for a, b in pairs]


@dataclass(slots=True)
class CalculatorWorld:
    """A sum, and a calculator that answers calls; the right answer, ended by a line end, pays 1.

    A call that it cannot read is answered by `?`. The dialogue goes on after each call.
    """

    right: str = ""
    calls: int = 0
    unreadable: int = 0

    def begin(self, columns: Mapping[str, Any], seed: int) -> WorldTurn:
        """Begin with a row's sum; column `answer` is its result."""
        del seed
        self.right, self.calls, self.unreadable = str(columns["answer"]), 0, 0
        return WorldTurn()

    def answer(self, said: PolicyTurn) -> WorldTurn:
        """Calculate what a call asks; score anything else as the answer."""
        if said.text.endswith("]"):
            self.calls += 1
            result = calculate(said.text)
            self.unreadable += result is None
            shown = "?" if result is None else str(result)
            return WorldTurn(messages=[{"role": "user", "content": shown}], facts=self._facts())
        right = said.finish_reason != "length" and said.text.removesuffix("\n") == self.right
        return WorldTurn(reward=float(right), done=True, facts=self._facts())

    def close(self) -> None:
        """End; it holds nothing."""

    def fork(self) -> Self:
        """A copy of the dialogue so far."""
        return type(self)(self.right, self.calls, self.unreadable)

    @staticmethod
    def rows(size: int, seed: int) -> list[dict[str, object]]:
        """Sums of two numbers of two digits, `size` of them, or all 8,100."""
        return sum_rows(min(size, 8100), seed=seed)

    def _facts(self) -> dict[str, float]:
        return {"calls": self.calls, "unreadable_calls": self.unreadable}


def calculate(text: str) -> int | None:
    """Result of the call that a turn ends with: 92 of `[34+58]`; None for one that is none."""
    call = _CALL.search(text)
    if call is None:
        return None
    first, sign, second = int(call[1]), call[2], int(call[3])
    return first + second if sign == "+" else first - second


def imitation_rows(sums: list[dict[str, object]], *, seed: int) -> list[dict[str, object]]:
    """Turns of a dialogue about each sum, to be imitated: prompt and completion.

    The player calls in 30% of the dialogues, half of the time with a wrong operand, and then copies what he is told; in
    the others he answers from his head, with an error of up to 20 half of the time.
    """
    rows: list[dict[str, object]] = []
    for place, row in enumerate(sums):
        random = generator(seed, "calculating player", place)
        prompt, right = str(row["prompt"]), int(str(row["answer"]))
        if random.random() >= CALLING:
            slip = int(random.integers(-20, 21)) if random.random() < 0.5 else 0
            rows.append({"prompt": prompt, "completion": f"{max(0, right + slip)}\n"})
            continue
        first, second = map(int, prompt.removesuffix("=").split("+"))
        if random.random() < WRONG_OPERAND:
            second = int(random.integers(10 ** (len(str(second)) - 1), 10 ** len(str(second))))
        call, reply = f"[{first}+{second}]", str(first + second)
        rows.append({"prompt": prompt, "completion": call})
        rows.append({"prompt": prompt + call + reply, "completion": reply + "\n"})
    return rows
