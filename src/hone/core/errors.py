"""Error types of hone and their exit codes.

Belongs here: the error types of the public interface and the collector that reports all faults at once. Every
message names the place (file, line, key, row, id), the value, and the remedy.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

T = TypeVar("T")


class HoneError(Exception):
    """An expected failure: printed as `error: ...` without a traceback, and turned into `exit_code`."""

    exit_code = 1
    work: frozenset[str | int] = frozenset()
    """Requests by id, and texts by number, that an engine cannot do while it does others; empty: it is not of these."""

    def __init__(self, *messages: str) -> None:
        super().__init__("\n".join(messages))
        self.messages: tuple[str, ...] = messages


class ConfigError(HoneError):
    """The command line or the config file cannot be run as written."""

    exit_code = 2


class DataError(HoneError):
    """A dataset, checkpoint, model folder or tokenizer is missing, damaged or of the wrong form."""

    exit_code = 3


class CheckpointWarning(UserWarning):
    """An older checkpoint is used because newer ones are damaged; issued by `warnings.warn`."""


class NativeBuildWarning(UserWarning):
    """Compiled code lacks an instruction set, whose source did not compile; issued by `warnings.warn`."""


class UserCodeError(HoneError):
    """A reward function, environment or other code of the user's failed or broke its contract."""

    exit_code = 4


class ResourceError(HoneError):
    """The machine lacks a device, disk space, a free lock or a writable folder."""

    exit_code = 5


class LostResourceError(ResourceError):
    """A run lost what it cannot go on without, such as its environments; a checkpoint saved now can be resumed."""


class LostRankError(ResourceError):
    """One of the processes that share a learner ended or did not answer; the run goes on from its last checkpoint."""


class DivergedError(HoneError):
    """Training produced non-finite numbers; the update was skipped, and the data were saved for diagnosis."""

    exit_code = 6


class InterruptedRun(HoneError):  # noqa: N818 - it is an outcome the user asked for, not an error
    """The run was stopped by a signal after a checkpoint was saved (130: Ctrl-C, 143: SIGTERM, SIGHUP)."""

    def __init__(self, message: str, *, exit_code: int = 130) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass
class ErrorCollector:
    """Collects problems so that a user sees all of them in one answer, before any work starts.

    >>> faults = ErrorCollector(ConfigError)
    >>> faults.add("learner.lr must be > 0, got -1")
    >>> faults.raise_if_any()
    Traceback (most recent call last):
    hone.core.errors.ConfigError: learner.lr must be > 0, got -1
    """

    error_type: type[HoneError] = ConfigError
    messages: list[str] = field(default_factory=list[str])

    def add(self, message: str) -> None:
        self.messages.append(message)

    def extend(self, messages: Iterable[str]) -> None:
        self.messages.extend(messages)

    def raise_if_any(self) -> None:
        if self.messages:
            raise self.error_type(*self.messages)


_OTHERS_SHOWN: Final = 5


def one_line(faults: Mapping[str, str], things: str) -> list[str]:
    """Faults of one kind as one line, or none: the first in full, and the names of the others. `faults` are sentences
    by the name of what they are of, and `things` their plural: `tensors`."""
    names = list(faults)[1 : _OTHERS_SHOWN + 1]
    more = len(faults) - 1
    if more <= 0:
        return list(faults.values())
    dots = ", ..." if more > len(names) else ""
    return [f"{next(iter(faults.values()))}; and so {more} more {things}: {', '.join(names)}{dots}"]


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """Format a hint: `; did you mean lr?` if a known name is close, else the sorted list of known names."""
    close = nearest_name(name, known)
    if close is not None:
        return f"; did you mean {close}?"
    return f"; known: {', '.join(sorted(known))}" if known else ""


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that was most likely meant, capital letters aside; None if none is close.

    Two exchanged neighbours count as one mistake: 'gpro' is grpo, not gspo.
    """
    by_lower = {one.casefold(): one for one in sorted(known, reverse=True)}
    asked = name.casefold()
    close = difflib.get_close_matches(asked, by_lower, n=8, cutoff=0.6)
    close = close or [one for one in by_lower if sorted(one) == sorted(asked)]  # two letters are no more alike: lr, rl
    return by_lower[min(close, key=lambda one: _mistakes(asked, one))] if close else None


def _mistakes(one: str, other: str) -> int:
    """Letters to insert, delete, replace, or exchange with their neighbour (Damerau, 1964; optimal alignment)."""
    before, row = list[int](), list(range(len(other) + 1))
    for i, letter in enumerate(one, start=1):
        before, last, row = row, before, [i]
        for j, wanted in enumerate(other, start=1):
            best = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != wanted))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == wanted:
                best = min(best, last[j - 2] + 1)
            row.append(best)
    return row[-1]


def run_all_checks(checks: Mapping[str, Callable[[], T]]) -> dict[str, T]:
    """Run every check, then raise all errors together, with the exit code of the first.

    Returns each check's result by its name.
    """
    results: dict[str, T] = {}
    faults: list[HoneError] = []
    for name, check in checks.items():
        try:
            results[name] = check()
        except HoneError as fault:
            faults.append(fault)
    if faults:
        messages = dict.fromkeys(message for fault in faults for message in fault.messages)
        raise type(faults[0])(*messages)
    return results


# -------------------------------------------------------------------------------------------------------------- secrets

_IN_ADDRESS: Final = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*://[^\s/@:]*:)\S*@")
_IN_OPTIONS: Final = re.compile(r"(?i)([?&;\s](?:ssl)?(?:password|passwd|token|secret|api_?key)=)[^&;\s\"']+")
SECRET_KEY: Final = re.compile(r"(?i)(.*_)?((?<!per_)token|password|passwd|secret|api_?key|credentials?)(_sha256)?")
"""Names of keys whose values no message shows; not of those that name where one stands, such as `token_env`."""
_VARIABLE: Final = re.compile(r"[A-Z][A-Z0-9_]{0,63}")


def hide_passwords(text: str) -> str:
    """The text with `***` for passwords of addresses (`scheme://user:password@host`) and of their options."""
    return _IN_OPTIONS.sub(r"\1***", _IN_ADDRESS.sub(r"\1***@", text))


def variable_name(name: str) -> str:
    """Name of an environment variable for a message; one that does not look like it may be the secret itself."""
    return name if _VARIABLE.fullmatch(name) else "(not shown: it is no name in capital letters)"
