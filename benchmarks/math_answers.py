"""Answers scored per second by `math_answer`, for plain numbers, fractions, surds and polynomials.

    python benchmarks/math_answers.py [--quick]

To compare with an older version, run it with `PYTHONPATH=OTHER/src`.
"""

import argparse
import time

from hone.rewards.math_answer import math_answer


def pairs(count: int) -> dict[str, list[tuple[str, str]]]:
    """Completions with their references, by kind; the numbers differ, so that nothing is remembered."""
    numbers = range(11, 11 + count)
    return {
        "plain numbers": [(rf"so \boxed{{{37 * n}}}", str(37 * n + n % 2)) for n in numbers],
        "fractions": [(rf"\boxed{{\dfrac{{{n}}}{{{n + 1}}}}}", rf"\frac{{{n}}}{{{n + 1}}}") for n in numbers],
        "surds": [(rf"\boxed{{{n}+\sqrt{{{n * n + 1}}}}}", rf"\sqrt{{{n * n + 1}}} + {n}") for n in numbers],
        "polynomials": [(rf"\boxed{{(x+{n})(x-{n + 1})}}", f"x^2-x-{n * (n + 1)}") for n in numbers],
        "copied exercises": [(rf"\boxed{{{n}*{n + 1}}}", str(n * (n + 1))) for n in numbers],
    }


def main() -> None:
    """Print one line for each kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20 answers of each kind, not 300")
    for kind, cases in pairs(20 if parser.parse_args().quick else 300).items():
        math_answer(*cases[0])
        begin = time.perf_counter()
        right = sum(math_answer(*case)["score"] == 1.0 for case in cases)
        print(f"{kind:18}{len(cases) / (time.perf_counter() - begin):10.0f} answers/s, {right} right")


if __name__ == "__main__":
    main()
