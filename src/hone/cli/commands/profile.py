"""`hone profile`: train some steps of a config, or of a run's, under a sampling profiler, and write the page."""

import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from hone.cli.commands.debug import document_of_run
from hone.cli.commands.show import find_run
from hone.cli.commands.train import PlannedRun, opened_runs, planned_runs, train_one
from hone.cli.options import CommandCall, parse_number
from hone.cli.terminal.progress import RunProgress
from hone.cli.terminal.screen import is_plain, standard_screen
from hone.config.resolve import read_document
from hone.config.toml import ConfigDocument
from hone.core.clock import SystemClock
from hone.core.errors import ConfigError
from hone.run.callbacks import RunCallbacks, StepEvent
from hone.run.profiling import StackSampler, StackSamples, resident_bytes
from hone.run.report.profile_page import RunProfile, profile_lines, profile_page
from hone.run.report.run_data import read_report_data
from hone.run.resume import ResumeConsent
from hone.run.store.durable import replace_file

PAGE = "profile.html"


def run(call: CommandCall) -> int:
    """Profile, write the page, and print it in two sentences; returns the exit code."""
    screen, runs = standard_screen(), Path(call.text("runs"))
    steps = int(parse_number(call.text("steps"), "--steps", least=2))
    is_config = Path(call.text("run")).suffix == ".toml"
    if not is_config and call.overrides:
        raise ConfigError(f"a run's config is fixed; leave {' '.join(call.overrides)} out, or profile a config")
    folder = None if is_config else find_run(call.text("run"), runs).path
    document = document_of_run(folder) if folder is not None else read_document(call.text("run"), call.overrides)
    document.set_value(("steps",), steps, source="--steps")
    document.set_value(("run", "certify"), False, source="hone profile")
    document.set_value(("run", "log_every"), 1, source="hone profile")
    display = RunProgress(console=screen.console, clock=SystemClock(), live=not is_plain(sys.stdout))
    sizes: list[int] = []

    def remember(event: StepEvent) -> None:
        del event
        sizes.append(resident_bytes())

    with _root(folder, runs) as root, opened_runs(_one_run(document), may_exceed=True) as (stage,):
        with StackSampler(StackSamples()) as samples:
            trained = train_one(
                stage,
                root=root,
                resume=False,
                progress=display,
                callbacks=RunCallbacks(on_step=remember),
                consent=ResumeConsent(config=True, code=True),
            )
        profile = RunProfile(name=trained.name, steps=len(sizes), counts=samples.counts, sizes=sizes)
        html = profile_page(profile, read_report_data(trained.path).folder_data)
        target = Path(call.text("html")) if call.text("html") else (folder or trained.path) / PAGE
    replace_file(target, html.encode("utf-8", "replace"))
    for line in profile_lines(profile):
        screen.line(line)
    screen.line(f"profile of {profile.steps} steps: {target}")
    return 0


def _one_run(document: ConfigDocument) -> list[PlannedRun]:
    """The run of the document, which is named after what it profiles. Raises ConfigError for several."""
    (stage, *others) = planned_runs(document)
    if others:
        raise ConfigError(f"{document.name} has {len(others) + 1} stages; train it, and profile the run of one of them")
    document.set_value(("name",), f"{stage.resolved.config.name}_profile", source="hone profile")
    return planned_runs(document)


@contextmanager
def _root(folder: Path | None, runs: Path) -> Generator[Path]:
    """Folder of the run that is profiled: `runs`, or for steps of a run that is there a temporary one."""
    if folder is None:
        yield runs
        return
    with tempfile.TemporaryDirectory(prefix="hone_profile_") as place:
        yield Path(place)
