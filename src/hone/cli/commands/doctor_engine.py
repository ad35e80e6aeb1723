"""`hone doctor engine`: the runner that generates answers here, the reason for it, and whether it is exact.

Belongs here: the table. `hone.evaluate.engine_check` builds and tests.
"""

from hone.cli.terminal.screen import TerminalScreen
from hone.core.clock import SystemClock, counted
from hone.core.errors import HoneError
from hone.evaluate.engine_check import check_runners, kernel_report


def check_engine(screen: TerminalScreen) -> int:
    """Build and test the runners; returns the exit code: 1 if a runner fails a check."""
    clock = SystemClock()
    began_s = clock.monotonic_s()
    screen.title("engine")
    report = kernel_report()
    rows = [
        ("runner", report.runner_note),
        ("trainer", report.trainer_note),
        ("compiler", report.compiler),
        ("built", report.build_note),
    ]
    screen.rows(rows)
    screen.line()
    findings = list(counted(check_runners(native=report.usable), "checks of the engine"))
    screen.table(
        ("runner", "check", "against", "found", ""),
        [(one.runner, one.name, one.compared_with, one.result, "ok" if one.passed else "fail") for one in findings],
    )
    screen.line()
    failed = {one.runner for one in findings if not one.passed}
    took = f"{len(findings)} checks in {clock.monotonic_s() - began_s:.1f} s"
    if not failed:
        screen.line(f"{took}: an answer depends on its request only, and log-probabilities equal the trainer's")
        return 0
    screen.line(
        f"{took}: failed: {', '.join(sorted(failed))}. Please report this table; until then, set "
        "rollout.runner to one whose checks pass (native or torch)"
    )
    return HoneError.exit_code
