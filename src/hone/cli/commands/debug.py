"""`hone debug`: come back to a run's failure.

Belongs here: the order of the examination. A batch that was saved is examined; otherwise the run is repeated from its
newest checkpoint to the failing step, in a folder of its own. The run itself is not changed, but for
`capsule/report.md`.
"""

import pdb
import re
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from hone.cli.commands.show import find_run
from hone.cli.commands.train import opened_runs, planned_runs, train_one
from hone.cli.options import CommandCall
from hone.cli.terminal.progress import RunProgress
from hone.cli.terminal.screen import TerminalScreen, is_plain, standard_screen
from hone.config.toml import ConfigDocument
from hone.core.clock import SystemClock
from hone.core.errors import HoneError, UserCodeError
from hone.core.strict_json import Json
from hone.run.capsule import FailureRecord, read_batch, read_capsule
from hone.run.resume import ResumeConsent
from hone.run.saved_config import config_tree
from hone.run.store.durable import write_file
from hone.run.store.folder import CAPSULE, CONFIG, LOCK
from hone.run.store.rollouts import ROLLOUTS


def run(call: CommandCall) -> int:
    """Examine or repeat a failure, and write the report; returns the exit code."""
    screen = standard_screen()
    folder = find_run(call.text("run"), Path(call.text("runs"))).path
    record, use_pdb = read_capsule(folder), call.switch("pdb")
    screen.title(f"{folder.name}: step {record.step}, {record.kind.replace('_', ' ')}")
    for line in record.messages:
        screen.line(line)
    if record.kind == "refused_update" and record.has_batch:
        findings = _examine(folder, use_pdb=use_pdb)
    else:
        findings = _repeat(folder, record, screen, use_pdb=use_pdb)
    for line in findings:
        screen.line(f"- {line}")
    from hone.evaluate.debugging import report_text  # noqa: PLC0415 - torch: not needed to refuse a run

    path = folder / CAPSULE / "report.md"
    write_file(path, report_text(record, findings).encode())
    screen.line(f"report: {path}")
    return 0


def _examine(folder: Path, *, use_pdb: bool) -> list[str]:
    """Repeat the update of a saved batch, by the weights before it."""
    from hone.evaluate.debugging import examine_batch  # noqa: PLC0415 - torch: not needed to refuse a run

    batch, document = read_batch(folder), document_of_run(folder)
    with opened_runs(planned_runs(document), may_exceed=True) as (stage,):
        assert stage.opened is not None
        job = stage.opened.build(stage.resolved.config)
        try:
            job.load_policy(folder / CAPSULE / "policy")
            report = examine_batch(job, batch)
            if use_pdb:
                _under_pdb(lambda: job.recipe.learner.update(batch.episodes, batch.credits))
        finally:
            job.close()
    return report.lines()


def _repeat(folder: Path, record: FailureRecord, screen: TerminalScreen, *, use_pdb: bool) -> list[str]:
    """Repeat a run from its newest checkpoint, or from its beginning, up to the step that failed."""
    fault: Exception | None = None
    with tempfile.TemporaryDirectory(prefix="hone_debug_") as place:
        if record.checkpoint:
            left_out = shutil.ignore_patterns(CAPSULE, ROLLOUTS, "track", LOCK)
            shutil.copytree(folder, Path(place) / folder.name, ignore=left_out)
        try:
            display = RunProgress(console=screen.console, clock=SystemClock(), live=not is_plain(sys.stdout))
            consent = ResumeConsent(config=True, code=True)
            with opened_runs(planned_runs(document_of_run(folder)), may_exceed=True) as (stage,):
                train_one(stage, root=Path(place), resume=bool(record.checkpoint), progress=display, consent=consent)
        except Exception as error:  # noqa: BLE001 - whatever it was, it is what is looked for
            fault = error
            if use_pdb:
                traceback.print_exception(error)
                pdb.post_mortem(error.__traceback__)
    began = f"from the checkpoint of step {record.checkpoint}" if record.checkpoint else "from the first step"
    if fault is None:
        return [f"repeated {began}: no failure. It depends on time, on another machine or service, or was fixed since"]
    messages = list(fault.messages) if isinstance(fault, HoneError) else [str(fault)]
    same = type(fault).__name__ == record.error and messages[:1] == record.messages[:1]
    lines = [f"repeated {began}: {'the same failure' if same else 'another failure'} comes back"]
    lines += [] if same else [f"{type(fault).__name__}: {message}" for message in messages]
    if isinstance(fault, UserCodeError) and (raised := _LINE_OF_WORKER.findall("\n".join(messages))):
        file, number, name, line = raised[-1]
    else:
        frame = traceback.extract_tb(fault.__traceback__)[-1]
        file, number, name, line = frame.filename, frame.lineno, frame.name, frame.line
    return [*lines, f"it is raised at {file}:{number}, in {name}: {line}"]


_LINE_OF_WORKER: Final = re.compile(r'File "(.+)", line (\d+), in (.+)\n\s+(.+)')
"""A frame of the traceback that a worker process sends: user code is raised there, and told of here."""


def document_of_run(folder: Path) -> ConfigDocument:
    """The config of a run, with its name and without trackers."""
    values = {name: value for name, value in config_tree(folder).items() if value is not None and name != "track"}
    return ConfigDocument(name=str(folder / CONFIG), values=_without_nulls(values))


def _without_nulls(table: Mapping[str, Json]) -> dict[str, object]:
    """A table without the keys that nobody set."""
    return {
        name: _without_nulls(value) if isinstance(value, dict) else value
        for name, value in table.items()
        if value is not None
    }


def _under_pdb(work: Callable[[], object]) -> None:
    """Do the work, and open the debugger at the line that raises."""
    try:
        work()
    except Exception as error:  # noqa: BLE001 - the debugger takes any
        traceback.print_exception(error)
        pdb.post_mortem(error.__traceback__)
