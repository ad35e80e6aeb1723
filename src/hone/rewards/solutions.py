"""Texts from a user's function: the columns of an example -> the completion to imitate, or another text about the row.

The function `f(prompt, **columns) -> str` runs in a process of its own with a deadline; nothing of it is imported here.
The child is this module as a command: it reads one line (tagged as in `process.wire`, so that tuples and dates keep
their types) and writes one.
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
    """One completion for each row. Raises as `run_on_rows`."""
    texts = run_on_rows(reference, rows, deadline_s=deadline_s, kind=_KIND, deadline_key="solution.deadline_s")
    return [text for text in texts if text is not None]


def run_on_rows(
    reference: str,
    rows: Sequence[dict[str, object]],
    *,
    deadline_s: float,
    kind: str,
    deadline_key: str,
    may_be_none: bool = False,
) -> list[str | None]:
    """One text of the user's function for each row. `kind` is what messages call the function. Raises UserCodeError:
    the function raises, returns something else than text (or None, where that `may_be_none`), or takes longer than
    `deadline_s` for all rows; DataError: a column holds a value that cannot be sent."""
    try:
        request = encode({"rows": list(rows)})
    except TypeError as error:
        raise DataError(f"the columns cannot be handed to {kind} {reference!r}: {error}") from None
    arguments = [reference, kind, *(["may be none"] if may_be_none else [])]
    process = RestartingChild("hone.rewards.solutions", clock=SystemClock(), arguments=arguments)
    try:
        answer = json.loads(process.call(request, deadline_s=deadline_s))
    except ChildLostError as lost:
        slow = f"killed after {deadline_s:g} s for {len(rows)} examples; make it faster, or raise {deadline_key}"
        raise UserCodeError(f"{kind} {reference!r}: {slow if lost.timeout else lost}") from None
    finally:
        process.close()
    if "fault" in answer:
        raise UserCodeError(*answer["fault"])
    return answer["completions"]


def _solve(
    reference: str, kind: str, rows: Sequence[dict[str, object]], *, may_be_none: bool
) -> dict[str, list[str | None]] | dict[str, list[str]]:
    """The child's answer: completions, or the messages of a fault."""
    try:
        function = cast("Callable[..., object]", load_reference(reference, kind=kind))
        parameters = inspect.signature(function).parameters
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        completions: list[str | None] = []
        for number, row in enumerate(rows):
            text = function(**{key: value for key, value in row.items() if takes_all or key in parameters})
            if not isinstance(text, str) and not (may_be_none and text is None):
                raise TypeError(f"returned {type(text).__name__} {text!r} for example {number}, not text")
            completions.append(text)
    except UserCodeError as fault:
        return {"fault": list(fault.messages)}
    except BaseException as error:  # noqa: BLE001 - whatever the user's code raises is reported to the parent
        return {"fault": [f"{kind} {reference!r} failed with {describe_error(error)}", user_traceback(error)]}
    return {"completions": completions}


def main() -> None:
    """The child: one line in, one line out."""
    channel = connect_to_parent()
    request = cast("dict[str, list[dict[str, object]]]", decode(next(channel.lines())))
    reference, kind, *options = channel.arguments
    solved = _solve(reference, kind, request["rows"], may_be_none=bool(options))
    channel.reply(json.dumps(solved).encode() + b"\n")


if __name__ == "__main__":
    main()
