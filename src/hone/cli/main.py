"""The program `hone`: selects the command, runs it, and turns errors into messages and exit codes.

Belongs here: nothing that takes time to import; a command's module is imported when the command is used.

Exit codes: 0 success, 1 a bug in hone, 2 usage or config, 3 data, 4 user code, 5 environment or resources, 6 diverged,
7 a red alarm, 130 and 143 interrupted, 141 the output pipe was closed.
"""

import argparse
import contextlib
import functools
import importlib
import io
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NoReturn, TextIO, cast

import hone
from hone.cli.options import COMMANDS, CommandCall, CommandSpec, overview
from hone.config.toml import split_overrides
from hone.core.clock import SystemClock, listening
from hone.core.errors import (
    CheckpointWarning,
    ConfigError,
    HoneError,
    InterruptedRun,
    NativeBuildWarning,
    ResourceError,
    did_you_mean,
)
from hone.core.out_of_memory import out_of_memory

if TYPE_CHECKING:
    from hone.cli.terminal.progress import WorkDisplay

# Threads of the tensor library spin for a long time by default while they wait for each other, which made rollouts with
# reward workers on the same cores many times slower. A short spin costs nothing on an idle machine. Torch reads it.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

EXIT_BUG = 1
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
_OWN_WARNINGS = (CheckpointWarning, NativeBuildWarning)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (the process's own by default) and return its exit code."""
    _escape_unencodable()
    try:
        code = _dispatch(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
    except InterruptedRun as stop:  # requested by the user, so not an error
        _print_error(str(stop))
        return stop.exit_code
    except HoneError as error:
        for message in error.messages:
            _print_error(f"error: {message}")
        return error.exit_code
    except KeyboardInterrupt:
        _print_error("interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Without this, Python reports the closed pipe again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except SystemExit as stop:  # argparse, after --help
        return stop.code if isinstance(stop.code, int) else 0
    except Exception as error:  # noqa: BLE001 - the outermost frame: report any other error as a bug
        if what := out_of_memory(error):
            _print_error(f"error: {what}; see the memory that `hone plan` prints")
            return ResourceError.exit_code
        _print_error("".join(traceback.format_exception(error)).rstrip())
        _print_error(
            f"error: this is a bug in hone {hone.__version__}, not in your config: {type(error).__name__}: {error}"
        )
        return EXIT_BUG
    return code


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(overview())
        return 0 if arguments else ConfigError.exit_code
    if arguments[0] in ("-V", "--version"):
        print(f"hone {hone.__version__}")
        return 0
    command = next((command for command in COMMANDS if command.name == arguments[0]), None)
    if command is None:
        raise ConfigError(
            f"hone has no command {arguments[0]!r}{did_you_mean(arguments[0], [one.name for one in COMMANDS])}"
        )
    call = _call(command, arguments[1:])
    module = importlib.import_module(command.module)

    @functools.cache
    def display() -> "WorkDisplay":
        from hone.cli.terminal.progress import WorkDisplay  # noqa: PLC0415 - rich: most commands are short
        from hone.cli.terminal.screen import is_plain, make_console  # noqa: PLC0415

        return WorkDisplay(console=make_console(sys.stderr), clock=SystemClock(), live=not is_plain(sys.stderr))

    with _own_warnings_on_stderr(), listening(lambda work: display().show(work)):
        return cast("Callable[[CommandCall], int]", vars(module)["run"])(call)


def _call(command: CommandSpec, arguments: list[str]) -> CommandCall:
    overrides: list[str] = []
    if command.overrides:
        arguments, overrides = split_overrides(arguments, switches=command.switches(), options=command.value_flags())
    _refuse_empty_values(arguments, command.value_flags())
    values = vars(build_parser(command).parse_args(arguments))
    return CommandCall(command=command.name, values=values, overrides=tuple(overrides))


def _refuse_empty_values(arguments: Sequence[str], flags: Collection[str]) -> None:
    """Raise ConfigError for options with an empty value, as of `--name "$UNSET"`: it would count as not given."""
    empty = [
        flag
        for argument, following in pairwise([*arguments, "-"])
        for flag, equals, value in [argument.partition("=")]
        if flag in flags and not (value if equals else following).strip()
    ]
    if empty:
        raise ConfigError(*(f"{flag} has an empty value; give one, or leave {flag} out" for flag in empty))


@contextlib.contextmanager
def _own_warnings_on_stderr() -> Iterator[None]:
    """Print each of hone's own warnings of the block once, as a line `warning: ...`; others stay as they are."""
    shown: set[str] = set()

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if not issubclass(category, _OWN_WARNINGS):
            others(message, category, filename, lineno, file, line)
        elif str(message) not in shown:
            shown.add(str(message))
            _print_error(f"warning: {message}")

    with warnings.catch_warnings():
        for own in _OWN_WARNINGS:
            warnings.simplefilter("always", own)
        others, warnings.showwarning = warnings.showwarning, show
        yield


def _print_error(text: str) -> None:
    """Print to stderr with control characters escaped: text from a file must not control the terminal."""
    print("".join(char if char.isprintable() or char in "\n\t" else repr(char)[1:-1] for char in text), file=sys.stderr)


def _escape_unencodable() -> None:
    """Make standard output and error print the code of a character that they cannot encode, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class _CommandParser(argparse.ArgumentParser):
    """argparse parser that raises ConfigError instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see {self.prog} --help)")


def build_parser(command: CommandSpec) -> _CommandParser:
    """Build the parser for one command's arguments; overrides are removed before."""
    tail = " [key=value ...]" if command.overrides else ""
    words = " ".join(name.upper() for name, _ in command.positionals)
    words += "".join(f"{name.upper()} [{name.upper()} ...]" for name, _ in command.variadic)
    words += "".join(f" [{name.upper()}]" for name, _ in command.optional)
    parser = _CommandParser(
        prog=f"hone {command.name}",
        usage=f"hone {command.name} {words}{tail} [options]".replace("  ", " "),
        description=command.summary,
        epilog="key=value or --key value sets a key of the config: learner.lr=1e-4" if command.overrides else None,
        allow_abbrev=False,
    )
    for name, text in command.positionals:
        parser.add_argument(name, help=text)
    for name, text in command.optional:
        parser.add_argument(name, help=text, nargs="?", default="")
    for name, text in command.variadic:
        parser.add_argument(name, help=text, nargs="+")
    for option in command.options:
        if option.repeated:
            parser.add_argument(option.flag, metavar=option.metavar, default=[], help=option.help, action="append")
        elif option.metavar:
            parser.add_argument(option.flag, metavar=option.metavar, default=option.default, help=option.help)
        else:
            parser.add_argument(option.flag, action="store_true", help=option.help)
    return parser


if __name__ == "__main__":
    sys.exit(main())
