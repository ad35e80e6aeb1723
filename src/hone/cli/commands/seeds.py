"""`hone train FILE --seeds 5`: one run per seed of the same config, each in its own folder, then a comparison.

Belongs here: the seeds, their order, the number of parallel runs, and the summary. `train.py` makes a run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hone.cli.stages import STAGE
from hone.cli.terminal.screen import TerminalScreen
from hone.config.toml import COMMAND_LINE, ConfigDocument
from hone.core.clock import SystemClock
from hone.core.errors import ConfigError, DataError, HoneError, InterruptedRun, ResourceError
from hone.process.commands import CommandEnd, HoneCommand, LocalCommands, run_commands
from hone.run.callbacks import stop_on_signals
from hone.run.report.comparison_page import write_comparison
from hone.run.resume import refuse_fewer_steps
from hone.run.store.folder import open_run

MAX_SEEDS = 1000


def parse_seeds(text: str) -> list[int]:
    """Parse seeds: `5` is 0 to 4, `3..7` includes both ends, `1,4,7` is a list. Raises ConfigError otherwise."""
    try:
        if ".." in text:
            first, last = (int(end) for end in text.split("..", 1))
            seeds = list(range(first, last + 1))[: MAX_SEEDS + 1]
        elif "," in text:
            seeds = [int(part) for part in text.split(",") if part.strip()]
        else:
            seeds = list(range(min(int(text), MAX_SEEDS + 1)))
    except ValueError:
        raise ConfigError(f"--seeds must be a count (5), a range (0..9) or a list (1,4,7), got {text!r}") from None
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds) or len(seeds) > MAX_SEEDS:
        raise ConfigError(f"--seeds must name 1 to {MAX_SEEDS} different seeds >= 0, got {text!r}")
    return seeds


def set_seed(document: ConfigDocument, seed: int) -> None:
    """Set name and seed in the document. Raises ConfigError for a pipeline, or a seed given twice."""
    if STAGE in document.values:
        raise ConfigError("--seeds is for a single run, and this file has [[stage]] tables")
    if document.sources.get(("seed",)) == COMMAND_LINE:
        raise ConfigError("both --seeds and seed=... were given; leave one of them out")
    document.set_value(("seed",), seed, source="--seeds")
    document.set_value(("name",), seed_folder(seed), source="--seeds")


def seed_folder(seed: int) -> str:
    """Folder name of the run with this seed."""
    return f"seed_{seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedRuns:
    """Runs with one seed each."""

    root: Path
    """Folder of the runs."""
    seeds: Sequence[int]
    steps: int
    resume: bool

    def pending(self) -> dict[int, bool]:
        """Unfinished seeds, and whether each has begun.

        Raises ConfigError if one exists and `--resume` was not given, and if one has finished more steps.
        """
        begun = [seed for seed in self.seeds if (self._path(seed) / "manifest.json").is_file()]
        if begun and not self.resume:
            there = ", ".join(seed_folder(seed) for seed in begun)
            raise ConfigError(
                f"{self.root} contains {there} already; --resume continues them, a new --name starts others. "
                "Nothing was changed."
            )
        return {seed: seed in begun for seed in self.seeds if not (seed in begun and self._done(seed))}

    def _path(self, seed: int) -> Path:
        return self.root / seed_folder(seed)

    def _done(self, seed: int) -> bool:
        checkpoints = open_run(self._path(seed), clock=SystemClock()).checkpoints()
        refuse_fewer_steps(checkpoints, self.steps, seed_folder(seed))
        steps = checkpoints.steps()
        return bool(steps) and steps[-1] >= self.steps


def run_sequentially(turns: SeedRuns, make: Callable[[int, bool], object], screen: TerminalScreen) -> None:
    """Call `make(seed, resume)` for each seed; a run that fails does not stop the others.

    Raises the first error with the messages of all when all have ended; InterruptedRun at once.
    """
    faults: list[tuple[int, HoneError]] = []
    for seed, begun in turns.pending().items():
        try:
            make(seed, begun)
        except InterruptedRun:
            raise
        except HoneError as fault:
            screen.line(f"{seed_folder(seed)} failed: {fault.messages[0]}")
            faults.append((seed, fault))
    if faults:
        raise type(faults[0][1])(*(f"{seed_folder(seed)}: {text}" for seed, fault in faults for text in fault.messages))


def run_in_parallel(
    turns: SeedRuns, command: Callable[[int, bool], Sequence[str]], *, jobs: int, screen: TerminalScreen
) -> None:
    """Run `hone` with the arguments `command(seed, resume)` for each seed, `jobs` processes at a time.

    Raises InterruptedRun after a signal, when every run has saved its state; otherwise DataError for failed runs.
    """
    commands = [
        HoneCommand(name=seed_folder(seed), arguments=tuple(command(seed, begun)))
        for seed, begun in turns.pending().items()
    ]
    with stop_on_signals(screen.line) as stop:

        def ended(end: CommandEnd) -> None:
            screen.line(f"{end.name} {'finished' if end.code == 0 else 'stopped' if stop.requested else 'failed'}")

        ends = run_commands(
            commands,
            LocalCommands(jobs, clock=SystemClock()),
            stopping=lambda: stop.requested,
            started=lambda one: screen.line(f"{one.name} started"),
            ended=ended,
        )
        if stop.requested:
            raise InterruptedRun("stopped; --resume continues every seed", exit_code=stop.exit_code)
    failed = [end for end in ends.values() if end.code]
    if failed:
        fault = DataError(*(f"{end.name}: {line}" for end in failed for line in end.lines))
        fault.exit_code = failed[0].code if failed[0].code > 0 else ResourceError.exit_code
        raise fault


def show_seeds(screen: TerminalScreen, turns: SeedRuns) -> None:
    """Print the comparison over seeds."""
    from hone.cli.commands.compare import show_comparison  # noqa: PLC0415 - runs of several seeds only
    from hone.evaluate.comparison import compare  # noqa: PLC0415 - as above

    comparison = compare([str(turns.root)], root=turns.root)
    screen.line()
    show_comparison(screen, comparison)
    page = turns.root / "compare.html"
    write_comparison(page, comparison)
    screen.line(f"finished {len(turns.seeds)} seeds: {turns.root}, curves in {page}")
