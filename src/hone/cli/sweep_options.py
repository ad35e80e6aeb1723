"""The command `hone sweep`, as data."""

from typing import Final

from hone.cli.command_spec import CommandOption, CommandSpec

SWEEP_COMMAND: Final = CommandSpec(
    name="sweep",
    summary="train many settings of a config; the best again on fresh seeds",
    module="hone.cli.commands.sweep",
    positionals=(("file", "a sweep's file, or a config with --over"),),
    options=(
        CommandOption(flag="--over", metavar="KEY=A,B", repeated=True, help="values to try: learner.lr=1e-4,3e-4"),
        CommandOption(flag="--seeds", metavar="SEEDS", help="seeds of a trial: 5 (0..4), 0..9 or 1,4,7 (default: 3)"),
        CommandOption(
            flag="--fresh-seeds", metavar="SEEDS", help="seeds of the best trial's final runs (default: the next ones)"
        ),
        CommandOption(flag="--metric", metavar="NAME", help="score of a run (default: as hone compare)"),
        CommandOption(flag="--jobs", metavar="N", help="runs at the same time (default: 1)"),
        CommandOption(flag="--ray", metavar="ADDRESS", help="run on a Ray cluster: auto, local or host:port"),
        CommandOption(flag="--resume", help="continue the sweep: no trial is made twice"),
        CommandOption(flag="--dry-run", help="check everything, print the plan, and stop"),
        CommandOption(flag="--name", metavar="NAME", help="folder of the sweep under --runs"),
        CommandOption(flag="--runs", metavar="DIR", default="runs", help="folder that holds the runs (default: runs)"),
        CommandOption(flag="--yes", help="accept settings that look like a mistake"),
    ),
    overrides=True,
)
