"""`hone doctor loss FILE`: whether the gradient of a config's loss depends on the split into micro-batches.

Belongs here: reading the file or the run, and the table. `hone.recipes.certify` splits and compares.
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
from hone.run.job import RunConfig
from hone.run.report.run_page import write_report
from hone.run.store.folder import open_run
from hone.run.store.manifest import config_hash
from hone.run.store.records import CERTIFICATE, write_certificate

LossCheckTarget = tuple[RunConfig, str, Path | None]
"""A config, the hash of its settings, and its run folder if there is one."""


def check_loss(call: CommandCall, screen: TerminalScreen) -> int:
    """Check every stage of a file, or one run; returns the exit code: 1 if a gradient depends on the split."""
    if not call.text("file"):
        raise ConfigError("hone doctor loss needs a config or a run: hone doctor loss run.toml")
    passed = True
    for config, digest, run in _asked(call):
        screen.title(f"{config.name}: {config.recipe}")
        certificate = certify(config, config_hash=digest)
        if certificate is None:
            screen.line(f"{config.recipe} does not take gradient steps of a loss over micro-batches: nothing to check")
            continue
        # print a line for each split, and the verdict
        screen.line(f"gradient of {certificate.batch}, in float64, whole and")
        screen.line()
        screen.table(
            ("split into", "", "largest difference", "of the gradient", ""),
            [
                (check.name, check.detail, f"{check.difference:.1e}", f"{check.relative:.1e}", _verdict(check.passed))
                for check in certificate.checks
            ],
        )
        screen.line()
        screen.line(certificate.summary())
        passed = passed and certificate.passed
        if run is not None:
            write_certificate(run, certificate)
            write_report(run)
            screen.line(f"saved in {run / CERTIFICATE}")
    return 0 if passed else HoneError.exit_code


def _asked(call: CommandCall) -> Iterator[LossCheckTarget]:
    name = call.text("file")
    for path in (Path(name), Path(call.text("runs")) / name):
        if (path / "manifest.json").is_file():
            if call.overrides:
                raise ConfigError(f"{path} is a run, so its config is fixed; leave out {' '.join(call.overrides)}")
            folder = open_run(path, clock=SystemClock())
            yield config_of_run(path), folder.manifest().config_hash, path
            return
    stages = planned_runs(read_document(name, call.overrides))
    configs = with_stage_models([stage.resolved.config for stage in stages])
    for stage, config in zip(stages, configs, strict=True):
        yield config, config_hash(stage.resolved.settings()), None


def _verdict(passed: bool) -> str:  # noqa: FBT001 - a mark
    return "ok" if passed else "fail"
