"""Worked answers from a user's function: the columns of an example -> the completion to imitate.

The function `f(prompt, **columns) -> str` runs in a process of its own with a deadline; nothing of it is imported here.
The child is this module as a command: it reads one line (tagged as in `wire.py`, so that tuples and dates keep their
types) and writes one.
"""

import inspect
import json
from collections.abc import Callable, Sequence
from typing import cast

from hone.core.clock import SystemClock
from hone.core.errors import DataError, UserCodeError
from hone.process.child import ChildLostError, RestartingChild
from hone.process.parent import connect_to_parent
from hone.process.user_files import check_reference, describe_error, load_reference, user_traceback
from hone.process.wire import decode, encode

_KIND = "solution function"


def check_solution(use: str) -> None:
    """Raises ConfigError unless `use` is `path/to/file.py:name` of an existing file, or `package.module:name`."""
    check_reference(use, kind=_KIND)


def run_solutions(reference: str, rows: Sequence[dict[str, object]], *, deadline_s: float) -> list[str]:
    """One completion for each row. Raises UserCodeError: the function raises, returns something else than text, or
    takes longer than `deadline_s` for all rows; DataError: a column holds a value that cannot be sent."""
    try:
        request = encode({"rows": list(rows)})
    except TypeError as error:
        raise DataError(f"the columns cannot be handed to {_KIND} {reference!r}: {error}") from None
    process = RestartingChild("hone.rewards.solutions", clock=SystemClock(), arguments=[reference])
    try:
        answer = json.loads(process.call(request, deadline_s=deadline_s))
    except ChildLostError as lost:
        slow = f"killed after {deadline_s:g} s for {len(rows)} examples; make it faster, or raise solution.deadline_s"
        raise UserCodeError(f"{_KIND} {reference!r}: {slow if lost.timeout else lost}") from None
    finally:
        process.close()
    if "fault" in answer:
        raise UserCodeError(*answer["fault"])
    return answer["completions"]


def _solve(reference: str, rows: Sequence[dict[str, object]]) -> dict[str, list[str]]:
    """The child's answer: completions, or the messages of a fault."""
    try:
        function = cast("Callable[..., object]", load_reference(reference, kind=_KIND))
        parameters = inspect.signature(function).parameters
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        completions: list[str] = []
        for number, row in enumerate(rows):
            text = function(**{key: value for key, value in row.items() if takes_all or key in parameters})
            if not isinstance(text, str):
                raise TypeError(f"returned {type(text).__name__} {text!r} for example {number}, not text")
            completions.append(text)
    except UserCodeError as fault:
        return {"fault": list(fault.messages)}
    except BaseException as error:  # noqa: BLE001 - whatever the user's code raises is reported to the parent
        return {"fault": [f"{_KIND} {reference!r} failed with {describe_error(error)}", user_traceback(error)]}
    return {"completions": completions}


def main() -> None:
    """The child: one line in, one line out."""
    channel = connect_to_parent()
    request = cast("dict[str, list[dict[str, object]]]", decode(next(channel.lines())))
    channel.reply(json.dumps(_solve(channel.arguments[0], request["rows"])).encode() + b"\n")


if __name__ == "__main__":
    main()
