"""Completion scripts: made from the parser's own options, and what bash completes with them."""

import shutil
import subprocess

import pytest

from hone.cli.commands.completion import SHELLS, bash_script
from hone.cli.main import main
from hone.cli.options import COMMANDS, CommandOption, CommandSpec


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_and_option_is_there(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for command in COMMANDS:
        assert command.name in script
        for option in command.options:
            assert (option.flag if shell != "fish" else f"-l {option.flag[2:]}") in script
    if (program := shutil.which(shell)) is not None:
        done = subprocess.run([program, "-n"], input=script, text=True, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_command_that_is_added_needs_nothing_else(shell: str) -> None:
    option = CommandOption(flag="--deep", metavar="N", help="it's [deep]: 1 or 2")
    script = SHELLS[shell]([CommandSpec(name="dig", summary="dig a hole", module="none", options=(option,))])
    assert "dig" in script
    assert "deep" in script
    assert "train" not in script


def completed(*words: str) -> list[str]:
    """Words that bash offers for the last of `words`."""
    listed = " ".join(f"'{word}'" for word in words)
    code = f"{bash_script(COMMANDS)}\nCOMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}; _hone\n"
    code += 'printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", code], text=True, capture_output=True, check=True)
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_commands_options_and_files() -> None:
    assert completed("hone", "com") == ["compare", "completion"]
    assert completed("hone", "show", "--al") == ["--alarms"]
    assert completed("hone", "track", "--") == ["--help", "--to", "--project", "--place", "--names", "--runs"]
    assert completed("hone", "train", "/et") == ["/etc"]


def test_an_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fisch"]) == 2
    assert "did you mean fish" in capsys.readouterr().err
