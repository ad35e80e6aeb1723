"""`hone train FILE --seeds 5`: the same config once for each seed, every run in a folder of its own, then compared.

Belongs here: which seeds, in which order, how many at a time, and what is said at the end. A run is `training.py`'s.
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
from hone.cli.terminal.screen import Screen
from hone.config.overrides import COMMAND_LINE, Document
from hone.core.clock import SystemClock
from hone.core.errors import ConfigError, DataError, HoneError, InterruptedRun
from hone.evaluate.comparison import compare
from hone.report.comparison_page import write_comparison
from hone.store.folder import open_run
from hone.train.runner.signals import stop_on_signals

MOST = 1000
PAUSE_S = 0.1
TAIL = 12
"""Lines of a failed run's output that are shown."""


def parse_seeds(text: str) -> list[int]:
    """`5` is 0 to 4, `3..7` both ends included, `1,4,7` these. Raises ConfigError for anything else."""
    try:
        if ".." in text:
            first, last = (int(end) for end in text.split("..", 1))
            seeds = list(range(first, last + 1))[: MOST + 1]
        elif "," in text:
            seeds = [int(part) for part in text.split(",") if part.strip()]
        else:
            seeds = list(range(min(int(text), MOST + 1)))
    except ValueError:
        raise ConfigError(f"--seeds must be a count (5), a range (0..9) or a list (1,4,7), got {text!r}") from None
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds) or len(seeds) > MOST:
        raise ConfigError(f"--seeds must name 1 to {MOST} different seeds >= 0, got {text!r}")
    return seeds


def seeded(document: Document, seed: int) -> None:
    """Make the document that of the run with this seed. Raises ConfigError for a pipeline, or a seed given twice."""
    if STAGE in document.values:
        raise ConfigError("--seeds is for a single run, and this file has [[stage]] tables")
    if document.sources.get(("seed",)) == COMMAND_LINE:
        raise ConfigError("both --seeds and seed=... were given; leave one of them out")
    document.put(("seed",), seed, source="--seeds")
    document.put(("name",), folder_of(seed), source="--seeds")


def folder_of(seed: int) -> str:
    return f"seed_{seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """The runs that are to be made."""

    root: Path
    """The folder that holds them."""
    seeds: Sequence[int]
    steps: int
    resume: bool

    def waiting(self) -> dict[int, bool]:
        """Seeds that are not done yet, and whether each has begun.

        Raises ConfigError where one exists and nobody said `--resume`.
        """
        begun = [seed for seed in self.seeds if (self._path(seed) / "manifest.json").is_file()]
        if begun and not self.resume:
            there = ", ".join(folder_of(seed) for seed in begun)
            raise ConfigError(
                f"{self.root} holds {there} already; --resume goes on with them, a new --name begins anew. Nothing "
                "was changed."
            )
        return {seed: seed in begun for seed in self.seeds if not (seed in begun and self._done(seed))}

    def _path(self, seed: int) -> Path:
        return self.root / folder_of(seed)

    def _done(self, seed: int) -> bool:
        steps = open_run(self._path(seed), clock=SystemClock()).checkpoints().steps()
        return bool(steps) and steps[-1] >= self.steps


def one_after_another(turns: Turns, make: Callable[[int, bool], object], screen: Screen) -> None:
    """`make(seed, resume)` for each seed; a run that fails does not keep the others from running.

    Raises what the first one raised, with the messages of all, once all are through; InterruptedRun at once.
    """
    faults: list[tuple[int, HoneError]] = []
    for seed, begun in turns.waiting().items():
        try:
            make(seed, begun)
        except InterruptedRun:
            raise
        except HoneError as fault:
            screen.line(f"{folder_of(seed)} failed: {fault.messages[0]}")
            faults.append((seed, fault))
    if faults:
        raise type(faults[0][1])(*(f"{folder_of(seed)}: {text}" for seed, fault in faults for text in fault.messages))


def at_the_same_time(turns: Turns, command: Callable[[int, bool], Sequence[str]], *, jobs: int, screen: Screen) -> None:
    """The same in processes of their own, `jobs` at a time; `command(seed, resume)` are the words after `hone`.

    Raises InterruptedRun after a signal, once every run has saved itself; else HoneError as above.
    """
    waiting = list(turns.waiting().items())
    running: list[_Running] = []
    failed: dict[int, tuple[int, list[str]]] = {}
    with stop_on_signals(screen.line) as stop:
        while (waiting and not stop.asked) or running:
            while waiting and len(running) < jobs and not stop.asked:
                seed, begun = waiting.pop(0)
                running.append(_Running.begin(seed, command(seed, begun)))
                screen.line(f"{folder_of(seed)} begins")
            ended = [one for one in running if one.process.poll() is not None]
            running = [one for one in running if one not in ended]
            for one in ended:
                outcome = "is done" if one.process.returncode == 0 else "stopped" if stop.asked else "failed"
                screen.line(f"{folder_of(one.seed)} {outcome}")
            failed |= {one.seed: (one.process.returncode, one.last_words()) for one in ended if one.process.returncode}
            for one in ended:
                one.said.close()
            if stop.asked:
                _tell(running)
            time.sleep(PAUSE_S)
        if stop.asked:
            raise InterruptedRun("stopped; --resume goes on with every seed", exit_code=stop.exit_code)
    if failed:
        fault = DataError(*(f"{folder_of(seed)}: {line}" for seed, (_, lines) in failed.items() for line in lines))
        fault.exit_code = next(code for code, _ in failed.values())
        raise fault


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    """A run in a process of its own."""

    seed: int
    process: subprocess.Popen[bytes]
    said: IO[bytes]
    told: list[bool]
    """Holds something once it was asked to stop."""

    @staticmethod
    def begin(seed: int, words: Sequence[str]) -> "_Running":
        said = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        command = [sys.executable, "-m", "hone.cli.main", *words]
        # In a session of its own, so that Ctrl-C reaches it once, from here, and not from the terminal as well.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )
        return _Running(seed=seed, process=process, said=said, told=[])

    def last_words(self) -> list[str]:
        self.said.seek(0)
        lines = self.said.read().decode("utf-8", "replace").splitlines()
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        return errors or lines[-TAIL:] or [f"ended with code {self.process.returncode} and said nothing"]


def _tell(running: Sequence[_Running]) -> None:
    """Ask every run to save itself, once: the second time they would leave at once."""
    for one in running:
        if not one.told:
            one.told.append(True)
            one.process.terminate()


def show_seeds(screen: Screen, turns: Turns) -> None:
    """What the seeds come to together."""
    found = compare([str(turns.root)], root=turns.root)
    screen.line()
    show_comparison(screen, found)
    page = turns.root / "compare.html"
    write_comparison(page, found)
    screen.line(f"finished {len(turns.seeds)} seeds: {turns.root}, curves in {page}")
