"""`hone plan`: a config checked as a whole, and the table of its settings, derived numbers and memory; or JSON.

`--memory` is the memory alone, from the config's numbers, in a fraction of a second.
"""

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from hone.cli.options import CommandCall
from hone.cli.plan_memory import MemoryRequest, memory_request, missing_bytes, plan_figures, plan_rows
from hone.config.toml import ConfigDocument, parse_overrides, read_toml
from hone.core.errors import ResourceError

if TYPE_CHECKING:
    from hone.run.job import RunConfig


def run(call: CommandCall) -> int:
    """Print the plan; returns the exit code, 5 for a run that does not fit."""
    request = memory_request(call)
    if call.switch("calibrate"):
        from hone.cli.calibration import measure_machine  # noqa: PLC0415 - torch

        measure_machine()
    if request.closed:
        return _memory_alone(call, request)
    from hone.cli.commands import train  # noqa: PLC0415 - recipes take seconds, and the memory alone needs none

    if not call.switch("json"):
        return train.run(call)
    document = train.read_call(call)
    stages = train.planned_runs(document)
    train.require_stage_consent(stages, yes=call.switch("yes"))
    with train.opened_runs(stages, may_exceed=True) as opened:
        plans = [_figures(stage, request) for stage in opened]
        train.plan_notes(opened)
        missing = [0 if one.opened is None else missing_bytes(one.opened.memory, request) for one in opened]
    print(json.dumps(plans, indent=1, default=str))
    return ResourceError.exit_code if any(missing) else 0


def _memory_alone(call: CommandCall, request: MemoryRequest) -> int:
    from hone.cli.closed_plan import closed_plan  # noqa: PLC0415 - the models' table

    document = ConfigDocument.from_file(read_toml(call.text("file")), parse_overrides(call.overrides))
    if request.own_device:
        document.set_value(("run", "device"), request.own_device, source="--device")
    plan = closed_plan(document, request.longest_tokens, model=request.model)
    config = partial(_validated, document)
    if call.switch("json"):
        print(
            json.dumps([{"recipe": document.values["recipe"], "memory": plan_figures(plan, request, config)}], indent=1)
        )
    else:
        from hone.cli.terminal.screen import standard_screen  # noqa: PLC0415 - as above

        screen = standard_screen()
        screen.rows(list({**plan.rows(), **plan_rows(plan, request, config)}.items()))
    return ResourceError.exit_code if missing_bytes(plan, request) else 0


def _validated(document: ConfigDocument) -> "RunConfig":
    """The whole config of one run. Raises ConfigError."""
    from hone.cli.commands.train import planned_runs  # noqa: PLC0415 - recipes take seconds

    return planned_runs(document)[0].resolved.config


def _figures(stage: Any, request: MemoryRequest) -> dict[str, Any]:  # noqa: ANN401 - of a module that is imported late
    """Settings, derived numbers and memory of one run, and the warnings of its checks."""
    config, opened = stage.resolved.config, stage.opened
    memory = None if opened is None or opened.memory is None else plan_figures(opened.memory, request, lambda: config)
    return {
        "name": config.name,
        "recipe": config.recipe,
        "settings": {key: item.value for key, item in stage.resolved.non_defaults().items()},
        "derived": dict(config.derive()),
        "memory": memory,
        "data": [] if opened is None else list(opened.notes),
        "warnings": [] if opened is None else list(opened.warnings),
    }
