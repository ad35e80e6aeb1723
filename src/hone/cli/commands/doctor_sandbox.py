"""`hone doctor sandbox`: the rung on which this machine confines programs, and the battery of hostile ones on it."""

from hone.cli.terminal.screen import TerminalScreen
from hone.core.errors import ResourceError
from hone.sandbox.battery import run_battery
from hone.sandbox.frames import UNSAFE_WORDS, SandboxPolicy
from hone.sandbox.run import CodeSandbox


def check_sandbox(screen: TerminalScreen) -> int:
    """Print the rung and what came of each program; returns the exit code, 5 if one was not held."""
    with CodeSandbox(SandboxPolicy()) as sandbox:
        report = sandbox.probe()
    screen.title("sandbox")
    rows = [("rung", report.rung or "none", "" if report.rung else "fail")]
    rows += [("not held here", reason, "warn") for reason in report.reasons]
    rows += [("library", f"{name} is not installed", "warn") for name in report.missing]
    if not report.rung:
        screen.rows(rows)
        screen.line()
        screen.line("programs of a model are not run here: tools and rewards that need the sandbox refuse to start.")
        screen.line(f'To run them as you, without any protection: if_no_rung = "{UNSAFE_WORDS}"')
        return ResourceError.exit_code
    outcomes = run_battery()
    for one in outcomes:
        what = ("held" if one.good else "got through") if one.hostile else ("ran" if one.good else "did not run")
        rows.append((one.name, f"{what}: {one.explanation}", "" if one.good else "fail"))
    screen.rows(rows)
    hostile = [one for one in outcomes if one.hostile]
    ordinary = [one for one in outcomes if not one.hostile]
    held, ran = sum(one.good for one in hostile), sum(one.good for one in ordinary)
    screen.line()
    screen.line(f"{held} of {len(hostile)} hostile programs held, {ran} of {len(ordinary)} ordinary ones ran")
    return 0 if held == len(hostile) and ran == len(ordinary) else ResourceError.exit_code
