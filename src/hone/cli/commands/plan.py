"""`hone plan`: a config checked as a whole, and the table of its settings, derived numbers and memory; or JSON."""

import json
from typing import Any

from hone.cli.commands import train
from hone.cli.memory import other_machine
from hone.cli.options import CommandCall
from hone.cli.plan_memory import plan_figures


def run(call: CommandCall) -> int:
    """Print the plan; returns the exit code."""
    if not call.switch("json"):
        return train.run(call)
    document = train.read_call(call)
    stages = train.planned_runs(document)
    train.require_stage_consent(stages, yes=call.switch("yes"))
    device = other_machine(call.command, call.text("device"))
    with train.opened_runs(stages) as opened:
        plans = [_figures(stage, device) for stage in opened]
    print(json.dumps(plans, indent=1, default=str))
    return 0


def _figures(stage: train.PlannedRun, device: str) -> dict[str, Any]:
    """Settings, derived numbers and memory of one run, and the warnings of its checks."""
    config, opened = stage.resolved.config, stage.opened
    memory = None if opened is None or opened.memory is None else plan_figures(opened.memory, device)
    return {
        "name": config.name,
        "recipe": config.recipe,
        "settings": {key: item.value for key, item in stage.resolved.non_defaults().items()},
        "derived": dict(stage.spec.derive(config)),
        "memory": memory,
        "warnings": [] if opened is None else list(opened.warnings),
    }
