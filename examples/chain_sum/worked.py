"""A worked solution of a chain of additions: every step is written next to what it is computed from."""


def running_totals(metadata: dict[str, str]) -> str:
    """`"9 + 3 - 7"` -> `"9+3=12-7=5"`: the last number is the answer."""
    first, *rest = metadata["expression"].split()
    total, steps = int(first), [first]
    for operator, number in zip(rest[::2], rest[1::2], strict=True):
        total += int(number) if operator == "+" else -int(number)
        steps.append(f"{operator}{number}={total}")
    return "".join(steps)
