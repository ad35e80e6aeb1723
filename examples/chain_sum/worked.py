"""Worked solutions of chains of additions, written by a careless teacher.

Every step is written next to what it is computed from, and three steps in ten are off by one. Who imitates this teacher
becomes as careless; who is told only whether the final answer is right can become better than the teacher.
"""

from hashlib import blake2b

SLIPS = 0.3


def running_totals(metadata: dict[str, str]) -> str:
    """`"9 + 3 - 7"` -> `"9+3=12-7=5"`: the last number is the answer."""
    first, *rest = metadata["expression"].split()
    total, steps = int(first), [first]
    for operator, number in zip(rest[::2], rest[1::2], strict=True):
        total += int(number) if operator == "+" else -int(number)
        total += slip(metadata["expression"], len(steps))
        steps.append(f"{operator}{number}={total}")
    return "".join(steps)


def slip(expression: str, step: int) -> int:
    """-1, 0 or 1, always the same for the same step of the same problem."""
    luck = int.from_bytes(blake2b(f"{expression}, step {step}".encode(), digest_size=8).digest(), "little") / 2**64
    return 0 if luck >= SLIPS else -1 if luck < SLIPS / 2 else 1
