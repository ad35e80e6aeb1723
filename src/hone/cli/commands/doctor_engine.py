"""`hone doctor engine`: which runner writes answers here and why, and whether it is exact on this machine.

Belongs here: the table. What is built and tried is `hone.evaluate.engine_check`'s.
"""

from hone.cli.terminal.screen import TerminalScreen
from hone.core.clock import SystemClock
from hone.core.errors import HoneError
from hone.evaluate.engine_check import check_runners, kernel_report


def check_engine(screen: TerminalScreen) -> int:
    """Build, look and try; returns the exit code: 1 when a runner is not what it promises to be."""
    clock = SystemClock()
    began_s = clock.monotonic_s()
    screen.title("engine")
    found = kernel_report()
    rows = [
        ("runner", found.runner_note),
        ("trainer", found.trainer_note),
        ("compiler", found.compiler),
        ("built", found.build_note),
    ]
    screen.rows(rows)
    screen.line()
    findings = list(check_runners(native=found.usable))
    screen.table(
        ("runner", "check", "against", "found", ""),
        [(one.runner, one.name, one.compared_with, one.result, "ok" if one.passed else "fail") for one in findings],
    )
    screen.line()
    failed = {one.runner for one in findings if not one.passed}
    took = f"{len(findings)} checks in {clock.monotonic_s() - began_s:.1f} s"
    if not failed:
        screen.line(f"{took}: answers depend on nothing but their request, and log-probabilities are the trainer's")
        return 0
    screen.line(
        f"{took}: not as it should be: {', '.join(sorted(failed))}. Please report this table; until then, set "
        "rollout.runner to one whose checks pass (native or torch)"
    )
    return HoneError.exit_code
