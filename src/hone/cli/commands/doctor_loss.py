"""`hone doctor loss FILE`: whether the gradient of a config's loss depends on how a batch is cut up.

Belongs here: reading the file or the run, and the table. What is cut and compared is `hone.recipes.certify`'s.
"""

from collections.abc import Iterator
from pathlib import Path

from hone.cli.commands.train import planned_runs
from hone.cli.options import CommandCall
from hone.cli.terminal.screen import TerminalScreen
from hone.config.resolve import read_document
from hone.core.clock import SystemClock
from hone.core.errors import ConfigError, HoneError
from hone.recipes.certify import certify, config_of_run, with_stage_models
from hone.report.run_page import write_report
from hone.store.certificate import CERTIFICATE, GradientCertificate, write_certificate
from hone.store.folder import open_run
from hone.store.manifest import config_hash
from hone.train.config import RunConfig

LossCheckTarget = tuple[RunConfig, str, Path | None]
"""A config, the hash of its settings, and the run that it belongs to, if it was run."""


def check_loss(call: CommandCall, screen: TerminalScreen) -> int:
    """Certify every stage of a file, or one run; returns the exit code: 1 when a gradient depends on the cut."""
    if not call.text("file"):
        raise ConfigError("hone doctor loss needs a config or a run: hone doctor loss run.toml")
    passed = True
    for config, digest, run in _asked(call):
        screen.title(f"{config.name}: {config.recipe}")
        found = certify(config, config_hash=digest)
        if found is None:
            screen.line(
                f"{config.recipe} does not step by the gradient of a loss over micro-batches: nothing to cut up"
            )
            continue
        show_certificate(screen, found)
        passed = passed and found.passed
        if run is not None:
            write_certificate(run, found)
            write_report(run)
            screen.line(f"kept in {run / CERTIFICATE}")
    return 0 if passed else HoneError.exit_code


def _asked(call: CommandCall) -> Iterator[LossCheckTarget]:
    name = call.text("file")
    for path in (Path(name), Path(call.text("runs")) / name):
        if (path / "manifest.json").is_file():
            if call.overrides:
                raise ConfigError(f"{path} is a run: its config is what it is; leave out {' '.join(call.overrides)}")
            folder = open_run(path, clock=SystemClock())
            yield config_of_run(path), folder.manifest().config_hash, path
            return
    stages = planned_runs(read_document(name, call.overrides))
    configs = with_stage_models([stage.resolved.config for stage in stages])
    for stage, config in zip(stages, configs, strict=True):
        yield config, config_hash(stage.resolved.settings()), None


def show_certificate(screen: TerminalScreen, found: GradientCertificate) -> None:
    """A line for every way of cutting, and the verdict."""
    screen.line(f"gradient of {found.batch}, in float64, whole and")
    screen.line()
    screen.table(
        ("cut up as", "", "largest difference", "of the gradient", ""),
        [
            (check.name, check.detail, f"{check.difference:.1e}", f"{check.relative:.1e}", _verdict(check.passed))
            for check in found.checks
        ],
    )
    screen.line()
    screen.line(found.summary())


def _verdict(passed: bool) -> str:  # noqa: FBT001 - a mark
    return "ok" if passed else "fail"
