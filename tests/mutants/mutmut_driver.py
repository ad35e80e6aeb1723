"""mutmut with this project's operators, as a command in the working copy: `mutmut_driver.py WORKERS [MUTANT ...]`.

mutmut reads its settings from the current folder when it is imported, so that `run_mutants.py` starts it as a process.
"""

import sys
from collections.abc import Iterable

import mutmut.__main__ as mutmut
import mutmut.workers.isolation as isolation
from mutation_operators import OPERATORS
from mutmut.mutation.mutators import mutation_operators
from mutmut.runners.harness import BadTestExecutionCommandsException, PytestRunner

FIRST_TESTS = 40
"""Tests of a mutant that run first, by themselves: most mutants die there, and collecting hundreds takes seconds."""
NO_VERDICT = 35
"""Exit code where pytest could not run the tests."""


class QuickFirstRunner(PytestRunner):
    """Runs the quickest covering tests, and the others only if those pass."""

    def run_tests(self, *, mutant_name: str | None, tests: Iterable[str]) -> int:
        names = list(tests)
        parts = [names[:FIRST_TESTS], names[FIRST_TESTS:]] if len(names) > FIRST_TESTS else [names]
        try:
            for part in parts:
                code = super().run_tests(mutant_name=mutant_name, tests=part)
                if code:
                    return code
        except BadTestExecutionCommandsException:
            return NO_VERDICT
        return 0


if __name__ == "__main__":
    mutation_operators.extend(OPERATORS)
    isolation.PytestRunner = QuickFirstRunner
    mutmut._run(tuple(sys.argv[2:]), int(sys.argv[1]))
