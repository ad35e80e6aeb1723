"""Small programs to be written, with hidden tests: two or three operations on a number, in words, as an expression.

A prompt is the head of a function, `def f(x):`, a comment such as `# plus 3, times 2`, and `return`; the answer is the
expression `(x+3)*2`. The rows have the columns of MBPP (`test_list`, `challenge_test_list`) and, by `humaneval_row`, of
HumanEval (`test`, `entry_point`). A hurried teacher often forgets the parentheses, or the last operation.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from hone.core.random import generator, uniforms

ALPHABET: Final = "0123456789()+-*=:,# \nacdefghilmnopqrstuvx"
"""Characters of prompts and answers."""
HURRY: Final = 0.7
"""Share of the tasks that the hurried teacher gets wrong."""
_INPUTS: Final = (-13, -7, -4, 3, 6, 9, 14, 21)
_FIRST_TESTS: Final = 4
_AMOUNTS: Final = range(2, 10)


@dataclass(frozen=True, slots=True)
class ProgramTask:
    """A program to be written."""

    steps: tuple[tuple[str, int], ...]
    """Operations and their amounts, in their order; `squared` and `negated` have the amount 0."""

    @property
    def words(self) -> str:
        """`plus 3, times 2`."""
        return ", ".join(f"{name} {amount}" if amount else name for name, amount in self.steps)

    @property
    def prompt(self) -> str:
        """Head of the function, up to `return`."""
        return f"def f(x):\n # {self.words}\n return "

    @property
    def solution(self) -> str:
        """The right expression."""
        return _expression(self.steps, careful=True)

    def value(self, x: int) -> int:
        """What the program returns for `x`."""
        for name, amount in self.steps:
            match name:
                case "plus":
                    x += amount
                case "minus":
                    x -= amount
                case "times":
                    x *= amount
                case "squared":
                    x *= x
                case _:
                    x = -x
        return x

    def tests(self, *, challenge: bool = False) -> list[str]:
        """Hidden tests; those of the challenge have other inputs."""
        inputs = _INPUTS[_FIRST_TESTS:] if challenge else _INPUTS[:_FIRST_TESTS]
        return [f"assert f({x}) == {self.value(x)}" for x in inputs]


def make_tasks(count: int, *, seed: int, exclude: Collection[ProgramTask] = ()) -> list[ProgramTask]:
    """`count` distinct tasks of two or three operations, none of them in `exclude`. Raises ValueError if too few are
    found."""
    random, seen, tasks = generator(seed, "small-programs"), set(exclude), list[ProgramTask]()
    names = ("plus", "minus", "times", "squared", "negated")
    for _ in range(40 * count + 1000):
        if len(tasks) == count:
            return tasks
        chosen = [names[place] for place in random.choice(5, int(random.integers(2, 4)), p=[0.3, 0.25, 0.3, 0.05, 0.1])]
        amounts = random.integers(_AMOUNTS.start, _AMOUNTS.stop, len(chosen))
        task = ProgramTask(
            tuple((name, int(a) if name in names[:3] else 0) for name, a in zip(chosen, amounts, strict=True))
        )
        twice = max(chosen.count("squared"), chosen.count("negated")) > 1  # parentheses would not matter
        if task not in seen and not twice:
            seen.add(task)
            tasks.append(task)
    raise ValueError(f"{count} distinct tasks were not found; ask for fewer")


def hurried_program(task: ProgramTask, *, hurry: float = HURRY) -> str:
    """The teacher's expression: with probability `hurry` without parentheses or, where none are missing, without the
    last operation. A task always has the same one."""
    if uniforms(0, "hurried programmer", task.prompt, count=1)[0] >= hurry:
        return task.solution
    careless = _expression(task.steps, careful=False)
    return careless if careless != task.solution else _expression(task.steps[:-1], careful=True)


def mbpp_row(task: ProgramTask) -> dict[str, object]:
    """A row with the columns of MBPP; the prompt is the head of the function, so rewards need `join_prompt`."""
    return {
        "prompt": task.prompt,
        "code": task.prompt + task.solution,
        "test_list": task.tests(),
        "test_setup_code": "",
        "challenge_test_list": task.tests(challenge=True),
    }


def humaneval_row(task: ProgramTask) -> dict[str, object]:
    """A row with the columns of HumanEval."""
    checks = "\n".join("    " + test.replace("f(", "candidate(", 1) for test in task.tests())
    return {
        "prompt": task.prompt,
        "canonical_solution": task.solution,
        "entry_point": "f",
        "test": f"def check(candidate):\n{checks}\n",
    }


def _expression(steps: tuple[tuple[str, int], ...], *, careful: bool) -> str:
    """The operations as an expression; a careless writer never sets parentheses."""
    text, is_sum = "x", False
    for name, amount in steps:
        needed = is_sum or (name == "squared" and text != "x")
        inner = f"({text})" if careful and needed else text
        match name:
            case "plus":
                text, is_sum = f"{text}+{amount}", True
            case "minus":
                text, is_sum = f"{text}-{amount}", True
            case "times":
                text, is_sum = f"{inner}*{amount}", False
            case "squared":
                text, is_sum = f"{inner}**2", False
            case _:
                text, is_sum = f"-{inner}", False
    return text
