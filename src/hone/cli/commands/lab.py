"""`hone lab list | run NAME | all`: experiments that show the effect of an idea.

Belongs here: the layout of results. The experiments are in `hone.lab`.
"""

from pathlib import Path

from hone.cli.options import CommandCall, parse_number
from hone.cli.terminal.progress import compact_duration, compact_number
from hone.cli.terminal.screen import TerminalScreen, standard_screen
from hone.core.clock import Clock, SystemClock, counted
from hone.core.errors import ConfigError, did_you_mean
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult
from hone.lab.registry import experiment_names, load_experiment, save_result

WHAT = ("all", "list", "run")
FAILED = 1
"""Exit code if a verdict does not hold."""


def run(call: CommandCall) -> int:
    """List or run experiments; returns the exit code."""
    what, name = call.text("what"), call.text("experiment")
    if what not in WHAT:
        raise ConfigError(f"hone lab has no {what!r}{did_you_mean(what, WHAT)}")
    if what == "run" and not name:
        raise ConfigError(f"hone lab run needs the name of an experiment; known: {', '.join(experiment_names())}")
    if what != "run" and name:
        raise ConfigError(f"hone lab {what} takes no experiment, got {name!r}; did you mean hone lab run {name}?")
    screen = standard_screen()
    seed, folder, quick = (
        int(parse_number(call.text("seed"), "--seed", least=0)),
        Path(call.text("out")),
        call.switch("quick"),
    )
    if what == "list":
        screen.rows(
            [(name, load_experiment(name).title, load_experiment(name).question) for name in experiment_names()]
        )
    elif what == "run":
        experiment = load_experiment(name)
        finding, seconds = _run_timed(experiment, seed=seed, quick=quick, clock=SystemClock())
        # print the question, the table, the verdict, and each claim with its bound
        screen.title(experiment.title)
        screen.line(experiment.question + (f" ({experiment.source})" if experiment.source else ""))
        screen.line()
        screen.table(finding.header, finding.rows)
        screen.line()
        screen.line(finding.verdict)
        screen.line()
        screen.rows([(_word(claim.holds), claim.says, _format_claim(claim)) for claim in finding.claims])
        screen.line()
        place = save_result(finding, name=name, title=experiment.title, seed=seed, folder=folder)
        screen.line(f"{compact_duration(seconds)}; plot and figures in {place}")
        return 0 if finding.holds else FAILED
    else:
        return 0 if _run_all(screen, seed=seed, folder=folder, quick=quick) else FAILED
    return 0


def _run_timed(experiment: Experiment, *, seed: int, quick: bool, clock: Clock) -> tuple[ExperimentResult, float]:
    """Run an experiment on one thread, as sums by several may depend on the load; its result, and its seconds."""
    import torch  # noqa: PLC0415 - the experiments import it; a list of them needs none

    torch.set_num_threads(1)
    began_s = clock.monotonic_s()
    finding = experiment.run(seed, quick=quick)
    return finding, clock.monotonic_s() - began_s


def _format_claim(claim: BoundedClaim) -> str:
    """Format a claim as `6.88, at least 3`."""
    words = "at least" if claim.at_least is not None else "at most"
    return f"{compact_number(claim.value)}, {words} {claim.bound:g}"


def _run_all(screen: TerminalScreen, *, seed: int, folder: Path, quick: bool) -> bool:
    """Run every experiment with one line each, and list the verdicts that do not hold at the end.

    Returns whether all of them hold.
    """
    clock, names = SystemClock(), experiment_names()
    began_s, failed = clock.monotonic_s(), list[str]()
    for position, name in enumerate(counted(names, "experiments"), start=1):
        experiment = load_experiment(name)
        result, seconds = _run_timed(experiment, seed=seed, quick=quick, clock=clock)
        save_result(result, name=name, title=experiment.title, seed=seed, folder=folder)
        screen.line(f"{position:>2}/{len(names)}  {_word(result.holds)}  {name}  ({compact_duration(seconds)})")
        screen.line(f"       {result.verdict}")
        if not result.holds:
            failed.append(
                f"{name}: " + "; ".join(f"{c.says}: {_format_claim(c)}" for c in result.claims if not c.holds)
            )
    screen.line()
    taken = compact_duration(clock.monotonic_s() - began_s)
    screen.line(f"{len(names) - len(failed)} of {len(names)} verdicts hold; {taken}; plots and figures in {folder}")
    for line in failed:
        screen.line(f"does not hold: {line}")
    return not failed


def _word(holds: bool) -> str:  # noqa: FBT001 - a column of a table
    return "holds" if holds else "FAILS"
