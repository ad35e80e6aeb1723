"""What the check of a run found: its memory, which must fit the machine, and warnings."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from hone.cli.plan_memory import MemoryRequest, missing_bytes, plan_rows
from hone.cli.terminal.screen import TerminalScreen
from hone.core.errors import ResourceError
from hone.core.out_of_memory import memory_remedy
from hone.run.job import OpenedRun, RunConfig, TrainingJob
from hone.run.memory_plan import MemoryPlan, planned_words, readable_bytes, require_fit

OpenedStage: TypeAlias = tuple[OpenedRun, RunConfig, Callable[[str], str]]
"""An opened run, its config, and the function that prefixes a message with its place in the config."""


def require_opened_fit(opened: OpenedRun, settings: Mapping[str, object], *, may_exceed: bool) -> None:
    """Raise ResourceError for an opened run whose networks cannot fit the machine, or, unless it `may_exceed` it, whose
    planned peak does not; it is closed then."""
    if opened.memory is not None:
        try:
            require_fit(opened.memory, settings)
            missing = 0 if may_exceed else missing_bytes(opened.memory, MemoryRequest())
            if missing:
                raise ResourceError(
                    f"the run does not fit {opened.memory.device}, {readable_bytes(missing)} are missing: "
                    f"{planned_words(opened.memory)}; {memory_remedy(settings)}; --yes trains all the same"
                )
        except BaseException:
            opened.close()
            raise


def show_opened(screen: TerminalScreen, runs: Sequence[OpenedStage], *, build: bool, request: MemoryRequest) -> None:
    """Print the memory of opened runs, how their data were read, and the warnings of their checks.

    `build`: nothing follows, so that the networks of control are made to be counted, and all of a plan is told.
    `request`: what is asked about memory. Raises HoneError as the build, and ConfigError for an unknown device.
    """
    for opened, config, _ in runs:
        if rows := _memory_rows(opened, config, build=build, request=request):
            screen.rows(list(rows.items()))
            screen.line()
    for opened, _, with_location in runs:
        for note in opened.notes:
            screen.line(f"data: {note}")
        for warning in opened.warnings:
            screen.line(f"warning: {with_location(warning)}")


def missing_devices(devices: Iterable[str]) -> list[str]:
    """Warnings about devices that this machine lacks: a plan is made for another machine, too."""
    wanted = {device for device in devices if device != "cpu"}
    if not wanted:
        return []
    import torch  # noqa: PLC0415 - not needed to plan a run on a CPU

    missing = [] if torch.cuda.is_available() else sorted(wanted)
    return [f'run.device = "{device}": this machine has no CUDA device, so it cannot train this' for device in missing]


def _memory_rows(opened: OpenedRun, config: RunConfig, *, build: bool, request: MemoryRequest) -> dict[str, str]:
    plan = opened.memory
    if plan is None and build:
        job = opened.build(config)
        try:
            plan = job_memory(job, config.run.device)
        finally:
            job.close()
    if plan is None:
        return {}
    return {**plan.rows(), **plan_rows(plan, request, lambda: config)} if build or request.device else plan.rows()


def job_memory(job: TrainingJob[Any], device: str) -> MemoryPlan | None:
    """The memory plan of a job, read off its tensors; None for a policy that is no network."""
    from torch import nn  # noqa: PLC0415 - not needed to refuse a config

    from hone.learner.gradient import GradientLearner  # noqa: PLC0415 - torch, as above

    learner = job.recipe.learner
    policy = learner.policy
    if not isinstance(policy, nn.Module):
        return None
    parameters = list(policy.parameters())
    parts = {"weights": sum(one.numel() * one.element_size() for one in parameters)}
    if isinstance(learner, GradientLearner):
        owned = [tensor for phase in learner.phases for tensor in phase.parameters.owned]
        trained = sum(tensor.numel() * tensor.element_size() for tensor in owned)
        parts |= {"gradients": trained, "optimizer state": 2 * trained}
    return MemoryPlan(parameters=sum(one.numel() for one in parameters), parts=parts, device=device)
