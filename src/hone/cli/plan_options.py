"""Options of `hone plan` beyond those of a run."""

from typing import Final

from hone.cli.command_spec import CommandOption

PLAN_OPTIONS: Final = (
    CommandOption(flag="--json", help="print the plan as JSON"),
    CommandOption(flag="--memory", help="only the memory, from the config alone: nothing is read or loaded (0.3 s)"),
    CommandOption(
        flag="--longest-text", metavar="N", help="with --memory: tokens of the longest text, its prompt included"
    ),
    CommandOption(
        flag="--model",
        metavar="NAME|DIR",
        help="with --memory: another model: Qwen3-8B, or a folder",
    ),
    CommandOption(flag="--exact", help="also count the tensors of the real step, made without numbers (a few seconds)"),
    CommandOption(
        flag="--calibrate", help="first measure this machine (some seconds); later plans use the figures, and say so"
    ),
    CommandOption(flag="--solve", help="the cheapest changes with which the run fits, as a command to copy"),
)
