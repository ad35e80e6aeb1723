"""`hone completion SHELL`: a script that completes commands and options, made from what the commands declare."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from hone.cli.options import COMMANDS, CommandCall, CommandSpec
from hone.core.errors import ConfigError, did_you_mean


def run(call: CommandCall) -> int:
    """Print the script; returns the exit code."""
    shell = call.text("shell")
    if shell not in SHELLS:
        raise ConfigError(f"no completion for {shell!r}{did_you_mean(shell, list(SHELLS))}; known: {', '.join(SHELLS)}")
    print(SHELLS[shell](COMMANDS), end="")
    return 0


def _flags(command: CommandSpec) -> list[str]:
    return ["--help", *(option.flag for option in command.options)]


def bash_script(commands: Sequence[CommandSpec]) -> str:
    """For bash: `eval "$(hone completion bash)"`."""
    cases = "\n".join(f'        {one.name}) options="{" ".join(_flags(one))}" ;;' for one in commands)
    return f"""_hone() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" options=""
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{" ".join(one.name for one in commands)} --help --version" -- "$word"))
        return
    fi
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
    case "$word" in
        -*) COMPREPLY=($(compgen -W "$options" -- "$word")) ;;
        *) COMPREPLY=($(compgen -f -- "$word")) ;;
    esac
}}
complete -o filenames -F _hone hone
"""


def _zsh_script(commands: Sequence[CommandSpec]) -> str:
    """For zsh: `eval "$(hone completion zsh)"`, or a file `_hone` in `$fpath`."""

    def quoted(text: str) -> str:
        marked = "".join(f"\\{letter}" if letter in "[]:\\" else letter for letter in text)
        return "'" + marked.replace("'", "'\\''") + "'"

    names = "\n".join(f"            {quoted(one.name)[:-1]}:{quoted(one.summary)[1:]}" for one in commands)
    cases: list[str] = []
    for one in commands:
        flags = [
            quoted(option.flag)[:-1]
            + f"[{quoted(option.help)[1:-1]}]"
            + (f":{quoted(option.metavar)[1:-1]}:_files'" if option.metavar else "'")
            for option in one.options
        ]
        cases.append(f"        {one.name}) _arguments {' '.join(flags)} '--help[print the options]' '*:file:_files' ;;")
    return "\n".join(
        [
            "#compdef hone",
            "_hone() {",
            "    if (( CURRENT == 2 )); then",
            "        local -a commands=(",
            names,
            "        )",
            "        _describe command commands",
            "        return",
            "    fi",
            "    local command=$words[2]",
            "    shift words",
            "    (( CURRENT-- ))",
            "    case $command in",
            *cases,
            "    esac",
            "}",
            "compdef _hone hone",
            "",
        ]
    )


def _fish_script(commands: Sequence[CommandSpec]) -> str:
    """For fish: `hone completion fish | source`."""

    def quoted(text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    lines: list[str] = []
    for one in commands:
        lines.append(f"complete -c hone -n __fish_use_subcommand -f -a {one.name} -d {quoted(one.summary)}")
        for option in one.options:
            value = " -r" if option.metavar else ""
            lines.append(
                f"complete -c hone -n '__fish_seen_subcommand_from {one.name}' -l {option.flag[2:]}{value} "
                f"-d {quoted(option.help)}"
            )
    return "\n".join([*lines, ""])


SHELLS: Final[Mapping[str, Callable[[Sequence[CommandSpec]], str]]] = {
    "bash": bash_script,
    "zsh": _zsh_script,
    "fish": _fish_script,
}
