"""`hone chaos`: a config is trained whole, and again under faults; the two must have the same bits.

Belongs here: the checks before the first run, the processes, and the table at the end. `hone.evaluate.chaos` draws the
faults and compares.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final, cast

from hone.cli.commands.train import planned_runs, read_call, require_stage_consent
from hone.cli.options import CommandCall, parse_number
from hone.cli.stages import STAGE, pipeline_name
from hone.cli.terminal.screen import TerminalScreen, standard_screen
from hone.core.errors import ConfigError, DivergedError
from hone.evaluate.chaos import DIFFERENCES_SHOWN, RECORD, ChaosResult, ChaosTrial
from hone.run.job import RunConfig
from hone.run.store.durable import CHAOS_VARIABLE, FaultKind
from hone.run.store.folder import check_name

KINDS: Final[tuple[FaultKind, ...]] = ("kill", "disk", "replica", "stall")
_REPLICAS: Final = ("replica", "stall")
_SHOWN_CHARACTERS: Final = 600


def run(call: CommandCall) -> int:
    """Check, run, compare; returns the exit code. Raises DivergedError where the bits differ."""
    screen, document = standard_screen(), read_call(call)
    if STAGE in document.values:
        raise ConfigError(
            f"{call.text('file')} has [[stage]] tables; hone chaos harms a single run: take one stage's config"
        )
    stages = planned_runs(document)
    require_stage_consent(stages, yes=call.switch("yes"))
    config, settings = stages[0].resolved.config, stages[0].resolved.settings()
    if not config.steps:
        raise ConfigError("epochs: faults are placed at steps, whose number has to be known; give steps instead")
    replicas = next((item.value for key, item in settings.items() if key == "cluster.rollout.replicas"), None)
    kinds = _kinds(call.text("faults"), has_replicas=bool(replicas))
    name = call.text("name") or f"{pipeline_name(document)}_chaos"
    check_name(name)
    folder = Path(call.text("runs")) / name
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} exists; remove it, or give another --name")
    folder.mkdir(parents=True, exist_ok=True)
    count = int(parse_number(call.text("count"), "--count", least=1))
    seed = int(parse_number(call.text("seed"), "--seed", least=0))
    screen.title(
        f"chaos {name}: {config.recipe}, {config.steps} steps, {count} faults ({', '.join(kinds)}), seed {seed}"
    )
    for note in _notes(config):
        screen.line(f"note: {note}")
    trial = ChaosTrial(
        folder=folder, kinds=kinds, count=count, seed=seed, train=partial(_train, call, folder), note=screen.line
    )
    result = trial.run()
    _show(screen, result, folder)
    return 0


def _kinds(text: str, *, has_replicas: bool) -> tuple[FaultKind, ...]:
    """The kinds of faults that were asked for; by default all but `stall` that fit the config. Raises ConfigError."""
    if not text:
        return ("kill", "disk", "replica") if has_replicas else ("kill", "disk")
    asked = [word.strip() for word in text.split(",")]
    faults = [f"--faults {word!r} is not known; known: {', '.join(KINDS)}" for word in asked if word not in KINDS]
    if not has_replicas:
        faults += [
            f"--faults {word} stops a replica, and the config has none; add [cluster.rollout] replicas, or leave it out"
            for word in asked
            if word in _REPLICAS
        ]
    if faults:
        raise ConfigError(*faults)
    return tuple(cast("list[FaultKind]", asked))


def _notes(config: RunConfig) -> list[str]:
    """What makes the proof weaker than it looks."""
    notes: list[str] = []
    every = config.run.checkpoint_every
    if every == 0 or every >= config.steps:
        notes.append(
            f"run.checkpoint_every = {every} saves nothing before the last of {config.steps} steps: after each fault "
            "the run begins again; set it lower to prove a resume from checkpoints"
        )
    if config.run.device != "cpu":
        notes.append(
            f"run.device = {config.run.device!r}: equal bits are promised on a CPU; a GPU's kernels may differ"
        )
    return notes


def _train(call: CommandCall, folder: Path, name: str, resume: bool, faults: str) -> tuple[int, str]:  # noqa: FBT001 - called by position
    """One process of `hone train`; returns its exit code, and the last that it printed as errors."""
    own = (f"name={name}", "run.disk_wait_s=0")
    overrides = [one for one in call.overrides if one.removeprefix("--").partition("=")[0] != "name"]
    device = [f'run.device="{call.text("device")}"'] if call.text("device") else []
    switches = [flag for flag, is_set in (("--resume", resume), ("--yes", call.switch("yes"))) if is_set]
    words = ["train", call.text("file"), *overrides, *device, *own, "--runs", str(folder), *switches]
    with (folder / f"{name}.log").open("ab") as log:
        ended = subprocess.run(
            [sys.executable, "-m", "hone", *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.PIPE,
            env={**os.environ, CHAOS_VARIABLE: faults},
            check=False,
        )
        log.write(ended.stderr)
    return ended.returncode, ended.stderr.decode(errors="replace").strip()[-_SHOWN_CHARACTERS:]


def _show(screen: TerminalScreen, result: ChaosResult, folder: Path) -> None:
    """Print the attempts as a table, and the verdict. Raises DivergedError where the bits differ."""
    screen.line()
    screen.table(("process", "begins after step", "faults", "ended with"), _rows(result))
    screen.line()
    if not result.differences:
        screen.line(f"equal to the bit: {result.compared}")
        screen.line(f"runs and record in {folder}, {folder / RECORD}")
        return
    more = len(result.differences) - DIFFERENCES_SHOWN
    why = (
        "the resumed run is another run: please report it with the folder"
        if result.reproducible
        else "two uninterrupted runs differ too, so this config is not reproducible on this machine, with faults or "
        "without: look for clocks, unseeded randomness or threads in rewards and environments, "
        'rollout.max_staleness.on_publish other than "wait", and a GPU'
    )
    raise DivergedError(
        *result.differences[:DIFFERENCES_SHOWN],
        *([f"... and {more} more differences"] if more > 0 else []),
        why,
        f"runs and record in {folder}, {folder / RECORD}",
    )


def _rows(result: ChaosResult) -> Sequence[Sequence[str]]:
    """A row for each process of the harmed run."""
    return [
        (
            str(number),
            "the start" if one.resumed_from is None else str(one.resumed_from),
            "; ".join(f"{kind} at {at}" for kind, at in one.faults) or "none",
            {0: "finished", -9: "SIGKILL"}.get(one.code, f"exit code {one.code}"),
        )
        for number, one in enumerate(result.attempts, start=1)
    ]
