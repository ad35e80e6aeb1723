"""What the check of a run found: its memory, which must fit the machine, and warnings."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from hone.cli.terminal.screen import TerminalScreen
from hone.train.config import RunConfig
from hone.train.job import OpenedRun
from hone.train.memory_plan import layers_plan, require_fit

OpenedStage: TypeAlias = tuple[OpenedRun, RunConfig, Callable[[str], str]]
"""An opened run, its config, and the function that prefixes a message with its place in the config."""


def require_layers_fit(settings: Mapping[str, object]) -> None:
    """Raise ResourceError for a config whose networks cannot fit the machine, before anything is opened."""
    require_fit(layers_plan(settings), settings)


def require_opened_fit(opened: OpenedRun, settings: Mapping[str, object]) -> None:
    """Raise ResourceError for an opened run whose networks cannot fit the machine; it is closed then."""
    if opened.memory is not None:
        try:
            require_fit(opened.memory, settings)
        except BaseException:
            opened.close()
            raise


def show_opened(screen: TerminalScreen, runs: Sequence[OpenedStage], *, build: bool) -> None:
    """Print the memory of opened runs, and the warnings of their checks.

    `build`: nothing follows, so that the networks of control are made to be counted. Raises HoneError as the build.
    """
    for opened, config, _ in runs:
        if rows := _memory_rows(opened, config, build=build):
            screen.rows(list(rows.items()))
            screen.line()
    for opened, _, with_location in runs:
        for warning in opened.warnings:
            screen.line(f"warning: {with_location(warning)}")


def _memory_rows(opened: OpenedRun, config: RunConfig, *, build: bool) -> dict[str, str]:
    plan = opened.memory
    if plan is None and build:
        from hone.train.job_memory import job_memory  # noqa: PLC0415 - torch: not needed to refuse a config

        job = opened.build(config)
        try:
            plan = job_memory(job, config.run.device)
        finally:
            job.close()
    return {} if plan is None else plan.rows()
