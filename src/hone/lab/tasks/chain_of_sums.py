"""Chains of sums, worked out step by step, and their verifiers: `9+3-7` is `9+3=12;12-7=5;`.

A hurried teacher leaves out the later steps of most longer problems. Who imitates him learns to add and learns the
hurry: the right answer is then often not the most frequent one, so that a vote fails where a verifier does not.

With one-digit terms the answers lie in a small range, and a wrong chain often ends in the right number. Count whole
chains (`right_chain`), or make terms of up to `largest` = 999, where luck is rare.

The verifiers are reward functions: `use = "hone.lab.tasks.chain_of_sums:right_chain"`. They read the problem from the
prompt, with or without spaces, and so accept reasoning-gym's `chain_sum` as well.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from hone.core.random import generator, uniforms
from hone.rewards.functions import completion_text

ALPHABET: Final = "0123456789+-=;\n"
"""Characters of prompts and answers."""
SEPARATOR: Final = ";"
"""End of each step."""
HURRY: Final = 0.6
"""Share of the longer problems of which the hurried teacher writes the first step only."""
_CHAIN: Final = re.compile(r"\d+(?:\s*[+-]\s*\d+)+")
_TERM: Final = re.compile(r"[+-]?\s*\d+")
_NUMBER: Final = re.compile(r"-?\d+")
_RESULT: Final = re.compile(r"=\s*(-?\d+)")


@dataclass(frozen=True, slots=True)
class SumProblem:
    """A chain of at least two numbers to be added; the first one is not negative."""

    terms: tuple[int, ...]

    @property
    def prompt(self) -> str:
        """The problem and a line end: `9+3-7\\n`."""
        return str(self.terms[0]) + "".join(f"{term:+d}" for term in self.terms[1:]) + "\n"

    @property
    def answer(self) -> int:
        return sum(self.terms)

    @property
    def steps(self) -> list[str]:
        """One step for each number but the first, without separators: `9+3=12`, `12-7=5`."""
        totals = list(accumulate(self.terms))
        return [
            f"{before}{term:+d}={after}"
            for before, term, after in zip(totals, self.terms[1:], totals[1:], strict=False)
        ]

    @property
    def solution(self) -> str:
        """All steps, each with its separator."""
        return "".join(step + SEPARATOR for step in self.steps)


def make_problems(
    count: int,
    *,
    seed: int,
    terms: tuple[int, int] = (3, 4),
    largest: int = 9,
    exclude: Collection[SumProblem] = (),
) -> list[SumProblem]:
    """`count` distinct problems of `terms[0]` to `terms[1]` numbers from 1 to `largest`, none of them in `exclude`.

    Raises ValueError if there are too few such problems.
    """
    random, problems, seen = generator(seed, "chain-of-sums"), list[SumProblem](), set(exclude)
    for _ in range(20 * count + 1000):
        if len(problems) == count:
            return problems
        size = int(random.integers(terms[0], terms[1] + 1))
        sizes, signs = random.integers(1, largest + 1, size), random.choice([-1, 1], size)
        signs[0] = 1
        problem = SumProblem(tuple((sizes * signs).tolist()))
        if problem not in seen:
            seen.add(problem)
            problems.append(problem)
    raise ValueError(f"{count} distinct problems of {terms} numbers up to {largest} were not found; widen the range")


def hurried_solution(problem: SumProblem, *, hurry: float = HURRY) -> str:
    """The teacher's solution: of a problem of three numbers or more, with probability `hurry`, the first step only. A
    problem always has the same solution."""
    in_a_hurry = uniforms(0, "hurried teacher", problem.prompt, count=1)[0] < hurry
    return problem.steps[0] + SEPARATOR if in_a_hurry else problem.solution


def read_problem(prompt: object) -> SumProblem:
    """The last chain of sums in a prompt, or in the last message of a conversation. Raises ValueError without one."""
    text = completion_text(prompt)
    chains = _CHAIN.findall(text)
    if not chains:
        raise ValueError(f"no chain of sums such as 9+3-7 in the prompt {text!r}")
    return SumProblem(tuple(int("".join(term.split())) for term in _TERM.findall(chains[-1])))


def last_number(text: str) -> int | None:
    """The number after the last equals sign that has one, `5` of `9+3=12;12-7=5;`, or else the last number of all; None
    without one."""
    numbers = _RESULT.findall(text) or _NUMBER.findall(text)
    return int(numbers[-1]) if numbers else None


def split_steps(text: str) -> list[str]:
    """Steps of an answer, without separators and spaces; text after the last separator is a step too."""
    return [step for step in "".join(text.split()).split(SEPARATOR) if step]


def step_labels(problem: SumProblem, text: str) -> list[bool]:
    """One label for each step of an answer: True while this step and all before it are the solution's."""
    wanted = problem.steps
    right = [place < len(wanted) and step == wanted[place] for place, step in enumerate(split_steps(text))]
    return list(accumulate(right, lambda before, now: before and now))


def right_answer(prompts: Sequence[object], completions: Sequence[object]) -> list[float]:
    """Reward function: 1 if the last number is the answer, whatever was written before it."""
    return [
        float(last_number(completion_text(answer)) == read_problem(prompt).answer)
        for prompt, answer in zip(prompts, completions, strict=True)
    ]


def right_chain(prompts: Sequence[object], completions: Sequence[object]) -> list[float]:
    """Reward function: 1 if every step is there and right, and nothing else is."""
    return [
        float(split_steps(completion_text(answer)) == read_problem(prompt).steps)
        for prompt, answer in zip(prompts, completions, strict=True)
    ]


def right_steps(prompts: Sequence[object], completions: Sequence[object]) -> list[list[float]]:
    """Reward function of steps, for `rewards.step_end = ";"`: 1 for each step that is right like all before it, 0 for
    every other piece."""
    labelled: list[list[float]] = []
    for prompt, answer in zip(prompts, completions, strict=True):
        text = completion_text(answer)
        labels = step_labels(read_problem(prompt), text)
        pieces = text.split(SEPARATOR)
        places = [place for place, piece in enumerate(pieces) if piece.strip()]
        scores = [0.0] * len(pieces)
        for place, label in zip(places, labels, strict=True):
            scores[place] = float(label)
        labelled.append(scores)
    return labelled


def right_so_far(prompts: Sequence[object], completions: Sequence[object]) -> list[float]:
    """Reward function, a perfect verifier of steps: 1 if all steps written so far are right, for parts of answers."""
    return [
        float(all(step_labels(read_problem(prompt), completion_text(answer))))
        for prompt, answer in zip(prompts, completions, strict=True)
    ]


def hurried(prompt: object) -> str:
    """Solution function for `[solution] use`: the hurried teacher's."""
    return hurried_solution(read_problem(prompt))


def worked(prompt: object) -> str:
    """Solution function for `[solution] use`: all steps."""
    return read_problem(prompt).solution
