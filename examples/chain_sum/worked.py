"""Worked solutions of chains of additions, by a teacher who is often in a hurry.

Every step is written next to what it is computed from. But in six of ten longer problems the teacher stops after the
first step. Who imitates this teacher learns to add, and learns the hurry as well; who is then told only whether the
final answer is right can become better than the teacher.
"""

from hashlib import blake2b

HURRIED = 0.6


def running_totals(metadata: dict[str, str]) -> str:
    """`"9 + 3 - 7"` -> `"9+3=12-7=5"`, whose last number is the answer; or just `"9+3=12"`, in a hurry."""
    first, *rest = metadata["expression"].split()
    total, steps = int(first), [first]
    for operator, number in zip(rest[::2], rest[1::2], strict=True):
        total += int(number) if operator == "+" else -int(number)
        steps.append(f"{operator}{number}={total}")
    return "".join(steps[:2] if in_a_hurry(metadata["expression"]) else steps)


def in_a_hurry(expression: str) -> bool:
    """Drawn from the problem itself, so that the same problem always gets the same solution."""
    draw = int.from_bytes(blake2b(expression.encode(), digest_size=8).digest(), "little") / 2**64
    return draw < HURRIED
