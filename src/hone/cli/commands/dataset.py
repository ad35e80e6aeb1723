"""`hone dataset`: scored answers as a file in TRL's formats."""

import math
from pathlib import Path
from typing import get_args

from hone.cli.options import CommandCall, parse_number
from hone.cli.terminal.screen import standard_screen
from hone.core.errors import ConfigError, did_you_mean
from hone.run.store.durable import replace_file
from hone.text.tasks.collection import (
    EXPORTED_KINDS,
    PairRule,
    check_export_path,
    dataset_bytes,
    is_collection,
    trl_rows,
)


def run(call: CommandCall) -> int:
    """Write the file and show its size and what was left out; returns the exit code."""
    kind, target = call.text("kind"), Path(call.text("file"))
    if kind not in EXPORTED_KINDS:
        option = f"--kind {kind}" if kind else "--kind is missing"
        raise ConfigError(f"{option}{did_you_mean(kind, EXPORTED_KINDS)}")
    check_export_path(target)
    from hone.text.answer_data import AnswersConfig, AnswerTaskConfig, read_answers  # noqa: PLC0415 - torch

    source = _source(call.text("source"), Path(call.text("runs")))
    # options for collected answers that were given, by their names as config keys. Raises ConfigError
    chosen: dict[str, object] = {}
    if text := call.text("min_score"):
        chosen["min_score"] = parse_number(text, "--min-score", least=-math.inf, whole=False)
    if rule := call.text("pairs"):
        if rule not in get_args(PairRule):
            raise ConfigError(f"--pairs {rule}{did_you_mean(rule, get_args(PairRule))}")
        chosen["pairs"] = rule
    if text := call.text("max_per_prompt"):
        chosen["max_per_prompt"] = int(parse_number(text, "--max-per-prompt", least=1))
    if chosen and not is_collection(source):
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in chosen)
        raise ConfigError(f"{flags}: for collected answers, and {source} is a file of scored ones; leave it out")
    examples = read_answers(AnswerTaskConfig(source=source, answers=AnswersConfig.model_validate(chosen)), kind)
    rows, notes = trl_rows(examples, kind)
    replace_file(target, dataset_bytes(rows, target.suffix))
    screen = standard_screen()
    for warning in [*examples.warnings, *notes]:
        screen.line(warning)
    screen.line(f"{target}: {len(rows)} rows of the {kind} kind")
    return 0


def _source(named: str, runs: Path) -> str:
    """The file or folder, or the run of this name."""
    return named if Path(named).exists() or not (runs / named).is_dir() else str(runs / named)
