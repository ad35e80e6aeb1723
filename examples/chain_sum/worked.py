"""A worked solution of a chain of additions: the running totals, one after another; the last one is the answer."""


def running_totals(metadata: dict[str, str]) -> str:
    """`"98 + 93 - 77"` -> `"191 114"`."""
    first, *rest = metadata["expression"].split()
    total, totals = int(first), []
    for operator, number in zip(rest[::2], rest[1::2], strict=True):
        total += int(number) if operator == "+" else -int(number)
        totals.append(str(total))
    return " ".join(totals)
