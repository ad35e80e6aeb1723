"""`hone train FILE --seeds 5`: one run per seed of the same config, each in its own folder, then a comparison.

Belongs here: the seeds, their order, the number of parallel runs, and the summary. `train.py` makes a run.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hone.cli.commands.compare import show_comparison
from hone.cli.stages import STAGE
from hone.cli.terminal.screen import TerminalScreen
from hone.config.overrides import COMMAND_LINE, ConfigDocument
from hone.core.clock import SystemClock
from hone.core.errors import ConfigError, DataError, HoneError, InterruptedRun
from hone.evaluate.comparison import compare
from hone.report.comparison_page import write_comparison
from hone.store.folder import open_run
from hone.train.runner.resume import refuse_fewer_steps
from hone.train.runner.signals import stop_on_signals

MAX_SEEDS = 1000
POLL_INTERVAL_S = 0.1
OUTPUT_TAIL_LINES = 12
"""Lines shown of a failed run's output."""


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
    waiting = list(turns.pending().items())
    running: list[_SeedProcess] = []
    failed: dict[int, tuple[int, list[str]]] = {}
    with stop_on_signals(screen.line) as stop:
        while (waiting and not stop.requested) or running:
            while waiting and len(running) < jobs and not stop.requested:
                seed, begun = waiting.pop(0)
                running.append(_SeedProcess.start(seed, command(seed, begun)))
                screen.line(f"{seed_folder(seed)} started")
            ended = [one for one in running if one.process.poll() is not None]
            running = [one for one in running if one not in ended]
            for one in ended:
                outcome = "finished" if one.process.returncode == 0 else "stopped" if stop.requested else "failed"
                screen.line(f"{seed_folder(one.seed)} {outcome}")
            failed |= {one.seed: (one.process.returncode, one.error_lines()) for one in ended if one.process.returncode}
            for one in ended:
                one.output.close()
            if stop.requested:
                _stop_all(running)
            time.sleep(POLL_INTERVAL_S)
        if stop.requested:
            raise InterruptedRun("stopped; --resume continues every seed", exit_code=stop.exit_code)
    if failed:
        fault = DataError(*(f"{seed_folder(seed)}: {line}" for seed, (_, lines) in failed.items() for line in lines))
        fault.exit_code = next(code for code, _ in failed.values())
        raise fault


@dataclass(frozen=True, slots=True, kw_only=True)
class _SeedProcess:
    """Child process of one run."""

    seed: int
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    stop_sent: list[bool]
    """Not empty after the request to stop."""

    @staticmethod
    def start(seed: int, words: Sequence[str]) -> "_SeedProcess":
        """Start the process of one seed; its output goes to a temporary file."""
        output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        command = [sys.executable, "-m", "hone.cli.main", *words]
        # Its own session, so that Ctrl-C reaches it once, from here, and not from the terminal as well.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        return _SeedProcess(seed=seed, process=process, output=output, stop_sent=[])

    def error_lines(self) -> list[str]:
        """Return the errors of a failed process, or the end of its output."""
        self.output.seek(0)
        lines = self.output.read().decode("utf-8", "replace").splitlines()
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        return errors or lines[-OUTPUT_TAIL_LINES:] or [f"ended with code {self.process.returncode} without a message"]


def _stop_all(running: Sequence[_SeedProcess]) -> None:
    """Request each run once to save and stop: a second signal would end it at once."""
    for one in running:
        if not one.stop_sent:
            one.stop_sent.append(True)
            one.process.terminate()


def show_seeds(screen: TerminalScreen, turns: SeedRuns) -> None:
    """Print the comparison over seeds."""
    found = compare([str(turns.root)], root=turns.root)
    screen.line()
    show_comparison(screen, found)
    page = turns.root / "compare.html"
    write_comparison(page, found)
    screen.line(f"finished {len(turns.seeds)} seeds: {turns.root}, curves in {page}")
