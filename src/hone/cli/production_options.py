"""Commands about decisions in production, as data: the log, estimates, rollouts."""

from typing import Final

from hone.cli.command_spec import CommandSpec

PRODUCTION_COMMANDS: Final[tuple[CommandSpec, ...]] = ()
