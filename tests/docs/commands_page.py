"""docs/reference/commands.md, made from the options that the commands declare: `python tests/docs/commands_page.py`."""

from pages import fenced, made_by, table, write

from hone.cli.main import build_parser
from hone.cli.options import COMMANDS, CommandSpec

PAGE = "reference/commands.md"
HEAD = f"""# Commands

{made_by("commands_page.py")}

`hone COMMAND --help` prints the same. Exit codes are listed in [Runs](../howto/runs.md#exit-codes).
"""
MORE = {
    "ratings": "[Players](../production/players.md#fitting-anew)",
    "train": "[Configuration](../howto/configure.md), [Runs](../howto/runs.md)",
    "plan": "[Configuration](../howto/configure.md)",
    "eval": "[Evaluate and compare](../howto/compare.md)",
    "debug": "[Debug a failure](../howto/debug.md)",
    "profile": "[Profile a run](../howto/profile.md)",
    "init": "[Configuration](../howto/configure.md#a-first-config)",
    "completion": "[Install](../start/install.md#completion)",
    "track": "[Trackers](../howto/trackers.md)",
    "sample": "[Runs](../howto/runs.md), [Dialogues](../language/dialogues.md#look-at-them)",
    "queue": "[A queue of jobs](../howto/queue.md)",
    "serve": "[Serving a model](../howto/serving.md), [Serving decisions](../production/serving_decisions.md), "
    "[Train from your own loop](../howto/training_service.md)",
    "play": "[Dialogues](../language/dialogues.md#look-at-them)",
    "distill-tree": "[Decision trees](../control/take_away.md#a-decision-tree)",
    "export": "[Adapters](../language/adapters.md#peft-folders)",
    "fetch": "[GGUF files](../language/gguf.md)",
    "dataset": "[Data](../howto/data.md#collected-answers)",
    "show": "[Runs](../howto/runs.md)",
    "sweep": "[Sweeps](../howto/sweep.md)",
    "chaos": "[Does my run survive?](../howto/chaos.md)",
    "watch": "[Watch a run](../howto/watch.md)",
    "compare": "[Evaluate and compare](../howto/compare.md)",
    "list": "[Algorithms](algorithms/index.md)",
    "estimate": "[Offline estimates](../production/offline_estimates.md)",
    "log": "[The decision log](../production/decision_log.md)",
    "retrain": "[Drift](../production/drift.md#the-answer)",
    "ship": "[Staged rollout](../production/rollout.md)",
    "service": "[Operations](../production/operations.md#back-up-and-restore)",
    "shield": "[Shield](../production/shield.md)",
    "lab": "[The lab](../project/lab.md)",
    "doctor": "[Troubleshooting](../howto/troubleshooting.md)",
}
"""Where a command is explained with examples."""


def pages() -> dict[str, str]:
    summary = table(
        ("command", "purpose"), [(f"[`hone {one.name}`](#hone-{one.name})", one.summary) for one in COMMANDS]
    )
    return {PAGE: "\n\n".join([HEAD.strip(), summary, *(section(command) for command in COMMANDS)]) + "\n"}


def section(command: CommandSpec) -> str:
    """One command: its usage line, arguments and options."""
    usage = build_parser(command).format_usage().removeprefix("usage: ")
    arguments = [(f"`{name.upper()}`", "", text) for name, text in (*command.positionals, *command.variadic)]
    arguments += [(f"`{name.upper()}`", "optional", text) for name, text in command.optional]
    if command.overrides:
        arguments.append(("`key=value`", "optional", "sets a key of the config: `learner.lr=1e-4`"))
    options = [
        (
            f"`{option.flag} {option.metavar}`" if option.metavar else f"`{option.flag}`",
            default_of(option.default, option.repeated),
            option.help,
        )
        for option in command.options
    ]
    return "\n\n".join(
        [
            f"## hone {command.name}",
            f"{command.summary[0].upper()}{command.summary[1:]}. See {MORE[command.name]}.",
            fenced(usage),
            table(("argument or option", "default", "meaning"), arguments + options),
        ]
    )


def default_of(value: str, repeated: bool) -> str:
    return "may be repeated" if repeated else f"`{value}`" if value else ""


if __name__ == "__main__":
    write(pages())
